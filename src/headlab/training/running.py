"""Numbers of a training on the way: averages since the last log, speed, learnt gates."""

import math
import time
from collections.abc import Mapping

from torch import Tensor

from headlab.heads.hard_concrete import HardConcreteGates


class Running:
    """Sums since the last log, over all processes.

    Those of one process are kept as tensors, so that no step waits for their values.
    """

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

    def add(self, step: Mapping[str, Tensor | float]) -> None:
        """Count a step: its ``loss`` and ``nll``, sums over its ``tokens``, and its ``batches``."""
        self.loss, self.nll = self.loss + step["loss"], self.nll + step["nll"]
        self.tokens += int(step["tokens"])
        self.padding += float(step["padding"])
        self.batches += int(step["batches"])

    def metrics(self) -> dict[str, float]:
        """What is logged."""
        seconds = time.perf_counter() - self.started
        tokens = max(1, self.tokens)
        return {
            "train/loss": float(self.loss) / tokens,
            "train/perplexity": math.exp(min(float(self.nll) / tokens, 50.0)),
            "train/tokens_per_second": self.tokens / max(seconds, 1e-9),
            "train/padding_share": self.padding / max(1, self.batches),
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
    """Tokens a second of the training steps alone, without validation, pictures and checkpoints.

    The tokens are those of all processes.
    """

    def __init__(self) -> None:
        self.tokens, self.seconds, self._since = 0, 0.0, 0.0

    def start(self) -> None:
        """A batch begins."""
        self._since = time.perf_counter()

    def lap(self, tokens: int = 0) -> None:
        """Count the time since the last call, and the target tokens of a step that ends now."""
        self.tokens += tokens
        now = time.perf_counter()
        self.seconds += now - self._since
        self._since = now

    @property
    def tokens_per_second(self) -> float | None:
        """None before the first step."""
        return self.tokens / self.seconds if self.tokens and self.seconds else None


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
