"""The benchmark's end of a contestant's process."""

import contextlib
import json
import os
import queue
import subprocess
import sys
import threading
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import headlab
from headlab.errors import HeadlabError

PROGRAM = (sys.executable, "-P", "-m", "headlab.benchmark.worker")
PATIENCE = 300.0  # seconds that a contestant may take for an answer


class ContestantFailed(HeadlabError):
    """A contestant ended, or hung, before it answered; names it and says why."""

    def __init__(self, name: str, reason: str) -> None:
        super().__init__(f"benchmark: {name}: {reason}")
        self.reason = reason


class Worker:
    """A contestant in a process of its own; see ``headlab.benchmark.worker``.

    Args:
        name: of the contestant, for its log.
        spec: its first line.
        folder: of the material.
        patience: seconds that it may take for an answer.
        program: that serves, as a command; it is given the folder.
    """

    def __init__(
        self,
        name: str,
        spec: dict[str, Any],
        folder: Path,
        patience: float = PATIENCE,
        program: tuple[str, ...] = PROGRAM,
    ) -> None:
        self.name, self.patience = name, patience
        self.log = folder / f"{name.replace('/', '-')}.log"
        self.answers: list[dict[str, Any]] = []
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [*program, str(folder)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env=environment(spec["threads"]),
                text=True,
                encoding="utf-8",
            )
        # A thread waits for lines, since no system but Unix can wait for a pipe with a time limit.
        self._lines: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._reader = threading.Thread(target=self._listen, daemon=True)
        self._reader.start()
        self._write({**spec, "parent": os.getpid()})

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def ready(self) -> dict[str, Any]:
        """Wait until it has been built.

        Raises:
            ContestantFailed: it could not be.
        """
        return self._read()

    def turn(self, **command: Any) -> dict[str, Any]:
        """Give it a command and wait for the answer.

        Raises:
            ContestantFailed: there is none.
        """
        self._write(command)
        return self._read()

    @property
    def peak_memory(self) -> int | None:
        """The most bytes that it has held, by its last answer."""
        return self.answers[-1]["peak_memory_bytes"] if self.answers else None

    def close(self) -> None:
        """End it, whatever it is doing: all that it had to say has been said."""
        self.process.kill()
        self.process.wait()
        self._reader.join(1.0)
        if self._reader.is_alive():  # a process of the contestant's own still holds the pipe
            return
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe is not None
            with contextlib.suppress(BrokenPipeError):  # a line that it had no time to read
                pipe.close()

    def _listen(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._lines.put(line)
        self._lines.put("")  # the end

    def _write(self, line: dict[str, Any]) -> None:
        assert self.process.stdin is not None
        # Reading the answer says what happened.
        with contextlib.suppress(OSError, ValueError):
            self.process.stdin.write(json.dumps(line) + "\n")
            self.process.stdin.flush()

    def _read(self) -> dict[str, Any]:
        try:
            line = self._lines.get(timeout=self.patience)
        except queue.Empty:
            self.close()
            raise ContestantFailed(
                self.name,
                f"no answer in {self.patience:,.0f} s, so it was ended; ask for less with "
                "--sentences or --batches",
            ) from None
        if not line:
            self._lines.put("")  # for whoever asks again
            self.process.wait()
            raise ContestantFailed(self.name, self._reason())
        answer: dict[str, Any] = json.loads(line)
        self.answers.append(answer)
        return answer

    def _reason(self) -> str:
        code = self.process.returncode
        if code < 0:
            return f"ended by signal {-code} (out of memory?)"
        lines = self.log.read_text(encoding="utf-8", errors="replace").split("\n")
        return next((line.strip() for line in reversed(lines) if line.strip()), f"status {code}")


def environment(threads: int) -> dict[str, str]:
    """That of a process of the benchmark: so many threads, this package, no network."""
    place = str(Path(headlab.__file__).parents[1])
    others = os.environ.get("PYTHONPATH")
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([place, others]) if others else place,
        "OMP_NUM_THREADS": str(threads),
        "MKL_NUM_THREADS": str(threads),
        "HF_HUB_OFFLINE": "1",
        "TRANSFORMERS_VERBOSITY": "error",
    }
