"""Sentence pairs in batches for a study of heads, and means over their tokens."""

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from headlab.data.tokenizer import PAD
from headlab.decoding.hypothesis import pad_sources
from headlab.decoding.search import plan_batches
from headlab.evaluation import shift_right
from headlab.transformer import Transformer


class StudyBatch(NamedTuple):
    """Some sentence pairs, padded with PAD on the right."""

    source: Tensor  # (batch, source length): pieces, EOS
    target_input: Tensor  # (batch, target length): BOS, pieces
    target_output: Tensor  # (batch, target length): pieces, EOS
    rows: list[int]  # which pairs they are

    def real(self) -> dict[str, tuple[Tensor, Tensor]]:
        """Site -> its queries and its keys that are no padding, (batch, queries), (batch, keys)."""
        source, target = self.source != PAD, self.target_input != PAD
        return {"encoder": (source, source), "decoder": (target, target), "cross": (target, source)}


def study_batches(
    model: Transformer,
    pairs: Sequence[tuple[Sequence[int], Sequence[int]]],
    batch_tokens: int,
) -> Iterator[StudyBatch]:
    """All pairs that the model has positions for, in batches of like length.

    Args:
        model: says where the tensors go and how long a sentence may be.
        pairs: source and target pieces, without BOS and EOS.
        batch_tokens: tokens of the longer side in a batch, padding counted.
    """
    device = next(model.parameters()).device
    lengths = [max(len(side) for side in pair) + 1 for pair in pairs]
    kept = [i for i, n in enumerate(lengths) if model.max_length is None or n <= model.max_length]
    for batch in plan_batches([lengths[i] for i in kept], batch_tokens):
        rows = [kept[i] for i in batch]
        output = pad_sources([pairs[i][1] for i in rows], device)
        source = pad_sources([pairs[i][0] for i in rows], device)
        yield StudyBatch(source, shift_right(output), output, rows)


class HeadMeans:
    """Means over tokens, of any number of quantities, for every head of a model.

    Sums are kept in double precision, a batch at a time, so that no more than one batch of
    attention weights is ever held.
    """

    def __init__(self) -> None:
        self._sums: dict[tuple[str, int, str], Tensor] = {}
        self._counts: dict[tuple[str, int, str], Tensor] = {}

    def add(self, site: str, layer: int, name: str, values: Tensor, counted: Tensor) -> None:
        """Add one layer's values.

        Args:
            site, layer: which layer.
            name: of the quantity.
            values: (batch, heads, queries), the heads that the layer has.
            counted: (batch, queries) or (batch, heads, queries), True for the queries that count.
        """
        counted = (counted.unsqueeze(1) if counted.dim() == 2 else counted).expand_as(values)
        key = site, layer, name
        total = values.double().masked_fill(~counted, 0.0).sum(dim=(0, 2)).cpu()
        self._sums[key] = self._sums.get(key, 0.0) + total
        self._counts[key] = self._counts.get(key, 0.0) + counted.sum(dim=(0, 2)).cpu()

    def table(
        self, name: str, kept: Mapping[str, Sequence[Sequence[int]]], heads: int
    ) -> dict[str, Tensor]:
        """Site -> the means, (layers, heads) in double precision; NaN where nothing counted.

        Args:
            name: of the quantity.
            kept: ``Transformer.kept``.
            heads: ``Transformer.heads``.
        """
        found = {}
        for site in {site for site, _, of in self._sums if of == name}:
            table = torch.full((len(kept[site]), heads), torch.nan, dtype=torch.float64)
            for layer, numbers in enumerate(kept[site]):
                key = site, layer, name
                if key in self._sums:
                    table[layer, numbers] = self._sums[key] / self._counts[key]
            found[site] = table
        return found
