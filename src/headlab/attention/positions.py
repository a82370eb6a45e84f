"""Positions: embeddings that are added to the token embeddings, and the choice among all kinds."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from headlab.attention.relative import Alibi, Rotary


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


class NoPosition(nn.Module):
    """Adds nothing: positions enter the attention itself, or not at all."""

    def forward(self, length: int, start: int = 0) -> float:
        """Zero."""
        return 0.0


ADDED: dict[str, type[Sinusoidal] | type[Learned]] = {
    "sinusoidal": Sinusoidal,
    "learned": Learned,
}
KINDS = (*ADDED, "rope", "alibi", "none")


def build_position(
    kind: str, d_model: int, max_length: int | None = None, base: float | None = None
) -> Sinusoidal | Learned | NoPosition:
    """What is added to the token embeddings, by name.

    Args:
        kind: "sinusoidal", "learned", or one of the kinds that add nothing: "rope", "alibi",
            "none".
        d_model: width of an embedding.
        max_length: number of positions in a table; None for the kinds that have none.
        base: of rotary embeddings, see ``build_relative``.

    Raises:
        ValueError: no such kind, or a table without positions.
    """
    if kind not in KINDS:
        raise ValueError(f"position.kind={kind} is not known; choose from {', '.join(KINDS)}")
    if kind not in ADDED:
        if max_length is not None:
            raise ValueError(
                f"position.max_length={max_length}: position.kind={kind} has no table and no "
                "limit; set it to null"
            )
        return NoPosition()
    if max_length is None or max_length < 1:
        raise ValueError(f"position.max_length={max_length} must be at least 1")
    return ADDED[kind](d_model, max_length)


def build_relative(
    position: Mapping[str, Any] | None, heads: int, width: int
) -> Rotary | Alibi | None:
    """What an attention needs to know of positions; None for kinds that are added elsewhere.

    Args:
        position: ``kind``, as for ``build_position``, and ``base``; None: no positions.
        heads: number of heads.
        width: numbers of a query that rotary embeddings turn.
    """
    kind = (position or {}).get("kind")
    if kind == "rope":
        return Rotary(width, (position or {}).get("base", 10_000.0))
    return Alibi(heads) if kind == "alibi" else None
