"""Floating-point operations of an encoder-decoder Transformer, from the lengths of sentences."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from headlab.attention.multi_head import MultiHeadAttention
from headlab.transformer import Transformer

Widths = tuple[int, int]  # of all queries' heads together, and of all keys' heads


@dataclass(frozen=True)
class Sizes:
    """What the count depends on.

    Attributes:
        d_model: width of the layers.
        feed_forward: inner width of the feed-forward networks.
        matrices: of a feed-forward network: 2, or 3 with a gated activation.
        vocabulary: rows of the output matrix.
        encoder, decoder, cross: for each layer the widths of its attention.
    """

    d_model: int
    feed_forward: int
    matrices: int
    vocabulary: int
    encoder: tuple[Widths, ...]
    decoder: tuple[Widths, ...]
    cross: tuple[Widths, ...]

    @classmethod
    def of_model(cls, model: Transformer) -> "Sizes | None":
        """Those of a model whose attentions are all multi-head or grouped-query; else None."""
        widths: dict[str, Any] = {}
        for site in ("encoder", "decoder", "cross"):
            found = []
            for one in model.attentions(site):
                if type(one) is not MultiHeadAttention:
                    return None
                found.append((one.heads * one.head_dim, one.kv_heads * one.head_dim))
            widths[site] = tuple(found)
        return cls(**_common(model.hparams), **widths)

    @classmethod
    def of_plain(cls, hparams: Mapping[str, Any]) -> "Sizes":
        """Those of a model with ordinary multi-head attention in every layer.

        ``hparams`` are the arguments of ``Transformer``.
        """
        whole = (hparams["d_model"], hparams["d_model"])
        encoder, decoder = hparams["encoder_layers"], hparams["decoder_layers"]
        layers = {"encoder": encoder, "decoder": decoder, "cross": decoder}
        return cls(**_common(hparams), **{site: (whole,) * n for site, n in layers.items()})


def _common(hparams: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "d_model": hparams["d_model"],
        "feed_forward": hparams["feed_forward"],
        "matrices": 3 if hparams["activation"] == "swiglu" else 2,
        "vocabulary": hparams["target_vocab_size"],
    }


def forward_flops(sizes: Sizes, source: int, target: int, causal: bool = True) -> int:
    """Operations of the matrix products of one sentence pair, logits included.

    A product of (m, k) by (k, n) is ``2 m k n`` operations: a multiplication and an addition. With
    S source and T target tokens, width d, and an attention of width q for all query heads and k
    for all key heads::

        attention of Q queries to K keys, of which P pairs are scored:
            2 Q d q + 4 K d k + 2 Q q d    projections of queries, keys and values, and W_O
            + 4 P q                        scores, and the weighted sum of values
        encoder: Q = K = S, P = S^2;  decoder: Q = K = T, P = T (T + 1) / 2;
        cross: Q = T, K = S, P = S T
        feed-forward: 4 n d f for n tokens (6 n d f with a gated activation)
        logits: 2 T d V

    The causal half of the decoder's scores counts once, though most kernels compute the whole
    square. Lengths are those of real tokens: what is spent on padding is waste. Norms, softmax,
    activations, biases and embeddings are left out, as is usual.

    Args:
        sizes: of the model.
        source, target: tokens, EOS (or BOS) counted.
        causal: False counts the whole square of the decoder's scores.
    """
    pairs = target * (target + 1) // 2 if causal else target * target
    width = sizes.d_model
    total = 2 * target * width * sizes.vocabulary
    for widths, queries, keys, scored in (
        (sizes.encoder, source, source, source * source),
        (sizes.decoder, target, target, pairs),
        (sizes.cross, target, source, target * source),
    ):
        for query, key in widths:
            total += 4 * queries * width * query + 4 * keys * width * key + 4 * scored * query
    tokens = source * len(sizes.encoder) + target * len(sizes.decoder)
    return total + 2 * sizes.matrices * tokens * width * sizes.feed_forward


def training_flops(sizes: Sizes, lengths: Iterable[tuple[int, int]]) -> int:
    """Operations of forward and backward pass: three times the forward pass.

    The backward pass has two products for each one of the forward pass: the gradient of either
    factor (Kaplan et al. 2020, section 2.1; PaLM, Chowdhery et al. 2022, appendix B, whose "model
    FLOPs utilisation" is this count a second as a share of the machine's peak).

    Args:
        sizes: of the model.
        lengths: source and target tokens of each pair, EOS (or BOS) counted.
    """
    return 3 * sum(forward_flops(sizes, source, target) for source, target in lengths)
