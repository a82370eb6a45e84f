import random
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from headlab.data.tokenizer import EOS
from headlab.decoding import search, search_n_best
from headlab.decoding.search import plan_batches
from headlab.errors import HeadlabError
from headlab.transformer import Transformer


@pytest.mark.parametrize("beam", [1, 4])
@pytest.mark.parametrize("alpha", [0.0, 1.0])
def test_neighbours_change_nothing(
    tiny_model: Transformer, mixed_sources: list[list[int]], beam: int, alpha: float
) -> None:
    """Batches of 1, 3, 8 and all, in any order, lengths 2 and 60 mixed: text and scores."""
    with torch.no_grad():
        tiny_model.output.weight[EOS] *= 2
    options = {"beam": beam, "length_penalty": alpha, "max_extra": 6}
    alone = [search(tiny_model, [source], **options)[0] for source in mixed_sources]
    assert len({len(h.ids) for h in alone}) > 3
    order = list(range(len(mixed_sources)))
    for size in (1, 3, 8, 10):
        random.Random(size).shuffle(order)
        for start in range(0, len(order), size):
            part = order[start : start + size]
            found = search(
                tiny_model, [mixed_sources[i] for i in part], batch_tokens=100_000, **options
            )
            for i, hypothesis in zip(part, found, strict=True):
                assert (hypothesis.ids, hypothesis.finished) == (alone[i].ids, alone[i].finished)
                assert hypothesis.score == pytest.approx(alone[i].score, abs=1e-9)


@pytest.mark.parametrize("beam", [1, 3])
@pytest.mark.parametrize("batch_tokens", [1, 20, 200, 100_000])
def test_batching_changes_nothing_and_keeps_the_order(
    hand_made: SimpleNamespace, beam: int, batch_tokens: int
) -> None:
    model = hand_made.TableModel(hand_made.random_table)
    rng = random.Random(0)
    sources = [[rng.choice((4, 5, 6)) for _ in range(rng.randrange(9))] for _ in range(30)]
    done: list[int] = []
    found = search(model, sources, beam=beam, batch_tokens=batch_tokens, progress=done.append)
    assert found == [search(model, [source], beam=beam)[0] for source in sources]
    assert done == sorted(done)
    assert done[-1] == 30


def test_no_sources_no_hypotheses(tiny_model: Transformer) -> None:
    assert search(tiny_model, []) == []
    assert search_n_best(tiny_model, []) == []


def test_training_mode_is_left_and_restored(
    tiny_model: Transformer, mixed_sources: list[list[int]]
) -> None:
    quiet = search(tiny_model, mixed_sources)
    tiny_model.train()  # dropout on
    assert search(tiny_model, mixed_sources) == quiet
    assert tiny_model.training


def test_single_precision_gives_numbers(
    tiny_model: Transformer, mixed_sources: list[list[int]]
) -> None:
    for dtype in (torch.float32, torch.bfloat16):
        for hypothesis in search(tiny_model.to(dtype), mixed_sources, beam=2):
            assert hypothesis.score < 0


@given(
    st.lists(st.integers(1, 40), max_size=60),
    st.integers(1, 200),
    st.integers(1, 5),
    st.integers(1, 3),
    st.none() | st.integers(1, 9),
)
def test_batches_hold_every_index_once_within_the_budget(
    lengths: list[int], budget: int, beam: int, parts: int, rows: int | None
) -> None:
    batches = list(plan_batches(lengths, budget, beam, parts, rows))
    assert sorted(i for batch in batches for i in batch) == list(range(len(lengths)))
    for batch in batches:
        size = len(batch) * max(lengths[i] for i in batch) * beam * parts
        assert size <= budget or len(batch) == 1
        assert rows is None or len(batch) <= rows


@pytest.mark.parametrize(
    ("count", "expected"), [(10, [10]), (40, [20, 20]), (100, [30, 30, 20, 20])]
)
def test_what_is_left_is_shared_by_all_threads(count: int, expected: list[int]) -> None:
    """Twice thirty rows of ten tokens in the budget; fewer than sixteen are not worth a batch."""
    assert [len(batch) for batch in plan_batches([10] * count, 600, parts=2)] == expected


@pytest.mark.parametrize("beam", [1, 4])
def test_threads_translate_as_one_does(
    tiny_model: Transformer, mixed_sources: list[list[int]], beam: int
) -> None:
    sources = mixed_sources * 8
    before, found = torch.get_num_threads(), []
    done: list[int] = []
    try:
        for threads in (1, 2, 4):
            torch.set_num_threads(threads)
            options = {"beam": beam, "max_extra": 6, "batch_tokens": 300}
            found.append(search(tiny_model, sources, progress=done.append, **options))
            assert done == sorted(done)
            assert done.pop() == len(sources)
            done.clear()
    finally:
        torch.set_num_threads(before)
    for other in found[1:]:
        for one, expected in zip(other, found[0], strict=True):
            assert (one.ids, one.finished) == (expected.ids, expected.finished)
            assert one.score == pytest.approx(expected.score, abs=1e-9)


def test_the_encoders_output_is_found_again(
    tiny_model: Transformer, mixed_sources: list[list[int]]
) -> None:
    memory: dict = {}
    first = search(tiny_model, mixed_sources, memory=memory, batch_tokens=200)
    kept = dict(memory)
    assert sorted(i for batch in memory for i in batch) == list(range(len(mixed_sources)))
    assert search(tiny_model, mixed_sources, memory=memory, batch_tokens=200) == first
    assert all(memory[batch] is encoded for batch, encoded in kept.items())


def test_settings_out_of_range(tiny_model: Transformer) -> None:
    for settings in ({"beam": 0}, {"batch_tokens": 0}):
        with pytest.raises(HeadlabError, match="decoding"):
            search(tiny_model, [[4]], **settings)
