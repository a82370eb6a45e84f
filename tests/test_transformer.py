"""The Transformer: causality, padding, caches, sizes, sharing."""

import pytest
import torch
import torch.nn.functional as F

from headlab.errors import HeadlabError
from headlab.transformer import Transformer

VOCABULARY = 40


def build(**changes: object) -> Transformer:
    torch.manual_seed(0)
    sizes: dict = {
        "source_vocab_size": VOCABULARY,
        "target_vocab_size": VOCABULARY,
        "d_model": 24,
        "heads": 3,
        "encoder_layers": 2,
        "decoder_layers": 2,
        "feed_forward": 32,
        "dropout": 0.0,
        "position": {"kind": "sinusoidal", "max_length": 32},
    }
    return Transformer(**(sizes | changes)).double().eval()


VARIANTS = [
    {},
    {"norm": "post"},
    {"activation": "swiglu", "tie_embeddings": "none"},
    {"activation": "gelu", "position": {"kind": "learned", "max_length": 32}},
    {"heads": 6, "attention": {"kv_heads": 2, "bias": True}},
    {"heads": 4, "attention": {"kv_heads": 1, "head_dim": 5}},
    {"d_model": 25, "heads": 5},
]


@pytest.fixture(params=VARIANTS, ids=str)
def model(request: pytest.FixtureRequest) -> Transformer:
    return build(**request.param)


def ids(*shape: int) -> torch.Tensor:
    return torch.randint(4, VOCABULARY, shape, generator=torch.Generator().manual_seed(1))


@torch.no_grad()
def test_later_target_tokens_move_nothing_earlier(model: Transformer) -> None:
    source, target = ids(2, 6), ids(2, 8)
    before = model(source, target)
    for first in range(1, 8):
        changed = target.clone()
        changed[:, first:] = (changed[:, first:] - 4 + 7) % (VOCABULARY - 4) + 4
        after = model(source, changed)
        torch.testing.assert_close(after[:, :first], before[:, :first], atol=1e-12, rtol=0)
        assert not torch.allclose(after[:, first:], before[:, first:])


@torch.no_grad()
def test_padding_changes_nothing(model: Transformer) -> None:
    source, target = ids(1, 5), ids(1, 4)
    plain = model(source, target)
    padded = model(F.pad(source, (0, 7)), F.pad(target, (0, 6)))
    torch.testing.assert_close(padded[:, :4], plain)


@torch.no_grad()
def test_keys_at_padding_have_no_weight_anywhere(model: Transformer) -> None:
    source, target = ids(2, 6), ids(2, 7)
    source[0, 4:] = 0
    source[1, 2] = 0  # padding in the middle
    target[0, 5:] = 0
    target[1, 3] = 0
    weights = model.attention_weights(source, target)
    assert {site: len(layers) for site, layers in weights.items()} == {
        "encoder": 2, "decoder": 2, "cross": 2
    }  # fmt: skip
    for site, layers in weights.items():
        keys = target if site == "decoder" else source
        for layer in layers:
            queries = source if site == "encoder" else target
            assert layer.shape == (2, model.heads, queries.size(1), keys.size(1))
            assert not layer.transpose(1, 3)[keys == 0].any()
            torch.testing.assert_close(layer.sum(-1), torch.ones_like(layer.sum(-1)))
        if site == "decoder":
            assert not torch.stack(layers).triu(1).any()


def test_a_source_of_padding_only_is_finite(model: Transformer) -> None:
    source, target = ids(2, 5), ids(2, 4)
    source[1] = 0
    for need_weights in (False, True):
        model.zero_grad()
        encoded = model.encode(source, need_weights=need_weights)
        decoded = model.decode(target, encoded, need_weights=need_weights)
        logits = model.logits(decoded.hidden)
        assert logits.isfinite().all()
        logits.logsumexp(-1).sum().backward()
        for parameter in model.parameters():
            if parameter.grad is not None:
                assert parameter.grad.isfinite().all()


@torch.no_grad()
@pytest.mark.parametrize("steps", [[1] * 7, [5, 2], [1, 3, 1, 2]])
def test_cached_equals_uncached(model: Transformer, steps: list[int]) -> None:
    source, target = ids(3, 6), ids(3, 7)
    source[1, 4:] = 0
    expected = model(source, target)
    encoded = model.encode(source)
    for capacity in (0, 4, 32):
        cache, seen, outputs = model.new_cache(3, capacity), 0, []
        for new in steps:
            hidden = model.decode(target[:, seen : seen + new], encoded, cache).hidden
            outputs.append(model.logits(hidden))
            seen += new
        torch.testing.assert_close(torch.cat(outputs, dim=1), expected)
        assert cache.length == 7


@torch.no_grad()
def test_cache_follows_its_rows(model: Transformer) -> None:
    source, target = ids(3, 6), ids(3, 6)
    rows = torch.tensor([2, 0, 2])
    expected = model(source[rows], target[rows])
    encoded, cache = model.encode(source), model.new_cache(3, 16)
    model.decode(target[:, :4], encoded, cache)
    cache.reorder(rows)
    cache.truncate(3)
    hidden = model.decode(target[rows, 3:], encoded.select(rows), cache).hidden
    torch.testing.assert_close(model.logits(hidden), expected[:, 3:])


@torch.no_grad()
def test_fused_and_explicit_paths_agree(model: Transformer) -> None:
    source, target = ids(2, 6), ids(2, 5)
    source[0, 3:] = 0
    encoded = model.encode(source, need_weights=True)
    decoded = model.decode(target, encoded, need_weights=True)
    torch.testing.assert_close(model.logits(decoded.hidden), model(source, target))


@torch.no_grad()
def test_gates_switch_heads_off(model: Transformer) -> None:
    source, target = ids(2, 6), ids(2, 5)
    plain = model(source, target)
    ones = {site: torch.ones(2, model.heads).double() for site in ("encoder", "decoder", "cross")}
    assert torch.equal(model(source, target, ones), plain)
    for site in ones:
        off = ones | {site: ones[site].clone()}
        off[site][1, 2] = 0.0
        gated = model(source, target, off)
        assert not torch.allclose(gated, plain)
        layer = (model.encoder if site == "encoder" else model.decoder)[1]
        attention = layer.cross_attention if site == "cross" else layer.self_attention
        saved = attention.out_projection.weight.clone()
        attention.out_projection.weight.view(model.d_model, model.heads, -1)[:, 2] = 0.0
        torch.testing.assert_close(model(source, target), gated)
        attention.out_projection.weight.copy_(saved)


@torch.no_grad()
def test_without_positions_the_encoder_would_not_see_order() -> None:
    model = build()
    source = ids(1, 6)
    order = torch.tensor([3, 1, 0, 5, 4, 2])
    assert not torch.allclose(
        model.encode(source[:, order]).memory, model.encode(source).memory[:, order]
    )
    model.source_position.table.zero_()
    torch.testing.assert_close(
        model.encode(source[:, order]).memory, model.encode(source).memory[:, order]
    )


def test_embeddings_are_shared_as_asked() -> None:
    tables = lambda m: (m.source_embedding.weight, m.target_embedding.weight, m.output.weight)  # noqa: E731
    for tie, distinct in (("all", 1), ("target", 2), ("none", 3)):
        model = build(tie_embeddings=tie)
        assert len({w.data_ptr() for w in tables(model)}) == distinct
        rebuilt = Transformer(**model.hparams).double()
        rebuilt.load_state_dict(model.state_dict())
        assert len({w.data_ptr() for w in tables(rebuilt)}) == distinct
        shared = sum(p.numel() for p in build(tie_embeddings="all").parameters())
        extra = (distinct - 1) * VOCABULARY * 24
        assert sum(p.numel() for p in model.parameters()) == shared + extra


@pytest.mark.parametrize("heads", [1, 2, 4, 8, 16])
def test_every_number_of_heads_has_the_same_parameters(heads: int) -> None:
    count = sum(p.numel() for p in build(d_model=32, heads=heads).parameters())
    assert count == sum(p.numel() for p in build(d_model=32, heads=1).parameters())


def test_too_long_a_sequence_is_refused_by_name() -> None:
    model = build()
    message = "a sequence of 33 tokens is longer than position.max_length=32"
    with pytest.raises(HeadlabError, match=message):
        model.encode(ids(1, 33))
    encoded = model.encode(ids(1, 32))
    with pytest.raises(HeadlabError, match=message):
        model.decode(ids(1, 33), encoded)
    cache = model.new_cache()
    model.decode(ids(1, 32), encoded, cache)
    with pytest.raises(HeadlabError, match=message):
        model.decode(ids(1, 1), encoded, cache)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"d_model": 100, "heads": 16}, "model.d_model=100 is not divisible by model.heads=16"),
        ({"heads": 0}, "model.heads=0 must be at least 1"),
        ({"d_model": 0}, "model.d_model=0 must be at least 1"),
        ({"encoder_layers": 0}, "model.encoder_layers=0 must be at least 1"),
        ({"feed_forward": -1}, "model.feed_forward=-1 must be at least 1"),
        ({"norm": "layer"}, "model.norm=layer: choose pre or post"),
        ({"activation": "tanh"}, "model.activation=tanh: choose relu, gelu or swiglu"),
        ({"dropout": 1.0}, "model.dropout=1.0 must lie in"),
        ({"feed_forward_dropout": -0.1}, "model.feed_forward_dropout=-0.1 must lie in"),
        ({"attention": {"kv_heads": 2}}, "attention.kv_heads=2 does not divide model.heads=3"),
        ({"position": {"kind": "spiral"}}, "position.kind=spiral is not known"),
        ({"target_vocab_size": 50}, "model.tie_embeddings=all needs one joint vocabulary"),
    ],
)
def test_mistakes_are_named_by_key(changes: dict, message: str) -> None:
    with pytest.raises(HeadlabError) as caught:
        build(**changes)
    assert str(caught.value).startswith(message)
    assert "\n" not in str(caught.value)


def test_dropout_is_reproducible_and_off_in_evaluation() -> None:
    model = build(dropout=0.3, feed_forward_dropout=0.2)
    source, target = ids(2, 6), ids(2, 5)
    assert torch.equal(model(source, target), model(source, target))
    model.train()
    torch.manual_seed(5)
    first, second = model(source, target), model(source, target)
    torch.manual_seed(5)
    assert torch.equal(model(source, target), first)
    assert not torch.equal(first, second)
