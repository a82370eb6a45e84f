"""Heads cut out of the weights: a smaller model that computes what the masked one computes."""

from collections.abc import Iterable

import torch

from headlab.head_names import Head, compress, parse_heads
from headlab.transformer import Gates, Transformer


def cut_heads(model: Transformer, heads: Iterable[Head]) -> Transformer:
    """A model without the given heads, and otherwise with the same weights.

    It computes what ``model`` computes with these heads' gates at 0. The heads that stay keep
    their numbers, and a layer may be left with none: its residual connection alone (and the bias
    of its output projection where there is one).

    Args:
        model: left as it is; heads may be missing in it already.
        heads: of ``model.head_names``.

    Raises:
        HeadlabError: a head that the model does not have.
    """
    gone = set(parse_heads([str(one) for one in heads], model.head_names, "heads to cut"))
    stay = [one for one in model.head_names if one not in gone]
    whole = Transformer(**{**model.hparams, "ablate": []})
    missing = set(whole.head_names) - set(stay)
    smaller = Transformer(**{**model.hparams, "ablate": compress(missing)})
    weights = model.state_dict()
    for site, layers in smaller.kept.items():
        old, names = model.attentions(site), _names(model, site)
        for layer, kept in enumerate(layers):
            if kept != model.kept[site][layer]:
                part = old[layer].select_heads(kept).state_dict()
                weights |= {f"{names[layer]}.{key}": value for key, value in part.items()}
    parameter = next(model.parameters())
    smaller.to(device=parameter.device, dtype=parameter.dtype).load_state_dict(weights)
    return smaller.train(model.training)


def fold_gates(model: Transformer, gates: Gates) -> Transformer:
    """A model that computes without gates what ``model`` computes with these.

    Each head's columns of W_O are multiplied by its gate; a head whose gate is 0 is cut.

    Args:
        model: left as it is.
        gates: site -> (layers, heads).
    """
    closed = [one for one in model.head_names if one.site in gates and not gates[one.site][one[1:]]]
    folded = cut_heads(model, closed)
    with torch.no_grad():
        for site, values in gates.items():
            for layer, attention in enumerate(folded.attentions(site)):
                factors = values[layer][attention.kept].to(attention.out_projection.weight)
                attention.out_projection.weight.mul_(factors.repeat_interleave(attention.head_dim))
    return folded


def _names(model: Transformer, site: str) -> list[str]:
    """The name, in the model's state, of each layer's attention."""
    names = {module: name for name, module in model.named_modules()}
    return [names[attention] for attention in model.attentions(site)]
