"""The shared module against the formula, a loop over heads, and torch.nn.MultiheadAttention."""

import itertools

import pytest
import torch
from torch import Tensor, nn

from headlab.attention import KeyValueCache, MultiHeadAttention, causal_mask, padding_mask


def naive(
    layer: MultiHeadAttention,
    query: Tensor,
    memory: Tensor,
    mask: Tensor | None,
    gates: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """One head after another, one query after another, straight from the formula."""
    size, heads, group = layer.head_dim, layer.heads, layer.heads // layer.kv_heads
    w_q, w_k, w_v = layer.in_projection.weight.split(
        [heads * size, layer.kv_heads * size, layer.kv_heads * size]
    )
    batch, queries, keys = query.size(0), query.size(1), memory.size(1)
    full = torch.ones(batch, heads, queries, keys, dtype=torch.bool)
    full = full if mask is None else full & mask
    weights = torch.zeros(batch, heads, queries, keys, dtype=query.dtype)
    outputs = []
    for b in range(batch):
        of_heads = []
        for h in range(heads):
            g = h // group
            q = query[b] @ w_q[h * size : (h + 1) * size].T
            k = memory[b] @ w_k[g * size : (g + 1) * size].T
            v = memory[b] @ w_v[g * size : (g + 1) * size].T
            for i in range(queries):
                seen = full[b, h, i]
                if seen.any():
                    scores = (k[seen] @ q[i]) / size**0.5
                    weights[b, h, i, seen] = torch.exp(scores) / torch.exp(scores).sum()
            of_heads.append(weights[b, h] @ v * (1.0 if gates is None else gates[h]))
        outputs.append(torch.cat(of_heads, dim=-1) @ layer.out_projection.weight.T)
    return torch.stack(outputs), weights


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


@pytest.mark.parametrize(
    ("d_model", "heads", "kv_heads", "head_dim"),
    [(12, 1, None, None), (12, 3, None, None), (12, 4, 2, None), (12, 6, 1, 5), (8, 8, None, None)],
)
@pytest.mark.parametrize("cross", [False, True])
@pytest.mark.parametrize("need_weights", [False, True])
def test_equals_a_loop_over_heads(d_model, heads, kv_heads, head_dim, cross, need_weights) -> None:
    layer = MultiHeadAttention(d_model, heads, kv_heads, head_dim).double()
    query = torch.randn(2, 5, d_model, dtype=torch.float64)
    memory = torch.randn(2, 4, d_model, dtype=torch.float64) if cross else None
    mask = torch.rand(2, 1, 5, 4 if cross else 5) > 0.3
    mask[0, 0, 2] = False  # a query with nothing to attend to
    output, weights = layer(query, memory, mask, need_weights=need_weights)
    expected, expected_weights = naive(layer, query, query if memory is None else memory, mask)
    torch.testing.assert_close(output, expected)
    if need_weights:
        torch.testing.assert_close(weights, expected_weights.detach())
        assert torch.equal(weights[0, :, 2], torch.zeros_like(weights[0, :, 2]))
    else:
        assert weights is None


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("cross", [False, True])
def test_equals_torch(bias: bool, cross: bool) -> None:
    ours = MultiHeadAttention(16, 4, bias=bias)
    theirs = nn.MultiheadAttention(16, 4, bias=bias, batch_first=True)
    if bias:
        nn.init.normal_(ours.in_projection.bias)
        nn.init.normal_(ours.out_projection.bias)
    pairs = [
        (theirs.in_proj_weight, ours.in_projection.weight),
        (theirs.out_proj.weight, ours.out_projection.weight),
    ]
    if bias:
        pairs += [
            (theirs.in_proj_bias, ours.in_projection.bias),
            (theirs.out_proj.bias, ours.out_projection.bias),
        ]
    with torch.no_grad():
        for their, our in pairs:
            their.copy_(our)
    query = torch.randn(3, 6, 16, requires_grad=True)
    memory = torch.randn(3, 5, 16, requires_grad=True) if cross else query
    real = torch.ones(3, memory.size(1), dtype=torch.bool)
    real[0, 3:] = False
    expected, expected_weights = theirs(
        query, memory, memory, key_padding_mask=~real, average_attn_weights=False
    )
    expected_gradients = torch.autograd.grad(
        expected.square().sum(), [query, *(their for their, _ in pairs)]
    )
    for need_weights in (False, True):
        output, weights = ours(
            query, memory if cross else None, real[:, None, None], need_weights=need_weights
        )
        torch.testing.assert_close(output, expected, atol=1e-5, rtol=1e-5)
        gradients = torch.autograd.grad(output.square().sum(), [query, *(our for _, our in pairs)])
        for gradient, wanted in zip(gradients, expected_gradients, strict=True):
            torch.testing.assert_close(gradient, wanted, atol=1e-5, rtol=1e-4)
        if need_weights:
            torch.testing.assert_close(weights, expected_weights)


def test_worked_example() -> None:
    """Five two-dimensional vectors, one head, identity projections."""
    layer = MultiHeadAttention(2, 1).double()
    with torch.no_grad():
        layer.in_projection.weight.copy_(torch.eye(2).repeat(3, 1))
        layer.out_projection.weight.copy_(torch.eye(2))
    x = torch.tensor([[1, 0], [0, 1], [1, 1], [1, 1], [0.5, 1]], dtype=torch.float64)
    output, weights = layer(x[None], need_weights=True)
    expected_weights = [
        [0.2384, 0.1175, 0.2384, 0.2384, 0.1674],
        [0.1097, 0.2226, 0.2226, 0.2226, 0.2226],
        [0.1337, 0.1337, 0.2711, 0.2711, 0.1904],
        [0.1337, 0.1337, 0.2711, 0.2711, 0.1904],
        [0.1223, 0.1741, 0.2479, 0.2479, 0.2078],
    ]
    expected = [
        [0.7988, 0.7616], [0.6662, 0.8903], [0.7711, 0.8663], [0.7711, 0.8663], [0.7220, 0.8777]
    ]  # fmt: skip
    torch.testing.assert_close(
        weights[0, 0], torch.tensor(expected_weights, dtype=torch.float64), atol=5.1e-5, rtol=0
    )
    torch.testing.assert_close(
        output[0], torch.tensor(expected, dtype=torch.float64), atol=5.1e-5, rtol=0
    )


@pytest.mark.parametrize("heads", [1, 2, 4, 8, 16])
def test_parameter_count_does_not_depend_on_heads(heads: int) -> None:
    layer = MultiHeadAttention(512, heads)
    assert sum(p.numel() for p in layer.parameters()) == 1_048_576


def test_parameter_count_in_general() -> None:
    layer = MultiHeadAttention(24, 6, kv_heads=2, head_dim=5)
    assert sum(p.numel() for p in layer.parameters()) == 2 * 24 * 5 * (6 + 2)


@pytest.mark.parametrize("need_weights", [False, True])
def test_fully_masked_rows_are_finite_zeros(need_weights: bool) -> None:
    layer = MultiHeadAttention(8, 2)
    x = torch.randn(2, 3, 8, requires_grad=True)
    mask = torch.ones(2, 1, 3, 3, dtype=torch.bool)
    mask[1] = False
    output, _ = layer(x, mask=mask, need_weights=need_weights)
    assert torch.equal(output[1], torch.zeros_like(output[1]))
    output.square().sum().backward()
    for gradient in [x.grad, *(p.grad for p in layer.parameters())]:
        assert gradient is not None
        assert gradient.isfinite().all()
    assert torch.equal(x.grad[1], torch.zeros_like(x.grad[1]))


@pytest.mark.parametrize("need_weights", [False, True])
def test_gates(need_weights: bool) -> None:
    layer = MultiHeadAttention(12, 3, bias=True)
    nn.init.normal_(layer.out_projection.bias)
    x = torch.randn(2, 4, 12)
    plain, _ = layer(x, need_weights=need_weights)
    ones, _ = layer(x, gates=torch.ones(3), need_weights=need_weights)
    assert torch.equal(plain, ones)
    gated, _ = layer(x, gates=torch.tensor([1.0, 0.0, 1.0]), need_weights=need_weights)
    per_row = torch.tensor([[1.0, 0.0, 1.0], [1.0, 1.0, 1.0]])
    rows, _ = layer(x, gates=per_row, need_weights=need_weights)
    torch.testing.assert_close(rows[0], gated[0])
    torch.testing.assert_close(rows[1], plain[1])
    with torch.no_grad():
        layer.out_projection.weight[:, 4:8] = 0.0  # the columns that read head 1
    without, _ = layer(x, need_weights=need_weights)
    torch.testing.assert_close(gated, without)


def test_weights_are_the_distribution_before_dropout() -> None:
    layer = MultiHeadAttention(8, 2, dropout=0.5).train()
    _, weights = layer(torch.randn(2, 5, 8), mask=causal_mask(5, 5), need_weights=True)
    torch.testing.assert_close(weights.sum(-1), torch.ones(2, 2, 5))
    assert not weights.triu(1).any()


def test_training_and_evaluation_agree_without_dropout() -> None:
    layer = MultiHeadAttention(8, 2)
    x, mask = torch.randn(2, 5, 8), padding_mask(torch.tensor([[5, 5, 5, 5, 0]] * 2), 0)
    training, _ = layer.train()(x, mask=mask)
    with torch.no_grad():
        evaluating, _ = layer.eval()(x, mask=mask)
    torch.testing.assert_close(training.detach(), evaluating)
    assert evaluating.shape == x.shape


@pytest.mark.parametrize("steps", [[1] * 8, [5, 3], [1, 4, 2, 1], [8]])
@pytest.mark.parametrize("kv_heads", [None, 2, 1])
@pytest.mark.parametrize("capacity", [0, 3, 20])
def test_cached_equals_uncached(steps: list[int], kv_heads: int | None, capacity: int) -> None:
    layer = MultiHeadAttention(12, 4, kv_heads)
    x = torch.randn(3, 8, 12)
    expected, _ = layer(x, mask=causal_mask(8, 8))
    cache, outputs, seen = KeyValueCache(capacity), [], 0
    for new in steps:
        mask = causal_mask(new, seen + new)
        output, _ = layer(x[:, seen : seen + new], mask=mask, cache=cache)
        outputs.append(output)
        seen += new
    torch.testing.assert_close(torch.cat(outputs, dim=1), expected, atol=1e-5, rtol=1e-5)
    assert cache.length == 8


def test_cache_of_a_memory_is_filled_once() -> None:
    layer = MultiHeadAttention(12, 4)
    query, memory = torch.randn(2, 3, 12), torch.randn(2, 5, 12)
    expected, _ = layer(query, memory)
    cache = KeyValueCache()
    for i in range(3):
        # What is passed after the first call does not matter: it has been projected already.
        output, _ = layer(query[:, i : i + 1], memory if i == 0 else memory * 0, cache=cache)
        torch.testing.assert_close(output, expected[:, i : i + 1], atol=1e-5, rtol=1e-5)


def test_cache_rows_and_truncation() -> None:
    layer = MultiHeadAttention(12, 4)
    x = torch.randn(3, 6, 12)
    cache = KeyValueCache(16)
    layer(x[:, :4], cache=cache)
    cache.reorder(torch.tensor([2, 2, 0]))
    cache.truncate(3)
    output, _ = layer(x[[2, 2, 0], 3:4], cache=cache)
    expected, _ = layer(x[[2, 2, 0], :4], mask=causal_mask(4, 4))
    torch.testing.assert_close(output, expected[:, 3:], atol=1e-5, rtol=1e-5)
    with pytest.raises(ValueError, match="cannot cut a cache of 4 positions to 9"):
        cache.truncate(9)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            {"d_model": 100, "heads": 16},
            "model.d_model=100 is not divisible by model.heads=16; "
            "choose heads from 1, 2, 4, 5, 10, 20, 25, 50, 100",
        ),
        ({"d_model": 12, "heads": 0}, "model.heads=0 must be at least 1; choose heads from 1, 2"),
        ({"d_model": 128, "heads": 256}, "model.d_model=128 is not divisible by model.heads=256"),
        (
            {"d_model": 64, "heads": 8, "kv_heads": 3},
            "attention.kv_heads=3 does not divide model.heads=8; choose kv_heads from 1, 2, 4, 8",
        ),
        ({"d_model": 64, "heads": 8, "kv_heads": 0}, "attention.kv_heads=0 does not divide"),
        ({"d_model": 0, "heads": 1}, "model.d_model=0 must be at least 1"),
        ({"d_model": 8, "heads": 2, "head_dim": 0}, "attention.head_dim=0 must be at least 1"),
        ({"d_model": 8, "heads": 2, "dropout": 1.0}, "attention.dropout=1.0 must lie in"),
    ],
)
def test_sizes_that_do_not_fit_are_refused(arguments: dict, message: str) -> None:
    with pytest.raises(ValueError) as caught:  # noqa: PT011 - the whole message is compared
        MultiHeadAttention(**arguments)
    assert str(caught.value).startswith(message)


@pytest.mark.parametrize("dtype", [torch.int64, torch.float32, torch.uint8])
@pytest.mark.parametrize("need_weights", [False, True])
def test_masks_of_other_types_are_refused(dtype: torch.dtype, need_weights: bool) -> None:
    layer = MultiHeadAttention(8, 2)
    mask = torch.ones(1, 1, 3, 3, dtype=dtype)
    with pytest.raises(ValueError, match="mask must be boolean with True = may attend"):
        layer(torch.randn(1, 3, 8), mask=mask, need_weights=need_weights)


def test_gates_of_another_shape_are_refused() -> None:
    layer = MultiHeadAttention(8, 2)
    for shape in [(3,), (2, 1), (1, 2, 2)]:
        with pytest.raises(ValueError, match="gates must have shape"):
            layer(torch.randn(1, 3, 8), gates=torch.ones(shape))


def test_causal_mask_is_anchored_at_the_last_key() -> None:
    assert causal_mask(3, 5).int().tolist() == [[1, 1, 1, 0, 0], [1, 1, 1, 1, 0], [1, 1, 1, 1, 1]]
    for queries, keys in itertools.product(range(1, 4), range(3, 6)):
        mask = causal_mask(queries, keys)
        assert mask.sum(dim=1).tolist() == list(range(keys - queries + 1, keys + 1))
    with pytest.raises(ValueError, match="3 queries cannot be the last of only 2 keys"):
        causal_mask(3, 2)


@pytest.mark.parametrize("kv_heads", [None, 3, 2, 1])
@pytest.mark.parametrize("kept", [[0, 1, 2], [5], [0, 2, 3, 5], [], [1, 4]])
@pytest.mark.parametrize("bias", [False, True])
def test_some_heads_are_the_whole_layer_with_gates(
    kv_heads: int | None, kept: list[int], bias: bool
) -> None:
    torch.manual_seed(0)
    whole = MultiHeadAttention(24, 6, kv_heads, bias=bias).double()
    if bias:
        torch.nn.init.normal_(whole.in_projection.bias)
        torch.nn.init.normal_(whole.out_projection.bias)
    some = whole.select_heads(kept)
    query, memory = torch.randn(2, 5, 24).double(), torch.randn(2, 7, 24).double()
    gates = torch.zeros(6).double()
    gates[kept] = 1.0
    for place in (None, memory):
        expected, weights = whole(query, place, gates=gates, need_weights=True)
        for need_weights in (False, True):
            output, mine = some(query, place, need_weights=need_weights)
            torch.testing.assert_close(output, expected, atol=1e-12, rtol=0)
        torch.testing.assert_close(mine, weights[:, kept])
    cache = KeyValueCache(5)
    steps = [some(query[:, i : i + 1], cache=cache)[0] for i in range(5)]
    causal = some(query, mask=torch.ones(5, 5, dtype=torch.bool).tril())[0]
    torch.testing.assert_close(torch.cat(steps, dim=1), causal)


def test_heads_that_are_not_there_cannot_be_kept() -> None:
    for kept in ([6], [1, 1], [-1]):
        with pytest.raises(ValueError, match="must be some of the heads 0 to 5"):
            MultiHeadAttention(24, 6, kept=kept)
