"""``headlab importance``: which heads matter, by several scores, and which score to trust."""

import hashlib
import json
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headlab.cli.sentences import choose_sentences
from headlab.cli.shared import choose_device, prepare_cpu, progress_bar
from headlab.cli.streams import print_table
from headlab.errors import HeadlabError
from headlab.head_names import SITES, Head

if TYPE_CHECKING:
    from headlab.checkpoint import Loaded
    from headlab.heads.importance import Correlation
    from headlab.heads.study import Study
    from headlab.transformer import Transformer

LOSS_CHANGE = "loss_change"

# Column -> its heading in a printed table, title of its figure, and unit.
SCORES = {
    "gradient": ("gradient", "Gradient score", "nats"),
    "gradient_in_layer": ("in layer", "Gradient score, normalised by layer", "share of norm"),
    "confidence": ("confidence", "Confidence", "largest weight"),
    "entropy": ("entropy", "Entropy of the attention weights", "nats"),
    LOSS_CHANGE: ("loss change", "Loss without the head less loss with it", "nats a token"),
}


def importance(
    checkpoint: Annotated[Path, typer.Argument(help="A checkpoint, e.g. outputs/latest/best.ckpt")],
    split: Annotated[str, typer.Option(help="train, validation or test")] = "validation",
    source: Annotated[
        Path | None, typer.Option(help="A file instead of a split, a sentence a line.")
    ] = None,
    reference: Annotated[
        Path | None, typer.Option(help="The translations of --source, line by line.")
    ] = None,
    limit: Annotated[
        int | None, typer.Option(min=1, help="Only the first so many sentences.")
    ] = None,
    normalize_by_layer: Annotated[
        bool,
        typer.Option(
            "--normalize-by-layer",
            help="Also give the gradient score divided by the norm of its layer.",
        ),
    ] = False,
    loss_change: Annotated[
        bool, typer.Option(help="Measure the loss without each head, the slow part.")
    ] = True,
    threads: Annotated[
        int | None, typer.Option(min=1, max=1024, help="CPU threads. Default: all.")
    ] = None,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:1, ...")] = "auto",
) -> None:
    """Weigh every attention head: gradient score, confidence, entropy, and loss without it.

    Writes tables and figures into a folder beside the checkpoint.
    """
    from headlab.checkpoint import read_checkpoint
    from headlab.heads.importance import (
        gradient_scores,
        loss_changes,
        normalized_by_layer,
        weight_scores,
    )
    from headlab.heads.measure import Measurer
    from headlab.heads.study import Study

    prepare_cpu(threads)
    loaded = read_checkpoint(checkpoint, choose_device(device))
    sources, references, part = choose_sentences(loaded, split, source, reference, limit)
    path = shlex.quote(str(checkpoint))
    if references is None:
        raise HeadlabError(
            "gradient score and loss change need references: give --reference; without them, "
            f"headlab roles {path} --source {shlex.quote(str(source))} has confidence and entropy"
        )
    model = loaded.model
    if not model.head_names:
        raise HeadlabError(f"{checkpoint} has no attention head left to weigh")
    measurer = Measurer(loaded, sources, references, translate=False)
    pairs = study_pairs(loaded, sources, references)
    batch_tokens = measurer.translator.options["batch_tokens"]
    settings = {
        "sentences": fingerprint(sources, references),
        "batch_tokens": batch_tokens,
        "device": next(model.parameters()).device.type,
    }
    shown = {"normalize_by_layer": normalize_by_layer, "loss_change": loss_change}
    study = Study(checkpoint, f"importance-{part}", settings, shown)

    scores: dict[str, dict[Head, float]] = {}
    with progress_bar("gradients", len(pairs)) as progress:
        scores["gradient"] = gradient_scores(model, pairs, batch_tokens, progress)
    if normalize_by_layer:
        scores["gradient_in_layer"] = normalized_by_layer(scores["gradient"])
    with progress_bar("attention weights", len(pairs)) as progress:
        weights = weight_scores(model, pairs, batch_tokens, progress)
    scores |= {"confidence": weights.confidence, "entropy": weights.entropy}
    if loss_change:
        with progress_bar("loss without each head", len(model.head_names)) as progress:
            scores[LOSS_CHANGE] = loss_changes(measurer, study, progress=progress)

    correlations = _correlations(scores) if loss_change else {}
    _keep(study, model, scores, correlations, part)
    study.close()
    _print_scores(scores)
    if loss_change:
        _print_correlations(correlations)
    typer.echo(f"written: {study.folder}/")
    out = shlex.quote(str(checkpoint.with_name(f"{checkpoint.stem}-half.ckpt")))
    typer.echo(f"next: headlab prune {path} --keep 0.5 --out {out}")


def study_pairs(
    loaded: "Loaded", sources: Sequence[str], references: Sequence[str]
) -> list[tuple[list[int], list[int]]]:
    """Pieces of all pairs but those with a blank source, which no model reads."""
    from headlab.data.text import is_blank

    seen = [i for i, text in enumerate(sources) if not is_blank(text)]
    return loaded.tokenizers.encode_pairs([sources[i] for i in seen], [references[i] for i in seen])


def fingerprint(*texts: Sequence[str]) -> str:
    """Changes whenever a sentence does."""
    return hashlib.sha256(json.dumps(texts).encode()).hexdigest()


def _correlations(
    scores: Mapping[str, Mapping[Head, float]],
) -> dict[str, dict[str, "Correlation"]]:
    """Score -> site, or "all" -> its correlation with the measured loss change."""
    from headlab.heads.importance import spearman

    changes = scores[LOSS_CHANGE]
    places = [site for site in SITES if any(one.site == site for one in changes)]
    return {
        name: {
            place: spearman(
                {one: v for one, v in values.items() if place in ("all", one.site)}, changes
            )
            for place in [*places, "all"]
        }
        for name, values in scores.items()
        if name != LOSS_CHANGE
    }


def _keep(
    study: "Study",
    model: "Transformer",
    scores: Mapping[str, Mapping[Head, float]],
    correlations: Mapping[str, Mapping[str, "Correlation"]],
    part: str,
) -> None:
    from headlab.heads.figures import head_heatmaps
    from headlab.heads.importance import grids

    study.table(
        "importance",
        [
            {"name": str(one), **one._asdict(), **{name: of[one] for name, of in scores.items()}}
            for one in model.head_names
        ],
    )
    if correlations:
        study.table(
            "correlations",
            [
                {"score": name, "site": place, **found._asdict()}
                for name, places in correlations.items()
                for place, found in places.items()
            ],
        )
    for name, values in scores.items():
        _, title, unit = SCORES[name]
        centre, digits = (0.0, "{:+.3f}") if name == LOSS_CHANGE else (None, "{:.3f}")
        figure = head_heatmaps(
            grids(model, values), f"{title}, {part}", unit, centre=centre, fmt=digits
        )
        study.figure(name, figure)
        study.scalars({f"{name}/{one}": value for one, value in values.items()})
    for name, places in correlations.items():
        rhos = {place: found.rho for place, found in places.items()}
        study.scalars({f"spearman/{name}/{k}": rho for k, rho in rhos.items() if rho is not None})


def _print_scores(scores: Mapping[str, Mapping[Head, float]]) -> None:
    """All heads, the most important ones first."""
    from rich.table import Table

    ranked_by = LOSS_CHANGE if LOSS_CHANGE in scores else "gradient"
    columns = [SCORES[name][0] for name in scores]
    table = Table("head", title=f"heads by {SCORES[ranked_by][0]}")
    for column in columns:
        table.add_column(column, justify="right", no_wrap=True)
    for one in sorted(scores[ranked_by], key=lambda one: -scores[ranked_by][one]):
        cells = [
            f"{of[one]:+.4f}" if name == LOSS_CHANGE else f"{of[one]:.4f}"
            for name, of in scores.items()
        ]
        table.add_row(str(one), *cells)
    print_table(table)


def _print_correlations(correlations: Mapping[str, Mapping[str, "Correlation"]]) -> None:
    """How well each score agrees with what was measured, and which agrees best."""
    from rich.table import Table

    table = Table("heads", title="Spearman's rho with the measured loss change, and its p-value")
    for name in correlations:
        table.add_column(SCORES[name][0], justify="right", no_wrap=True)
    places: Sequence[str] = list(next(iter(correlations.values())))
    for place in places:
        found = [of[place] for of in correlations.values()]
        table.add_row(f"{place} ({found[0].heads})", *(_shown(one) for one in found))
    print_table(table)
    known: dict[str, Any] = {
        name: of["all"].rho for name, of in correlations.items() if of["all"].rho is not None
    }
    if known:
        best = max(known, key=lambda name: abs(known[name]))
        typer.echo(
            f"closest to the measured loss change, over all heads: {SCORES[best][0]}, "
            f"rho {known[best]:+.2f}"
        )


def _shown(found: "Correlation") -> str:
    if found.rho is None or found.p_value is None:
        return "–"
    p_value = f"{found.p_value:.3f}" if found.p_value >= 0.001 else "<0.001"
    return f"{found.rho:+.2f} {p_value:>6}"
