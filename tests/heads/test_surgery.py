import pytest
import torch

from headlab.checkpoint import Loaded, read_checkpoint, save_checkpoint
from headlab.errors import HeadlabError
from headlab.head_names import Head, parse_heads
from headlab.heads.gates import gates_without
from headlab.heads.surgery import cut_heads, fold_gates
from headlab.transformer import Transformer

SOURCE = torch.tensor([[5, 6, 7, 8, 3], [9, 5, 3, 0, 0]])
TARGET = torch.tensor([[2, 6, 7, 4], [2, 8, 9, 0]])


def build(heads: int = 4, dtype: torch.dtype = torch.float64, **options: object) -> Transformer:
    torch.manual_seed(0)
    model = Transformer(
        source_vocab_size=12,
        target_vocab_size=12,
        d_model=16,
        heads=heads,
        encoder_layers=2,
        decoder_layers=3,
        feed_forward=16,
        **options,
    )
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("bias"):
                parameter.normal_()
    return model.to(dtype).eval()


def masked(model: Transformer, *patterns: str) -> torch.Tensor:
    heads = parse_heads(patterns, model.head_names, "heads")
    return model(SOURCE, TARGET, gates_without(model, heads))


CASES = [
    ["encoder.0.1"],
    ["cross.2.*"],
    ["decoder.0.*", "decoder.1.0-2"],
    ["encoder.*.*", "decoder.*.*", "cross.*.*"],
]
VARIANTS = [
    {},
    {"attention": {"bias": True}},
    {"attention": {"kv_heads": 2}},
    {"attention": {"kv_heads": 1, "bias": True, "head_dim": 5}},
]


@pytest.mark.parametrize("patterns", CASES)
@pytest.mark.parametrize("options", VARIANTS)
def test_a_cut_model_computes_what_the_masked_one_does(patterns: list, options: dict) -> None:
    model = build(**options)
    cut = cut_heads(model, parse_heads(patterns, model.head_names, "heads"))
    torch.testing.assert_close(cut(SOURCE, TARGET), masked(model, *patterns), atol=1e-12, rtol=0)
    rebuilt = Transformer(**cut.hparams).double().eval()
    rebuilt.load_state_dict(cut.state_dict())
    torch.testing.assert_close(rebuilt(SOURCE, TARGET), cut(SOURCE, TARGET), atol=0, rtol=0)


@pytest.mark.parametrize("options", VARIANTS)
def test_cutting_twice_is_cutting_once(options: dict) -> None:
    model = build(**options)
    once = cut_heads(model, parse_heads(["cross.1.0", "cross.1.2"], model.head_names, "heads"))
    twice = cut_heads(once, [Head("cross", 1, 3), Head("encoder", 0, 0)])
    assert twice.kept["cross"][1] == [1]
    assert once.kept["encoder"][0] == [0, 1, 2, 3]
    expected = masked(model, "cross.1.0", "cross.1.2-3", "encoder.0.0")
    torch.testing.assert_close(twice(SOURCE, TARGET), expected, atol=1e-12, rtol=0)


def test_gates_keep_the_numbers_of_the_whole_model() -> None:
    model = build()
    cut = cut_heads(model, [Head("decoder", 1, 0)])
    both = masked(model, "decoder.1.0", "decoder.1.2")
    torch.testing.assert_close(masked(cut, "decoder.1.2"), both, atol=1e-12, rtol=0)


def test_a_head_that_is_gone_is_named() -> None:
    model = cut_heads(build(), [Head("cross", 0, 0)])
    with pytest.raises(HeadlabError, match=r"no head cross.0.0; the heads are .*cross.0.1-3"):
        cut_heads(model, [Head("cross", 0, 0)])


def test_cutting_makes_the_model_smaller_and_leaves_the_first_alone() -> None:
    model = build()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    cut = cut_heads(model, [Head("encoder", 1, 2)])

    def size(one: Transformer) -> int:
        return sum(p.numel() for p in one.parameters())

    assert size(model) - size(cut) == 4 * 4 * 16  # head_dim x d_model, for each of the four
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name])


def test_every_head_gone_still_decodes_step_by_step() -> None:
    model = cut_heads(build(), build().head_names)
    encoded = model.encode(SOURCE)
    whole = model.decode(TARGET[:1, :4], encoded.select(torch.tensor([0]))).hidden
    cache = model.new_cache(1, 4)
    one = encoded.select(torch.tensor([0]))
    steps = [model.decode(TARGET[:1, i : i + 1], one, cache=cache).hidden for i in range(4)]
    torch.testing.assert_close(torch.cat(steps, dim=1), whole)
    assert cache.length == 4


def test_weights_are_those_of_the_heads_that_stay() -> None:
    model = build(attention={"kv_heads": 2})
    cut = cut_heads(model, [Head("encoder", 0, 1), Head("cross", 0, 0)])
    full, part = model.attention_weights(SOURCE, TARGET), cut.attention_weights(SOURCE, TARGET)
    torch.testing.assert_close(part["encoder"][0], full["encoder"][0][:, [0, 2, 3]])
    assert part["cross"][0].shape[1] == 3


@pytest.mark.parametrize("options", VARIANTS)
def test_folding_gates(options: dict) -> None:
    model = build(**options)
    gates = {site: torch.rand(len(model.kept[site]), 4).double() for site in ("encoder", "cross")}
    gates["cross"][1] = 0.0
    gates["encoder"][0, 2] = 0.0
    folded = fold_gates(model, gates)
    assert folded.kept["cross"][1] == []
    assert folded.kept["encoder"][0] == [0, 1, 3]
    expected = model(SOURCE, TARGET, gates)
    torch.testing.assert_close(folded(SOURCE, TARGET), expected, atol=1e-12, rtol=0)


def test_a_cut_model_trains() -> None:
    model = cut_heads(build(dtype=torch.float32), [Head("cross", 0, i) for i in range(4)]).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, fused=True)
    losses = []
    for _ in range(5):
        loss = torch.nn.functional.cross_entropy(model(SOURCE, TARGET)[0], TARGET[0])
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        losses.append(float(loss.detach()))
    assert losses[-1] < losses[0]


def test_a_cut_model_is_an_ordinary_checkpoint(learnt: Loaded, tmp_path) -> None:
    cut = cut_heads(learnt.model, [Head("cross", 0, 1)])
    save_checkpoint(tmp_path / "cut.ckpt", learnt, cut)
    again = read_checkpoint(tmp_path / "cut.ckpt")
    assert again.model.kept["cross"] == [[0, 2, 3]]
    assert again.config["model"]["ablate"] == ["cross.0.1"]
    assert "ablate" not in learnt.config.get("model", {})
    tokens = torch.tensor([[5, 6, 3]])
    torch.testing.assert_close(again.model(tokens, tokens), cut(tokens, tokens))
