"""The tables and figures of an ablation study, written into its folder."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from headlab.head_names import SITES
from headlab.heads.ablation import TESTED, Row
from headlab.heads.charts import OTHER_COLOUR, change_bars, layer_bars, spread_dots
from headlab.heads.figures import SITE_COLOURS, head_heatmaps, number_text
from headlab.heads.study import Study
from headlab.transformer import Transformer

TITLES = {"bleu": "BLEU", "chrf": "chrF", "nll": "negative log-likelihood"}
SHORT = {"bleu": "BLEU", "chrf": "chrF", "nll": "NLL"}
UNITS = {"bleu": "BLEU", "chrf": "chrF", "nll": "nats a token"}

WHAT = {
    "each_head": "with one head off",
    "all_but_one": "with one head kept in a layer",
    "each_layer": "with a layer's heads off",
    "each_site": "with an attention's heads off",
    "random": "with random heads off",
    "list": "with heads off",
}


@dataclass(frozen=True)
class Results:
    """What an ablation study found.

    Attributes:
        kind: of the plan, such as "each_head".
        rows: of ``Ablation.run``, on the sentences that are reported.
        choice: ``rows`` on the sentences that chose; empty where nothing was chosen.
        best: of ``choice``, the rows that were chosen.
        about: ``Ablation.about``, for the sentences that are reported and for those that chose.
        spread: for random draws, see ``headlab.heads.ablation.spread``.
        metrics: what was measured.
        decimals: of BLEU and chrF; likelihood has one more.
    """

    kind: str
    rows: list[Row]
    choice: list[Row]
    best: list[Row]
    about: list[Row]
    spread: list[Row]
    metrics: list[str]
    decimals: int

    def number(self, metric: str, value: float | None, star: bool = False) -> str:
        """A metric's value as text."""
        return "–" if value is None else f"{value:.{self._digits(metric)}f}" + "*" * star

    def change(self, metric: str, row: Mapping[str, Any]) -> str:
        """A row's change of a metric, with a star where it is significant."""
        value = row[f"{metric}_change"]
        star = "*" if row.get(f"{metric}_significant") else ""
        return "–" if value is None else number_text(value, self.signed(metric)) + star

    def signed(self, metric: str) -> str:
        """The format of a change."""
        return f"{{:+.{self._digits(metric)}f}}"

    def _digits(self, metric: str) -> int:
        return self.decimals + (metric == "nll")


def grid(
    rows: Sequence[Row], column: str, model: Transformer, missing: float = np.nan
) -> dict[str, np.ndarray]:
    """Site -> (layers, heads) of one column of the rows that stand for a head.

    Cells without a row, such as those of heads that the model does not have, are ``missing``.
    Sites without any row are left out.
    """
    tables: dict[str, np.ndarray] = {}
    for row in rows:
        if row.get("head") is not None and row[column] is not None:
            site = row["site"]
            if site not in tables:
                shape = len(model.kept[site]), model.heads
                tables[site] = np.full(shape, missing, dtype=type(missing))
            tables[site][row["layer"], row["head"]] = row[column]
    return {site: tables[site] for site in SITES if site in tables}


def michel_table(results: Results, metric: str, model: Transformer) -> list[Row]:
    """Heads that were kept, ready to be laid beside the table of Michel et al. 2019 (appendix A).

    Returns:
        A row for each layer. For each site: the head that was kept, and the change as text, with a
        star where it is significant, on the sentences that chose and on those that are reported.
    """
    reported = {row["configuration"]: row for row in results.rows}
    chose, reports = results.choice[0]["part"], results.rows[0]["part"]
    if chose == reports:
        chose, reports = f"{chose}_chosen", f"{reports}_reported"
    best = {(row["site"], row["layer"]): row for row in results.best}
    table = []
    for layer in range(max(len(of) for of in model.kept.values())):
        line: Row = {"layer": layer}
        for site in [site for site in SITES if site in {place for place, _ in best}]:
            row = best.get((site, layer))
            both = None if row is None else (row, reported[row["configuration"]])
            line[f"{site}_head"] = None if row is None else row["head"]
            for i, part in enumerate((chose, reports)):
                line[f"{site}_{part}"] = None if both is None else results.change(metric, both[i])
        table.append(line)
    return table


def write_results(study: Study, results: Results, model: Transformer, dpi: float) -> None:
    """Write every table, figure and number of the study."""
    study.table("ablation", [*results.choice, *results.rows])
    study.table("about", results.about)
    if results.spread:
        study.table("spread", results.spread)
    for metric in results.metrics:
        _write_metric(study, results, metric, model, dpi)
    for row in results.rows:
        for metric in results.metrics:
            columns = [metric, f"{metric}_change"] + [f"{metric}_p"] * (metric in TESTED)
            if row["configuration"] == "full":
                columns = [metric]
            values = {f"{row['configuration']}/{name}": row[name] for name in columns}
            study.scalars({key: value for key, value in values.items() if value is not None})


def _write_metric(
    study: Study, results: Results, metric: str, model: Transformer, dpi: float
) -> None:
    column, part = f"{metric}_change", results.rows[0]["part"]
    title, unit = f"{SHORT[metric]} change {WHAT[results.kind]}", UNITS[metric]
    whole = results.choice or results.rows
    if results.kind in ("each_head", "all_but_one"):
        values = grid(whole, column, model)
        if not values:  # not one value, such as the likelihood of blank references
            return
        stars = grid(whole, f"{metric}_significant", model, False) if metric in TESTED else None
        name = column if not results.choice else f"{column}_{whole[0]['part']}"
        study.table(name, _grid_rows(values))
        figure = head_heatmaps(
            values,
            f"{title}, {whole[0]['part']}",
            unit,
            centre=0.0,
            fmt=results.signed(metric),
            marked=stars,
            reverse=metric != "nll",  # so that orange is damage for all of them
            dpi=dpi,
        )
        study.figure(name, figure)
    if results.choice:
        if metric in TESTED:  # BLEU is what the paper has
            first = next(name for name in results.metrics if name in TESTED)
            name = "michel" if metric == first else f"michel_{metric}"
            study.table(name, michel_table(results, metric, model))
        study.figure(column, _both_parts(results, metric, model, title, dpi))
    elif results.kind == "random":
        draws: dict[int, list[float]] = {}
        for row in results.rows[1:]:
            if row[column] is not None:
                draws.setdefault(row["k"], []).append(row[column])
        if draws:
            study.figure(column, spread_dots(draws, f"{title}, {part}", unit, dpi=dpi))
    elif results.kind not in ("each_head", "all_but_one"):
        rows = results.rows[1:]
        figure = change_bars(
            [" ".join(row["off"]) for row in rows],
            [np.nan if row[column] is None else row[column] for row in rows],
            f"{title}, {part}",
            unit,
            colours=[SITE_COLOURS.get(row.get("site", ""), OTHER_COLOUR) for row in rows],
            fmt=results.signed(metric),
            marked=[bool(row.get(f"{metric}_significant")) for row in rows],
            dpi=dpi,
        )
        study.figure(column, figure)


def _both_parts(results: Results, metric: str, model: Transformer, title: str, dpi: float) -> Any:
    """Bars of the chosen heads, on the sentences that chose and on those that are reported."""
    reported = {row["configuration"]: row for row in results.rows}
    names = [f"chosen on {results.choice[0]['part']}", f"reported on {results.rows[0]['part']}"]
    values: dict[str, dict[str, list[float]]] = {}
    marked: dict[str, dict[str, list[bool]]] = {}
    for row in results.best:
        site, layers = row["site"], len(model.kept[row["site"]])
        both = row, reported[row["configuration"]]
        for name, one in zip(names, both, strict=True):
            bars = values.setdefault(site, {}).setdefault(name, [np.nan] * layers)
            stars = marked.setdefault(site, {}).setdefault(name, [False] * layers)
            change = one[f"{metric}_change"]
            bars[row["layer"]] = np.nan if change is None else change
            stars[row["layer"]] = bool(one.get(f"{metric}_significant"))
    return layer_bars(values, title, UNITS[metric], marked=marked, dpi=dpi)


def _grid_rows(values: Mapping[str, np.ndarray]) -> list[Row]:
    """A row for each layer of each site, a column for each head."""
    return [
        {"site": site, "layer": layer} | {f"head_{i}": value for i, value in enumerate(line)}
        for site, table in values.items()
        for layer, line in enumerate(table.tolist())
    ]
