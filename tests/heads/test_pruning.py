import itertools
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from headlab.checkpoint import Loaded, read_checkpoint, save_checkpoint
from headlab.errors import HeadlabError
from headlab.head_names import Head
from headlab.heads import pruning
from headlab.heads.gates import gates_without
from headlab.heads.importance import Scores
from headlab.heads.measure import Measurer
from headlab.heads.pruning import (
    Pruning,
    bleu,
    cuts_one_by_one,
    cuts_to_share,
    random_scores,
    within,
)
from headlab.heads.speed import Speeds
from headlab.heads.study import Study
from headlab.transformer import Transformer

SOURCE = torch.tensor([[5, 6, 7, 8, 3], [9, 5, 3, 0, 0]])
TARGET = torch.tensor([[2, 6, 7, 4], [2, 8, 9, 0]])


def by_name(loaded: Loaded, step: int) -> Scores:
    """The first heads go first: encoder.0.0, encoder.0.1, ..."""
    return {one: float(place) for place, one in enumerate(loaded.model.head_names)}


@pytest.fixture
def pairs(learnt_pairs: Any) -> list[tuple[str, str]]:
    return [pair for pair in learnt_pairs if "\n" not in pair[1]]


@pytest.fixture
def loaded(learnt: Loaded, tmp_path: Path) -> Loaded:
    """A deeper model, untrained, with the tokenizers of ``learnt``; a file of it in tmp_path."""
    torch.manual_seed(0)
    sizes = {"encoder_layers": 2, "decoder_layers": 2, "heads": 4}
    model = Transformer(**{**learnt.model.hparams, **sizes, "attention": {"bias": True}}).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("bias"):
                parameter.normal_()
    save_checkpoint(tmp_path / "whole.ckpt", learnt, model)
    return read_checkpoint(tmp_path / "whole.ckpt")


@pytest.fixture
def make(loaded: Loaded, pairs: Sequence[tuple[str, str]], monkeypatch: pytest.MonkeyPatch) -> Any:
    """Makes a ``Pruning`` of a checkpoint, with a study in the same folder each time."""
    monkeypatch.setattr(pruning, "compare_speeds", lambda *_: Speeds(10.0, 20.0, 4.0))

    def make(ranking: Any = by_name, of: Loaded = loaded, **options: Any) -> Pruning:
        sources, references = zip(*pairs[:2], strict=True)
        measurer = Measurer(of, sources, references, max_extra=2)
        study = Study(of.path, "pruning-test", {})
        return Pruning(of, study, measurer, measurer, ranking, **options)

    return make


@pytest.mark.parametrize(
    ("heads", "keep", "steps", "sizes"),
    [
        (48, 0.5, 1, [24]),
        (48, 0.5, 5, [5, 5, 4, 5, 5]),
        (48, 0.6, 1, [19]),  # 28.8 are left: 29
        (5, 0.5, 1, [2]),  # 2.5 are left: 3
        (20, 0.0, 3, [7, 6, 7]),
        (20, 1.0, 3, []),
        (4, 0.5, 9, [1, 1]),
        (48, 0.001, 1, [48]),
    ],
)
def test_how_many_heads_go_for_a_share(heads: int, keep: float, steps: int, sizes: list) -> None:
    assert cuts_to_share(heads, keep, steps) == sizes


def test_how_many_heads_go_one_by_one() -> None:
    assert cuts_one_by_one(5, 2) == [2, 2, 1]
    assert cuts_one_by_one(4, 9) == [4]


@pytest.mark.parametrize("keep", [-0.1, 1.5, 24, float("nan")])
def test_keep_must_be_a_share(keep: float) -> None:
    with pytest.raises(HeadlabError, match=r"--keep .* must be a share of the heads, from 0 to 1"):
        cuts_to_share(48, keep, 1)


def test_steps_must_be_positive() -> None:
    with pytest.raises(HeadlabError, match="--steps 0 must be at least 1"):
        cuts_to_share(48, 0.5, 0)
    with pytest.raises(HeadlabError, match="--step-heads 0 must be at least 1"):
        cuts_one_by_one(48, 0)


def test_random_scores_are_an_order_of_their_own() -> None:
    heads = [Head("cross", layer, head) for layer in range(4) for head in range(4)]
    order = random_scores(heads, 1)
    assert order == random_scores(heads, 1) != random_scores(heads, 2)
    assert sorted(order.values()) == [float(i) for i in range(16)]


def test_each_step_computes_what_the_masked_model_does_down_to_no_head(
    loaded: Loaded, make: Any
) -> None:
    before = {name: value.clone() for name, value in loaded.model.state_dict().items()}
    points = []
    for point, current in make().steps([3, 5, 8, 8]):
        points.append(point)
        expected = loaded.model(SOURCE, TARGET, gates_without(loaded.model, point.cut))
        torch.testing.assert_close(current.model(SOURCE, TARGET), expected, atol=1e-5, rtol=0)
        masked = Measurer(loaded, ["the door"], ["la porte"]).measure(
            gates_without(loaded.model, point.cut)
        )
        cut = Measurer(current, ["the door"], ["la porte"]).measure()
        assert cut.hypotheses == masked.hypotheses
    assert [len(point.left) for point in points] == [24, 21, 16, 8, 0]
    assert [str(one) for one in points[1].cut] == ["encoder.0.0", "encoder.0.1", "encoder.0.2"]
    assert points[2].left[0] == Head("decoder", 0, 0)  # the whole encoder is gone
    sizes = [point.parameters for point in points]
    # Query, key, value rows with their biases, and columns of W_O: head_dim is 8, d_model 32.
    assert [a - b for a, b in itertools.pairwise(sizes)] == [
        n * (4 * 8 * 32 + 3 * 8) for n in (3, 5, 8, 8)
    ]
    for name, value in loaded.model.state_dict().items():
        assert torch.equal(value, before[name])


def test_float64_twice_in_a_row_through_a_file(loaded: Loaded, make: Any, tmp_path: Path) -> None:
    loaded.model.double()
    *_, (_, once) = make(of=loaded, allowed=loaded.model.head_names[2:]).steps([7])
    save_checkpoint(tmp_path / "once.ckpt", once, once.model)
    again = read_checkpoint(tmp_path / "once.ckpt")
    again.model.double()
    assert [str(one) for one in again.model.head_names[:3]] == [
        "encoder.0.0",
        "encoder.0.1",
        "decoder.0.1",
    ]
    again.model.load_state_dict(once.model.state_dict())
    *_, (point, twice) = make(of=again).steps([3])
    assert point.cut == again.model.head_names[:3]
    gone = set(loaded.model.head_names) - set(twice.model.head_names)
    expected = loaded.model(SOURCE, TARGET, gates_without(loaded.model, gone))
    assert len(gone) == 10
    torch.testing.assert_close(twice.model(SOURCE, TARGET), expected, atol=1e-12, rtol=0)


def test_only_allowed_heads_go(loaded: Loaded, make: Any) -> None:
    allowed = [one for one in loaded.model.head_names if one.site == "cross"]
    *_, (point, current) = make(allowed=allowed).steps([3, 5])
    assert point.cut == allowed
    assert current.model.kept["encoder"] == loaded.model.kept["encoder"]


def test_ranks_are_estimated_again_before_each_step_or_once(make: Any, tmp_path: Path) -> None:
    asked = []

    def ranking(loaded: Loaded, step: int) -> Scores:
        """On the smaller model the last heads go first."""
        asked.append((step, len(loaded.model.head_names)))
        sign = 1.0 if step == 1 else -1.0
        return {one: sign * score for one, score in by_name(loaded, step).items()}

    *_, (point, _) = make(ranking).steps([2, 2])
    assert asked == [(1, 24), (2, 22)]
    assert [str(one) for one in point.cut[2:]] == ["cross.1.2", "cross.1.3"]
    asked.clear()
    (tmp_path / "whole.pruning-test" / "measured.jsonl").unlink()
    *_, (point, _) = make(ranking, rank_once=True).steps([2, 2])
    assert asked == [(1, 24)]
    assert [str(one) for one in point.cut] == [f"encoder.0.{i}" for i in range(4)]


def test_an_interrupted_pruning_goes_on(make: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = [point for point, _ in make().steps([6, 6])]

    def never(*_: Any, **__: Any) -> Any:
        raise AssertionError("this was measured before")

    with monkeypatch.context() as patch:
        patch.setattr(Measurer, "measure", never)
        steps = make(never).steps([6, 6])
        assert [next(steps)[0] for _ in range(3)] == whole


def test_a_step_that_was_trained_on_is_kept_as_a_checkpoint(make: Any, loaded: Loaded) -> None:
    trained = []

    def tuning(smaller: Loaded, step: int, out: Path) -> None:
        trained.append((step, len(smaller.model.head_names)))
        with torch.no_grad():
            smaller.model.decoder_norm.bias.add_(float(step))
        save_checkpoint(out, replace(smaller, step=smaller.step + 10), smaller.model)

    first = list(make(tuning=tuning).steps([6, 6]))
    assert trained == [(1, 18), (2, 12)]
    assert [point.training_steps for point, _ in first] == [0, 10, 20]
    moved = first[2][1].model.decoder_norm.bias - loaded.model.decoder_norm.bias
    torch.testing.assert_close(moved, torch.full_like(moved, 3.0))
    again = list(make(tuning=tuning).steps([6, 6]))
    assert len(trained) == 2
    for (point, one), (other_point, other) in zip(first, again, strict=True):
        assert point == other_point
        for name, value in one.model.state_dict().items():
            assert torch.equal(value, other.model.state_dict()[name])


def test_within_compares_with_the_model_as_it_was(make: Any) -> None:
    (point, _), *_ = make().steps([])
    scores = point.chosen.scores
    assert bleu(point.chosen) == scores.bleu

    def after(value: float) -> Any:
        return replace(point, chosen=replace(point.chosen, scores=replace(scores, bleu=value)))

    assert within([after(30.0), after(29.5)], 0.5)
    assert within([after(30.0), after(31.0)], 0.0)
    assert not within([after(30.0), after(29.9), after(29.4)], 0.5)
