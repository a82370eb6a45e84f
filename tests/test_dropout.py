"""Dropout: what is kept, how it is scaled, and that the seed decides."""

import threading

import pytest
import torch

from headlab.dropout import Dropout, dropout, masks_from


@pytest.mark.parametrize("p", [0.1, 0.25, 0.5, 0.9])
def test_share_and_scale(p: float) -> None:
    torch.manual_seed(0)
    rounded = round(p * 256) / 256
    x = torch.ones(400_001)  # not a multiple of eight
    y = Dropout(p)(x)
    kept = y != 0
    assert kept.float().mean().item() == pytest.approx(1 - rounded, abs=0.004)
    assert torch.equal(y[kept], torch.full_like(y[kept], 1 / (1 - rounded)))
    # Each of the eight bytes of a word decides as often as the others.
    shares = kept[:400_000].view(-1, 8).float().mean(dim=0)
    assert (shares - (1 - rounded)).abs().max() < 0.01


def test_gradient_is_that_of_the_kept_elements() -> None:
    torch.manual_seed(0)
    x = torch.randn(5, 7, requires_grad=True)
    y = Dropout(0.5)(x)
    y.sum().backward()
    assert torch.equal(x.grad != 0, y != 0)
    torch.testing.assert_close(x.grad[y != 0], torch.full((int((y != 0).sum()),), 2.0))


def test_the_seed_decides_and_evaluation_passes_through() -> None:
    layer, x = Dropout(0.3), torch.randn(6, 6)
    torch.manual_seed(3)
    first = layer(x)
    torch.manual_seed(3)
    assert torch.equal(layer(x), first)
    assert not torch.equal(layer(x), first)
    assert layer.eval()(x) is x
    assert Dropout(0.0)(x) is x


@pytest.mark.parametrize("p", [-0.1, 1.0, 2.0])
def test_out_of_range(p: float) -> None:
    with pytest.raises(ValueError, match=r"model\.dropout=.* must lie in"):
        Dropout(p)


def test_each_thread_may_have_a_generator_of_its_own() -> None:
    x = torch.randn(100)
    with masks_from(torch.Generator().manual_seed(4)):
        first = dropout(x, 0.5)
        with masks_from(torch.Generator().manual_seed(4)):
            assert torch.equal(dropout(x, 0.5), first)
        assert not torch.equal(dropout(x, 0.5), first)
    torch.manual_seed(9)
    mine = dropout(x, 0.5)
    torch.manual_seed(9)
    found = []
    with masks_from(torch.Generator().manual_seed(4)):  # this thread's, no other's
        other = threading.Thread(target=lambda: found.append(dropout(x, 0.5)))
        other.start()
        other.join()
    assert torch.equal(found[0], mine)
    torch.manual_seed(9)
    assert torch.equal(dropout(x, 0.5), mine)  # the global one is in use again
