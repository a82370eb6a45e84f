"""``headlab benchmark``: training and decoding speed beside other programs."""

import shlex
import signal
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from headlab.cli.outputs import check_out, is_table
from headlab.cli.sentences import SPLITS, read_splits
from headlab.cli.shared import choose_device, prepare_cpu, progress_bar
from headlab.errors import HeadlabError

if TYPE_CHECKING:
    import torch

    from headlab.benchmark.material import Material
    from headlab.checkpoint import Loaded
    from headlab.cli.benchmark_figures import Figures

# Of the checkpoint's configuration, for a training.
NEEDED = (
    "data", "batches", "loss", "optimizer", "schedule", "trainer", "callbacks", "logger", "seed",
)  # fmt: skip

# For the progress bar, about: contestants that take turns, and steps that are no turns.
STEPS = {"training": (4, 16), "decoding": (10, 39)}
START_SHARE = 0.15  # of the time, for the starts of commands


class Part(StrEnum):
    """One of the two that are measured."""

    TRAINING = "training"
    DECODING = "decoding"


def benchmark(
    checkpoint: Annotated[Path, typer.Argument(help="A checkpoint, e.g. outputs/latest/best.ckpt")],
    only: Annotated[Part | None, typer.Option(help="One of the two alone.")] = None,
    turns: Annotated[
        int, typer.Option(min=3, max=100, help="Turns of each contestant; they alternate.")
    ] = 3,
    seconds: Annotated[
        float,
        typer.Option(
            min=0.001, max=600, help="That a training turn of the slowest contestant takes, about."
        ),
    ] = 6.0,
    batches: Annotated[
        int, typer.Option(min=1, max=1000, help="Training batches, of all lengths, used again.")
    ] = 12,
    max_tokens: Annotated[
        int, typer.Option(min=1, help="Of a training batch: rows x its longest sentence.")
    ] = 4096,
    split: Annotated[str, typer.Option(help="What is translated: train, validation or test")] = (
        "test"
    ),
    sentences: Annotated[
        int, typer.Option(min=1, help="Sentences translated: the first of the split.")
    ] = 1000,
    minutes: Annotated[
        float,
        typer.Option(
            min=0.01,
            max=10_000,
            help="Time for all of it, about: turns become shorter, then fewer; each contestant has "
            "one at least.",
        ),
    ] = 10.0,
    profile: Annotated[
        bool, typer.Option("--profile", help="Also which operators of ours take the most time.")
    ] = False,
    out: Annotated[
        Path | None,
        typer.Option(
            help="JSON file of all figures. Default: best.benchmark.json beside best.ckpt, with "
            "a number where there are figures of other settings."
        ),
    ] = None,
    threads: Annotated[
        int | None, typer.Option(min=1, max=1024, help="CPU threads. Default: all.")
    ] = None,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda")] = "auto",
) -> None:
    """Measure training and decoding speed beside other programs, on this machine.

    Training is our trainer as users run it, beside torch.nn.Transformer and transformers' MarianMT
    in plain loops. Decoding is our Translator beside MarianMT's generate and CTranslate2, greedy
    and with beam 4. All work on the same batches and sentences of the checkpoint's corpus, with
    the same sizes, loss, optimizer and threads, each in a process of its own, and take turns.

    The tables give tokens and sentences a second, the share of the machine's best matrix product
    that goes into the model's own arithmetic (MFU), peak memory, and how many times faster ours
    is, with the spread over the turns. The times that translate and a training take to start are
    measured as well.

    Programs that are not installed are left out; the package's extra "benchmark" brings them.
    What there was no time for is named. Stopped before its end, it prints what it has; every turn
    is in a .partial.json file as soon as it is measured. Leave the machine alone meanwhile.
    """
    import torch

    from headlab.checkpoint import read_checkpoint
    from headlab.cli.benchmark_figures import Figures

    if split not in SPLITS:
        raise HeadlabError(f"--split {split}: choose {', '.join(SPLITS[:-1])} or {SPLITS[-1]}")
    chosen = choose_device(device)
    if chosen.type not in ("cpu", "cuda"):
        raise HeadlabError(f"--device {device}: the benchmark knows cpu and cuda only")
    loaded = read_checkpoint(checkpoint)
    if out is not None:
        check_out(out, "benchmark.json", checkpoint, ours=_is_ours, what="a file of figures")
    _check(loaded)
    prepare_cpu(threads)
    material = _material(loaded, split, sentences, batches, max_tokens)
    parts = [Part.TRAINING, Part.DECODING] if only is None else [only]
    settings = {"threads": torch.get_num_threads(), "turns": turns, "seconds": seconds}
    figures = Figures(
        {
            "checkpoint": str(checkpoint),
            "model": loaded.model.hparams,
            "data": loaded.config["data"],
            "settings": {
                "parts": [part.value for part in parts],
                "split": split,
                "sentences": sentences,
                "batches": batches,
                "max_tokens": max_tokens,
                "minutes": minutes,
                "profile": profile,
                "device": str(chosen),
                **settings,
            },
        },
        out,
        checkpoint,
    )
    end = time.monotonic() + 60 * minutes
    try:
        with _ended_in_order():
            _measure(loaded, material, parts, chosen, settings, profile, end, figures)
    except (Stopped, HeadlabError) as error:
        figures.report_partial()
        if isinstance(error, Stopped):
            typer.echo(f"stopped by {error.name}", err=True)
            raise typer.Exit(128 + error.signum) from None
        raise
    figures.report()
    path = shlex.quote(str(checkpoint))
    if profile:
        typer.echo(f"next: headlab evaluate {path}")
    else:
        typer.echo(f"next: headlab benchmark {path} --profile")


def _is_ours(path: Path) -> bool:
    return is_table(path, "checkpoint", "settings", "surroundings")


def _check(loaded: "Loaded") -> None:
    missing = [key for key in NEEDED if loaded.config.get(key) is None]
    if missing:
        raise HeadlabError(
            f"{loaded.path}: its configuration has no {missing[0]}, so its training cannot be "
            "measured; take a checkpoint that headlab train wrote"
        )


def _material(
    loaded: "Loaded", split: str, sentences: int, batches: int, max_tokens: int
) -> "Material":
    from headlab.benchmark.material import (
        EXAMPLES,
        Material,
        choose_batches,
        choose_to_translate,
    )

    train, validation, (sources, _) = read_splits(loaded, "train", "validation", split)
    pairs, plan = choose_batches(loaded, *train, max_tokens, batches)
    return Material(
        loaded.model.hparams,
        loaded.tokenizers.state(),
        loaded.config,
        pairs,
        plan,
        list(zip(*(side[:EXAMPLES] for side in validation), strict=True)),
        choose_to_translate(loaded, sources, sentences, split),
    )


def _measure(
    loaded: "Loaded",
    material: "Material",
    parts: list[Part],
    device: "torch.device",
    settings: dict[str, Any],
    profile: bool,
    end: float,
    figures: "Figures",
) -> None:
    """Measure each part, and what it depends on, until ``end`` on the clock of ``monotonic``."""
    from headlab.benchmark.contest import Contest
    from headlab.benchmark.measure_decoding import measure_decoding
    from headlab.benchmark.measure_training import measure_training
    from headlab.benchmark.surroundings import surroundings
    from headlab.cli.benchmark_starts import measure_starts

    threads = settings["threads"]
    figures.keep("surroundings", surroundings(device, threads))
    starts: dict[str, Any] = {}

    def share(of: float) -> float:
        """When such a share of the time that is left will be over."""
        now = time.monotonic()
        return now + of * (end - now)

    with (
        tempfile.TemporaryDirectory(prefix="headlab-benchmark-") as name,
        _steps(parts, settings["turns"], end) as progress,
    ):
        folder = Path(name)

        def keep_start(found: dict[str, list[float]]) -> None:
            starts.update(found)
            figures.keep("start_seconds", starts)

        # First, since whatever keeps the commands from starting shows here, before long work.
        until = share(START_SHARE)
        measure_starts(
            loaded.path, [*parts], threads, str(device), folder, progress, until, keep_start
        )
        material.save(folder)
        for place, part in enumerate(parts):
            # What comes after the turns has a tenth of the part's time.
            until = share(0.9 / (len(parts) - place))
            with Contest(
                folder, device=str(device), progress=progress, end=until, **settings
            ) as contest:
                keep = partial(figures.keep, part.value)
                if part is Part.TRAINING:
                    found = measure_training(contest, loaded.model, material, profile, keep)
                else:
                    found = measure_decoding(
                        contest, loaded.path, loaded.model, material, profile, keep
                    )
                keep(found)


@contextmanager
def _steps(parts: list[Part], turns: int, end: float) -> Iterator[Callable[[str], None]]:
    """Progress through all steps; how many there are is known about."""
    counts = [STEPS[part] for part in parts]
    total = sum(more + turns * (contestants + 1) for contestants, more in counts)
    done = 0
    with progress_bar("benchmark", total) as progress:

        def step(line: str) -> None:
            nonlocal done
            left = max(0.0, end - time.monotonic()) / 60
            progress(min(done, total - 1), f"{line}, at most about {left:.1f} min left")
            done += 1

        yield step


class Stopped(BaseException):
    """A signal asks the program to end."""

    def __init__(self, signum: int) -> None:
        self.signum, self.name = signum, signal.Signals(signum).name
        super().__init__(self.name)


@contextmanager
def _ended_in_order() -> Iterator[None]:
    """SIGTERM and a lost terminal end the contestants and keep their figures, as Ctrl-C does."""

    def leave(signum: int, frame: object) -> NoReturn:
        raise Stopped(signum)

    names = ("SIGINT", "SIGTERM", "SIGHUP")  # Windows has no SIGHUP
    signals = [getattr(signal, name) for name in names if hasattr(signal, name)]
    before = [signal.signal(one, leave) for one in signals]
    try:
        yield
    finally:
        for one, handler in zip(signals, before, strict=True):
            signal.signal(one, handler)
