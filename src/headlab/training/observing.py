"""What callbacks that look at a model in training have in common: they must leave no trace."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch
from lightning.pytorch import Trainer
from lightning.pytorch.loggers import TensorBoardLogger
from lightning.pytorch.utilities.seed import isolate_rng
from torch import nn

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter

logger = logging.getLogger("headlab")


@contextmanager
def undisturbed(model: nn.Module) -> Iterator[None]:
    """Evaluation mode without gradients; afterwards modes and random states are as before.

    So a training is the same to the last bit, whether it is looked at or not.
    """
    modes = [(module, module.training) for module in model.modules()]
    fault: BaseException | None = None
    with isolate_rng():  # which does not restore the states when an exception passes through it
        try:
            model.eval()
            with torch.no_grad():
                yield
        except BaseException as error:
            fault = error
        finally:
            for module, training in modes:
                module.training = training
    if fault is not None:
        raise fault


@contextmanager
def never_ending_training(what: str, said: set[str]) -> Iterator[None]:
    """Turns any error into a warning, once for each `what`; `said` remembers which were given."""
    try:
        yield
    except Exception as error:
        if what not in said:
            said.add(what)
            reason = str(error).strip() or "no reason given"
            logger.warning(
                "no %s in TensorBoard, training goes on: %s: %s",
                what,
                type(error).__name__,
                reason.splitlines()[0],
            )


def tensorboard(trainer: Trainer) -> "SummaryWriter | None":
    """The writer of the run's event file; None on other ranks, or without TensorBoard."""
    if not trainer.is_global_zero:
        return None
    for one in trainer.loggers:
        if isinstance(one, TensorBoardLogger):
            return one.experiment
    return None
