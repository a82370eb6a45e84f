"""What the commands that read a checkpoint have in common."""

import shlex
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol

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
