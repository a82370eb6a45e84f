"""The load-balance loss of a mixture of heads, in training."""

import functools
from collections.abc import Sequence
from typing import Any

import pytest
import torch

from headlab.attention import balance_loss
from headlab.data.batches import Batch, collate
from headlab.head_names import SITES
from headlab.training.module import TOKENS, TranslationModule
from headlab.training.routing import active_share, balance_losses
from headlab.transformer import PAD, Transformer

MIXTURE = {"kind": "moh", "shared_heads": 1, "active_heads": 3}


def build(balance: float, ablate: Sequence[str] = (), **attention: Any) -> TranslationModule:
    torch.manual_seed(0)
    model = Transformer(
        source_vocab_size=30,
        target_vocab_size=30,
        d_model=16,
        heads=4,
        ablate=ablate,
        encoder_layers=1,
        decoder_layers=2,
        feed_forward=16,
        dropout=0.0,
        attention=MIXTURE | attention,
    ).double()
    for site in SITES:
        for layer in model.attentions(site):
            if hasattr(layer, "router"):
                torch.nn.init.normal_(layer.router.weight, std=1.0)
    sgd = functools.partial(torch.optim.SGD, lr=0.1)
    schedule = {"kind": "constant", "warmup_steps": 0}
    return TranslationModule(model, None, sgd, schedule, 0.1, {}, balance=balance)  # type: ignore[arg-type]


def example(*lengths: int) -> Batch:
    generator = torch.Generator().manual_seed(1)
    ids = [torch.randint(4, 30, (n,), generator=generator).tolist() for n in lengths]
    return collate(ids, ids[::-1])


def step(module: TranslationModule, batch: Batch) -> Any:
    """The mean loss a token."""
    return module.training_step(batch, 0)["loss"] * TOKENS / batch.target_tokens


def test_the_loss_is_that_of_the_tokens_and_the_balance_of_every_layer() -> None:
    batch = example(3, 9)
    plain = step(build(0.0), batch)
    module = build(0.5)
    loss = step(module, batch)
    expected = 0.0
    masks = {"encoder": batch.source, "decoder": batch.target_input, "cross": batch.target_input}
    for site in SITES:
        for layer in module.model.attentions(site):
            # Token by token, as the paper defines it.
            picks, total, count = torch.zeros(3).double(), torch.zeros(3).double(), 0
            for row, ids in enumerate(masks[site]):
                for place, token in enumerate(ids.tolist()):
                    if token != PAD:
                        probabilities = layer.routing.probabilities[row, place]
                        picks[probabilities.topk(2).indices] += 1
                        total += probabilities.detach()
                        count += 1
            expected += float(3 * ((picks / (2 * count)) * (total / count)).sum())
    assert expected > 5.0  # five layers, each at least about 1
    torch.testing.assert_close(loss - plain, torch.tensor(0.5 * expected).double())
    loss.backward()
    routers = [a.router.weight.grad for site in SITES for a in module.model.attentions(site)]
    assert all(gradient.abs().sum() > 0 for gradient in routers)


def test_padding_has_no_part_in_it() -> None:
    module = build(1.0)
    short, long = example(4, 5), example(4, 5, 30)
    found = []
    for batch, rows in ((short, 2), (long, 3)):
        module.training_step(batch, 0)
        layer = module.model.attentions("encoder")[0]
        real = batch.source != PAD
        real[2:] = False
        assert len(real) == rows
        found.append(balance_loss(layer.routing, real))
    torch.testing.assert_close(*found)


def test_only_layers_that_route_have_one() -> None:
    module = build(1.0, kind="mha", cross="moh")
    module.training_step(example(3, 4), 0)
    assert len(balance_losses(module.model, example(3, 4))) == 2
    assert active_share(module.model, example(3, 4)) == 0.75
    module = build(1.0, active_heads=1)
    module.training_step(example(3, 4), 0)
    assert balance_losses(module.model, example(3, 4)) == []
    with torch.no_grad():
        module.eval().model(torch.tensor([[5, 3]]), torch.tensor([[2]]))
    assert module.model.attentions("cross")[0].routing is None


def test_the_share_of_active_heads_is_that_of_the_heads_that_there_are() -> None:
    batch = example(3, 9)
    module = build(0.5, ["cross.0.1", "cross.1.*"], kind="mha", cross="moh")
    module.training_step(batch, 0)
    layer = module.model.attentions("cross")[0]
    chosen = layer.routing.chosen[batch.target_input != PAD].double()
    # Without its first routed head the layer has three: the shared one and the last two.
    expected = (1 + chosen[:, 1:].sum(-1)).mean() / 3
    assert chosen[:, 0].any()
    assert active_share(module.model, batch) == pytest.approx(float(expected))


@pytest.mark.parametrize("batches", [1, 2])
def test_the_loss_lowers_the_imbalance(batches: int) -> None:
    module = build(5.0)
    with torch.no_grad():  # every router prefers one head
        for site in SITES:
            for layer in module.model.attentions(site):
                layer.router.weight[1] += 3 * layer.router.weight[2]
    optimizer = torch.optim.SGD(module.parameters(), lr=0.05)
    found = []
    for _ in range(60):
        for number in range(batches):
            step(module, example(6 + number, 9)).backward()
        found.append(float(module._step["balance"]) / float(module._step["tokens"]))
        optimizer.step()
        optimizer.zero_grad()
        module._step = {}
    assert found[-1] < found[0] - 0.05
