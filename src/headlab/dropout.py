"""Dropout that draws its masks eight at a time on the CPU."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Dropout(nn.Module):
    """Inverted dropout (Srivastava et al. 2014).

    On the CPU one random 64-bit integer decides over eight elements, a byte each, which costs a
    fraction of one Bernoulli draw an element. The probability is therefore rounded to 1/256; the
    scale of the kept elements is exact for the rounded value, so the expectation is unchanged.
    Masks come from PyTorch's global generator: the seed decides them. Elsewhere it is
    ``torch.nn.functional.dropout``.

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
        self.threshold = min(round(p * 256), 255)

    def forward(self, x: Tensor) -> Tensor:
        """Drop elements of ``x`` (any shape) while training; otherwise return it untouched."""
        if not self.training or self.p == 0.0:
            return x
        if x.device.type != "cpu":
            return F.dropout(x, self.p)
        return _ByteDropout.apply(x, self.threshold) if self.threshold else x

    def extra_repr(self) -> str:
        """Show the probability when printed."""
        return f"p={self.p}"


class _ByteDropout(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, threshold: int) -> Tensor:
        words = torch.empty((x.numel() + 7) // 8, dtype=torch.int64)
        words.random_(-(2**63), None)  # all 64 bits, so that every byte is uniform
        # As numbers, not as booleans: PyTorch multiplies by them an order of magnitude faster.
        kept = words.view(torch.uint8)[: x.numel()].to(x.dtype).ge_(threshold)
        ctx.kept = kept.mul_(256 / (256 - threshold)).view(x.shape)
        return x * ctx.kept

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        return grads[0] * ctx.kept, None
