"""``headlab translate``: sentences in, as many translations out."""

import os
import sys
import time
from pathlib import Path
from typing import Annotated

import typer

from headlab.cli import streams
from headlab.cli.shared import choose_device, progress_bar, set_threads
from headlab.errors import HeadlabError

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

    set_threads(threads)
    translator = Translator.from_checkpoint(
        checkpoint,
        choose_device(device),
        beam=beam,
        length_penalty=length_penalty,
        batch_tokens=batch_tokens,
    )
    if sentences:
        lines = [_argument_text(sentence, i) for i, sentence in enumerate(sentences, start=1)]
        unit = "sentence"
    else:
        if sys.stdin.isatty():
            typer.echo("Type one sentence a line; end with Ctrl-D.", err=True)
        lines = read_stdin_lines(sys.stdin.buffer)
        unit = "line"

    start = time.perf_counter()
    with progress_bar("translating", len(lines)) as progress:
        translations = translator.translate(
            lines, progress=progress, name=lambda i: f"{unit} {i + 1}"
        )
    seconds = time.perf_counter() - start
    _write("".join(one_line(text) + "\n" for text in translations).encode())
    if len(lines) >= REPORT_SPEED_FROM:
        speed = len(lines) / seconds
        typer.echo(f"{len(lines):,} sentences in {seconds:.1f} s, {speed:.0f} a second", err=True)


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
