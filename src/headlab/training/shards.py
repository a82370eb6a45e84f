"""A batch in parts, whose gradients the CPU's cores compute side by side."""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from headlab.data.batches import Batch
from headlab.dropout import masks_from
from headlab.errors import HeadlabError
from headlab.workers import Workers

# Of a batch: what is to be made small, and numbers for the log; all of them sums over tokens.
Objective = Callable[[Batch], tuple[Tensor, dict[str, Tensor]]]


class Shards:
    """Computes the gradient of a sum over sentences, part by part.

    The parts of a batch are the same whatever the number of threads, and each draws its dropout
    masks from a generator whose seed comes from PyTorch's global one. So a seed gives one
    training, on one core or on several, but for rounding.

    Args:
        count: parts of a batch; 1 leaves batches whole.

    Raises:
        HeadlabError: ``count`` is below 1.
    """

    def __init__(self, count: int) -> None:
        if count < 1:
            raise HeadlabError(f"shards={count} must be at least 1")
        self.count = count
        self._workers = Workers(count)

    def __call__(
        self, objective: Objective, batch: Batch, parameters: Sequence[nn.Parameter]
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """The objective of a whole batch; its gradients are ready, and ``backward`` hands them out.

        Args:
            objective: of a part; it may run in several threads at once.
            batch: on a GPU it stays whole.
            parameters: everything that gradients are wanted for.
        """
        if self.count == 1 or batch.source.device.type != "cpu":
            return objective(batch)
        parts = batch.split(self.count)
        seeds = torch.randint(2**63 - 1, (len(parts),)).tolist()

        def work(item: tuple[Batch, int]) -> tuple[Tensor, dict[str, Tensor], list[Any]]:
            part, seed = item
            with masks_from(torch.Generator().manual_seed(seed)):
                value, numbers = objective(part)
            with torch.autocast("cpu", enabled=False):
                gradients = torch.autograd.grad(value, parameters, allow_unused=True)
            return value.detach(), numbers, list(gradients)

        values, numbers, gradients = zip(
            *self._workers.map(work, list(zip(parts, seeds, strict=True))), strict=True
        )
        total = [_sum(of_one) for of_one in zip(*gradients, strict=True)]
        summed = {name: torch.stack([one[name] for one in numbers]).sum(0) for name in numbers[0]}
        return _Computed.apply(torch.stack(values).sum(), total, *parameters), summed


def _sum(gradients: Sequence[Tensor | None]) -> Tensor | None:
    """None where no part used the parameter.

    Never in place: two parameters may have been given the same tensor, or a view of one number.
    """
    used = [gradient for gradient in gradients if gradient is not None]
    return functools.reduce(torch.add, used) if used else None


class _Computed(torch.autograd.Function):
    """A value whose gradients with respect to the parameters are known."""

    @staticmethod
    def forward(
        ctx: Any, value: Tensor, gradients: list[Tensor | None], *parameters: Any
    ) -> Tensor:
        ctx.gradients = gradients
        return value.clone()

    @staticmethod
    def backward(ctx: Any, *scale: Tensor) -> tuple[Tensor | None, ...]:
        scaled = [None if one is None else one * scale[0].to(one.dtype) for one in ctx.gradients]
        return None, None, *scaled
