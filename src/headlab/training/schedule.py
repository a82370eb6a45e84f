"""Learning-rate schedules as factors of the peak rate, by optimizer step."""

import math
from collections.abc import Callable

from headlab.errors import HeadlabError


def inverse_sqrt(warmup_steps: int) -> Callable[[int], float]:
    """Linear warm-up, then proportional to 1/sqrt(step) (Vaswani et al. 2017, eq. 3).

    The factor is 1 at the end of the warm-up. The first update has the rate 1/warmup_steps of
    the peak, not zero.
    """

    def factor(step: int) -> float:
        update = step + 1
        if update <= warmup_steps:
            return update / warmup_steps
        return math.sqrt(max(warmup_steps, 1) / update)

    return factor


def cosine(warmup_steps: int, total_steps: int, final: float) -> Callable[[int], float]:
    """Linear warm-up, then half a cosine down to ``final`` times the peak (Loshchilov 2017).

    Steps beyond ``total_steps`` stay at ``final``.
    """

    def factor(step: int) -> float:
        update = step + 1
        if update <= warmup_steps:
            return update / warmup_steps
        progress = min(1.0, (update - warmup_steps) / max(1, total_steps - warmup_steps))
        return final + (1.0 - final) * 0.5 * (1.0 + math.cos(math.pi * progress))

    return factor


def build_schedule(
    kind: str, warmup_steps: int, total_steps: int, final: float = 0.0
) -> Callable[[int], float]:
    """The schedule named ``kind``.

    Raises:
        HeadlabError: unknown kind or numbers out of range.
    """
    if warmup_steps < 0:
        raise HeadlabError(f"schedule.warmup_steps={warmup_steps} must not be negative")
    if not 0.0 <= final <= 1.0:
        raise HeadlabError(f"schedule.final={final} must lie in [0, 1]")
    if kind == "inverse_sqrt":
        return inverse_sqrt(warmup_steps)
    if kind == "cosine":
        # A run shorter than its warm-up would never reach the peak; a tenth of it warms up then.
        warmup = warmup_steps if warmup_steps < total_steps else total_steps // 10
        return cosine(warmup, total_steps, final)
    if kind == "constant":
        return lambda step: min(1.0, (step + 1) / max(1, warmup_steps))
    raise HeadlabError(f"schedule.kind={kind}: choose inverse_sqrt, cosine or constant")
