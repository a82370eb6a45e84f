import copy
import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from headlab.checkpoint import Loaded
from headlab.decoding import Translator
from headlab.head_names import SITES, Head
from headlab.heads import plans
from headlab.heads.ablation import Ablation, Row, Significance, best_heads, spread
from headlab.heads.gates import gates_without
from headlab.heads.measure import Measurer
from headlab.heads.study import Study
from headlab.heads.surgery import cut_heads
from headlab.transformer import Transformer

Pairs = Sequence[tuple[str, str]]
TESTS = Significance(level=0.05, resamples=50, seed=1)


@pytest.fixture
def pairs(learnt_pairs: Pairs) -> Pairs:
    return [pair for pair in learnt_pairs if "\n" not in pair[1]]


@pytest.fixture
def place(tmp_path: Path) -> Path:
    path = tmp_path / "best.ckpt"
    path.write_bytes(b"weights")
    return path


def ablation(
    loaded: Loaded,
    pairs: Pairs,
    place: Path,
    metrics: Sequence[str] = ("bleu", "chrf", "nll"),
    significance: Significance = TESTS,
) -> Ablation:
    sources, references = [a for a, _ in pairs], [b for _, b in pairs]
    measurer = Measurer(
        loaded, sources, references, translate="bleu" in metrics, likelihood="nll" in metrics
    )
    study = Study(place, "ablation", {"metrics": list(metrics)})
    return Ablation(measurer, study, "test", metrics, significance)


def changes(rows: Sequence[Row], column: str = "nll_change") -> dict[str, float]:
    return {row["configuration"]: row[column] for row in rows}


def with_model(loaded: Loaded, model: Transformer) -> Loaded:
    return dataclasses.replace(loaded, model=model)


def zeroed(model: Transformer, heads: Sequence[Head]) -> Transformer:
    """A copy with the heads' columns of W_O set to zero."""
    model = copy.deepcopy(model)
    for one in heads:
        layer = model.attentions(one.site)[one.layer]
        columns = slice(one.head * layer.head_dim, (one.head + 1) * layer.head_dim)
        with torch.no_grad():
            layer.out_projection.weight[:, columns] = 0.0
    return model


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize(
    "heads",
    [
        [Head("encoder", 1, 2)],
        [Head("decoder", 0, 0), Head("decoder", 0, 1), Head("cross", 1, 3)],
        [Head("cross", 0, i) for i in range(4)],
        [Head(site, layer, i) for site in SITES for layer in range(2) for i in range(4)],
    ],
)
def test_off_is_zeroed_columns_of_the_output_projection(heads: list[Head], bias: bool) -> None:
    torch.manual_seed(0)
    model = Transformer(
        source_vocab_size=20,
        target_vocab_size=20,
        d_model=16,
        heads=4,
        encoder_layers=2,
        decoder_layers=2,
        attention={"bias": bias},
    ).eval()
    if bias:
        for site in SITES:
            for attention in model.attentions(site):
                torch.nn.init.normal_(attention.out_projection.bias)
    source, target = torch.randint(4, 20, (3, 9)), torch.randint(4, 20, (3, 7))
    with torch.inference_mode():
        masked = model(source, target, gates_without(model, heads))
        torch.testing.assert_close(masked, zeroed(model, heads)(source, target), atol=1e-6, rtol=0)
        assert not torch.allclose(masked, model(source, target), atol=1e-3)
        assert torch.equal(model(source, target, gates_without(model, [])), model(source, target))


def test_rows_are_those_of_models_with_zeroed_columns(learnt: Loaded, pairs, place) -> None:
    configurations = plans.each_site(learnt.model.head_names)
    rows = ablation(learnt, pairs, place).run(configurations)
    sources, references = [a for a, _ in pairs], [b for _, b in pairs]
    plain = Measurer(learnt, sources, references).measure()
    assert rows[0]["nll"] == plain.nll  # to the bit
    assert rows[0]["bleu"] == plain.scores.bleu
    assert rows[0]["nll_change"] == rows[0]["bleu_change"] == 0.0
    for one, row in zip(configurations, rows[1:], strict=True):
        other = with_model(learnt, zeroed(learnt.model, one.off))
        found = Measurer(other, sources, references).measure()
        assert row["nll"] == pytest.approx(found.nll, abs=1e-5)
        assert (row["bleu"], row["chrf"]) == (found.scores.bleu, found.scores.chrf)
        assert row["nll_change"] == pytest.approx(found.nll - plain.nll, abs=1e-5)
        assert row["bleu_change"] == pytest.approx(found.scores.bleu - plain.scores.bleu)
        assert row["heads_off"] == 4
        assert row["left"] == [f"{site}.0.0-3" for site in SITES if site != one.name]


def test_a_model_that_reads_nothing_is_significantly_worse(learnt: Loaded, pairs, place) -> None:
    (row,) = ablation(learnt, pairs, place).run(plans.each_site([*learnt.model.head_names[8:]]))[1:]
    assert row["configuration"] == "cross"
    assert row["bleu_change"] < -30
    assert row["nll_change"] > 1
    assert row["bleu_p"] < 0.05
    assert row["bleu_significant"] is True
    assert row["nll_p"] < 0.05
    assert row["nll_significant"] is True


def permuted(model: Transformer, site: str, order: list[int]) -> Transformer:
    """A copy whose head i is the model's head order[i], in the first layer of the site."""
    model = copy.deepcopy(model)
    layer = model.attentions(site)[0]
    dim = layer.head_dim
    columns = torch.cat([torch.arange(i * dim, (i + 1) * dim) for i in order])
    rows = torch.cat([columns + part * layer.heads * dim for part in range(3)])
    with torch.no_grad():
        layer.in_projection.weight.copy_(layer.in_projection.weight[rows])
        layer.out_projection.weight.copy_(layer.out_projection.weight[:, columns])
    return model


def test_permuting_the_heads_permutes_the_table(learnt: Loaded, pairs, place, tmp_path) -> None:
    plan = plans.each_head(learnt.model.head_names)
    order = [2, 0, 3, 1]
    model = permuted(learnt.model, "encoder", order)
    model = permuted(model, "cross", order)
    before = changes(ablation(learnt, pairs, place, ["nll"]).run(plan))
    copied = tmp_path / "permuted.ckpt"
    copied.write_bytes(b"others")
    after = changes(ablation(with_model(learnt, model), pairs, copied, ["nll"]).run(plan))
    assert len(set(before.values())) == len(before)
    for site in ("encoder", "cross"):
        for i, was in enumerate(order):
            assert after[f"{site}.0.{i}"] == pytest.approx(before[f"{site}.0.{was}"], abs=1e-5)
    for i in range(4):
        name = f"decoder.0.{i}"
        assert after[name] == pytest.approx(before[name], abs=1e-5)


class Counter:
    """Counts the calls of a measurer's ``measure``, and can stop it like Ctrl-C."""

    def __init__(self, study: Ablation, monkeypatch: Any, stop_after: int | None = None) -> None:
        self.calls, self.measure, self.stop = 0, study.measurer.measure, stop_after
        monkeypatch.setattr(study.measurer, "measure", self)

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        if self.calls == self.stop:
            raise KeyboardInterrupt
        self.calls += 1
        return self.measure(*arguments, **options)


def test_a_killed_study_goes_on_without_repeating(
    learnt: Loaded, pairs, place, tmp_path, monkeypatch
) -> None:
    plan = plans.each_head(learnt.model.head_names[::2])
    other = tmp_path / "other.ckpt"
    other.write_bytes(b"weights")
    whole = ablation(learnt, pairs, other).run(plan)

    first = ablation(learnt, pairs, place)
    Counter(first, monkeypatch, stop_after=3)
    with pytest.raises(KeyboardInterrupt):
        first.run(plan)
    second = ablation(learnt, pairs, place)
    assert second.known(plan) == 2
    counter = Counter(second, monkeypatch)
    assert second.run(plan) == whole
    assert counter.calls == 7 - 3
    third = ablation(learnt, pairs, place)
    counter = Counter(third, monkeypatch)
    assert third.run(plan) == whole
    assert counter.calls == 0


def test_another_level_or_seed_measures_nothing_again(
    learnt: Loaded, pairs, place, monkeypatch
) -> None:
    plan = plans.each_site(learnt.model.head_names)
    before = ablation(learnt, pairs, place).run(plan)
    other = ablation(learnt, pairs, place, significance=Significance(0.999, 60, 2))
    counter = Counter(other, monkeypatch)
    after = other.run(plan)
    assert counter.calls == 0
    assert [row["nll"] for row in after] == [row["nll"] for row in before]
    assert {row["nll_p"] for row in after} != {row["nll_p"] for row in before}
    again = ablation(learnt, pairs, place).run(plan)
    assert again == before


def test_the_same_heads_are_measured_once(learnt: Loaded, pairs, place, monkeypatch) -> None:
    one = ablation(learnt, pairs, place, ["nll"])
    counter = Counter(one, monkeypatch)
    rows = one.run(plans.random_draws(learnt.model.head_names, [12], draws=3, seed=1))
    assert counter.calls == 2  # the full model, and the empty one
    assert len(rows) == 4
    assert rows[1]["nll"] == rows[3]["nll"]
    assert rows[1]["left"] == []


def test_likelihood_alone_translates_nothing(learnt: Loaded, pairs, place, monkeypatch) -> None:
    monkeypatch.setattr(Translator, "hypotheses", lambda *_, **__: pytest.fail("translated"))
    rows = ablation(learnt, pairs, place, ["nll"]).run(plans.each_site(learnt.model.head_names))
    assert all(row["nll"] > 0 for row in rows)
    assert "bleu" not in rows[0]


def test_bleu_alone_measures_no_likelihood(learnt: Loaded, pairs, place, monkeypatch) -> None:
    monkeypatch.setattr(
        "headlab.heads.measure.sentence_losses", lambda *_, **__: pytest.fail("nll")
    )
    rows = ablation(learnt, pairs, place, ["bleu"]).run(plans.each_site(learnt.model.head_names))
    assert "nll" not in rows[1]
    assert rows[1]["bleu_p"] is not None


def test_pruned_models_keep_their_numbers(learnt: Loaded, pairs, place, tmp_path) -> None:
    gone = Head("cross", 0, 1)
    cut = with_model(learnt, cut_heads(learnt.model, [gone]))
    plan = plans.each_head(cut.model.head_names)
    rows = ablation(cut, pairs, place, ["nll"]).run(plan)
    assert [str(gone) in row["configuration"] for row in rows].count(True) == 0
    assert rows[0]["left"] == ["encoder.0.0-3", "decoder.0.0-3", "cross.0.0", "cross.0.2-3"]
    # What one more head costs is what both cost together in the whole model.
    other = tmp_path / "whole.ckpt"
    other.write_bytes(b"whole")
    both = [plans.together([gone, Head("cross", 0, i)])[0] for i in (0, 2, 3)]
    together = ablation(learnt, pairs, other, ["nll"]).run(both)
    for i, row in zip((0, 2, 3), together[1:], strict=True):
        found = next(one for one in rows if one["configuration"] == f"cross.0.{i}")
        assert found["nll"] == pytest.approx(row["nll"], abs=1e-5)


def test_all_but_one_of_a_layer_with_one_head_is_the_full_model(
    learnt: Loaded, pairs, place
) -> None:
    cut = with_model(learnt, cut_heads(learnt.model, [Head("cross", 0, i) for i in (0, 1, 3)]))
    plan = plans.all_but_one(cut.model.head_names, cut.model.head_names)
    rows = ablation(cut, pairs, place).run(plan)
    only = next(row for row in rows if row["configuration"] == "only-cross.0.2")
    assert only["nll"] == rows[0]["nll"]
    assert only["nll_p"] == only["bleu_p"] == 1.0
    assert not only["bleu_significant"]


def test_progress_rises_to_the_end(learnt: Loaded, pairs, place) -> None:
    one, seen = ablation(learnt, pairs, place), []
    plan = plans.each_site(learnt.model.head_names)
    one.run(plan, seen.append)
    assert seen == sorted(seen)
    assert seen[0] == 0
    assert seen[-1] == one.steps(plan) == 4 * len(pairs)


def row(site: str, layer: int, head: int, **values: float | None) -> Row:
    name = f"only-{site}.{layer}.{head}"
    return {"configuration": name, "site": site, "layer": layer, "head": head, **values}


def test_the_best_head_of_each_layer() -> None:
    rows = [
        {"configuration": "full", "bleu": 99.0, "nll": 0.1},
        row("encoder", 0, 0, bleu=20.0, nll=2.0),
        row("encoder", 0, 1, bleu=30.0, nll=3.0),
        row("encoder", 0, 2, bleu=30.0, nll=1.0),
        row("cross", 1, 0, bleu=5.0, nll=None),
        row("cross", 1, 3, bleu=4.0, nll=9.0),
    ]
    assert [one["head"] for one in best_heads(rows, "bleu")] == [1, 0]  # of equals the first
    assert [one["head"] for one in best_heads(rows, "nll")] == [2, 3]


def test_mean_and_spread_of_draws() -> None:
    values = {1: (1.0, 3.0), 2: (5.0,)}
    rows: list[Row] = [{"configuration": "full", "bleu": 10.0}]
    for k, of in values.items():
        rows += [
            {
                "configuration": f"k{k}",
                "k": k,
                "heads_left": 9 - k,
                "bleu": v,
                "bleu_change": v - 10,
            }
            for v in of
        ]
    one, two = spread(rows, ["bleu"])
    assert (one["k"], one["draws"], one["heads_left"]) == (1, 2, 8)
    assert (one["bleu_mean"], one["bleu_change_mean"]) == (2.0, -8.0)
    assert one["bleu_change_sd"] == pytest.approx(2**0.5)
    assert (one["bleu_change_min"], one["bleu_change_max"]) == (-9.0, -7.0)
    assert two["bleu_change_sd"] is None
    assert two["bleu_change_mean"] == -5.0
