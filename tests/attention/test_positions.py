"""Position embeddings against the formula."""

import copy
import math

import pytest
import torch

from headlab.attention import Learned, Sinusoidal, build_position
from headlab.attention.positions import build_relative


@pytest.mark.parametrize("d_model", [8, 7, 1])
def test_sinusoids_follow_the_formula(d_model: int) -> None:
    table = Sinusoidal(d_model, 50)(50)
    assert table.shape == (50, d_model)
    for position in (0, 1, 17, 49):
        for i in range(d_model):
            angle = position / 10_000 ** ((i - i % 2) / d_model)
            wanted = math.cos(angle) if i % 2 else math.sin(angle)
            assert table[position, i].item() == pytest.approx(wanted, abs=1e-6)


def test_start_gives_the_later_rows() -> None:
    for kind in ("sinusoidal", "learned"):
        position = build_position(kind, 8, max_length=10)
        assert torch.equal(position(3, start=4), position(10)[4:7])


def test_only_learned_positions_are_parameters() -> None:
    assert [p.shape for p in Learned(4, 6).parameters()] == [(6, 4)]
    assert not list(Sinusoidal(4, 6).parameters())
    assert not Sinusoidal(4, 6).state_dict()


def test_mistakes_are_named() -> None:
    with pytest.raises(ValueError, match=r"position\.kind=rotary is not known; choose from sin"):
        build_position("rotary", 8, max_length=10)
    with pytest.raises(ValueError, match=r"position\.max_length=0 must be at least 1"):
        build_position("learned", 8, max_length=0)


@pytest.mark.parametrize("kind", ["rope", "alibi"])
def test_a_model_in_low_precision_keeps_its_positions_exact(kind: str) -> None:
    relative = build_relative({"kind": kind}, 12, 64)
    assert relative is not None
    lowered = copy.deepcopy(relative).to(torch.bfloat16)
    inputs = (torch.randn(1, 300, 64).double(),) if kind == "rope" else (300, 300)
    torch.testing.assert_close(lowered(*inputs), relative(*inputs), rtol=0, atol=0)
