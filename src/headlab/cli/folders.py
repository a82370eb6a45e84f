"""The folder of a run: a new one, whose files are in it, and what may be taken out of it again."""

import functools
import itertools
import os
import re
import sys
import time
from pathlib import Path
from typing import Any

from hydra.experimental.callback import Callback
from omegaconf import DictConfig, OmegaConf

from headlab.errors import HeadlabError

HYDRA_FILES = ("config.yaml", "hydra.yaml", "overrides.yaml")
SWEEP_FILE = "multirun.yaml"

_made: list[Path] = []  # folders that this process makes, the innermost first


@functools.cache  # one folder a process, however often Hydra asks
def new_folder(outputs: str, name: str) -> str:
    """Make a folder that no other run has, even one started in the same second."""
    stem = f"{time.strftime('%Y-%m-%d_%H-%M-%S')}-{slug(name)}"
    for n in itertools.count(1):
        place = Path(outputs) / (stem if n == 1 else f"{stem}-{n}")
        try:
            place.mkdir(parents=True)
            _made.append(place.absolute())
            return str(place)
        except FileExistsError:
            if not place.is_dir():
                raise HeadlabError(f"paths.outputs={outputs} is not a folder") from None
        except OSError as error:
            raise HeadlabError(
                f"paths.outputs={outputs}: {error.strerror}; choose a folder that can be written"
            ) from None
    raise AssertionError("unreachable")


def slug(*parts: Any) -> str:
    """A file name that never needs escaping when typed back in."""
    return re.sub(r"[^A-Za-z0-9.]+", "-", "-".join(map(str, parts))).strip("-.")[:80] or "run"


class NewFolder(Callback):
    """Hydra's hook before it writes anything: a new run overwrites nothing of an earlier one.

    The usual folders are new. Those that ``hydra.run.dir`` and ``hydra.sweep.dir`` name may hold
    other things, which then stay as they are, but no run.
    """

    def on_run_start(self, config: DictConfig, **_: Any) -> None:
        """Refuse the folder of an earlier run, unless to go on with that run."""
        if config.resume is not None or os.environ.get("LOCAL_RANK", "0") != "0":
            return
        folder = Path(config.hydra.run.dir).absolute()
        earlier = _traces(folder, config.hydra.output_subdir, config.hydra.job.name)
        if earlier:
            _refuse(
                f"hydra.run.dir={config.hydra.run.dir} holds {earlier[0].relative_to(folder)} of "
                "an earlier run, which a new one would overwrite; choose another folder, or go on "
                "with resume=FILE"
            )
        _made.extend(p for p in (folder, *folder.parents) if not p.exists())

    def on_multirun_start(self, config: DictConfig, **_: Any) -> None:
        """Refuse the folder of an earlier sweep, and one folder for all jobs."""
        sweep: Any = OmegaConf.to_container(config.hydra.sweep, resolve=False)
        if "hydra.job." not in str(sweep["subdir"]):
            _refuse(
                f"hydra.sweep.subdir={sweep['subdir']} is one folder for all jobs, which would "
                "overwrite each other; put ${hydra.job.num} into it"
            )
        folder = Path(config.hydra.sweep.dir)
        if (folder / SWEEP_FILE).exists():
            _refuse(
                f"hydra.sweep.dir={folder} holds {SWEEP_FILE} of an earlier sweep, which a new one "
                "would overwrite; choose another folder"
            )


def _refuse(message: str) -> None:
    # Hydra turns the exceptions of a callback into warnings.
    print(f"error: {message}", file=sys.stderr)
    sys.exit(1)


def discard(folder: Path, output_subdir: str | None, job: str) -> None:
    """Take out what a run wrote that failed before it had anything to keep.

    Only that, and folders that it made and that are empty then: the user may have named a folder
    with files of his own in it.

    Args:
        folder: of the run.
        output_subdir: of it, where Hydra writes the configuration; None: nowhere.
        job: Hydra's name of the job, which the log is called after.
    """
    if _results(folder):
        return
    for path in _beginnings(folder, output_subdir, job):
        path.unlink(missing_ok=True)
    for place in [*([folder / output_subdir] if output_subdir else []), *_made]:
        try:
            place.rmdir()
        except OSError:  # not empty, or never made
            return


def _traces(folder: Path, output_subdir: str | None, job: str) -> list[Path]:
    """What a run has left in a folder and another one would overwrite."""
    beginnings = _beginnings(folder, output_subdir, job)
    return [*_results(folder), *(path for path in beginnings if path.exists())]


def _results(folder: Path) -> list[Path]:
    return [*folder.glob("*.ckpt"), *folder.glob("tensorboard/*")]


def _beginnings(folder: Path, output_subdir: str | None, job: str) -> list[Path]:
    """The files that Hydra writes for a run before the run begins."""
    configuration = [folder / output_subdir / name for name in HYDRA_FILES] if output_subdir else []
    return [*configuration, folder / f"{job}.log"]
