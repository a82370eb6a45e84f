"""What an attention layer keeps between decoding steps."""

from typing import Protocol

import torch
from torch import Tensor


class Cache(Protocol):
    """What a decoder asks of every layer's cache, whatever the layer keeps in it."""

    length: int

    def reorder(self, rows: Tensor) -> None:
        """Keep the given rows (sentences) in the given order; a row may be repeated."""

    def truncate(self, length: int) -> None:
        """Forget every position from ``length`` on."""

    def numbers(self) -> int:
        """How many numbers are kept for each sentence, all positions together."""


class KeyValueCache:
    """The keys and values that one attention layer has already projected.

    A decoder's self-attention appends to it at every step; cross-attention fills it once from the
    encoder's output. Rows are sentences: ``reorder`` drops, permutes or repeats them, which is
    what a batch needs when sentences finish and what a beam needs when hypotheses change places.

    Args:
        capacity: positions to set aside at the first append; the buffers grow when it is passed.
    """

    def __init__(self, capacity: int = 0) -> None:
        self.capacity = capacity
        self.length = 0
        self._keys: Tensor | None = None
        self._values: Tensor | None = None

    @property
    def keys(self) -> Tensor:
        """Keys so far, (batch, kv_heads, length, head_dim)."""
        assert self._keys is not None, "the cache is empty"
        return self._keys[:, :, : self.length]

    @property
    def values(self) -> Tensor:
        """Values so far, (batch, kv_heads, length, head_dim)."""
        assert self._values is not None, "the cache is empty"
        return self._values[:, :, : self.length]

    def append(self, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Add (batch, kv_heads, new, head_dim) keys and values; return all of them."""
        end = self.length + keys.size(2)
        if self._keys is None or self._values is None:
            if end >= self.capacity:  # nothing to set aside: keep the tensors themselves
                self._keys, self._values, self.length = keys, values, end
                return keys, values
            self._keys = _room(keys, self.capacity)
            self._values = _room(values, self.capacity)
        elif end > self._keys.size(2):
            extra = max(end, 2 * self._keys.size(2)) - self.length
            self._keys = torch.cat([self.keys, _room(keys, extra)], dim=2)
            self._values = torch.cat([self.values, _room(values, extra)], dim=2)
        self._keys[:, :, self.length : end] = keys
        self._values[:, :, self.length : end] = values
        self.length = end
        return self.keys, self.values

    def reorder(self, rows: Tensor) -> None:
        """Keep the given rows in the given order; ``rows`` (new batch,) may repeat a row."""
        if self._keys is not None and self._values is not None:
            self._keys = self._keys.index_select(0, rows)
            self._values = self._values.index_select(0, rows)

    def truncate(self, length: int) -> None:
        """Forget every position from ``length`` on."""
        if not 0 <= length <= self.length:
            raise ValueError(f"cannot cut a cache of {self.length} positions to {length}")
        self.length = length

    def numbers(self) -> int:
        """How many numbers are kept for each sentence, all positions together."""
        if self._keys is None or self._values is None:
            return 0
        return self.keys[0].numel() + self.values[0].numel()


def _room(like: Tensor, positions: int) -> Tensor:
    return like.new_empty(*like.shape[:2], positions, like.size(3))
