"""The attention maps of a sentence, ready to be drawn: cropped, named, and on a scale."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from headlab.errors import HeadlabError


@dataclass(frozen=True)
class LayerMaps:
    """All heads of one layer at one site, for one sentence pair.

    weights: (heads, queries, keys); heads: their numbers, None for 0, 1, 2 and so on. Layers and
    heads are counted from 0, as everywhere here.
    """

    site: str
    layer: int
    weights: torch.Tensor
    query_pieces: Sequence[str]
    key_pieces: Sequence[str]
    heads: Sequence[int] | None = None

    @property
    def title(self) -> str:
        """For the head of a figure: `cross-attention, layer 2`."""
        kind = {"encoder": "encoder self-attention", "decoder": "masked decoder self-attention"}
        return f"{kind.get(self.site, f'{self.site}-attention')}, layer {self.layer}"


def layer_maps(
    weights: Mapping[str, Sequence[torch.Tensor]],
    row: int,
    source_pieces: Sequence[str],
    target_pieces: Sequence[str],
    kept: Mapping[str, Sequence[Sequence[int]]] | None = None,
) -> list[LayerMaps]:
    """The maps of one sentence pair of a batch, cropped to its real tokens.

    weights: from `Transformer.attention_weights`, {site: [(batch, heads, queries, keys), ...]}.
    source_pieces: what the encoder reads; target_pieces: what the decoder reads, `<s>` first.
    kept: `Transformer.kept`, the numbers of the heads; None: no head was pruned. A layer without
    heads has no maps and is left out.
    """
    axes = {
        "encoder": (source_pieces, source_pieces),
        "decoder": (target_pieces, target_pieces),
        "cross": (target_pieces, source_pieces),
    }
    return [
        LayerMaps(
            site,
            layer,
            maps[row, :, : len(queries), : len(keys)],
            queries,
            keys,
            None if kept is None else kept[site][layer],
        )
        for site, (queries, keys) in axes.items()
        for layer, maps in enumerate(weights[site])
        if maps.shape[1]
    ]


def checked_maps(
    weights: torch.Tensor | np.ndarray, query_pieces: Sequence[str], key_pieces: Sequence[str]
) -> np.ndarray:
    """(heads, queries, keys) in float32, cropped to the pieces."""
    maps = torch.as_tensor(weights).detach().to("cpu", torch.float32).numpy()
    queries, keys = len(query_pieces), len(key_pieces)
    fits = maps.ndim == 3 and maps.shape[1] >= queries and maps.shape[2] >= keys
    if not fits or min(len(maps), queries, keys) < 1:
        raise HeadlabError(
            f"attention weights of shape {maps.shape} do not fit {queries} query and {keys} key "
            "pieces; give (heads, queries, keys) of one sentence pair"
        )
    return maps[:, :queries, :keys]


def scale_of(maps: np.ndarray) -> float:
    """What is drawn as 1 in the colours: 1 for weights that are a distribution.

    Others, such as those of a mixture of heads or of a recurrence, may be above 1 or below 0 and
    have no size of their own: the largest absolute value of the layer. A twentieth above 1 is no
    reason to leave the scale of the other layers: it is drawn as 1.
    """
    largest = float(np.abs(maps).max())
    return largest if maps.min() < 0 or largest > 1.05 else 1.0


def scale_in_words(scale: float) -> str:
    """For the name of a layer whose scale is not 1: ` (black = 0.18)`."""
    return "" if scale == 1 else f" (black = {scale:.2g})"
