"""Variants against public implementations with the same weights, and against slow loops."""

import pytest
import torch
from torch import Tensor

from headlab.attention import (
    GatedDeltaNet,
    MixtureOfHeads,
    MultiHeadAttention,
    MultiHeadLatentAttention,
    Rotary,
    Routing,
    alibi_slopes,
    balance_loss,
    causal_mask,
    latent_from_multi_head,
)
from headlab.attention.recurrence import (
    chunked_delta_rule,
    implied_weights,
    recurrent_delta_rule,
)

CLOSE = {"atol": 1e-5, "rtol": 1e-4}


def copy(pairs: list[tuple[Tensor, Tensor]]) -> None:
    with torch.no_grad():
        for target, source in pairs:
            target.copy_(source)


def same_output_and_gradients(
    ours: torch.nn.Module, theirs: torch.nn.Module, run_ours, run_theirs, pairs
) -> None:
    """Outputs agree, and so do the gradients of input and of the weights in ``pairs``."""
    x = torch.randn(2, 9, 32, requires_grad=True)
    direction = torch.randn(2, 9, 32)
    first, second = run_ours(x), run_theirs(x)
    torch.testing.assert_close(first, second, **CLOSE)
    mine = torch.autograd.grad((first * direction).sum(), [x, *(a for a, _ in pairs)])
    other = torch.autograd.grad((second * direction).sum(), [x, *(b for _, b in pairs)])
    for a, b in zip(mine, other, strict=True):
        torch.testing.assert_close(a, b, atol=1e-4, rtol=1e-3)


def test_grouped_query_attention_with_rotary_positions_is_llamas() -> None:
    from transformers.models.llama.modeling_llama import (
        LlamaAttention,
        LlamaConfig,
        LlamaRotaryEmbedding,
    )

    torch.manual_seed(0)
    config = LlamaConfig(
        hidden_size=32, num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=64
    )
    config._attn_implementation = "eager"
    theirs = LlamaAttention(config, layer_idx=0)
    ours = MultiHeadAttention(32, 4, kv_heads=2, position={"kind": "rope", "base": 10_000.0})
    rows = torch.cat([theirs.q_proj.weight, theirs.k_proj.weight, theirs.v_proj.weight])
    copy([(ours.in_projection.weight, rows)])
    pairs = [(ours.out_projection.weight, theirs.o_proj.weight)]
    copy(pairs)
    rotary = LlamaRotaryEmbedding(config)
    forbidden = torch.full((9, 9), -torch.inf).triu(1)[None, None]

    def run(x: Tensor) -> Tensor:
        places = rotary(x, torch.arange(9)[None])
        return theirs(x, position_embeddings=places, attention_mask=forbidden)[0]

    mask = causal_mask(9, 9)
    same_output_and_gradients(ours, theirs, lambda x: ours(x, mask=mask)[0], run, pairs)


@pytest.mark.parametrize("query_latent", [None, 20])
def test_latent_attention_is_deepseeks(query_latent: int | None) -> None:
    from transformers.models.deepseek_v3.modeling_deepseek_v3 import (
        DeepseekV3Attention,
        DeepseekV3Config,
        DeepseekV3RotaryEmbedding,
    )

    torch.manual_seed(0)
    config = DeepseekV3Config(
        hidden_size=32,
        num_attention_heads=4,
        num_key_value_heads=4,
        q_lora_rank=query_latent,
        kv_lora_rank=12,
        qk_rope_head_dim=6,
        qk_nope_head_dim=8,
        v_head_dim=8,
        rope_interleave=False,
        rope_parameters={"rope_type": "default", "rope_theta": 10_000.0},
        max_position_embeddings=64,
    )
    config._attn_implementation = "eager"
    theirs = DeepseekV3Attention(config, layer_idx=0)
    ours = MultiHeadLatentAttention(
        32, 4, latent_dim=12, query_latent_dim=query_latent, rope_dim=6, position={"kind": "rope"}
    )
    pairs = [
        (ours.memory_down.weight, theirs.kv_a_proj_with_mqa.weight),
        (ours.memory_norm.weight, theirs.kv_a_layernorm.weight),
        (ours.memory_up.weight, theirs.kv_b_proj.weight),
        (ours.out_projection.weight, theirs.o_proj.weight),
    ]
    if query_latent is None:
        pairs.append((ours.query_up.weight, theirs.q_proj.weight))
    else:
        pairs += [
            (ours.query_down.weight, theirs.q_a_proj.weight),
            (ours.query_norm.weight, theirs.q_a_layernorm.weight),
            (ours.query_up.weight, theirs.q_b_proj.weight),
        ]
    copy(pairs)
    rotary = DeepseekV3RotaryEmbedding(config)
    forbidden = torch.full((9, 9), -torch.inf).triu(1)[None, None]

    def run(x: Tensor) -> Tensor:
        places = rotary(x, torch.arange(9)[None])
        return theirs(x, position_embeddings=places, attention_mask=forbidden)[0]

    mask = causal_mask(9, 9)
    same_output_and_gradients(ours, theirs, lambda x: ours(x, mask=mask)[0], run, pairs)


def delta_inputs(length: int, dtype: torch.dtype) -> list[Tensor]:
    torch.manual_seed(0)
    q, k, v = (torch.randn(2, 3, length, 8, dtype=dtype) for _ in range(3))
    q, k = torch.nn.functional.normalize(q, dim=-1), torch.nn.functional.normalize(k, dim=-1)
    decay = -torch.rand(2, 3, length, dtype=dtype) * 2
    write = torch.rand(2, 3, length, dtype=dtype)
    return [x.requires_grad_() for x in (q, k, v, decay, write)]


@pytest.mark.parametrize("length", [1, 5, 64, 70])
@pytest.mark.parametrize("chunk", [1, 4, 32])
def test_the_chunked_delta_rule_is_the_recurrence(length: int, chunk: int) -> None:
    found = []
    for rule in (recurrent_delta_rule, lambda *x: chunked_delta_rule(*x, chunk)):
        parts = delta_inputs(length, torch.float64)
        output, state = rule(*parts)
        torch.manual_seed(1)
        loss = (output * torch.randn_like(output)).sum() + (state * torch.randn_like(state)).sum()
        found.append((output, state, *torch.autograd.grad(loss, parts)))
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, atol=1e-10, rtol=1e-8)


def test_a_state_is_handed_on() -> None:
    parts = delta_inputs(20, torch.float64)
    whole, last = recurrent_delta_rule(*parts)
    for rule in (recurrent_delta_rule, lambda *x, state: chunked_delta_rule(*x, 4, state=state)):
        first, state = recurrent_delta_rule(*(x[:, :, :9] for x in parts))
        second, end = rule(*(x[:, :, 9:] for x in parts), state=state)
        torch.testing.assert_close(torch.cat([first, second], dim=2), whole)
        torch.testing.assert_close(end, last)


@pytest.mark.parametrize(
    "form", ["torch_chunk_gated_delta_rule", "torch_recurrent_gated_delta_rule"]
)
def test_the_delta_rule_is_qwens(form: str) -> None:
    from transformers.models.qwen3_next import modeling_qwen3_next

    theirs = getattr(modeling_qwen3_next, form)
    parts, copies = delta_inputs(70, torch.float32), delta_inputs(70, torch.float32)
    ours, state = chunked_delta_rule(parts[0] * 8**-0.5, *parts[1:], 32)
    turned = [x.transpose(1, 2) for x in copies]
    output, last = theirs(*turned[:3], g=turned[3], beta=turned[4], output_final_state=True)
    torch.testing.assert_close(ours, output.transpose(1, 2), **CLOSE)
    torch.testing.assert_close(state, last.transpose(-2, -1), **CLOSE)
    direction = torch.randn_like(ours)
    mine = torch.autograd.grad((ours * direction).sum(), parts)
    if "chunk" in form:  # the other writes in place, which has no gradient
        other = torch.autograd.grad((output.transpose(1, 2) * direction).sum(), copies)
        for a, b in zip(mine, other, strict=True):
            torch.testing.assert_close(a, b, atol=1e-4, rtol=1e-3)


def test_implied_weights_are_those_of_the_recurrence() -> None:
    q, k, v, decay, write = delta_inputs(11, torch.float64)
    weights = implied_weights(q, k, decay, write)
    torch.testing.assert_close(weights @ v, recurrent_delta_rule(q, k, v, decay, write)[0])
    assert not weights.triu(1).any()


def test_padding_neither_writes_nor_fades() -> None:
    torch.manual_seed(0)
    layer = GatedDeltaNet(24, 3).double()
    x = torch.randn(1, 6, 24).double()
    real = torch.tensor([[1, 1, 1, 1, 0, 0]]).bool()[:, None, None]
    cache, short = layer.new_cache(), layer.new_cache()
    layer(x, mask=causal_mask(6, 6) & real, cache=cache)
    layer(x[:, :4], mask=causal_mask(4, 4)[None, None], cache=short)
    torch.testing.assert_close(cache.state, short.state, atol=1e-12, rtol=0)


def test_the_state_does_not_grow() -> None:
    layer = GatedDeltaNet(24, 3)
    cache, sizes = layer.new_cache(), set()
    for _ in range(5):
        layer(torch.randn(2, 3, 24), mask=causal_mask(3, 3), cache=cache)
        sizes.add(cache.numbers())
    assert sizes == {3 * 8 * 8 + 3 * 3 * 24}


def test_what_a_recurrence_cannot_do() -> None:
    layer = GatedDeltaNet(24, 3)
    x = torch.randn(1, 4, 24)
    with pytest.raises(ValueError, match="cannot read a memory"):
        layer(x, memory=x)
    cache = layer.new_cache()
    layer(x, cache=cache)
    layer(x[:, :1], cache=cache)
    with pytest.raises(ValueError, match="of 5 positions can be cut to 4 at least, not to 2"):
        cache.truncate(2)


@pytest.mark.parametrize(("shared", "active"), [(2, 4), (0, 3), (1, 1), (6, 6), (2, 6)])
def test_mixture_of_heads_against_a_loop(shared: int, active: int) -> None:
    torch.manual_seed(0)
    layer = MixtureOfHeads(24, 6, shared_heads=shared, active_heads=active).double()
    torch.nn.init.normal_(layer.router.weight)
    x, memory = torch.randn(2, 5, 24).double(), torch.randn(2, 7, 24).double()
    output, weights = layer(x, memory, need_weights=True)
    plain = MultiHeadAttention(24, 6).double()
    plain.load_state_dict({k: v for k, v in layer.state_dict().items() if "router" not in k})
    columns = plain.out_projection.weight.split(4, dim=1)
    picks = active - shared
    for b in range(2):
        for t in range(5):
            scores = layer.router.weight @ x[b, t]
            group = torch.tensor([1.0, 1.0]).double()
            if shared and picks:
                group = 2 * scores[6:].softmax(0)
            factors = torch.zeros(6).double()
            if shared:
                factors[:shared] = shared * scores[:shared].softmax(0) * group[0]
            if picks:
                routed = scores[shared:6].softmax(0)
                best = sorted(range(6 - shared), key=lambda i: -routed[i])[:picks]
                total = sum(routed[i] for i in best)
                for i in best:
                    factors[shared + i] = picks * routed[i] / total * group[1]
            expected = torch.zeros(24).double()
            for h in range(6):
                only = torch.zeros(6).double()
                only[h] = 1.0
                _, maps = plain(x[b : b + 1], memory[b : b + 1], need_weights=True)
                one, _ = plain(x[b : b + 1], memory[b : b + 1], gates=only)
                expected += factors[h] * one[0, t]
                torch.testing.assert_close(weights[b, h, t], factors[h] * maps[0, h, t])
            torch.testing.assert_close(output[b, t], expected)
    assert len(columns) == 6


def test_a_router_without_opinion_leaves_attention_as_it_is() -> None:
    torch.manual_seed(0)
    layer = MixtureOfHeads(24, 6, shared_heads=2, active_heads=6)
    torch.nn.init.zeros_(layer.router.weight)
    plain = MultiHeadAttention(24, 6)
    plain.load_state_dict({k: v for k, v in layer.state_dict().items() if "router" not in k})
    x = torch.randn(2, 5, 24)
    torch.testing.assert_close(layer(x)[0], plain(x)[0])


def test_balance_loss() -> None:
    real = torch.tensor([[True, True, True, True, False]])
    even = torch.eye(4).bool()
    chosen = torch.cat([even, torch.tensor([[1, 1, 1, 1]]).bool()])[None]
    uniform = torch.full((1, 5, 4), 0.25)
    assert balance_loss(Routing(uniform, chosen), real) == pytest.approx(1.0)
    one = torch.zeros(1, 5, 4)
    one[..., 0] = 1.0
    assert balance_loss(Routing(one, one.bool()), real) == pytest.approx(4.0)


@pytest.mark.parametrize("position", [None, {"kind": "alibi"}])
@pytest.mark.parametrize("kv_heads", [6, 2, 1])
@pytest.mark.parametrize("kept", [None, [0, 3, 4], []])
def test_any_attention_without_rotation_is_a_latent_one(
    position: dict | None, kv_heads: int, kept: list[int] | None
) -> None:
    torch.manual_seed(0)
    plain = MultiHeadAttention(24, 6, kv_heads, bias=True, kept=kept, position=position).double()
    for parameter in plain.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    latent = latent_from_multi_head(plain)
    x, mask = torch.randn(2, 6, 24).double(), causal_mask(6, 6)
    torch.testing.assert_close(latent(x, mask=mask)[0], plain(x, mask=mask)[0])
    cache = latent.new_cache()
    steps = [latent(x[:, i : i + 1], cache=cache)[0] for i in range(6)]
    torch.testing.assert_close(torch.cat(steps, dim=1), plain(x, mask=mask)[0])


def test_rotated_keys_cannot_be_made_from_a_latent() -> None:
    plain = MultiHeadAttention(24, 6, position={"kind": "rope"})
    with pytest.raises(ValueError, match="rotary positions cannot be rewritten exactly"):
        latent_from_multi_head(plain)


def test_published_alibi_slopes() -> None:
    assert alibi_slopes(8) == [2.0**-i for i in range(1, 9)]
    half = [2.0 ** (-0.5 * i) for i in (1, 3, 5, 7)]
    assert alibi_slopes(12) == pytest.approx([*(2.0**-i for i in range(1, 9)), *half])
    assert alibi_slopes(1) == [2.0**-8]


def test_rotation_keeps_lengths_and_depends_on_distance() -> None:
    torch.manual_seed(0)
    rotary = Rotary(8)
    q, k = torch.randn(8).double(), torch.randn(8).double()

    def score(i: int, j: int) -> float:
        return float(rotary(q[None], i)[0] @ rotary(k[None], j)[0])

    assert score(5, 3) == pytest.approx(score(1002, 1000), abs=1e-6)
    assert score(5, 3) != pytest.approx(score(5, 4), abs=1e-3)
    assert float(rotary(q[None], 77).norm()) == pytest.approx(float(q.norm()))


def test_cache_sizes_are_those_of_the_papers() -> None:
    sizes = {}
    layers = {
        "mha": MultiHeadAttention(256, 8),
        "gqa": MultiHeadAttention(256, 8, 2),
        "mqa": MultiHeadAttention(256, 8, 1),
        "mla": MultiHeadLatentAttention(256, 8, latent_dim=32, rope_dim=16),
        "rope": MultiHeadLatentAttention(
            256, 8, latent_dim=32, rope_dim=16, position={"kind": "rope"}
        ),
    }
    for name, layer in layers.items():
        cache = layer.new_cache()
        layer(torch.randn(2, 10, 256), mask=causal_mask(10, 10), cache=cache)
        sizes[name] = cache.numbers() / 10
    assert sizes == {"mha": 512, "gqa": 128, "mqa": 64, "mla": 32, "rope": 48}
