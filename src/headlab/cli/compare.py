"""``headlab compare``: checkpoints side by side on one split."""

import json
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from headlab.cli.outputs import check_out, is_table
from headlab.cli.sentences import choose_sentences
from headlab.cli.shared import choose_device, prepare_cpu, progress_bar
from headlab.errors import HeadlabError

if TYPE_CHECKING:
    from headlab.checkpoint import Loaded


def compare(
    checkpoints: Annotated[list[Path], typer.Argument(help="Two or more checkpoints.")],
    split: Annotated[str, typer.Option(help="train, validation or test, of each one's corpus")] = (
        "test"
    ),
    limit: Annotated[
        int | None, typer.Option(min=1, help="Only the first so many sentences.")
    ] = None,
    turns: Annotated[
        int, typer.Option(min=1, max=50, help="Times that each decodes for its speed, in turn.")
    ] = 2,
    beam: Annotated[
        int | None, typer.Option(min=1, help="Hypotheses kept. Default: as each was trained.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Write the table as JSON, too.")] = None,
    threads: Annotated[
        int | None, typer.Option(min=1, max=1024, help="CPU threads. Default: all.")
    ] = None,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:1, ...")] = "auto",
) -> None:
    """Parameters, cache, BLEU, likelihood and decoding speed of several checkpoints.

    Cache sizes are measured from the tensors that decoding keeps: bytes that every target token
    adds in the decoder's self-attention, and every source token in the cross-attention, over all
    layers. Speeds are relative to the first checkpoint, measured in turns. Each is scored on its
    own corpus, so compare checkpoints of one.
    """
    from headlab.checkpoint import read_checkpoint

    if len(checkpoints) < 2:
        raise HeadlabError("compare takes two checkpoints or more; headlab evaluate scores one")
    if out is not None:
        check_out(out, "compare.json", *checkpoints, ours=_is_ours, what="a table of compare")
        if out.suffix == ".ckpt":
            raise HeadlabError(f"--out {out}: the table is JSON; name a file such as compare.json")
    prepare_cpu(threads)
    loaded = [read_checkpoint(path, choose_device(device)) for path in checkpoints]
    rows = _measure(loaded, split, limit, turns, beam)
    Console().print(_table(rows, split if limit is None else f"{split}, first {limit}"))
    if out is not None:
        from headlab.files import replace_file

        text = json.dumps(rows, indent=1, ensure_ascii=False) + "\n"
        replace_file(out, lambda file: file.write(text.encode()))
        typer.echo(f"written: {out}")
    last = shlex.quote(str(checkpoints[-1]))
    typer.echo(f"next: headlab ablate {last} ablation=each_head")


def _is_ours(path: Path) -> bool:
    return is_table(path, "checkpoint", "cache_bytes_per_target_token")


def _measure(
    loaded: "list[Loaded]", split: str, limit: int | None, turns: int, beam: int | None
) -> list[dict[str, Any]]:
    from headlab.comparison import cache_size, decoding_speeds, describe_kind
    from headlab.heads.measure import Measurer

    measurers, rows, known = [], [], {}
    for one in loaded:
        corpus = repr(one.config["data"])
        if corpus not in known:
            known[corpus] = choose_sentences(one, split, limit=limit)
        sentences = known[corpus]
        measurers.append(Measurer(one, sentences.sources, sentences.references, beam=beam))
    with progress_bar("measuring", len(loaded)) as progress:
        for done, (one, measurer) in enumerate(zip(loaded, measurers, strict=True), start=1):
            found, size = measurer.measure(), cache_size(one.model)
            rows.append(
                {
                    "checkpoint": str(one.path),
                    "attention": describe_kind(one.model),
                    "heads": len(one.model.head_names),
                    "parameters": sum(p.numel() for p in one.model.parameters()),
                    "cache_bytes_per_target_token": size.per_target_token,
                    "cache_bytes_constant": size.constant,
                    "cache_bytes_per_source_token": size.per_source_token,
                    "bleu": None if found.scores is None else found.scores.bleu,
                    "chrf": None if found.scores is None else found.scores.chrf,
                    "nll_per_token": found.nll,
                    "sentences": len(measurer.sources),
                }
            )
            progress(done)
    speeds = [0.0] * len(loaded)
    others = [
        str(one.path)
        for one, measurer in zip(loaded, measurers, strict=True)
        if (measurer.sources, measurer.references)
        != (measurers[0].sources, measurers[0].references)
    ]
    if others:
        typer.echo(
            f"note: {', '.join(others)} was trained on another corpus than {loaded[0].path} and is "
            "scored on its own sentences: BLEU and nll cannot be compared, speed is left out",
            err=True,
        )
    else:
        translators = [m.translator for m in measurers]
        speeds = decoding_speeds(translators, measurers[0].sources, turns)
    for row, speed in zip(rows, speeds, strict=True):
        row["decoding_tokens_per_second"] = speed or None
        row["relative_speed"] = speed / speeds[0] if speeds[0] else None
    return rows


def _table(rows: list[dict[str, Any]], part: str) -> Table:
    table = Table(
        title=f"{part}: {rows[0]['sentences']:,} sentences",
        caption="cache: bytes for each target token in self-attention, + whatever the length",
    )
    table.add_column("checkpoint", overflow="fold", min_width=12)
    for title in ("parameters", "cache", "BLEU", "nll", "speed"):
        table.add_column(title, justify="right", no_wrap=True)
    for row in rows:
        constant = row["cache_bytes_constant"]
        cache = f"{row['cache_bytes_per_target_token']:,.0f}"
        name = Text(row["checkpoint"]).append(f"\n{row['attention']}", style="dim")
        table.add_row(
            name,
            f"{row['parameters']:,}",
            cache + (f" + {constant:,.0f}" if constant else ""),
            _number(row["bleu"], 2),
            _number(row["nll_per_token"], 3),
            _number(row["relative_speed"], 2),
        )
    return table


def _number(value: float | None, digits: int) -> str:
    return "" if value is None else f"{value:.{digits}f}"
