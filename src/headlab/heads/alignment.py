"""Word alignments: a lexicon learnt from sentence pairs, Pharaoh files, and those of heads."""

import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from headlab.data.text import read_lines
from headlab.errors import HeadlabError
from headlab.head_names import Head
from headlab.heads.statistics import HeadMeans
from headlab.heads.weights import attention_batches
from headlab.heads.words import Words, merge
from headlab.transformer import Transformer

Links = list[tuple[int, int]]  # source word, target word, counted from 0

_LINK = re.compile(r"(\d{1,6})-(\d{1,6})")
_NULL = 0  # the source word that target words without a counterpart come from


class Lexicon:
    """IBM model 1: how likely a source word is translated by a target word (Brown et al. 1993).

    Expectation maximisation of section 4.2 from a uniform start, over all words of all pairs at
    once. A source word NULL, in every sentence, takes what has no counterpart.

    Args:
        pairs: the words of each source and of its translation.
        iterations: of the algorithm; 5 to 10 are usual.
    """

    def __init__(
        self, pairs: Sequence[tuple[Sequence[str], Sequence[str]]], iterations: int
    ) -> None:
        self._sources = _numbered((s for s, _ in pairs), first=1)
        self._targets = _numbered((t for _, t in pairs), first=0)
        self._width = max(1, len(self._targets))
        # A cell is a target word of a pair together with one of its source words.
        codes, places, place = [], [], 0
        for source, target in pairs:
            s = np.array([_NULL, *(self._sources[w] for w in source)], dtype=np.int64)
            t = np.array([self._targets[w] for w in target], dtype=np.int64)
            codes.append((s[None, :] * self._width + t[:, None]).ravel())
            places.append(np.repeat(np.arange(place, place + len(t)), len(s)))
            place += len(t)
        every = np.concatenate(codes) if codes else np.zeros(0, np.int64)
        self._codes, entry = np.unique(every, return_inverse=True)  # entries of the lexicon
        place_of = np.concatenate(places) if places else np.zeros(0, np.int64)
        source_of = self._codes // self._width
        self._probabilities = np.ones(len(self._codes))
        for _ in range(iterations):
            likely = self._probabilities[entry]
            share = likely / np.bincount(place_of, likely, minlength=place)[place_of]
            counts = np.bincount(entry, share, minlength=len(self._codes))
            totals = np.bincount(source_of, counts)[source_of]
            # A word of the last chances may have come down to nothing at all.
            self._probabilities = counts / np.maximum(totals, np.finfo(float).tiny)

    def probabilities(self, source: Sequence[str], target: Sequence[str]) -> np.ndarray:
        """P(target word | source word), (target words, 1 + source words), NULL first.

        0 where the two never stood in one pair.
        """
        s = np.array([_NULL, *(self._sources.get(w, -1) for w in source)], dtype=np.int64)
        t = np.array([self._targets.get(w, -1) for w in target], dtype=np.int64)
        codes = s[None, :] * self._width + t[:, None]
        known = (s >= 0)[None, :] & (t >= 0)[:, None]
        if not len(self._codes):
            return np.zeros(codes.shape)
        at = np.searchsorted(self._codes, codes).clip(max=len(self._codes) - 1)
        return np.where(known & (self._codes[at] == codes), self._probabilities[at], 0.0)

    def best(self, source: Sequence[str], target: Sequence[str]) -> list[int | None]:
        """The source word that each target word most likely comes from; None for NULL.

        None too for words that never stood in one pair. Of equals it is the first.
        """
        table = self.probabilities(source, target)
        if not table.size:
            return [None] * len(target)
        chosen = table.argmax(axis=1)
        sure = (chosen != _NULL) & (table.max(axis=1) > 0)
        return [int(c) - 1 if ok else None for c, ok in zip(chosen, sure, strict=True)]


class Aligner:
    """Links that two lexicons, one in each direction, agree on (Och and Ney 2003, intersection).

    Args:
        pairs: to learn from, as for ``Lexicon``.
        iterations: as for ``Lexicon``.
    """

    def __init__(
        self, pairs: Sequence[tuple[Sequence[str], Sequence[str]]], iterations: int
    ) -> None:
        self.forward = Lexicon(pairs, iterations)
        self.backward = Lexicon([(t, s) for s, t in pairs], iterations)

    def links(self, source: Sequence[str], target: Sequence[str]) -> Links:
        """The links of one pair; many words have none."""
        sources = self.forward.best(source, target)
        targets = self.backward.best(target, source)
        return [(s, t) for t, s in enumerate(sources) if s is not None and targets[s] == t]


def _numbered(sentences: Iterable[Sequence[str]], first: int) -> dict[str, int]:
    words: dict[str, int] = {}
    for sentence in sentences:
        for word in sentence:
            words.setdefault(word, len(words) + first)
    return words


def read_pharaoh(
    path: Path, lengths: Sequence[tuple[int, int]], cut: bool, key: str
) -> list[Links]:
    """Word alignments of sentence pairs: a line a pair, ``0-0 1-2 ...``, source word first.

    Args:
        path: the file; a blank line is a pair without links.
        lengths: source and target words of each pair.
        cut: whether the pairs are the first of a longer set, so that the file may go on.
        key: the option that the path came from, for errors.

    Raises:
        HeadlabError: a link that cannot be read or names a word that is not there, or another
            number of lines.
    """
    lines = read_lines(path, None)
    if len(lines) < len(lengths) or (len(lines) > len(lengths) and not cut):
        raise HeadlabError(
            f"{key} {path}: {len(lines):,} lines for {len(lengths):,} sentence pairs; "
            "give the alignments of the same sentences, a line each"
        )
    found = []
    for number, (line, (sources, targets)) in enumerate(zip(lines, lengths, strict=False), start=1):
        links = []
        for text in line.split():
            match = _LINK.fullmatch(text)
            if not match:
                raise HeadlabError(
                    f"{key} {path}, line {number}: {text!r} is no link; write source-target, "
                    "counted from 0, such as 0-0"
                )
            link = int(match[1]), int(match[2])
            if link[0] >= sources or link[1] >= targets:
                raise HeadlabError(
                    f"{key} {path}, line {number}: {text} is outside of a pair of {sources} source "
                    f"and {targets} target words (by white space)"
                )
            links.append(link)
        found.append(links)
    return found


class Agreement(NamedTuple):
    """How often a head's largest weight, from a target word, lies on a source word aligned to it.

    Of the two rows of a decoder that have to do with a target token, one predicts it, the other
    reads it one step later (Chen et al. 2020, section 4).
    """

    predicting: float
    reading: float


def agreements(
    model: Transformer,
    pairs: Sequence[tuple[Sequence[int], Sequence[int]]],
    sources: Words,
    targets: Words,
    links: Sequence[Links],
    batch_tokens: int,
    progress: Callable[[int], None] | None = None,
) -> dict[Head, Agreement]:
    """How well each head of the cross-attention agrees with word alignments.

    The share, of the target words that have a link, of those whose largest weight lies on one of
    the source words they are linked to. Weights are merged to words (``words.merge``).

    Args:
        model, pairs, batch_tokens, progress: as for ``attention_batches``.
        sources, targets: the words of each pair.
        links: the alignments of each pair.

    Returns:
        An entry for each head of the cross-attention; NaN where no word had a link.
    """
    means = HeadMeans()
    for batch, weights in attention_batches(model, pairs, batch_tokens, progress):
        layers, rows = weights["cross"], batch.rows
        keys = sources.membership(rows, batch.source.size(1), 0, like=layers[0])
        for name, shift in (("predicting", 0), ("reading", 1)):
            queries = targets.membership(rows, batch.target_input.size(1), shift, like=layers[0])
            right = link_table([links[i] for i in rows], queries.size(1), keys.size(1)).to(
                keys.device
            )
            counted = right.any(dim=-1) & queries.any(dim=-1)
            for layer, of_heads in enumerate(layers):
                looked = best_sources(of_heads, queries, keys)
                served = looked >= 0
                # Is there a link from the target word to where it looks?
                hits = right.unsqueeze(1).expand(-1, looked.size(1), -1, -1)
                hits = hits.gather(3, looked.clamp_min(0).unsqueeze(3)).squeeze(3)
                means.add("cross", layer, name, hits, counted.unsqueeze(1) & served)
    tables = [means.table(name, model.kept, model.heads) for name in Agreement._fields]
    return {
        head: Agreement(*(float(table["cross"][head.layer, head.head]) for table in tables))
        for head in model.head_names
        if head.site == "cross" and all("cross" in table for table in tables)
    }


def best_sources(weights: Tensor, queries: Tensor, keys: Tensor) -> Tensor:
    """The source word of largest weight for each target word, (batch, heads, target words).

    -1 where a head has no weight on any of them, as for a token that did not pick it.

    Args:
        weights: of a cross-attention, (batch, heads, queries, keys).
        queries: ``membership`` of the target, (batch, target words, queries): of the rows that
            predict its pieces, or of those that read them.
        keys: ``membership`` of the source; a word without pieces cannot be looked at.
    """
    exists = keys.any(dim=-1)[:, None, None, :]
    between = merge(weights.to(keys.dtype), queries, keys).masked_fill(~exists, -1.0)
    largest, places = between.max(dim=-1)
    return places.masked_fill(largest <= 0, -1)


def link_table(links: Sequence[Links], targets: int, sources: int) -> Tensor:
    """Links of a batch, (batch, target words, source words), True where two are aligned."""
    table = torch.zeros(len(links), targets, sources, dtype=torch.bool)
    for row, some in enumerate(links):
        for s, t in some:
            table[row, t, s] = True
    return table
