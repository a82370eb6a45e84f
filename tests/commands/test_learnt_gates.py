"""A new run from a checkpoint's weights, heads left out, and heads that gates close."""

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from headlab.checkpoint import read_checkpoint


def read(path: Path) -> dict[str, Any]:
    return torch.load(path, weights_only=True)


@pytest.fixture(scope="module")
def start(run, tmp_path_factory) -> Path:
    """A checkpoint, of two epochs, far from the run that made it."""
    return Path(shutil.copy(run / "last.ckpt", tmp_path_factory.mktemp("start") / "start.ckpt"))


def test_without_a_head_from_a_checkpoint(command, workplace, start, tmp_path) -> None:
    """Trained on in a folder of its own, resumed when the start is gone, evaluated, looked at."""
    copy = Path(shutil.copy(start, tmp_path / "start.ckpt"))
    run = tmp_path / "run"
    options = ("model.ablate=[cross.1.0,decoder.0.*]", "trainer.max_epochs=1")
    done = command("train", f"init_from={copy}", *options, f"hydra.run.dir={run}", cwd=workplace)
    out = done.stdout.decode()
    assert done.returncode == 0, out + done.stderr.decode()
    assert "4 heads, width 32; 15 of 20 heads)" in out
    assert "in TensorBoard, training goes on" not in out  # no picture failed
    assert re.search(r"epoch 1/1 +step (\d+)/\1 ", out)  # the steps start anew
    raw, old = read(run / "last.ckpt"), read(start)
    assert raw["global_step"] == old["global_step"] // 2
    config = raw["headlab"]["config"]
    assert config["init_from"] == str(copy)
    assert config["batches"] == old["headlab"]["config"]["batches"]
    pieces = [read_checkpoint(path).tokenizers.source.model for path in (start, run / "last.ckpt")]
    assert pieces[0] == pieces[1]
    kept = "model.encoder.0.self_attention.in_projection.weight"
    cut = "model.decoder.1.cross_attention.out_projection.weight"
    assert raw["state_dict"][cut].shape == (32, 24)
    moved = (raw["state_dict"][kept] - old["state_dict"][kept]).abs().max()
    assert 0 < moved < 0.2

    copy.unlink()
    again = command("train", f"resume={run / 'last.ckpt'}", "trainer.max_epochs=2", cwd=workplace)
    assert again.returncode == 0, again.stdout.decode() + again.stderr.decode()
    assert read(run / "last.ckpt")["global_step"] == 2 * raw["global_step"]
    for name, more in (("evaluate", ()), ("attend", ("the red cat", "--out", "a.png"))):
        looked = command(name, run / "best.ckpt", *more, cwd=workplace)
        assert looked.returncode == 0, looked.stderr.decode()


def test_learnt_gates(command, workplace, start, tmp_path) -> None:
    """Heads close and are cut, and a new run starts from what is left."""
    run = tmp_path / "run"
    options = (
        "experiment=l0_gates",
        f"init_from={start}",
        "gates.penalty.encoder=30",
        "gates.penalty.decoder=null",
        "gates.start=-2.3",
        "gates.learning_rate=100",
        "model.dropout=0.3",
        "schedule.kind=constant",
        "schedule.warmup_steps=0",
        "callbacks.weight_averaging.decay=0.5",
    )
    whole = command("train", *options, "trainer.max_steps=8", f"hydra.run.dir={run}", cwd=workplace)
    out = whole.stdout.decode()
    assert whole.returncode == 0, out + whole.stderr.decode()
    assert re.search(r"encoder self-attention +│ 0 of 4 +│ none ", out)
    assert re.search(r"decoder self-attention +│ 8 of 8 +│ decoder.0-1.0-3 \(not gated\) ", out)
    line = r"heads left (\d+) of 20, [\d.]+% cut   test BLEU [\d.]+, [+-][\d.]+ from "
    cut = re.search(line, out)
    assert cut, out
    assert "next: headlab roles" in out
    pruned = run / "pruned.ckpt"
    assert re.search(r"val/objective [\d.]+ +val/open_heads [\d.]+", out)
    assert json.loads((run / "pruned.test.json").read_text())["sentences"] > 0
    described = read(pruned)["headlab"]
    assert described["config"]["gates"] is None
    assert "encoder.0.0-3" in described["model"]["ablate"]

    refused = command("train", f"resume={pruned}", cwd=workplace)
    assert refused.returncode == 1
    message = refused.stderr.decode()
    assert "holds a model but no state of a training; train on from its weights with" in message
    more = command(
        "train", f"init_from={pruned}", "trainer.max_steps=1", f"hydra.run.dir={tmp_path / 'more'}",
        cwd=workplace,
    )  # fmt: skip
    assert more.returncode == 0, more.stderr.decode()
    assert f"; {cut[1]} of 20 heads)" in more.stdout.decode()
