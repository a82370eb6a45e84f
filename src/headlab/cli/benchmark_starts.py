"""The commands whose start ``headlab benchmark`` measures."""

from collections.abc import Callable
from pathlib import Path

from headlab.cli import resuming

CALLBACK = "headlab.benchmark.first_step.EndAtFirstStep"


def measure_starts(
    checkpoint: Path,
    parts: list[str],
    threads: int,
    device: str,
    folder: Path,
    progress: Callable[[str], None],
    end: float,
    keep: Callable[[dict[str, list[float]]], None],
) -> None:
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
        end: when to be done, about, on the clock of ``time.monotonic``.
        keep: called with the command's name and its seconds so far, after each process.

    Raises:
        HeadlabError: a command failed.
    """
    from headlab.benchmark.start_time import SENTENCE, start_times

    def measure(name: str, arguments: list[str]) -> None:
        start_times(arguments, threads, progress, end, lambda seconds: keep({name: seconds}))

    if "decoding" in parts:
        options = ["--threads", str(threads), "--device", device]
        arguments = ["translate", *options, "--", str(checkpoint), SENTENCE]
        measure("translate", arguments)
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
        measure("training", arguments)
