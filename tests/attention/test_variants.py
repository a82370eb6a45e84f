"""What every kind of attention must do, at every position scheme and at odd sizes."""

import copy
import itertools
from typing import Any

import pytest
import torch

from headlab.attention import KINDS, Attention, build_attention, causal_mask, kind_at
from headlab.transformer import Transformer

OPTIONS: dict[str, dict[str, Any]] = {
    "mha": {},
    "gqa": {"kv_heads": 3},
    "mqa": {},
    "mla": {"latent_dim": 7, "rope_dim": 4},
    "moh": {"shared_heads": 1, "active_heads": 2},
    "deltanet": {"chunk": 3},
}
# Heads and width of a head; ALiBi and no positions take any width.
SIZES = [(3, 8), (6, 4), (12, 2)]
CASES = [
    (kind, position, heads, width)
    for kind, position in itertools.product(OPTIONS, ("sinusoidal", "rope", "alibi", "none"))
    for heads, width in SIZES[: 3 if position in ("rope", "alibi") else 1]
] + [(kind, "alibi", 3, 5) for kind in OPTIONS]
WITH_MEMORY = [kind for kind in OPTIONS if kind != "deltanet"]

each_case = pytest.mark.parametrize(("kind", "position", "heads", "width"), CASES)


def build(kind: str, position: str | None, heads: int, width: int, **more: Any) -> Attention:
    torch.manual_seed(1)
    options = {"head_dim": width, "bias": True, **OPTIONS[kind], **more}
    where = None if position is None else {"kind": position}
    layer = build_attention(kind, 24, heads, options, position=where)
    for parameter in layer.parameters():
        if parameter.dim() < 2:
            torch.nn.init.normal_(parameter, std=0.3)
    return layer.double().eval()


def inputs(batch: int = 2, length: int = 7) -> torch.Tensor:
    return torch.randn(batch, length, 24, dtype=torch.float64)


def test_every_kind_is_tested() -> None:
    assert set(OPTIONS) == set(KINDS)


@each_case
def test_the_future_has_no_influence(kind: str, position: str, heads: int, width: int) -> None:
    layer, x = build(kind, position, heads, width), inputs()
    mask = causal_mask(7, 7)[None, None]
    before, _ = layer(x, mask=mask)
    changed = x.clone()
    changed[:, 4:] = torch.randn_like(changed[:, 4:])
    after, _ = layer(changed, mask=mask)
    torch.testing.assert_close(before[:, :4], after[:, :4], atol=1e-12, rtol=0)
    assert not torch.allclose(before[:, 4:], after[:, 4:])


@each_case
def test_padding_has_no_influence(kind: str, position: str, heads: int, width: int) -> None:
    layer, x = build(kind, position, heads, width), inputs(1)
    alone, _ = layer(x[:, :5], mask=causal_mask(5, 5)[None, None])
    for batch in (1, 3):
        padded = x.expand(batch, -1, -1).clone()
        padded[:, 5:] = 1e3
        real = torch.arange(7)[None, None, None] < 5
        output, _ = layer(padded, mask=causal_mask(7, 7) & real.expand(batch, -1, -1, -1))
        torch.testing.assert_close(output[:1, :5], alone, atol=1e-10, rtol=0)


@each_case
def test_rows_of_a_batch_are_independent(kind: str, position: str, heads: int, width: int) -> None:
    layer, x = build(kind, position, heads, width), inputs(4)
    mask = causal_mask(7, 7)
    together, _ = layer(x, mask=mask)
    for i in range(4):
        alone, _ = layer(x[i : i + 1], mask=mask)
        torch.testing.assert_close(together[i : i + 1], alone, atol=1e-12, rtol=0)


@each_case
@pytest.mark.parametrize("steps", [[1] * 7, [3, 1, 2, 1], [7]])
def test_the_cache_changes_nothing(
    kind: str, position: str, heads: int, width: int, steps: list[int]
) -> None:
    layer, x = build(kind, position, heads, width), inputs()
    whole, _ = layer(x, mask=causal_mask(7, 7)[None, None])
    cache, parts, start = layer.new_cache(4), [], 0
    for new in steps:
        mask = causal_mask(new, start + new)
        parts.append(layer(x[:, start : start + new], mask=mask, cache=cache)[0])
        start += new
    assert cache.length == 7
    torch.testing.assert_close(torch.cat(parts, dim=1), whole, atol=1e-11, rtol=0)


@each_case
def test_a_cache_can_be_cut_and_reordered(kind: str, position: str, heads: int, width: int) -> None:
    layer, x = build(kind, position, heads, width), inputs(3)
    rows = torch.tensor([2, 0, 2])
    whole, _ = layer(x[rows], mask=causal_mask(7, 7)[None, None])
    cache = layer.new_cache()
    layer(x[:, :2], mask=causal_mask(2, 2), cache=cache)
    wrong = torch.cat([x[:, 2:4], torch.randn_like(x[:, :2])], dim=1)
    layer(wrong, mask=causal_mask(4, 6), cache=cache)
    cache.truncate(4)  # as after a draft of which two tokens were right
    cache.reorder(rows)
    end, _ = layer(x[rows][:, 4:], mask=causal_mask(3, 7), cache=cache)
    torch.testing.assert_close(end, whole[:, 4:], atol=1e-11, rtol=0)


@each_case
def test_gates_scale_the_heads(kind: str, position: str, heads: int, width: int) -> None:
    layer, x = build(kind, position, heads, width), inputs()
    mask = causal_mask(7, 7)[None, None]
    plain, _ = layer(x, mask=mask)
    ones, _ = layer(x, mask=mask, gates=torch.ones(heads).double())
    assert torch.equal(plain, ones)
    closed, _ = layer(x, mask=mask, gates=torch.zeros(2, heads).double())
    torch.testing.assert_close(closed, layer.out_projection.bias.expand_as(closed))
    gates = torch.rand(heads, dtype=torch.float64)
    gated, _ = layer(x, mask=mask, gates=gates)
    with torch.no_grad():
        layer.out_projection.weight.mul_(gates.repeat_interleave(width))
    torch.testing.assert_close(gated, layer(x, mask=mask)[0], atol=1e-12, rtol=0)


@each_case
def test_weights_on_request(kind: str, position: str, heads: int, width: int) -> None:
    layer, x = build(kind, position, heads, width), inputs()
    mask = causal_mask(7, 7)[None, None]
    output, nothing = layer(x, mask=mask)
    assert nothing is None
    again, weights = layer(x, mask=mask, need_weights=True)
    torch.testing.assert_close(output, again, atol=1e-11, rtol=0)
    assert weights.shape == (2, heads, 7, 7)
    assert not weights.triu(1).any()
    if kind not in ("moh", "deltanet"):
        torch.testing.assert_close(weights.sum(-1), torch.ones(2, heads, 7).double())


@each_case
def test_cutting_heads_is_closing_them(kind: str, position: str, heads: int, width: int) -> None:
    layer, x = build(kind, position, heads, width), inputs()
    mask = causal_mask(7, 7)[None, None]
    for kept in ([0, 2], [1], []):
        gates = torch.zeros(heads).double()
        gates[kept] = 1.0
        expected, weights = layer(x, mask=mask, gates=gates, need_weights=True)
        cut = layer.select_heads(kept)
        output, mine = cut(x, mask=mask, need_weights=True)
        torch.testing.assert_close(output, expected, atol=1e-12, rtol=0)
        torch.testing.assert_close(mine, weights[:, kept])
        torch.testing.assert_close(cut(x, mask=mask)[0], expected, atol=1e-11, rtol=0)
        cache = cut.new_cache()
        steps = [cut(x[:, i : i + 1], cache=cache)[0] for i in range(7)]
        torch.testing.assert_close(torch.cat(steps, dim=1), expected, atol=1e-11, rtol=0)
        assert sum(p.numel() for p in cut.parameters()) < sum(p.numel() for p in layer.parameters())


@pytest.mark.parametrize("kind", WITH_MEMORY)
def test_cross_attention(kind: str) -> None:
    layer, x, memory = build(kind, None, 6, 4), inputs(), inputs(length=5)
    real = torch.tensor([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]]).bool()[:, None, None]
    whole, weights = layer(x, memory, mask=real, need_weights=True)
    assert not weights[1, :, :, 3:].any()
    cache = layer.new_cache()
    steps = [layer(x[:, i : i + 1], memory, mask=real, cache=cache)[0] for i in range(7)]
    torch.testing.assert_close(torch.cat(steps, dim=1), whole, atol=1e-11, rtol=0)
    changed = memory.clone()
    changed[1, 3:] = 1e3
    torch.testing.assert_close(layer(x, changed, mask=real)[0], whole, atol=1e-10, rtol=0)


@pytest.mark.parametrize("kind", WITH_MEMORY)
@pytest.mark.parametrize("position", ["rope", "alibi", "none"])
def test_nothing_to_attend_to_gives_zeros_and_no_nan(kind: str, position: str) -> None:
    layer, x = build(kind, position, 6, 4, bias=False), inputs().requires_grad_()
    mask = torch.ones(2, 1, 7, 7, dtype=torch.bool)
    mask[0, 0, 2] = False
    for need_weights in (False, True):
        output, _ = layer(x, mask=mask, need_weights=need_weights)
        assert not output[0, 2].any()
        (gradient,) = torch.autograd.grad(output.sum(), x)
        assert gradient.isfinite().all()


@pytest.mark.parametrize("kind", OPTIONS)
def test_both_paths_have_the_same_gradients(kind: str) -> None:
    layer, x = build(kind, "alibi", 6, 4), inputs()
    mask, direction = causal_mask(7, 7)[None, None], inputs()
    found = []
    for need_weights in (False, True):
        output, _ = layer(x, mask=mask, need_weights=need_weights)
        found.append(torch.autograd.grad((output * direction).sum(), list(layer.parameters())))
    for fused, explicit in zip(*found, strict=True):
        torch.testing.assert_close(fused, explicit, atol=1e-10, rtol=0)


@pytest.mark.parametrize("kind", ["mha", "gqa", "moh", "mla"])
def test_rotary_positions_need_an_even_width(kind: str) -> None:
    more = {"rope_dim": 5} if kind == "mla" else {}
    with pytest.raises(ValueError, match=r"even"):
        build(kind, "rope", 3, 5, **more)


def test_a_recurrence_refuses_what_it_cannot_be() -> None:
    layer, x = build("deltanet", None, 6, 4), inputs()
    for mask in (torch.ones(7, 7), torch.ones(2, 1, 1, 7), torch.ones(7)):
        with pytest.raises(ValueError, match="its mask must let no query see what follows it"):
            layer(x, mask=mask.bool())
    with pytest.raises(ValueError, match="cannot read a memory"):
        layer(x, inputs())
    nothing, _ = layer(x[:, :0], mask=causal_mask(0, 0)[None, None])
    assert nothing.shape == (2, 0, 24)


@pytest.mark.parametrize("kind", OPTIONS)
def test_half_precision_is_close(kind: str) -> None:
    """Also weights in bfloat16, which have no solver of their own, and under autocast."""
    layer, x = build(kind, "rope", 6, 4).float(), inputs().float()
    mask = causal_mask(7, 7)[None, None]
    expected = layer(x, mask=mask)[0]
    with torch.autocast("cpu", torch.bfloat16):
        mixed = layer(x, mask=mask)[0]
    low = copy.deepcopy(layer).bfloat16()(x.bfloat16(), mask=mask)[0]
    for one in (mixed, low):
        assert one.dtype == torch.bfloat16
        if kind != "moh":  # rounding may turn a choice of heads
            assert (one.float() - expected).norm() < 0.05 * expected.norm()


def test_what_stands_where() -> None:
    hybrid = {"kind": "mha", "decoder": "hybrid"}
    kinds = [kind_at(hybrid, "decoder", i) for i in range(8)]
    assert kinds == (["deltanet"] * 3 + ["mha"]) * 2
    assert kind_at(hybrid, "encoder", 0) == "mha"
    assert kind_at({"kind": "gqa", "cross": "mla"}, "cross", 1) == "mla"
    assert kind_at({}, "cross", 1) == "mha"
    with pytest.raises(ValueError, match=r"attention\.cross=deltanet is causal .*attention\.deco"):
        kind_at({"cross": "deltanet"}, "cross", 0)
    with pytest.raises(ValueError, match=r"attention\.kind=nsa is not known; choose from mha, gqa"):
        kind_at({"kind": "nsa"}, "encoder", 0)
    with pytest.raises(ValueError, match=r"attention\.kv_heads must be given"):
        build_attention("gqa", 24, 6, {})
    with pytest.raises(ValueError, match=r"attention\.latent is not known"):
        build_attention("mla", 24, 6, {"latent": 3})


@pytest.mark.parametrize("position", ["rope", "alibi", "none"])
def test_no_table_no_limit(position: str) -> None:
    torch.manual_seed(0)
    model = Transformer(
        source_vocab_size=20,
        target_vocab_size=20,
        d_model=16,
        heads=2,
        encoder_layers=1,
        decoder_layers=1,
        feed_forward=16,
        position={"kind": position},
    ).eval()
    assert model.max_length is None
    source, target = torch.randint(4, 20, (1, 700)), torch.randint(4, 20, (1, 650))
    logits = model(source, target)
    assert logits.isfinite().all()
    encoded, cache = model.encode(source), model.new_cache(1, 8)
    steps = [model.decode(target[:, i : i + 1], encoded, cache).hidden for i in range(40)]
    torch.testing.assert_close(
        model.logits(torch.cat(steps, dim=1)), logits[:, :40], atol=1e-4, rtol=1e-4
    )


def test_without_positions_the_encoder_is_blind_to_order() -> None:
    torch.manual_seed(0)
    sizes = {"source_vocab_size": 20, "target_vocab_size": 20, "d_model": 16, "heads": 2}
    order = torch.tensor([3, 0, 2, 4, 1])
    source = torch.randint(4, 20, (2, 5))
    for position in ({"kind": "none"}, {"kind": "rope"}, {"kind": "alibi"}):
        model = Transformer(**sizes, position=position).eval()
        memory = model.encode(source).memory
        permuted = model.encode(source[:, order]).memory
        same = torch.allclose(memory[:, order], permuted, atol=1e-5)
        assert same == (position["kind"] == "none")
