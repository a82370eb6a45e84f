"""importance and prune as typed, with fine-tuning, and what one does with the result."""

import json
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

FINETUNED = ("--keep", "0.5", "--finetune-epochs", "1", "--limit", "4")


def at(workplace: Path, run: Path, name: str) -> Path:
    """A copy of the trained checkpoint in a folder of its own."""
    folder = workplace / name
    folder.mkdir()
    shutil.copy(run / "best.ckpt", folder / "best.ckpt")
    return folder / "best.ckpt"


def printed(done: Any) -> str:
    assert done.returncode == 0, done.stdout.decode() + done.stderr.decode()
    return done.stdout.decode()


def heads(path: Path) -> set[str]:
    from headlab.checkpoint import read_checkpoint

    return {str(one) for one in read_checkpoint(path).model.head_names}


@pytest.fixture(scope="module")
def whole(command: Any, workplace: Path, run: Path) -> Path:
    """The folder where a checkpoint was pruned and fine-tuned without any disturbance."""
    checkpoint = at(workplace, run, "whole")
    latest = (workplace / "outputs" / "latest").resolve()
    arguments = ["whole/best.ckpt", *FINETUNED, "--out", "whole/pruned.ckpt"]
    output = printed(command("prune", *arguments, cwd=workplace))
    assert "heads       20 -> 10" in output
    assert "next: headlab evaluate whole/pruned.ckpt" in output
    assert (workplace / "outputs" / "latest").resolve() == latest
    study = checkpoint.with_name("best.pruning-gradient-keep-0.5-finetuned")
    assert (study / "step-1.ckpt").is_file()
    assert not list((study / "finetune").rglob("*.ckpt"))
    assert list((study / "finetune" / "step-1" / "tensorboard").iterdir())
    return checkpoint.parent


def test_importance(command: Any, workplace: Path, run: Path) -> None:
    at(workplace, run, "weighed")
    done = command("importance", "weighed/best.ckpt", "--limit", "3", cwd=workplace)
    output = printed(done)
    following = "headlab prune weighed/best.ckpt --keep 0.5 --out weighed/best-half.ckpt"
    assert f"next: {following}" in output
    assert "rho" in output
    written = workplace / "weighed" / "best.importance-validation-first3"
    assert len(json.loads((written / "importance.json").read_text())) == 20


def test_the_pruned_model_is_a_model_like_any_other(
    command: Any, workplace: Path, whole: Path
) -> None:
    """Evaluated, translated with, trained on and pruned again, each by a process of its own."""
    output = printed(command("evaluate", "whole/pruned.ckpt", "--limit", "4", cwd=workplace))
    study = whole / "best.pruning-gradient-keep-0.5-finetuned"
    result = {r["quantity"]: r for r in json.loads((study / "result.json").read_text())}
    assert f"BLEU  {result['test_bleu']['after']:6.2f}" in output
    assert f"loss  {result['test_nll']['after']:6.3f}" in output
    printed(command("translate", "whole/pruned.ckpt", "the red cat", cwd=workplace))

    options = "experiment=finetune", "init_from=whole/pruned.ckpt", "trainer.max_epochs=1"
    output = printed(command("train", *options, cwd=workplace))
    again = re.search(r"next: headlab translate (\S+)", output)
    assert again is not None
    assert heads(workplace / again.group(1)) == heads(whole / "pruned.ckpt")

    arguments = [again.group(1), "--keep", "0.5", "--limit", "4", "--out", "whole/twice.ckpt"]
    output = printed(command("prune", *arguments, cwd=workplace))
    assert "heads       10 -> 5" in output
    assert heads(whole / "twice.ckpt") < heads(whole / "pruned.ckpt")


@pytest.mark.slow
def test_stopped_while_training_on_it_ends_as_if_nothing_had_been(
    environment: dict[str, str], command: Any, workplace: Path, run: Path, whole: Path
) -> None:
    checkpoint = at(workplace, run, "stopped")
    arguments = ["stopped/best.ckpt", *FINETUNED, "--out", "stopped/pruned.ckpt"]
    process = subprocess.Popen(
        [sys.executable, "-m", "headlab", "prune", *arguments],
        cwd=workplace,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    study = checkpoint.with_name("best.pruning-gradient-keep-0.5-finetuned")
    deadline = time.monotonic() + 120
    while process.poll() is None and time.monotonic() < deadline:
        if (study / "finetune" / "step-1" / "tensorboard").exists():
            process.send_signal(signal.SIGTERM)
            break
        time.sleep(0.005)
    out, _ = process.communicate(timeout=60)
    assert process.returncode in (0, 128 + signal.SIGTERM, -signal.SIGTERM), out.decode()
    printed(command("prune", *arguments, cwd=workplace))
    results = [torch.load(p / "pruned.ckpt", weights_only=True) for p in (whole, checkpoint.parent)]
    for name, weight in results[0]["state_dict"].items():
        assert torch.equal(weight, results[1]["state_dict"][name]), name


def test_a_mistake_is_one_line(command: Any, workplace: Path, run: Path) -> None:
    done = command("prune", run / "best.ckpt", "--out", "pruned.ckpt", cwd=workplace)
    assert done.returncode == 1
    assert done.stderr.decode().strip() == (
        "error: say how much to cut: --keep SHARE, such as 0.5, or --max-bleu-drop BLEU"
    )
    assert done.stdout == b""
