"""The layers of the Transformer: attention and feed-forward, each with its residual and norm."""

from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from headlab.attention import Attention, Cache
from headlab.dropout import Dropout


class FeedForward(nn.Module):
    """Position-wise feed-forward network: ``W_2 activation(W_1 x)``.

    ``relu`` is that of Vaswani et al. 2017 (eq. 2), ``gelu`` that of BERT, ``swiglu`` multiplies
    SiLU(W_1 x) by a second projection of x (Shazeer 2020, eq. 6), which adds half the parameters.
    """

    def __init__(self, d_model: int, width: int, activation: str, dropout: float) -> None:
        super().__init__()
        if activation not in ("relu", "gelu", "swiglu"):
            raise ValueError(f"model.activation={activation}: choose relu, gelu or swiglu")
        self.activation = activation
        self.first = nn.Linear(d_model, width * (2 if activation == "swiglu" else 1))
        self.second = nn.Linear(width, d_model)
        self.dropout = Dropout(dropout, "model.feed_forward_dropout")

    def forward(self, x: Tensor) -> Tensor:
        """(batch, length, d_model) -> the same shape."""
        x = self.first(x)
        if self.activation == "relu":
            x = F.relu(x)
        elif self.activation == "gelu":
            x = F.gelu(x)
        else:
            gate, x = x.chunk(2, dim=-1)
            x = F.silu(gate) * x
        return self.second(self.dropout(x))


class _Residual(nn.Module):
    """``x + dropout(sublayer(norm(x)))`` (pre) or ``norm(x + dropout(sublayer(x)))`` (post)."""

    def __init__(self, d_model: int, norm: str, dropout: float) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(d_model)
        self.dropout = Dropout(dropout)
        self.pre = norm == "pre"

    def before(self, x: Tensor) -> Tensor:
        return self.norm(x) if self.pre else x

    def after(self, x: Tensor, change: Tensor) -> Tensor:
        x = x + self.dropout(change)
        return x if self.pre else self.norm(x)


class EncoderLayer(nn.Module):
    """Self-attention, then feed-forward."""

    def __init__(self, attention: Attention, feed_forward: FeedForward, **residual: Any):
        super().__init__()
        self.self_attention, self.feed_forward = attention, feed_forward
        self.self_residual, self.feed_residual = _Residual(**residual), _Residual(**residual)

    def forward(
        self, x: Tensor, mask: Tensor, gates: Tensor | None, need_weights: bool
    ) -> tuple[Tensor, Tensor | None]:
        """(batch, source length, d_model) -> the same shape, and the attention weights."""
        change, weights = self.self_attention(
            self.self_residual.before(x), mask=mask, gates=gates, need_weights=need_weights
        )
        x = self.self_residual.after(x, change)
        return self.feed_residual.after(x, self.feed_forward(self.feed_residual.before(x))), weights


class DecoderLayer(nn.Module):
    """Causal self-attention, cross-attention to the encoder's output, then feed-forward."""

    def __init__(
        self,
        self_attention: Attention,
        cross_attention: Attention,
        feed_forward: FeedForward,
        **residual: Any,
    ) -> None:
        super().__init__()
        self.self_attention, self.cross_attention = self_attention, cross_attention
        self.feed_forward = feed_forward
        self.self_residual, self.cross_residual = _Residual(**residual), _Residual(**residual)
        self.feed_residual = _Residual(**residual)

    def forward(
        self,
        x: Tensor,
        memory: Tensor,
        self_mask: Tensor | None,
        cross_mask: Tensor,
        self_gates: Tensor | None,
        cross_gates: Tensor | None,
        self_cache: Cache | None,
        cross_cache: Cache | None,
        need_weights: bool,
    ) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """(batch, target length, d_model) -> the same shape, and both sites' weights."""
        change, self_weights = self.self_attention(
            self.self_residual.before(x), None, self_mask, self_gates, self_cache, need_weights
        )
        x = self.self_residual.after(x, change)
        change, cross_weights = self.cross_attention(
            self.cross_residual.before(x),
            memory,
            cross_mask,
            cross_gates,
            cross_cache,
            need_weights,
        )
        x = self.cross_residual.after(x, change)
        x = self.feed_residual.after(x, self.feed_forward(self.feed_residual.before(x)))
        return x, self_weights, cross_weights
