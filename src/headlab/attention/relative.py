"""Positions that enter self-attention itself: rotary embeddings and ALiBi.

Neither has a table, so neither limits the length of a sentence.
"""

import math

import torch
from torch import Tensor, nn


class Rotary(nn.Module):
    """Rotates pairs of a query's and a key's numbers by their position (Su et al. 2021, eq. 34).

    Numbers i and i + width/2 make a pair, turned by the angle ``position * base^(-2i/width)``.
    The score of a query and a key then depends on their distance alone.

    Args:
        width: numbers that are rotated; even.
        base: of the geometric series of frequencies.

    Raises:
        ValueError: ``width`` is odd, or ``base`` not above 1.
    """

    def __init__(self, width: int, base: float = 10_000.0) -> None:
        super().__init__()
        if width % 2 or width < 2:
            raise ValueError(
                f"position.kind=rope turns pairs of numbers, but a head is {width} wide; choose "
                "model.heads or attention.head_dim so that it is even"
            )
        if not 1 < base < math.inf:
            raise ValueError(f"position.base={base} must be above 1, and finite")
        steps = torch.arange(0, width, 2, dtype=torch.float64) / width
        # No buffer: it has no place in a checkpoint, and a model in bfloat16 must not round it.
        self._frequencies = base**-steps

    def forward(self, x: Tensor, start: int = 0) -> Tensor:
        """Rotate (..., length, width), whose first position is number ``start``."""
        # Angles in double precision: a float32 product of a position of 1,000 is off by 1e-4.
        positions = torch.arange(start, start + x.size(-2), device=x.device, dtype=torch.float64)
        angle = positions[:, None] * self._frequencies.to(x.device)
        cos, sin = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
        first, second = x.chunk(2, dim=-1)
        return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)


class Alibi(nn.Module):
    """Attention with linear biases: nearer keys score higher (Press et al. 2022, section 3).

    Head h adds ``-slope_h * |i - j|`` to the score of query i and key j: to the past in a causal
    attention, in both directions in the encoder.

    Args:
        heads: number of heads; see ``alibi_slopes``.
    """

    def __init__(self, heads: int) -> None:
        super().__init__()
        # No buffer, as above.
        self._slopes = torch.tensor(alibi_slopes(heads), dtype=torch.float64)

    def forward(self, queries: int, keys: int, device: torch.device | None = None) -> Tensor:
        """The bias, (heads, queries, keys), in double precision.

        The queries are the last of the keys' positions.
        """
        key = torch.arange(keys, device=device)
        distance = (key[None, :] - key[keys - queries :, None]).abs()
        return -self._slopes.to(key.device)[:, None, None] * distance


def alibi_slopes(heads: int) -> list[float]:
    """The slope of each head (Press et al. 2022, section 3, and their released code).

    A geometric series from 2^(-8/n) for n heads, n a power of two. Otherwise that of the next
    lower power of two n, then every second one of that of 2n, as many as are missing.
    """
    power = 2 ** math.floor(math.log2(heads))
    series = [2.0 ** (-8.0 * (i + 1) / power) for i in range(power)]
    finer = [2.0 ** (-4.0 * (i + 1) / power) for i in range(2 * power)]
    return series + finer[0::2][: heads - power]
