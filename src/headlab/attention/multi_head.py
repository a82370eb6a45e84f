"""The one attention module that the whole project shares (Vaswani et al. 2017, section 3.2.2)."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from headlab.attention.base import Attention, by_head, check_mask, divisors, empty_layers
from headlab.attention.cache import KeyValueCache
from headlab.attention.positions import build_relative
from headlab.attention.relative import Alibi, Rotary
from headlab.attention.softmax import softmax_attention


class MultiHeadAttention(Attention):
    """Multi-head scaled dot-product attention, for all three places of an encoder-decoder.

    Encoder self-attention, causal decoder self-attention and cross-attention are the same
    computation with other inputs and another mask (Vaswani et al. 2017, eq. 1 and 3.2.2)::

        A_i = softmax(Q_i K_i^T / sqrt(head_dim), masked)        for each head i
        output = concat(A_1 V_1, ..., A_H V_H) W_O

        query  --W_Q--> Q (batch, heads,    queries, head_dim) --+
        memory --W_K--> K (batch, kv_heads, keys,    head_dim) --+--> A
        memory --W_V--> V (batch, kv_heads, keys,    head_dim) ------> A V --W_O--> output

    With ``kv_heads`` below ``heads`` it is grouped-query attention (Ainslie et al. 2023), with 1
    multi-query attention (Shazeer 2019): query head i reads key/value head i // (heads/kv_heads).

    Without bias the layer has ``2 d_model head_dim (heads + kv_heads)`` parameters: 4 d_model^2
    in the ordinary case, whatever the number of heads.

    In a layer with only some of its query heads each keeps its key/value head, and key/value heads
    that no query head reads are gone.

    Args:
        d_model, heads, head_dim, dropout, bias, kept: see ``Attention``; ``heads`` are query heads.
        kv_heads: number of key/value heads, a divisor of ``heads``; None: as many as ``heads``.
        position: ``kind`` "rope" (with ``base``) or "alibi" for a self-attention that takes
            positions into account; other kinds and None change nothing here.

    Attributes:
        kv_heads: how many key/value heads the layer has.

    Raises:
        ValueError: as ``Attention``, or ``kv_heads`` does not divide ``heads``.
    """

    def __init__(
        self,
        d_model: int = 512,
        heads: int = 8,
        kv_heads: int | None = None,
        head_dim: int | None = None,
        dropout: float = 0.0,
        bias: bool = False,
        kept: Sequence[int] | None = None,
        position: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(d_model, heads, head_dim, dropout, bias, kept)
        self.all_kv_heads = heads if kv_heads is None else kv_heads
        if self.all_kv_heads < 1 or heads % self.all_kv_heads:
            raise ValueError(
                f"attention.kv_heads={kv_heads} does not divide model.heads={heads}; "
                f"choose kv_heads from {divisors(heads)}"
            )
        readers = self.read_by(self.kept)
        self.kv_kept = sorted(set(readers))
        self.kv_heads = len(self.kv_kept)
        self._group_sizes = [readers.count(i) for i in self.kv_kept]
        self.position = position
        self.relative = build_relative(position, heads, self.head_dim)
        # One matrix for query, key and value, so that self-attention is a single product.
        columns = (self.heads + 2 * self.kv_heads) * self.head_dim
        with empty_layers():
            self.in_projection = nn.Linear(d_model, columns, bias=bias)
            self.reset_parameters()

    def reset_parameters(self) -> None:
        """Xavier-uniform weights, each projection by its own shape; zero biases."""
        for block in self._split(self.in_projection.weight, dim=0):
            nn.init.xavier_uniform_(block)
        nn.init.xavier_uniform_(self.out_projection.weight)
        if self.bias:
            nn.init.zeros_(self.in_projection.bias)
            nn.init.zeros_(self.out_projection.bias)

    def new_cache(self, capacity: int = 0) -> KeyValueCache:
        """An empty cache of keys and values."""
        return KeyValueCache(capacity)

    def forward(
        self,
        query: Tensor,
        memory: Tensor | None = None,
        mask: Tensor | None = None,
        gates: Tensor | None = None,
        cache: KeyValueCache | None = None,
        need_weights: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        """Attend, see ``Attention.forward``."""
        heads, weights = self._heads(query, memory, mask, cache, need_weights)
        return self._join(heads, gates), weights

    def _heads(
        self,
        query: Tensor,
        memory: Tensor | None,
        mask: Tensor | None,
        cache: KeyValueCache | None,
        need_weights: bool,
    ) -> tuple[Tensor, Tensor | None]:
        """The heads' outputs, (batch, heads, queries, head_dim), and weights if asked for."""
        check_mask(mask)
        q, k, v = self._project(query, memory, cache)
        if not self.heads:
            none = q.new_zeros(len(q), 0, q.size(2), k.size(2))
            return q, none if need_weights else None
        if len(set(self._group_sizes)) > 1:  # left by pruning
            sizes = torch.tensor(self._group_sizes, device=k.device)
            k, v = k.repeat_interleave(sizes, dim=1), v.repeat_interleave(sizes, dim=1)
        bias = None
        if isinstance(self.relative, Alibi):
            bias = self.relative(q.size(2), k.size(2), q.device)[self.kept]
        dropout = self.dropout if self.training else 0.0
        return softmax_attention(
            q, k, v, mask, bias=bias, dropout=dropout, need_weights=need_weights
        )

    def _project(
        self, query: Tensor, memory: Tensor | None, cache: KeyValueCache | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Queries (batch, heads, queries, head_dim); keys, values (batch, kv_heads, keys, ...)."""
        width = self.head_dim
        if memory is None:
            parts = self._split(self.in_projection(query), dim=-1)
            q, k, v = (by_head(part, width) for part in parts)
            if isinstance(self.relative, Rotary):
                start = 0 if cache is None else cache.length
                q, k = self.relative(q, start), self.relative(k, start)
            if cache is not None:
                k, v = cache.append(k, v)
            return q, k, v
        weight, bias = self.in_projection.weight, self.in_projection.bias
        border = self.heads * width
        query_bias, memory_bias = (None, None) if bias is None else (bias[:border], bias[border:])
        q = by_head(F.linear(query, weight[:border], query_bias), width)
        if cache is not None and cache.length:
            return q, cache.keys, cache.values
        k, v = F.linear(memory, weight[border:], memory_bias).chunk(2, dim=-1)
        k, v = by_head(k, width), by_head(v, width)
        if cache is not None:
            k, v = cache.append(k, v)
        return q, k, v

    def _split(self, x: Tensor, dim: int) -> tuple[Tensor, Tensor, Tensor]:
        sizes = [n * self.head_dim for n in (self.heads, self.kv_heads, self.kv_heads)]
        q, k, v = x.split(sizes, dim=dim)
        return q, k, v

    def read_by(self, heads: Sequence[int]) -> list[int]:
        """The number of the key/value head that each query head reads."""
        return [i * self.all_kv_heads // self.all_heads for i in heads]

    def _arguments(self) -> dict[str, Any]:
        return {
            "d_model": self.d_model,
            "heads": self.all_heads,
            "kv_heads": self.all_kv_heads,
            "head_dim": self.head_dim,
            "dropout": self.dropout,
            "bias": self.bias,
            "position": self.position,
        }

    def _head_rows(self, kept: Sequence[int]) -> dict[str, tuple[int, Tensor]]:
        queries = [self.kept.index(i) for i in kept]
        memories = [self.kv_kept.index(i) for i in sorted(set(self.read_by(kept)))]
        keys, values = self.heads * self.head_dim, (self.heads + self.kv_heads) * self.head_dim
        rows = torch.cat(
            [
                self._places(queries),
                self._places(memories, start=keys),
                self._places(memories, start=values),
            ]
        )
        return {"in_projection.weight": (0, rows), "in_projection.bias": (0, rows)}


def grouped_from_multi_head(attention: MultiHeadAttention, kv_heads: int) -> MultiHeadAttention:
    """Fewer key/value heads, each the mean of those it stands for (Ainslie et al. 2023, 2.1).

    Args:
        attention: left as it is.
        kv_heads: a divisor of the key/value heads that ``attention`` was built with.

    Raises:
        ValueError: ``kv_heads`` is no such divisor.
    """
    before = attention.all_kv_heads
    if kv_heads < 1 or before % kv_heads:
        raise ValueError(
            f"--kv-heads {kv_heads} must divide the {before} key/value heads that there are; "
            f"choose from {divisors(before)}"
        )
    fewer = type(attention)(
        **{**attention._arguments(), "kv_heads": kv_heads, "kept": attention.kept}
    )
    border, width = attention.heads * attention.head_dim, attention.head_dim
    state = attention.state_dict()
    for name, value in attention.in_projection.named_parameters(prefix="in_projection"):
        pooled = []
        for part in value[border:].detach().chunk(2):
            heads = part.unflatten(0, (attention.kv_heads, width)) if len(part) else part
            for group in fewer.kv_kept:
                members = [
                    i for i, n in enumerate(attention.kv_kept) if n * kv_heads // before == group
                ]
                pooled.append(heads[members].mean(dim=0))
        state[name] = torch.cat([value[:border].detach(), *pooled])
    fewer.to(attention.out_projection.weight).load_state_dict(state)
    return fewer.train(attention.training)
