"""``headlab evaluate``: BLEU, chrF and perplexity of a checkpoint on a split or on two files."""

import json
import math
import shlex
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headlab.cli.outputs import numbered, of_settings
from headlab.cli.sentences import choose_sentences
from headlab.cli.shared import (
    choose_device,
    example_sentence,
    prepare_cpu,
    progress_bar,
)
from headlab.errors import HeadlabError

if TYPE_CHECKING:
    from headlab.decoding import Translator
    from headlab.evaluation import ReferenceLoss


def evaluate(
    checkpoint: Annotated[Path, typer.Argument(help="A checkpoint, e.g. outputs/latest/best.ckpt")],
    split: Annotated[str, typer.Option(help="train, validation or test")] = "test",
    source: Annotated[
        Path | None, typer.Option(help="A file to translate instead of a split, a sentence a line.")
    ] = None,
    reference: Annotated[
        Path | None, typer.Option(help="The translations of --source, line by line.")
    ] = None,
    limit: Annotated[
        int | None, typer.Option(min=1, help="Only the first so many sentences.")
    ] = None,
    beam: Annotated[
        int | None,
        typer.Option(min=1, help="Hypotheses kept at each step; 1 is greedy. Default: as trained."),
    ] = None,
    length_penalty: Annotated[
        float | None, typer.Option(help="See headlab translate. Default: as trained.")
    ] = None,
    lowercase: Annotated[
        bool | None,
        typer.Option("--lowercase/--no-lowercase", help="Score without case. Default: as trained."),
    ] = None,
    batch_tokens: Annotated[
        int | None, typer.Option(min=1, help="Source tokens translated at once; bounds the memory.")
    ] = None,
    threads: Annotated[
        int | None, typer.Option(min=1, max=1024, help="CPU threads. Default: all.")
    ] = None,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:1, ...")] = "auto",
) -> dict[str, Any]:
    """Score a checkpoint's translations with sacreBLEU, on raw text.

    Writes the scores beside the checkpoint, and the translations, one a line. Other settings or
    sentences have files of their own (-2, -3, ...).
    """
    from headlab.checkpoint import read_checkpoint
    from headlab.cli.importance import fingerprint
    from headlab.decoding import Translator, one_line
    from headlab.evaluation import corpus_scores, scoring_options

    if (source is None) != (reference is None):
        raise HeadlabError("--source and --reference belong together; give both or neither")
    prepare_cpu(threads)
    loaded = read_checkpoint(checkpoint, choose_device(device))
    translator = Translator.from_loaded(
        loaded, beam=beam, length_penalty=length_penalty, batch_tokens=batch_tokens
    )
    sources, references, part = choose_sentences(loaded, split, source, reference, limit)
    assert references is not None

    start = time.perf_counter()
    with progress_bar("translating", len(sources)) as progress:
        found = translator.hypotheses(
            sources, progress=progress, name=lambda i: f"{part} sentence {i + 1}"
        )
    seconds = time.perf_counter() - start
    hypotheses = [one_line(text) for text in translator.texts(found)]
    lowercase, tokenize = scoring_options(loaded.config, lowercase)
    scores = corpus_scores(hypotheses, references, lowercase, tokenize)
    loss = _reference_loss(translator, sources, references)
    cut = sum(not hypothesis.finished for hypothesis in found)

    typer.echo(f"BLEU  {scores.bleu:6.2f}   {scores.bleu_signature}")
    typer.echo(f"chrF  {scores.chrf:6.2f}   {scores.chrf_signature}")
    if loss is not None:
        typer.echo(
            f"loss  {loss.nll:6.3f}   nats per target token, perplexity {loss.perplexity:.2f}"
        )
    speed = len(sources) / seconds
    summary = f"{len(sources):,} sentences in {seconds:.1f} s, {speed:.0f} a second"
    typer.echo(summary + (f"; {cut:,} cut by the length limit" if cut else ""))

    result: dict[str, Any] = {
        "checkpoint": checkpoint.name,
        "step": loaded.step,
        "split": split if source is None else None,
        "source_file": source and str(source),
        "reference_file": reference and str(reference),
        **asdict(scores),
        "cut_by_length_limit": cut,
        "nll_per_token": _number(loss.nll if loss else None),
        "perplexity": _number(loss.perplexity if loss else None),
        "left_out_of_loss": loss.left_out if loss else None,
        "settings": {
            **translator.options,
            "lowercase": lowercase,
            "limit": limit,
            "texts_sha256": fingerprint(sources, references),
            "device": next(loaded.model.parameters()).device.type,
        },
        "seconds": round(seconds, 3),
        "sentences_per_second": round(speed, 1),
    }
    _write_results(checkpoint, part, result, hypotheses)
    path = shlex.quote(str(checkpoint))
    example = example_sentence(sources)
    if loaded.model.head_names:
        typer.echo(f"next: headlab attend {path} {example} --out attention.png")
    else:
        typer.echo(f"next: headlab translate {path} {example}")
    return result


def _reference_loss(
    translator: "Translator", sources: Sequence[str], references: Sequence[str]
) -> "ReferenceLoss | None":
    from headlab.data.text import is_blank
    from headlab.evaluation import reference_loss

    seen = [i for i, text in enumerate(sources) if not is_blank(text)]
    pairs = translator.tokenizers.encode_pairs(
        [sources[i] for i in seen], [references[i] for i in seen]
    )
    return reference_loss(translator.model, pairs, translator.options["batch_tokens"])


def _write_results(
    checkpoint: Path, part: str, result: dict[str, Any], hypotheses: Sequence[str]
) -> None:
    from headlab.files import replace_file

    usual = checkpoint.with_name(f"{checkpoint.stem}.{part}.json")
    scores_path = numbered(usual, lambda path: of_settings(path, result["settings"]))
    text_path = scores_path.with_suffix(".hyp.txt")
    result["hypotheses"] = text_path.name
    text = "".join(line + "\n" for line in hypotheses)
    replace_file(text_path, lambda file: file.write(text.encode()))
    scores = json.dumps(result, indent=2, ensure_ascii=False) + "\n"
    replace_file(scores_path, lambda file: file.write(scores.encode()))
    typer.echo(f"written: {scores_path}, {text_path}")


def _number(value: float | None) -> float | None:
    """JSON has no infinity and no NaN: null in their place."""
    return value if value is not None and math.isfinite(value) else None
