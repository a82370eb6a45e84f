"""Killed at any step and resumed: the same weights to the bit, one unbroken curve."""

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.backend.event_processing.plugin_event_accumulator import (
    EventAccumulator as PluginEventAccumulator,
)

ROOT = Path(__file__).parents[2]

EXTRA = (
    "data.train=pairs.tsv",
    "trainer.max_epochs=3",
    "model.dropout=0.3",
    "batches.max_tokens=100",
)


def read(run: Path, name: str = "last.ckpt") -> dict[str, Any]:
    return torch.load(run / name, weights_only=True)


def interrupted(
    arguments: list[str],
    folder: Path,
    environment: dict[str, str],
    signum: int,
    step: int,
    cwd: Path | None = None,
) -> tuple[int, str, Path]:
    """Start a training and send it a signal once its last.ckpt has seen ``step`` steps."""
    run = folder / "outputs" / ("stopped" if cwd else f"stopped-by-{signum}")
    resuming = any(a.startswith("resume=") for a in arguments)
    place = [] if resuming else [f"hydra.run.dir={run}"]
    process = subprocess.Popen(
        [sys.executable, str(ROOT / "train.py"), *arguments, *place],
        cwd=cwd or folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    deadline = time.monotonic() + 120
    while process.poll() is None and time.monotonic() < deadline:
        if (run / "last.ckpt").exists() and read(run)["global_step"] >= step:
            process.send_signal(signum)
            break
        time.sleep(0.005)
    out, _ = process.communicate(timeout=60)
    return process.returncode, out.decode(), run


def curves(run: Path) -> dict[str, list[tuple[int, float]]]:
    """Every scalar that does not measure time, as TensorBoard shows it."""
    everything = {"scalars": 0, "images": 0, "tensors": 0}
    events = EventAccumulator(str(run / "tensorboard"), size_guidance=everything)
    events.Reload()
    tags = [t for t in events.Tags()["scalars"] if not t.endswith("tokens_per_second")]
    shown = {tag: [(e.step, e.value) for e in events.Scalars(tag)] for tag in tags}
    for tag in events.Tags()["images"]:
        shown[tag] = [(e.step, 0.0) for e in events.Images(tag)]
    # TensorBoard itself reads with this one, which treats restarts in another way.
    own = PluginEventAccumulator(str(run / "tensorboard"), size_guidance=everything)
    own.Reload()
    for tag in tags:
        steps = [e.step for e in own.Tensors(tag)]
        assert steps == [step for step, _ in shown[tag]], tag
    return shown


def assert_same(run: Path, whole: Path) -> None:
    """The resumed run ended as the uninterrupted one: steps, weights, averages, curves."""
    expected, resumed = read(whole), read(run)
    assert resumed["global_step"] == expected["global_step"]
    for part in ("state_dict", "current_model_state"):
        for key, tensor in expected[part].items():
            assert torch.equal(resumed[part][key], tensor), key
    assert curves(run) == curves(whole)


@pytest.fixture(scope="module")
def whole(command, tiny, workplace, trained) -> Path:
    """The run that nothing interrupted."""
    run = workplace / "outputs" / "whole"
    done = command("train", *tiny, *EXTRA, f"hydra.run.dir={run}", cwd=workplace)
    assert done.returncode == 0, done.stderr.decode()
    return run


@pytest.mark.parametrize(("signum", "step"), [(signal.SIGKILL, 3), (signal.SIGTERM, 10)])
def test_resumed_equals_uninterrupted(
    signum, step, whole, command, tiny, workplace, environment, tmp_path
) -> None:
    code, out, run = interrupted([*tiny, *EXTRA], workplace, environment, signum, step)
    if signum == signal.SIGKILL:
        assert code == -signal.SIGKILL
    else:
        assert code == 128 + signum
        match = re.search(r"stopped by SIGTERM after step (\d+); .*resume=(\S+)", out)
        assert match, out
        assert read(run)["global_step"] == int(match.group(1))
    before = read(run)["global_step"]
    final = read(whole)["global_step"]
    assert 0 < before < final
    # From another folder, and with nothing but the file's name.
    name = os.path.relpath(run / "last.ckpt", tmp_path)
    done = command("train", f"resume={name}", cwd=tmp_path)
    assert done.returncode == 0, done.stderr.decode()
    assert not list(tmp_path.iterdir())  # it went on in the folder of its run
    assert_same(run, whole)


def test_going_on_beyond_the_end(whole, command, workplace) -> None:
    finished = command("train", f"resume={whole / 'last.ckpt'}", cwd=workplace)
    assert finished.returncode == 0, finished.stderr.decode()
    message = finished.stdout.decode()
    assert "has finished its trainer.max_epochs=3 (step" in message
    assert "To train on, add trainer.max_epochs=6" in message
    assert "sample translations" in message
    step = read(whole)["global_step"]
    longer = command(
        "train", f"resume={whole / 'last.ckpt'}", "trainer.max_epochs=4", cwd=workplace
    )
    assert longer.returncode == 0, longer.stderr.decode()
    assert read(whole)["global_step"] == step // 3 * 4
    steps = [s for s, _ in curves(whole)["train/loss"]]
    assert steps == sorted(set(steps))


def test_overrides_that_go_with_resume(whole, command, tiny, workplace, tmp_path) -> None:
    """Typing the run's own command again, with files that lie elsewhere but hold the same."""
    moved = tmp_path / "moved.tsv"
    moved.write_bytes((workplace / "pairs.tsv").read_bytes())
    arguments = [*tiny, *EXTRA, f"data.train={moved}", "trainer.max_time=00:01:00:00"]
    resume = f"resume={whole / 'last.ckpt'}"
    done = command("train", *arguments, resume, "hydra.job.chdir=true", cwd=workplace)
    assert done.returncode == 0, done.stderr.decode()
    with moved.open("a") as file:
        file.write("one more\tun de plus\n")
    changed = command("train", resume, f"data.train={moved}", cwd=workplace)
    assert changed.returncode == 1
    assert "the corpus is not the one that" in changed.stderr.decode()


@pytest.mark.parametrize(
    "options",
    [
        ("+trainer.check_val_every_n_epoch=2", "callbacks.checkpoints.every_n_steps=1"),
        ("trainer.accumulate_grad_batches=2", "callbacks.checkpoints.every_n_steps=1"),
        ("trainer.accumulate_grad_batches=3", "trainer.val_check_interval=4"),
        ("batches.subword_sampling=0.2", "tokenizer=bpe"),
        ("trainer.max_steps=20",),
        ("gates=l0", "gates.start=0", "model.ablate=[encoder.0.1]"),
    ],
    ids=" ".join,
)
@pytest.mark.slow
def test_killed_twice(options, command, tiny, workplace, environment, tmp_path) -> None:
    """Rarer ways to train: two kills and two resumes give the same weights and curves."""
    arguments = [*tiny, *EXTRA, *options]
    whole = tmp_path / "whole"
    done = command("train", *arguments, f"hydra.run.dir={whole}", cwd=workplace)
    assert done.returncode == 0, done.stderr.decode()
    final = read(whole)["global_step"]
    for first, second in ((1, final // 2), (final // 3, final // 3 + 2)):
        start = arguments
        for signum, step in ((signal.SIGKILL, first), (signal.SIGTERM, second)):
            _, _, run = interrupted(start, tmp_path, environment, signum, step, workplace)
            start = [f"resume={run / 'last.ckpt'}"]
        done = command("train", *start, cwd=workplace)
        assert done.returncode == 0, done.stderr.decode()
        assert_same(run, whole)
        shutil.rmtree(run)


def test_what_resume_refuses(whole, command, workplace, tmp_path) -> None:
    cases = {
        "model.heads=2": "model.heads=2 cannot change while going on from",
        "data=multi30k": "data=multi30k cannot change while going on from",
        "model.heds=4": "model.heds=4 cannot change while going on from",
        "~loss": "~loss cannot change while going on from",
    }
    for override, message in cases.items():
        done = command("train", f"resume={whole / 'last.ckpt'}", override, cwd=workplace)
        assert done.returncode == 1
        assert message in done.stderr.decode()
    missing = command("train", f"resume={whole / 'first.ckpt'}", cwd=workplace)
    assert missing.returncode == 1
    assert "no such file; in that folder are best.ckpt, last.ckpt" in missing.stderr.decode()
    (tmp_path / "last.ckpt").write_bytes((whole / "last.ckpt").read_bytes()[:5000])
    cut = command("train", f"resume={tmp_path / 'last.ckpt'}", cwd=workplace)
    assert cut.returncode == 1
    assert "is not a readable checkpoint" in cut.stderr.decode()
    assert "Traceback" not in cut.stderr.decode()
