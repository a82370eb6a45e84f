"""Training with learnt gates: exact sums, and a checkpoint that is what was validated."""

import functools
from pathlib import Path

import lightning as L
import pytest
import torch
from lightning.pytorch.callbacks import EMAWeightAveraging
from lightning.pytorch.loggers import TensorBoardLogger

from headlab.checkpoint import read_checkpoint, save_checkpoint
from headlab.data.batches import collate
from headlab.heads.hard_concrete import HardConcreteGates
from headlab.training.module import TOKENS, TranslationModule
from headlab.training.scoring import ValidationScores
from headlab.transformer import Transformer

VOCABULARY = 30
PENALTY = {"encoder": 0.3, "decoder": 0.0, "cross": 0.1}


def build(start: float = 0.5, smoothing: float = 0.1, rate: float = 3.0) -> TranslationModule:
    torch.manual_seed(0)
    model = Transformer(
        source_vocab_size=VOCABULARY,
        target_vocab_size=VOCABULARY,
        d_model=16,
        heads=2,
        encoder_layers=1,
        decoder_layers=1,
        feed_forward=16,
        dropout=0.0,
        position={"kind": "sinusoidal", "max_length": 200},
    ).double()
    gates = HardConcreteGates.of_model(model, penalty=PENALTY, start=start).double()
    sgd = functools.partial(torch.optim.SGD, lr=0.1, weight_decay=0.2)
    schedule = {"kind": "constant", "warmup_steps": 0}
    return TranslationModule(model, None, sgd, schedule, smoothing, {}, "", gates, rate)  # type: ignore[arg-type]


def rows(*lengths: int) -> list[list[int]]:
    generator = torch.Generator().manual_seed(1)
    return [torch.randint(4, VOCABULARY, (n,), generator=generator).tolist() for n in lengths]


class Batches:
    def __init__(self, batches: list) -> None:
        self.batches = batches

    def __iter__(self):
        return iter(self.batches)

    def __len__(self) -> int:
        return len(self.batches)


def train(module: TranslationModule, batches: list, accumulate: int) -> TranslationModule:
    trainer = L.Trainer(
        max_epochs=1,
        accelerator="cpu",
        accumulate_grad_batches=accumulate,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        precision="64-true",
    )
    trainer.fit(module, train_dataloaders=Batches(batches))
    return module


def test_accumulation_equals_one_large_batch(monkeypatch) -> None:
    """Loss and penalty, with the noise held still: sentences of 10 and of 100 tokens."""
    noise = {"encoder": torch.tensor([0.3, 0.6]), "cross": torch.tensor([0.8, 0.4])}
    monkeypatch.setattr(HardConcreteGates, "noise", lambda gates, generator: noise)
    sources, targets = rows(10, 100), rows(9, 99)
    together = train(build(), [collate(sources, targets)], 1)
    apart = [collate(sources[i : i + 1], targets[i : i + 1]) for i in range(2)]
    accumulated = train(build(), apart, 2)
    start = dict(build().named_parameters())
    for name, parameter in accumulated.named_parameters():
        torch.testing.assert_close(parameter, dict(together.named_parameters())[name])
        if name.startswith("gates."):
            assert not torch.equal(parameter, start[name])


def test_the_loss_is_that_of_the_gated_model_and_the_penalty_a_token(monkeypatch) -> None:
    module = build()
    batch = collate(rows(3, 9), rows(8, 2))
    noise = {"encoder": torch.tensor([0.3, 0.6]), "cross": torch.tensor([0.8, 0.4])}
    gates = module.gates.sample(noise)
    monkeypatch.setattr(module.gates, "noise", lambda generator: noise)
    loss = module.training_step(batch, 0)["loss"] * TOKENS / batch.target_tokens
    logits = module.model(batch.source, batch.target_input, gates)
    expected = torch.nn.functional.cross_entropy(
        logits.flatten(0, 1), batch.target_output.flatten(), ignore_index=0, label_smoothing=0.1
    )
    torch.testing.assert_close(loss, expected + module.gates.cost())


def test_gates_have_their_own_rate_and_no_weight_decay() -> None:
    model, gates = build()._optimizer().param_groups
    assert (model["lr"], model["weight_decay"]) == (0.1, 0.2)
    assert (gates["lr"], gates["weight_decay"]) == (pytest.approx(0.3), 0.0)
    assert len(gates["params"]) == 2


def test_one_draw_a_batch_and_none_in_validation() -> None:
    module = build().eval()
    batch = collate(rows(4, 4), rows(5, 5))
    draws = [module.gates.sample()["encoder"] for _ in range(2)]
    assert draws[0].shape == (1, 2)  # the same for all sentences
    assert not torch.equal(*draws)
    first, second = (module.loss_sums(batch, module.evaluation_gates()) for _ in range(2))
    assert torch.equal(first[0], second[0])


def test_a_run_leaves_what_it_validated(tiny_data, tmp_path: Path) -> None:
    """Logged, monitored, averaged, saved, and read back as a plain model that says the same."""
    tokenizers = tiny_data.prepare()
    L.seed_everything(3, verbose=False)
    model = Transformer(
        source_vocab_size=tokenizers.source.vocab_size,
        target_vocab_size=tokenizers.target.vocab_size,
        d_model=32,
        heads=2,
        ablate=["encoder.1.0"],
        encoder_layers=2,
        decoder_layers=2,
        feed_forward=32,
        dropout=0.2,
    )
    gates = HardConcreteGates.of_model(model, penalty={"encoder": 3.0, "cross": 0.01}, start=-2.35)
    adam = functools.partial(torch.optim.AdamW, lr=0.01)
    config = {
        "gates": {"penalty": {}},
        "callbacks": {"checkpoints": {"monitor": "val/objective", "mode": "min"}},
        "model": {"d_model": 32},
    }
    schedule = {"kind": "constant", "warmup_steps": 0}
    module = TranslationModule(model, tokenizers, adam, schedule, 0.1, config, "", gates, 5.0)
    seen: dict = {}

    class Keep(L.Callback):
        def on_validation_epoch_end(self, trainer, pl_module) -> None:
            batch = tiny_data.batch_from_texts(tiny_data.validation_examples())
            with torch.no_grad():
                seen["loss"] = pl_module.loss_sums(batch, pl_module.evaluation_gates())
                seen["cost"] = float(pl_module.gates.cost())

        def on_validation_end(self, trainer, pl_module) -> None:
            seen["metrics"] = {k: float(v) for k, v in trainer.callback_metrics.items()}
            trainer.save_checkpoint(tmp_path / "best.ckpt")

    averaging = EMAWeightAveraging(decay=0.9, use_buffers=False)
    trainer = L.Trainer(
        callbacks=[ValidationScores(None, False, {}), Keep(), averaging],
        max_steps=12,
        val_check_interval=1.0,
        accelerator="cpu",
        logger=TensorBoardLogger(tmp_path / "logs", name="", version=""),
        log_every_n_steps=2,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        num_sanity_val_steps=0,
    )
    trainer.fit(module, datamodule=tiny_data)
    metrics = seen["metrics"]
    assert metrics["val/objective"] == pytest.approx(metrics["val/loss"] + seen["cost"], rel=1e-5)
    assert {"val/bleu", "val/open_heads"} <= set(metrics)

    loaded = read_checkpoint(tmp_path / "best.ckpt")
    assert loaded.config["gates"] is None
    assert loaded.config["callbacks"]["checkpoints"]["monitor"] == "val/loss"
    names = [str(one) for one in loaded.model.head_names]
    gated = [name for name in names if not name.startswith("decoder")]
    assert len(gated) == int(metrics["val/open_heads"]) < 7
    assert "encoder.1.0" not in names
    batch = tiny_data.batch_from_texts(tiny_data.validation_examples())
    plain = TranslationModule(loaded.model, tokenizers, adam, schedule, 0.1, {})
    with torch.no_grad():
        for mine, theirs in zip(plain.loss_sums(batch), seen["loss"], strict=True):
            torch.testing.assert_close(mine, theirs, atol=1e-4, rtol=1e-6)

    save_checkpoint(tmp_path / "pruned.ckpt", loaded, loaded.model)
    pruned = read_checkpoint(tmp_path / "pruned.ckpt")
    assert pruned.model.head_names == loaded.model.head_names
    ids = batch.source
    assert torch.equal(pruned.model(ids, ids), loaded.model(ids, ids))

    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    trainer.logger.finalize("success")
    events = EventAccumulator(str(tmp_path / "logs"))
    events.Reload()
    tags = set(events.Tags()["scalars"])
    assert {"gate/cross/layer_1/head_1", "gate/encoder/layer_1/head_1"} <= tags
    assert not {"gate/encoder/layer_1/head_0", "gate/decoder/layer_0/head_0"} & tags
    assert {"open_heads/encoder", "open_heads/cross", "open_heads/all"} <= tags
    assert {"train/gate_penalty", "val/objective", "val/open_heads"} <= tags
