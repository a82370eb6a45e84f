"""The Lightning module: loss, optimizer and the numbers of every step."""

import math
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import lightning as L
import numpy as np
import torch
from torch import Tensor

from headlab.checkpoint import contents
from headlab.data.batches import Batch
from headlab.data.tokenizer import PAD, Tokenizers
from headlab.errors import HeadlabError
from headlab.heads.hard_concrete import HardConcreteGates
from headlab.training.loss import linear_cross_entropy
from headlab.training.routing import active_share, balance_losses
from headlab.training.running import Running, Stopwatch, gate_metrics
from headlab.training.schedule import build_schedule
from headlab.training.shards import Shards
from headlab.transformer import Gates, Transformer

OptimizerFactory = Callable[[Iterable[torch.nn.Parameter]], torch.optim.Optimizer]

# What sums over tokens are divided by until the tokens of the whole step are known: about those of
# a batch, so that gradients in half precision keep to its range. A power of two rounds nothing.
TOKENS = 1024


class TranslationModule(L.LightningModule):
    """Trains a Transformer on batches of token ids.

    Every loss is a sum over real target tokens divided by their number: of the whole step, over
    accumulated batches and processes alike, so that neither padding nor the way sentences are
    grouped into batches changes the gradient. But for the load-balance loss, which is one of a
    part of a batch (see ``shards``): its factors are means over the part's tokens.

    So several processes train the model that one process trains which accumulates their batches.
    Its gates are those of a step, for all batches and processes. Dropout masks differ between
    processes.

    Args:
        model: the network.
        tokenizers: kept here so that they travel in the checkpoint.
        optimizer: makes an optimizer from parameters (Hydra's ``_partial_``).
        schedule: keyword arguments of ``build_schedule``, but for the total number of steps.
        label_smoothing: mass taken from the target, in [0, 1).
        config: the run's whole configuration, plain types, for the checkpoint.
        corpus: what identifies the pairs; going on with others would not be the same run.
        gates: learnt gates; their penalty is added to the loss, and validation takes them without
            noise.
        gate_learning_rate: the gates' learning rate is this times the schedule's. Weight decay,
            which would pull them to half open, is never applied to them.
        balance: weight of the load-balance loss of each layer whose tokens choose their heads.
        shards: parts of a batch that the CPU's cores work on side by side.
    """

    def __init__(
        self,
        model: Transformer,
        tokenizers: Tokenizers,
        optimizer: OptimizerFactory,
        schedule: Mapping[str, Any],
        label_smoothing: float,
        config: dict[str, Any],
        corpus: str = "",
        gates: HardConcreteGates | None = None,
        gate_learning_rate: float = 1.0,
        balance: float = 0.0,
        shards: int = 1,
    ) -> None:
        super().__init__()
        check_smoothing(label_smoothing)
        check_balance(balance)
        self.model, self.tokenizers = model, tokenizers
        self.optimizer_factory, self.schedule = optimizer, dict(schedule)
        self.label_smoothing, self.config, self.corpus = label_smoothing, config, corpus
        self.gates, self.gate_learning_rate = gates, gate_learning_rate
        self.balance, self.shards = balance, Shards(shards)
        self.validation_translations: list[str] | None = None
        # Sums over the batches of the coming step in this process; and of the last step in all.
        self._step: dict[str, Tensor | float] = {}
        self._last_step: dict[str, Tensor | float] = {}
        self._since_log = Running()
        self.stopwatch = Stopwatch()
        self._seed = torch.initial_seed()
        self._noise: dict[str, Tensor] | None = None  # of the gates in the coming step
        self._validation = torch.zeros(4, dtype=torch.float64)
        self._open_heads = 0
        self._validation_started = 0.0
        self._gradient_norm = torch.zeros(())

    @property
    def mid_step(self) -> bool:
        """Whether batches have been accumulated into a step that is still to come."""
        return bool(self._step)

    def on_fit_start(self) -> None:
        """Give each process dropout masks of its own; the first one's are those of one process."""
        self._seed = self.trainer.strategy.broadcast(torch.initial_seed())
        if self.trainer.global_rank:
            torch.manual_seed(_derived(self._seed, self.trainer.global_rank))

    def evaluation_gates(self) -> dict[str, Tensor] | None:
        """The learnt gates without noise, to be given to the model; None where there are none."""
        if self.gates is None:
            return None
        with torch.no_grad():
            return self.gates.evaluation()

    def loss_sums(self, batch: Batch, gates: Gates | None = None) -> tuple[Tensor, Tensor]:
        """Smoothed loss and negative log-likelihood of a batch, summed over real tokens."""
        encoded = self.model.encode(batch.source, gates)
        hidden = self.model.decode(batch.target_input, encoded, gates=gates).hidden
        real = batch.target_output != PAD
        return linear_cross_entropy(
            hidden[real], self.model.output.weight, batch.target_output[real], self.label_smoothing
        )

    def training_step(self, batch: Batch, batch_idx: int) -> dict[str, Tensor]:
        """The batch's share of the step's loss, in a unit of its own, and its ``loss_sum``.

        How many tokens the step has is not known before its last batch, nor in any process alone:
        ``configure_gradient_clipping`` makes the mean over tokens.
        """
        if self.gates is not None and not self.mid_step:
            step = self.trainer.global_step if self._trainer is not None else 0
            generator = torch.Generator().manual_seed(_derived(self._seed, step))
            self._noise = self.gates.noise(generator)
        trained = [p for p in self.parameters() if p.requires_grad]
        objective, sums = self.shards(self._objective, batch, trained)
        counts = {
            "tokens": batch.target_tokens,
            "padding": batch.padding_share if batch.target_tokens else 0.0,
            "batches": 1 if batch.target_tokens else 0,
        }
        for name, value in (counts | sums).items():
            self._step[name] = self._step.get(name, 0) + value
        return {"loss": objective / TOKENS, "loss_sum": sums["loss"]}

    def _objective(self, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        """What a part of a batch adds to the loss, and to the numbers of the log."""
        tokens = batch.target_tokens
        gates = None if self.gates is None else self.gates.sample(self._noise)
        loss, nll = self.loss_sums(batch, gates)
        sums = {"loss": loss.detach(), "nll": nll}
        if self.gates is not None:  # a cost a token, so that every batch pays its share of it
            loss = loss + tokens * self.gates.cost()
        layers = balance_losses(self.model, batch)
        if layers:
            sums["balance"] = tokens * torch.stack(layers).detach().mean()
            sums["active"] = tokens * active_share(self.model, batch)
            loss = loss + tokens * self.balance * sum(layers)
        return loss, sums

    def on_train_batch_start(self, batch: Batch, batch_idx: int) -> None:
        """Start the clock of the batch."""
        self.stopwatch.start()

    def on_after_backward(self) -> None:
        """Stop it, unless the optimizer takes its step now."""
        self.stopwatch.lap()

    def configure_gradient_clipping(
        self,
        optimizer: torch.optim.Optimizer,
        gradient_clip_val: int | float | None = None,
        gradient_clip_algorithm: str | None = None,
    ) -> None:
        """Finish the mean over tokens, measure the gradient's norm, clip it.

        Every process does so with the same numbers, so that all keep the same weights.
        """
        step = self._last_step = self._over_processes(self._step)
        self._step = {}
        self._since_log.add(step)
        parameters = [p for p in self.parameters() if p.grad is not None]
        gradients = [p.grad for p in parameters if p.grad is not None]
        # Lightning has divided by the number of batches to accumulate, DDP by that of processes.
        divided = TOKENS * self.trainer.accumulate_grad_batches * self.trainer.world_size
        factor = divided / max(1, int(step["tokens"]))
        by_value = gradient_clip_algorithm == "value"
        limit = math.inf if by_value or not gradient_clip_val else gradient_clip_val
        self._gradient_norm = factor * torch.nn.utils.get_total_norm(gradients)
        clipped = (limit / (self._gradient_norm + 1e-6)).clamp(max=1.0)
        torch._foreach_mul_(gradients, factor * clipped)
        if by_value and gradient_clip_val:
            torch.nn.utils.clip_grad_value_(parameters, gradient_clip_val)

    def optimizer_step(self, *args: Any, **kwargs: Any) -> None:
        """Step; then log the averages since the last log, every trainer.log_every_n_steps steps.

        Here and not in ``on_train_batch_end``, because callbacks save checkpoints before that
        hook: the state saved after a step must know that the step was logged.
        """
        super().optimizer_step(*args, **kwargs)
        self.stopwatch.lap(int(self._last_step["tokens"]))
        trainer = self.trainer
        step = trainer.global_step + 1  # Lightning counts the step when this returns
        if step % max(1, trainer.log_every_n_steps):  # type: ignore[attr-defined]
            return
        metrics = self._since_log.metrics()
        metrics["train/learning_rate"] = trainer.optimizers[0].param_groups[0]["lr"]
        metrics["train/gradient_norm"] = float(self._gradient_norm)
        if self.gates is not None:
            metrics |= gate_metrics(self.gates)
        if "balance" in self._last_step:
            tokens = max(1, int(self._last_step["tokens"]))
            metrics["train/balance_loss"] = float(self._last_step["balance"]) / tokens
            metrics["train/active_heads"] = float(self._last_step["active"]) / tokens
        self._since_log = Running()
        if trainer.is_global_zero and trainer.logger is not None:
            trainer.logger.log_metrics(metrics, step=step)

    def on_validation_start(self) -> None:
        """Stop the clock of the training speed, and forget the sums of the last validation."""
        self._validation_started = time.perf_counter()
        self._validation = torch.zeros(4, dtype=torch.float64)

    def on_validation_end(self) -> None:
        """Let the clock of the training speed go on."""
        self._since_log.started += time.perf_counter() - self._validation_started

    def validation_step(self, batch: Batch, batch_idx: int) -> None:
        """Add up loss, likelihood and tokens."""
        loss, nll = self.loss_sums(batch, self.evaluation_gates())
        objective = loss
        if self.gates is not None:  # here, while the averaged gates are in place of the newest
            objective = loss + batch.target_tokens * self.gates.cost()
            self._open_heads = sum(gate > 0 for gate in self.gates.by_head().values())
        sums = torch.stack([loss, nll, objective]).double().cpu()
        self._validation += torch.cat([sums, torch.tensor([float(batch.target_tokens)])])

    def on_validation_epoch_end(self) -> None:
        """Log loss and perplexity a token of the whole validation split.

        With gates also ``val/objective``, what the training makes small: the loss and the penalty
        of the gates; and how many heads are open.
        """
        names = ("loss", "nll", "objective", "tokens")
        sums = dict(zip(names, self._validation.tolist(), strict=True))
        loss, nll, objective, tokens = map(float, self._over_processes(sums).values())
        if not tokens:
            return
        metrics = {"val/loss": loss / tokens, "val/perplexity": math.exp(min(nll / tokens, 50.0))}
        if self.gates is not None:
            metrics |= {"val/objective": objective / tokens, "val/open_heads": self._open_heads}
        self.report(metrics)

    def _over_processes(self, sums: dict[str, Any]) -> dict[str, Any]:
        """The sums over all processes; every process asks at the same time, for the same names."""
        if self.trainer.world_size == 1:
            return sums
        values = [torch.as_tensor(value, dtype=torch.float64) for value in sums.values()]
        gathered = self.all_gather(torch.stack([value.to(self.device) for value in values]))
        assert isinstance(gathered, Tensor)
        return dict(zip(sums, gathered.sum(dim=0).tolist(), strict=True))

    def report(self, metrics: dict[str, float]) -> None:
        """Give validation numbers to callbacks that watch them, and to TensorBoard."""
        for name, value in metrics.items():
            # Lightning's own step for validation numbers is one off after some resumes, so the
            # logger is called directly.
            self.log(name, value, logger=False, rank_zero_only=False, batch_size=1)
        trainer = self.trainer
        if trainer.is_global_zero and trainer.logger is not None and not trainer.sanity_checking:
            trainer.logger.log_metrics(metrics, step=trainer.global_step)

    def configure_optimizers(self) -> Any:
        """The optimizer, and the schedule by optimizer step."""
        try:
            optimizer = self._optimizer()
        except (TypeError, ValueError) as error:
            raise HeadlabError(f"optimizer: {error}") from error
        total = self.trainer.estimated_stepping_batches
        if not total or math.isinf(total):
            raise HeadlabError(
                "the training has no end, or no batch; set trainer.max_epochs or trainer.max_steps"
            )
        total = int(total)
        factor = build_schedule(total_steps=total, **self.schedule)
        scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, factor)
        return {
            "optimizer": optimizer,
            "lr_scheduler": {"scheduler": scheduler, "interval": "step"},
        }

    def _optimizer(self) -> torch.optim.Optimizer:
        if self.gates is None:
            return self.optimizer_factory(self.parameters())
        groups: Any = [{"params": list(part.parameters())} for part in (self.model, self.gates)]
        optimizer = self.optimizer_factory(groups)
        group = optimizer.param_groups[1]
        group["lr"] *= self.gate_learning_rate
        if "weight_decay" in group:
            group["weight_decay"] = 0.0
        return optimizer

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Add what rebuilds the model from the file alone, and unfinished averages."""
        checkpoint["headlab"] = contents(self.model, self.tokenizers, self.config)
        checkpoint["headlab"]["corpus"] = self.corpus
        checkpoint["headlab"]["gates"] = None if self.gates is None else self.gates.settings
        checkpoint["headlab"]["since_log"] = self._since_log.state()

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Take back the unfinished averages."""
        self._since_log = Running(**checkpoint["headlab"]["since_log"])


def _derived(seed: int, number: int) -> int:
    """A seed that has nothing to do with those of other numbers."""
    return int(np.random.SeedSequence([seed, number]).generate_state(1, np.uint64)[0])


def check_balance(balance: float) -> None:
    """Raise HeadlabError for a weight of the load-balance loss that makes no sense."""
    if not 0 <= balance < math.inf:
        raise HeadlabError(f"loss.balance={balance} must be at least 0, and finite")


def check_smoothing(label_smoothing: float) -> None:
    """Raise HeadlabError unless ``label_smoothing`` is a share below one."""
    if not 0.0 <= label_smoothing < 1.0:
        raise HeadlabError(f"loss.label_smoothing={label_smoothing} must lie in [0, 1)")
