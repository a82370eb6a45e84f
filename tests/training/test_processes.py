"""Several processes train the model that one process trains on the same sentences."""

import functools
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import lightning as L
import numpy as np
import pytest
import torch
from lightning.pytorch.loggers.logger import DummyLogger

from headlab.data.batches import EncodedPairs, EvaluationBatches, TrainingBatches, collate
from headlab.heads.hard_concrete import HardConcreteGates
from headlab.training.averaging import MovingAverage
from headlab.training.module import TranslationModule
from headlab.transformer import Transformer

VOCABULARY = 40
MIXTURE = {"kind": "moh", "shared_heads": 1, "active_heads": 2}

# Name -> batches that each process accumulates, and what is trained how.
RUNS: dict[str, dict[str, Any]] = {
    "one batch a step": {"clip": 0.5},
    "accumulated, gates": {"accumulate": 2, "gates": True, "shards": 1, "average": True},
    "a mixture of heads": {"accumulate": 2, "balance": 0.5, "attention": MIXTURE},
    "heads left out": {"shards": 1, "ablate": ["encoder.0.*", "cross.0.1"]},
    "dropout": {"dropout": 0.3, "gates": True},
}
MORE: dict[str, dict[str, Any]] = {
    "gates": {"gates": True, "clip": 0.1},
    "gates and a mixture": {"gates": True, "balance": 0.2, "attention": MIXTURE, "shards": 1},
    "clipped by value": {"accumulate": 3, "clip": 0.01, "by": "value"},
    "more accumulated than there is": {"accumulate": 50},
    "latent attention": {"attention": {"kind": "mla"}, "ablate": ["decoder.0.*"]},
    "recurrence": {"attention": {"decoder": "hybrid"}, "accumulate": 2},
    "nothing but sentences alone": {"tokens": 1, "accumulate": 4},
    "one batch": {"tokens": 10_000},
}


class Data(L.LightningDataModule):
    """Random pairs of 1 to 14 pieces: seven batches of at most 60 tokens."""

    def __init__(self, tokens: int) -> None:
        super().__init__()
        draw = np.random.default_rng(0)
        sides = [
            [draw.integers(4, VOCABULARY, draw.integers(1, 15)).tolist() for _ in range(20)]
            for _ in range(2)
        ]
        self.pairs, self.tokens = EncodedPairs(*sides), tokens

    def train_dataloader(self) -> TrainingBatches:
        place = self.trainer.global_rank, self.trainer.world_size
        return TrainingBatches(self.pairs, self.tokens, 1, *place)

    def val_dataloader(self) -> EvaluationBatches:
        place = self.trainer.global_rank, self.trainer.world_size
        return EvaluationBatches(self.pairs, self.tokens, *place)


class Notes(DummyLogger):
    """Keeps what is logged."""

    def __init__(self) -> None:
        super().__init__()
        self.noted: list[dict[str, float]] = []

    def log_metrics(self, metrics: dict[str, float], *args: Any, **kwargs: Any) -> None:
        timed = "train/tokens_per_second"
        self.noted.append({name: value for name, value in metrics.items() if name != timed})


class Draws(L.Callback):
    """Random numbers that a process draws at the start of each batch; sentences that it sees."""

    def __init__(self) -> None:
        self.drawn: list[float] = []
        self.seen: list[list[int]] = []

    def on_train_batch_end(
        self, trainer: Any, module: Any, outputs: Any, batch: Any, i: int
    ) -> None:
        with torch.random.fork_rng():
            self.drawn.append(float(torch.rand(())))
        self.seen.append(list(batch.indices))


def build(
    gates: bool = False,
    balance: float = 0.0,
    shards: int = 2,
    dropout: float = 0.0,
    attention: dict[str, Any] | None = None,
    ablate: Any = (),
) -> TranslationModule:
    L.seed_everything(2, verbose=False)
    model = Transformer(
        source_vocab_size=VOCABULARY,
        target_vocab_size=VOCABULARY,
        d_model=16,
        heads=4,
        ablate=ablate,
        encoder_layers=1,
        decoder_layers=1,
        feed_forward=16,
        dropout=dropout,
        attention={"kind": "mha"} | (attention or {}),
    )
    penalty = {"encoder": 0.3, "decoder": 0.2, "cross": 0.1}
    return TranslationModule(
        model,
        None,  # type: ignore[arg-type]
        functools.partial(torch.optim.AdamW, lr=0.01),
        {"kind": "constant", "warmup_steps": 3},
        0.1,
        {},
        gates=HardConcreteGates.of_model(model, penalty=penalty, start=0.5) if gates else None,
        balance=balance,
        shards=shards,
    ).double()


def train(
    processes: int = 1,
    accumulate: int = 1,
    clip: float | None = None,
    by: str = "norm",
    average: bool = False,
    tokens: int = 60,
    **options: Any,
) -> dict[str, Any]:
    """Two epochs; what comes of them."""
    module = build(**options)
    notes, draws, averaging = Notes(), Draws(), MovingAverage(0.9)
    trainer = L.Trainer(
        max_epochs=2,
        accelerator="cpu",
        devices=processes,
        strategy="ddp" if processes > 1 else "auto",
        accumulate_grad_batches=accumulate,
        gradient_clip_val=clip,
        gradient_clip_algorithm=by,
        use_distributed_sampler=False,
        callbacks=[draws, *([averaging] if average else [])],
        logger=notes,
        log_every_n_steps=2,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        num_sanity_val_steps=0,
        precision="64-true",
    )
    trainer.fit(module, datamodule=Data(tokens))
    return {
        "weights": {name: p.detach().clone() for name, p in module.named_parameters()},
        "steps": trainer.global_step,
        "validation": {k: float(v) for k, v in trainer.callback_metrics.items()},
        "notes": notes.noted,
        "tokens": module.stopwatch.tokens,
        "drawn": draws.drawn,
        "seen": draws.seen,
    }


def work(rank: int, processes: int, runs: dict[str, dict[str, Any]], folder: Path) -> None:
    """What each process of several does."""
    os.environ |= {"LOCAL_RANK": str(rank), "NODE_RANK": "0"}
    torch.set_num_threads(1)
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=processes
    )
    torch.save({name: train(processes, **run) for name, run in runs.items()}, folder / str(rank))


@functools.cache
def of_one(name: str, processes: int) -> dict[str, Any]:
    """What one process makes of the same sentences a step."""
    run = (RUNS | MORE)[name]
    return train(**{**run, "accumulate": run.get("accumulate", 1) * processes})


def start(
    processes: int, runs: dict[str, dict[str, Any]], folder: Path
) -> list[dict[str, dict[str, Any]]]:
    torch.multiprocessing.spawn(work, (processes, runs, folder), processes)  # type: ignore[no-untyped-call]
    return [torch.load(folder / str(rank), weights_only=True) for rank in range(processes)]


def check(found: list[dict[str, dict[str, Any]]], name: str) -> None:
    """All processes the same to the bit, and the same as one."""
    first, *others = [one[name] for one in found]
    for other in others:
        for key, weight in first["weights"].items():
            assert torch.equal(other["weights"][key], weight), key
        assert other["validation"] == first["validation"]
    alone = of_one(name, len(found))
    assert first["steps"] == alone["steps"] > 0
    seen = zip(*(one[name]["seen"] for one in found), strict=True)
    assert [batch for step in seen for batch in step if batch] == alone["seen"]
    for key, weight in alone["weights"].items():
        torch.testing.assert_close(first["weights"][key], weight, atol=1e-9, rtol=0.0)
    assert first["validation"] == pytest.approx(alone["validation"], abs=1e-6)
    assert len(first["notes"]) == len(alone["notes"]) > 0
    for mine, theirs in zip(first["notes"], alone["notes"], strict=True):
        assert mine == pytest.approx(theirs, abs=1e-6)
    assert first["tokens"] == alone["tokens"]


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, dict[str, Any]]]:
    return start(2, RUNS, tmp_path_factory.mktemp("two"))


@pytest.mark.parametrize("name", [name for name in RUNS if name != "dropout"])
def test_two_processes_are_one(two: Any, name: str) -> None:
    check(two, name)


def test_dropout_masks_differ_between_processes(two: Any) -> None:
    first, second = (one["dropout"] for one in two)
    assert not set(first["drawn"]) & set(second["drawn"])
    for key, weight in first["weights"].items():
        assert torch.equal(second["weights"][key], weight), key


@pytest.mark.slow
@pytest.mark.parametrize("processes", [2, 3])
def test_any_number_of_processes_is_one(processes: int, tmp_path: Path) -> None:
    runs = {name: run for name, run in (RUNS | MORE).items() if name != "dropout"}
    found = start(processes, runs, tmp_path)
    for name in runs:
        check(found, name)


def test_one_process_draws_what_it_always_did() -> None:
    """Giving other processes masks of their own changes nothing for the first."""
    module = build()
    strategy = SimpleNamespace(broadcast=lambda seed: seed)
    before = torch.get_rng_state()
    module._trainer = SimpleNamespace(global_rank=0, strategy=strategy)  # type: ignore[assignment]
    module.on_fit_start()
    assert torch.equal(torch.get_rng_state(), before)
    drawn = {float(torch.rand(()))}
    for rank in (1, 2):
        module._trainer = SimpleNamespace(global_rank=rank, strategy=strategy)  # type: ignore[assignment]
        module.on_fit_start()
        drawn.add(float(torch.rand(())))
    assert len(drawn) == 3


@pytest.mark.parametrize("attention", [{}, {"kind": "mla"}, MIXTURE, {"decoder": "hybrid"}])
def test_a_batch_without_sentences_is_no_trouble(attention: dict[str, Any]) -> None:
    module = build(attention=attention, gates=True, balance=0.5)
    outputs = module.training_step(collate([], []), 0)
    outputs["loss"].backward()
    assert outputs["loss"] == 0.0
    for parameter in module.parameters():
        assert parameter.grad is None or not parameter.grad.any()
    assert all(float(value) == 0.0 for value in module._step.values())
