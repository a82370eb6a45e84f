"""How long a user waits for a command, Python's start and all imports included."""

import math
import subprocess
import sys
import time
from collections.abc import Callable, Sequence

from headlab.benchmark.process import environment
from headlab.errors import HeadlabError

SENTENCE = "Good morning."
REPEATS = 3
PATIENCE = 300.0  # seconds that a command may take


def start_times(
    arguments: Sequence[str],
    threads: int,
    progress: Callable[[str], None],
    end: float = math.inf,
    keep: Callable[[list[float]], None] = lambda seconds: None,
) -> list[float]:
    """Seconds of ``headlab ARGUMENTS``, ``REPEATS`` times, a process each.

    The first one may have to read files that the system has in no cache yet; the best one says
    what the program itself takes.

    Args:
        arguments: the command and its options.
        threads: of the CPU.
        progress: called with a line before each of them.
        end: when to be done with it, on the clock of ``time.monotonic``; once is the least.
        keep: called with all seconds so far, after each of them.

    Raises:
        HeadlabError: the command failed, or did not end.
    """
    name = f"headlab {arguments[0]}"
    found: list[float] = []
    for _ in range(REPEATS):
        if found and time.monotonic() + found[-1] > end:
            break
        progress(f"start of {name}")
        start = time.perf_counter()
        try:
            done = subprocess.run(
                [sys.executable, "-P", "-m", "headlab", *arguments],
                env=environment(threads),
                stdin=subprocess.DEVNULL,
                capture_output=True,
                check=False,
                timeout=PATIENCE,
            )
        except subprocess.TimeoutExpired:
            raise HeadlabError(f"benchmark: {name} did not end in {PATIENCE:,.0f} s") from None
        seconds = time.perf_counter() - start
        if done.returncode:
            lines = done.stderr.decode(errors="replace").strip().splitlines() or ["no reason given"]
            reason = lines[-1].removeprefix("error: ")
            raise HeadlabError(f"benchmark: {name} failed: {reason}")
        found.append(seconds)
        keep(found)
    return found
