"""What the machine can do at most: the speed of one large matrix product."""

import time

import torch
from torch import Tensor

from headlab.benchmark.channel import Channel, commands

# Large enough that memory traffic does not matter, small enough for a laptop.
SIZE = {"cpu": 2048, "cuda": 8192}
REPEATS = 5


def serve(channel: Channel, device: torch.device) -> None:
    """A contestant whose turn is one measurement."""
    channel.send({})
    for _ in commands(channel):
        channel.send({"gflops": matrix_product_gflops(device)})


def matrix_product_gflops(
    device: torch.device, size: int | None = None, repeats: int = REPEATS
) -> float:
    """The best speed of a few products of square matrices, in 10^9 operations a second.

    ``2 size^3`` operations each; float32 on the CPU, bfloat16 on a GPU, as the contestants
    compute.

    Args:
        device: where.
        size: rows and columns; None: what suits the device.
        repeats: of which the best counts.
    """
    size = SIZE.get(device.type, SIZE["cpu"]) if size is None else size
    kind = torch.bfloat16 if device.type == "cuda" else torch.float32
    left, right = (torch.rand(size, size, device=device).to(kind) for _ in range(2))
    out = torch.mm(left, right)  # what is slow only the first time
    seconds = min(_seconds_of_product(left, right, out) for _ in range(repeats))
    return 2 * size**3 / seconds / 1e9


def _seconds_of_product(left: Tensor, right: Tensor, out: Tensor) -> float:
    if left.device.type != "cuda":
        start = time.perf_counter()
        torch.mm(left, right, out=out)
        return time.perf_counter() - start
    # The GPU's own clock: the way there and back would count as well.
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    torch.mm(left, right, out=out)
    end.record()
    end.synchronize()
    milliseconds: float = begin.elapsed_time(end)
    return milliseconds / 1e3
