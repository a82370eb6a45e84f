"""Gates that switch heads off for the time of a call, without changing the model."""

from collections.abc import Iterable

import torch
from torch import Tensor

from headlab.head_names import Head
from headlab.transformer import Transformer


def gates_without(model: Transformer, heads: Iterable[Head]) -> dict[str, Tensor]:
    """Gates with 0 at the given heads and 1 elsewhere, for ``Transformer``'s ``gates``.

    A closed head's output is zero before W_O, which is the same as zero columns in W_O; biases
    stay as they are.

    Returns:
        Site -> (layers, heads), only for the sites that a given head belongs to: what is not named
        is computed as if there were no gates, to the bit.
    """
    parameter = next(model.parameters())
    gates: dict[str, Tensor] = {}
    for one in heads:
        if one.site not in gates:
            shape = len(model.kept[one.site]), model.heads
            gates[one.site] = torch.ones(shape, dtype=parameter.dtype, device=parameter.device)
        gates[one.site][one.layer, one.head] = 0.0
    return gates
