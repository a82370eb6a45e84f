"""Attention: what the project exists for. Nothing here knows of language or of training."""

from headlab.attention.base import Attention
from headlab.attention.build import KINDS, READ_BY, build_attention, kind_at, option_types
from headlab.attention.cache import Cache, KeyValueCache
from headlab.attention.delta import GatedDeltaNet
from headlab.attention.latent import MultiHeadLatentAttention, latent_from_multi_head
from headlab.attention.masks import causal_mask, padding_mask
from headlab.attention.mixture import MixtureOfHeads, Routing, balance_loss
from headlab.attention.multi_head import MultiHeadAttention, grouped_from_multi_head
from headlab.attention.positions import Learned, Sinusoidal, build_position
from headlab.attention.relative import Alibi, Rotary, alibi_slopes

__all__ = [
    "KINDS",
    "READ_BY",
    "Alibi",
    "Attention",
    "Cache",
    "GatedDeltaNet",
    "KeyValueCache",
    "Learned",
    "MixtureOfHeads",
    "MultiHeadAttention",
    "MultiHeadLatentAttention",
    "Rotary",
    "Routing",
    "Sinusoidal",
    "alibi_slopes",
    "balance_loss",
    "build_attention",
    "build_position",
    "causal_mask",
    "grouped_from_multi_head",
    "kind_at",
    "latent_from_multi_head",
    "option_types",
    "padding_mask",
]
