"""Our training as users run it: Lightning's loop, TensorBoard and all callbacks."""

import itertools
import logging
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import lightning as L
import torch

from headlab.benchmark.channel import Channel, now
from headlab.benchmark.material import Material
from headlab.benchmark.plain_loop import STEPS, parameters
from headlab.benchmark.profiling import Profile
from headlab.data.batches import Batch, EncodedPairs
from headlab.data.module import TranslationData
from headlab.errors import HeadlabError
from headlab.training.fit import build_logger, build_module, build_trainer, quieten
from headlab.transformer import Transformer


def serve(channel: Channel, material: Material, folder: Path, device: torch.device) -> None:
    """A contestant whose turn is a number of steps of one training that goes on.

    Everything that happens at each step is in it: making the batch, callbacks, averaging of the
    weights, points for TensorBoard. Validation never runs. What is due every few hundred steps
    (pictures of the heads, ``last.ckpt``) happens when its step comes, as in any run.

    Args:
        channel: commands are ``{"batches": n, "passes": k}``: k times the first n batches; with
            ``"profile": true`` the answer has the operators that took the most time.
        material: batches, and the configuration of the run.
        folder: of the run.
        device: where to train; on a GPU in bfloat16.
    """
    quieten()
    logging.getLogger("headlab").setLevel(logging.WARNING)
    config = trainer_config(material.config, device)
    L.seed_everything(config["seed"], verbose=False)
    model = Transformer(**material.hparams)
    tokenizers = material.read_tokenizers()
    module = build_module(config, model, tokenizers)
    batches = Repeated(material.encoded(tokenizers), material.plan)
    trainer = build_trainer(config, folder, build_logger(config, folder, None))
    callbacks: list[Any] = trainer.callbacks  # type: ignore[attr-defined]
    turns = Turns(channel, batches, device, parameters(model))
    callbacks.insert(0, turns)  # it sees a step begin before all the others
    trainer.fit(module, datamodule=_Data(material, batches))


def trainer_config(config: dict[str, Any], device: torch.device) -> dict[str, Any]:
    """The run's configuration for one device, without validation, for ``STEPS`` steps."""
    gpu = device.type == "cuda"
    trainer = {
        "max_epochs": None,
        "max_steps": STEPS,
        "max_time": None,
        "accelerator": "gpu" if gpu else "cpu",
        "devices": [device.index or 0] if gpu else 1,
        "strategy": "auto",
        "precision": "bf16-mixed" if gpu else "32-true",
        "accumulate_grad_batches": 1,
        "gradient_clip_algorithm": "norm",
        "val_check_interval": None,
        "limit_val_batches": 0,
    }
    # Learnt gates are a study of their own; the checkpoint holds the model without them.
    return {**config, "gates": None, "trainer": {**config["trainer"], **trainer}}


class Repeated:
    """The first so many batches, over and over, each made anew from its pieces.

    Attributes:
        size: how many batches are repeated.
    """

    def __init__(self, pairs: EncodedPairs, plan: list[list[int]]) -> None:
        self.pairs, self.plan, self.size, self.place = pairs, plan, len(plan), 0

    def __len__(self) -> int:
        return STEPS

    def __iter__(self) -> Iterator[Batch]:
        for _ in itertools.repeat(None, STEPS):
            place = self.place % self.size
            self.place = place + 1
            yield self.pairs.batch(self.plan[place])


class _Data(TranslationData):
    """The chosen batches as a corpus; a few validation pairs for the callbacks that draw."""

    def __init__(self, material: Material, batches: Repeated) -> None:
        texts = {
            split: {"source": [a for a, _ in pairs], "target": [b for _, b in pairs]}
            for split, pairs in (
                ("train", material.pairs),
                ("validation", material.validation),
                ("test", material.validation),
            )
        }
        corpus: Any = SimpleNamespace(
            source=material.config["data"]["source"],
            target=material.config["data"]["target"],
            load=lambda: texts,
        )
        super().__init__(
            corpus,
            {},
            max_tokens=material.config["batches"]["max_tokens"],
            max_length=material.config["batches"]["max_length"],
            subword_sampling=0.0,
            seed=material.config["seed"],
            tokenizers=material.read_tokenizers(),
        )
        self.repeated = batches

    def train_dataloader(self) -> Any:
        return self.repeated


class Turns(L.Callback):
    """Lets the loop go on for as many steps as each command says, and waits in between.

    The time of a turn is that from the beginning of its first step to the beginning of the first
    step after it. Ready means that Lightning has come to its first step.
    """

    def __init__(
        self, channel: Channel, batches: Repeated, device: torch.device, parameters: int
    ) -> None:
        self.channel, self.batches, self.device = channel, batches, device
        self.answer: dict[str, Any] | None = {"parameters": parameters}
        self.left = 0
        self.losses: list[torch.Tensor] = []
        self.profile: Profile | None = None
        self.started = 0.0

    def on_train_batch_start(
        self, trainer: L.Trainer, pl_module: L.LightningModule, batch: Any, batch_idx: int
    ) -> None:
        """Count the step; at the end of a turn answer, and wait for the next."""
        if not self.left:
            self._wait(trainer)
        self.left -= 1

    def on_train_batch_end(
        self,
        trainer: L.Trainer,
        pl_module: L.LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
    ) -> None:
        """Keep the loss."""
        self.losses.append(outputs["loss"])

    def _wait(self, trainer: L.Trainer) -> None:
        answer = self.answer
        if answer is None:
            answer = {"seconds": now(self.device) - self.started}
            answer["loss"] = float(torch.stack(self.losses).mean())
            if self.profile is not None:
                answer["profile"] = self.profile.stop()
        self.channel.send(answer)
        self.answer, self.profile, self.losses = None, None, []
        command = self.channel.receive()
        if command is None:
            trainer.should_stop = True  # after this step
            return
        self.batches.size = command["batches"]
        self.left = command["batches"] * command["passes"]
        if trainer.global_step + self.left >= STEPS:
            raise HeadlabError(f"a benchmark trains for {STEPS:,} steps at most; lower --seconds")
        if command.get("profile"):
            self.profile = Profile(self.device)
        self.started = now(self.device)
