"""What is printed, and logged, when a training has ended."""

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from headlab.cli.configuration import shown
from headlab.cli.evaluate import evaluate
from headlab.cli.shared import example_sentence
from headlab.training.fit import Run


def report_run(run: Run, config: Mapping[str, Any]) -> dict[str, Any]:
    """Score the best checkpoint on the test split, show samples, fill the hyper-parameter tab.

    Returns:
        The final numbers: parameters, ``val_bleu`` (when it was measured), ``test_bleu``, ...
    """
    checkpoint = Path(shown(run.checkpoint))
    print(f"test split, {checkpoint}:")
    results = evaluate(checkpoint, split="test", threads=config["threads"], device="auto")
    lines = checkpoint.with_name(results["hypotheses"]).read_text("utf-8").split("\n")
    sources, references = run.data.texts["test"]
    _print_samples(sources, references, lines, config["evaluation"]["samples"])

    model = run.module.model
    final: dict[str, Any] = {
        "parameters": sum(p.numel() for p in model.parameters()),
        "test_bleu": results["bleu"],
        "test_chrf": results["chrf"],
        "test_perplexity": results["perplexity"],
    }
    if run.best_score is not None:
        final["best_validation"] = run.best_score
    metrics = {f"final/{k}": float(v) for k, v in final.items() if v is not None}
    run.logger.log_hyperparams(_flat(config), metrics, step=run.step)
    run.logger.finalize("success")
    print(f"\nparameters {final['parameters']:,}   test BLEU {final['test_bleu']:.2f}")
    example = example_sentence(sources)
    print(f"next: headlab translate {shlex.quote(str(checkpoint))} {example}")
    print(f"      tensorboard --logdir {shown(run.folder.parent)}")
    return final


def _print_samples(
    sources: Sequence[str], references: Sequence[str], lines: Sequence[str], count: int
) -> None:
    """A few test sentences, evenly spread over the split: not the best ones."""
    if count < 1 or not sources:
        return
    table = Table("source", "translation", "reference", title="sample translations", expand=False)
    step = max(1, len(sources) // count)
    for i in range(step // 2, len(sources), step)[:count]:
        table.add_row(Text(sources[i]), Text(lines[i]), Text(references[i]))
    Console().print(table)


def report_sweep(results: Sequence[tuple[str, Mapping[str, Any] | None]]) -> None:
    """One line a job of a sweep."""
    table = Table("job", "parameters", "test BLEU", "test chrF", title="sweep")
    for name, final in results:
        if final is None:
            table.add_row(Text(name), "", "failed", "")
        else:
            bleu, chrf = f"{final['test_bleu']:.2f}", f"{final['test_chrf']:.2f}"
            table.add_row(Text(name), f"{final['parameters']:,}", bleu, chrf)
    Console().print(table)


def _flat(tree: Mapping[str, Any], key: str = "") -> dict[str, Any]:
    """Nested mappings as dotted keys, for TensorBoard's table."""
    flat: dict[str, Any] = {}
    for name, value in tree.items():
        if isinstance(value, Mapping):
            flat |= _flat(value, f"{key}{name}.")
        else:
            flat[f"{key}{name}"] = value if isinstance(value, int | float | bool) else str(value)
    return flat
