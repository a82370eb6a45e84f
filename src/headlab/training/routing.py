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


def active_share(model: Transformer, batch: Batch) -> float:
    """Share of a layer's heads that a token used in the last call in training.

    The mean over real tokens and over the layers that route and have heads. Picks of heads that
    the layer does not have (``model.ablate``) are lost: they do not pass to other heads.
    """
    source, target = batch.source != PAD, batch.target_input != PAD
    shares = []
    for site in SITES:
        for layer in model.attentions(site):
            if isinstance(layer, MixtureOfHeads) and layer.routing is not None and layer.heads:
                chosen = layer.routing.chosen[source if site == "encoder" else target]
                routed = [i - layer.shared_heads for i in layer.kept if i >= layer.shared_heads]
                shared = layer.heads - len(routed)
                used = shared + float(chosen[:, routed].sum(dim=-1).float().mean())
                shares.append(used / layer.heads)
    return sum(shares) / len(shares)
