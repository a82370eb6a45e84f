"""Batches of like length under a token budget, in an order that can be resumed."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor

from headlab.data.tokenizer import BOS, EOS, PAD, Tokenizers
from headlab.errors import HeadlabError

# Work for a target token in units of a source token's, about: it also attends across, and its
# logits cost as much as a few layers. In the sizes of experiment=multi30k_en_de it is 2.5.
TARGET_COST = 2


@dataclass  # not frozen: Lightning refuses to convert those to another precision
class Batch:
    """Padded token ids; every tensor (rows, length), padding on the right."""

    source: Tensor  # pieces, EOS
    target_input: Tensor  # BOS, pieces
    target_output: Tensor  # pieces, EOS
    indices: tuple[int, ...]  # positions in the data set
    target_tokens: int  # real tokens of target_output
    source_tokens: int

    @property
    def padding_share(self) -> float:
        """Share of all positions, source and target, that hold padding."""
        size = self.source.numel() + self.target_output.numel()
        return 1.0 - (self.source_tokens + self.target_tokens) / size

    def split(self, parts: int) -> list["Batch"]:
        """The rows in order, in at most so many batches that cost about as much each.

        Each is only as wide as its longest row. A batch with fewer rows has fewer parts.
        """
        if parts <= 1 or len(self.source) <= 1:
            return [self]
        lengths = [(ids != PAD).sum(dim=1) for ids in (self.source, self.target_output)]
        cost = lengths[0] + TARGET_COST * lengths[1]
        ends = cost.cumsum(dim=0)
        shares = torch.arange(1, parts) * int(ends[-1]) / parts
        middles = ends - cost / 2  # a row goes where the middle of it lies
        cuts = [0, *torch.searchsorted(middles, shares).tolist(), len(ends)]
        return [self._rows(start, end) for start, end in pairwise(cuts) if start < end]

    def _rows(self, start: int, end: int) -> "Batch":
        source, target = self.source[start:end], self.target_output[start:end]
        reals = [ids != PAD for ids in (source, target)]
        # No row may hold anything real: one place of padding is left then.
        source_width, target_width = (max(1, int(real.sum(dim=1).max())) for real in reals)
        return Batch(
            source[:, :source_width],
            self.target_input[start:end, :target_width],
            target[:, :target_width],
            self.indices[start:end],
            *(int(real.sum()) for real in reversed(reals)),
        )

    def to(self, device: torch.device, **kwargs: Any) -> "Batch":
        """The batch on another device."""
        source, target_input, target_output = (
            tensor.to(device, **kwargs)
            for tensor in (self.source, self.target_input, self.target_output)
        )
        return replace(self, source=source, target_input=target_input, target_output=target_output)


def collate(
    sources: Sequence[Sequence[int]],
    targets: Sequence[Sequence[int]],
    indices: Sequence[int] = (),
) -> Batch:
    """Pad rows of piece ids (no BOS, no EOS) to a batch.

    No rows make a batch that can be computed on and counts nowhere: one row of padding.
    """
    if not sources:
        padding = torch.full((1, 1), PAD)
        return Batch(padding, padding, padding, (), 0, 0)
    source = _pad([[*row, EOS] for row in sources])
    target_input = _pad([[BOS, *row] for row in targets])
    target_output = _pad([[*row, EOS] for row in targets])
    target_tokens = sum(map(len, targets)) + len(targets)
    source_tokens = sum(map(len, sources)) + len(sources)
    return Batch(source, target_input, target_output, tuple(indices), target_tokens, source_tokens)


def _pad(rows: Sequence[Sequence[int]]) -> Tensor:
    padded = np.full((len(rows), max(map(len, rows), default=0)), PAD, dtype=np.int64)
    for i, row in enumerate(rows):
        padded[i, : len(row)] = row
    return torch.from_numpy(padded)


class EncodedPairs:
    """A split as piece ids: two flat arrays and the borders of the sentences in them."""

    def __init__(self, sources: Sequence[Sequence[int]], targets: Sequence[Sequence[int]]) -> None:
        self._flat = [
            np.fromiter((i for row in rows for i in row), dtype=np.int32)
            for rows in (sources, targets)
        ]
        self._ends = [
            np.cumsum([0, *map(len, rows)], dtype=np.int64) for rows in (sources, targets)
        ]

    def __len__(self) -> int:
        return len(self._ends[0]) - 1

    @property
    def source_lengths(self) -> np.ndarray:
        """Tokens of each source as the encoder sees it: pieces and EOS."""
        return np.diff(self._ends[0]) + 1

    @property
    def target_lengths(self) -> np.ndarray:
        """Tokens of each target as the decoder sees it: pieces and one of BOS and EOS."""
        return np.diff(self._ends[1]) + 1

    def pair(self, index: int) -> tuple[list[int], list[int]]:
        """Source and target pieces of one pair."""
        source, target = (
            flat[ends[index] : ends[index + 1]].tolist()
            for flat, ends in zip(self._flat, self._ends, strict=True)
        )
        return source, target

    def batch(self, indices: Sequence[int]) -> Batch:
        """The pairs at ``indices``, padded."""
        pairs = [self.pair(i) for i in indices]
        return collate([p[0] for p in pairs], [p[1] for p in pairs], indices)


def plan_batches(
    source_lengths: np.ndarray,
    target_lengths: np.ndarray,
    max_tokens: int,
    generator: np.random.Generator | None = None,
) -> list[list[int]]:
    """Cut a split into batches of sentences of like length.

    The cost of a batch is its number of rows times its longest sentence on either side; it is at
    most ``max_tokens``, except that a longer sentence travels alone. Every index is in exactly
    one batch.

    Args:
        source_lengths, target_lengths: tokens of each pair, (pairs,).
        max_tokens: the budget of a batch, padding included.
        generator: shuffles pairs of equal length, and the batches; None: sorted by length.
    """
    count = len(source_lengths)
    ties = np.arange(count) if generator is None else generator.permutation(count)
    longest = np.maximum(source_lengths, target_lengths)
    # By the longer side; within one length by the difference of the two, upwards and downwards in
    # turn, so that neighbours across a border resemble each other: least padding.
    difference = (target_lengths - source_lengths) * np.where(longest % 2, 1, -1)
    order = np.lexsort((ties, difference, longest))
    batches: list[list[int]] = []
    current: list[int] = []
    for index, width in zip(order.tolist(), longest[order].tolist(), strict=True):
        # Widths never fall, so this one is the batch's widest.
        if current and (len(current) + 1) * width > max_tokens:
            batches.append(current)
            current = []
        current.append(index)
    if current:
        batches.append(current)
    if generator is not None:
        batches = [batches[i] for i in generator.permutation(len(batches)).tolist()]
    return batches


def share(batches: list[list[int]], rank: int, ranks: int) -> list[list[int]]:
    """The batches of one process of several: every ``ranks``-th, beginning with number ``rank``.

    So the processes see together, step by step, what one process sees that accumulates ``ranks``
    batches. All have equally many: who has none left at the end gets a batch without sentences.
    """
    return batches[rank::ranks] + [[]] * (rank >= len(batches) % ranks > 0)


class TrainingBatches:
    """One epoch after another of shuffled batches, resumable at any batch.

    The order depends on ``seed`` and the epoch alone, so that one process or several walk through
    the same batches (see ``share``). Iterating starts at the position that ``load_state_dict``
    gave, once, and from the beginning of the next epoch after.

    Args:
        pairs: the encoded training split.
        max_tokens: budget of a batch, see ``plan_batches``.
        seed: of the shuffling, and of subword sampling.
        rank, ranks: this process's number and how many there are.
        texts: the sentences themselves, for subword sampling.
        tokenizers: which draw the segmentations.
        sampling: strength of subword sampling (``Tokenizer.sample_all``); 0: none.
        max_length: a drawn row longer than this many tokens, EOS included, falls back to its
            ordinary segmentation.
    """

    def __init__(
        self,
        pairs: EncodedPairs,
        max_tokens: int,
        seed: int,
        rank: int = 0,
        ranks: int = 1,
        texts: tuple[Sequence[str], Sequence[str]] | None = None,
        tokenizers: Tokenizers | None = None,
        sampling: float = 0.0,
        max_length: int = 0,
    ) -> None:
        self.pairs, self.max_tokens, self.seed = pairs, max_tokens, seed
        self.rank, self.ranks = rank, ranks
        self.texts, self.tokenizers = texts, tokenizers
        self.sampling, self.max_length = sampling, max_length
        self.epoch = 0
        self.position = 0  # batches of this epoch already handed out, on this rank
        self._plan: tuple[int, list[list[int]]] | None = None

    def plan(self, epoch: int) -> list[list[int]]:
        """This rank's batches of an epoch, as indices."""
        if self._plan is None or self._plan[0] != epoch:
            self._plan = epoch, share(self._whole(epoch), self.rank, self.ranks)
        return self._plan[1]

    def _whole(self, epoch: int) -> list[list[int]]:
        """The batches of all processes."""
        generator = np.random.default_rng([self.seed, epoch])
        lengths = self.pairs.source_lengths, self.pairs.target_lengths
        return plan_batches(*lengths, self.max_tokens, generator)

    def __len__(self) -> int:
        return len(self.plan(self.epoch))

    def __iter__(self) -> Iterator[Batch]:
        # Whoever counts batches by ``len`` never asks for the one after the last, so the end of an
        # epoch is noticed here, when the next one begins.
        if self.position >= len(self.plan(self.epoch)):
            self.epoch, self.position = self.epoch + 1, 0
        plan = self.plan(self.epoch)
        while self.position < len(plan):
            indices = plan[self.position]
            self.position += 1
            yield self._sampled(indices) if self.sampling else self.pairs.batch(indices)

    def _sampled(self, indices: list[int]) -> Batch:
        assert self.texts is not None
        assert self.tokenizers is not None
        rows = []
        tokenizers = (self.tokenizers.source, self.tokenizers.target)
        for side, (texts, tokenizer) in enumerate(zip(self.texts, tokenizers, strict=True)):
            # Each side, epoch and batch has a seed of its own, whatever was drawn before.
            entropy = [self.seed, self.epoch, indices[0] if indices else 0, side]
            seed = int(np.random.SeedSequence(entropy).generate_state(1)[0])
            drawn = tokenizer.sample_all([texts[i] for i in indices], self.sampling, seed)
            rows.append(
                [
                    row if len(row) + 1 <= self.max_length else self.pairs.pair(i)[side]
                    for i, row in zip(indices, drawn, strict=True)
                ]
            )
        return collate(rows[0], rows[1], indices)

    def state_dict(self) -> dict[str, int]:
        """Where the iteration stands."""
        return {"epoch": self.epoch, "position": self.position, "ranks": self.ranks}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Go on from where ``state`` was taken.

        Raises:
            HeadlabError: in the middle of an epoch, which other processes were sharing.
        """
        self.epoch, self.position = state["epoch"], state["position"]
        before = state.get("ranks", self.ranks)
        if before == self.ranks:
            return
        if self.position < -(-len(self._whole(self.epoch)) // before):
            raise HeadlabError(
                f"trainer.devices: {before} process(es) were in the middle of an epoch, which "
                f"{self.ranks} cannot go on with; take trainer.devices={before}, or a checkpoint "
                "from the end of an epoch"
            )
        self.position = len(self.plan(self.epoch))


class EvaluationBatches:
    """A split in batches sorted by length, always in the same order; shared as for training."""

    def __init__(self, pairs: EncodedPairs, max_tokens: int, rank: int = 0, ranks: int = 1) -> None:
        self.pairs = pairs
        batches = plan_batches(pairs.source_lengths, pairs.target_lengths, max_tokens)
        self._batches = share(batches, rank, ranks)

    def __len__(self) -> int:
        return len(self._batches)

    def __iter__(self) -> Iterator[Batch]:
        return map(self.pairs.batch, self._batches)
