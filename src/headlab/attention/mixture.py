"""Mixture-of-head attention (Jin et al. 2024): each token chooses among the heads."""

import threading
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from headlab.attention.cache import KeyValueCache
from headlab.attention.multi_head import MultiHeadAttention


class Routing(NamedTuple):
    """How the tokens of one call chose among the routed heads."""

    probabilities: Tensor  # (batch, queries, routed heads), sum to 1
    chosen: Tensor  # the same shape, True for the heads that a token picked


class _Latest(threading.local):
    """The routing of each thread's last call; it is not copied with its layer."""

    routing: Routing | None = None

    def __reduce__(self) -> tuple[type, tuple[()]]:
        return _Latest, ()


class MixtureOfHeads(MultiHeadAttention):
    """Multi-head attention in which a router weighs the heads for each token.

    The first ``shared_heads`` heads always run; of the others each token picks the
    ``active_heads - shared_heads`` with the highest routing score (Jin et al. 2024, section 3.2)::

        output_t = sum_i g_i(t) head_i(t) W_O,i
        g_i = a_1 softmax(W_s x_t)_i      for a shared head
        g_i = a_2 softmax(W_r x_t)_i      for a chosen head, 0 for the other routed heads
        [a_1, a_2] = softmax(W_h x_t)

    As in the code that the authors released, the chosen heads' factors are renormalised to sum to
    1, and each softmax is multiplied by the number of its entries, so that a router which has no
    opinion leaves every active head as it would be in multi-head attention. With heads of one
    group only, a is 1.

    The weights that are returned are the maps times the factors: a row sums to the head's g.

    Args:
        shared_heads: heads that every token uses.
        active_heads: heads that a token uses in all, the shared ones included.
        **others: see ``MultiHeadAttention``.

    Raises:
        ValueError: as ``MultiHeadAttention``, or the numbers of heads do not fit together.
    """

    distributions = False

    def __init__(
        self,
        d_model: int = 512,
        heads: int = 8,
        shared_heads: int = 2,
        active_heads: int = 6,
        kv_heads: int | None = None,
        head_dim: int | None = None,
        dropout: float = 0.0,
        bias: bool = False,
        kept: Sequence[int] | None = None,
        position: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(d_model, heads, kv_heads, head_dim, dropout, bias, kept, position)
        if not 0 <= shared_heads <= heads:
            raise ValueError(
                f"attention.shared_heads={shared_heads} must lie between 0 and model.heads={heads}"
            )
        least = max(1, shared_heads)
        if not least <= active_heads <= heads:
            raise ValueError(
                f"attention.active_heads={active_heads} must lie between {least} (the shared "
                f"heads, or 1) and model.heads={heads}"
            )
        if shared_heads == heads:
            active_heads = heads
        self.shared_heads, self.active_heads = shared_heads, active_heads
        self.picks = active_heads - shared_heads
        self.routed_heads = heads - shared_heads
        # Scores of shared heads, of routed heads, and of the two groups; over all heads of the
        # whole layer, so that a token's choice is the same when some of them have been cut.
        self.router = nn.Linear(d_model, heads + 2, bias=False)
        nn.init.normal_(self.router.weight, std=0.02)
        self._latest = _Latest()

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
        factors = self._route(query)[:, self.kept].unsqueeze(-1)
        if weights is not None:
            weights = weights * factors
        return self._join(heads * factors, gates), weights

    @property
    def routing(self) -> Routing | None:
        """Of this thread's last call in training, for the balance loss; None otherwise."""
        return self._latest.routing

    def _route(self, query: Tensor) -> Tensor:
        """The factor of each head for each token, (batch, heads of the whole layer, queries)."""
        sizes = [self.shared_heads, self.routed_heads, 2]
        shared, routed, groups = self.router(query).split(sizes, dim=-1)
        shared = shared.softmax(dim=-1) * self.shared_heads
        probabilities = routed.softmax(dim=-1)
        places = probabilities.topk(self.picks, dim=-1).indices
        chosen = torch.zeros_like(probabilities, dtype=torch.bool).scatter(-1, places, True)
        picked = probabilities.masked_fill(~chosen, 0.0)
        total = picked.sum(dim=-1, keepdim=True).clamp_min(torch.finfo(picked.dtype).tiny)
        picked = picked / total * self.picks
        if self.shared_heads and self.picks:
            first, second = (2 * groups.softmax(dim=-1)).chunk(2, dim=-1)
            shared, picked = shared * first, picked * second
        self._latest.routing = Routing(probabilities, chosen) if self.training else None
        return torch.cat([shared, picked], dim=-1).transpose(1, 2)

    def _arguments(self) -> dict[str, Any]:
        mixture = {"shared_heads": self.shared_heads, "active_heads": self.active_heads}
        return super()._arguments() | mixture


def balance_loss(routing: Routing, real: Tensor) -> Tensor:
    """``H_r * sum_i f_i P_i`` over the routed heads (Jin et al. 2024, section 3.2, eq. 7).

    f_i is the share of the tokens' picks that went to head i, P_i its mean routing probability:
    1 when both are even, more when few heads do the work; 0 where there is no token.

    Args:
        routing: of one call.
        real: (batch, queries), False for padding, which does not count.
    """
    chosen, probabilities = routing.chosen[real].float(), routing.probabilities[real]
    share = chosen.sum(dim=0) / chosen.sum().clamp_min(1e-9)
    mean = probabilities.sum(dim=0) / max(1, len(probabilities))
    return probabilities.size(-1) * (share * mean).sum()
