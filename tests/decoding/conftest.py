"""A stand-in for the Transformer whose distributions are written by hand."""

import itertools
import math
from collections.abc import Callable, Sequence
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from headlab.data.tokenizer import EOS, PAD
from headlab.decoding import Hypothesis
from headlab.transformer import Decoded, Encoded, Transformer

WORDS = (4, 5, 6)  # with EOS, the four tokens of the hand-made models
VOCABULARY = 7

Table = Callable[[tuple[int, ...], tuple[int, ...]], dict[int, float]]


class PrefixCache:
    """Remembers what each row has been fed, and which source it belongs to."""

    def __init__(self) -> None:
        self.prefixes: list[tuple[int, ...]] = []
        self.sources: list[tuple[int, ...]] = []

    def reorder(self, rows: torch.Tensor) -> None:
        self.prefixes = [self.prefixes[i] for i in rows.tolist()]
        self.sources = [self.sources[i] for i in rows.tolist()]


class TableModel(nn.Module):
    """Looks the log-probabilities of the next token up by source pieces and target prefix."""

    def __init__(self, table: Table, max_length: int | None = None) -> None:
        super().__init__()
        self.table, self.max_length = table, max_length
        self.weight = nn.Parameter(torch.zeros(1))
        self.steps = 0
        self.rows = 0

    def encode(self, source: torch.Tensor, gates: None) -> Encoded:
        mask = (source != PAD)[:, None, None]
        return Encoded(source.double().unsqueeze(-1), mask, None)

    def new_cache(self, batch_size: int, capacity: int) -> PrefixCache:
        return PrefixCache()

    def decode(
        self, target: torch.Tensor, encoded: Encoded, cache: PrefixCache, gates: None
    ) -> Decoded:
        ids = encoded.memory.squeeze(-1).long().tolist()
        sources = [tuple(i for i in row if i not in (PAD, EOS)) for row in ids]
        if not cache.sources:
            cache.sources, cache.prefixes = sources, [()] * len(sources)
        assert cache.sources == sources, "cache and encoder output hold different rows"
        new = [tuple(row) for row in target.tolist()]
        cache.prefixes = [a + b for a, b in zip(cache.prefixes, new, strict=True)]
        self.steps += 1
        self.rows += len(sources)
        hidden = torch.full((len(sources), 1, VOCABULARY), -math.inf, dtype=torch.float64)
        for i, (source_ids, prefix) in enumerate(zip(sources, cache.prefixes, strict=True)):
            for token, log_p in self.table(source_ids, prefix[1:]).items():
                hidden[i, 0, token] = log_p
        return Decoded(hidden, None, None)

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        return hidden.clone()


def random_table(source: tuple[int, ...], prefix: tuple[int, ...]) -> dict[int, float]:
    """A distribution over the four tokens that any change of source or prefix changes wholly."""
    state = 0.5
    for token in (*source, 99, *prefix):
        state = (state * 37.77 + token * 0.618) % 1.0
    logits = {token: 2 * math.sin(1000 * state * (token + 1)) for token in (EOS, *WORDS)}
    total = math.log(sum(math.exp(logit) for logit in logits.values()))
    return {token: logit - total for token, logit in logits.items()}


def brute_force(
    table: Table, source: Sequence[int], limit: int, length_penalty: float
) -> list[Hypothesis]:
    """Every finished sequence of at most ``limit`` tokens, best first."""
    found = []
    for length in range(limit):
        for ids in itertools.product(WORDS, repeat=length):
            steps = [table(tuple(source), ids[:i])[token] for i, token in enumerate((*ids, EOS))]
            found.append(Hypothesis(list(ids), sum(steps) / (length + 1) ** length_penalty, True))
    return sorted(found, key=lambda hypothesis: -hypothesis.score)


@pytest.fixture(scope="session")
def hand_made() -> SimpleNamespace:
    """``TableModel`` and what goes with it; test files cannot import from here."""
    return SimpleNamespace(
        TableModel=TableModel, random_table=random_table, brute_force=brute_force
    )


@pytest.fixture
def tiny_model() -> Transformer:
    """A real, untrained Transformer in float64, sharp enough to prefer some tokens."""
    torch.manual_seed(0)
    model = Transformer(
        source_vocab_size=20,
        target_vocab_size=20,
        d_model=16,
        heads=2,
        encoder_layers=2,
        decoder_layers=2,
        feed_forward=32,
        position={"kind": "sinusoidal", "max_length": 80},
    )
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1.5)
    return model.double().eval()


@pytest.fixture
def mixed_sources() -> list[list[int]]:
    """Ten sources: lengths 1 to 60, the shortest beside the longest."""
    generator = torch.Generator().manual_seed(1)
    lengths = (2, 60, 3, 17, 2, 60, 1, 9, 31, 2)
    return [torch.randint(4, 20, (n,), generator=generator).tolist() for n in lengths]
