"""Any kind of attention by its name, for each site and layer of a model."""

import inspect
import typing
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from headlab.attention.base import Attention
from headlab.attention.delta import GatedDeltaNet
from headlab.attention.latent import MultiHeadLatentAttention
from headlab.attention.mixture import MixtureOfHeads
from headlab.attention.multi_head import MultiHeadAttention

KINDS: dict[str, Callable[..., Attention]] = {
    "mha": MultiHeadAttention,
    "gqa": MultiHeadAttention,  # kv_heads of one's choosing
    "mqa": MultiHeadAttention,  # one key/value head
    "mla": MultiHeadLatentAttention,
    "moh": MixtureOfHeads,
    "deltanet": GatedDeltaNet,
}
HYBRID = "hybrid"  # deltanet, but for every ``softmax_every``-th layer
CAUSAL_ONLY = ("deltanet", HYBRID)
SITES = ("encoder", "decoder", "cross")

# Key of the configuration -> the kinds that read it; further ones are read by all kinds.
READ_BY = {
    "kv_heads": ("mha", "gqa", "moh", HYBRID),
    "latent_dim": ("mla",),
    "query_latent_dim": ("mla",),
    "rope_dim": ("mla",),
    "latent_norm": ("mla",),
    "shared_heads": ("moh",),
    "active_heads": ("moh",),
    "chunk": ("deltanet", HYBRID),
    "softmax_every": (HYBRID,),
}


def option_types() -> dict[str, Any]:
    """Key of the configuration -> its type, over all kinds."""
    types: dict[str, Any] = {"kind": str, **dict.fromkeys(SITES, str | None), "softmax_every": int}
    for one in dict.fromkeys(KINDS.values()):
        types |= typing.get_type_hints(one.__init__)
    given = ("d_model", "heads", "kept", "position", "return")
    return {name: hint for name, hint in types.items() if name not in given}


def kind_at(options: Mapping[str, Any], site: str, layer: int) -> str:
    """The kind of attention of one layer.

    Args:
        options: ``kind``, that of all sites but those with a key of their own (``encoder``,
            ``decoder`` for its masked self-attention, ``cross``); ``softmax_every`` for the hybrid
            stack (Qwen3-Next 2025): every so-manyth layer is "mha", the others "deltanet".
        site, layer: which layer.

    Raises:
        ValueError: no such kind, or one that cannot stand at this site.
    """
    own = options.get(site)
    kind = own or options.get("kind") or "mha"
    key = f"attention.{site if own else 'kind'}"
    if kind not in (*KINDS, HYBRID):
        raise ValueError(f"{key}={kind} is not known; choose from {', '.join((*KINDS, HYBRID))}")
    if kind in CAUSAL_ONLY and site != "decoder":
        raise ValueError(
            f"{key}={kind} is causal and reads no memory, so it can only stand in the decoder's "
            f"self-attention: set attention.decoder={kind}"
        )
    if kind == HYBRID:
        every = options.get("softmax_every", 4)
        if every < 1:
            raise ValueError(f"attention.softmax_every={every} must be at least 1")
        return "mha" if (layer + 1) % every == 0 else "deltanet"
    return kind


def build_attention(
    kind: str,
    d_model: int,
    heads: int,
    options: Mapping[str, Any],
    kept: Sequence[int] | None = None,
    position: Mapping[str, Any] | None = None,
) -> Attention:
    """One layer's attention.

    Args:
        kind: a key of ``KINDS``.
        d_model, heads: sizes.
        options: the arguments of all kinds; each takes its own.
        kept: the heads to build, see ``Attention``.
        position: for a self-attention, see ``build_relative``.

    Raises:
        ValueError: an option that no kind has, or one with a bad value.
    """
    unknown = sorted(set(options) - set(option_types()))
    if unknown:
        raise ValueError(f"attention.{unknown[0]} is not known")
    takes = inspect.signature(KINDS[kind]).parameters
    chosen = {name: value for name, value in options.items() if name in takes}
    if kind == "mqa":
        chosen["kv_heads"] = 1
    if kind == "gqa" and chosen.get("kv_heads") is None:
        raise ValueError("attention.kv_heads must be given for gqa, such as 2")
    return KINDS[kind](d_model=d_model, heads=heads, **chosen, kept=kept, position=position)
