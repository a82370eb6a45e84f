"""The encoder-decoder Transformer (Vaswani et al. 2017), from token ids to logits."""

import copy
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from headlab.attention import (
    Attention,
    Cache,
    build_attention,
    build_position,
    causal_mask,
    kind_at,
    padding_mask,
)
from headlab.dropout import Dropout
from headlab.errors import HeadlabError
from headlab.head_names import SITES, Head, heads_of, parse_heads
from headlab.layers import DecoderLayer, EncoderLayer, FeedForward

PAD = 0  # the id that fills rows; the tokenizer reserves it

# A factor for each head's output: site -> (layers, heads) or (layers, batch, heads), by the heads'
# numbers, whether or not a layer has them all. A site that is not named is left as it is.
Gates = Mapping[str, Tensor]


class Encoded(NamedTuple):
    """What the encoder hands to the decoder."""

    memory: Tensor  # (batch, source length, d_model)
    mask: Tensor  # (batch, 1, 1, source length), True = real token
    weights: list[Tensor] | None  # a layer each, (batch, heads, source length, source length)

    def select(self, rows: Tensor) -> "Encoded":
        """The given rows in the given order; a row may be repeated."""
        weights = self.weights and [w.index_select(0, rows) for w in self.weights]
        return Encoded(self.memory.index_select(0, rows), self.mask.index_select(0, rows), weights)


class Decoded(NamedTuple):
    """What the decoder computes; the weights are None unless they were asked for."""

    hidden: Tensor  # (batch, target length, d_model)
    self_weights: list[Tensor] | None  # (batch, heads, target length, target length)
    cross_weights: list[Tensor] | None  # (batch, heads, target length, source length)


class DecoderCache:
    """What every decoder layer keeps between steps: its self- and its cross-attention."""

    def __init__(self, self_attention: list[Cache], cross_attention: list[Cache]) -> None:
        self.self_attention, self.cross_attention = self_attention, cross_attention

    @property
    def length(self) -> int:
        """Number of target positions seen so far."""
        return self.self_attention[0].length

    def fork(self) -> "DecoderCache":
        """A cache that goes its own way from here; this one goes on after it has been dropped."""
        return DecoderCache(
            [copy.copy(cache) for cache in self.self_attention],
            [copy.copy(cache) for cache in self.cross_attention],
        )

    def reorder(self, rows: Tensor) -> None:
        """Keep the given sentences in the given order; a sentence may be repeated."""
        for cache in self.self_attention + self.cross_attention:
            cache.reorder(rows)

    def truncate(self, length: int) -> None:
        """Forget every target position from ``length`` on."""
        for cache in self.self_attention:
            cache.truncate(length)


class Transformer(nn.Module):
    """Encoder-decoder Transformer over token ids.

    Args:
        source_vocab_size, target_vocab_size: numbers of token ids; id 0 is padding.
        d_model: width of embeddings and of every layer's input and output.
        heads: attention heads of every layer.
        ablate: heads not to build, by name, such as ``cross.2.0`` or ``encoder.0-1.*``; the model
            is the same as one with these heads' gates at 0.
        encoder_layers, decoder_layers: depths.
        feed_forward: inner width of the feed-forward networks.
        activation: "relu", "gelu" or "swiglu".
        norm: "pre" (normalise each sub-layer's input) or "post" (as in Vaswani et al. 2017).
        dropout: on embeddings and on each sub-layer's output.
        feed_forward_dropout: inside the feed-forward network.
        tie_embeddings: "all" shares one matrix among source, target and output; "target" shares
            target and output; "none" shares nothing.
        attention: ``kind``, the same at every site or not (see ``kind_at``), and the arguments of
            the kinds (kv_heads, latent_dim, ...).
        position: ``kind`` ("sinusoidal", "learned", "rope", "alibi", "none") and its arguments
            (max_length of a table, base).

    Attributes:
        kept: site -> for each layer the numbers of the heads that it has.
        hparams: the arguments, which rebuild the model.

    Raises:
        HeadlabError: sizes that do not fit together, named by configuration key.
    """

    def __init__(
        self,
        *,
        source_vocab_size: int,
        target_vocab_size: int,
        d_model: int = 128,
        heads: int = 8,
        ablate: Sequence[str] = (),
        encoder_layers: int = 4,
        decoder_layers: int = 4,
        feed_forward: int = 256,
        activation: str = "relu",
        norm: str = "pre",
        dropout: float = 0.1,
        feed_forward_dropout: float = 0.0,
        tie_embeddings: str = "all",
        attention: Mapping[str, Any] | None = None,
        position: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__()
        attention, ablate = dict(attention or {}), list(ablate)
        position = dict(position or {"kind": "sinusoidal", "max_length": 256})
        arguments = locals()
        self.hparams: dict[str, Any] = {
            name: arguments[name] for name in Transformer.__init__.__kwdefaults__ or {}
        } | {"source_vocab_size": source_vocab_size, "target_vocab_size": target_vocab_size}
        _check_sizes(self.hparams)
        self.d_model, self.heads = d_model, heads
        self.encoder_layers, self.decoder_layers = encoder_layers, decoder_layers
        self.max_length: int | None = position.get("max_length")
        residual = {"d_model": d_model, "norm": norm, "dropout": dropout}

        depths = dict(zip(SITES, (encoder_layers, decoder_layers, decoder_layers), strict=True))
        self.kept = _kept_heads(depths, heads, ablate)

        def attend(site: str, layer: int) -> Attention:
            kind = kind_at(attention, site, layer)
            # Distances between a target and a source position mean nothing.
            relative = None if site == "cross" else position
            kept = self.kept[site][layer]
            return build_attention(kind, d_model, heads, attention, kept, relative)

        def feed() -> FeedForward:
            return FeedForward(d_model, feed_forward, activation, feed_forward_dropout)

        try:
            self.source_position = build_position(d_model=d_model, **position)
            self.target_position = build_position(d_model=d_model, **position)
            self.encoder = nn.ModuleList(
                EncoderLayer(attend("encoder", i), feed(), **residual)
                for i in range(encoder_layers)
            )
            self.decoder = nn.ModuleList(
                DecoderLayer(attend("decoder", i), attend("cross", i), feed(), **residual)
                for i in range(decoder_layers)
            )
            self.dropout = Dropout(dropout)
        except (TypeError, ValueError) as error:
            raise HeadlabError(str(error)) from error
        pre = norm == "pre"
        self.encoder_norm = nn.LayerNorm(d_model) if pre else nn.Identity()
        self.decoder_norm = nn.LayerNorm(d_model) if pre else nn.Identity()
        self.source_embedding = nn.Embedding(source_vocab_size, d_model)
        self.target_embedding = nn.Embedding(target_vocab_size, d_model)
        self.output = nn.Linear(d_model, target_vocab_size, bias=False)
        # Embeddings are multiplied by sqrt(d_model) on the way in: entries start near one there
        # and logits near one on the way out, with the same matrix (Vaswani et al. 2017, 3.4).
        for matrix in (self.source_embedding, self.target_embedding, self.output):
            nn.init.normal_(matrix.weight, std=d_model**-0.5)
        if tie_embeddings in ("all", "target"):
            self.output.weight = self.target_embedding.weight
        if tie_embeddings == "all":
            self.source_embedding.weight = self.target_embedding.weight
        for module in self.modules():
            if isinstance(module, FeedForward):
                for linear in (module.first, module.second):
                    nn.init.xavier_uniform_(linear.weight)
                    nn.init.zeros_(linear.bias)

    @property
    def head_names(self) -> list[Head]:
        """All heads that the model has, by site, layer and number."""
        return heads_of(self.kept)

    def attentions(self, site: str) -> list[Attention]:
        """The attention of each layer at "encoder", "decoder" (masked) or "cross"."""
        layers = self.encoder if site == "encoder" else self.decoder
        name = "cross_attention" if site == "cross" else "self_attention"
        return [getattr(layer, name) for layer in layers]

    def encode(
        self, source: Tensor, gates: Gates | None = None, need_weights: bool = False
    ) -> Encoded:
        """Encode source ids, (batch, source length), padded with id 0.

        Raises:
            HeadlabError: the sequence is longer than the position table.
        """
        x = self._embed(source, self.source_embedding, self.source_position, 0)
        mask = padding_mask(source, PAD)
        weights: list[Tensor] = []
        for i, layer in enumerate(self.encoder):
            x, w = layer(x, mask, self._gate(gates, "encoder", i), need_weights)
            weights.append(w)
        return Encoded(self.encoder_norm(x), mask, weights if need_weights else None)

    def decode(
        self,
        target: Tensor,
        encoded: Encoded,
        cache: DecoderCache | None = None,
        gates: Gates | None = None,
        need_weights: bool = False,
    ) -> Decoded:
        """Decode target ids, (batch, target length), which begin with the start symbol.

        With a cache, ``target`` holds only the ids that the cache has not seen, one or several.

        Raises:
            HeadlabError: the sequence is longer than the position table.
        """
        start = cache.length if cache is not None else 0
        new = target.size(1)
        x = self._embed(target, self.target_embedding, self.target_position, start)
        mask: Tensor | None = None
        if new > 1 or cache is None:
            mask = causal_mask(new, start + new, target.device)
        if cache is None and mask is not None:
            mask = mask & padding_mask(target, PAD)
        self_weights: list[Tensor] = []
        cross_weights: list[Tensor] = []
        for i, layer in enumerate(self.decoder):
            x, a, b = layer(
                x,
                encoded.memory,
                mask,
                encoded.mask,
                self._gate(gates, "decoder", i),
                self._gate(gates, "cross", i),
                cache.self_attention[i] if cache is not None else None,
                cache.cross_attention[i] if cache is not None else None,
                need_weights,
            )
            self_weights.append(a)
            cross_weights.append(b)
        x = self.decoder_norm(x)
        return Decoded(x, self_weights, cross_weights) if need_weights else Decoded(x, None, None)

    def logits(self, hidden: Tensor) -> Tensor:
        """(..., d_model) -> unnormalised log-probabilities, (..., target_vocab_size)."""
        return self.output(hidden)

    def forward(self, source: Tensor, target: Tensor, gates: Gates | None = None) -> Tensor:
        """Source and target ids -> logits, (batch, target length, target_vocab_size)."""
        return self.logits(self.decode(target, self.encode(source, gates), gates=gates).hidden)

    def attention_weights(
        self, source: Tensor, target: Tensor, gates: Gates | None = None
    ) -> dict[str, list[Tensor]]:
        """The weights of every head: site -> a tensor a layer, (batch, heads, queries, keys).

        A layer shows the heads that it has, in the order of ``self.kept[site][layer]``.
        """
        encoded = self.encode(source, gates, need_weights=True)
        decoded = self.decode(target, encoded, gates=gates, need_weights=True)
        weights = {
            "encoder": encoded.weights,
            "decoder": decoded.self_weights,
            "cross": decoded.cross_weights,
        }
        return {site: layers or [] for site, layers in weights.items()}

    def new_cache(self, batch_size: int = 1, capacity: int = 0) -> DecoderCache:
        """An empty cache; ``capacity`` target positions are set aside at the first step."""
        return DecoderCache(
            [attention.new_cache(capacity) for attention in self.attentions("decoder")],
            [attention.new_cache() for attention in self.attentions("cross")],
        )

    def _embed(
        self, ids: Tensor, embedding: nn.Embedding, position: nn.Module, start: int
    ) -> Tensor:
        end = start + ids.size(1)
        if self.max_length is not None and end > self.max_length:
            raise HeadlabError(
                f"a sequence of {end} tokens is longer than position.max_length={self.max_length}; "
                "shorten it, or train with a larger position.max_length"
            )
        x = embedding(ids) * self.d_model**0.5
        return self.dropout(x + position(ids.size(1), start))

    def _gate(self, gates: Gates | None, site: str, layer: int) -> Tensor | None:
        """The gates of the heads that the layer has."""
        if gates is None or site not in gates:
            return None
        kept, gate = self.kept[site][layer], gates[site][layer]
        if len(kept) == gate.size(-1) == self.heads:
            return gate
        return gate.index_select(-1, torch.tensor(kept, device=gate.device, dtype=torch.long))


def _kept_heads(
    depths: Mapping[str, int], heads: int, ablate: Sequence[str]
) -> dict[str, list[list[int]]]:
    whole = {site: [list(range(heads))] * depth for site, depth in depths.items()}
    gone = set(parse_heads(ablate, heads_of(whole), "model.ablate")) if ablate else set()
    return {
        site: [[i for i in numbers if Head(site, n, i) not in gone] for n, numbers in enumerate(of)]
        for site, of in whole.items()
    }


def _check_sizes(sizes: Mapping[str, Any]) -> None:
    for key in ("d_model", "encoder_layers", "decoder_layers", "feed_forward"):
        if sizes[key] < 1:
            raise HeadlabError(f"model.{key}={sizes[key]} must be at least 1")
    choices = {"norm": ("pre", "post"), "tie_embeddings": ("all", "target", "none")}
    for key, allowed in choices.items():
        if sizes[key] not in allowed:
            raise HeadlabError(f"model.{key}={sizes[key]}: choose {' or '.join(allowed)}")
    if sizes["tie_embeddings"] == "all" and (
        sizes["source_vocab_size"] != sizes["target_vocab_size"]
    ):
        raise HeadlabError(
            "model.tie_embeddings=all needs one joint vocabulary, but there are "
            f"{sizes['source_vocab_size']} source and {sizes['target_vocab_size']} target pieces; "
            "set tokenizer.joint=true or model.tie_embeddings=target"
        )
