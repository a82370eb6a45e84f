"""The end of a sweep: one table, files of it, and one picture."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from rich.table import Table
from rich.text import Text

from headlab.cli.configuration import shown
from headlab.cli.outputs import numbered
from headlab.cli.streams import print_table

# What the files hold of each run, by the keys of ``report_run``.
NUMBERS = (
    "parameters", "heads", "best_validation", "test_bleu", "test_chrf", "test_perplexity",
    "tokens_per_second",
)  # fmt: skip

# What is printed of it: heading, format.
PRINTED = {
    "parameters": ("parameters", ",d"),
    "heads": ("heads", "d"),
    "best_validation": ("", ".3f"),  # its heading is what was monitored
    "test_bleu": ("test BLEU", ".2f"),
    "test_chrf": ("chrF", ".2f"),
    "tokens_per_second": ("tokens/s", ",.0f"),
}


@dataclass(frozen=True)
class Job:
    """One training of a sweep."""

    name: str  # what tells it from the others, as typed
    overrides: list[str]
    folder: Path
    final: Mapping[str, Any] | None  # of ``report_run``; None: it failed


def report_sweep(jobs: Sequence[Job], folder: Path) -> None:
    """Print a line a job, and write ``sweep.csv``, ``sweep.json`` and ``sweep.png``.

    The picture has the varied key on its axis when one key with numbers was varied, and the jobs'
    names otherwise.
    """
    from headlab.tables import write_table

    varied = _varied(jobs)
    rows = [_row(job, values) for job, values in zip(jobs, varied, strict=True)]
    keys = list(dict.fromkeys(key for values in varied for key in values))
    _print(jobs, keys, varied)
    # An earlier sweep in the same folder keeps its table.
    name = numbered(folder / "sweep.json", lambda path: False).stem
    written = write_table(folder, name, rows)
    done = [i for i, job in enumerate(jobs) if job.final]
    if done:
        chosen = [jobs[i] for i in done], keys, [varied[i] for i in done]
        written.append(_draw(*chosen, folder / f"{name}.png"))
    print(f"written: {', '.join(shown(path) for path in written)}")
    print(f"next: tensorboard --logdir {shown(folder)}")


def _varied(jobs: Sequence[Job]) -> list[dict[str, Any]]:
    """For each job the overrides that are not the same in all of them, with plain values."""
    parser = OverridesParser.create()
    given = []
    for job in jobs:
        parsed = parser.parse_overrides(list(job.overrides))
        given.append({o.key_or_group: None if o.is_delete() else o.value() for o in parsed})
    keys = list(dict.fromkeys(key for one in given for key in one))
    differ = [key for key in keys if any(one.get(key) != given[0].get(key) for one in given)]
    return [{key: _plain(one.get(key)) for key in differ} for one in given]


def _plain(value: Any) -> Any:
    return value if value is None or isinstance(value, int | float | bool) else str(value)


def _row(job: Job, values: Mapping[str, Any]) -> dict[str, Any]:
    final = job.final or {}
    numbers = {key: final.get(key) for key in NUMBERS}
    rest = {"monitor": final.get("monitor"), "folder": job.folder.name, "failed": not job.final}
    return {"job": job.name, **values, **numbers, **rest}


def _print(jobs: Sequence[Job], keys: Sequence[str], varied: Sequence[Mapping[str, Any]]) -> None:
    finals = [job.final for job in jobs if job.final]
    printed = dict(PRINTED)
    if "model.heads" in keys or len({final["heads"] for final in finals}) < 2:
        del printed["heads"]
    table = Table(title="sweep", expand=False)
    for key in keys or ["job"]:
        table.add_column(Text(key), overflow="fold")
    monitor = finals[0]["monitor"] if finals else "validation"
    for heading, _ in printed.values():
        table.add_column(heading or Text(monitor), justify="right", no_wrap=True)
    for job, values in zip(jobs, varied, strict=True):
        names = [str(values[key]) for key in keys] or [job.name]
        final = job.final or {}
        cells = [_cell(final.get(key), style) for key, (_, style) in printed.items()]
        if not final:
            cells[0] = "failed"
        table.add_row(*map(Text, [*names, *cells]))
    print_table(table)


def _cell(value: Any, style: str) -> str:
    return "" if value is None else format(value, style)


def _draw(
    jobs: Sequence[Job], keys: Sequence[str], varied: Sequence[Mapping[str, Any]], path: Path
) -> Path:
    from torch.utils.tensorboard import SummaryWriter

    from headlab.heads.sweep_figures import sweep_figure
    from headlab.pictures import figure_to_image, save_figure

    finals = [job.final or {} for job in jobs]
    numbers = [values[keys[0]] for values in varied] if len(keys) == 1 else []
    numeric = bool(numbers) and all(type(n) in (int, float) for n in numbers)
    monitor = finals[0]["monitor"]
    best = [final.get("best_validation") for final in finals]
    test = {"test": [final["test_bleu"] for final in finals]}
    panels: dict[str, dict[str, Any]] = {"BLEU": test}
    if monitor == "val/bleu":
        panels["BLEU"] = {**test, "validation": best}
    else:
        panels[monitor] = {monitor: best}
    panels["parameters"] = {"parameters": [final["parameters"] for final in finals]}
    panels["training, target tokens a second"] = {
        "speed": [final.get("tokens_per_second") for final in finals]
    }
    name = keys[0] if numeric else ", ".join(keys) or "job"
    texts = [" ".join(map(str, of.values())) for of in varied]
    values = (
        numbers if numeric else [text or job.name for text, job in zip(texts, jobs, strict=True)]
    )
    figure = sweep_figure(name, values, panels, f"sweep over {name}")
    writer = SummaryWriter(str(path.parent / "tensorboard"))
    writer.add_image("sweep", figure_to_image(figure), 0, dataformats="HWC")
    writer.close()
    return save_figure(figure, path)
