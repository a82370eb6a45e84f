"""A training of seconds: a few invented sentence pairs, two layers, two heads."""

import functools
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import lightning as L
import pytest
import torch
from lightning.pytorch.loggers import TensorBoardLogger

from headlab.data.module import TranslationData
from headlab.training.module import TranslationModule
from headlab.transformer import Transformer

WORDS = [("lamp", "lampe"), ("door", "porte"), ("window", "fenêtre"), ("timer", "minuteur")]
ENDS = [("is on", "est allumé"), ("costs $5_x", "coûte $5_x"), ("{name} | open", "{name} | ouvert")]
PAIRS = [(f"The {a} {c}.", f"Le {b} {d}.") for a, b in WORDS for c, d in ENDS]


@pytest.fixture
def tiny_data(tmp_path: Path) -> TranslationData:
    """Twelve pairs to train on, five of them to validate on."""

    def split(pairs: list[tuple[str, str]]) -> dict[str, list[str]]:
        return {"source": [a for a, _ in pairs], "target": [b for _, b in pairs]}

    splits = {"train": split(PAIRS), "validation": split(PAIRS[:5]), "test": split(PAIRS[5:7])}
    corpus = SimpleNamespace(source="en", target="fr", root=tmp_path, load=lambda: splits)
    tokenizer = {
        "joint": True,
        "vocab_size": 330,
        "kind": "bpe",
        "character_coverage": 1.0,
        "lowercase": False,
    }
    corpus_like: Any = corpus
    return TranslationData(
        corpus_like, tokenizer, max_tokens=80, max_length=64, subword_sampling=0.0, seed=1
    )


@pytest.fixture
def tiny_training(tiny_data: TranslationData, tmp_path: Path) -> Callable[..., TranslationModule]:
    """Trains for a few steps with the given callbacks, and returns the module."""

    def run(
        callbacks: list[Any], steps: int = 4, heads: int = 2, ablate: Any = (), **options: Any
    ) -> Any:
        torch.set_num_threads(1)
        L.seed_everything(3, verbose=False)
        tokenizers = tiny_data.prepare()
        model = Transformer(
            source_vocab_size=tokenizers.source.vocab_size,
            target_vocab_size=tokenizers.target.vocab_size,
            d_model=32,
            heads=heads,
            ablate=ablate,
            encoder_layers=2,
            decoder_layers=2,
            feed_forward=32,
            dropout=0.2,
        )
        module = TranslationModule(
            model,
            tokenizers,
            functools.partial(torch.optim.AdamW, lr=0.01),
            schedule={"kind": "cosine", "warmup_steps": 2},
            label_smoothing=0.1,
            config={},
        )
        settings: dict[str, Any] = {
            "max_steps": steps,
            "accelerator": "cpu",
            "logger": TensorBoardLogger(tmp_path / "logs", name="", version=""),
            "enable_checkpointing": False,
            "enable_model_summary": False,
            "enable_progress_bar": False,
            "num_sanity_val_steps": 1,
        }
        trainer = L.Trainer(callbacks=callbacks, **(settings | options))
        trainer.fit(module, datamodule=tiny_data)
        for one in trainer.loggers:
            one.finalize("success")
        return module

    return run


@pytest.fixture
def read_events(tmp_path: Path) -> Callable[[], Any]:
    """The event file of the training, read back by TensorBoard, nothing left out."""

    def read() -> Any:
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

        keep_all = {"images": 0, "scalars": 0, "tensors": 0}
        events = EventAccumulator(str(tmp_path / "logs"), size_guidance=keep_all)
        events.Reload()
        return events

    return read
