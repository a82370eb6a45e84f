"""The progress of a training: a bar on a terminal, plain lines everywhere else."""

import contextlib
import math
import os
import sys
import time
from collections import deque
from datetime import timedelta
from typing import Any

import lightning.pytorch as pl
import torch
from lightning.pytorch.callbacks import RichProgressBar, Timer
from lightning.pytorch.callbacks.progress.rich_progress import (
    BatchesProcessedColumn,
    CustomBarColumn,
)
from rich.progress import TextColumn

from headlab.errors import HeadlabError


class Progress(RichProgressBar):
    """Loss, target tokens a second, and the time left for the whole training.

    On a terminal it is Lightning's rich bar, one for the epoch. Where standard output is a file or
    a pipe, it is plain lines without control characters:

        epoch 3/16  step 1,200/6,400  loss 3.210  5,300 tokens/s  left 0:08:12

    The time left extends what the steps of this process took so far, validation included, and
    heeds `trainer.max_time`; so it is right after a resume, too. Loss and speed are means over
    the last 50 batches: the loss a target token, as `train/loss`, but of the batches of the process
    that shows it; the speed that of all processes, without validation.

    Args:
        every_seconds: between two plain lines; the bar is refreshed twice a second.

    Raises:
        HeadlabError: every_seconds is not above 0.
    """

    def __init__(self, every_seconds: float = 10.0) -> None:
        if not every_seconds > 0:
            raise HeadlabError(f"callbacks.progress.every_seconds={every_seconds} must be above 0")
        super().__init__(refresh_rate=4)
        self.every_seconds = every_seconds
        self._plain = False
        # seconds, tokens, sum of their losses
        self._window: deque[tuple[float, int, torch.Tensor]] = deque(maxlen=50)
        self._started = self._last_batch = self._last_shown = 0.0
        self._first_step = 0
        self._steps: float = math.inf
        self._shown: dict[str, Any] = {}

    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        """Choose between the bar and plain lines."""
        super().setup(trainer, pl_module, stage)
        if trainer.is_global_zero and self.is_enabled and not _is_terminal():
            self.disable()
            self._plain = True

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Start the clock, at whatever step the training starts."""
        super().on_train_start(trainer, pl_module)
        total = trainer.estimated_stepping_batches
        self._steps = float(total) if total > 0 else math.inf
        self._first_step = trainer.global_step
        self._started = self._last_batch = self._last_shown = time.monotonic()
        self._window.clear()

    def on_train_batch_end(
        self,
        trainer: pl.Trainer,
        pl_module: pl.LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
    ) -> None:
        """Count the batch; its loss stays a tensor until it is shown, so that no step waits."""
        now = time.monotonic()
        self._window.append((now - self._last_batch, batch.target_tokens, outputs["loss_sum"]))
        self._last_batch = now
        super().on_train_batch_end(trainer, pl_module, outputs, batch, batch_idx)
        if self._plain and now - self._last_shown >= self.every_seconds:
            self._print_line(trainer)

    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Show the scores, and keep the validation out of the speed."""
        super().on_validation_end(trainer, pl_module)
        if trainer.sanity_checking or trainer.state.fn != "fit":
            return
        self._shown = {}
        if self._plain:
            scores = self._scores(trainer)
            text = "".join(f"  {name} {value}" for name, value in scores.items())
            if text:
                _print(f"{self._place(trainer)}  validation:{text}")
        self._last_batch = time.monotonic()

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Say how it ended."""
        super().on_train_end(trainer, pl_module)
        if self._plain and self._window:
            took = _clock(time.monotonic() - self._started)
            _print(f"{self._place(trainer)}  loss {self._loss():.3f}  training ended after {took}")

    def get_metrics(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule
    ) -> dict[str, int | str | float | dict[str, float]]:
        """What the bar shows; made anew twice a second, as reading a loss waits for the device."""
        now = time.monotonic()
        if not self._shown or now - self._last_shown >= 0.5:
            self._last_shown = now
            self._shown = {}
            if self._window:
                self._shown["loss"] = f"{self._loss():.3f}"
                self._shown["tokens/s"] = f"{self._speed(trainer):,.0f}"
            left = self.seconds_left(trainer)
            if left is not None:
                self._shown["left"] = _clock(left)
            self._shown |= self._scores(trainer)
        return self._shown

    def seconds_left(self, trainer: pl.Trainer) -> float | None:
        """Seconds to the end of the whole training; None while there is nothing to go by."""
        limits = []
        done = trainer.global_step - self._first_step
        if done > 0 and math.isfinite(self._steps):
            a_step = (time.monotonic() - self._started) / done
            limits.append(a_step * max(0.0, self._steps - trainer.global_step))
        for callback in trainer.callbacks:  # type: ignore[attr-defined]
            if isinstance(callback, Timer):
                allowed = callback.time_remaining()
                limits += [] if allowed is None else [max(0.0, allowed)]
        return min(limits, default=None)

    def configure_columns(self, trainer: pl.Trainer) -> list[Any]:
        """Columns of the bar; loss, speed and time left follow as text."""
        return [
            TextColumn("[progress.description]{task.description}"),
            CustomBarColumn(
                complete_style=self.theme.progress_bar,
                finished_style=self.theme.progress_bar_finished,
                pulse_style=self.theme.progress_bar_pulse,
            ),
            BatchesProcessedColumn(style=self.theme.batch_progress),
        ]

    def _get_train_description(self, current_epoch: int) -> str:
        return self._epoch(self.trainer, current_epoch)

    def _print_line(self, trainer: pl.Trainer) -> None:
        self._last_shown = time.monotonic()
        left = self.seconds_left(trainer)
        rest = "" if left is None else f"  left {_clock(left)}"
        speed = self._speed(trainer)
        _print(f"{self._place(trainer)}  loss {self._loss():.3f}  {speed:,.0f} tokens/s{rest}")

    def _place(self, trainer: pl.Trainer) -> str:
        of = f"/{self._steps:,.0f}" if math.isfinite(self._steps) else ""
        return f"{self._epoch(trainer, trainer.current_epoch)}  step {trainer.global_step:,}{of}"

    def _epoch(self, trainer: pl.Trainer, current: int) -> str:
        most = trainer.max_epochs
        if most is None or most < 0:
            return f"epoch {current + 1}"
        return f"epoch {min(current + 1, most)}/{most}"

    def _scores(self, trainer: pl.Trainer) -> dict[str, str]:
        """The numbers of the latest validation."""
        latest = trainer.callback_metrics.items()
        return {name: f"{float(value):.3f}" for name, value in latest if name.startswith("val/")}

    def _loss(self) -> float:
        tokens = sum(tokens for _, tokens, _ in self._window)
        losses = [loss for *_, loss in self._window]
        return float(torch.stack(losses).sum()) / tokens if tokens else math.nan

    def _speed(self, trainer: pl.Trainer) -> float:
        seconds = sum(seconds for seconds, _, _ in self._window)
        tokens = sum(tokens for _, tokens, _ in self._window)
        return tokens * trainer.world_size / max(seconds, 1e-9)


def _clock(seconds: float) -> str:
    return str(timedelta(seconds=round(seconds)))


def _print(line: str) -> None:
    # Whoever reads the lines may leave (| head); the training must not end for that.
    with contextlib.suppress(OSError, ValueError):
        print(line, flush=True)


def _is_terminal() -> bool:
    """Whether a bar can be drawn; a dumb terminal, such as an editor's, gets plain lines."""
    return sys.stdout.isatty() and os.environ.get("TERM") not in ("dumb", "unknown")
