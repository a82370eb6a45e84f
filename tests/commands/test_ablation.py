"""headlab ablate as typed, on a checkpoint that train.py made; also killed on the way."""

import csv
import json
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture
def checkpoint(workplace: Path, run: Path, request: pytest.FixtureRequest) -> Path:
    """A copy of the trained checkpoint in a folder of its own."""
    folder = workplace / request.node.name
    folder.mkdir()
    shutil.copy(run / "best.ckpt", folder / "best.ckpt")
    return folder / "best.ckpt"


def read(path: Path) -> list[dict[str, str]]:
    with open(path, encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def test_every_head(command: Any, workplace: Path, checkpoint: Path) -> None:
    path = checkpoint.relative_to(workplace)
    done = command("ablate", path, "metrics=[nll]", "device=cpu", cwd=workplace)
    assert done.returncode == 0, done.stderr.decode()
    out, folder = done.stdout.decode(), checkpoint.with_name("best.ablation-each_head-test")
    assert f"written: {path.parent}/best.ablation-each_head-test/" in out
    assert f"next: headlab ablate {path} ablation=all_but_one" in out
    assert "20 configurations on test" in done.stderr.decode()
    assert len(read(folder / "ablation.csv")) == 21
    assert (folder / "nll_change.png").read_bytes().startswith(b"\x89PNG")
    assert list((folder / "tensorboard").glob("events*"))


def test_a_pattern_with_a_star(command: Any, workplace: Path, checkpoint: Path) -> None:
    heads = "ablation.heads=[encoder.0.3,cross.1.*]"
    path = checkpoint.relative_to(workplace)
    done = command("ablate", path, "ablation=list", heads, cwd=workplace)
    assert done.returncode == 0, done.stderr.decode()
    _, row = read(checkpoint.with_name("best.ablation-list-test") / "ablation.csv")
    assert row["off"] == "encoder.0.3 cross.1.0-3"
    assert row["left"] == "encoder.0.0-2 decoder.0-1.0-3 cross.0.0-3"


@pytest.mark.slow
def test_killed_and_started_again(
    command: Any, workplace: Path, checkpoint: Path, environment: dict[str, str]
) -> None:
    path = checkpoint.relative_to(workplace)
    arguments = [sys.executable, "-m", "headlab", "ablate", str(path)]
    journal = checkpoint.with_name("best.ablation-each_head-test") / "measured.jsonl"
    process = subprocess.Popen(
        arguments,
        cwd=workplace,
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        end = time.monotonic() + 120
        while not journal.exists() or journal.read_bytes().count(b"\n") < 4:
            assert process.poll() is None
            assert time.monotonic() < end
            time.sleep(0.02)
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
    before = journal.read_bytes().splitlines()
    done = command("ablate", path, cwd=workplace)
    assert done.returncode == 0, done.stderr.decode()
    assert "were measured before" in done.stderr.decode()
    after = journal.read_bytes().splitlines()
    assert after[:3] == before[:3]
    keys = Counter(json.loads(line)["key"] for line in after)
    assert set(keys.values()) == {1}
    assert len(keys) == 21 + 20  # measurements, and tests of the changes
    assert len(read(journal.with_name("ablation.csv"))) == 21


def test_mistakes_are_one_line(command: Any, workplace: Path, checkpoint: Path) -> None:
    for arguments, message in (
        ([checkpoint, "--split", "test"], "error: --split: settings are written key=value here"),
        (
            [checkpoint, "ablation=list", "ablation.heads=[cross.9.0]"],
            "error: ablation.heads: there is no head cross.9.0; the heads are encoder.0.0-3, dec",
        ),
    ):
        done = command("ablate", *arguments, cwd=workplace)
        assert done.returncode == 1
        (line,) = done.stderr.decode().splitlines()
        assert line.startswith(message)
