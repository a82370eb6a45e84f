"""Training in a plain loop, as one writes it without a trainer: the other models, or ours."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
import torch.nn.functional as F
from hydra.utils import instantiate
from torch import Tensor, nn

from headlab.benchmark.channel import Channel, commands, now
from headlab.benchmark.material import Material
from headlab.benchmark.networks import Marian, PlainTransformer
from headlab.data.batches import Batch
from headlab.data.tokenizer import PAD
from headlab.training.loss import linear_cross_entropy
from headlab.training.schedule import build_schedule
from headlab.transformer import Transformer

# Of the learning-rate schedule, for all contestants; a benchmark takes a small part of them.
STEPS = 20_000

Loss = Callable[[Batch], Tensor]


def serve(channel: Channel, material: Material, kind: str, device: torch.device) -> None:
    """A contestant whose turn is a number of steps.

    Args:
        channel: commands are ``{"batches": n, "passes": k}``: k times the first n batches.
        material: batches and sizes.
        kind: "torch", "torch-same-dropout", "marian" or "compiled" (ours, with torch.compile).
        device: where to train; on a GPU in bfloat16 (autocast).
    """
    torch.manual_seed(material.config["seed"])
    model, loss = build_contestant(kind, material)
    loop = PlainLoop(model.to(device).train(), loss, material, device)
    channel.send({"parameters": parameters(model)})
    for command in commands(channel):
        channel.send(loop.turn(command["batches"], command["passes"]))


class PlainLoop:
    """Forward, backward, clipping, optimizer and schedule, over batches that are ready.

    Args:
        model: in training mode, on the device.
        loss: of a batch, the mean over its real target tokens.
        material: the batches, and the configuration of optimizer, schedule and clipping.
        device: of the batches.
    """

    def __init__(
        self, model: nn.Module, loss: Loss, material: Material, device: torch.device
    ) -> None:
        self.model, self.loss, self.device = model, loss, device
        config = material.config
        # Not by headlab.training.fit, whose imports would count as this loop's memory.
        self.optimizer = instantiate(config["optimizer"], _convert_="all")(model.parameters())
        factor = build_schedule(total_steps=STEPS, **config["schedule"])
        self.scheduler = torch.optim.lr_scheduler.LambdaLR(self.optimizer, factor)
        self.limit = config["trainer"]["gradient_clip_val"] or float("inf")
        tokenizers = material.read_tokenizers()
        self.batches = [batch.to(device) for batch in material.batches(tokenizers)]

    def turn(self, batches: int, passes: int) -> dict[str, Any]:
        """So many passes over the first batches: seconds, and the mean of the batches' losses."""
        losses = []
        start = now(self.device)
        for _ in range(passes):
            for batch in self.batches[:batches]:
                with self._precision():
                    loss = self.loss(batch)
                loss.backward()
                nn.utils.clip_grad_norm_(self.model.parameters(), self.limit)
                self.optimizer.step()
                self.scheduler.step()
                self.optimizer.zero_grad(set_to_none=True)
                losses.append(loss.detach())
        seconds = now(self.device) - start
        return {"seconds": seconds, "loss": float(torch.stack(losses).mean())}

    def _precision(self) -> AbstractContextManager[Any]:
        if self.device.type == "cuda":
            return torch.autocast("cuda", torch.bfloat16)
        return nullcontext()


def build_contestant(kind: str, material: Material) -> tuple[nn.Module, Loss]:
    """A fresh model, and its loss: label-smoothed, the mean over the real target tokens."""
    smoothing = material.config["loss"]["label_smoothing"]
    if kind == "compiled":
        ours = Transformer(**material.hparams)
        return ours, compiled_loss(ours, smoothing)
    if kind == "marian":
        model: nn.Module = Marian(material.hparams)
    else:
        model = PlainTransformer(material.hparams, same_dropout=kind == "torch-same-dropout")
    return model, logits_loss(model, smoothing)


def logits_loss(model: nn.Module, smoothing: float) -> Loss:
    """PyTorch's cross-entropy of all logits, padding ignored."""

    def loss(batch: Batch) -> Tensor:
        logits = model(batch)
        return F.cross_entropy(
            logits.flatten(0, 1).float(),
            batch.target_output.flatten(),
            ignore_index=PAD,
            label_smoothing=smoothing,
        )

    return loss


def compiled_loss(model: Transformer, smoothing: float) -> Loss:
    """That of our trainer, with encoder and decoder compiled."""
    encode = torch.compile(model.encode, dynamic=True)
    decode = torch.compile(model.decode, dynamic=True)

    def loss(batch: Batch) -> Tensor:
        hidden = decode(batch.target_input, encode(batch.source)).hidden
        real = batch.target_output != PAD
        total, _ = linear_cross_entropy(
            hidden[real], model.output.weight, batch.target_output[real], smoothing
        )
        return total / batch.target_tokens

    return loss


def parameters(model: nn.Module) -> int:
    """Numbers that are trained."""
    return sum(one.numel() for one in model.parameters() if one.requires_grad)
