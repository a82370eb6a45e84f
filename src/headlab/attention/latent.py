"""Multi-head latent attention (DeepSeek-V2 2024, section 2.1; DeepSeek-V3 2024)."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from headlab.attention.base import Attention, RMSNorm, check_mask, empty_layers
from headlab.attention.cache import KeyValueCache
from headlab.attention.multi_head import MultiHeadAttention
from headlab.attention.positions import build_relative
from headlab.attention.relative import Alibi, Rotary
from headlab.attention.softmax import softmax_attention


class MultiHeadLatentAttention(Attention):
    """Attention whose keys and values all come from one small latent vector a position.

    ::

        c_t = RMSNorm(W_DKV h_t)                       the latent, latent_dim numbers
        k_t = W_UK c_t,  v_t = W_UV c_t                for each head
        q_t = W_Q h_t,   or W_UQ RMSNorm(W_DQ h_t)     with query_latent_dim
        score = (q . k + q^R . k^R) / sqrt(head_dim + rope_dim)

    With rotary positions each head has rope_dim further numbers in its query, q^R, and all heads
    share those in the key, k^R = RoPE(W_KR h_t), since a rotated key could not be made from the
    latent later (DeepSeek-V2, section 2.1.3). Without them rope_dim counts as 0.

    Only the latent and k^R are cached: latent_dim + rope_dim numbers a position for all heads.
    Decoding never unfolds them: W_UK goes over to the query, and W_UV is applied to the weighted
    sum of latents, so that every head reads the same cached numbers, as in multi-query attention.

    Args:
        d_model, heads, head_dim, dropout, bias, kept: see ``Attention``.
        latent_dim: numbers in the latent.
        query_latent_dim: numbers in a latent for the query; None: it is projected directly.
        rope_dim: numbers that carry rotary positions; even.
        latent_norm: whether the latents are normalised.
        position: ``kind`` "rope" or "alibi" for a self-attention; others change nothing here.

    Raises:
        ValueError: as ``Attention``, or a width is not positive, or ``rope_dim`` odd.
    """

    def __init__(
        self,
        d_model: int = 512,
        heads: int = 8,
        latent_dim: int = 32,
        query_latent_dim: int | None = None,
        rope_dim: int = 8,
        head_dim: int | None = None,
        dropout: float = 0.0,
        bias: bool = False,
        latent_norm: bool = True,
        kept: Sequence[int] | None = None,
        position: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(d_model, heads, head_dim, dropout, bias, kept)
        for key, value in (("latent_dim", latent_dim), ("query_latent_dim", query_latent_dim)):
            if value is not None and value < 1:
                raise ValueError(f"attention.{key}={value} must be at least 1")
        self.latent_dim, self.query_latent_dim = latent_dim, query_latent_dim
        self.given_rope_dim, self.latent_norm, self.position = rope_dim, latent_norm, position
        if (position or {}).get("kind") == "rope" and (rope_dim < 2 or rope_dim % 2):
            raise ValueError(f"attention.rope_dim={rope_dim} must be even and at least 2")
        self.relative = build_relative(position, heads, rope_dim)
        self.rope_dim = rope_dim if isinstance(self.relative, Rotary) else 0
        width = self.head_dim + self.rope_dim
        self.scale = width**-0.5

        def norm(size: int) -> nn.Module:
            return RMSNorm(size, eps=1e-6) if latent_norm else nn.Identity()

        with empty_layers():
            if query_latent_dim is not None:
                self.query_down = nn.Linear(d_model, query_latent_dim, bias=bias)
                self.query_norm = norm(query_latent_dim)
            self.query_up = nn.Linear(
                query_latent_dim or d_model,
                self.heads * width,
                bias=bias and query_latent_dim is None,
            )
            # The latent, then the numbers of the key that are rotated.
            self.memory_down = nn.Linear(d_model, latent_dim + self.rope_dim, bias=bias)
            self.memory_norm = norm(latent_dim)
            # For each head its keys, then its values.
            self.memory_up = nn.Linear(latent_dim, self.heads * 2 * self.head_dim, bias=False)
            self.reset_parameters()

    def reset_parameters(self) -> None:
        """Xavier-uniform weights, zero biases."""
        for module in self.children():
            if isinstance(module, nn.Linear):
                nn.init.xavier_uniform_(module.weight)
                if module.bias is not None:
                    nn.init.zeros_(module.bias)

    def new_cache(self, capacity: int = 0) -> KeyValueCache:
        """An empty cache of latents, with the rotated part of the key behind each."""
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
        """Attend, see ``Attention.forward``; with a cache in the absorbed form."""
        check_mask(mask)
        start = cache.length if cache is not None and memory is None else 0
        q = self._queries(query, start)
        if cache is not None and memory is not None and cache.length:
            latent = cache.keys
        else:
            latent = self._latents(query if memory is None else memory, start)
            if cache is not None:
                latent, _ = cache.append(latent, latent[..., :0])
        if not self.heads:
            none = q.new_zeros(len(q), 0, q.size(2), latent.size(2))
            return self._join(q[..., : self.head_dim], gates), none if need_weights else None
        bias = None
        if isinstance(self.relative, Alibi):
            bias = self.relative(q.size(2), latent.size(2), q.device)[self.kept]
        up_keys, up_values = self._up()
        if cache is None:
            content, rotated = latent.split([self.latent_dim, self.rope_dim], dim=-1)
            unfolded = self.memory_up(content.squeeze(1)).unflatten(-1, (self.heads, 2, -1))
            k, v = unfolded.transpose(1, 2).unbind(dim=3)
            if self.rope_dim:
                k = torch.cat([k, rotated.expand(-1, self.heads, -1, -1)], dim=-1)
        else:
            content, rotated = q.split([self.head_dim, self.rope_dim], dim=-1)
            q = torch.cat([_by_head_product(content, up_keys), rotated], dim=-1)
            k, v = latent, latent[..., : self.latent_dim]
        heads, weights = softmax_attention(
            q,
            k,
            v,
            mask,
            bias=bias,
            dropout=self.dropout if self.training else 0.0,
            scale=self.scale,
            need_weights=need_weights,
        )
        if cache is not None:
            heads = _by_head_product(heads, up_values.transpose(1, 2))
        return self._join(heads, gates), weights

    def _queries(self, query: Tensor, start: int) -> Tensor:
        """(batch, heads, queries, head_dim + rope_dim), the last rope_dim of them rotated."""
        if self.query_latent_dim is not None:
            query = self.query_norm(self.query_down(query))
        width = self.head_dim + self.rope_dim
        q = self.query_up(query).unflatten(-1, (self.heads, width)).transpose(1, 2)
        if isinstance(self.relative, Rotary):
            content, rotated = q.split([self.head_dim, self.rope_dim], dim=-1)
            q = torch.cat([content, self.relative(rotated, start)], dim=-1)
        return q

    def _latents(self, memory: Tensor, start: int) -> Tensor:
        """(batch, 1, keys, latent_dim + rope_dim), normalised and rotated: what is cached."""
        down = self.memory_down(memory)
        content, rotated = down.split([self.latent_dim, self.rope_dim], dim=-1)
        content = self.memory_norm(content)
        if isinstance(self.relative, Rotary):
            content = torch.cat([content, self.relative(rotated, start)], dim=-1)
        return content.unsqueeze(1)

    def _up(self) -> tuple[Tensor, Tensor]:
        """W_UK and W_UV of each head, each (heads, head_dim, latent_dim)."""
        weight = self.memory_up.weight.view(self.heads, 2, self.head_dim, self.latent_dim)
        return weight[:, 0], weight[:, 1]

    def _arguments(self) -> dict[str, Any]:
        return {
            "d_model": self.d_model,
            "heads": self.all_heads,
            "latent_dim": self.latent_dim,
            "query_latent_dim": self.query_latent_dim,
            "rope_dim": self.given_rope_dim,
            "head_dim": self.head_dim,
            "dropout": self.dropout,
            "bias": self.bias,
            "latent_norm": self.latent_norm,
            "position": self.position,
        }

    def _head_rows(self, kept: Sequence[int]) -> dict[str, tuple[int, Tensor]]:
        heads = [self.kept.index(i) for i in kept]
        queries = self._places(heads, self.head_dim + self.rope_dim)
        return {
            "query_up.weight": (0, queries),
            "query_up.bias": (0, queries),
            "memory_up.weight": (0, self._places(heads, 2 * self.head_dim)),
        }


def _by_head_product(x: Tensor, matrices: Tensor) -> Tensor:
    """(batch, heads, length, n) times a matrix a head, (heads, n, m).

    ``x @ matrices`` would first copy the matrices for every row of the batch.
    """
    rows = x.transpose(0, 1)
    product = rows.flatten(1, 2) @ matrices
    return product.unflatten(1, rows.shape[1:3]).transpose(0, 1)


def latent_from_multi_head(attention: MultiHeadAttention) -> MultiHeadLatentAttention:
    """A latent attention that computes what a multi-head or grouped-query one does.

    The latent is all its keys and values side by side, ``2 kv_heads head_dim`` numbers, without a
    norm, and W_UK and W_UV pick each head's part of it (TransMLA, Meng et al. 2025, section 3).
    Key/value heads that have been cut leave zeros in the latent.

    Raises:
        ValueError: its positions are rotary: a rotated key is no fixed product of a latent.
    """
    if isinstance(attention.relative, Rotary):
        raise ValueError(
            "an attention with rotary positions cannot be rewritten exactly: its keys are turned "
            "by their position before they are compared, so no fixed W_UK gives them"
        )
    width, whole = attention.head_dim, attention.all_kv_heads * attention.head_dim
    latent = MultiHeadLatentAttention(
        attention.d_model,
        attention.all_heads,
        latent_dim=2 * whole,
        head_dim=width,
        dropout=attention.dropout,
        bias=attention.bias,
        latent_norm=False,
        kept=attention.kept,
        position=attention.position,
    )
    border = attention.heads * width
    places = torch.cat([latent._places(attention.kv_kept, start=start) for start in (0, whole)])
    with torch.no_grad():
        latent.to(attention.out_projection.weight)
        for name, value in attention.in_projection.named_parameters():
            getattr(latent.query_up, name).copy_(value[:border])
            down = getattr(latent.memory_down, name)
            down.zero_()[places] = value[border:]
        up = latent.memory_up.weight.view(latent.heads, 2, width, 2 * whole).zero_()
        for head, reader in enumerate(attention.read_by(attention.kept)):
            for part in (0, 1):
                start = part * whole + reader * width
                up[head, part, :, start : start + width] = torch.eye(width).to(up)
        latent.out_projection.load_state_dict(attention.out_projection.state_dict())
    return latent.train(attention.training)
