"""The progress of a training, on a terminal and in a file."""

import io
import re
import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import lightning as L
import pytest
import torch
from lightning.pytorch.callbacks import Callback, Timer

from headlab.errors import HeadlabError
from headlab.training import progress
from headlab.training.progress import Progress

SHOWN = {"enable_progress_bar": True}


class Clock:
    """A clock that stands still until it is told how much has passed."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(progress, "time", clock)
    return clock


class Passing(Callback):
    """Lets time pass: so many seconds a batch, and others for each validation."""

    def __init__(self, clock: Clock, batch: float, validation: float = 0.0) -> None:
        self.clock, self.batch, self.validation = clock, batch, validation
        self.tokens: list[int] = []

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, *args: Any) -> None:
        self.clock.now += self.batch
        self.tokens.append(batch.target_tokens)

    def on_validation_epoch_start(self, trainer: Any, pl_module: Any) -> None:
        if not trainer.sanity_checking:
            self.clock.now += self.validation


def lines(text: str) -> list[str]:
    return [line for line in text.splitlines() if line.startswith("epoch ")]


def test_plain_lines_where_there_is_no_terminal(
    tiny_training: Callable[..., Any], clock: Clock, capsys: pytest.CaptureFixture[str]
) -> None:
    passing = Passing(clock, batch=2.0)
    tiny_training([Progress(every_seconds=4), passing], steps=6, max_epochs=9, **SHOWN)
    out = capsys.readouterr().out
    assert not re.search(r"[^\n -~]", out), "control characters"
    found = lines(out)
    pattern = r"epoch (\d+)/9  step (\d+)/6  loss \d+\.\d{3}  ([\d,]+) tokens/s  left (0:00:\d\d)"
    plain = [re.fullmatch(pattern, line) for line in found]
    steps = [int(match[2]) for match in plain if match]
    assert steps == [2, 4, 6]
    lefts = [match[4] for match in plain if match]
    assert lefts == ["0:00:08", "0:00:04", "0:00:00"]
    speeds = [int(match[3].replace(",", "")) for match in plain if match]
    assert speeds[0] == pytest.approx(sum(passing.tokens[:2]) / 4, abs=0.5)
    assert speeds[2] == pytest.approx(sum(passing.tokens) / 12, abs=0.5)
    assert re.search(r"step 6/6  loss .* training ended after 0:00:12$", found[-1])


def test_validation_counts_for_the_time_left_and_not_for_the_speed(
    tiny_training: Callable[..., Any], clock: Clock, capsys: pytest.CaptureFixture[str]
) -> None:
    passing = Passing(clock, batch=1.0, validation=9.0)
    callbacks = [Progress(every_seconds=0.5), passing]
    tiny_training(callbacks, steps=4, val_check_interval=1, **SHOWN)
    found = lines(capsys.readouterr().out)
    third = next(line for line in found if "step 3/4  loss" in line)
    # Three batches and two validations so far: 21 s for 3 steps, so 7 s for the last.
    assert third.endswith("left 0:00:07")
    speed = int(third.split("  ")[3].split()[0].replace(",", ""))
    assert speed == pytest.approx(sum(passing.tokens[:3]) / 3, abs=0.5)
    validations = [line for line in found if "validation:" in line]
    assert len(validations) == 4
    assert re.search(r"step 1/4  validation:.*  val/loss \d", validations[0])


def test_time_left_is_right_after_a_resume(clock: Clock) -> None:
    trainer: Any = SimpleNamespace(
        global_step=5000, estimated_stepping_batches=6000, callbacks=[], world_size=1, max_epochs=3
    )
    bar = Progress()
    bar._trainer = trainer
    bar.disable()
    bar.on_train_start(trainer, None)  # type: ignore[arg-type]
    assert bar.seconds_left(trainer) is None
    trainer.global_step += 2
    clock.now += 1.0
    assert bar.seconds_left(trainer) == pytest.approx(998 / 2)


def test_max_time_ends_the_training_sooner(clock: Clock) -> None:
    timer = Timer(duration={"seconds": 60})
    trainer: Any = SimpleNamespace(
        global_step=0, estimated_stepping_batches=1000, callbacks=[timer], world_size=1
    )
    bar = Progress()
    bar.disable()
    bar.on_train_start(trainer, None)  # type: ignore[arg-type]
    trainer.global_step = 1
    clock.now += 10.0
    left = bar.seconds_left(trainer)
    assert left is not None
    assert 0 < left <= 60


def test_unlimited_training_has_no_time_left(
    tiny_training: Callable[..., Any], clock: Clock, capsys: pytest.CaptureFixture[str]
) -> None:
    class Stop(Callback):
        def on_train_batch_end(self, trainer: L.Trainer, *args: Any) -> None:
            trainer.should_stop = trainer.global_step >= 3

    callbacks = [Progress(every_seconds=1), Passing(clock, 1.0), Stop()]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            "headlab.training.module.TranslationModule.configure_optimizers",
            lambda self: torch.optim.SGD(self.parameters(), lr=0.1),
        )
        tiny_training(callbacks, steps=-1, max_epochs=-1, **SHOWN)
    found = lines(capsys.readouterr().out)
    assert any(re.fullmatch(r"epoch 1  step 2  loss \S+  \S+ tokens/s", line) for line in found)


class Terminal(io.StringIO):
    """Standard output as a terminal would be."""

    encoding = "utf-8"

    def isatty(self) -> bool:
        return True


def test_a_bar_on_a_terminal(
    tiny_training: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "160")
    terminal = Terminal()
    monkeypatch.setattr(sys, "stdout", terminal)
    bar = Progress()
    bar._console_kwargs = {"file": terminal, "force_terminal": True, "width": 160}
    tiny_training([bar], steps=4, max_epochs=2, val_check_interval=1, **SHOWN)
    out = terminal.getvalue()
    assert "\x1b[" in out
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", out)
    assert re.search(r"epoch 1/2", text)
    assert re.search(r"loss: \d+\.\d{3} tokens/s: [\d,]+ left: 0:00:\d\d val/loss: \d", text)
    assert not lines(out)


def test_a_dumb_terminal_gets_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", Terminal())
    monkeypatch.setenv("TERM", "dumb")
    bar = Progress()
    bar.setup(SimpleNamespace(is_global_zero=True), None, "fit")  # type: ignore[arg-type]
    assert bar.is_disabled


def test_other_ranks_are_silent(clock: Clock, capsys: pytest.CaptureFixture[str]) -> None:
    bar = Progress()
    bar.setup(SimpleNamespace(is_global_zero=False), None, "fit")  # type: ignore[arg-type]
    assert bar.is_disabled
    assert not bar._plain


@pytest.mark.parametrize("seconds", [0, -1, float("nan")])
def test_the_interval_must_be_positive(seconds: float) -> None:
    with pytest.raises(HeadlabError, match=r"callbacks\.progress\.every_seconds"):
        Progress(every_seconds=seconds)
