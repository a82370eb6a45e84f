"""Standard streams that may be closed, broken or unable to write some letters."""

import io
import logging
import os
import sys


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
