"""The tables of ``headlab benchmark``."""

from collections.abc import Mapping, Sequence
from typing import Any

import typer
from rich.markup import escape
from rich.table import Table

from headlab.benchmark.contest import MARIAN, OURS, Spread
from headlab.cli.streams import print_table

MEBIBYTE = 2**20
STARTS = {
    "translate": "headlab translate, one short sentence",
    "training": "headlab train, the first step, its corpus cached",
}


def print_benchmark(found: Mapping[str, Any]) -> None:
    """Print what ``headlab benchmark`` measured: a table a part, notes below it."""
    around = found["surroundings"]
    where = around["gpu"] or around["cpu"]
    typer.echo(f"{where}, {around['threads']} CPU threads, torch {around['packages']['torch']}")
    if "training" in found:
        training = found["training"]
        print_table(_training_table(training))
        for row in training["contestants"]:
            other = "; ".join(row["differences"])
            typer.echo(
                f"{row['name']}: {row['parameters']:,} parameters" + (f"; {other}" if other else "")
            )
        if training["contestants"][0]["model_flops_utilisation"] is None:
            typer.echo(
                f"{OURS} has a kind of attention that none of the others has: the ratio is what it "
                "costs beside multi-head attention. Its MFU is not counted: the formula knows "
                "multi-head and grouped-query attention"
            )
        _print_notes(training)
    if "decoding" in found:
        print_table(_decoding_table(found["decoding"]))
        others = "; ".join(found["decoding"]["marian_differences"])
        if others and any(
            row["name"].startswith(MARIAN) for row in found["decoding"]["contestants"]
        ):
            typer.echo(f"{MARIAN}: {others}")
        equal = found["decoding"]["equal_outputs"]
        if equal is not None:
            typer.echo(f"CTranslate2 writes what Headlab writes for {equal:.1%} of the sentences")
        _print_notes(found["decoding"])
    for part in ("training", "decoding"):
        rows = found.get(part, {}).get("profile")
        if rows:
            print_table(_profile_table(part, rows))
    for name, times in found.get("start_seconds", {}).items():
        typer.echo(
            f"{STARTS[name]}: {min(times):.1f} s from the command on, the best of {len(times)} "
            f"(the first: {times[0]:.1f} s)"
        )


def _print_notes(part: Mapping[str, Any]) -> None:
    peaks = part["matrix_product_gflops"]
    typer.echo(
        f"matrix product: {max(peaks):,.0f} GFLOP/s at best, {min(peaks):,.0f} at worst, "
        f"of {len(peaks)} measurements between the turns"
    )
    for name, reason in part["not_run"].items():
        typer.echo(f"not in the table: {name}: {reason}")
    for line in part["left_out"]:
        typer.echo(f"no time for {line}; --minutes gives more")


def _training_table(training: Mapping[str, Any]) -> Table:
    steps = training["batches"] * training["passes"]
    table = Table(
        title=f"training, {steps:,} steps a turn",
        caption="median of the turns (least to most); MFU: share of the matrix product's peak, "
        f"real tokens only; memory: peak of the process; {OURS} / row: paired by turn, above 1 "
        f"where {OURS} is faster",
    )
    table.add_column("")
    for title in ("target tokens/s", "sentences/s", "MFU", "memory", f"{OURS} / row"):
        table.add_column(title, justify="right", no_wrap=True)
    for row in training["contestants"]:
        used = row["model_flops_utilisation"]
        table.add_row(
            row["name"],
            _spread(row["target_tokens_per_second"], ",.0f"),
            f"{row['sentences_per_second'].median:,.0f}",
            "" if used is None else f"{used.median:.1%}",
            _memory(row["peak_memory_bytes"]),
            _spread(row["headlab_ratio"], ".2f"),
        )
    return table


def _decoding_table(decoding: Mapping[str, Any]) -> Table:
    table = Table(
        title=f"decoding, {decoding['sentences_of_a_turn']:,} sentences a turn",
        caption="median of the turns (least to most); memory: peak of the process, the same for "
        f"all its rows; {OURS} / row: paired by turn, 64 a batch against ours of 64, beam "
        "against beam",
    )
    table.add_column("")
    for title in ("sentences/s", "target tokens/s", "memory", f"{OURS} / row"):
        table.add_column(title, justify="right", no_wrap=True)
    for row in decoding["contestants"]:
        table.add_row(
            row["name"],
            _spread(row["sentences_per_second"], ",.1f"),
            f"{row['target_tokens_per_second'].median:,.0f}",
            _memory(row["peak_memory_bytes"]),
            _spread(row["headlab_ratio"], ".2f"),
        )
    return table


def _profile_table(part: str, rows: Sequence[Mapping[str, Any]]) -> Table:
    table = Table(title=f"{part}: the operators of {OURS} that take the most time themselves")
    table.add_column("operator")
    for title in ("share", "seconds", "calls"):
        table.add_column(title, justify="right", no_wrap=True)
    for row in rows:
        table.add_row(
            escape(row["operator"]),
            f"{row['share']:.1%}",
            f"{row['seconds']:.3f}",
            f"{row['calls']:,}",
        )
    return table


def _spread(spread: Spread | None, digits: str) -> str:
    if spread is None:
        return ""
    return f"{spread.median:{digits}} ({spread.low:{digits}} to {spread.high:{digits}})"


def _memory(peak: int | None) -> str:
    return "" if peak is None else f"{peak / MEBIBYTE:,.0f} MiB"
