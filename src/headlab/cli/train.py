"""``python train.py`` and ``headlab train``: Hydra's way into a training run."""

import logging
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import hydra
from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf

from headlab.cli import configuration, folders, resuming, starting, streams
from headlab.cli.report import report_run
from headlab.cli.sweep import Job, report_sweep
from headlab.errors import HeadlabError

logger = logging.getLogger("headlab")


def main(arguments: Sequence[str] | None = None) -> None:
    """Run one training, or a sweep with ``-m``; exits with status 1 when any job failed."""
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    os.environ["HYDRA_FULL_ERROR"] = "1"  # exceptions reach us; we show one line of our own
    if os.environ.get("LOCAL_RANK", "0") != "0":  # another process of a distributed run
        logger.setLevel(logging.WARNING)
    configuration.register_resolvers()
    streams.prepare()
    jobs = _Jobs()
    try:
        # Lightning starts the other processes of a distributed run by this very command line.
        arguments = configuration.for_hydra(starting.for_hydra(arguments))
        arguments = resuming.for_hydra(arguments)
        sys.argv = [str(Path(__file__).resolve()), *arguments]
        hydra.main(
            version_base="1.3", config_path=str(configuration.folder()), config_name="train"
        )(jobs.run)()
        sys.stdout.flush()
    except KeyboardInterrupt:
        print("stopped", file=sys.stderr)
        sys.exit(130)
    except BrokenPipeError:
        streams.leave()
    except Exception as error:  # before or between the jobs: Hydra, the command line, the disk
        _fail(configuration.explain(error))
    if jobs.sweep is not None and jobs.results and os.environ.get("LOCAL_RANK", "0") == "0":
        report_sweep(jobs.results, jobs.sweep)
    if jobs.failed:
        sys.exit(1)


class _Jobs:
    """The jobs of this command: one, or those of a sweep."""

    def __init__(self) -> None:
        self.results: list[Job] = []
        self.sweep: Path | None = None  # the folder of a sweep

    @property
    def failed(self) -> bool:
        return any(job.final is None for job in self.results)

    def run(self, composed: DictConfig) -> None:
        """Hydra's task function. A failing job of a sweep does not stop the others."""
        job = HydraConfig.get()
        if job.mode == RunMode.MULTIRUN:
            self.sweep = Path(job.runtime.cwd) / job.sweep.dir
        name = job.job.override_dirname
        if self.sweep is not None:
            logger.info("job %s: %s", job.job.num, name)
        # Paths are relative to where the user stands, also with hydra.job.chdir=true.
        os.chdir(job.runtime.cwd)
        folder = Path(job.runtime.output_dir)
        result = None
        try:
            result = _train(composed, folder)
        except HeadlabError as error:
            print(f"error: {name + ': ' if self.sweep else ''}{error}", file=sys.stderr, flush=True)
            if not self.sweep and composed.resume is None:
                folders.discard(folder, job.output_subdir, job.job.name)
        except Exception:
            logger.exception("%sfailed", f"{name}: " if self.sweep else "")
        overrides = list(job.overrides.task)
        self.results.append(Job(name, overrides, folder, result))


def _train(composed: DictConfig, folder: Path) -> dict[str, Any]:
    from headlab.training.checkpoints import Interrupted
    from headlab.training.fit import fit

    resume = Path(composed.resume).absolute() if composed.resume is not None else None
    if resume is not None:
        composed = resuming.of_checkpoint(resume)
    elif composed.init_from is not None:
        overrides = HydraConfig.get().overrides.task
        start = Path(composed.init_from).absolute()
        composed = starting.of_checkpoint(composed, overrides, start)
    config: Any = OmegaConf.to_container(composed, resolve=True, throw_on_missing=True)
    configuration.check(config)
    configuration.anchor(config)
    try:
        run = fit(config, folder, resume)
    except Interrupted as stop:
        print(f"{stop}; to go on: python train.py resume={configuration.shown(stop.path)}")
        sys.exit(128 + stop.signum)
    if not run.main:
        return {}
    try:
        print(flush=True)
    except OSError:  # nobody reads on, but the scores are still to be written
        streams.abandon_output()
    return report_run(run, config)


def _fail(message: str) -> None:
    print(f"error: {message}", file=sys.stderr)
    sys.exit(1)


if __name__ == "__main__":
    main()
