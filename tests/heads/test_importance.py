import math

import pytest
import torch
import torch.nn.functional as F

from headlab.errors import HeadlabError
from headlab.head_names import SITES, Head
from headlab.heads.importance import (
    Correlation,
    ascending,
    gradient_scores,
    grids,
    head_products,
    normalized_by_layer,
    spearman,
    weight_scores,
)
from headlab.heads.statistics import study_batches
from headlab.heads.surgery import cut_heads
from headlab.transformer import Transformer

# Source and target pieces of very different lengths, so that every batch is padded.
PAIRS = [
    ([5, 6, 7, 8, 9, 10], [6, 7]),
    ([9], [5, 6, 7, 8, 11]),
    ([10, 11, 5], [7, 7, 7]),
    ([4, 4], [11, 10, 9, 8, 7, 6]),
    ([7, 8, 9, 5, 6], []),
]
VARIANTS = [{}, {"attention": {"kv_heads": 2, "bias": True}}, {"norm": "post"}]


def build(**options: object) -> Transformer:
    torch.manual_seed(0)
    model = Transformer(
        source_vocab_size=12,
        target_vocab_size=12,
        d_model=16,
        heads=4,
        encoder_layers=2,
        decoder_layers=3,
        feed_forward=16,
        position={"kind": "sinusoidal", "max_length": 8},
        **options,
    )
    return model.double()


def pruned(**options: object) -> Transformer:
    gone = [Head("cross", 1, i) for i in range(4)] + [Head("encoder", 0, 1), Head("decoder", 2, 0)]
    return cut_heads(build(**options), gone)


def summed_loss(model: Transformer, batch, gates=None) -> torch.Tensor:
    logits = model(batch.source, batch.target_input, gates)
    return F.cross_entropy(
        logits.flatten(0, 1), batch.target_output.flatten(), ignore_index=0, reduction="sum"
    )


@pytest.mark.parametrize("make", [build, pruned])
@pytest.mark.parametrize("options", VARIANTS)
def test_summed_over_tokens_without_absolute_value_it_is_the_gradient_of_the_gate(
    make, options
) -> None:
    model = make(**options).eval()
    gates = {
        site: torch.ones(len(model.kept[site]), 4, dtype=torch.float64, requires_grad=True)
        for site in SITES
    }
    for batch in study_batches(model, PAIRS, 20):
        expected = torch.autograd.grad(
            summed_loss(model, batch, gates), list(gates.values()), allow_unused=True
        )
        found = head_products(model, batch)
        for site, gradient in zip(SITES, expected, strict=True):
            for layer, kept in enumerate(model.kept[site]):
                if kept:
                    sums = found[site, layer].sum(dim=(0, 1))
                    torch.testing.assert_close(sums, gradient[layer, kept], rtol=0, atol=1e-12)
    assert ("cross", 1) not in found or make is build
    assert all(p.grad is None for p in model.parameters())


def test_scores_are_means_over_real_positions_of_single_sentences() -> None:
    """The oracle takes the sentences one by one, without padding, through autograd on gates."""
    model = build().eval()
    sums = dict.fromkeys(model.head_names, 0.0)
    positions = dict.fromkeys(SITES, 0)
    for source, target in PAIRS:
        (batch,) = study_batches(model, [(source, target)], 100)
        gates = {
            site: torch.ones(len(model.kept[site]), 4, dtype=torch.float64, requires_grad=True)
            for site in SITES
        }
        products = head_products(model, batch)
        summed_loss(model, batch, gates).backward()
        for site in SITES:
            positions[site] += len(source) + 1 if site == "encoder" else len(target) + 1
        for one in model.head_names:
            values = products[one.site, one.layer][0, :, one.head]
            gradient = gates[one.site].grad[one.layer, one.head]
            assert float(values.sum()) == pytest.approx(float(gradient), abs=1e-12)
            sums[one] += float(values.abs().sum())
    expected = {one: total / positions[one.site] for one, total in sums.items()}
    assert gradient_scores(model, PAIRS) == pytest.approx(expected, rel=1e-10)


def test_batching_order_and_mode_do_not_matter() -> None:
    model = build(dropout=0.5)
    together = gradient_scores(model.train(), PAIRS, batch_tokens=1000)
    assert model.training
    alone = gradient_scores(model.eval(), PAIRS, batch_tokens=1)
    assert together == pytest.approx(alone, rel=1e-10)
    assert gradient_scores(model, PAIRS[::-1], 20) == pytest.approx(alone, rel=1e-10)
    assert all(score > 0 for score in alone.values())
    attention = weight_scores(model, PAIRS, 1000), weight_scores(model, PAIRS, 1)
    for one, other in zip(*attention, strict=True):
        assert one == pytest.approx(other, rel=1e-10)


def test_frozen_weights_and_no_grad_change_nothing() -> None:
    model = build()
    expected = gradient_scores(model, PAIRS)
    with torch.no_grad():
        assert gradient_scores(model.requires_grad_(False), PAIRS) == pytest.approx(expected)


def test_a_head_whose_output_is_thrown_away_has_no_score() -> None:
    model = build()
    with torch.no_grad():
        model.attentions("decoder")[1].out_projection.weight[:, 4:8] = 0.0
    scores = gradient_scores(model, PAIRS)
    assert [one for one, score in scores.items() if score == 0.0] == [Head("decoder", 1, 1)]


def test_without_cross_attention_the_encoder_does_not_matter() -> None:
    whole = build()
    model = cut_heads(whole, [one for one in whole.head_names if one.site == "cross"])
    scores = gradient_scores(model, PAIRS)
    assert {one.site for one in scores} == {"encoder", "decoder"}
    assert {score for one, score in scores.items() if one.site == "encoder"} == {0.0}
    nothing = cut_heads(model, model.head_names)
    assert gradient_scores(nothing, PAIRS) == {}
    assert weight_scores(nothing, PAIRS) == ({}, {})


def test_normalization_by_layer_survives_a_layer_of_zeros() -> None:
    scores = {
        Head("encoder", 0, 0): 3.0,
        Head("encoder", 0, 3): 4.0,
        Head("encoder", 1, 0): 0.0,
        Head("encoder", 1, 1): 0.0,
        Head("cross", 0, 0): 1e-9,
    }
    assert list(normalized_by_layer(scores).values()) == [0.6, 0.8, 0.0, 0.0, 1.0]
    assert normalized_by_layer({}) == {}


def test_uniform_heads_have_the_confidence_and_entropy_of_a_uniform_distribution() -> None:
    """Zero projections make all weights of a row equal: 1 / number of keys."""
    model = build()
    with torch.no_grad():
        for site in SITES:
            for attention in model.attentions(site):
                attention.in_projection.weight.zero_()
    source, target = [5, 6, 7], [8, 9]
    found = weight_scores(model, [(source, target)])
    log3 = math.log(2) / 3 + math.log(3) / 3  # of rows with 1, 2 and 3 keys
    expected = {
        "encoder": (1 / 4, math.log(4)),
        "cross": (1 / 4, math.log(4)),
        "decoder": ((1 + 1 / 2 + 1 / 3) / 3, log3),
    }
    for one in model.head_names:
        assert found.confidence[one] == pytest.approx(expected[one.site][0])
        assert found.entropy[one] == pytest.approx(expected[one.site][1])


def test_confidence_leaves_the_end_of_the_source_out_as_a_key_only() -> None:
    """Checked against weights read from the model, sentence by sentence."""
    model = build().eval()
    confidence, entropy = weight_scores(model, PAIRS, batch_tokens=1000)
    sums = {one: [0.0, 0.0, 0.0] for one in model.head_names}
    for source, target in PAIRS:
        (batch,) = study_batches(model, [(source, target)], 100)
        weights = model.attention_weights(batch.source, batch.target_input)
        for one in model.head_names:
            rows = weights[one.site][one.layer][0, one.head]
            words = rows if one.site == "decoder" else rows[:, : len(source)]
            for row, among in zip(rows.tolist(), words.tolist(), strict=True):
                sums[one][0] += max(among)
                sums[one][1] -= sum(w * math.log(w) for w in row if w)
                sums[one][2] += 1
    for one, (largest, spread, count) in sums.items():
        assert confidence[one] == pytest.approx(largest / count)
        assert entropy[one] == pytest.approx(spread / count)


def test_pairs_that_are_too_long_are_left_out_and_all_too_long_is_an_error() -> None:
    model = build()
    long = ([5] * 9, [5])
    assert gradient_scores(model, [*PAIRS, long]) == pytest.approx(gradient_scores(model, PAIRS))
    for study in (gradient_scores, weight_scores):
        with pytest.raises(HeadlabError, match="fits into the model's 8 positions"):
            study(model, [long])


def test_spearman() -> None:
    heads = [Head("cross", 0, i) for i in range(4)]

    def correlate(*changes: float) -> Correlation:
        scores = dict(zip(heads, (1.0, 2.0, 30.0, 400.0), strict=True))
        return spearman(scores, dict(zip(heads, changes, strict=False)))

    assert correlate(0.1, 0.2, 0.3, 0.9).rho == pytest.approx(1.0)
    assert correlate(4.0, 3.0, 2.0, 1.0).rho == pytest.approx(-1.0)
    # 1 - 6 sum d^2 / (n (n^2 - 1)) with d = 1, -1, 0, 0
    assert correlate(2.0, 1.0, 3.0, 4.0).rho == pytest.approx(0.8)
    assert correlate(2.0, 1.0, 3.0, 4.0).p_value == pytest.approx(0.2)
    assert correlate(1.0, 1.0, 1.0, 1.0) == (None, None, 4)
    assert correlate(1.0, 2.0) == (None, None, 2)


def test_grids_and_order_use_the_original_numbers() -> None:
    model = pruned()
    table = grids(model, dict.fromkeys(model.head_names, 1.0))
    assert table["cross"].shape == (3, 4)
    assert math.isnan(table["encoder"][0, 1])
    assert table["encoder"][0, 2] == 1.0
    scores = {Head("cross", 0, 0): 1.0, Head("encoder", 1, 2): 1.0, Head("decoder", 0, 0): 0.5}
    assert [str(one) for one in ascending(scores, scores)] == [
        "decoder.0.0",
        "encoder.1.2",
        "cross.0.0",
    ]
