"""Saving and going on: best.ckpt, last.ckpt, random states, and signals."""

import logging
import math
import random
import signal
from collections.abc import Mapping
from pathlib import Path
from types import FrameType
from typing import Any

import lightning as L
import numpy as np
import torch
from lightning.pytorch.callbacks import Checkpoint
from lightning.pytorch.plugins.io import TorchCheckpointIO

from headlab.checkpoint import read_raw
from headlab.errors import HeadlabError
from headlab.files import replace_file
from headlab.training.module import TranslationModule

logger = logging.getLogger("headlab")


class Interrupted(Exception):
    """Training was stopped by a signal, after its state was saved."""

    def __init__(self, signum: int, path: Path, step: int) -> None:
        super().__init__(f"stopped by {signal.Signals(signum).name} after step {step}")
        self.signum, self.path, self.step = signum, path, step


class AtomicCheckpointIO(TorchCheckpointIO):
    """Writes a checkpoint beside its final name and renames it; reads plain data only."""

    def save_checkpoint(
        self, checkpoint: dict[str, Any], path: Any, storage_options: Any | None = None
    ) -> None:
        """Put ``checkpoint`` at ``path`` whole or not at all."""
        replace_file(path, lambda file: torch.save(checkpoint, file))

    def load_checkpoint(
        self, path: Any, map_location: Any | None = None, weights_only: bool | None = None
    ) -> dict[str, Any]:
        """Load on the CPU, never as pickled code."""
        return read_raw(path)


class Checkpoints(Checkpoint):
    """Keeps ``last.ckpt`` and ``best.ckpt`` in the run's folder.

    ``last.ckpt`` is written after every validation, every ``every_n_steps`` steps, at the end, and
    when SIGTERM or Ctrl-C asks to stop (a second signal stops at once). A step that a validation
    follows is saved after that validation, so that going on from it repeats or skips neither.

    Args:
        folder: where the files go.
        monitor: the validation number that decides which is best.
        mode: "max" or "min".
        every_n_steps: optimizer steps between two saves within an epoch; 0: none.

    Raises:
        HeadlabError: another mode.
    """

    def __init__(self, folder: str, monitor: str, mode: str, every_n_steps: int) -> None:
        super().__init__()
        if mode not in ("max", "min"):
            raise HeadlabError(f"callbacks.checkpoints.mode={mode}: choose max or min")
        self.folder = Path(folder)
        self.monitor, self.mode, self.every_n_steps = monitor, mode, every_n_steps
        self.best_score: float | None = None
        self.best_step = 0
        self._saved_step = 0
        self._owed = False
        self._signal: int | None = None
        self._handlers: dict[int, Any] = {}
        self._random_states: list[dict[str, Any]] | None = None

    @property
    def last(self) -> Path:
        """The newest state."""
        return self.folder / "last.ckpt"

    @property
    def best(self) -> Path:
        """The state with the best validation score."""
        return self.folder / "best.ckpt"

    # -- when to save ---------------------------------------------------------------------------

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Listen to signals, and take back the random states of a resumed run."""
        for leftover in self.folder.glob(".*.ckpt.*"):  # a kill in the middle of a save
            if trainer.is_global_zero:
                leftover.unlink(missing_ok=True)
        for signum in (signal.SIGINT, signal.SIGTERM):
            self._handlers[signum] = signal.signal(signum, self._on_signal)
        if self._random_states is not None:
            if trainer.global_rank < len(self._random_states):
                restore_random_state(self._random_states[trainer.global_rank])
            self._random_states = None

    def on_train_batch_end(
        self,
        trainer: L.Trainer,
        pl_module: L.LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
    ) -> None:
        """Save on the beat, or because a signal came.

        Never within a window of accumulated batches: their gradients are not in a checkpoint. And
        not at the end of an epoch, which ``on_validation_end`` or ``on_train_epoch_end`` saves.
        """
        loop = trainer.fit_loop
        assert loop._data_fetcher is not None
        if _module(pl_module).mid_step or trainer.is_last_batch:
            return
        if loop.epoch_loop._should_check_val_fx(loop._data_fetcher):
            return
        stopping = self._asked_to_stop(trainer)
        step = trainer.global_step
        on_beat = self.every_n_steps > 0 and step % self.every_n_steps == 0
        if stopping or self._owed or (on_beat and step != self._saved_step):
            self._save(trainer, self.last)
            self._stop_if(trainer, stopping)

    def on_validation_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Save the newest state, and the best one when it is."""
        if trainer.sanity_checking or trainer.state.fn != "fit":
            return
        score = trainer.callback_metrics.get(self.monitor)
        if score is None:
            raise HeadlabError(
                f"callbacks.checkpoints.monitor={self.monitor} is not measured; choose from "
                + ", ".join(sorted(k for k in trainer.callback_metrics if k.startswith("val/")))
            )
        loss = float(trainer.callback_metrics.get("val/loss", 0.0))
        if math.isnan(loss):
            logger.warning(
                "val/loss is not a number: the training has diverged, and best.ckpt stays as it "
                "is; a lower optimizer.lr or a longer schedule.warmup_steps may help"
            )
        elif self._improved(float(score)):
            self.best_score, self.best_step = float(score), trainer.global_step
            self._save(trainer, self.best)
        if _module(pl_module).mid_step:
            self._owed = True  # saved when the window of accumulated batches closes
            return
        self._save(trainer, self.last)
        self._stop_if(trainer, self._asked_to_stop(trainer))

    def on_train_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Save a state that no validation has followed.

        Not in ``on_train_end``: there the weight averaging has replaced the current weights.
        """
        if self._saved_step != trainer.global_step:
            self._save(trainer, self.last)
            self._stop_if(trainer, self._asked_to_stop(trainer))

    def teardown(self, trainer: L.Trainer, pl_module: L.LightningModule, stage: str) -> None:
        """Give the signals back."""
        self._restore_handlers()

    def on_exception(
        self, trainer: L.Trainer, pl_module: L.LightningModule, exception: BaseException
    ) -> None:
        """Give the signals back: Lightning does not call ``teardown`` after an exception."""
        self._restore_handlers()

    def _restore_handlers(self) -> None:
        for signum, handler in self._handlers.items():
            signal.signal(signum, handler)
        self._handlers = {}

    def _improved(self, score: float) -> bool:
        if math.isnan(score):
            logger.warning("%s is not a number; best.ckpt stays as it is", self.monitor)
            return False
        if self.best_score is None:
            return True
        return score > self.best_score if self.mode == "max" else score < self.best_score

    def _save(self, trainer: L.Trainer, path: Path) -> None:
        trainer.save_checkpoint(path)
        if path == self.last:
            self._saved_step, self._owed = trainer.global_step, False

    # -- signals --------------------------------------------------------------------------------

    def _on_signal(self, signum: int, frame: FrameType | None) -> None:
        if self._signal is not None:
            raise KeyboardInterrupt
        self._signal = signum
        logger.info(
            "%s: saving the state of this step, then stopping (again: stop at once)",
            signal.Signals(signum).name,
        )

    def _asked_to_stop(self, trainer: L.Trainer) -> bool:
        asked = self._signal is not None
        if trainer.world_size > 1:  # saving is a joint act: all stop at the same step
            asked = trainer.strategy.reduce_boolean_decision(asked, all=False)
        return asked

    def _stop_if(self, trainer: L.Trainer, stopping: bool) -> None:
        if stopping:
            raise Interrupted(self._signal or signal.SIGTERM, self.last, trainer.global_step)

    # -- what is saved --------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """The best score so far and its step."""
        return {"best_score": self.best_score, "best_step": self.best_step}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take back what ``state_dict`` gave."""
        self.best_score, self.best_step = state_dict["best_score"], state_dict["best_step"]

    def on_save_checkpoint(
        self, trainer: L.Trainer, pl_module: L.LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        """Add the random state of every process."""
        states: list[Any] = [random_state()]
        if trainer.world_size > 1:
            states = [None] * trainer.world_size
            torch.distributed.all_gather_object(states, random_state())
        checkpoint["random_states"] = states

    def on_load_checkpoint(
        self, trainer: L.Trainer, pl_module: L.LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        """Keep the random states until training begins: set-up may draw numbers of its own."""
        self._random_states = checkpoint["random_states"]
        self._saved_step = checkpoint["global_step"]


def _module(module: L.LightningModule) -> TranslationModule:
    assert isinstance(module, TranslationModule)
    return module


def random_state() -> dict[str, Any]:
    """The states of Python's, numpy's and PyTorch's generators, as plain types and tensors."""
    state: Any = np.random.get_state(legacy=True)
    name, keys, position, has_gauss, cached = state
    return {
        "python": random.getstate(),
        "numpy": (str(name), torch.from_numpy(keys.astype(np.int64)), position, has_gauss, cached),
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state_all() if torch.cuda.is_available() else [],
    }


def restore_random_state(state: Mapping[str, Any]) -> None:
    """Set the generators to what ``random_state`` returned."""
    version, internal, gauss = state["python"]
    random.setstate((version, tuple(internal), gauss))
    name, keys, position, has_gauss, cached = state["numpy"]
    np.random.set_state((name, keys.numpy().astype(np.uint32), position, has_gauss, cached))
    torch.set_rng_state(state["torch"])
    if torch.cuda.is_available() and state["cuda"]:
        torch.cuda.set_rng_state_all(state["cuda"])
