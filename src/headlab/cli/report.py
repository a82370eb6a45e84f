"""What is printed, and logged, when a training has ended."""

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.table import Table
from rich.text import Text

from headlab.cli.configuration import shown
from headlab.cli.evaluate import evaluate
from headlab.cli.shared import example_sentence
from headlab.cli.streams import print_table
from headlab.head_names import SITES, TITLES, compress
from headlab.training.fit import Run

if TYPE_CHECKING:
    from headlab.transformer import Transformer


def report_run(run: Run, config: Mapping[str, Any]) -> dict[str, Any]:
    """Score the best checkpoint on the test split, show samples, fill the hyper-parameter tab.

    Where gates were learnt, say which heads are left and what it cost.

    Returns:
        The final numbers: ``parameters``, ``heads``, ``test_bleu``, ``test_chrf``,
        ``test_perplexity``, ``best_validation`` and the number that it is of (``monitor``), and
        target tokens a second of the training steps (None for a run that had ended before).
    """
    checkpoint = Path(shown(run.checkpoint))
    print(f"test split, {checkpoint}:")
    results = evaluate(checkpoint, split="test", threads=config["threads"], device="auto")
    lines = checkpoint.with_name(results["hypotheses"]).read_text("utf-8").split("\n")
    sources, references = run.data.texts["test"]
    _print_samples(sources, references, lines, config["evaluation"]["samples"])

    model = run.module.model
    if run.module.gates is not None:
        model = _report_gates(run, config, results["bleu"])
    final: dict[str, Any] = {
        "parameters": sum(p.numel() for p in model.parameters()),
        "heads": len(model.head_names),
        "test_bleu": results["bleu"],
        "test_chrf": results["chrf"],
        "test_perplexity": results["perplexity"],
        "best_validation": run.best_score,
        "tokens_per_second": run.module.stopwatch.tokens_per_second,
    }
    metrics = {f"final/{k}": float(v) for k, v in final.items() if v is not None}
    run.logger.log_hyperparams(_flat(config), metrics, step=run.step)
    run.logger.finalize("success")
    print(f"\nparameters {final['parameters']:,}   test BLEU {final['test_bleu']:.2f}")
    path, example = shlex.quote(str(checkpoint)), example_sentence(sources)
    gated = run.module.gates is not None
    print(f"next: headlab roles {path}" if gated else f"next: headlab translate {path} {example}")
    print(f"      tensorboard --logdir {shown(run.folder.parent)}")
    return {**final, "monitor": config["callbacks"]["checkpoints"]["monitor"]}


def _report_gates(run: Run, config: Mapping[str, Any], after: float) -> "Transformer":
    """Print the heads that learnt gates leave, site by site, and the BLEU that they cost."""
    from headlab.checkpoint import read_checkpoint

    model = read_checkpoint(run.checkpoint).model
    before = len(run.module.model.head_names)
    table = Table("site", "heads left", "which", title="learnt gates", expand=False)
    for site in SITES:
        names = [one for one in model.head_names if one.site == site]
        had = sum(map(len, run.module.model.kept[site]))
        which = ", ".join(compress(names)) or "none"
        penalised = run.module.gates is not None and site in run.module.gates.sites
        note = "" if penalised else " (not gated)"
        table.add_row(TITLES[site], f"{len(names)} of {had}", Text(which + note))
    print_table(table)
    left = len(model.head_names)
    line = f"heads left {left} of {before}, {1 - left / before:.1%} cut   test BLEU {after:.2f}"
    start = config.get("init_from")
    if start is not None and Path(start).is_file():
        first = _bleu_of(Path(start), run, config)
        line += f", {after - first:+.2f} from {first:.2f} of {shown(Path(start))}"
    print(line)
    return model


def _bleu_of(checkpoint: Path, run: Run, config: Mapping[str, Any]) -> float:
    """Test BLEU of another checkpoint on this run's split, decoded and scored alike."""
    from headlab.checkpoint import read_checkpoint
    from headlab.heads.measure import Measurer

    loaded = read_checkpoint(checkpoint)
    lowercase, decoding = config["evaluation"]["lowercase"], config["decoding"]
    measurer = Measurer(
        loaded, *run.data.texts["test"], likelihood=False, lowercase=lowercase, **decoding
    )
    scores = measurer.measure().scores
    assert scores is not None
    return scores.bleu


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
    print_table(table)


def _flat(tree: Mapping[str, Any], key: str = "") -> dict[str, Any]:
    """Nested mappings as dotted keys, for TensorBoard's table."""
    flat: dict[str, Any] = {}
    for name, value in tree.items():
        if isinstance(value, Mapping):
            flat |= _flat(value, f"{key}{name}.")
        else:
            flat[f"{key}{name}"] = value if isinstance(value, int | float | bool) else str(value)
    return flat
