"""What each head does, as numbers that roles are named after."""

import math
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from headlab.data.tokenizer import EOS, PAD, SPACE_MARK, Tokenizer
from headlab.head_names import SITES, Head
from headlab.heads.statistics import HeadMeans, StudyBatch
from headlab.heads.weights import (
    PositionCounts,
    attention_batches,
    candidates,
    confidences,
    entropies,
    in_use,
    largest,
    off_diagonal,
    visible_keys,
)
from headlab.transformer import Transformer


class Numbers(NamedTuple):
    """What one head's weights show, on average over tokens; None where a number makes no sense.

    In a mixture of heads, over the tokens that picked the head; confidence and entropy are 0 when
    there is none.

    Attributes:
        confidence: largest weight (``weights.confidences``).
        entropy: in nats.
        evenness: entropy for each one of even weights over the same keys; of queries with two
            keys or more, as are the next three.
        first: weight on the first key: the first source token, or the decoder's ``<s>``.
        end: weight on the end of sentence; the decoder reads none.
        punctuation: weight on pieces of punctuation.
        position: relative position (key minus query) of most largest weights; self-attention.
        positional: share of the queries having that position whose largest weight lies there.
        rare: share of tokens whose largest weight lies on the sentence's rarest token by the
            training split, or one of several equally rare; encoder, sentences of two or more.
        rare_unusual: the same where the rarest token is none of the most frequent ones.
        two_rarest_unusual: of these sentences, on one of the two rarest (Voita et al. 2019, 5.3).
        diagonality: 1 minus the distance from the diagonal for each one of even weights
            (``weights.off_diagonal``): 1 on the diagonal, 0 as even weights; cross-attention.
    """

    confidence: float
    entropy: float
    evenness: float | None
    first: float | None
    end: float | None
    punctuation: float | None
    position: int | None
    positional: float | None
    rare: float | None
    rare_unusual: float | None
    two_rarest_unusual: float | None
    diagonality: float | None


class Vocabulary(NamedTuple):
    """What is known of the pieces, by id."""

    source_punctuation: Tensor  # (source vocabulary,), boolean
    target_punctuation: Tensor
    counts: Tensor | None  # (source vocabulary,), how often each stands in the training split
    unusual: Tensor | None  # (source vocabulary,), True for all but the most frequent


def punctuation(tokenizer: Tokenizer) -> Tensor:
    """Which pieces are nothing but punctuation (Unicode category P), by id."""
    pieces = tokenizer.pieces(range(tokenizer.vocab_size))
    names = [piece.replace(SPACE_MARK, "") for piece in pieces]
    return torch.tensor(
        [bool(name) and all(unicodedata.category(c)[0] == "P" for c in name) for name in names]
    )


def piece_counts(
    rows: Sequence[Sequence[int]], vocabulary: int, frequent: int
) -> tuple[Tensor, Tensor]:
    """How often each id stands in ``rows``, and which are not among the ``frequent`` first."""
    ids = torch.tensor([i for row in rows for i in row], dtype=torch.long)
    counts = torch.bincount(ids, minlength=vocabulary)
    unusual = torch.ones(vocabulary, dtype=torch.bool)
    unusual[counts.argsort(descending=True, stable=True)[:frequent]] = False
    return counts, unusual


def measure_heads(
    model: Transformer,
    pairs: Sequence[tuple[Sequence[int], Sequence[int]]],
    vocabulary: Vocabulary,
    batch_tokens: int,
    progress: Callable[[int], None] | None = None,
) -> dict[Head, Numbers]:
    """The numbers of every head that the model has; arguments as for ``attention_batches``."""
    means, positions = HeadMeans(), PositionCounts()
    for batch, weights in attention_batches(model, pairs, batch_tokens, progress):
        for site, layers in weights.items():
            view = _View(batch, site, vocabulary)
            for layer, of_heads in enumerate(layers):
                if of_heads.size(1):
                    view.add(means, positions, layer, of_heads)
    tables: dict[str, dict[str, Tensor]] = {}
    for name in _NAMES:
        tables[name] = means.table(name, model.kept, model.heads)
    found = {}
    for site in SITES:
        for layer, kept in enumerate(model.kept[site]):
            if not kept or site not in tables["entropy"]:
                continue
            best = positions.best(site, layer) if site != "cross" else [None] * len(kept)
            for number, place in zip(kept, best, strict=True):
                head = Head(site, layer, number)
                mean = {key: _value(table, head) for key, table in tables.items()}
                found[head] = _numbers(mean, place)
    return found


_NAMES = (
    "confidence", "entropy", "evenness", "first", "end", "punctuation", "rare", "rare_unusual",
    "two_rarest_unusual", "distance", "even_distance",
)  # fmt: skip


class _View:
    """What is the same for all layers of a site in a batch."""

    def __init__(self, batch: StudyBatch, site: str, vocabulary: Vocabulary) -> None:
        self.batch, self.site = batch, site
        self.queries, _ = batch.real()[site]
        self.allowed = candidates(batch, site)
        keys = visible_keys(batch, site).sum(dim=-1)
        self.choosing = keys > 1
        self.most = keys.clamp(min=2).double().log().unsqueeze(1)
        self.ids = batch.target_input if site == "decoder" else batch.source
        known = (
            vocabulary.target_punctuation if site == "decoder" else vocabulary.source_punctuation
        )
        self.punctuation = known.to(self.ids.device)[self.ids]
        self.ranked = False
        if site == "encoder" and vocabulary.counts is not None and vocabulary.unusual is not None:
            self._rank(vocabulary.counts, vocabulary.unusual)

    def _rank(self, of_pieces: Tensor, are_unusual: Tensor) -> None:
        """Find the rarest tokens of each sentence."""
        self.ranked = True
        words = (self.ids != PAD) & (self.ids != EOS)
        counts = of_pieces.to(self.ids.device)[self.ids]
        counts = counts.masked_fill(~words, torch.iinfo(torch.long).max)
        ordered = counts.sort(dim=-1).values
        self.rarest = words & (counts == ordered[:, :1])
        self.two_rarest = words & (counts <= ordered[:, 1:2]) if ordered.size(1) > 1 else words
        enough = words.sum(dim=-1, keepdim=True) > 1
        self.judging = self.queries & enough
        unusual = are_unusual.to(self.ids.device)[self.ids]
        self.judging_unusual = self.judging & (self.rarest & unusual).any(dim=-1, keepdim=True)

    def add(self, means: HeadMeans, positions: PositionCounts, layer: int, weights: Tensor) -> None:
        """Add one layer's weights, (batch, heads, queries, keys)."""

        served = in_use(weights)

        def add(name: str, values: Tensor, counted: Tensor) -> None:
            means.add(self.site, layer, name, values, counted.unsqueeze(1) & served)

        entropy = entropies(weights)
        add("confidence", confidences(weights, self.allowed), self.queries)
        add("entropy", entropy, self.queries)
        add("evenness", entropy / self.most, self.choosing)
        add("first", weights[..., 0], self.choosing)
        add("punctuation", self._on(weights, self.punctuation), self.choosing)
        if self.site != "decoder":
            add("end", self._on(weights, self.ids == EOS), self.choosing)
        if self.site == "cross":
            distance, even = off_diagonal(weights, self.batch)
            add("distance", distance, self.queries)
            add("even_distance", even.expand_as(distance), self.queries)
            return
        places = largest(weights, self.allowed)
        positions.add(self.site, layer, weights, self.allowed)
        if self.ranked:
            on_rarest = self._at(self.rarest, places)
            add("rare", on_rarest, self.judging)
            add("rare_unusual", on_rarest, self.judging_unusual)
            add("two_rarest_unusual", self._at(self.two_rarest, places), self.judging_unusual)

    @staticmethod
    def _on(weights: Tensor, keys: Tensor) -> Tensor:
        """The weight on the given keys, (batch, keys)."""
        return weights.masked_fill(~keys[:, None, None, :], 0.0).sum(dim=-1)

    @staticmethod
    def _at(keys: Tensor, places: Tensor) -> Tensor:
        """Whether the key at each place, (batch, heads, queries), is one of ``keys``."""
        table = keys.unsqueeze(1).expand(-1, places.size(1), -1)
        return table.gather(2, places)


def _value(tables: Mapping[str, Tensor], head: Head) -> float | None:
    if head.site not in tables:
        return None
    value = float(tables[head.site][head.layer, head.head])
    return None if math.isnan(value) else value


def _numbers(mean: Mapping[str, float | None], place: tuple[int, float] | None) -> Numbers:
    position, share = place if place is not None and not math.isnan(place[1]) else (None, None)
    distance, even = mean["distance"], mean["even_distance"]
    diagonality = None if distance is None or not even else 1 - distance / even
    own = {key: mean[key] for key in Numbers._fields if key in mean}
    own |= {key: own[key] or 0.0 for key in ("confidence", "entropy")}
    return Numbers(position=position, positional=share, diagonality=diagonality, **own)  # type: ignore[arg-type]
