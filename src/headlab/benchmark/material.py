"""What all contestants work on: a few real batches to train on, and sentences to translate."""

import itertools
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from headlab.checkpoint import Loaded
from headlab.data.batches import Batch, EncodedPairs, plan_batches
from headlab.data.text import is_blank
from headlab.data.tokenizer import Tokenizers
from headlab.errors import HeadlabError
from headlab.files import replace_file

FILE = "material.pt"
# Pairs that batches are made of: enough for the lengths of any corpus, read in a moment.
SAMPLE = 20_000
EXAMPLES = 100  # validation pairs for the callbacks that draw pictures
SEED = 1

Pair = tuple[str, str]


@dataclass(frozen=True)
class Material:
    """Everything that a contestant is given, but for weights.

    Attributes:
        hparams: the arguments of ``Transformer`` that made the checkpoint's model.
        tokenizers: as ``Tokenizers.state`` gives them.
        config: of the checkpoint's run.
        pairs: texts of the training batches.
        plan: the batches, as indices of ``pairs``; shuffled.
        validation: a few validation pairs.
        sentences: to translate, longest first.
    """

    hparams: dict[str, Any]
    tokenizers: dict[str, Any]
    config: dict[str, Any]
    pairs: list[Pair]
    plan: list[list[int]]
    validation: list[Pair]
    sentences: list[str]

    def save(self, folder: Path) -> None:
        """Write it into a folder, as plain data."""
        replace_file(folder / FILE, lambda file: torch.save(asdict(self), file))

    @classmethod
    def read(cls, folder: Path) -> "Material":
        """What ``save`` wrote."""
        return cls(**torch.load(folder / FILE, weights_only=True))

    def read_tokenizers(self) -> Tokenizers:
        """The tokenizers themselves."""
        return Tokenizers.from_state(self.tokenizers)

    def encoded(self, tokenizers: Tokenizers) -> EncodedPairs:
        """The training pairs as piece ids."""
        sources, targets = zip(*self.pairs, strict=True)
        return EncodedPairs(*zip(*tokenizers.encode_pairs(sources, targets), strict=True))

    def batches(self, tokenizers: Tokenizers) -> list[Batch]:
        """The training batches, padded."""
        pairs = self.encoded(tokenizers)
        return [pairs.batch(indices) for indices in self.plan]


def choose_batches(
    loaded: Loaded, sources: Sequence[str], targets: Sequence[str], max_tokens: int, count: int
) -> tuple[list[Pair], list[list[int]]]:
    """A few of the batches that the trainer would make, spread evenly over their lengths.

    Args:
        loaded: the checkpoint; ``batches.max_length`` of its configuration applies.
        sources, targets: the training split.
        max_tokens: the budget of a batch, see ``plan_batches``.
        count: how many batches, at most.

    Returns:
        The pairs of these batches, and the batches as indices of them, in random order.

    Raises:
        HeadlabError: no pair is short enough.
    """
    generator = np.random.default_rng(SEED)
    drawn = generator.permutation(len(sources))[:SAMPLE].tolist()
    encoded = loaded.tokenizers.encode_pairs(
        [sources[i] for i in drawn], [targets[i] for i in drawn]
    )
    longest = loaded.config["batches"]["max_length"]
    short = [n for n, pair in enumerate(encoded) if max(map(len, pair)) + 1 <= longest]
    if not short:
        raise HeadlabError(
            f"{loaded.path}: every training pair is longer than the batches.max_length={longest} "
            "subwords of its configuration"
        )
    rows = EncodedPairs(*zip(*(encoded[n] for n in short), strict=True))
    every = plan_batches(rows.source_lengths, rows.target_lengths, max_tokens)
    places = np.linspace(0, len(every) - 1, min(count, len(every))).round().astype(int)
    chosen = [every[i] for i in generator.permutation(places).tolist()]
    used = [i for batch in chosen for i in batch]
    pairs = [(sources[drawn[short[i]]], targets[drawn[short[i]]]) for i in used]
    borders = np.cumsum([0, *map(len, chosen)]).tolist()
    plan = [list(range(*ends)) for ends in itertools.pairwise(borders)]
    return pairs, plan


def choose_to_translate(
    loaded: Loaded, sentences: Sequence[str], count: int, split: str
) -> list[str]:
    """The first sentences that are not blank and not too long for the model, longest first.

    Args:
        loaded: the checkpoint.
        sentences: of a split.
        count: how many, at most.
        split: its name, for the error.

    Raises:
        HeadlabError: there is none.
    """
    limit = loaded.model.max_length or loaded.config["batches"]["max_length"]
    visible = [text for text in sentences if not is_blank(text)]
    lengths = [len(ids) + 1 for ids in loaded.tokenizers.source.encode_all(visible)]
    kept = [(n, text) for n, text in zip(lengths, visible, strict=True) if n <= limit][:count]
    if not kept:
        raise HeadlabError(
            f"--split {split}: every sentence of it is blank or longer than the {limit} subwords "
            "that the model takes; choose another split"
        )
    return [text for _, text in sorted(kept, key=lambda one: -one[0])]
