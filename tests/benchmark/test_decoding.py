"""The other programs translate as ours does, where they are given the same weights."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from headlab.benchmark import ctranslate, decoding
from headlab.benchmark.decoding import Translations, generate
from headlab.benchmark.measure_decoding import equal_share
from headlab.benchmark.networks import marian_model
from headlab.checkpoint import Loaded
from headlab.decoding.greedy import greedy_search
from headlab.decoding.hypothesis import Hypothesis, pad_sources
from headlab.transformer import Transformer

CPU = torch.device("cpu")
SOURCES = [[5, 9, 11, 7], [8, 4], [30, 31, 32, 33, 34, 12], [50]]
Make = Callable[..., Transformer]


def greedy(model: Transformer) -> tuple[list[Hypothesis], list[int]]:
    """Ours, and the tokens of each, EOS counted."""
    found = greedy_search(model, SOURCES, max_ratio=1.0, max_extra=3)
    return found, [len(one.ids) + one.finished for one in found]


def test_marian_generates_our_translations(
    transformer: Make, as_marian: Callable[[Transformer, nn.Module], None]
) -> None:
    pytest.importorskip("transformers")
    ours = transformer(norm="post")
    marian = marian_model(ours.hparams).eval()
    as_marian(ours, marian)
    found, lengths = greedy(ours)
    theirs = generate(marian, pad_sources(SOURCES, CPU), lengths)
    # Where our length limit cut a translation, the last token that Marian writes is its EOS.
    assert theirs == [one.ids if one.finished else one.ids[:-1] for one in found]
    assert len({tuple(row) for row in theirs}) == len(theirs)


@pytest.mark.parametrize("beam", [1, 4])
def test_marian_writes_as_many_tokens_as_it_is_told(transformer: Make, beam: int) -> None:
    pytest.importorskip("transformers")
    marian = marian_model(transformer(norm="post").hparams).eval()
    lengths = [1, 7, 4, 2]
    theirs = generate(marian, pad_sources(SOURCES, CPU), lengths, beam)
    assert [len(row) + 1 for row in theirs] == lengths


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"norm": "post", "attention": {"kind": "mha"}},
        {"activation": "swiglu", "tie_embeddings": "none"},
        {"activation": "gelu", "position": {"kind": "learned", "max_length": 40}},
    ],
    ids=str,
)
def test_ctranslate2_translates_as_we_do(
    transformer: Make, tmp_path: Path, options: dict[str, Any]
) -> None:
    pytest.importorskip("ctranslate2")
    ours = transformer(**options)
    assert ctranslate.refusal(ours) is None
    ctranslate.write_model(ours, tmp_path)
    found, lengths = greedy(ours)
    decode = decoding.ctranslate(tmp_path, IdTokenizers(), max(lengths), 1, CPU)
    theirs = decode([" ".join(map(str, row)) for row in SOURCES], 2, 1)
    shares = equal_share([one.ids for one in found], [one.finished for one in found], theirs.ids)
    assert shares == 1.0
    assert all(len(row) for row in theirs.ids)


def test_ctranslate2_translates_what_a_model_has_learnt(learnt: Loaded, tmp_path: Path) -> None:
    pytest.importorskip("ctranslate2")
    sentences = ["the timer is finished", "open the door", "a friend", "good morning"]
    ctranslate.write_model(learnt.model, tmp_path)
    ours = decoding.ours(learnt.path, CPU)
    theirs = decoding.ctranslate(tmp_path, learnt.tokenizers, 30, 1, CPU)
    expected = ["le minuteur est terminé", "ouvrez la porte", "un ami", "bonjour"]
    for batch, beam in ((0, 1), (2, 1), (64, 4)):
        mine = ours(sentences, batch, beam)
        assert mine == theirs(sentences, batch, beam)
        assert mine.texts == expected
        assert mine.tokens == sum(map(len, mine.ids)) + len(sentences)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"attention": {"kind": "mla", "latent_dim": 8}}, "attention.kind=mla has no conversion"),
        ({"attention": {"kind": "mha", "kv_heads": 2}}, "attention.kv_heads=2 has no conversion"),
        ({"attention": {"kind": "mha", "head_dim": 8}}, "attention.head_dim=8 has no conversion"),
        ({"ablate": ["encoder.0.1"]}, "heads are missing in some layers"),
        ({"position": {"kind": "rope"}}, "position.kind=rope has no conversion"),
    ],
    ids=str,
)
def test_models_that_ctranslate2_does_not_know_are_refused_with_a_reason(
    transformer: Make, options: dict[str, Any], reason: str
) -> None:
    refusal = ctranslate.refusal(transformer(**options))
    assert refusal is not None
    assert refusal.startswith(reason)


def test_equal_translations_end_alike_but_where_ours_was_cut() -> None:
    ours, finished = [[1, 2], [1, 2], [1, 2], [3]], [True, True, False, True]
    assert equal_share(ours, finished, [[1, 2], [1, 2, 9], [1, 2, 9], [4]]) == 0.5


def test_tokens_count_the_end_that_came() -> None:
    assert Translations(["a", "b"], [[4, 5], [6]], [True, False]).tokens == 4


class IdTokenizers:
    """Texts are ids in figures, on both sides."""

    def __init__(self) -> None:
        self.source = self.target = self

    def encode_all(self, texts: list[str]) -> list[list[int]]:
        return [list(map(int, text.split())) for text in texts]

    def decode_all(self, rows: list[list[int]]) -> list[str]:
        return [" ".join(map(str, row)) for row in rows]
