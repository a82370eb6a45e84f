"""The chunked loss against PyTorch's own cross-entropy on whole logits."""

import subprocess
import sys

import pytest
import torch
import torch.nn.functional as F

from headlab.training.loss import CHUNK, linear_cross_entropy


@pytest.mark.parametrize("tokens", [1, 5, CHUNK, CHUNK + 1, 3 * CHUNK - 7])
@pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.5])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_equals_cross_entropy(tokens: int, smoothing: float, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    hidden = torch.randn(tokens, 16, dtype=dtype, requires_grad=True)
    weight = torch.randn(50, 16, dtype=dtype, requires_grad=True)
    targets = torch.randint(50, (tokens,))
    logits = hidden @ weight.T
    wanted = F.cross_entropy(logits, targets, reduction="sum", label_smoothing=smoothing)
    wanted_nll = F.cross_entropy(logits, targets, reduction="sum")
    # A factor after the loss, as the mean over tokens and a gradient scaler put there.
    wanted_gradients = torch.autograd.grad(wanted * 0.37, [hidden, weight])
    loss, nll = linear_cross_entropy(hidden, weight, targets, smoothing)
    torch.testing.assert_close(loss, wanted)
    torch.testing.assert_close(nll, wanted_nll)
    assert not nll.requires_grad
    gradients = torch.autograd.grad(loss * 0.37, [hidden, weight])
    for gradient, expected in zip(gradients, wanted_gradients, strict=True):
        torch.testing.assert_close(gradient, expected, atol=1e-5, rtol=1e-5)


def test_gradients_by_finite_differences() -> None:
    torch.manual_seed(0)
    hidden = torch.randn(4, 3, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(6, 3, dtype=torch.float64, requires_grad=True)
    targets = torch.tensor([0, 5, 2, 2])
    assert torch.autograd.gradcheck(
        lambda h, w: linear_cross_entropy(h, w, targets, 0.1)[0], (hidden, weight)
    )


def test_shared_weights_collect_both_gradients() -> None:
    """One matrix used as embedding and as output, as the Transformer ties them."""
    torch.manual_seed(0)
    weight = torch.randn(9, 4, requires_grad=True)
    ids, targets = torch.tensor([1, 2, 3]), torch.tensor([2, 3, 4])
    expected = F.cross_entropy(F.embedding(ids, weight) @ weight.T, targets, reduction="sum")
    (wanted,) = torch.autograd.grad(expected, weight)
    loss, _ = linear_cross_entropy(F.embedding(ids, weight), weight, targets)
    (gradient,) = torch.autograd.grad(loss, weight)
    torch.testing.assert_close(gradient, wanted)


def test_no_tokens_no_loss_no_gradient_needed() -> None:
    hidden, weight = torch.randn(0, 4, requires_grad=True), torch.randn(9, 4)
    loss, nll = linear_cross_entropy(hidden, weight, torch.empty(0, dtype=torch.long), 0.1)
    assert loss.item() == nll.item() == 0.0
    with torch.no_grad():
        loss, _ = linear_cross_entropy(torch.randn(3, 4), weight, torch.tensor([1, 2, 3]), 0.1)
    assert loss.isfinite()
    assert not loss.requires_grad


MEASURED = """
import resource, sys, torch
from headlab.training.loss import linear_cross_entropy
torch.set_num_threads(1)
hidden = torch.randn(int(sys.argv[1]), 16, requires_grad=True)
weight = torch.randn(20_000, 16, requires_grad=True)
targets = torch.randint(20_000, (len(hidden),))
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
loss, _ = linear_cross_entropy(hidden, weight, targets, 0.1)
loss.backward()
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="ru_maxrss is in kB on Linux")
def test_memory_does_not_grow_with_tokens_times_vocabulary() -> None:
    """All logits of 6,000 tokens would be 480 MB, and their gradients as much again."""
    grown = [
        int(subprocess.check_output([sys.executable, "-c", MEASURED, str(tokens)]))
        for tokens in (600, 6_000)
    ]
    assert grown[1] < 160_000
    assert grown[1] < grown[0] + 30_000
