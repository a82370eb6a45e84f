"""A checkpoint whose corpus is there to be read; a training's command in this process."""

import logging
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest
import torch
from hydra.core.global_hydra import GlobalHydra

from headlab.cli import folders
from headlab.data.corpus import Corpus

Pairs = tuple[tuple[str, str], ...]
SPLITS = ("train", "validation", "test")


@pytest.fixture
def empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """An empty folder to start trainings in that fail before any corpus is read."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["train.py"])
    folders.new_folder.cache_clear()
    monkeypatch.setattr(folders, "_made", [])
    monkeypatch.setattr(Corpus, "load", lambda _: pytest.fail("the corpus was read"))
    handlers, level = list(logging.getLogger().handlers), logging.getLogger().level
    yield
    GlobalHydra.instance().clear()
    logging.getLogger().handlers[:] = handlers  # Hydra sets up logging anew for each job
    logging.getLogger().setLevel(level)


@pytest.fixture
def sentence_pairs(learnt_pairs: Pairs) -> list[tuple[str, str]]:
    """The pairs that fit into a file with a sentence a line."""
    return [pair for pair in learnt_pairs if "\n" not in pair[1]]


@pytest.fixture
def checkpoint_with_corpus(learnt_checkpoint: Path, tmp_path: Path) -> Callable[..., Path]:
    """``checkpoint_with_corpus({split: pairs})``: a copy whose configuration names these files."""

    def write(parts: Mapping[str, list[tuple[str, str]]]) -> Path:
        for split, rows in parts.items():
            text = "".join(f"{source}\t{target}\n" for source, target in rows)
            (tmp_path / f"{split}.tsv").write_text(text, encoding="utf-8")
        raw = torch.load(learnt_checkpoint, weights_only=True)
        raw["headlab"]["config"]["data"] = {
            "_target_": "headlab.data.files.Files",
            "source": "en",
            "target": "fr",
            "root": str(tmp_path / "data"),
            "limit": None,
            **{split: str(tmp_path / f"{split}.tsv") for split in SPLITS},
            "format": None,
            "source_column": None,
            "target_column": None,
            "validation_share": 0.1,
            "test_share": 0.1,
        }
        path = tmp_path / "run" / "best.ckpt"
        path.parent.mkdir()
        torch.save(raw, path)
        return path

    return write
