"""Which operators take the time, by torch.profiler."""

from typing import Any

import torch
from torch._C._profiler import _ExperimentalConfig
from torch.profiler import ProfilerActivity, profile

OPERATORS = 15  # rows of the table; the rest is summed up


class Profile:
    """Records every operator of all threads from its making until ``stop``.

    Args:
        device: whose time counts: of the CPU that of the operators themselves (self CPU time), of
            a GPU that of their kernels.
    """

    def __init__(self, device: torch.device) -> None:
        self.gpu = device.type == "cuda"
        more = [ProfilerActivity.CUDA] if self.gpu else []
        self.recorder = profile(
            activities=[ProfilerActivity.CPU, *more],
            # Else only the thread that starts it is recorded; PyTorch's documentation of
            # torch.profiler names this way and no public one.
            experimental_config=_ExperimentalConfig(profile_all_threads=True),
        )
        self.recorder.start()

    def stop(self) -> list[dict[str, Any]]:
        """Operators by time, longest first: ``operator``, ``seconds``, ``share``, ``calls``.

        The last row is all the others together.
        """
        self.recorder.stop()
        key = "self_device_time_total" if self.gpu else "self_cpu_time_total"
        # PyTorch's optimizers mark their steps; Lightning computes loss and gradients inside one,
        # so that a thread's waiting for others would count as the work of the mark.
        operators = [one for one in self.recorder.key_averages() if not one.is_user_annotation]
        found = sorted(((getattr(one, key), one.key, one.count) for one in operators), reverse=True)
        total = sum(time for time, _, _ in found) or 1.0
        rest = found[OPERATORS:]
        rows = found[:OPERATORS]
        if rest:
            times, _, calls = zip(*rest, strict=True)
            rows.append((sum(times), f"{len(rest)} others", sum(calls)))
        return [
            {"operator": name, "seconds": time / 1e6, "share": time / total, "calls": calls}
            for time, name, calls in rows
        ]
