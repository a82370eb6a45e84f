"""Other ways to train, each once with the real command."""

import json

import pytest
import torch

VARIANTS = {
    "separate tokenizers": [
        "tokenizer=bpe",
        "tokenizer.joint=false",
        "model.tie_embeddings=target",
    ],
    "other layers": ["position=learned", "model.norm=post", "model.activation=swiglu"],
    "accumulation": ["trainer.accumulate_grad_batches=3", "schedule=inverse_sqrt"],
    "sampling": ["batches.subword_sampling=0.2", "tokenizer.lowercase=true"],
    "grouped queries": ["attention.kv_heads=2", "attention.dropout=0.1", "attention.bias=true"],
    "multi-query attention": ["attention=mqa", "position=alibi"],
    "grouped-query attention": ["attention=gqa", "position=rope"],
    "latent attention": ["attention=mla", "attention.latent_dim=12", "position=rope"],
    "a mixture of heads": [
        "attention=moh",
        "attention.shared_heads=1",
        "attention.active_heads=2",
        "trainer.accumulate_grad_batches=2",
    ],
    "gated DeltaNet": ["attention=hybrid", "attention.softmax_every=2", "position=none"],
    "a kind for each site": [
        "attention.encoder=moh",
        "attention.shared_heads=0",
        "attention.active_heads=3",
        "attention.decoder=deltanet",
        "attention.cross=mla",
        "trainer.precision=bf16-mixed",
    ],
    "heads left out": [
        "model.ablate=[encoder.*.*,cross.1.0,decoder.0.1-3]",
        "attention.kv_heads=2",
    ],
    "half precision": ["trainer.precision=bf16-mixed"],
    "double precision": ["trainer.precision=64-true"],
    "bare": [
        "callbacks.weight_averaging=null",
        "callbacks.attention_maps=null",
        "callbacks.samples=null",
        "callbacks.progress=null",
    ],
    "early stopping on the loss": [
        "callbacks=early_stopping",
        "callbacks.early_stopping.monitor=val/loss",
        "callbacks.early_stopping.mode=min",
        "callbacks.checkpoints.monitor=val/loss",
        "callbacks.checkpoints.mode=min",
    ],
    "steps instead of epochs": ["trainer.max_steps=5", "trainer.max_epochs=null"],
    "several validations an epoch": ["trainer.val_check_interval=2"],
    "validation every other epoch": ["+trainer.check_val_every_n_epoch=2", "trainer.max_epochs=3"],
}


@pytest.mark.slow
@pytest.mark.parametrize("name", VARIANTS)
def test_trains_and_translates(name, command, tiny, workplace, trained, tmp_path) -> None:
    run = tmp_path / "run"
    overrides = [*tiny, "data.train=pairs.tsv", *VARIANTS[name], f"hydra.run.dir={run}"]
    if name == "steps instead of epochs":
        overrides.remove("trainer.max_epochs=2")
    done = command("train", *overrides, cwd=workplace)
    assert done.returncode == 0, done.stdout.decode() + done.stderr.decode()
    raw = torch.load(run / "last.ckpt", weights_only=True)
    assert all(t.isfinite().all() for t in raw["state_dict"].values())
    best = "best" if (run / "best.ckpt").exists() else "last"
    assert json.loads((run / f"{best}.test.json").read_text())["sentences"] > 0


@pytest.mark.slow
def test_two_processes_see_what_one_sees(command, tiny, workplace, trained, tmp_path) -> None:
    """Half the batch each, the same number of steps; one folder, one curve, one report."""
    run = tmp_path / "run"
    done = command(
        "train",
        *tiny,
        "data.train=pairs.tsv",
        "trainer.devices=2",
        "trainer.accelerator=cpu",
        "trainer.strategy=ddp",
        f"hydra.run.dir={run}",
        cwd=workplace,
    )
    out = done.stdout.decode()
    assert done.returncode == 0, out + done.stderr.decode()
    assert out.count("sample translations") == 1
    assert len(list((run / "tensorboard").glob("events*"))) <= 2
    raw = torch.load(run / "last.ckpt", weights_only=True)
    assert len(raw["random_states"]) == 2
    again = command("train", f"resume={run / 'last.ckpt'}", "trainer.max_epochs=3", cwd=workplace)
    assert again.returncode == 0, again.stdout.decode() + again.stderr.decode()
    longer = torch.load(run / "last.ckpt", weights_only=True)
    assert longer["global_step"] == raw["global_step"] // 2 * 3
