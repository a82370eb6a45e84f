"""What a mixture of heads adds to a training: the loss that keeps its heads in use."""

from collections.abc import Iterator

import torch
from torch import Tensor

from headlab.attention import MixtureOfHeads, Routing, balance_loss
from headlab.data.batches import Batch
from headlab.data.tokenizer import PAD
from headlab.head_names import SITES
from headlab.transformer import Transformer


def balance_losses(model: Transformer, batch: Batch) -> list[Tensor]:
    """The load-balance loss of each layer that routes, from its last call in training.

    Padding does not count: queries are source tokens in the encoder and what the decoder reads at
    the other two sites. Empty where no layer routes.
    """
    return [
        balance_loss(routing, real) for layer, routing, real in _routed(model, batch) if layer.picks
    ]


def active_share(model: Transformer, batch: Batch) -> Tensor:
    """Share of a layer's heads that a token used in the last call in training, a number.

    The mean over real tokens and over the layers that route and have heads. Picks of heads that
    the layer does not have (``model.ablate``) are lost: they do not pass to other heads.
    """
    shares = []
    for layer, routing, real in _routed(model, batch):
        if layer.heads:
            routed = [i - layer.shared_heads for i in layer.kept if i >= layer.shared_heads]
            picked = routing.chosen[real][:, routed].sum() / real.sum().clamp_min(1)
            shares.append((layer.heads - len(routed) + picked) / layer.heads)
    return torch.stack(shares).mean()


def _routed(model: Transformer, batch: Batch) -> Iterator[tuple[MixtureOfHeads, Routing, Tensor]]:
    """Each layer that routed in its last call, how, and which of its queries are no padding."""
    source, target = batch.source != PAD, batch.target_input != PAD
    for site in SITES:
        for layer in model.attentions(site):
            if isinstance(layer, MixtureOfHeads) and layer.routing is not None:
                yield layer, layer.routing, source if site == "encoder" else target
