"""How alike heads are: Jensen-Shannon distances between their attention weights."""

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from headlab.heads.weights import entropies


class HeadDistances:
    """Mean Jensen-Shannon distance between all heads of a site (Clark et al. 2019, section 6).

    For two heads the square root of the Jensen-Shannon divergence, base 2, of the distributions
    that they give to one query, averaged over the real queries: 0 for heads that always look
    alike, 1 for heads that never look at the same key. (Clark et al. sum the divergence itself.)
    In a mixture of heads only queries that both heads serve count; 1 where there are none. Sums
    are kept in double precision, a batch at a time.
    """

    def __init__(self) -> None:
        self._sums: Tensor | None = None  # (heads, heads), above the diagonal
        self._queries: Tensor | None = None  # the same shape: how many queries were counted

    def add(self, layers: Sequence[Tensor], queries: Tensor) -> None:
        """Add a batch.

        Args:
            layers: a site's weights, (batch, heads, queries, keys) a layer; the numbers of heads
                may differ, also be 0.
            queries: (batch, queries), True for the real ones.
        """
        # (heads of all layers, real queries of the batch, keys)
        rows = torch.cat([weights.transpose(1, 2)[queries] for weights in layers], dim=1)
        rows = rows.transpose(0, 1).double()
        of_one = entropies(rows)
        served = rows.any(dim=-1)
        sums = torch.zeros(len(rows), len(rows), dtype=torch.float64)
        counts = torch.zeros_like(sums)
        for i in range(len(rows) - 1):
            middle = entropies((rows[i] + rows[i + 1 :]) / 2)
            divergence = (middle - (of_one[i] + of_one[i + 1 :]) / 2) / math.log(2)
            # Rounding may leave a hair below 0.
            distance = divergence.clamp(0.0, 1.0).sqrt()
            both = served[i] & served[i + 1 :]
            sums[i, i + 1 :] = distance.masked_fill(~both, 0.0).sum(dim=1).cpu()
            counts[i, i + 1 :] = both.sum(dim=1).cpu()
        self._sums = sums if self._sums is None else self._sums + sums
        self._queries = counts if self._queries is None else self._queries + counts

    def matrix(self) -> np.ndarray:
        """The means, (heads, heads), symmetric with zeros on the diagonal."""
        if self._sums is None or self._queries is None:
            return np.zeros((0, 0))
        means = torch.where(self._queries > 0, self._sums / self._queries.clamp_min(1), 1.0)
        half = means.triu(1).numpy()
        return half + half.T


def cluster(distances: np.ndarray) -> np.ndarray:
    """Average linkage of heads, as ``scipy.cluster.hierarchy`` writes it, (heads - 1, 4).

    Leaves are ordered so that neighbours are alike.

    Args:
        distances: (heads, heads), at least two heads.
    """
    from scipy.cluster.hierarchy import linkage
    from scipy.spatial.distance import squareform

    return linkage(squareform(distances, checks=False), "average", optimal_ordering=True)
