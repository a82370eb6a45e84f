"""Attention: what the project exists for. Nothing here knows of language or of training."""

from headlab.attention.cache import KeyValueCache
from headlab.attention.masks import causal_mask, padding_mask
from headlab.attention.multi_head import MultiHeadAttention
from headlab.attention.positions import Learned, Sinusoidal, build_position

__all__ = [
    "KeyValueCache",
    "Learned",
    "MultiHeadAttention",
    "Sinusoidal",
    "build_position",
    "causal_mask",
    "padding_mask",
]
