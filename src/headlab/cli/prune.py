"""``headlab prune``: cut the heads that matter least, and say what is left and what it costs."""

import logging
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headlab.cli.importance import fingerprint, study_pairs
from headlab.cli.outputs import check_checkpoint_out
from headlab.cli.sentences import choose_sentences
from headlab.cli.shared import choose_device, prepare_cpu, progress_bar
from headlab.errors import HeadlabError
from headlab.head_names import SITES

if TYPE_CHECKING:
    from headlab.checkpoint import Loaded
    from headlab.heads.measure import Measurer
    from headlab.heads.pruning import Point, Ranking
    from headlab.heads.study import Study

logger = logging.getLogger("headlab")

RANKINGS = ("gradient", "loss", "confidence", "random")


def prune(
    checkpoint: Annotated[Path, typer.Argument(help="A checkpoint, e.g. outputs/latest/best.ckpt")],
    out: Annotated[Path, typer.Option(help="Where the pruned checkpoint goes.")],
    keep: Annotated[
        float | None, typer.Option(help="Share of the heads to keep, from 0 to 1.")
    ] = None,
    max_bleu_drop: Annotated[
        float | None,
        typer.Option(help="Instead: cut on until BLEU, on --choose-on, falls by more than this."),
    ] = None,
    by: Annotated[
        str, typer.Option(help="What decides who goes first: gradient, loss, confidence, random.")
    ] = "gradient",
    steps: Annotated[
        int | None, typer.Option(help="With --keep: cut in so many steps. Default: 1.")
    ] = None,
    step_heads: Annotated[
        int | None, typer.Option(help="With --max-bleu-drop: heads cut at a step. Default: 2.")
    ] = None,
    rank_once: Annotated[
        bool,
        typer.Option("--rank-once", help="Rank on the whole model only, not before each step."),
    ] = False,
    site: Annotated[
        str, typer.Option(help="Which attentions may lose heads; --keep is a share of theirs.")
    ] = "encoder,decoder,cross",
    normalize_by_layer: Annotated[
        bool,
        typer.Option("--normalize-by-layer", help="Divide gradient scores by their layer's norm."),
    ] = False,
    finetune_epochs: Annotated[
        int | None, typer.Option(help="Train on for so many epochs after each step.")
    ] = None,
    choose_on: Annotated[
        str, typer.Option(help="Split that decides which heads go, and how many.")
    ] = "validation",
    split: Annotated[str, typer.Option(help="Split that is reported, before and after.")] = "test",
    limit: Annotated[
        int | None, typer.Option(min=1, help="Only the first so many sentences of each split.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Of the order of --by random.")] = 1,
    threads: Annotated[
        int | None, typer.Option(min=1, max=1024, help="CPU threads. Default: all.")
    ] = None,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:1, ...")] = "auto",
) -> None:
    """Cut attention heads out of a checkpoint, the least important ones first.

    Writes the smaller checkpoint, and the curve of the pruning into a folder beside the
    checkpoint.
    """
    if by not in RANKINGS:
        raise HeadlabError(f"--by {by}: choose {', '.join(RANKINGS[:-1])} or {RANKINGS[-1]}")
    if normalize_by_layer and by != "gradient":
        raise HeadlabError(f"--normalize-by-layer is for --by gradient, not for --by {by}")
    if finetune_epochs is not None and finetune_epochs < 1:
        raise HeadlabError(
            f"--finetune-epochs {finetune_epochs} must be at least 1; leave it out to train nothing"
        )
    _check_goal(keep, max_bleu_drop, steps, step_heads)
    check_checkpoint_out(out, "pruned.ckpt", checkpoint)
    sites = _sites(site)
    import torch

    from headlab.checkpoint import read_checkpoint, save_checkpoint
    from headlab.cli.finetuning import Finetuning, recipe
    from headlab.cli.prune_report import Report, from_scratch, significance_settings, title_of
    from headlab.heads.measure import Measurer
    from headlab.heads.pruning import Pruning, cuts_one_by_one, cuts_to_share, within
    from headlab.heads.study import Study

    prepare_cpu(threads)
    loaded = read_checkpoint(checkpoint, choose_device(device))
    allowed = [one for one in loaded.model.head_names if one.site in sites]
    if not allowed:
        raise HeadlabError(f"{checkpoint} has no head left to cut in {', '.join(sites)}")
    if keep is not None:
        sizes = cuts_to_share(len(allowed), keep, 1 if steps is None else steps)
    else:
        sizes = cuts_one_by_one(len(allowed), 2 if step_heads is None else step_heads)

    texts = [
        choose_sentences(loaded, name, limit=limit, key=key)
        for key, name in (("--choose-on", choose_on), ("--split", split))
    ]
    choice, reported = (Measurer(loaded, one.sources, one.references) for one in texts)
    goal = f"keep-{keep:g}" if keep is not None else f"drop-{max_bleu_drop:g}"
    settings = {
        "keep": keep,
        "max_bleu_drop": max_bleu_drop,
        "sizes": sizes,
        "by": by,
        "rank_once": rank_once,
        "sites": sites,
        "normalize_by_layer": normalize_by_layer,
        "finetune_epochs": finetune_epochs,
        "finetuning": None if finetune_epochs is None else recipe(),
        "choose_on": choose_on,
        "split": split,
        "limit": limit,
        "sentences": [fingerprint(one.sources, one.references or []) for one in texts],
        "decoding": choice.translator.options,
        "seed": seed if by == "random" else None,
        "device": next(loaded.model.parameters()).device.type,
        "threads": torch.get_num_threads(),  # speeds are measured
    }
    tuned = "" if finetune_epochs is None else "-finetuned"
    shown = {"significance": significance_settings()}
    study = Study(checkpoint, f"pruning-{by}-{goal}{tuned}", settings, shown)
    tuning = None
    if finetune_epochs is not None:
        tuning = Finetuning(study.folder, finetune_epochs, threads, choose_device(device))
    if choose_on == split:
        logger.warning(
            "heads are chosen and reported on the same sentences (%s): the result is flattered",
            split,
        )

    pruning = Pruning(
        loaded,
        study,
        choice,
        reported,
        _ranking(by, choice, study, normalize_by_layer, seed),
        rank_once=rank_once,
        allowed=allowed,
        tuning=tuning,
        tell=logger.info,
    )
    points: list[Point] = []
    kept, best = 0, loaded
    for point, current in pruning.steps(sizes):
        points.append(point)
        if max_bleu_drop is not None and not within(points, max_bleu_drop):
            break
        kept, best = point.step, current
    save_checkpoint(out, best, best.model)

    report = Report(points, kept, choose_on, split)
    report.compare(reported)
    report.keep(study, title_of(by, settings, checkpoint.name), max_bleu_drop)
    study.close()
    report.show()
    if max_bleu_drop is not None and kept == 0:
        typer.echo(
            f"no step stayed within {max_bleu_drop:g} BLEU: {out} is the whole model; try "
            "--step-heads 1, --finetune-epochs 1 or a larger --max-bleu-drop"
        )
    typer.echo(f"written: {out}, {study.folder}/")
    typer.echo(f"next: headlab evaluate {shlex.quote(str(out))}")
    typer.echo(f"the same heads, trained from scratch: {from_scratch(checkpoint, loaded, best)}")


def _check_goal(
    keep: float | None, max_bleu_drop: float | None, steps: int | None, step_heads: int | None
) -> None:
    if (keep is None) == (max_bleu_drop is None):
        problem = "say how much to cut" if keep is None else "one goal at a time"
        raise HeadlabError(f"{problem}: --keep SHARE, such as 0.5, or --max-bleu-drop BLEU")
    if keep is not None and step_heads is not None:
        raise HeadlabError("--step-heads belongs to --max-bleu-drop; with --keep give --steps")
    if max_bleu_drop is not None and steps is not None:
        raise HeadlabError("--steps belongs to --keep; with --max-bleu-drop give --step-heads")
    if max_bleu_drop is not None and not 0 <= max_bleu_drop <= 100:
        raise HeadlabError(f"--max-bleu-drop {max_bleu_drop:g} must lie between 0 and 100")


def _sites(text: str) -> list[str]:
    asked = [part.strip() for part in text.split(",") if part.strip()]
    unknown = [part for part in asked if part not in SITES]
    if unknown or not asked:
        raise HeadlabError(
            f"--site {text}: choose one or several of {', '.join(SITES)}, with commas between"
        )
    return [site for site in SITES if site in asked]


def _ranking(
    by: str, choice: "Measurer", study: "Study", normalize_by_layer: bool, seed: int
) -> "Ranking":
    """The scores of a model's heads before a step, estimated on the sentences that decide."""
    from headlab.heads.importance import (
        gradient_scores,
        loss_changes,
        normalized_by_layer,
        weight_scores,
    )
    from headlab.heads.measure import Measurer
    from headlab.heads.pruning import random_scores

    references = choice.references or []
    pairs = study_pairs(choice.loaded, choice.sources, references)
    batch_tokens = choice.translator.options["batch_tokens"]
    names = choice.loaded.model.head_names

    def rank(current: "Loaded", step: int) -> dict[Any, float]:
        if by == "random":
            order = random_scores(names, seed)
            return {one: order[one] for one in current.model.head_names}
        if by == "confidence":
            return weight_scores(current.model, pairs, batch_tokens).confidence
        if by == "loss":
            measurer = Measurer(current, choice.sources, references, translate=False)
            heads = len(current.model.head_names)
            with progress_bar(f"loss without each head before step {step}", heads) as progress:
                return loss_changes(measurer, study, f"before step {step}: ", progress)
        scores = gradient_scores(current.model, pairs, batch_tokens)
        return normalized_by_layer(scores) if normalize_by_layer else scores

    return rank
