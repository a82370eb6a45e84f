"""Batches: every pair once, within the budget, in an order that can be resumed."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from headlab.data.batches import (
    TARGET_COST,
    Batch,
    EncodedPairs,
    EvaluationBatches,
    TrainingBatches,
    collate,
    plan_batches,
)
from headlab.data.tokenizer import Tokenizers, train_tokenizer
from headlab.errors import HeadlabError

LENGTHS = st.lists(st.tuples(st.integers(1, 30), st.integers(1, 30)), min_size=1, max_size=80)


def pairs_of(lengths: list[tuple[int, int]]) -> EncodedPairs:
    """Pairs whose pieces tell their index: lengths are pieces and one symbol more."""
    sources = [[10 + i] * (a - 1) for i, (a, _) in enumerate(lengths)]
    targets = [[10 + i] * (b - 1) for i, (_, b) in enumerate(lengths)]
    return EncodedPairs(sources, targets)


@settings(max_examples=150, deadline=None)
@given(lengths=LENGTHS, budget=st.integers(1, 200), seed=st.one_of(st.none(), st.integers(0, 9)))
def test_every_index_once_and_the_budget_kept(lengths, budget, seed) -> None:
    source, target = np.array(lengths).T
    generator = None if seed is None else np.random.default_rng(seed)
    batches = plan_batches(source, target, budget, generator)
    assert sorted(i for batch in batches for i in batch) == list(range(len(lengths)))
    for batch in batches:
        longest = max(max(lengths[i]) for i in batch)
        assert len(batch) * longest <= budget or len(batch) == 1


@settings(max_examples=100, deadline=None)
@given(lengths=LENGTHS, budget=st.integers(20, 200), ranks=st.integers(1, 9))
def test_ranks_walk_together_through_the_batches_of_one(lengths, budget, ranks) -> None:
    pairs = pairs_of(lengths)
    alone = TrainingBatches(pairs, budget, seed=3).plan(5)
    plans = [TrainingBatches(pairs, budget, 3, rank, ranks).plan(5) for rank in range(ranks)]
    steps = list(zip(*plans, strict=True))
    assert [batch for step in steps for batch in step if batch] == alone
    assert len(steps) == -(-len(alone) // ranks)
    evaluated = [EvaluationBatches(pairs, budget, rank, ranks) for rank in range(ranks)]
    assert len({len(one) for one in evaluated}) == 1
    seen = [i for one in evaluated for batch in one for i in batch.indices]
    assert sorted(seen) == list(range(len(lengths)))


def test_a_batch_without_sentences_counts_nowhere() -> None:
    (batch,) = list(EvaluationBatches(pairs_of([(3, 4)]), 50, rank=1, ranks=2))
    assert (batch.indices, batch.source_tokens, batch.target_tokens) == ((), 0, 0)
    assert batch.source.tolist() == batch.target_input.tolist() == [[0]]
    assert [part.source.shape for part in collate([[], []], [[], []]).split(2)] == [(1, 1)] * 2
    padding = torch.zeros((2, 3), dtype=torch.long)
    empty = Batch(padding, padding, padding, (), 0, 0)
    assert [part.source.shape for part in empty.split(2)] == [(2, 1)]


def test_other_processes_go_on_at_the_end_of_an_epoch_only() -> None:
    pairs = pairs_of([(5, 5)] * 20)  # four batches

    def shared(rank: int, ranks: int) -> TrainingBatches:
        return TrainingBatches(pairs, 25, 1, rank, ranks)

    two = shared(0, 2)
    first = iter(two)
    next(first)
    for ranks in (1, 3):
        with pytest.raises(HeadlabError, match=r"trainer\.devices=2"):
            shared(0, ranks).load_state_dict(two.state_dict())
    next(first)
    for ranks in (1, 3):
        again = shared(0, ranks)
        again.load_state_dict(two.state_dict())
        assert len(list(again)) == len(again.plan(1))
        assert again.epoch == 1
    one = shared(0, 1)
    one.load_state_dict({"epoch": 0, "position": 1})  # of a checkpoint that does not say
    assert len(list(one)) == 3


@settings(max_examples=60, deadline=None)
@given(lengths=LENGTHS, budget=st.integers(20, 100), cut=st.integers(0, 200))
def test_a_resumed_run_sees_exactly_the_remaining_batches(lengths, budget, cut) -> None:
    pairs = pairs_of(lengths)
    whole = TrainingBatches(pairs, budget, seed=1)
    expected = [batch.indices for _ in range(3) for batch in whole]
    cut = cut % len(expected)
    first = TrainingBatches(pairs, budget, seed=1)
    seen: list[tuple[int, ...]] = []
    state = first.state_dict()
    while len(seen) < cut:
        for batch in first:
            seen.append(batch.indices)
            state = first.state_dict()
            if len(seen) == cut:
                break
    second = TrainingBatches(pairs, budget, seed=1)
    second.load_state_dict(state)
    while len(seen) < len(expected):
        seen += [batch.indices for batch in second]
    assert seen == expected


def test_whoever_counts_batches_gets_every_epoch_whole() -> None:
    """Lightning takes len(loader) batches and never asks for one more."""
    batches = TrainingBatches(pairs_of([(5, 5)] * 20), 25, seed=0)
    for epoch in range(3):
        iterator = iter(batches)
        indices = [i for _ in range(len(batches)) for i in next(iterator).indices]
        assert sorted(indices) == list(range(20))
        assert batches.epoch == epoch
    orders = [list(batches.plan(e)) for e in range(3)]
    assert orders[0] != orders[1] != orders[2]
    assert batches.plan(1) == TrainingBatches(pairs_of([(5, 5)] * 20), 25, seed=0).plan(1)
    assert batches.plan(1) != TrainingBatches(pairs_of([(5, 5)] * 20), 25, seed=1).plan(1)


def test_collate() -> None:
    batch = collate([[7, 8], [9]], [[5], [5, 6, 7]], [3, 1])
    assert batch.source.tolist() == [[7, 8, 3], [9, 3, 0]]
    assert batch.target_input.tolist() == [[2, 5, 0, 0], [2, 5, 6, 7]]
    assert batch.target_output.tolist() == [[5, 3, 0, 0], [5, 6, 7, 3]]
    assert (batch.source_tokens, batch.target_tokens, batch.indices) == (5, 6, (3, 1))
    assert batch.padding_share == pytest.approx(1 - 11 / 14)
    assert batch.source.dtype == torch.int64
    moved = batch.to(torch.device("cpu"))
    assert torch.equal(moved.source, batch.source)
    assert moved.indices == batch.indices


def test_evaluation_batches_cover_the_split_on_any_number_of_processes() -> None:
    pairs = pairs_of([(i % 9 + 1, i % 5 + 1) for i in range(37)])
    for ranks in (1, 2, 3, 7):
        shares = [EvaluationBatches(pairs, 30, rank, ranks) for rank in range(ranks)]
        seen = [i for share in shares for batch in share for i in batch.indices]
        assert sorted(seen) == list(range(37))
        assert len(set(map(len, shares))) == 1
        assert len(shares[0]) > 0


def test_sampled_segmentations_are_new_each_epoch_and_come_back_on_resume() -> None:
    texts = ["the cat sat on the mat", "a dog ran to the house", "the cat ran"] * 4
    options = {"vocab_size": 300, "kind": "unigram", "character_coverage": 1.0, "lowercase": False}
    tokenizer = train_tokenizer(texts, **options)
    rows = tokenizer.encode_all(texts)

    def batches() -> TrainingBatches:
        return TrainingBatches(
            EncodedPairs(rows, rows),
            60,
            seed=1,
            texts=(texts, texts),
            tokenizers=Tokenizers(tokenizer, tokenizer),
            sampling=0.2,
            max_length=25,
        )

    def flat(epoch: list) -> list:
        return [batch.source.tolist() + batch.target_input.tolist() for batch in epoch]

    one = batches()
    first, second = list(one), list(one)
    assert flat(first) != flat(second)
    for batch in first:
        for row, index in zip(batch.source.tolist(), batch.indices, strict=True):
            assert tokenizer.decode(row) == texts[index]
        assert batch.source.size(1) <= 25
    assert any(
        batch.source.tolist() != one.pairs.batch(batch.indices).source.tolist() for batch in first
    )
    two = batches()
    two.load_state_dict({"epoch": 1, "position": 2})
    assert flat(list(two)) == flat(second)[2:]


@settings(max_examples=100, deadline=None)
@given(lengths=LENGTHS, parts=st.integers(1, 6))
def test_a_batch_falls_into_parts_of_like_cost(lengths, parts) -> None:
    rows = pairs_of(lengths)
    whole = rows.batch(range(len(lengths)))
    found = whole.split(parts)
    assert 1 <= len(found) <= min(parts, len(lengths))
    assert [i for part in found for i in part.indices] == list(range(len(lengths)))
    costs = []
    for part in found:
        expected = rows.batch(part.indices)
        for name in ("source", "target_input", "target_output"):
            assert torch.equal(getattr(part, name), getattr(expected, name))
        assert part.source_tokens == expected.source_tokens
        assert part.target_tokens == expected.target_tokens
        costs.append(part.source_tokens + TARGET_COST * part.target_tokens)
    share, widest = sum(costs) / parts, max(a + TARGET_COST * b for a, b in lengths)
    assert all(abs(cost - share) <= widest for cost in costs) or len(found) < parts
