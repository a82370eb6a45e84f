"""What a mixture of heads adds to a training: the loss that keeps its heads in use."""

from torch import Tensor

from headlab.attention import MixtureOfHeads, balance_loss
from headlab.data.batches import Batch
from headlab.data.tokenizer import PAD
from headlab.head_names import SITES
from headlab.transformer import Transformer


def balance_losses(model: Transformer, batch: Batch) -> list[Tensor]:
    """The load-balance loss of each layer that routes, from its last call in training.

    Padding does not count: queries are source tokens in the encoder and what the decoder reads at
    the other two sites. Empty where no layer routes.
    """
    source, target = batch.source != PAD, batch.target_input != PAD
    return [
        balance_loss(layer.routing, source if site == "encoder" else target)
        for site in SITES
        for layer in model.attentions(site)
        if isinstance(layer, MixtureOfHeads) and layer.routing is not None and layer.picks
    ]


def active_share(model: Transformer) -> float:
    """Share of the heads that a token uses, over the layers that route."""
    layers = [
        layer
        for site in SITES
        for layer in model.attentions(site)
        if isinstance(layer, MixtureOfHeads)
    ]
    return sum(layer.active_heads / layer.all_heads for layer in layers) / len(layers)
