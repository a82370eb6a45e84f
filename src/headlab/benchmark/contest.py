"""Contestants that take turns: starting them, the rounds, and what their turns add up to."""

import importlib.util
import math
import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, Self

from headlab.benchmark.process import PATIENCE, ContestantFailed, Worker

OURS = "Headlab"
TORCH = "torch.nn.Transformer"
MARIAN = "transformers MarianMT"
CTRANSLATE = "CTranslate2"
CTRANSLATE_ONE = "CTranslate2, one batch at a time"
INSTALL = "pip install 'headlab[benchmark]'"


class Spread(NamedTuple):
    """Of the same number in several turns."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> "Spread":
        """Median, least and most."""
        return cls(statistics.median(values), min(values), max(values))


@dataclass
class Entry:
    """A row of a table: a contestant, and what each of its turns is to do.

    Attributes:
        name: of the row; the first one is ``OURS``.
        worker: its process; several rows may share one.
        command: of a turn.
        versus: the row of ours that it is compared with.
        turns: the answers.
    """

    name: str
    worker: Worker
    command: dict[str, Any]
    versus: str = OURS
    turns: list[dict[str, Any]] = field(default_factory=list)

    @property
    def seconds(self) -> list[float]:
        """Of each turn."""
        return [turn["seconds"] for turn in self.turns]

    def per_second(self, amount: float) -> Spread:
        """Spread over the turns of so many things a turn, divided by the turn's seconds."""
        return Spread.of([amount / seconds for seconds in self.seconds])


class Contest:
    """The contestants of one part of the benchmark, to be used in a ``with`` statement.

    Args:
        folder: of the material.
        threads, device: of every contestant.
        turns: that each takes.
        seconds: that a turn of the slowest is to take, about.
        progress: called with a line before each step of the work.
        end: when its turns are to be over, on the clock of ``time.monotonic``, about: each
            contestant has one turn at least.

    Attributes:
        not_run: contestant -> why it does not take part.
        left_out: what there was no time for, a line each.
        peaks: speeds of the matrix product, in GFLOP/s, in the order in which they were measured.
    """

    def __init__(
        self,
        folder: Path,
        *,
        threads: int,
        device: str,
        turns: int,
        seconds: float,
        progress: Callable[[str], None],
        end: float = math.inf,
    ) -> None:
        self.end = end
        self.folder, self.threads, self.device = folder, threads, device
        self.turns, self.seconds, self.progress = turns, seconds, progress
        self.not_run: dict[str, str] = {}
        self.left_out: list[str] = []
        self.peaks: list[float] = []
        self.stack = ExitStack()
        self.peak_worker = self.start("matrix product", kind="peak")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.stack.close()

    def start(self, name: str, keep_memory: bool = False, **spec: Any) -> Worker:
        """Start a contestant's process; it goes on in the background until ``ready``."""
        shared = {"threads": self.threads, "device": self.device, "keep_memory": keep_memory}
        patience = PATIENCE + 4 * self.seconds  # a turn may take a few times what was planned
        return self.stack.enter_context(Worker(name, shared | spec, self.folder, patience))

    def ready(self, workers: Iterable[Worker]) -> list[Worker]:
        """Wait for contestants; those that could not be built are left out, with the reason."""
        built = []
        for worker in workers:
            self.progress(f"starting {worker.name}")
            if self.attempt(worker, worker.ready) is not None:
                built.append(worker)
        return built

    def attempt(
        self, worker: Worker, act: Callable[..., dict[str, Any]], **command: Any
    ) -> dict[str, Any] | None:
        """The answer; None from a contestant that failed, which is noted.

        Raises:
            ContestantFailed: it is ours, without which there is nothing to compare.
        """
        try:
            return act(**command)
        except ContestantFailed as failure:
            if worker.name == OURS:
                raise
            self.not_run[worker.name] = f"failed: {failure.reason}"
            worker.close()
            return None

    @property
    def left(self) -> float:
        """Seconds until the turns are to be over."""
        return self.end - time.monotonic()

    def rounds(
        self, entries: list[Entry], part: str, keep: Callable[[], None] = lambda: None
    ) -> list[Entry]:
        """Every entry's turns, in turn; each round begins with another one.

        The peak is measured before, between and after. Contestants that fail are left out. Rounds
        for which there is no time are left out too, but for the first.

        Args:
            entries: the rows.
            part: of the benchmark, for the progress.
            keep: called after each turn, which ``entries`` then have.
        """
        took = 0.0
        for number in range(self.turns):
            if number and self.left < took:
                self.left_out.append(f"{part}: {self.turns - number} of {self.turns} turns of each")
                break
            begun = time.monotonic()
            self.measure_peak()
            first = number % len(entries)
            for entry in [*entries[first:], *entries[:first]]:
                if entry.worker.name in self.not_run:
                    continue
                self.progress(f"{part}, turn {number + 1}: {entry.name}")
                answer = self.attempt(entry.worker, entry.worker.turn, **entry.command)
                if answer is not None:
                    entry.turns.append(answer)
                    keep()
            took = time.monotonic() - begun
        self.measure_peak()
        return self.measured(entries)

    def measured(self, entries: Iterable[Entry]) -> list[Entry]:
        """Those that have taken a turn, and not failed since."""
        return [one for one in entries if one.turns and one.worker.name not in self.not_run]

    def measure_peak(self) -> None:
        """One more measurement of the matrix product."""
        self.progress("matrix product")
        if not self.peak_worker.answers:
            self.peak_worker.ready()
        self.peaks.append(self.peak_worker.turn()["gflops"])

    @property
    def peak(self) -> float:
        """The best matrix product, in operations a second."""
        return max(self.peaks) * 1e9

    def installed(self, package: str, name: str) -> bool:
        """Whether a package is there; if not, it is noted how to get it."""
        if importlib.util.find_spec(package) is not None:
            return True
        self.not_run[name] = f"{package} is not installed: {INSTALL}"
        return False


def ratios(entries: Sequence[Entry]) -> dict[str, Spread]:
    """Row -> how many times faster ours is, turn by turn, on the same work.

    The turns of a round follow each other closely, so that whatever else the machine does meets
    both alike. The last round may have been stopped before all had their turn.
    """
    named = {entry.name: entry for entry in entries}
    found = {}
    for entry in entries:
        ours = named.get(entry.versus, entry)
        if ours is not entry:
            pairs = zip(entry.seconds, ours.seconds, strict=False)
            if compared := [theirs / mine for theirs, mine in pairs]:
                found[entry.name] = Spread.of(compared)
    return found
