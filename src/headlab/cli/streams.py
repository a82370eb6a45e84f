"""Standard streams that may be closed, broken or unable to write some letters."""

import io
import logging
import os
import signal
import sys
from typing import TYPE_CHECKING, NoReturn

if TYPE_CHECKING:
    from rich.table import Table


def prepare() -> None:
    """Make writing to the standard streams safe, whatever started the program.

    A closed stream becomes the null device; a letter that the terminal's encoding lacks is
    written as an escape; a log line that cannot be written is dropped without a traceback.
    """
    logging.raiseExceptions = False
    if sys.stdin is None:
        sys.stdin = open(os.devnull, encoding="utf-8")  # noqa: SIM115 - for the whole process
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115
        elif isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def abandon_output() -> None:
    """Send what is still to be printed nowhere: its reader has left (``| head``)."""
    null = os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(null, sys.stdout.fileno())
    except (OSError, ValueError, io.UnsupportedOperation):
        sys.stdout = open(null, "w", encoding="utf-8")  # noqa: SIM115


def leave() -> NoReturn:
    """End as a program does whose reader has left (``| head``): nothing to say."""
    abandon_output()
    sys.exit(128 + signal.SIGPIPE)


def print_table(table: "Table") -> None:
    """Print a table whole: cells are never cut, the terminal may wrap its lines.

    Raises:
        BrokenPipeError: the reader has left.
    """
    from rich.console import Console
    from rich.measure import Measurement

    class Printer(Console):
        def on_broken_pipe(self) -> NoReturn:
            raise BrokenPipeError  # not the exit with status 1 that rich would make of it

    console = Printer()
    # As wide as the table asks to be, where the terminal (or 80 columns, in a pipe) is narrower.
    options = console.options.update(max_width=10_000)
    needed = Measurement.get(console, options, table).maximum
    if console.width < needed and any(column.no_wrap for column in table.columns):
        console = Printer(width=needed)
    console.print(table)
