"""How a contestant talks to the benchmark: a line of JSON in, a line of JSON out."""

import json
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol, TextIO

import torch

PEAK_KEY = "VmHWM:"  # in /proc/self/status: the most memory that the process has held, in kB


class Channel(Protocol):
    """Commands come out of it, answers go into it."""

    def send(self, answer: dict[str, Any]) -> None:
        """Answer the last command; the first answer says that the contestant is ready."""

    def receive(self) -> dict[str, Any] | None:
        """Wait for the next command; None: there is none."""


class Pipes:
    """A channel over two text streams; tells the peak of the memory with every answer.

    Args:
        commands, answers: the streams.
        device: whose memory it is.
    """

    def __init__(self, commands: TextIO, answers: TextIO, device: torch.device) -> None:
        self.commands, self.answers, self.device = commands, answers, device

    def send(self, answer: dict[str, Any]) -> None:
        """Write one line."""
        answer = {**answer, "peak_memory_bytes": peak_memory(self.device)}
        self.answers.write(json.dumps(answer) + "\n")
        self.answers.flush()

    def receive(self) -> dict[str, Any] | None:
        """Read one line."""
        line = self.commands.readline()
        command: dict[str, Any] | None = json.loads(line) if line.strip() else None
        return command


def commands(channel: Channel) -> Iterator[dict[str, Any]]:
    """All commands until the benchmark has no more."""
    while (command := channel.receive()) is not None:
        yield command


def peak_memory(device: torch.device) -> int | None:
    """The most bytes that this process has held so far: of the GPU there, resident on the CPU.

    None on systems that do not tell.
    """
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    status = Path("/proc/self/status")
    if status.exists():
        for line in status.read_text().splitlines():
            # Not getrusage: there a process inherits the peak of the one that started it.
            if line.startswith(PEAK_KEY):
                return int(line.split()[1]) * 1024
    try:
        import resource
    except ImportError:  # Windows
        return None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def now(device: torch.device) -> float:
    """Seconds of a clock, once the device has done all it was told to."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()


def private_output() -> TextIO:
    """Standard output for the answers alone: what is printed from here on goes to standard error.

    Libraries print; an answer must be the only thing on its line.
    """
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    return answers
