"""A checkpoint that has learnt a dozen sentences by heart, for tests that need real text."""

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from omegaconf import OmegaConf

from headlab.checkpoint import Loaded, contents
from headlab.cli import configuration
from headlab.data.tokenizer import BOS, EOS, Tokenizers, train_tokenizer
from headlab.decoding.hypothesis import pad_sources
from headlab.transformer import Transformer

LEARNT = (
    ("the timer is finished", "le minuteur est terminé"),
    ("the light is on", "la lumière est allumée"),
    ("the light is off", "la lumière est éteinte"),
    ("open the door", "ouvrez la porte"),
    ("close the door", "fermez la porte"),
    ("good morning", "bonjour"),
    ("what is that ?", "qu'est-ce que « ça » ?"),
    ("a friend", "un ami"),
    ("the door of the house is open", "la porte de la maison est ouverte"),
    ("two lines", "deux\nlignes"),  # this one is translated with a line break inside
)


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> None:
    """Models this small only lose time when two threads share one of their products."""
    torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def logging_as_it_was() -> Iterator[None]:
    """A training started in this process sets levels, and leaves its log file open."""
    loggers = [logging.getLogger(), logging.getLogger("headlab")]
    before = [one.level for one in loggers]
    yield
    for one, level in zip(loggers, before, strict=True):
        one.setLevel(level)
    for handler in list(loggers[0].handlers):
        if isinstance(handler, logging.FileHandler):
            loggers[0].removeHandler(handler)
            handler.close()


@pytest.fixture(scope="session")
def learnt_pairs() -> tuple[tuple[str, str], ...]:
    """The pairs (source, target) that ``learnt`` translates perfectly."""
    return LEARNT


@pytest.fixture(scope="session")
def learnt_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The path of a checkpoint of ``learnt``; copy it before writing beside it."""
    path = tmp_path_factory.mktemp("learnt") / "best.ckpt"
    tokenizer = train_tokenizer(
        [text.replace("\n", " ") for pair in LEARNT for text in pair],
        vocab_size=330,
        kind="bpe",
        character_coverage=1.0,
        lowercase=False,
    )
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = Transformer(
            source_vocab_size=tokenizer.vocab_size,
            target_vocab_size=tokenizer.vocab_size,
            d_model=32,
            heads=4,
            encoder_layers=1,
            decoder_layers=1,
            feed_forward=64,
            dropout=0.0,
            position={"kind": "sinusoidal", "max_length": 64},
        )
        _learn(model, Tokenizers(tokenizer, tokenizer))
    config = {
        "data": {"source": "en", "target": "fr"},
        "decoding": {"beam": 1, "length_penalty": 1.0},
        "evaluation": {"lowercase": False},
    }
    weights = {f"model.{name}": tensor for name, tensor in model.state_dict().items()}
    described = contents(model, Tokenizers(tokenizer, tokenizer), config)
    torch.save({"headlab": described, "state_dict": weights, "global_step": 150}, path)
    return path


@pytest.fixture
def learnt(learnt_checkpoint: Path) -> Loaded:
    """The checkpoint, read."""
    from headlab.checkpoint import read_checkpoint

    return read_checkpoint(learnt_checkpoint)


@pytest.fixture(scope="session")
def run_config() -> dict[str, Any]:
    """The configuration of a training, as its checkpoints hold it; ``data`` names no real file."""
    overrides = [
        "data=files",
        "data.source=en",
        "data.target=fr",
        "data.train=pairs.tsv",
        "batches.max_length=64",
        "schedule.warmup_steps=3",
    ]
    GlobalHydra.instance().clear()
    with initialize_config_dir(str(configuration.folder()), version_base="1.3"):
        composed = compose("train", overrides=overrides)
    config: Any = OmegaConf.to_container(composed, resolve=True)
    return config


def _learn(model: Transformer, tokenizers: Tokenizers) -> None:
    device = torch.device("cpu")
    source = pad_sources([tokenizers.source.encode(text) for text, _ in LEARNT], device)
    output = pad_sources([tokenizers.target.encode(text) for _, text in LEARNT], device)
    target = torch.cat([torch.full_like(output[:, :1], BOS), output[:, :-1]], dim=1)
    target = target.masked_fill(target == EOS, 0)
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    for _ in range(150):
        logits = model(source, target)
        loss = F.cross_entropy(logits.flatten(0, 1), output.flatten(), ignore_index=0)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    model.eval()
