"""What attention weights say: numbers for each query, from one layer's weights of a batch.

Weights are (batch, heads, queries, keys). The largest weight of a query is looked for among its
*candidates*: the keys that it can see, without the end of sentence, which is no real word
(Voita et al. 2019, section 4). The decoder reads no end of sentence; its ``<s>`` is a candidate.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence

import torch
from torch import Tensor

from headlab.attention import causal_mask
from headlab.data.tokenizer import EOS
from headlab.heads.statistics import StudyBatch, study_batches
from headlab.transformer import Gates, Transformer


def attention_batches(
    model: Transformer,
    pairs: Sequence[tuple[Sequence[int], Sequence[int]]],
    batch_tokens: int,
    progress: Callable[[int], None] | None = None,
    gates: Gates | None = None,
) -> Iterator[tuple[StudyBatch, dict[str, list[Tensor]]]]:
    """Batches and the weights of every head for them, the decoder reading the given targets.

    Args:
        model: in evaluation mode.
        pairs: source and target pieces, without BOS and EOS; those that are too long for the
            model are left out.
        batch_tokens: tokens of the longer side in a batch, padding counted.
        progress: called after each batch with the number of pairs done so far.
        gates: of the heads' outputs, for the model.

    Yields:
        A batch, and site -> a tensor a layer, (batch, heads, queries, keys).
    """
    done = 0
    for batch in study_batches(model, pairs, batch_tokens):
        with torch.inference_mode():
            weights = model.attention_weights(batch.source, batch.target_input, gates)
        yield batch, as_distributions(model, weights)
        done += len(batch.rows)
        if progress is not None:
            progress(done)


def as_distributions(
    model: Transformer, weights: Mapping[str, Sequence[Tensor]]
) -> dict[str, list[Tensor]]:
    """Weights whose rows sum to 1, also where a kind of attention has others.

    A mixture of heads multiplies its maps by what the router gives each head, and the weights of a
    recurrence have signs: their absolute values are divided by their sum. Rows that are all zero,
    of tokens that did not pick a head, stay so, and no statistic counts them (``in_use``). The
    weights of softmax attention are left as they are.
    """
    return {
        site: [
            one if attention.distributions else _normalised(one)
            for one, attention in zip(layers, model.attentions(site), strict=True)
        ]
        for site, layers in weights.items()
    }


def _normalised(weights: Tensor) -> Tensor:
    sizes = weights.abs()
    total = sizes.sum(dim=-1, keepdim=True)
    return sizes / total.clamp_min(torch.finfo(sizes.dtype).tiny)


def in_use(weights: Tensor) -> Tensor:
    """Which queries each head serves, (batch, heads, queries): all, but in a mixture of heads."""
    return weights.any(dim=-1)


def visible_keys(batch: StudyBatch, site: str) -> Tensor:
    """Which keys each real query can see, (batch, queries, keys); padding sees nothing."""
    queries, keys = batch.real()[site]
    seen = queries.unsqueeze(2) & keys.unsqueeze(1)
    if site == "decoder":
        seen = seen & causal_mask(keys.size(1), keys.size(1), keys.device)
    return seen


def candidates(batch: StudyBatch, site: str) -> Tensor:
    """Which keys may be a query's largest, (batch, queries, keys); padding has none."""
    seen = visible_keys(batch, site)
    return seen if site == "decoder" else seen & (batch.source != EOS).unsqueeze(1)


def entropies(weights: Tensor) -> Tensor:
    """Entropy of each query's distribution over keys, (batch, heads, queries), in nats.

    ``-sum p log p`` (Shannon 1948), with 0 log 0 = 0: 0 for a head that looks at one place,
    log(number of keys) for one that looks at all alike. In double precision.
    """
    return torch.special.entr(weights.double()).sum(dim=-1)


def confidences(weights: Tensor, allowed: Tensor) -> Tensor:
    """The largest weight of each query, (batch, heads, queries); Voita et al. 2019, section 4.

    Args:
        weights: (batch, heads, queries, keys). What is left out stays counted: no renormalisation.
        allowed: from ``candidates``.
    """
    return weights.masked_fill(~allowed.unsqueeze(1), 0.0).amax(dim=-1)


def largest(weights: Tensor, allowed: Tensor) -> Tensor:
    """The key of the largest weight of each query, (batch, heads, queries).

    Of equal weights it is the first; where nothing is allowed the value means nothing.
    """
    return weights.masked_fill(~allowed.unsqueeze(1), -1.0).argmax(dim=-1)


class PositionCounts:
    """How often each head's largest weight lies at each relative position (key minus query).

    A position counts only for queries that have it: from the first token there is no previous
    one, so a head that always looks at the previous token scores 1. Queries with fewer than two
    candidates have no choice and are left out, and so are queries that a head does not serve.
    """

    def __init__(self) -> None:
        self._found: dict[tuple[str, int], Tensor] = {}  # (heads, positions)
        self._possible: dict[tuple[str, int], Tensor] = {}  # the same shape

    def add(self, site: str, layer: int, weights: Tensor, allowed: Tensor) -> None:
        """Count where the largest weights of a layer lie.

        Args:
            site, layer: of self-attention.
            weights: (batch, heads, queries, keys).
            allowed: from ``candidates``, (batch, queries, keys).
        """
        length, heads = allowed.size(1), weights.size(1)
        width, key = 2 * length - 1, (site, layer)
        queries = torch.arange(length, device=weights.device)
        choosing = _with_choice(allowed)
        counted = choosing.any(dim=-1).unsqueeze(1) & in_use(weights)
        rows = torch.arange(heads, device=weights.device)[None, :, None] * width
        shifted = (largest(weights, allowed) - queries + length - 1 + rows)[counted]
        found = torch.bincount(shifted, minlength=heads * width).view(heads, -1)
        self._found[key] = _add_centred(self._found.get(key), found.cpu())
        # How many queries of each head have each position: a matrix product over all queries.
        row, query, place = choosing.nonzero().unbind(dim=1)
        has = torch.zeros(len(allowed) * length, width, dtype=torch.float64, device=weights.device)
        has[row * length + query, place - query + length - 1] = 1.0
        possible = counted.transpose(0, 1).flatten(1).to(has) @ has
        self._possible[key] = _add_centred(self._possible.get(key), possible.cpu())

    def best(self, site: str, layer: int) -> list[tuple[int, float]]:
        """For each head of a layer the position with most hits, and its share of the queries.

        Of positions with equal hits it is the nearest, and the left one of two.

        Returns:
            (relative position, share) a head; (0, NaN) where nothing was counted.
        """
        found, possible = self._found[site, layer], self._possible[site, layer]
        middle = found.size(1) // 2
        order = sorted(range(-middle, middle + 1), key=lambda p: (abs(p), p))
        places = torch.tensor(order) + middle
        best = places[found[:, places].argmax(dim=1)]
        hits, chances = (table.gather(1, best[:, None])[:, 0] for table in (found, possible))
        shares = hits.double() / chances
        return list(zip((best - middle).tolist(), shares.tolist(), strict=True))


def _with_choice(allowed: Tensor) -> Tensor:
    """The candidates of those queries that have two or more."""
    return allowed & (allowed.sum(dim=-1, keepdim=True) > 1)


def _add_centred(sums: Tensor | None, counts: Tensor) -> Tensor:
    """The sum of two tables of odd widths whose middle columns belong together."""
    if sums is None:
        return counts
    wide, narrow = (sums, counts) if sums.size(1) >= counts.size(1) else (counts, sums)
    margin = (wide.size(1) - narrow.size(1)) // 2
    total = wide.clone()
    total[:, margin : margin + narrow.size(1)] += narrow
    return total


def off_diagonal(weights: Tensor, batch: StudyBatch) -> tuple[Tensor, Tensor]:
    """How far cross-attention lies from the diagonal, and how far even weights would.

    Row t of T reads what stands before output token t, key j is source token j of S; both
    sequences end with their end of sentence. The distance is the weighted mean of
    ``|j / (S - 1) - t / (T - 1)|`` over the keys.

    Args:
        weights: of a cross-attention, (batch, heads, queries, keys).

    Returns:
        Distances (batch, heads, queries), and those of even weights (batch, 1, queries).
    """
    queries, keys = batch.real()["cross"]
    rows, columns = _relative(queries), _relative(keys)
    apart = (columns[:, None, :] - rows[:, :, None]).abs().masked_fill(~keys.unsqueeze(1), 0.0)
    even = apart.sum(dim=-1) / keys.sum(dim=-1, keepdim=True)
    return (weights.double() * apart.unsqueeze(1)).sum(dim=-1), even.unsqueeze(1)


def _relative(real: Tensor) -> Tensor:
    """Positions from 0 at the first to 1 at the last real token, (batch, length)."""
    places = torch.arange(real.size(1), device=real.device, dtype=torch.float64)
    return places / (real.sum(dim=-1, keepdim=True) - 1).clamp(min=1)
