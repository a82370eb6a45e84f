"""Position embeddings that are added to the token embeddings: sinusoidal and learned."""

from typing import Any

import torch
from torch import Tensor, nn


class Sinusoidal(nn.Module):
    """Fixed sine and cosine waves (Vaswani et al. 2017, section 3.5).

    ``PE(pos, 2i) = sin(pos / 10000^(2i/d_model))``, ``PE(pos, 2i+1) = cos(...)`` of the same
    angle. An odd ``d_model`` ends on a sine without its cosine.

    Args:
        d_model: width of an embedding.
        max_length: number of positions in the table.
    """

    table: Tensor

    def __init__(self, d_model: int, max_length: int) -> None:
        super().__init__()
        position = torch.arange(max_length, dtype=torch.float64)[:, None]
        angle = position / 10_000 ** (torch.arange(0, d_model, 2, dtype=torch.float64) / d_model)
        table = torch.empty(max_length, d_model, dtype=torch.float64)
        table[:, 0::2] = angle.sin()
        table[:, 1::2] = angle.cos()[:, : d_model // 2]
        # Recomputed from its two sizes, so it has no place in a checkpoint.
        self.register_buffer("table", table.to(torch.get_default_dtype()), persistent=False)

    def forward(self, length: int, start: int = 0) -> Tensor:
        """Embeddings of positions ``start`` to ``start + length - 1``, (length, d_model)."""
        return self.table[start : start + length]


class Learned(nn.Module):
    """One trained vector a position (Gehring et al. 2017; BERT).

    Args:
        d_model: width of an embedding.
        max_length: number of positions in the table.
    """

    def __init__(self, d_model: int, max_length: int) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.empty(max_length, d_model))
        nn.init.normal_(self.table, std=0.02)

    def forward(self, length: int, start: int = 0) -> Tensor:
        """Embeddings of positions ``start`` to ``start + length - 1``, (length, d_model)."""
        return self.table[start : start + length]


POSITIONS: dict[str, type[Sinusoidal] | type[Learned]] = {
    "sinusoidal": Sinusoidal,
    "learned": Learned,
}


def build_position(kind: str, d_model: int, **options: Any) -> Sinusoidal | Learned:
    """Build a position embedding by name.

    Raises:
        ValueError: no such kind, or a table without positions.
    """
    if kind not in POSITIONS:
        raise ValueError(f"position.kind={kind} is not known; choose from {', '.join(POSITIONS)}")
    if options.get("max_length", 1) < 1:
        raise ValueError(f"position.max_length={options['max_length']} must be at least 1")
    return POSITIONS[kind](d_model, **options)
