"""What a training prints and leaves on disk."""

import json
import os
import re
from pathlib import Path

import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from headlab.cli import folders


def events_of(run: Path) -> EventAccumulator:
    keep_all = {"scalars": 0, "images": 0, "tensors": 0}
    events = EventAccumulator(str(run / "tensorboard"), size_guidance=keep_all)
    events.Reload()
    return events


def test_files(run: Path) -> None:
    latest = run.parent / "latest"
    assert latest.is_symlink()
    assert not os.path.isabs(os.readlink(latest))  # the folder may be moved as a whole
    assert (latest / "last.ckpt").exists()
    names = {p.name for p in run.iterdir()}
    assert {"best.ckpt", "last.ckpt", "best.test.json", "best.test.hyp.txt", ".hydra"} <= names
    for name in [run.name, *names]:
        assert re.fullmatch(r"[A-Za-z0-9._-]+", name), "a name that needs escaping"
    assert not list(run.glob("*.tmp*"))


def test_checkpoints_hold_plain_types_only(run: Path) -> None:
    for name in ("best.ckpt", "last.ckpt"):
        raw = torch.load(run / name, weights_only=True)
        assert raw["global_step"] > 0
        assert raw["headlab"]["config"]["model"]["d_model"] == 32
        assert os.path.isabs(raw["headlab"]["config"]["data"]["train"])


def test_scalars(run: Path) -> None:
    events = events_of(run)
    tags = set(events.Tags()["scalars"])
    train = {"loss", "perplexity", "learning_rate", "gradient_norm", "tokens_per_second"}
    wanted = {f"train/{name}" for name in train | {"padding_share"}}
    wanted |= {"val/loss", "val/perplexity", "val/bleu", "val/chrf"}
    wanted |= {f"entropy/encoder/layer_0/head_{head}" for head in range(4)}
    for site in ("decoder", "cross"):
        wanted |= {f"entropy/{site}/layer_{n}/head_{h}" for n in range(2) for h in range(4)}
    assert wanted <= tags
    steps = [event.step for event in events.Scalars("train/loss")]
    assert steps == list(range(2, steps[-1] + 1, 2))
    losses = [event.value for event in events.Scalars("train/loss")]
    assert losses[-1] < losses[0]
    assert all(event.value > 0 for event in events.Scalars("train/learning_rate")[:-1])
    assert len(events.Scalars("val/bleu")) == 2
    assert all(0 <= event.value < 0.5 for event in events.Scalars("train/padding_share"))


def test_attention_maps_of_every_site_and_layer(run: Path) -> None:
    images = set(events_of(run).Tags()["images"])
    wanted = {"attention/encoder/layer_0", "attention/decoder/layer_0", "attention/decoder/layer_1"}
    wanted |= {"attention/cross/layer_0", "attention/cross/layer_1"}
    assert images == {f"{tag}/sentence_0" for tag in wanted}


def test_samples_and_hyper_parameters(run: Path) -> None:
    events = events_of(run)
    texts = [tag for tag in events.Tags()["tensors"] if tag.startswith("samples")]
    assert texts
    table = events.Tensors(texts[0])[-1].tensor_proto.string_val[0].decode()
    assert "source" in table
    assert "translation" in table
    summary = b"".join(
        metadata.plugin_data.content
        for metadata in events.summary_metadata.values()
        if metadata.plugin_data.plugin_name == "hparams"
    )
    assert b"model.heads" in summary
    assert b"final/test_bleu" in summary


def test_what_is_printed(trained) -> None:
    out = trained.stdout.decode()
    assert "train: 1" in out
    assert re.search(r"parameters: [\d,]+ \([\d,]+ in attention", out)
    assert re.search(r"epoch 1/2 +step [\d,]+/[\d,]+ +validation: +val/bleu", out)
    assert re.search(r"epoch 2/2 +step [\d,]+/[\d,]+ +loss .* training ended after 0:", out)
    assert "BLEU" in out
    assert "sample translations" in out
    assert "next: headlab translate outputs/" in out
    assert "\x1b" not in out  # no control characters where the output is no terminal
    for noise in ("Traceback", "Warning", "GPU available", "Tip"):
        assert noise not in out + trained.stderr.decode()


def test_two_runs_in_one_second_get_two_folders(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(folders.time, "strftime", lambda _: "2030-01-01_00-00-00")
    make = folders.new_folder.__wrapped__
    made = [make(str(tmp_path / "outputs"), "a=b,c d") for _ in range(3)]
    assert len(set(made)) == 3
    assert Path(made[0]).name == "2030-01-01_00-00-00-a-b-c-d"
    assert all(Path(folder).is_dir() for folder in made)


def test_a_sweep(command, tiny, workplace, trained) -> None:
    """An invalid job is named at once, the others finish, and the exit status says so."""
    done = command(
        "train",
        *tiny,
        "data.train=pairs.tsv",
        "trainer.max_epochs=1",
        "-m",
        "experiment=heads_sweep",
        "model.heads=2,7,8",
        cwd=workplace,
    )
    out, err = done.stdout.decode(), done.stderr.decode()
    assert done.returncode == 1
    errors = [line for line in err.splitlines() if line.startswith("error: ")]
    assert len(errors) == 1
    assert "model.d_model=32 is not divisible by model.heads=7" in errors[0]
    counts = set(re.findall(r"parameters: ([\d,]+)", out))
    assert len(counts) == 1  # the same, whatever the number of heads
    assert re.search(r"│ 7 +│ +failed ", out)
    assert "next: tensorboard --logdir outputs/" in out
    (sweep,) = (workplace / "outputs").glob("*-sweep")
    jobs = sorted(p.name for p in sweep.iterdir() if p.is_dir())
    assert len([name for name in jobs if "model.heads" in name]) == 3
    rows = json.loads((sweep / "sweep.json").read_text())
    assert [row["model.heads"] for row in rows] == [2, 7, 8]
    assert [row["failed"] for row in rows] == [False, True, False]
    assert rows[0]["parameters"] == rows[2]["parameters"]
    assert rows[0]["tokens_per_second"] > 0
    assert (sweep / "sweep.csv").read_text().startswith("job,model.heads,parameters,heads,")
    assert (sweep / "sweep.png").read_bytes().startswith(b"\x89PNG")
    for heads in (2, 8):
        (job,) = sweep.glob(f"*model.heads-{heads}*")
        raw = torch.load(job / "best.ckpt", weights_only=True)
        assert raw["headlab"]["model"]["heads"] == heads
        assert f"heads: {heads}" in (job / ".hydra" / "config.yaml").read_text()


def test_validating_less_than_once_an_epoch(command, tiny, workplace) -> None:
    done = command(
        "train", *tiny, "data.train=pairs.tsv", "trainer.val_check_interval=1000", cwd=workplace
    )
    assert done.returncode == 1
    (line,) = done.stderr.decode().splitlines()
    assert re.match(
        r"error: trainer\.val_check_interval=1000 is more than the \d+ batches of an epoch", line
    )


def test_a_training_that_diverges_says_so(command, tiny, workplace, tmp_path) -> None:
    done = command(
        "train",
        *tiny,
        "data.train=pairs.tsv",
        "optimizer.lr=1.0e30",
        "trainer.gradient_clip_val=null",
        "trainer.max_epochs=1",
        f"hydra.run.dir={tmp_path / 'run'}",
        cwd=workplace,
    )
    assert done.returncode == 0, done.stderr.decode()
    assert "val/loss is not a number: the training has diverged" in done.stdout.decode()
    assert not (tmp_path / "run" / "best.ckpt").exists()
    assert (tmp_path / "run" / "last.test.json").exists()
