"""What ``headlab ablate`` prints."""

from collections.abc import Sequence

from rich.table import Table
from rich.text import Text

from headlab.cli.streams import print_table
from headlab.head_names import SITES, TITLES
from headlab.heads.ablation import TESTED, Row
from headlab.heads.ablation_results import SHORT, WHAT, Results
from headlab.heads.ablation_results import TITLES as METRIC_TITLES
from headlab.transformer import Transformer


def print_results(results: Results, model: Transformer, level: float) -> None:
    """The full model, a table for the kind of study, and what its stars mean."""
    full = results.rows[0]
    values = [f"{SHORT[name]} {results.number(name, full[name])}" for name in results.metrics]
    print(f"full model on {full['part']}: {', '.join(values)}")
    for name in results.metrics:
        signature = results.about[0].get(f"{name}_signature")
        if signature:
            print(f"{SHORT[name]}: {signature}")
    if results.choice:
        _print_best(results)
    elif results.kind in ("each_head", "all_but_one"):
        for metric in results.metrics:
            _print_grid(results, metric, model)
    elif results.kind == "random":
        _print_spread(results)
    else:
        _print_rows(results, model)
    _print_stars(results, level)
    for line in left_over(results.rows, model):
        print(line)


def _print_grid(results: Results, metric: str, model: Transformer) -> None:
    """Layers down, heads across, one attention below the other."""
    table = Table(title=f"{METRIC_TITLES[metric]}: change {WHAT[results.kind]}")
    table.add_column("attention", no_wrap=True)
    table.add_column("layer", justify="right")
    for head in range(model.heads):
        table.add_column(f"head {head}", justify="right", no_wrap=True)
    rows = {(r["site"], r["layer"], r["head"]): r for r in results.rows if r.get("site")}
    for site in [site for site in SITES if any(place == site for place, _, _ in rows)]:
        for layer in range(len(model.kept[site])):
            found = [rows.get((site, layer, head)) for head in range(model.heads)]
            cells = ["–" if row is None else results.change(metric, row) for row in found]
            table.add_row(TITLES[site] if layer == 0 else "", str(layer), *cells)
        table.add_section()
    print_table(table)


def _print_best(results: Results) -> None:
    """The heads that were kept, with both sets of sentences side by side."""
    chose, reports = results.choice[0]["part"], results.rows[0]["part"]
    table = Table(title=f"change {WHAT[results.kind]}, the best on {chose}")
    table.add_column("attention", no_wrap=True)
    table.add_column("layer", justify="right")
    table.add_column("head kept", justify="right")
    for metric in results.metrics:
        for part in (chose, reports):
            table.add_column(f"{SHORT[metric]}\n{part}", justify="right", no_wrap=True)
    reported = {row["configuration"]: row for row in results.rows}
    before = None
    for row in results.best:
        if before not in (None, row["site"]):
            table.add_section()
        name = "" if before == row["site"] else TITLES[row["site"]]
        before = row["site"]
        both = row, reported[row["configuration"]]
        changes = [results.change(metric, one) for metric in results.metrics for one in both]
        table.add_row(name, str(row["layer"]), str(row["head"]), *changes)
    print_table(table)


def _print_spread(results: Results) -> None:
    table = Table(title=f"change {WHAT['random']}: mean ± standard deviation over draws")
    for column in ("heads off", "heads left", "draws", *(SHORT[m] for m in results.metrics)):
        table.add_column(column, justify="right", no_wrap=True)
    for line in results.spread:
        cells = []
        for metric in results.metrics:
            mean, deviation = line[f"{metric}_change_mean"], line[f"{metric}_change_sd"]
            text = "–" if mean is None else results.signed(metric).format(mean)
            cells.append(
                text + ("" if deviation is None else f" ± {results.number(metric, deviation)}")
            )
        table.add_row(str(line["k"]), str(line["heads_left"]), str(line["draws"]), *cells)
    print_table(table)


def _print_rows(results: Results, model: Transformer) -> None:
    """A line a configuration, the one that hurts most first."""
    metric = results.metrics[0]
    worst = 1.0 if metric != "nll" else -1.0
    rows = sorted(results.rows[1:], key=lambda row: worst * (row[f"{metric}_change"] or 0.0))
    table = Table(title=f"{WHAT[results.kind]}, the worst first")
    table.add_column("off", max_width=48)
    table.add_column("heads off", justify="right")
    table.add_column("heads left", justify="right")
    for name in results.metrics:
        table.add_column(SHORT[name], justify="right", no_wrap=True)
        table.add_column("change", justify="right", no_wrap=True)
    for row in rows:
        cells = [str(row["heads_off"]), str(row["heads_left"])]
        for name in results.metrics:
            cells += [results.number(name, row[name]), results.change(name, row)]
        table.add_row(Text(" ".join(row["off"])), *cells)
    print_table(table)


def _print_stars(results: Results, level: float) -> None:
    """How many changes are significant, and how many would be by chance."""
    rows = results.rows[1:]
    tested = [name for name in results.metrics if name in TESTED]
    if not tested or not rows:
        return
    counts = []
    for name in tested:
        stars = [row for row in rows if row[f"{name}_significant"]]
        better = sum((row[f"{name}_change"] > 0) == (name != "nll") for row in stars)
        counts.append(f"{SHORT[name]} {len(stars)} of {len(rows)} ({better} for the better)")
    chance = level * len(rows)
    print(f"* p < {level:g}: {', '.join(counts)}; by chance alone about {chance:.1g}")


def left_over(rows: Sequence[Row], model: Transformer) -> list[str]:
    """What is left of the model where a whole attention is off, a line each."""
    lines = []
    for row in rows[1:]:
        off = " ".join(row["off"])
        gone = [site for site in SITES if not any(left.startswith(site) for left in row["left"])]
        gone = [site for site in gone if any(model.kept[site])]
        if row["heads_left"] == 0:
            lines.append(
                f"{off} off: no head is left; the residual connections carry the embeddings "
                "through the feed-forward networks alone"
            )
        elif "cross" in gone:
            lines.append(f"{off} off: the decoder sees nothing of the source")
    return list(dict.fromkeys(lines))
