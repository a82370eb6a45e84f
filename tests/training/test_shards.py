"""Parts of a batch side by side: the same loss and gradients as the whole, whatever the threads."""

import functools
from collections.abc import Iterator
from typing import Any

import lightning as L
import pytest
import torch

from headlab.data.batches import Batch, collate
from headlab.errors import HeadlabError
from headlab.heads.hard_concrete import HardConcreteGates
from headlab.training.module import TOKENS, TranslationModule
from headlab.training.shards import Shards
from headlab.transformer import Transformer

VOCABULARY = 40


@pytest.fixture(autouse=True)
def threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def build(
    shards: int, dropout: float = 0.0, gates: bool = False, balance: float = 0.0, **attention: Any
) -> TranslationModule:
    torch.manual_seed(0)
    model = Transformer(
        source_vocab_size=VOCABULARY,
        target_vocab_size=VOCABULARY,
        d_model=16,
        heads=4,
        encoder_layers=1,
        decoder_layers=2,
        feed_forward=16,
        dropout=dropout,
        feed_forward_dropout=dropout,
        attention={"kind": "mha", "dropout": dropout} | attention,
    ).double()
    learnt = None
    if gates:
        penalty = {"encoder": 0.3, "decoder": 0.2, "cross": 0.1}
        learnt = HardConcreteGates.of_model(model, penalty=penalty, start=0.5).double()
    sgd = functools.partial(torch.optim.SGD, lr=0.1)
    schedule = {"kind": "constant", "warmup_steps": 0}
    return TranslationModule(
        model,
        None,  # type: ignore[arg-type]
        sgd,
        schedule,
        0.1,
        {},
        gates=learnt,
        balance=balance,
        shards=shards,
    )


def example(*lengths: int) -> Batch:
    generator = torch.Generator().manual_seed(1)
    ids = [torch.randint(4, VOCABULARY, (n,), generator=generator).tolist() for n in lengths]
    return collate(ids, ids[::-1])


BATCH = example(9, 3, 7, 7, 1, 12, 5)


class Batches:
    def __iter__(self) -> Iterator[Batch]:
        return iter([BATCH, example(4, 8), example(2, 2, 6)])

    def __len__(self) -> int:
        return 3


def gradients(module: TranslationModule, batch: Batch = BATCH) -> tuple[Any, dict[str, Any]]:
    torch.manual_seed(5)
    loss = module.training_step(batch, 0)["loss"] * TOKENS / batch.target_tokens
    loss.backward()
    return loss.detach(), {name: p.grad for name, p in module.named_parameters()}


@pytest.mark.parametrize("number", [1, 2])
@pytest.mark.parametrize("shards", [2, 3, 50])
@pytest.mark.parametrize("kind", ["mha", "mla", "hybrid", "gates"])
def test_parts_add_up_to_the_whole(kind: str, shards: int, number: int) -> None:
    torch.set_num_threads(number)
    options: dict[str, Any] = {"kind": kind}
    if kind in ("gates", "hybrid"):
        options = {"gates": True} if kind == "gates" else {"decoder": kind}
    whole, parts = build(1, **options), build(shards, **options)
    (loss, found), (expected_loss, expected) = gradients(parts), gradients(whole)
    torch.testing.assert_close(loss, expected_loss)
    for name, gradient in expected.items():
        torch.testing.assert_close(found[name], gradient)
    assert float(parts._step["loss"]) == pytest.approx(float(whole._step["loss"]))


@pytest.mark.parametrize("kind", ["mha", "moh", "gates"])
def test_the_seed_decides_and_not_the_threads(kind: str) -> None:
    """Dropout everywhere, routing, gates: bit for bit on one thread and on two."""
    options: dict[str, Any] = {"gates": True} if kind == "gates" else {"kind": kind}
    if kind == "moh":
        options |= {"shared_heads": 1, "active_heads": 2, "balance": 0.5}
    results = []
    for number in (1, 2, 2):
        torch.set_num_threads(number)
        module = build(2, dropout=0.3, **options)
        results.append((*gradients(module), module._step.get("balance"), torch.rand(3)))
    for loss, found, balance, after in results[1:]:
        assert torch.equal(loss, results[0][0])
        for name, gradient in results[0][1].items():
            assert torch.equal(found[name], gradient), name
        assert kind != "moh" or torch.equal(balance, results[0][2])
        assert torch.equal(after, results[0][3])  # the global generator has moved alike
    torch.manual_seed(6)
    other = build(2, dropout=0.3, **options).training_step(BATCH, 0)["loss"]
    other = other * TOKENS / BATCH.target_tokens
    assert not torch.equal(other.detach(), results[0][0])


def test_routing_is_balanced_within_each_part() -> None:
    options = {"kind": "moh", "shared_heads": 1, "active_heads": 2, "balance": 0.5}
    torch.set_num_threads(2)
    loss, _ = gradients(build(2, **options))
    expected = 0.0
    whole = build(1, **options)
    for part in BATCH.split(2):
        value, _ = whole._objective(part)
        expected += value.detach()
    torch.testing.assert_close(loss, expected / BATCH.target_tokens)


def test_a_parameter_that_no_part_uses_has_no_gradient() -> None:
    used, unused = (torch.nn.Parameter(torch.ones(2)) for _ in range(2))

    def objective(part: Batch) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        return part.target_tokens * used.sum(), {"tokens": torch.tensor(part.target_tokens)}

    value, sums = Shards(2)(objective, BATCH, [used, unused])
    (value * 3).backward()
    assert value.item() == 2 * BATCH.target_tokens
    assert sums["tokens"].item() == BATCH.target_tokens
    assert used.grad is not None
    assert used.grad.tolist() == [3 * BATCH.target_tokens] * 2
    assert unused.grad is None


def test_an_error_in_a_part_is_raised() -> None:
    torch.set_num_threads(2)
    module = build(2)
    module.model.encoder[0].feed_forward.first.weight.data = torch.zeros(3, 3).double()
    with pytest.raises(RuntimeError, match="shape"):
        module.training_step(BATCH, 0)


@pytest.mark.parametrize("precision", ["bf16-mixed", "64-true"])
def test_precision_reaches_the_threads(precision: Any) -> None:
    """Accumulated, clipped, in Lightning: the weights after an epoch on one thread and on two."""
    weights = []
    for number in (1, 2):
        torch.set_num_threads(number)
        L.seed_everything(2, verbose=False)
        module = build(2, dropout=0.1)
        module = module if precision == "64-true" else module.float()
        seen: list[torch.dtype] = []
        module.model.encoder[0].feed_forward.first.register_forward_hook(
            lambda layer, inputs, output, seen=seen: seen.append(output.dtype)
        )
        trainer = L.Trainer(
            max_epochs=1,
            accelerator="cpu",
            accumulate_grad_batches=2,
            gradient_clip_val=0.5,
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            precision=precision,
        )
        trainer.fit(module, train_dataloaders=Batches())
        assert set(seen) == {torch.bfloat16 if precision == "bf16-mixed" else torch.float64}
        weights.append(torch.cat([p.detach().flatten() for p in module.parameters()]))
    assert torch.equal(*weights)


def test_out_of_range() -> None:
    with pytest.raises(HeadlabError, match=r"shards=0 must be at least 1"):
        Shards(0)
