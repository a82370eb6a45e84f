"""The lexicon on a planted language, Pharaoh files, and agreement with what heads look at."""

import itertools
import random
from pathlib import Path

import numpy as np
import pytest
import torch

from headlab.errors import HeadlabError
from headlab.head_names import Head
from headlab.heads.alignment import Aligner, Lexicon, agreements, best_sources, read_pharaoh
from headlab.heads.words import Words
from headlab.transformer import Transformer

PLANTED = {f"s{i}": f"t{i}" for i in range(20)}


def planted_pairs(count: int) -> list[tuple[list[str], list[str]]]:
    """Sentences whose translation has another order and, each, a word without a source."""
    draw = random.Random(0)
    pairs = []
    for _ in range(count):
        source = draw.sample(list(PLANTED), draw.randint(2, 6))
        target = [PLANTED[word] for word in source] + ["the"]
        draw.shuffle(target)
        pairs.append((source, target))
    return pairs


def test_a_planted_lexicon_is_learnt() -> None:
    lexicon = Lexicon(planted_pairs(400), iterations=10)
    for source, target in PLANTED.items():
        table = lexicon.probabilities([source], [target, "the", PLANTED["s0"]])
        assert table[0, 1] > 0.8, source
        assert table[1, 0] > 0.8  # what stands in every sentence comes from NULL
    aligner = Aligner(planted_pairs(400), iterations=10)
    assert aligner.links(["s3", "s1"], ["t1", "the", "t3"]) == [(1, 0), (0, 2)]


def test_against_a_loop_of_the_formula() -> None:
    """Brown et al. 1993, in the words of their section 4.2: counts, then their shares."""
    pairs = [(["a", "b"], ["x", "y"]), (["a"], ["x"]), (["b", "b", "c"], ["y", "z"])]
    sources = ["", "a", "b", "c"]
    t = dict.fromkeys(itertools.product(sources, "xyz"), 1.0)
    for _ in range(4):
        counts = dict.fromkeys(t, 0.0)
        for source, target in pairs:
            for f in target:
                total = sum(t[s, f] for s in ["", *source])
                for s in ["", *source]:
                    counts[s, f] += t[s, f] / total
        sums = {s: sum(counts[s, f] for f in "xyz") for s in sources}
        t = {(s, f): counts[s, f] / sums[s] for s, f in t}
    found = Lexicon(pairs, iterations=4).probabilities(["a", "b", "c"], ["x", "y", "z"])
    expected = [[t[s, f] for s in sources] for f in "xyz"]
    np.testing.assert_allclose(found, expected, atol=1e-12)


def test_words_never_seen_and_empty_sentences() -> None:
    lexicon = Lexicon(planted_pairs(50), iterations=3)
    assert lexicon.best(["s1"], ["new"]) == [None]
    assert lexicon.best(["new"], ["t1"])[0] is None or lexicon.probabilities([], ["t1"])[0, 0] > 0
    assert lexicon.best([], []) == []
    assert Aligner([], 3).links(["a"], ["b"]) == []
    assert Aligner([(["a"], []), ([], ["b"])], 3).links(["a"], ["b"]) == []


def test_pharaoh_files(tmp_path: Path) -> None:
    path = tmp_path / "gold.txt"
    path.write_text("0-0 1-2\n\n2-1\n")
    lengths = [(2, 3), (1, 1), (3, 2)]
    expected = [[(0, 0), (1, 2)], [], [(2, 1)]]
    assert read_pharaoh(path, lengths, False, "--alignments") == expected
    assert read_pharaoh(path, lengths[:1], True, "--alignments") == expected[:1]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("0-0\n1-2 x\n", "line 2: 'x' is no link"),
        ("0-0\n0-3\n", "line 2: 0-3 is outside of a pair of 2 source and 3 target words"),
        ("0-0\n", "1 lines for 2 sentence pairs"),
        ("\n\n\n", "3 lines for 2 sentence pairs"),
    ],
)
def test_mistakes_in_pharaoh_files(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "gold.txt"
    path.write_text(text)
    with pytest.raises(HeadlabError) as caught:
        read_pharaoh(path, [(1, 1), (2, 3)], False, "--alignments")
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_source_words_without_pieces_are_not_looked_at() -> None:
    weights = torch.zeros(1, 1, 2, 3)  # all on the end of sentence, or nowhere
    sources = Words([[1, 2]], [3])
    targets = Words([[0]], [1])
    keys = sources.membership([0], 3, 0, like=weights)
    queries = targets.membership([0], 2, 0, like=weights)
    assert best_sources(weights, queries, keys).tolist() == [[[-1]]]
    weights[0, 0, :, 0] = 1e-6
    assert best_sources(weights, queries, keys).tolist() == [[[1]]]


def test_agreement_against_a_loop() -> None:
    torch.manual_seed(0)
    model = Transformer(
        source_vocab_size=30,
        target_vocab_size=30,
        d_model=16,
        heads=2,
        encoder_layers=1,
        decoder_layers=2,
        ablate=["cross.1.0"],
    ).eval()
    with torch.no_grad():
        for attention in model.attentions("cross"):
            attention.in_projection.weight *= 6  # heads with preferences
    draw = random.Random(0)
    pairs = [
        ([draw.randint(4, 29) for _ in range(draw.randint(1, 6))],
         [draw.randint(4, 29) for _ in range(draw.randint(1, 6))])
        for _ in range(12)
    ]  # fmt: skip
    links = [
        [(draw.randrange(len(s)), t) for t in range(len(ts)) if draw.random() < 0.7]
        for s, ts in pairs
    ]
    words = [Words([list(range(len(p[i]))) for p in pairs], [len(p[i]) for p in pairs])
             for i in (0, 1)]  # fmt: skip
    found = agreements(model, pairs, *words, links, batch_tokens=20)
    assert set(found) == {Head("cross", 0, 0), Head("cross", 0, 1), Head("cross", 1, 1)}
    for head, agreement in found.items():
        for shift, value in enumerate(agreement):
            hits = []
            for (source, target), some in zip(pairs, links, strict=True):
                weights = model.attention_weights(
                    torch.tensor([[*source, 3]]), torch.tensor([[2, *target]])
                )
                index = model.kept["cross"][head.layer].index(head.head)
                maps = weights["cross"][head.layer][0, index]
                for _, t in some:
                    looked = int(maps[t + shift, : len(source)].argmax())
                    hits.append((looked, t) in some)
            assert value == pytest.approx(sum(hits) / len(hits))
