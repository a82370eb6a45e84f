"""Trains every kind of attention and every position scheme alike, and puts them side by side.

    python scripts/compare_attention.py FOLDER --epochs 10     # Multi30k's raw text files

One training after the other, with ``experiment=multi30k_en_de`` and the same seed, each in its own
folder under --out; a run that was interrupted goes on, one that is finished is kept. At the end
all are scored on the test split, and train and decode in turns for their speeds. Writes
comparison.json, comparison.md and comparison.png into --out.
"""

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch
from matplotlib.figure import Figure

from headlab.allocator import keep_freed_memory
from headlab.checkpoint import Loaded, read_checkpoint
from headlab.cli.sentences import choose_sentences, read_split
from headlab.comparison import cache_size, decoding_speeds, describe_kind, training_speeds
from headlab.data.batches import EncodedPairs, TrainingBatches
from headlab.heads.measure import Measurer
from headlab.pictures import save_figure

ROOT = Path(__file__).parents[1]

VARIANTS: dict[str, list[str]] = {
    "mha": [],
    "gqa": ["attention=gqa"],
    "mqa": ["attention=mqa"],
    "mla": ["attention=mla"],
    "moh": ["attention=moh", "attention.shared_heads=1", "attention.active_heads=3"],
    "hybrid": ["attention=hybrid"],
    "learned": ["position=learned"],
    "rope": ["position=rope"],
    "alibi": ["position=alibi"],
    "none": ["position=none"],
}


def train(name: str, arguments: argparse.Namespace) -> Path:
    """The folder of a finished run; trains it, or goes on with it, where it is not."""
    folder = arguments.out / name
    if (folder / "best.test.json").exists():
        return folder
    common = [f"trainer.max_epochs={arguments.epochs}", f"threads={arguments.threads}"]
    if (folder / "last.ckpt").exists():
        command = [f"resume={folder / 'last.ckpt'}"]
    else:
        command = ["experiment=multi30k_en_de", f"data.path={arguments.folder}", "seed=1"]
        command += [*VARIANTS[name], "callbacks.attention_maps=null", f"hydra.run.dir={folder}"]
    print(f"== {name}: {' '.join(VARIANTS[name])}", flush=True)
    subprocess.run([sys.executable, str(ROOT / "train.py"), *command, *common], check=True)
    return folder


def measure(folders: dict[str, Path], turns: int) -> list[dict[str, Any]]:
    """One row a variant; speeds relative to the first."""
    loaded = {name: read_checkpoint(folder / "best.ckpt") for name, folder in folders.items()}
    first = next(iter(loaded.values()))
    sentences = choose_sentences(first, "test")
    measurers = {
        name: Measurer(one, sentences.sources, sentences.references) for name, one in loaded.items()
    }
    rows = [row(name, loaded[name], measurer) for name, measurer in measurers.items()]
    translators = [measurer.translator for measurer in measurers.values()]
    decoding = decoding_speeds(translators, sentences.sources, turns)
    pairs = first.tokenizers.encode_pairs(*read_split(first, "train"))
    pieces = EncodedPairs([a for a, _ in pairs], [b for _, b in pairs])
    batches = list(TrainingBatches(pieces, 4096, 1))[:12]
    training = training_speeds([one.model for one in loaded.values()], batches, turns)
    for one, decoded, trained in zip(rows, decoding, training, strict=True):
        one["decoding_relative"] = decoded / decoding[0]
        one["training_relative"] = trained / training[0]
    return rows


def row(name: str, loaded: Loaded, measurer: Measurer) -> dict[str, Any]:
    """What is measured without a clock."""
    found, size = measurer.measure(), cache_size(loaded.model)
    assert found.scores is not None
    return {
        "variant": name,
        "attention": describe_kind(loaded.model),
        "parameters": sum(p.numel() for p in loaded.model.parameters()),
        "cache_bytes_per_target_token": size.per_target_token,
        "cache_bytes_constant": size.constant,
        "bleu": found.scores.bleu,
        "nll": found.nll,
    }


def table(rows: list[dict[str, Any]]) -> str:
    """The rows in Markdown."""
    names = "| | Attention, positions | Parameters | Cache, bytes a target token | BLEU | nll "
    lines = [f"{names}| Training | Decoding |", "|---|---|---|---|---|---|---|---|"]
    for one in rows:
        constant = one["cache_bytes_constant"]
        cache = f"{one['cache_bytes_per_target_token']:,.0f}"
        cache += f" + {constant:,.0f} in all" if constant else ""
        lines.append(
            f"| {one['variant']} | {one['attention']} | {one['parameters']:,} | {cache} "
            f"| {one['bleu']:.2f} | {one['nll']:.3f} | {one['training_relative']:.2f} "
            f"| {one['decoding_relative']:.2f} |"
        )
    return "\n".join(lines) + "\n"


def figure(rows: list[dict[str, Any]]) -> Figure:
    """BLEU against the two speeds and the cache; other positions in another colour."""
    page = Figure(figsize=(12, 4), layout="constrained")
    axes = page.subplots(1, 3, sharey=True)
    quantities = {
        "training_relative": "training speed, MHA = 1",
        "decoding_relative": "decoding speed, MHA = 1",
        "cache_bytes_per_target_token": "cache, bytes a target token",
    }
    for place, (key, title) in zip(axes, quantities.items(), strict=True):
        for one in rows:
            moved = any(a.startswith("position=") for a in VARIANTS[one["variant"]])
            colour = "#d1701f" if moved else "#1f6fb4"
            place.plot(one[key], one["bleu"], "o", color=colour)
            offset = {"xytext": (4, 4), "textcoords": "offset points", "fontsize": 8}
            place.annotate(one["variant"], (one[key], one["bleu"]), **offset)
        place.set_xlabel(title)
        place.margins(x=0.15)  # room for the names
        place.grid(alpha=0.3)
    axes[0].set_ylabel("BLEU, test split")
    return page


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, help="Multi30k's raw text files")
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--out", type=Path, default=Path("outputs/attention"))
    parser.add_argument("--only", nargs="*", choices=list(VARIANTS), default=list(VARIANTS))
    parser.add_argument("--turns", type=int, default=3, help="for the speeds")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    keep_freed_memory()
    folders = {name: train(name, arguments) for name in VARIANTS if name in arguments.only}
    rows = measure(folders, arguments.turns)
    (arguments.out / "comparison.json").write_text(json.dumps(rows, indent=1) + "\n")
    (arguments.out / "comparison.md").write_text(table(rows))
    save_figure(figure(rows), arguments.out / "comparison.png")
    print(table(rows))


if __name__ == "__main__":
    main()
