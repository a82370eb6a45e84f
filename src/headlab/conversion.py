"""A trained model with another kind of attention: grouped-query, multi-query or latent."""

from collections.abc import Callable

from torch import nn

from headlab.attention import (
    Attention,
    MultiHeadAttention,
    grouped_from_multi_head,
    latent_from_multi_head,
)
from headlab.attention.base import divisors
from headlab.errors import HeadlabError
from headlab.head_names import SITES
from headlab.transformer import Transformer


def to_grouped(model: Transformer, kv_heads: int) -> Transformer:
    """Fewer key/value heads at every site, mean-pooled from the old ones (Ainslie et al. 2023).

    The model computes something else afterwards; training on for a small share of the original
    steps brings most of its quality back.

    Args:
        model: left as it is.
        kv_heads: at every site; 1 is multi-query attention.

    Raises:
        HeadlabError: ``kv_heads`` does not divide the present number, or nothing can be converted.
    """
    for site in SITES:
        for attention in model.attentions(site):
            before = getattr(attention, "all_kv_heads", kv_heads)
            if kv_heads < 1 or before % kv_heads:
                raise HeadlabError(
                    f"--kv-heads {kv_heads} must divide the {before} key/value heads of the "
                    f"{site} site; choose from {divisors(before)}"
                )
    kinds: dict = {"kind": "gqa", "kv_heads": kv_heads}
    if kv_heads == 1:
        kinds = {"kind": "mqa", "kv_heads": None}
    return _rebuilt(model, kinds, lambda old: grouped_from_multi_head(old, kv_heads))


def to_latent(model: Transformer) -> Transformer:
    """Multi-head latent attention that computes the same function (TransMLA, Meng et al. 2025).

    The latent is as large as the keys and values that it replaces: it shows that latent attention
    can be whatever grouped-query attention is, and is a place to shrink the latent from.

    Args:
        model: left as it is.

    Raises:
        HeadlabError: its positions are rotary, or its sites have caches of different sizes.
    """
    sizes = {
        2 * attention.all_kv_heads * attention.head_dim
        for site in SITES
        for attention in model.attentions(site)
        if isinstance(attention, MultiHeadAttention)
    }
    if len(sizes) > 1:
        raise HeadlabError(
            "the sites have different numbers of key/value heads, but attention.latent_dim is one "
            "for all; convert to one number first: --to gqa --kv-heads 1"
        )
    kinds = {"kind": "mla", "latent_dim": max(sizes, default=1), "latent_norm": False}
    kinds |= {"query_latent_dim": None, "kv_heads": None}
    return _rebuilt(model, kinds, latent_from_multi_head)


def _rebuilt(
    model: Transformer, kinds: dict, convert: Callable[[MultiHeadAttention], Attention]
) -> Transformer:
    options = model.hparams["attention"]
    present = {site: options.get(site) or options.get("kind") or "mha" for site in SITES}
    for site, kind in present.items():
        if kind not in ("mha", "gqa", "mqa"):
            key = f"attention.{site if options.get(site) else 'kind'}"
            raise HeadlabError(
                f"the model has {key}={kind}; only mha, gqa and mqa at every site can be converted"
            )
    attention = {**options, **dict.fromkeys(SITES), **kinds}
    converted = Transformer(**{**model.hparams, "attention": attention})
    weights = model.state_dict()
    old_names, new_names = _names(model), _names(converted)
    for name, old in old_names.items():
        weights = {k: v for k, v in weights.items() if not k.startswith(f"{name}.")}
        try:
            part = convert(old).state_dict()
        except ValueError as error:
            raise HeadlabError(str(error)) from error
        weights |= {f"{name}.{key}": value for key, value in part.items()}
    assert list(old_names) == list(new_names)
    parameter = next(model.parameters())
    converted.to(device=parameter.device, dtype=parameter.dtype).load_state_dict(weights)
    return converted.train(model.training)


def _names(model: nn.Module) -> dict:
    return {name: one for name, one in model.named_modules() if isinstance(one, Attention)}
