"""The moving average of the weights."""

import copy
from types import SimpleNamespace
from typing import Any

import lightning as L
import pytest
import torch

from headlab.training.averaging import MovingAverage


class Constant(L.LightningModule):
    """A weight, and a buffer that is none of the average's business."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.tensor([1.0, 2.0]))
        self.register_buffer("table", torch.tensor([1.0 / 3.0]))


def test_it_follows_the_formula_from_the_first_step_on() -> None:
    module, callback = Constant(), MovingAverage(decay=0.9)
    trainer: Any = SimpleNamespace(global_step=0)
    callback.setup(trainer, module, "fit")
    expected = None
    for step in range(1, 6):
        with torch.no_grad():
            module.weight.copy_(torch.randn(2))
        now = copy.deepcopy(module.weight.data)
        expected = now if expected is None else 0.9 * expected + 0.1 * now
        trainer.global_step = step
        callback.on_train_batch_end(trainer, module, None, None, step - 1)
    average: Any = callback._average_model
    torch.testing.assert_close(average.module.weight.data, expected)
    assert torch.equal(average.module.table, module.table)


def test_a_decay_that_makes_no_sense_is_refused() -> None:
    with pytest.raises(ValueError, match=r"Invalid decay value 1\.5"):
        MovingAverage(decay=1.5)
