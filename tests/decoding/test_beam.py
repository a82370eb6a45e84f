import math
from types import SimpleNamespace

import pytest
import torch

from headlab.data.tokenizer import EOS
from headlab.decoding import beam_search, greedy_search
from headlab.decoding.beam import top_tokens
from headlab.errors import HeadlabError
from headlab.transformer import Transformer

ALPHAS = (0.0, 0.6, 2.0, -1.0)
SOURCES = [[4], [5, 6], [6, 6, 6], [4, 5, 4, 5]]


@pytest.mark.parametrize("alpha", ALPHAS)
def test_wide_enough_a_beam_is_brute_force(hand_made: SimpleNamespace, alpha: float) -> None:
    model = hand_made.TableModel(hand_made.random_table)
    found = beam_search(
        model, SOURCES, beam=400, n_best=5, length_penalty=alpha, max_ratio=0, max_extra=5
    )
    for source, hypotheses in zip(SOURCES, found, strict=True):
        expected = hand_made.brute_force(hand_made.random_table, source, 5, alpha)[:5]
        assert [h.ids for h in hypotheses] == [h.ids for h in expected]
        assert [h.score for h in hypotheses] == pytest.approx([h.score for h in expected])
        assert all(h.finished for h in hypotheses)


@pytest.mark.parametrize("alpha", ALPHAS)
@pytest.mark.parametrize("beam", [1, 2, 5, 40])
def test_first_of_one_is_first_of_many(hand_made: SimpleNamespace, alpha: float, beam: int) -> None:
    sources = [[a, b, c] for a in (4, 5, 6) for b in (4, 5) for c in (4, 6)]
    model = hand_made.TableModel(hand_made.random_table)
    one = beam_search(model, sources, beam=beam, n_best=1, length_penalty=alpha)
    early = model.steps
    many = beam_search(model, sources, beam=beam, n_best=min(5, beam), length_penalty=alpha)
    assert [h[0] for h in one] == [h[0] for h in many]
    assert early <= model.steps - early
    for hypotheses in many:
        scores = [h.score for h in hypotheses if h.finished]
        assert scores == sorted(scores, reverse=True)
        assert len({tuple(h.ids) for h in hypotheses}) == len(hypotheses)


def chain(source: tuple[int, ...], prefix: tuple[int, ...]) -> dict[int, float]:
    """Ends at once with p = 0.6, or after five near-certain words that begin with p = 0.4."""
    log = math.log
    if not prefix:
        return {EOS: log(0.6), 4: log(0.4)}
    if len(prefix) < 5:
        return {EOS: log(0.01), 4: log(0.99)}
    return {EOS: log(0.99), 4: log(0.01)}


@pytest.mark.parametrize(("alpha", "words"), [(0.0, 0), (0.3, 0), (1.0, 5), (2.0, 5), (-1.0, 0)])
def test_does_not_stop_at_the_first_end(
    hand_made: SimpleNamespace, alpha: float, words: int
) -> None:
    """Known by hand: log .6 = -.51 at length 1 against log .4 + 5 log .99 = -.97 at length 6."""
    model = hand_made.TableModel(chain)
    ((best,),) = beam_search(model, [[4]], beam=2, length_penalty=alpha, max_extra=8)
    assert best.ids == [4] * words
    expected = math.log(0.6) if words == 0 else (math.log(0.4) + 5 * math.log(0.99)) / 6**alpha
    assert best.score == pytest.approx(expected)


def test_stops_as_soon_as_nothing_can_win(hand_made: SimpleNamespace) -> None:
    model = hand_made.TableModel(chain)
    beam_search(model, [[4]], beam=2, length_penalty=0.0, max_extra=8)
    assert model.steps == 1


@pytest.mark.parametrize("alpha", ALPHAS)
def test_one_beam_is_greedy(
    hand_made: SimpleNamespace,
    tiny_model: Transformer,
    mixed_sources: list[list[int]],
    alpha: float,
) -> None:
    with torch.no_grad():
        tiny_model.output.weight[EOS] *= 2
    for model, sources in (
        (hand_made.TableModel(hand_made.random_table), SOURCES),
        (tiny_model, mixed_sources),
    ):
        greedy = greedy_search(model, sources, length_penalty=alpha)
        beam = beam_search(model, sources, beam=1, length_penalty=alpha)
        assert [(h.ids, h.finished) for (h,) in beam] == [(h.ids, h.finished) for h in greedy]
        assert [h.score for (h,) in beam] == pytest.approx([h.score for h in greedy])


def test_scores_are_the_models_own(tiny_model: Transformer, mixed_sources: list[list[int]]) -> None:
    """The caches follow every change of place: teacher forcing gives the same sums."""
    with torch.no_grad():
        tiny_model.output.weight[EOS] *= 2
    found = beam_search(tiny_model, mixed_sources, beam=4, n_best=3, length_penalty=1.0)
    with torch.inference_mode():
        for source, hypotheses in zip(mixed_sources, found, strict=True):
            for h in hypotheses:
                ids = [*h.ids, EOS] if h.finished else h.ids
                target = torch.tensor([[2, *ids[:-1]]])
                logits = tiny_model(torch.tensor([[*source, EOS]]), target)[0]
                logits[:, :EOS] = -math.inf
                log_p = logits.log_softmax(dim=-1)[range(len(ids)), ids]
                assert h.score == pytest.approx(float(log_p.sum()) / len(ids), abs=1e-9)


def test_without_eos_the_result_is_cut_and_says_so(hand_made: SimpleNamespace) -> None:
    model = hand_made.TableModel(lambda source, prefix: {EOS: -1e9, 4: -0.9, 5: -1.1, 6: -1.4})
    found = beam_search(model, [[4], [4] * 6], beam=3, n_best=3, max_ratio=2, max_extra=3)
    for hypotheses, limit in zip(found, (5, 15), strict=True):
        assert {len(h.ids) for h in hypotheses} == {limit}
        assert not any(h.finished for h in hypotheses)
        assert hypotheses[0].ids == [4] * limit


def test_finished_ranks_before_cut(hand_made: SimpleNamespace) -> None:
    model = hand_made.TableModel(lambda source, prefix: {EOS: -2.0, 4: -0.1})
    ((first, second),) = beam_search(
        model, [[4]], beam=2, n_best=2, length_penalty=1.0, max_ratio=0, max_extra=4
    )
    assert first.finished
    assert not second.finished
    assert second.score > first.score


def test_one_token_at_most(hand_made: SimpleNamespace) -> None:
    model = hand_made.TableModel(lambda source, prefix: {EOS: -9.0, 4: -0.1}, max_length=1)
    ((best, cut),) = beam_search(model, [[4]], beam=3, n_best=2)
    assert (best.ids, best.finished) == ([], True)
    assert (cut.ids, cut.finished) == ([4], False)


def test_ties_are_broken_by_id_every_time(hand_made: SimpleNamespace) -> None:
    model = hand_made.TableModel(
        lambda source, prefix: (
            {EOS: -1.0, 4: -1.0, 5: -1.0, 6: -1.0} if len(prefix) < 3 else {EOS: 0}
        )
    )
    found = beam_search(model, [[4]] * 5 + [[5, 5]], beam=3, n_best=3, length_penalty=0.0)
    assert all(hypotheses == found[0] for hypotheses in found)
    assert [h.ids for h in found[0]] == [[], [4], [4, 4]]


def test_top_tokens_equals_a_stable_sort() -> None:
    generator = torch.Generator().manual_seed(0)
    for k in (1, 2, 5, 30):
        scores = torch.randint(0, 6, (50, 30), generator=generator).double()
        scores[scores == 5] = -math.inf
        values, indices = top_tokens(scores, k)
        expected = scores.sort(dim=-1, descending=True, stable=True)
        assert torch.equal(values, expected.values[:, :k])
        assert torch.equal(indices, expected.indices[:, :k])


def test_a_model_of_nans_gives_a_result(tiny_model: Transformer) -> None:
    with torch.no_grad():
        tiny_model.output.weight.fill_(math.nan)
    ((hypothesis,),) = beam_search(tiny_model, [[4, 5]], beam=3)
    assert (hypothesis.ids, hypothesis.finished) == ([], False)


@pytest.mark.parametrize(
    "settings",
    [
        {"beam": 0},
        {"beam": 2, "n_best": 3},
        {"beam": 2, "n_best": 0},
        {"length_penalty": math.nan},
        {"length_penalty": 11.0},
    ],
)
def test_settings_out_of_range(hand_made: SimpleNamespace, settings: dict[str, float]) -> None:
    with pytest.raises(HeadlabError, match=r"must lie between|must be at least"):
        beam_search(hand_made.TableModel(hand_made.random_table), [[4]], **settings)
