"""What the commands that read a checkpoint have in common."""

import itertools
import json
import os
import shlex
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from headlab.errors import HeadlabError

if TYPE_CHECKING:
    import torch

SECONDS_BETWEEN_LINES = 10.0


def choose_device(name: str) -> "torch.device":
    """The device of a ``--device`` option; "auto" is the GPU where there is one.

    Raises:
        HeadlabError: there is no such device here.
    """
    import torch

    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        if device.type == "meta":  # holds no values
            raise RuntimeError(name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        raise HeadlabError(f"--device {name}: not available here; choose auto or cpu") from error
    return device


def check_out(out: Path, example: str, *read: Path) -> None:
    """Refuse a file of ``--out`` that cannot be written, or that holds what is to be read.

    Args:
        out: the file.
        example: a name that it could have.
        read: the checkpoints that the command reads.

    Raises:
        HeadlabError: says what is wrong with ``out``.
    """
    if out.is_dir():
        raise HeadlabError(f"--out {out} is a folder; name a file in it, such as {out / example}")
    if any(out.exists() and one.exists() and out.samefile(one) for one in read):
        raise HeadlabError(f"--out {out} is the checkpoint itself; choose another name")
    if not out.parent.is_dir():
        raise HeadlabError(f"--out {out}: there is no folder {out.parent}; make it first")
    try:
        with tempfile.TemporaryFile(dir=out.parent):
            pass
    except OSError as error:
        raise HeadlabError(
            f"--out {out}: cannot write into {out.parent} ({error.strerror})"
        ) from None


def numbered(path: Path, ours: Callable[[Path], bool]) -> Path:
    """``path``, or ``path`` with -2, -3, ... before its suffix: the first that is free or ours.

    Args:
        path: of a file.
        ours: whether a file that is there may be replaced.
    """
    for n in itertools.count(1):
        one = path if n == 1 else path.with_name(f"{path.stem}-{n}{path.suffix}")
        if not os.path.lexists(one) or (one.is_file() and ours(one)):
            return one
    raise AssertionError("unreachable")


def of_settings(path: Path, settings: Mapping[str, Any]) -> bool:
    """Whether a JSON file of results says that it came about with the same settings."""
    try:
        found = json.loads(path.read_bytes())
    except (ValueError, RecursionError):
        return False
    same: Any = json.loads(json.dumps(settings))
    return isinstance(found, dict) and found.get("settings") == same


def prepare_cpu(threads: int | None) -> None:
    """Limit PyTorch to as many CPU threads (None leaves its own choice), and keep freed memory."""
    import torch

    from headlab.allocator import keep_freed_memory

    keep_freed_memory()
    if threads is not None:
        torch.set_num_threads(threads)


class Report(Protocol):
    """Says how far a command is."""

    def __call__(self, done: int, what: str = "") -> None:
        """So many are done; ``what`` is being done now."""


@contextmanager
def progress_bar(title: str, total: int) -> Iterator[Report]:
    """Shows on standard error how many of ``total`` are done: call it with that number.

    A bar on a terminal; elsewhere a line every so often, with the rate and the time left.
    """
    if not sys.stderr.isatty():
        yield _Lines(title, total)
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeRemainingColumn

    columns = ("{task.description}", BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(title, total=total)

        def report(done: int, what: str = "") -> None:
            line = f"{title}: {what}" if what else title
            progress.update(task, completed=done, description=line)

        yield report


class _Lines:
    """Progress in lines, for a log."""

    def __init__(self, title: str, total: int) -> None:
        self.title, self.total = title, total
        self.first: int | None = None  # what an earlier run had done already
        self.started = self.said = time.monotonic()

    def __call__(self, done: int, what: str = "") -> None:
        now = time.monotonic()
        if self.first is None:
            self.first = done if now - self.started < 0.5 else 0
        if done >= self.total or now - self.said < SECONDS_BETWEEN_LINES:
            return
        self.said = now
        speed = (done - self.first) / (now - self.started)
        if speed > 0:
            left = (self.total - done) / speed
            rate = f"{speed:,.1f} a second" if speed >= 1 else f"{1 / speed:,.1f} s each"
            line = f"{self.title}: {done:,} of {self.total:,}, {rate}, {left:,.0f} s left"
            line += f"; {what}" if what else ""
            print(line, file=sys.stderr, flush=True)


def example_sentence(sources: Sequence[str]) -> str:
    """A short sentence of the set, quoted for the shell."""
    from headlab.data.text import is_blank

    seen = [text for text in sources if text.isprintable() and not is_blank(text)]
    plain = [text for text in seen if not text.startswith("-")]
    return shlex.quote(min(plain, key=lambda text: abs(len(text) - 30), default="A sentence."))
