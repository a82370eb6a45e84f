import math
from types import SimpleNamespace

import pytest
import torch

from headlab.data.tokenizer import BOS, EOS, PAD, UNK
from headlab.decoding import greedy_search
from headlab.decoding.hypothesis import token_limits
from headlab.errors import HeadlabError
from headlab.transformer import Transformer


def uncached(model: Transformer, source: list[int], limit: int) -> tuple[list[int], float, bool]:
    """Greedy search the slow way: one sentence, the whole prefix at every step."""
    ids: list[int] = []
    total = 0.0
    while len(ids) < limit:
        logits = model(torch.tensor([[*source, EOS]]), torch.tensor([[BOS, *ids]]))[0, -1]
        logits[[PAD, UNK, BOS]] = -math.inf
        log_p = logits.log_softmax(dim=-1)
        token = int(log_p.argmax())
        total += float(log_p[token])
        ids.append(token)
        if token == EOS:
            return ids[:-1], total / len(ids), True
    return ids, total / len(ids), False


def test_equals_uncached_search(tiny_model: Transformer, mixed_sources: list[list[int]]) -> None:
    with torch.no_grad():
        tiny_model.output.weight[EOS] *= 2  # so that some sentences end, at different steps
    found = greedy_search(tiny_model, mixed_sources, max_ratio=1, max_extra=5)
    assert {hypothesis.finished for hypothesis in found} == {True, False}
    for source, hypothesis in zip(mixed_sources, found, strict=True):
        with torch.inference_mode():
            ids, score, finished = uncached(tiny_model, source, len(source) + 5)
        assert (hypothesis.ids, hypothesis.finished) == (ids, finished)
        assert hypothesis.score == pytest.approx(score, abs=1e-9)


def test_finished_rows_leave_the_batch(hand_made: SimpleNamespace) -> None:
    """Seven rows end at once; the eighth goes on for 20 steps, alone."""

    def table(source: tuple[int, ...], prefix: tuple[int, ...]) -> dict[int, float]:
        ends = len(source) == 1 or len(prefix) == 20
        return {EOS: -0.1, 4: -3.0} if ends else {EOS: -3.0, 4: -0.1}

    model = hand_made.TableModel(table)
    found = greedy_search(model, [[5]] * 7 + [[5, 5]], max_ratio=0, max_extra=30)
    assert [hypothesis.ids for hypothesis in found] == [[]] * 7 + [[4] * 20]
    assert model.rows == 8 + 20


def test_equal_logits_go_to_the_smaller_id(hand_made: SimpleNamespace) -> None:
    def table(source: tuple[int, ...], prefix: tuple[int, ...]) -> dict[int, float]:
        return {EOS: -5.0, 4: -7.0, 5: -1.0, 6: -1.0} if not prefix else {EOS: -1.0, 4: -1.0}

    model = hand_made.TableModel(table)
    assert [h.ids for h in greedy_search(model, [[4], [5, 5]])] == [[5], [5]]


def test_control_ids_are_never_emitted(hand_made: SimpleNamespace) -> None:
    def table(source: tuple[int, ...], prefix: tuple[int, ...]) -> dict[int, float]:
        return {PAD: 9.0, UNK: 9.0, BOS: 9.0, EOS: 1.0 if prefix else -1.0, 4: 0.0}

    (hypothesis,) = greedy_search(hand_made.TableModel(table), [[4]])
    assert hypothesis.ids == [4]
    assert hypothesis.finished


def never_ends(source: tuple[int, ...], prefix: tuple[int, ...]) -> dict[int, float]:
    return {EOS: -1e9, 4: -0.5, 5: -0.9}


def test_without_eos_the_result_is_cut_and_says_so(hand_made: SimpleNamespace) -> None:
    model = hand_made.TableModel(never_ends)
    found = greedy_search(model, [[4], [4] * 6], max_ratio=2, max_extra=3)
    assert [len(hypothesis.ids) for hypothesis in found] == [5, 15]
    assert not any(hypothesis.finished for hypothesis in found)
    assert all(math.isfinite(hypothesis.score) for hypothesis in found)


def test_one_token_at_most(hand_made: SimpleNamespace) -> None:
    (cut,) = greedy_search(hand_made.TableModel(never_ends, max_length=1), [[4]])
    assert (cut.ids, cut.finished) == ([4], False)
    ends = hand_made.TableModel(lambda source, prefix: {EOS: -0.1, 4: -3.0})
    (whole,) = greedy_search(ends, [[4]], max_ratio=0, max_extra=0)
    assert (whole.ids, whole.finished) == ([], True)


def test_source_and_target_at_the_position_limit(tiny_model: Transformer) -> None:
    with torch.no_grad():
        tiny_model.output.weight[EOS].zero_()
        tiny_model.output.weight[4] = 0.1  # something is likelier than EOS at every step
        tiny_model.output.weight[5] = -0.1
    (hypothesis,) = greedy_search(tiny_model, [[4] * 79], max_ratio=10)
    assert len(hypothesis.ids) == 80
    assert not hypothesis.finished
    with pytest.raises(HeadlabError, match=r"81.*80"):
        greedy_search(tiny_model, [[4] * 80])


def test_limits_look_at_one_sentence_only(hand_made: SimpleNamespace) -> None:
    model = hand_made.TableModel(never_ends, max_length=30)
    assert token_limits(model, [[4] * n for n in (0, 1, 5, 50)], 1.5, 2) == [2, 3, 9, 30]
    assert token_limits(model, [[]], 0, 0) == [1]
    for ratio, extra in ((-1, 5), (math.nan, 5), (1, math.inf)):
        with pytest.raises(HeadlabError, match=r"decoding\.max_"):
            token_limits(model, [[4]], ratio, extra)


def test_a_model_of_nans_gives_a_result(tiny_model: Transformer) -> None:
    with torch.no_grad():
        tiny_model.output.weight.fill_(math.nan)
    (hypothesis,) = greedy_search(tiny_model, [[4, 5]])
    assert hypothesis.ids == []
