"""The one attention module that the whole project shares (Vaswani et al. 2017, section 3.2.2)."""

import warnings
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from headlab.attention.cache import KeyValueCache


class MultiHeadAttention(nn.Module):
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

    A layer may have only some of its heads (``kept``), or none, when it adds its output bias if
    it has one. It then computes what the whole layer computes with the other heads' gates at 0.
    Query heads keep their key/value head, and key/value heads that no query head reads go.

    Args:
        d_model: width of the input and of the output.
        heads: number of query heads.
        kv_heads: number of key/value heads, a divisor of ``heads``; None: as many as ``heads``.
        head_dim: width of a head; None: ``d_model / heads``.
        dropout: probability of dropping an attention weight while training.
        bias: whether the four projections have a bias.
        kept: the numbers, of 0 to ``heads - 1``, of the query heads to build; None: all.

    Attributes:
        heads, kv_heads: how many the layer has.
        kept: their numbers, in order.

    Raises:
        ValueError: a size is not positive, ``heads`` does not divide ``d_model`` (and no
            ``head_dim`` is given), ``kv_heads`` does not divide ``heads``, ``dropout`` is
            outside [0, 1), or ``kept`` names other heads or one twice.
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
            raise ValueError(f"{problem}; choose heads from {_divisors(d_model)}")
        if head_dim is not None and head_dim < 1:
            raise ValueError(f"attention.head_dim={head_dim} must be at least 1, or null")
        kv_heads = heads if kv_heads is None else kv_heads
        if kv_heads < 1 or heads % kv_heads:
            raise ValueError(
                f"attention.kv_heads={kv_heads} does not divide model.heads={heads}; "
                f"choose kv_heads from {_divisors(heads)}"
            )
        if not 0.0 <= dropout < 1.0:
            raise ValueError(f"attention.dropout={dropout} must lie in [0, 1)")
        self.kept = list(range(heads)) if kept is None else sorted(kept)
        if len(set(self.kept)) < len(self.kept) or not set(self.kept) <= set(range(heads)):
            raise ValueError(f"kept={self.kept} must be some of the heads 0 to {heads - 1}")
        self._readers = [i * kv_heads // heads for i in self.kept]  # the k/v head each one reads
        self.kv_kept = sorted(set(self._readers))
        self._group_sizes = [self._readers.count(i) for i in self.kv_kept]
        self.d_model, self.heads, self.kv_heads = d_model, len(self.kept), len(self.kv_kept)
        self.head_dim = d_model // heads if head_dim is None else head_dim
        self.dropout, self.bias = dropout, bias
        self._original = {"heads": heads, "kv_heads": kv_heads}
        with warnings.catch_warnings():  # a layer without heads has weights without elements
            warnings.filterwarnings("ignore", "Initializing zero-element tensors")
            # One matrix for query, key and value, so that self-attention is a single product.
            columns = (self.heads + 2 * self.kv_heads) * self.head_dim
            self.in_projection = nn.Linear(d_model, columns, bias=bias)
            self.out_projection = nn.Linear(self.heads * self.head_dim, d_model, bias=bias)
            self.reset_parameters()

    def reset_parameters(self) -> None:
        """Xavier-uniform weights, each projection by its own shape; zero biases."""
        for block in self._split(self.in_projection.weight, dim=0):
            nn.init.xavier_uniform_(block)
        nn.init.xavier_uniform_(self.out_projection.weight)
        if self.in_projection.bias is not None:
            nn.init.zeros_(self.in_projection.bias)
            nn.init.zeros_(self.out_projection.bias)

    def forward(
        self,
        query: Tensor,
        memory: Tensor | None = None,
        mask: Tensor | None = None,
        gates: Tensor | None = None,
        cache: KeyValueCache | None = None,
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
            cache: keys and values of earlier calls. Self-attention appends to it; with
                ``memory`` it is filled on the first call and read on the later ones.
            need_weights: also return the attention weights, computed on the explicit path.

        Returns:
            The output, (batch, queries, d_model), and the weights before dropout,
            (batch, heads, queries, keys), or None when they were not asked for.

        Raises:
            ValueError: ``mask`` is not boolean, or ``gates`` has another shape.
        """
        if mask is not None and mask.dtype != torch.bool:
            raise ValueError(f"mask must be boolean with True = may attend, not {mask.dtype}")
        q, k, v = self._project(query, memory, cache)
        weights = None
        dropout = self.dropout if self.training else 0.0
        if self.heads and len(set(self._group_sizes)) > 1:  # left by pruning
            sizes = torch.tensor(self._group_sizes, device=k.device)
            k, v = k.repeat_interleave(sizes, dim=1), v.repeat_interleave(sizes, dim=1)
        if need_weights:
            heads, weights = self._explicit(q, k, v, mask, dropout)
        elif self.heads:
            heads = F.scaled_dot_product_attention(
                q, k, v, mask, dropout, enable_gqa=k.size(1) != self.heads
            )
        else:
            heads = q
        if gates is not None:
            heads = heads * self._shape_gates(gates)
        # (batch, heads, queries, head_dim) -> (batch, queries, heads * head_dim)
        return self.out_projection(heads.transpose(1, 2).flatten(2)), weights

    def select_heads(self, kept: Sequence[int]) -> "MultiHeadAttention":
        """A layer with only some of this one's heads, and their weights.

        Args:
            kept: their original numbers, of those in ``self.kept``.
        """
        smaller = MultiHeadAttention(
            self.d_model,
            **self._original,
            head_dim=self.head_dim,
            dropout=self.dropout,
            bias=self.bias,
            kept=kept,
        )
        queries = [self.kept.index(i) for i in smaller.kept]
        memories = [self.kv_kept.index(i) for i in smaller.kv_kept]
        offsets = (0, self.heads, self.heads + self.kv_heads)
        chosen = (queries, memories, memories)
        blocks = [i + offset for offset, part in zip(offsets, chosen, strict=True) for i in part]
        rows, columns = self._places(blocks), self._places(queries)
        with torch.no_grad():
            smaller.to(self.in_projection.weight)
            smaller.in_projection.weight.copy_(self.in_projection.weight[rows])
            smaller.out_projection.weight.copy_(self.out_projection.weight[:, columns])
            if self.bias:
                smaller.in_projection.bias.copy_(self.in_projection.bias[rows])
                smaller.out_projection.bias.copy_(self.out_projection.bias)
        return smaller.train(self.training)

    def _places(self, heads: Sequence[int]) -> Tensor:
        """Where the vectors of the given heads stand in a row of heads."""
        starts = torch.tensor(heads, dtype=torch.long)[:, None] * self.head_dim
        return (starts + torch.arange(self.head_dim)).flatten()

    def _project(
        self, query: Tensor, memory: Tensor | None, cache: KeyValueCache | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Queries (batch, heads, queries, head_dim); keys, values (batch, kv_heads, keys, ...)."""
        if memory is None:
            q, k, v = self._split(self.in_projection(query), dim=-1)
            q, k, v = self._heads(q), self._heads(k), self._heads(v)
            if cache is not None:
                k, v = cache.append(k, v)
            return q, k, v
        weight, bias = self.in_projection.weight, self.in_projection.bias
        border = self.heads * self.head_dim
        query_bias, memory_bias = (None, None) if bias is None else (bias[:border], bias[border:])
        q = self._heads(F.linear(query, weight[:border], query_bias))
        if cache is not None and cache.length:
            return q, cache.keys, cache.values
        k, v = F.linear(memory, weight[border:], memory_bias).chunk(2, dim=-1)
        k, v = self._heads(k), self._heads(v)
        if cache is not None:
            k, v = cache.append(k, v)
        return q, k, v

    def _explicit(
        self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, dropout: float
    ) -> tuple[Tensor, Tensor]:
        """The formula, step by step; the same output and gradients as the fused kernel."""
        if k.size(1) != self.heads:
            group = self.heads // k.size(1)
            k, v = k.repeat_interleave(group, dim=1), v.repeat_interleave(group, dim=1)
        scores = q @ k.transpose(-2, -1) / self.head_dim**0.5
        if mask is None:
            weights = scores.softmax(dim=-1)
        else:
            # The lowest finite number, not -inf, so that a row of nothing is not 0/0; what it
            # then spreads over the forbidden keys is taken back by the second line.
            weights = scores.masked_fill(~mask, torch.finfo(scores.dtype).min).softmax(dim=-1)
            weights = weights.masked_fill(~mask, 0.0)
        return F.dropout(weights, dropout) @ v, weights

    def _split(self, x: Tensor, dim: int) -> tuple[Tensor, Tensor, Tensor]:
        sizes = [n * self.head_dim for n in (self.heads, self.kv_heads, self.kv_heads)]
        q, k, v = x.split(sizes, dim=dim)
        return q, k, v

    def _heads(self, x: Tensor) -> Tensor:
        """(batch, length, heads * head_dim) -> (batch, heads, length, head_dim)."""
        return x.unflatten(-1, (-1, self.head_dim)).transpose(1, 2)

    def _shape_gates(self, gates: Tensor) -> Tensor:
        if gates.dim() not in (1, 2) or gates.size(-1) != self.heads:
            raise ValueError(
                f"gates must have shape ({self.heads},) or (batch, {self.heads}), "
                f"not {tuple(gates.shape)}"
            )
        return gates[..., :, None, None]


def _divisors(n: int) -> str:
    return ", ".join(str(i) for i in range(1, n + 1) if n % i == 0)
