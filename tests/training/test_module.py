"""Losses and gradients do not depend on how sentences are grouped into batches."""

import functools

import lightning as L
import pytest
import torch
import torch.nn.functional as F

from headlab.data.batches import EvaluationBatches, collate
from headlab.training.module import TranslationModule
from headlab.transformer import Transformer

VOCABULARY = 30


def build(smoothing: float = 0.1, seed: int = 0) -> TranslationModule:
    torch.manual_seed(seed)
    model = Transformer(
        source_vocab_size=VOCABULARY,
        target_vocab_size=VOCABULARY,
        d_model=16,
        heads=2,
        encoder_layers=1,
        decoder_layers=1,
        feed_forward=16,
        dropout=0.0,
        position={"kind": "sinusoidal", "max_length": 200},
    ).double()
    sgd = functools.partial(torch.optim.SGD, lr=0.1)
    schedule = {"kind": "constant", "warmup_steps": 0}
    return TranslationModule(model, None, sgd, schedule, smoothing, {})  # type: ignore[arg-type]


def rows(*lengths: int) -> list[list[int]]:
    generator = torch.Generator().manual_seed(1)
    return [torch.randint(4, VOCABULARY, (n,), generator=generator).tolist() for n in lengths]


def test_the_loss_is_that_of_torch_on_real_tokens() -> None:
    module = build()
    batch = collate(rows(3, 9), rows(8, 2))
    loss, nll = module.loss_sums(batch)
    logits = module.model(batch.source, batch.target_input).flatten(0, 1)
    options = {"ignore_index": 0, "reduction": "sum"}
    target = batch.target_output.flatten()
    torch.testing.assert_close(nll, F.cross_entropy(logits, target, **options).detach())
    smoothed = F.cross_entropy(logits, target, label_smoothing=0.1, **options)
    torch.testing.assert_close(loss, smoothed)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_padding_counts_nowhere(smoothing: float) -> None:
    """Two sentences alone, and beside one that is thirty tokens longer."""
    module = build(smoothing)
    sources, targets = rows(4, 5), rows(6, 3)
    long_source, long_target = rows(35), rows(36)
    alone = module.loss_sums(collate(sources, targets))
    longer = module.loss_sums(collate(long_source, long_target))
    together = module.loss_sums(collate(sources + long_source, targets + long_target))
    for a, b, both in zip(alone, longer, together, strict=True):
        torch.testing.assert_close(a + b, both)


def test_a_pair_with_an_empty_target_has_a_finite_loss() -> None:
    loss, nll = build().loss_sums(collate([[5, 6]], [[]]))
    assert loss.isfinite()
    assert nll.isfinite()


class Batches:
    def __init__(self, batches: list) -> None:
        self.batches = batches

    def __iter__(self):
        return iter(self.batches)

    def __len__(self) -> int:
        return len(self.batches)


def train(batches: list, accumulate: int, clip: float | None = None) -> TranslationModule:
    module = build()
    trainer = L.Trainer(
        max_epochs=1,
        accelerator="cpu",
        accumulate_grad_batches=accumulate,
        gradient_clip_val=clip,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        precision="64-true",
    )
    trainer.fit(module, train_dataloaders=Batches(batches))
    assert trainer.global_step == -(-len(batches) // accumulate)
    return module


@pytest.mark.parametrize("clip", [None, 0.05])
def test_accumulation_equals_one_large_batch(clip: float | None) -> None:
    """Sentences of 10 and of 100 tokens, one after the other or together."""
    sources, targets = rows(10, 100), rows(9, 99)
    together = train([collate(sources, targets)], 1, clip)
    apart = [collate(sources[i : i + 1], targets[i : i + 1]) for i in range(2)]
    accumulated = train(apart, 2, clip)
    start = build()
    for name, parameter in accumulated.named_parameters():
        torch.testing.assert_close(parameter, dict(together.named_parameters())[name])
    assert not torch.equal(start.model.output.weight, together.model.output.weight)


def test_the_last_window_of_an_epoch_may_be_short() -> None:
    sources, targets = rows(5, 7, 20), rows(6, 4, 19)
    single = [collate(sources[i : i + 1], targets[i : i + 1]) for i in range(3)]
    accumulated = train(single, 2)
    expected = train([collate(sources[:2], targets[:2]), single[2]], 1)
    for name, parameter in accumulated.named_parameters():
        torch.testing.assert_close(parameter, dict(expected.named_parameters())[name])


def test_validation_does_not_depend_on_the_batch_size(tiny_data) -> None:
    tokenizers = tiny_data.prepare()
    module = build()
    module.model = Transformer(
        source_vocab_size=tokenizers.source.vocab_size,
        target_vocab_size=tokenizers.target.vocab_size,
        d_model=16,
        heads=2,
        encoder_layers=1,
        decoder_layers=1,
        feed_forward=16,
        dropout=0.0,
    ).double()
    sums = []
    for budget in (1, 40, 10_000):
        batches = EvaluationBatches(tiny_data.pairs["validation"], budget)
        losses = [torch.stack(module.loss_sums(batch)) for batch in batches]
        sums.append(torch.stack(losses).sum(dim=0))
        assert sum(b.target_tokens for b in batches) > 0
    torch.testing.assert_close(sums[0], sums[1])
    torch.testing.assert_close(sums[0], sums[2])
