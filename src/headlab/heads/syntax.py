"""Which dependency relations a head follows (Voita et al. 2019, section 5.2)."""

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from headlab.heads.parsing import Parse
from headlab.heads.words import Words, merge

UP, DOWN = "to head", "to dependent"  # where a word of the relation is expected to look


class Relation(NamedTuple):
    """A relation in one direction, and what a fixed offset would score on it."""

    name: str
    direction: str  # UP: the dependent looks at its head; DOWN: the head at a dependent
    instances: int
    offset: int  # the most frequent relative position, in words
    baseline: float  # the share of the instances with the other word there

    @property
    def label(self) -> str:
        """Short: ``obj↑`` from the object to its verb, ``obj↓`` from the verb to its object."""
        return self.name + ("↑" if self.direction == UP else "↓")


class Accuracy(NamedTuple):
    """How often a head's largest weight lies on the other word of a relation."""

    relation: Relation
    accuracy: float

    @property
    def ratio(self) -> float:
        """Accuracy for each one of the baseline."""
        return self.accuracy / self.relation.baseline

    @property
    def points(self) -> float:
        """Percentage points above the baseline."""
        return 100 * (self.accuracy - self.relation.baseline)

    def syntactic(self, factor: float) -> bool:
        """Whether a head is called after this relation: accuracy of ``factor`` baselines."""
        return self.ratio >= factor


class SyntaxCounts:
    """Counts, over batches, of one self-attention's largest weights on syntactic relatives.

    An instance is a word and one relation in one direction, such as a verb and its objects: a
    head hits it when the largest of the word's weights, among all words of the sentence, itself
    included and ``<s>`` and the end of sentence left out, lies on any of these relatives. The
    baseline looks at the same instances; it is the offset with the most hits. In a mixture of heads
    a head is judged by the words that picked it.

    Args:
        causal: whether a word sees only what stands on its left (decoder). Relatives on the right
            are out of reach then: an instance without one on the left does not count, neither for
            the heads nor for the baseline.
        ignored: relations that are not looked at. ``nsubj:pass`` counts as ``nsubj``.
    """

    def __init__(self, causal: bool, ignored: Collection[str] = ()) -> None:
        self.causal, self.ignored = causal, set(ignored)
        self._instances: Counter[tuple[str, str]] = Counter()
        self._offsets: dict[tuple[str, str], Counter[int]] = {}
        self._hits: dict[tuple[int, str, str], Tensor] = {}  # (heads,)
        self._served: dict[tuple[int, str, str], Tensor] = {}  # (heads,)

    def add(
        self,
        parses: Sequence[Parse],
        words: Words,
        rows: Sequence[int],
        layers: Sequence[Tensor],
    ) -> None:
        """Count a batch.

        Args:
            parses: of all sentences.
            words: of all sentences, those of the parses.
            rows: which sentences the batch has.
            layers: weights between pieces, (batch, heads, length, length) a layer.
        """
        found = [self._relatives(parses[i], words.owners[i]) for i in rows]
        wanted = [(row, *one) for row, some in enumerate(found) for one in some]
        if not wanted or not layers:
            return
        for _, word, key, relatives in wanted:
            self._instances[key] += 1
            self._offsets.setdefault(key, Counter()).update({r - word for r in relatives})
        device = layers[0].device
        # The decoder reads <s> before the first piece.
        table = words.membership(rows, layers[0].size(-1), int(self.causal), like=layers[0])
        exists = table.any(dim=-1)[:, None, None, :]
        at = torch.tensor([row for row, *_ in wanted], device=device)
        places = torch.tensor([word for _, word, *_ in wanted], device=device)
        targets = torch.zeros(len(wanted), table.size(1), dtype=torch.bool)
        for i, (*_, relatives) in enumerate(wanted):
            targets[i, list(relatives)] = True
        targets = targets.to(device)
        keys = sorted({key for *_, key, _ in wanted})
        which = torch.tensor([keys.index(key) for *_, key, _ in wanted], device=device)
        for layer, weights in enumerate(layers):
            between = merge(weights.to(table.dtype), table, table)
            largest, looked = between.masked_fill(~exists, -1.0).max(dim=-1)
            served = (largest > 0)[at, :, places]  # (instances, heads)
            hits = targets.gather(1, looked[at, :, places]) & served
            for counts, values in ((self._hits, hits), (self._served, served)):
                sums = torch.zeros(len(keys), hits.size(1), dtype=torch.float64, device=device)
                sums.index_add_(0, which, values.double())
                for key, some in zip(keys, sums.cpu(), strict=True):
                    place = layer, *key
                    counts[place] = counts.get(place, 0.0) + some

    def _relatives(
        self, parse: Parse, owners: Sequence[int | None]
    ) -> Iterable[tuple[int, tuple[str, str], set[int]]]:
        """Each word, relation and direction of a sentence, and the words that would be right."""
        whole = {owner for owner in owners if owner is not None}  # words with pieces of their own
        found: dict[tuple[int, tuple[str, str]], set[int]] = {}
        for dependent, head, relation in parse.relations:
            name = relation.partition(":")[0]
            if relation in self.ignored or name in self.ignored or not {dependent, head} <= whole:
                continue
            for word, other, way in ((dependent, head, UP), (head, dependent, DOWN)):
                if not self.causal or other < word:
                    found.setdefault((word, (name, way)), set()).add(other)
        return [(word, key, relatives) for (word, key), relatives in found.items()]

    def relations(self, least: int = 1) -> list[Relation]:
        """What was seen at least so often, most frequent first."""
        found = []
        for (name, way), count in self._instances.items():
            if count >= least:
                offsets = self._offsets[name, way]
                best = min(offsets, key=lambda offset: (-offsets[offset], abs(offset), offset))
                found.append(Relation(name, way, count, best, offsets[best] / count))
        return sorted(found, key=lambda one: (-one.instances, one.name, one.direction))

    def accuracies(self, layer: int, least: int = 1) -> list[list[Accuracy]]:
        """For each head of a layer its accuracy on every relation seen at least so often."""
        relations = self.relations(least)
        places = [(layer, one.name, one.direction) for one in relations]
        tables = [self._hits[place] / self._served[place].clamp_min(1) for place in places]
        heads = len(tables[0]) if tables else 0
        return [
            [
                Accuracy(one, float(shares[head]))
                for one, shares in zip(relations, tables, strict=True)
            ]
            for head in range(heads)
        ]
