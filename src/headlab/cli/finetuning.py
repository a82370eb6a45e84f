"""Training a pruned model on, through the ordinary trainer, in the study's folder."""

import logging
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:
    import torch

    from headlab.checkpoint import Loaded

logger = logging.getLogger("headlab")


class Finetuning:
    """Trains what a step of a pruning left, as ``experiment=finetune init_from=...`` does.

    Each step has a run folder of its own, ``finetune/step-N``, which keeps the log for
    TensorBoard; of its checkpoints only the best one's weights stay. A run that was interrupted
    goes on.

    Args:
        folder: of the study.
        epochs: of each step.
        threads: CPU threads; None: as the checkpoint's configuration says.
        device: where to train.
    """

    def __init__(
        self, folder: Path, epochs: int, threads: int | None, device: "torch.device"
    ) -> None:
        self.folder, self.device = folder / "finetune", device
        accelerator = {"cuda": "gpu"}.get(device.type, device.type)
        devices = f"[{device.index or 0}]" if device.type == "cuda" else "1"
        self.overrides = [
            "experiment=finetune",
            f"trainer.max_epochs={epochs}",
            f"trainer.accelerator={accelerator}",
            f"trainer.devices={devices}",
        ]
        if threads is not None:
            self.overrides.append(f"threads={threads}")

    def __call__(self, loaded: "Loaded", step: int, out: Path) -> None:
        """Train ``loaded.model``; its weights at the best validation go to ``out``.

        A signal that stops the training ends the program, once the state is saved.
        """
        from headlab.checkpoint import read_checkpoint, save_checkpoint
        from headlab.training.checkpoints import Interrupted

        run = self.folder / f"step-{step}"
        try:
            best = self._train(loaded, run)
        except Interrupted as stop:
            typer.echo(f"{stop}; to go on: the same command again")
            sys.exit(128 + stop.signum)
        tuned = read_checkpoint(best, self.device)
        save_checkpoint(out, replace(loaded, step=loaded.step + tuned.step), tuned.model)
        for name in ("start.ckpt", "best.ckpt", "last.ckpt"):
            (run / name).unlink(missing_ok=True)

    def _train(self, loaded: "Loaded", run: Path) -> Path:
        from headlab.checkpoint import save_checkpoint
        from headlab.heads.study import EVENTS
        from headlab.training.fit import fit

        last = run / "last.ckpt"
        if last.exists():
            return fit(_own_configuration(last), run, resume=last).checkpoint
        # What a killed run logged before its first checkpoint is logged again.
        for path in [run / "best.ckpt", *run.glob(f"tensorboard/{EVENTS}")]:
            path.unlink(missing_ok=True)
        run.mkdir(parents=True, exist_ok=True)
        save_checkpoint(run / "start.ckpt", loaded, loaded.model)
        return fit(self._configuration(run / "start.ckpt"), run).checkpoint

    def _configuration(self, start: Path) -> dict[str, Any]:
        from hydra import compose, initialize_config_dir
        from hydra.core.global_hydra import GlobalHydra
        from omegaconf import OmegaConf

        from headlab.cli import configuration, resuming, starting

        configuration.register_resolvers()
        overrides = starting.for_hydra([*self.overrides, resuming.quoted("init_from", start)])
        GlobalHydra.instance().clear()
        with initialize_config_dir(str(configuration.folder()), version_base="1.3"):
            composed = compose("train", overrides=overrides)
        composed = starting.of_checkpoint(composed, overrides, start)
        # ``latest`` stays the newest run that the user started.
        composed.paths.outputs = str(self.folder)
        config: Any = OmegaConf.to_container(composed, resolve=True, throw_on_missing=True)
        configuration.check(config)
        configuration.anchor(config)
        return config


def recipe() -> dict[str, Any]:
    """What ``experiment=finetune`` sets, in place of what the checkpoint's run was set to."""
    from omegaconf import OmegaConf

    from headlab.cli import configuration

    path = configuration.folder() / "experiment" / "finetune.yaml"
    keys: Any = OmegaConf.to_container(OmegaConf.load(path))
    return keys


def _own_configuration(path: Path) -> dict[str, Any]:
    from headlab.checkpoint import read_raw

    config: dict[str, Any] = read_raw(path)["headlab"]["config"]
    return config
