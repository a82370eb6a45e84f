"""A checkpoint whose corpus is there to be read."""

from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
import torch

Pairs = tuple[tuple[str, str], ...]
SPLITS = ("train", "validation", "test")


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
