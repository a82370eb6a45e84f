import pytest
import torch

from headlab.conversion import to_grouped, to_latent
from headlab.errors import HeadlabError
from headlab.transformer import Transformer

SOURCE, TARGET = torch.tensor([[5, 6, 7, 3]]), torch.tensor([[2, 8, 9]])


def build(**options) -> Transformer:
    torch.manual_seed(0)
    sizes = {"source_vocab_size": 12, "target_vocab_size": 12, "d_model": 24, "heads": 6}
    sizes |= {"encoder_layers": 2, "decoder_layers": 2, "feed_forward": 16}
    return Transformer(**sizes | options).double().eval()


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"attention": {"kind": "gqa", "kv_heads": 2, "bias": True}},
        {"attention": {"kind": "mqa"}, "position": {"kind": "alibi"}},
        {"ablate": ["cross.0.*", "encoder.1.2-3"], "position": {"kind": "none"}},
    ],
)
def test_latent_attention_computes_the_same(options: dict) -> None:
    model = build(**options)
    latent = to_latent(model)
    torch.testing.assert_close(latent(SOURCE, TARGET), model(SOURCE, TARGET), atol=1e-10, rtol=0)
    rebuilt = Transformer(**latent.hparams).double().eval()
    rebuilt.load_state_dict(latent.state_dict())
    torch.testing.assert_close(rebuilt(SOURCE, TARGET), latent(SOURCE, TARGET))
    assert latent.kept == model.kept
    encoded, cache = latent.encode(SOURCE), latent.new_cache(1, 3)
    steps = [latent.decode(TARGET[:, i : i + 1], encoded, cache).hidden for i in range(3)]
    logits = latent.logits(torch.cat(steps, dim=1))
    torch.testing.assert_close(logits, model(SOURCE, TARGET), atol=1e-10, rtol=0)


def test_grouped_heads_are_means() -> None:
    model = build(attention={"bias": True})
    grouped = to_grouped(model, 2)
    old = model.encoder[1].self_attention.in_projection
    new = grouped.encoder[1].self_attention.in_projection
    for before, after in ((old.weight, new.weight), (old.bias, new.bias)):
        assert torch.equal(before[:24], after[:24])
        keys, values = before[24:48], before[48:]
        wanted = [part[i * 12 :][:12].unflatten(0, (3, 4)).mean(0) for part in (keys, values)
                  for i in (0, 1)]  # fmt: skip
        torch.testing.assert_close(after[24:], torch.cat(wanted))
    assert grouped.hparams["attention"]["kv_heads"] == 2
    assert to_grouped(grouped, 1).attentions("cross")[0].kv_heads == 1


def test_equal_heads_stay_what_they_are() -> None:
    model = build(ablate=["encoder.0.4", "decoder.1.0-2", "cross.1.*"])
    with torch.no_grad():
        for site in ("encoder", "decoder", "cross"):
            for attention in model.attentions(site):
                weight, border = attention.in_projection.weight, attention.heads * 4
                for part in weight[border:].chunk(2):
                    if len(part):
                        part.copy_(part[:4].repeat(len(part) // 4, 1))
    for kv_heads in (3, 1):
        grouped = to_grouped(model, kv_heads)
        torch.testing.assert_close(grouped(SOURCE, TARGET), model(SOURCE, TARGET))
        torch.testing.assert_close(to_latent(grouped)(SOURCE, TARGET), model(SOURCE, TARGET))


def test_what_cannot_be_converted() -> None:
    with pytest.raises(HeadlabError, match="rotary positions cannot be rewritten exactly"):
        to_latent(build(position={"kind": "rope"}))
    with pytest.raises(HeadlabError, match=r"--kv-heads 4 must divide the 6 .* 1, 2, 3, 6"):
        to_grouped(build(), 4)
    with pytest.raises(HeadlabError, match=r"--kv-heads 3 must divide the 2 .* from 1, 2"):
        to_grouped(build(attention={"kind": "gqa", "kv_heads": 2}), 3)
    with pytest.raises(HeadlabError, match=r"the model has attention\.decoder=hybrid; only"):
        to_grouped(build(attention={"decoder": "hybrid"}), 2)
    with pytest.raises(HeadlabError, match="different numbers of key/value heads"):
        to_latent(build(attention={"cross": "mqa"}))
