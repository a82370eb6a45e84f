"""Dropout that draws its masks eight at a time on the CPU."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

# Each thread has its own; None is PyTorch's global generator, which the threads share.
_generator: ContextVar[torch.Generator | None] = ContextVar("generator", default=None)


@contextmanager
def masks_from(generator: torch.Generator | None) -> Iterator[None]:
    """Draw this thread's masks on the CPU from a generator of its own."""
    token = _generator.set(generator)
    try:
        yield
    finally:
        _generator.reset(token)


def dropout(x: Tensor, p: float) -> Tensor:
    """Inverted dropout (Srivastava et al. 2014) of a tensor of any shape.

    On the CPU one random 64-bit integer decides over eight elements, a byte each, which costs a
    fraction of one Bernoulli draw an element. The probability is therefore rounded to 1/256; the
    scale of the kept elements is exact for the rounded value, so the expectation is unchanged.
    Masks come from PyTorch's global generator, or from that of ``masks_from``: the seed decides
    them. Elsewhere it is ``torch.nn.functional.dropout``.

    Args:
        x: any shape.
        p: probability of zeroing an element, in [0, 1).
    """
    if x.device.type != "cpu":
        return F.dropout(x, p)
    threshold = min(round(p * 256), 255)
    return _ByteDropout.apply(x, threshold) if threshold else x


class Dropout(nn.Module):
    """``dropout`` while training; nothing otherwise.

    Args:
        p: probability of zeroing an element, in [0, 1).
        key: the configuration key to name in an error.

    Raises:
        ValueError: ``p`` is outside [0, 1).
    """

    def __init__(self, p: float, key: str = "model.dropout") -> None:
        super().__init__()
        if not 0.0 <= p < 1.0:
            raise ValueError(f"{key}={p} must lie in [0, 1)")
        self.p = p

    def forward(self, x: Tensor) -> Tensor:
        """Drop elements of ``x`` (any shape) while training; otherwise return it untouched."""
        return dropout(x, self.p) if self.training and self.p else x

    def extra_repr(self) -> str:
        """Show the probability when printed."""
        return f"p={self.p}"


class _ByteDropout(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, threshold: int) -> Tensor:
        words = torch.empty((x.numel() + 7) // 8, dtype=torch.int64)
        # All 64 bits, so that every byte is uniform.
        words.random_(-(2**63), None, generator=_generator.get())
        # As numbers, not as booleans: PyTorch multiplies by them an order of magnitude faster.
        kept = words.view(torch.uint8)[: x.numel()].to(x.dtype).ge_(threshold)
        ctx.kept = kept.mul_(256 / (256 - threshold)).view(x.shape)
        return x * ctx.kept

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        return grads[0] * ctx.kept, None
