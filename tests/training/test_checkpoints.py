"""The best score, signals and random states; killing and going on is tested with the commands."""

import random

import numpy as np
import pytest
import torch

from headlab.errors import HeadlabError
from headlab.training.checkpoints import Checkpoints, random_state, restore_random_state


def test_a_nan_neither_wins_nor_blocks(tmp_path, caplog) -> None:
    checkpoints = Checkpoints(str(tmp_path), "val/bleu", "max", 0)
    kept = []
    for score in (float("nan"), 3.0, float("nan"), 2.0, 4.0):
        improved = checkpoints._improved(score)
        if improved:
            checkpoints.best_score = score
        kept.append(improved)
    assert kept == [False, True, False, False, True]
    assert caplog.text.count("val/bleu is not a number") == 2


def test_lower_is_better_for_a_loss(tmp_path) -> None:
    checkpoints = Checkpoints(str(tmp_path), "val/loss", "min", 0)
    checkpoints.best_score = 2.0
    assert checkpoints._improved(1.5)
    assert not checkpoints._improved(2.5)
    with pytest.raises(HeadlabError, match=r"callbacks\.checkpoints\.mode=most"):
        Checkpoints(str(tmp_path), "val/loss", "most", 0)


def test_random_states_come_back_from_plain_types(tmp_path) -> None:
    torch.save(random_state(), tmp_path / "state")
    drawn = [random.random(), np.random.rand(), torch.rand(3)]
    restore_random_state(torch.load(tmp_path / "state", weights_only=True))
    again = [random.random(), np.random.rand(), torch.rand(3)]
    assert drawn[:2] == again[:2]
    assert torch.equal(drawn[2], again[2])


def test_a_second_signal_stops_at_once(tmp_path) -> None:
    checkpoints = Checkpoints(str(tmp_path), "val/bleu", "max", 0)
    checkpoints._on_signal(15, None)
    with pytest.raises(KeyboardInterrupt):
        checkpoints._on_signal(15, None)
