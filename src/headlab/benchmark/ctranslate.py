"""Our weights as a CTranslate2 model, so that both compute the same translations."""

import importlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from headlab.attention import kind_at
from headlab.attention.multi_head import MultiHeadAttention
from headlab.head_names import SITES
from headlab.layers import FeedForward
from headlab.transformer import Transformer

# CTranslate2 reads and writes tokens as text: ours are the ids in figures, but for these.
PADDING, UNKNOWN, BEGIN, END = "<pad>", "<unk>", "<s>", "</s>"
FOLDER = "ctranslate2"  # beside the material
EPSILON = 1e-5  # of torch.nn.LayerNorm


def refusal(model: Transformer) -> str | None:
    """Why a model cannot be written for CTranslate2 here; None: it can."""
    hparams = model.hparams
    options, position = hparams["attention"], hparams["position"]["kind"]
    for site in SITES:
        for layer, kept in enumerate(model.kept[site]):
            kind = kind_at(options, site, layer)
            if kind != "mha":
                return f"attention.kind={kind} has no conversion, only mha has"
            if len(kept) < model.heads:
                return "heads are missing in some layers, which it does not allow for"
    for key in ("kv_heads", "head_dim"):
        if options.get(key) is not None:
            return f"attention.{key}={options[key]} has no conversion"
    if position not in ("sinusoidal", "learned"):
        return f"position.kind={position} has no conversion, only sinusoidal and learned have"
    return None


def write_model(model: Transformer, folder: Path) -> None:
    """Write the weights in float32, with ``ctranslate2.specs.TransformerSpec``.

    What it shares with our model: embeddings are multiplied by sqrt(d_model) and a table of
    positions is added to them, norms before each sub-layer and at the end of both stacks
    (``model.norm=pre``) or after each sub-layer only (``post``), scores divided by
    sqrt(head_dim). Decoding starts from BOS; EOS is put behind each source.

    Args:
        model: one that ``refusal`` has nothing against.
        folder: that exists; gets the files of the model.

    Raises:
        ImportError: CTranslate2 is not installed.
    """
    specs: Any = importlib.import_module("ctranslate2.specs")
    activations = specs.common_spec.Activation
    hparams = model.hparams
    gated = hparams["activation"] == "swiglu"
    spec = specs.TransformerSpec.from_config(
        (model.encoder_layers, model.decoder_layers),
        model.heads,
        pre_norm=hparams["norm"] == "pre",
        activation={
            "relu": activations.RELU,
            "gelu": activations.GELU,
            "swiglu": activations.SWISH,
        }[hparams["activation"]],
        ffn_glu=gated,
    )
    spec.config.layer_norm_epsilon = EPSILON
    spec.config.add_source_eos = True
    _embed(spec.encoder, spec.encoder.embeddings[0], model.source_embedding, model.source_position)
    _embed(spec.decoder, spec.decoder.embeddings, model.target_embedding, model.target_position)
    spec.decoder.projection.weight = _plain(model.output.weight)
    if hparams["norm"] == "pre":
        _norm(spec.encoder.layer_norm, model.encoder_norm)
        _norm(spec.decoder.layer_norm, model.decoder_norm)
    ours: Any
    for to, ours in zip(spec.encoder.layer, model.encoder, strict=True):
        _self_attention(to.self_attention, ours.self_attention)
        _norm(to.self_attention.layer_norm, ours.self_residual.norm)
        _feed_forward(to.ffn, ours.feed_forward, gated)
        _norm(to.ffn.layer_norm, ours.feed_residual.norm)
    for to, ours in zip(spec.decoder.layer, model.decoder, strict=True):
        _self_attention(to.self_attention, ours.self_attention)
        _norm(to.self_attention.layer_norm, ours.self_residual.norm)
        _cross_attention(to.attention, ours.cross_attention)
        _norm(to.attention.layer_norm, ours.cross_residual.norm)
        _feed_forward(to.ffn, ours.feed_forward, gated)
        _norm(to.ffn.layer_norm, ours.feed_residual.norm)
    spec.register_source_vocabulary(_vocabulary(hparams["source_vocab_size"]))
    spec.register_target_vocabulary(_vocabulary(hparams["target_vocab_size"]))
    spec.validate()
    spec.optimize()
    spec.save(str(folder))


def _vocabulary(size: int) -> list[str]:
    return [PADDING, UNKNOWN, BEGIN, END, *map(str, range(4, size))]


def _embed(stack: Any, to: Any, embedding: nn.Embedding, position: Any) -> None:
    to.weight = _plain(embedding.weight)
    stack.position_encodings.encodings = _plain(position.table)


def _norm(to: Any, norm: Any) -> None:
    to.gamma, to.beta = _plain(norm.weight), _plain(norm.bias)


def _linear(to: Any, weight: Tensor, bias: Tensor | None) -> None:
    to.weight = _plain(weight)
    if bias is not None:
        to.bias = _plain(bias)


def _self_attention(to: Any, ours: MultiHeadAttention) -> None:
    # Query, key and value side by side, as ours are.
    _linear(to.linear[0], ours.in_projection.weight, ours.in_projection.bias)
    _linear(to.linear[1], ours.out_projection.weight, ours.out_projection.bias)


def _cross_attention(to: Any, ours: MultiHeadAttention) -> None:
    weight, bias = ours.in_projection.weight, ours.in_projection.bias
    border = ours.heads * ours.head_dim
    for linear, rows in ((to.linear[0], slice(border)), (to.linear[1], slice(border, None))):
        _linear(linear, weight[rows], None if bias is None else bias[rows])
    _linear(to.linear[2], ours.out_projection.weight, ours.out_projection.bias)


def _feed_forward(to: Any, ours: FeedForward, gated: bool) -> None:
    weights: Sequence[Tensor] = [ours.first.weight]
    biases: Sequence[Tensor] = [ours.first.bias]
    if gated:  # the gate first, as in ours
        weights, biases = ours.first.weight.chunk(2), ours.first.bias.chunk(2)
        _linear(to.linear_0_noact, weights[1], biases[1])
    _linear(to.linear_0, weights[0], biases[0])
    _linear(to.linear_1, ours.second.weight, ours.second.bias)


def _plain(tensor: Tensor) -> Tensor:
    return tensor.detach().float().cpu().contiguous()
