"""The commands whose start ``headlab benchmark`` measures."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from headlab.cli import resuming

CALLBACK = "headlab.benchmark.first_step.EndAtFirstStep"


def measure_starts(
    checkpoint: Path,
    parts: list[str],
    threads: int,
    device: str,
    folder: Path,
    progress: Callable[[str], None],
) -> dict[str, Any]:
    """Seconds from a command to its first result, each several times.

    * ``translate``: the translation of one short sentence.
    * ``training``: the first optimizer step of a new run with the checkpoint's configuration. The
      corpus is in its cache; the tokenizer is read, as for any but the first training on a corpus.

    Args:
        checkpoint: a path.
        parts: of the benchmark; a command counts to ``decoding`` or to ``training``.
        threads, device: as in the commands.
        folder: for what the runs write.
        progress: called with a line before each process.

    Raises:
        HeadlabError: a command failed.
    """
    from headlab.benchmark.start_time import SENTENCE, start_times

    found = {}
    if "decoding" in parts:
        options = ["--threads", str(threads), "--device", device]
        arguments = ["translate", *options, "--", str(checkpoint), SENTENCE]
        found["translate"] = start_times(arguments, threads, progress)
    if "training" in parts:
        gpu = device.startswith("cuda")
        arguments = [
            "train",
            resuming.quoted("init_from", checkpoint.absolute()),
            resuming.quoted("paths.outputs", folder),
            f"threads={threads}",
            f"++trainer.accelerator={'gpu' if gpu else 'cpu'}",
            "++trainer.devices=1",
            "++trainer.strategy=auto",
            f"++callbacks.first_step._target_={CALLBACK}",
        ]
        found["training"] = start_times(arguments, threads, progress)
    return found
