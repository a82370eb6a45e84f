"""Gated DeltaNet (Yang et al. 2024): attention as a recurrence, with a state of constant size."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from headlab.attention.base import Attention, RMSNorm, by_head, check_mask, empty_layers
from headlab.attention.recurrence import (
    RecurrentCache,
    chunked_delta_rule,
    implied_weights,
)

CONVOLUTION = 4  # positions that the short convolution sees


class GatedDeltaNet(Attention):
    """A causal self-attention without softmax, whose memory is one matrix a head.

    ::

        S_t = a_t (S_{t-1} - b_t (S_{t-1} k_t) k_t^T) + b_t v_t k_t^T
        o_t = S_t q_t / sqrt(head_dim)

    Each step first takes from the matrix what it would answer to the key, then writes the value
    there (the delta rule), after letting everything fade (the gate): a_t = exp(-exp(A) softplus(
    W_a x_t + dt)) and b_t = sigmoid(W_b x_t) are numbers a head and position. q, k and v pass
    through a causal convolution over 4 positions and SiLU, q and k are L2-normalised, and the
    output is RMS-normalised and gated by SiLU(W_z x_t) before W_O (Yang et al. 2024, section 3.3;
    Qwen3-Next 2025).

    Training computes chunks of positions at once, decoding one step at a time; both agree. Order
    is in the recurrence, so position embeddings play no part here. Padding, whose positions nobody
    may attend to, neither writes to the matrix nor lets it fade.

    The weights that are returned are those of the recurrence written as ``o_t = sum_s w_ts v_s``:
    causal, but neither positive nor summing to 1.

    Args:
        d_model, heads, head_dim, bias, kept: see ``Attention``; there are no weights to drop.
        chunk: positions that are computed at once.

    Raises:
        ValueError: as ``Attention``; in a call, that a memory is given, or that the mask lets a
            query attend to what follows it.
    """

    distributions = False

    def __init__(
        self,
        d_model: int = 512,
        heads: int = 8,
        head_dim: int | None = None,
        bias: bool = False,
        chunk: int = 32,
        kept: Sequence[int] | None = None,
        position: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(d_model, heads, head_dim, 0.0, bias, kept)
        if chunk < 1:
            raise ValueError(f"attention.chunk={chunk} must be at least 1")
        self.chunk = chunk
        inner = self.heads * self.head_dim
        with empty_layers():
            # q, k, v, and the gate z of the output.
            self.in_projection = nn.Linear(d_model, 4 * inner, bias=bias)
            self.rates = nn.Linear(d_model, 2 * self.heads, bias=False)  # W_a and W_b
            # A filter for each number of q, k and v: no number sees another.
            self.filters = nn.Parameter(torch.empty(3 * inner, CONVOLUTION))
            self.log_decay = nn.Parameter(torch.empty(self.heads))  # A
            self.step_bias = nn.Parameter(torch.empty(self.heads))  # dt
            self.norm = RMSNorm(self.head_dim, eps=1e-6)
            self.reset_parameters()

    def reset_parameters(self) -> None:
        """Xavier-uniform projections; decay rates spread over the heads."""
        inner = self.heads * self.head_dim
        for block in self.in_projection.weight.split(max(inner, 1), dim=0):
            nn.init.xavier_uniform_(block)
        nn.init.xavier_uniform_(self.out_projection.weight)
        nn.init.xavier_uniform_(self.rates.weight)
        nn.init.uniform_(self.filters, -(CONVOLUTION**-0.5), CONVOLUTION**-0.5)
        # As in the released code: A = log of 1 to 16, dt such that the first steps are slow.
        with torch.no_grad():
            self.log_decay.uniform_(1.0, 16.0).log_()
            step = torch.empty_like(self.step_bias).uniform_(-6.9, -2.3).exp_()
            self.step_bias.copy_(step + torch.log(-torch.expm1(-step)))
        if self.bias:
            nn.init.zeros_(self.in_projection.bias)
            nn.init.zeros_(self.out_projection.bias)

    def new_cache(self, capacity: int = 0) -> RecurrentCache:
        """An empty state; it does not grow, so ``capacity`` plays no part."""
        return RecurrentCache(CONVOLUTION - 1)

    def forward(
        self,
        query: Tensor,
        memory: Tensor | None = None,
        mask: Tensor | None = None,
        gates: Tensor | None = None,
        cache: RecurrentCache | None = None,
        need_weights: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        """Attend, see ``Attention.forward``; ``memory`` must be None and the mask causal."""
        check_mask(mask)
        if memory is not None:
            raise ValueError("gated DeltaNet is a causal self-attention; it cannot read a memory")
        mixed, output_gate = self.in_projection(query).split(
            [3 * self.heads * self.head_dim, self.heads * self.head_dim], dim=-1
        )
        decay, write = self._rates(query)
        _check_causal(mask, query.size(1))
        real = _real(mask, query.size(1))
        if real is not None:
            decay = decay.masked_fill(~real.unsqueeze(1), 0.0)
            write = write.masked_fill(~real.unsqueeze(1), 0.0)
        tail = None if cache is None else cache.tail
        q, k, v = (by_head(part, self.head_dim) for part in self._convolve(mixed, tail))
        q = F.normalize(q, dim=-1, eps=1e-6) * self.head_dim**-0.5
        k = F.normalize(k, dim=-1, eps=1e-6)
        weights = None
        if need_weights:
            if cache is not None and cache.length:
                raise ValueError("the weights of a recurrence need all positions in one call")
            weights = implied_weights(q, k, decay, write)
        if cache is None:
            heads, _ = chunked_delta_rule(q, k, v, decay, write, self.chunk)
        else:
            heads = cache.advance(q, k, v, decay, write, mixed)
        heads = self.norm(heads) * F.silu(by_head(output_gate, self.head_dim))
        return self._join(heads, gates), weights

    def _rates(self, query: Tensor) -> tuple[Tensor, Tensor]:
        """log a and b of each head and position, each (batch, heads, length)."""
        step, write = self.rates(query).transpose(1, 2).chunk(2, dim=1)
        step = F.softplus(step + self.step_bias[:, None])
        return -self.log_decay.exp()[:, None] * step, write.sigmoid()

    def _convolve(self, mixed: Tensor, tail: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
        """q, k, v after the convolution and SiLU, each (batch, length, heads * head_dim)."""
        if tail is None:
            tail = mixed.new_zeros(len(mixed), CONVOLUTION - 1, mixed.size(2))
        padded = torch.cat([tail, mixed], dim=1)
        length = mixed.size(1)
        # A sum of shifted copies: faster on a CPU than a grouped convolution of width 4.
        shifted = (padded[:, i : i + length] * self.filters[:, i] for i in range(CONVOLUTION))
        q, k, v = F.silu(sum(shifted, start=mixed.new_zeros(()))).chunk(3, dim=-1)
        return q, k, v

    def _arguments(self) -> dict[str, Any]:
        return {
            "d_model": self.d_model,
            "heads": self.all_heads,
            "head_dim": self.head_dim,
            "bias": self.bias,
            "chunk": self.chunk,
        }

    def _head_rows(self, kept: Sequence[int]) -> dict[str, tuple[int, Tensor]]:
        heads = [self.kept.index(i) for i in kept]
        inner = self.heads * self.head_dim
        blocks = torch.cat([self._places(heads, start=i * inner) for i in range(4)])
        single = torch.tensor(heads, dtype=torch.long)
        return {
            "in_projection.weight": (0, blocks),
            "in_projection.bias": (0, blocks),
            "filters": (0, blocks[: 3 * len(heads) * self.head_dim]),
            "rates.weight": (0, torch.cat([single, single + self.heads])),
            "log_decay": (0, single),
            "step_bias": (0, single),
        }


def _real(mask: Tensor | None, length: int) -> Tensor | None:
    """(batch, length), False for padding: what even the last query of a row may not read."""
    if mask is None or mask.dim() < 4 or not length:
        return None
    return mask[:, 0, -1, -length:]


def _check_causal(mask: Tensor | None, length: int) -> None:
    """Raise ValueError where the mask is plainly one of an encoder."""
    if mask is None or length < 2:
        return
    first = mask[..., 0, :] if mask.dim() > 1 else mask
    # The values are looked at on a CPU only: elsewhere it would wait for the device.
    sees = mask.device.type == "cpu" and bool(first[..., -length + 1 :].any())
    if mask.dim() < 2 or mask.size(-2) == 1 or sees:
        raise ValueError("gated DeltaNet is causal; its mask must let no query see what follows it")
