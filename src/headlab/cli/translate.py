"""``headlab translate``: sentences in, as many translations out."""

import itertools
import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from headlab.cli import streams
from headlab.cli.shared import choose_device, prepare_cpu, progress_bar
from headlab.errors import HeadlabError

if TYPE_CHECKING:
    from headlab.checkpoint import Loaded
    from headlab.decoding import Translator
    from headlab.decoding.speculative import Speculation

DRAFT_TOKENS = 4
TIMED = 30  # sentences that speculative and greedy search are timed on
REPORT_SPEED_FROM = 100  # sentences; below that the time says little
EXIT_BROKEN_PIPE = 141  # what a shell reports for a program that SIGPIPE ended


def translate(
    checkpoint: Annotated[Path, typer.Argument(help="A checkpoint, e.g. outputs/latest/best.ckpt")],
    sentences: Annotated[
        list[str] | None,
        typer.Argument(
            help="Sentences to translate; none: one a line from standard input. "
            "Put -- before a sentence that begins with a dash.",
            show_default=False,
        ),
    ] = None,
    beam: Annotated[
        int | None,
        typer.Option(min=1, help="Hypotheses kept at each step; 1 is greedy. Default: as trained."),
    ] = None,
    length_penalty: Annotated[
        float | None,
        typer.Option(
            help="Scores are divided by length to this power: 0 favours short translations, "
            "1 takes the mean, more favours long ones. Default: as trained."
        ),
    ] = None,
    draft: Annotated[
        Path | None,
        typer.Option(
            help="A smaller checkpoint with the same tokenizer that drafts tokens for this one to "
            "check: the same greedy translations, one sentence at a time, in fewer passes."
        ),
    ] = None,
    draft_tokens: Annotated[
        int | None,
        typer.Option(min=1, max=64, help="Tokens that --draft proposes at a time. Default: 4."),
    ] = None,
    batch_tokens: Annotated[
        int | None, typer.Option(min=1, help="Source tokens translated at once; bounds the memory.")
    ] = None,
    threads: Annotated[
        int | None, typer.Option(min=1, max=1024, help="CPU threads. Default: all.")
    ] = None,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:1, ...")] = "auto",
) -> None:
    """Translate sentences, from the command line or from standard input.

    Writes one line for each, in order; a blank line for a blank one.
    """
    from headlab.data.text import read_stdin_lines
    from headlab.decoding import Translator, one_line

    if draft is None and draft_tokens is not None:
        raise HeadlabError(f"--draft-tokens {draft_tokens} needs --draft, a smaller checkpoint")
    draft_tokens = draft_tokens or DRAFT_TOKENS
    prepare_cpu(threads)
    drafter = None if draft is None else _read_draft(draft, device)
    translator = Translator.from_checkpoint(
        checkpoint,
        choose_device(device),
        beam=beam,
        length_penalty=length_penalty,
        batch_tokens=batch_tokens,
    )
    if drafter is not None:
        _check_draft(drafter, translator, draft, checkpoint)
    if sentences:
        lines = [_argument_text(sentence, i) for i, sentence in enumerate(sentences, start=1)]
        unit = "sentence"
    else:
        if sys.stdin.isatty():
            typer.echo("Type one sentence a line; end with Ctrl-D.", err=True)
        lines = read_stdin_lines(sys.stdin.buffer)
        unit = "line"

    def name(i: int) -> str:
        return f"{unit} {i + 1}"

    start = time.perf_counter()
    with progress_bar("translating", len(lines)) as progress:
        if drafter is None:
            found = translator.hypotheses(lines, progress=progress, name=name)
        else:
            found, report = translator.speculate(
                lines, drafter.model, draft_tokens, progress=progress, name=name
            )
    seconds = time.perf_counter() - start
    translations = translator.texts(found)
    _write("".join(one_line(text) + "\n" for text in translations).encode())
    if len(lines) >= REPORT_SPEED_FROM:
        speed = len(lines) / seconds
        typer.echo(f"{len(lines):,} sentences in {seconds:.1f} s, {speed:.0f} a second", err=True)
    if drafter is not None and report.tokens:
        _report_drafts(report, translator, lines, drafter, draft_tokens)


def _read_draft(path: Path, device: str) -> "Loaded":
    from headlab.checkpoint import read_checkpoint

    return read_checkpoint(path, choose_device(device))


def _check_draft(
    draft: "Loaded", translator: "Translator", path: Path | None, checkpoint: Path
) -> None:
    """Refuse a draft whose tokens are not the model's, and beams, which it cannot help."""
    if translator.options["beam"] > 1:
        raise HeadlabError("--draft speeds up greedy search only; set --beam 1")
    mine, theirs = translator.tokenizers, draft.tokenizers
    for side in ("source", "target"):
        one, other = getattr(mine, side), getattr(theirs, side)
        if (one.model, one.lowercase) != (other.model, other.lowercase):
            raise HeadlabError(
                f"{path} has another {side} tokenizer than {checkpoint}; a draft must be trained "
                "with the same one, as with init_from or on the same corpus and tokenizer keys"
            )


def _report_drafts(
    report: "Speculation",
    translator: "Translator",
    lines: list[str],
    draft: "Loaded",
    draft_tokens: int,
) -> None:
    """How often the draft was right, and how much faster that was than greedy search.

    Timed on a few of the sentences, both ways in turn, one sentence at a time.
    """
    from headlab.data.text import is_blank

    seconds = [0.0, 0.0]
    source, most = translator.tokenizers.source, translator.max_source_pieces
    whole = (line for line in lines if not is_blank(line) and len(source.encode(line)) <= most)
    for line in itertools.islice(whole, TIMED):
        start = time.perf_counter()
        translator.hypotheses([line])
        middle = time.perf_counter()
        translator.speculate([line], draft.model, draft_tokens)
        seconds[0] += middle - start
        seconds[1] += time.perf_counter() - middle
    faster = f", {seconds[0] / seconds[1]:.2f} times as fast as greedy" if seconds[1] else ""
    typer.echo(
        f"drafts: {report.acceptance:.0%} of {report.proposed:,} tokens accepted, "
        f"{report.passes_per_token:.2f} passes a token{faster}",
        err=True,
    )


def _argument_text(argument: str, number: int) -> str:
    """An argument read as UTF-8, whatever the locale made Python take it for."""
    try:
        return os.fsencode(argument).decode("utf-8")
    except UnicodeError:
        raise HeadlabError(f"sentence {number} of the command line is not UTF-8") from None


def _write(data: bytes) -> None:
    """To standard output as it is: UTF-8 in every locale, and no new line endings."""
    try:
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()
    except BrokenPipeError:
        # The reader has seen enough (``| head``). Python would flush once more while it exits:
        # that must not meet the broken pipe again.
        streams.abandon_output()
        raise typer.Exit(EXIT_BROKEN_PIPE) from None
    except OSError as error:
        streams.abandon_output()
        raise HeadlabError(f"standard output: cannot be written ({error.strerror})") from None
