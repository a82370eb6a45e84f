"""What every kind of attention shares: the call, the sizes, the gates, and W_O."""

import warnings
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Self

import torch
from torch import Tensor, nn

from headlab.attention.cache import Cache


class Attention(nn.Module, ABC):
    """Several heads that read a memory, whose outputs W_O joins.

    Every kind is called alike: ``(query, memory, mask, gates, cache, need_weights)``, see
    ``forward``. A layer may have only some of its heads (``kept``), or none, when it adds its
    output bias if it has one. It then computes what the whole layer computes with the other heads'
    gates at 0.

    Args:
        d_model: width of the input and of the output.
        heads: number of heads.
        head_dim: width of a head; None: ``d_model / heads``.
        dropout: probability of dropping an attention weight while training.
        bias: whether the projections have a bias.
        kept: the numbers, of 0 to ``heads - 1``, of the heads to build; None: all.

    Attributes:
        kept: the numbers of the heads that the layer has, in order; ``heads`` is how many.
        out_projection: W_O, whose input is the heads' outputs side by side.
        distributions: whether the weights of a query that may attend to something sum to 1.

    Raises:
        ValueError: a size is not positive, ``heads`` does not divide ``d_model`` (and no
            ``head_dim`` is given), ``dropout`` is outside [0, 1), or ``kept`` names other heads or
            one twice.
    """

    distributions = True

    def __init__(
        self,
        d_model: int,
        heads: int,
        head_dim: int | None,
        dropout: float,
        bias: bool,
        kept: Sequence[int] | None,
    ) -> None:
        super().__init__()
        if d_model < 1:
            raise ValueError(f"model.d_model={d_model} must be at least 1")
        if heads < 1 or (head_dim is None and d_model % heads):
            problem = (
                f"model.heads={heads} must be at least 1"
                if heads < 1
                else f"model.d_model={d_model} is not divisible by model.heads={heads}"
            )
            raise ValueError(f"{problem}; choose heads from {divisors(d_model)}")
        if head_dim is not None and head_dim < 1:
            raise ValueError(f"attention.head_dim={head_dim} must be at least 1, or null")
        if not 0.0 <= dropout < 1.0:
            raise ValueError(f"attention.dropout={dropout} must lie in [0, 1)")
        self.kept = list(range(heads)) if kept is None else sorted(kept)
        if len(set(self.kept)) < len(self.kept) or not set(self.kept) <= set(range(heads)):
            raise ValueError(f"kept={self.kept} must be some of the heads 0 to {heads - 1}")
        self.d_model, self.heads, self.all_heads = d_model, len(self.kept), heads
        self.head_dim = d_model // heads if head_dim is None else head_dim
        self.dropout, self.bias = dropout, bias
        with empty_layers():
            self.out_projection = nn.Linear(self.heads * self.head_dim, d_model, bias=bias)

    @abstractmethod
    def forward(
        self,
        query: Tensor,
        memory: Tensor | None = None,
        mask: Tensor | None = None,
        gates: Tensor | None = None,
        cache: Any = None,
        need_weights: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        """Attend.

        Args:
            query: (batch, queries, d_model).
            memory: where keys and values come from, (batch, keys, d_model); None: ``query``.
            mask: boolean, True = may attend, broadcastable to (batch, heads, queries, keys).
                A query with nothing to attend to gets zeros, in output and gradient.
            gates: a factor for each head's output before W_O, (heads,) or (batch, heads):
                1 leaves a head as it is, 0 switches it off.
            cache: what earlier calls left, from ``new_cache``. Self-attention appends to it; with
                ``memory`` it is filled on the first call and read on the later ones.
            need_weights: also return the attention weights, computed on the explicit path.

        Returns:
            The output, (batch, queries, d_model), and the weights before dropout,
            (batch, heads, queries, keys), or None when they were not asked for.

        Raises:
            ValueError: ``mask`` is not boolean, or ``gates`` has another shape.
        """

    @abstractmethod
    def new_cache(self, capacity: int = 0) -> Cache:
        """An empty cache; ``capacity`` positions are set aside at the first call."""

    @abstractmethod
    def _arguments(self) -> dict[str, Any]:
        """The arguments that build this layer, all heads included."""

    @abstractmethod
    def _head_rows(self, kept: Sequence[int]) -> dict[str, tuple[int, Tensor]]:
        """Parameter -> its dimension along which heads stand, and the places of these heads."""

    def select_heads(self, kept: Sequence[int]) -> Self:
        """A layer with only some of this one's heads, and their weights.

        Args:
            kept: their original numbers, of those in ``self.kept``.
        """
        smaller = type(self)(**self._arguments(), kept=kept)
        state = self.state_dict()
        order = sorted(kept)
        columns = 1, self._places([self.kept.index(i) for i in order])
        for name, (dim, places) in {
            **self._head_rows(order),
            "out_projection.weight": columns,
        }.items():
            if name in state:
                state[name] = state[name].index_select(dim, places.to(state[name].device))
        smaller.to(self.out_projection.weight).load_state_dict(state)
        return smaller.train(self.training)

    def _places(self, heads: Sequence[int], width: int | None = None, start: int = 0) -> Tensor:
        """Where the numbers of the given heads stand in a row of heads that begins at ``start``."""
        width = self.head_dim if width is None else width
        firsts = torch.tensor(heads, dtype=torch.long)[:, None] * width + start
        return (firsts + torch.arange(width)).flatten()

    def _join(self, heads: Tensor, gates: Tensor | None) -> Tensor:
        """Gates and W_O: (batch, heads, queries, head_dim) -> (batch, queries, d_model)."""
        if gates is not None:
            if gates.dim() not in (1, 2) or gates.size(-1) != self.heads:
                raise ValueError(
                    f"gates must have shape ({self.heads},) or (batch, {self.heads}), "
                    f"not {tuple(gates.shape)}"
                )
            heads = heads * gates[..., :, None, None]
        return self.out_projection(heads.transpose(1, 2).flatten(2))


class RMSNorm(nn.RMSNorm):
    """PyTorch's (Zhang and Sennrich 2019), computed in its weight's precision, also in autocast."""

    def forward(self, x: Tensor) -> Tensor:
        """(..., width) -> the same shape and type."""
        return super().forward(x.to(self.weight.dtype)).to(x.dtype)


def by_head(x: Tensor, width: int) -> Tensor:
    """(batch, length, heads * width) -> (batch, heads, length, width)."""
    return x.unflatten(-1, (x.size(-1) // width, width)).transpose(1, 2)


def check_mask(mask: Tensor | None) -> None:
    """Raise ValueError unless the mask is boolean."""
    if mask is not None and mask.dtype != torch.bool:
        raise ValueError(f"mask must be boolean with True = may attend, not {mask.dtype}")


def divisors(n: int) -> str:
    """The divisors of a number, to choose from."""
    return ", ".join(str(i) for i in range(1, n + 1) if n % i == 0)


@contextmanager
def empty_layers() -> Iterator[None]:
    """Lets layers without heads, whose weights have no elements, be built without a warning."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Initializing zero-element tensors")
        yield
