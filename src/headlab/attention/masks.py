"""Attention masks: boolean, True = may attend, broadcastable to (batch, heads, queries, keys)."""

import torch
from torch import Tensor


def padding_mask(ids: Tensor, pad_id: int) -> Tensor:
    """Let every query attend to the real tokens of its own row only.

    Args:
        ids: token ids, (batch, keys).
        pad_id: the id that fills rows up to the batch's length.

    Returns:
        Boolean mask, (batch, 1, 1, keys).
    """
    return (ids != pad_id)[:, None, None, :]


def causal_mask(queries: int, keys: int, device: torch.device | None = None) -> Tensor:
    """Let each query attend to itself and to what came before it.

    The queries are the *last* ``queries`` of ``keys`` positions, so the mask is anchored at the
    bottom right: with a cache of 5 keys and 3 new tokens, the first new token sees 6 keys.

    Returns:
        Boolean mask, (queries, keys).

    Raises:
        ValueError: more queries than keys.
    """
    if queries > keys:
        raise ValueError(f"{queries} queries cannot be the last of only {keys} keys")
    # Lower triangle with its corner moved right by the number of keys that precede the queries.
    return torch.ones(queries, keys, dtype=torch.bool, device=device).tril(keys - queries)
