"""Numbers of a training on the way: averages since the last log, speed, learnt gates."""

import math
import time

from torch import Tensor

from headlab.data.batches import Batch
from headlab.heads.hard_concrete import HardConcreteGates


class Running:
    """Sums since the last log: kept as tensors, so that no step waits for their values."""

    def __init__(
        self,
        loss: float = 0.0,
        nll: float = 0.0,
        tokens: int = 0,
        padding: float = 0.0,
        batches: int = 0,
        seconds: float = 0.0,
    ) -> None:
        self.loss: Tensor | float = loss
        self.nll: Tensor | float = nll
        self.tokens, self.padding, self.batches = tokens, padding, batches
        self.started = time.perf_counter() - seconds

    def add(self, batch: Batch, loss: Tensor, nll: Tensor) -> None:
        """Count a batch; loss and likelihood are sums over its tokens."""
        self.loss, self.nll = self.loss + loss, self.nll + nll
        self.tokens += batch.target_tokens
        self.padding += batch.padding_share
        self.batches += 1

    def metrics(self) -> dict[str, float]:
        """What is logged."""
        seconds = time.perf_counter() - self.started
        return {
            "train/loss": float(self.loss) / self.tokens,
            "train/perplexity": math.exp(min(float(self.nll) / self.tokens, 50.0)),
            "train/tokens_per_second": self.tokens / max(seconds, 1e-9),
            "train/padding_share": self.padding / self.batches,
        }

    def state(self) -> dict[str, float]:
        """Arguments that make these sums again."""
        return {
            "loss": float(self.loss),
            "nll": float(self.nll),
            "tokens": self.tokens,
            "padding": self.padding,
            "batches": self.batches,
            "seconds": time.perf_counter() - self.started,
        }


class Stopwatch:
    """Tokens a second of the training steps alone, without validation, pictures and checkpoints."""

    def __init__(self) -> None:
        self.tokens, self.seconds, self._since = 0, 0.0, 0.0

    def start(self, tokens: int) -> None:
        """A batch of so many target tokens begins."""
        self.tokens += tokens
        self._since = time.perf_counter()

    def lap(self) -> None:
        """Count the time since the last call."""
        now = time.perf_counter()
        self.seconds += now - self._since
        self._since = now

    @property
    def tokens_per_second(self) -> float | None:
        """None before the first batch."""
        return self.tokens / self.seconds if self.seconds else None


def gate_metrics(gates: HardConcreteGates) -> dict[str, float]:
    """Every gate without noise, how many are expected to be open, and what that costs."""
    metrics = {
        f"gate/{one.site}/layer_{one.layer}/head_{one.head}": value
        for one, value in gates.by_head().items()
    }
    expected = {site: float(count.detach()) for site, count in gates.expected_open().items()}
    metrics |= {f"open_heads/{site}": count for site, count in expected.items()}
    metrics["open_heads/all"] = sum(expected.values())
    metrics["train/gate_penalty"] = float(gates.cost().detach())
    return metrics
