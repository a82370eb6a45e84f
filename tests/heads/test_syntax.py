"""Counts of relations that heads follow, against a loop and against planted heads."""

import pytest
import torch

from headlab.heads.parsing import Parse
from headlab.heads.syntax import DOWN, UP, SyntaxCounts
from headlab.heads.words import Words


def simple(counts: list[int]) -> Words:
    """A piece a word."""
    return Words([list(range(n)) for n in counts], counts)


def looking(places: list[list[int]], width: int, shift: int = 0) -> torch.Tensor:
    """One head whose word i of each sentence looks at the given word."""
    weights = torch.full((len(places), 1, width, width), 0.001)
    for row, some in enumerate(places):
        for query, key in enumerate(some):
            weights[row, 0, query + shift, key + shift] = 0.9
    return weights


# the(0) dog(1) sees(2) a(3) cat(4); and the verb first in a second sentence.
PARSES = [
    Parse([(i, i + 1) for i in range(5)], [(0, 1, "det"), (1, 2, "nsubj"), (3, 4, "det"),
                                          (4, 2, "obj")]),
    Parse([(i, i + 1) for i in range(3)], [(1, 0, "nsubj:pass"), (2, 0, "obj")]),
]  # fmt: skip


def test_accuracy_and_baseline_in_both_directions() -> None:
    counts = SyntaxCounts(causal=False)
    # The head always looks from the verb to its subject, and from elsewhere at itself.
    weights = looking([[0, 1, 1, 3, 4], [1, 1, 2]], 6)
    counts.add(PARSES, simple([5, 3]), [0, 1], [weights])
    found = {(one.name, one.direction): one for one in counts.relations()}
    assert set(found) == {(n, d) for n in ("det", "nsubj", "obj") for d in (UP, DOWN)}
    nsubj = found["nsubj", DOWN]
    assert nsubj.instances == 2  # nsubj:pass counts as nsubj
    assert (nsubj.offset, nsubj.baseline) == (-1, 0.5)  # once at -1, once at +1
    assert (found["det", UP].offset, found["det", UP].baseline) == (1, 1.0)
    (accuracies,) = counts.accuracies(0)
    scores = {(one.relation.name, one.relation.direction): one for one in accuracies}
    assert scores["nsubj", DOWN].accuracy == 1.0
    assert scores["nsubj", DOWN].points == pytest.approx(50.0)
    assert scores["nsubj", DOWN].ratio == pytest.approx(2.0)
    assert scores["nsubj", DOWN].syntactic(1.1)
    assert scores["nsubj", DOWN].relation.label == "nsubj↓"
    assert scores["nsubj", UP].accuracy == 0.0
    assert scores["nsubj", UP].relation.label == "nsubj↑"
    assert not scores["det", UP].syntactic(1.1)


def test_the_decoder_reaches_only_what_is_on_the_left() -> None:
    counts = SyntaxCounts(causal=True)
    weights = looking([[0, 0, 1, 3, 3], [0, 0, 0]], 6, shift=1)
    counts.add(PARSES, simple([5, 3]), [0, 1], [weights])
    found = {(one.name, one.direction): one.instances for one in counts.relations()}
    # Determiners see no noun, and the verb of the second sentence none of its relatives.
    assert found == {
        ("det", DOWN): 2,
        ("nsubj", DOWN): 1,
        ("nsubj", UP): 1,
        ("obj", UP): 2,
    }
    scores = {
        (one.relation.name, one.relation.direction): one.accuracy for one in counts.accuracies(0)[0]
    }
    assert scores == {("det", DOWN): 1.0, ("nsubj", DOWN): 1.0, ("nsubj", UP): 1.0,
                      ("obj", UP): 0.5}  # fmt: skip


def test_one_of_several_relatives_is_enough() -> None:
    parse = Parse([(0, 1), (1, 2), (2, 3)], [(0, 2, "amod"), (1, 2, "amod")])
    counts = SyntaxCounts(causal=False)
    counts.add([parse], simple([3]), [0], [looking([[2, 2, 0]], 4)])
    down = next(one for one in counts.relations() if one.direction == DOWN)
    assert (down.instances, down.offset, down.baseline) == (1, -1, 1.0)
    accuracy = next(one for one in counts.accuracies(0)[0] if one.relation == down)
    assert accuracy.accuracy == 1.0


def test_left_out_are_ignored_relations_rare_ones_and_words_without_pieces() -> None:
    counts = SyntaxCounts(causal=False, ignored=["det"])
    words = Words([[0, 1, 2, 3, 3], [0, 1, 2]], [5, 3])  # word 4 has no piece of its own
    counts.add(PARSES, words, [0, 1], [looking([[0] * 5, [0] * 3], 6)])
    found = {(one.name, one.direction): one.instances for one in counts.relations()}
    assert found == {(n, d): k for n, k in (("nsubj", 2), ("obj", 1)) for d in (UP, DOWN)}
    assert {one.name for one in counts.relations(least=2)} == {"nsubj"}
    assert len(counts.accuracies(0, least=2)[0]) == 2
    assert counts.accuracies(0, least=9) == []


def test_batches_add_up_whatever_their_order() -> None:
    torch.manual_seed(0)
    layers = [torch.rand(2, 3, 6, 6) for _ in range(2)]
    together, apart = SyntaxCounts(causal=False), SyntaxCounts(causal=False)
    words = simple([5, 3])
    together.add(PARSES, words, [0, 1], layers)
    for row in (1, 0):
        apart.add(PARSES, words, [row], [weights[[row]] for weights in layers])
    assert together.relations() == apart.relations()
    for layer in (0, 1):
        assert together.accuracies(layer) == apart.accuracies(layer)
        assert len(together.accuracies(layer)) == 3
