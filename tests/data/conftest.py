"""Corpora built from the shipped configurations, below a temporary folder."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf

from headlab.data.corpus import Corpus, build_corpus

CONFIGS = Path(__file__).parents[2] / "configs" / "data"


@pytest.fixture
def configure(tmp_path: Path) -> Callable[..., dict[str, Any]]:
    """``configure("files", train=...)``: that configuration as plain types, with overrides."""

    def make(name: str, **overrides: Any) -> dict[str, Any]:
        whole = OmegaConf.create(
            {
                "paths": {"data": str(tmp_path / "data")},
                "data": OmegaConf.load(CONFIGS / f"{name}.yaml"),
            }
        )
        plain = OmegaConf.to_container(whole.data, resolve=True)
        assert isinstance(plain, dict)
        return {**plain, **overrides}

    return make


@pytest.fixture
def build(configure: Callable[..., dict[str, Any]]) -> Callable[..., Corpus]:
    """``build("files", train=...)``: the corpus of that configuration."""

    def make(name: str, **overrides: Any) -> Corpus:
        return build_corpus(configure(name, **overrides))

    return make
