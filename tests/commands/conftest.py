"""The real commands, started as a user would, on a corpus that the tests make up."""

import os
import random
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]

WORDS = {
    "red": "rouge", "blue": "bleu", "big": "grand", "cat": "chat", "dog": "chien",
    "house": "maison", "tree": "arbre", "runs": "court", "sees": "voit", "the": "le",
}  # fmt: skip

# A model and a corpus small enough for a training of seconds.
TINY = (
    "data=files",
    "tokenizer.vocab_size=300",
    "model.d_model=32",
    "model.heads=4",
    "model.feed_forward=32",
    "model.encoder_layers=1",
    "model.decoder_layers=2",
    "batches.max_tokens=250",
    "decoding.max_extra=2",
    "trainer.max_epochs=2",
    "trainer.log_every_n_steps=2",
    "schedule.warmup_steps=3",
    "callbacks.attention_maps.every_n_steps=4",
    "callbacks.attention_maps.sentences=1",
    "callbacks.checkpoints.every_n_steps=3",
    "threads=1",
)


def write_corpus(path: Path, pairs: int = 150) -> Path:
    draw = random.Random(0)
    lines = []
    for _ in range(pairs):
        words = draw.choices(list(WORDS), k=draw.randint(2, 7))
        lines.append(" ".join(words) + "\t" + " ".join(WORDS[w] for w in words))
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


@pytest.fixture(scope="session")
def environment() -> dict[str, str]:
    """One thread a process, no display, no network, an ordinary terminal width."""
    unwanted = ("DISPLAY", "HYDRA_FULL_ERROR")
    kept = {k: v for k, v in os.environ.items() if k not in unwanted}
    more = {"OMP_NUM_THREADS": "1", "MPLBACKEND": "TkAgg", "HF_HUB_OFFLINE": "1", "COLUMNS": "100"}
    return {**kept, **more}


@pytest.fixture(scope="session")
def command(environment: dict[str, str]) -> Callable[..., subprocess.CompletedProcess]:
    """``command("train", ..., cwd=...)``: train.py; "headlab-train" and others: headlab."""

    def run(name: str, *arguments: Any, cwd: Path, **options: Any) -> subprocess.CompletedProcess:
        texts = [str(a) for a in arguments]
        script = [str(ROOT / "train.py")]
        start = script if name == "train" else ["-m", "headlab", name.removeprefix("headlab-")]
        return subprocess.run(
            [sys.executable, *start, *texts],
            cwd=cwd,
            env=environment,
            capture_output=True,
            timeout=300,
            check=False,
            **options,
        )

    return run


@pytest.fixture(scope="session")
def tiny() -> Sequence[str]:
    """Overrides for a training of seconds; ``data.train`` is still to be given."""
    return TINY


@pytest.fixture(scope="session")
def workplace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with ``pairs.tsv`` in it, where one training has run."""
    folder = tmp_path_factory.mktemp("workplace")
    write_corpus(folder / "pairs.tsv")
    return folder


@pytest.fixture(scope="session")
def trained(workplace: Path, command: Callable[..., Any], tiny: Sequence[str]) -> Any:
    """The finished process of that training."""
    done = command("train", *tiny, "data.train=pairs.tsv", cwd=workplace)
    assert done.returncode == 0, done.stdout.decode() + done.stderr.decode()
    return done


@pytest.fixture(scope="session")
def run(trained: Any, workplace: Path) -> Path:
    """The folder of that run, named once: ``latest`` moves on to later runs."""
    (folder,) = (workplace / "outputs").glob("*-src-tgt-h4")
    return folder
