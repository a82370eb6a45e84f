"""Our weights in the other models."""

from collections.abc import Callable, Iterable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from headlab.attention.multi_head import MultiHeadAttention
from headlab.benchmark.networks import PlainTransformer
from headlab.transformer import Transformer

VOCABULARY = 60


@pytest.fixture
def transformer() -> Callable[..., Transformer]:
    """``transformer(norm="post", ...)``: a small model with random weights and biases."""

    def make(**options: Any) -> Transformer:
        torch.manual_seed(1)
        model = Transformer(
            source_vocab_size=VOCABULARY,
            target_vocab_size=VOCABULARY,
            **{
                "d_model": 16,
                "heads": 4,
                "encoder_layers": 2,
                "decoder_layers": 3,
                "feed_forward": 24,
                "dropout": 0.0,
                "attention": {"kind": "mha", "bias": True},
                "position": {"kind": "sinusoidal", "max_length": 40},
                **options,
            },
        )
        with torch.no_grad():
            for parameter in model.parameters():
                if parameter.dim() == 1:  # biases and norms: what is 0 or 1 tells nothing
                    parameter.add_(torch.randn_like(parameter) / 10)
        return model.eval()

    return make


def copy(pairs: Iterable[tuple[nn.Module, nn.Module]]) -> None:
    """Weights and biases of the second of each pair into the first."""
    with torch.no_grad():
        for to, ours in pairs:
            to.weight.copy_(ours.weight)
            if ours.bias is not None:
                to.bias.copy_(ours.bias)


def embeddings(to: Any, ours: Transformer, *more: tuple[nn.Module, nn.Module]) -> None:
    """The three matrices of a ``PlainTransformer``, and whatever else is given."""
    with torch.no_grad():
        for name in ("source_embedding", "target_embedding", "output"):
            getattr(to, name).weight.copy_(getattr(ours, name).weight)
    copy(more)


@pytest.fixture
def as_plain() -> Callable[[Transformer], PlainTransformer]:
    """Our model as ``torch.nn.Transformer``."""

    def attention(to: nn.MultiheadAttention, ours: MultiHeadAttention) -> None:
        with torch.no_grad():
            to.in_proj_weight.copy_(ours.in_projection.weight)
            to.in_proj_bias.copy_(ours.in_projection.bias)
        copy([(to.out_proj, ours.out_projection)])

    def convert(ours: Transformer) -> PlainTransformer:
        plain = PlainTransformer(ours.hparams)
        stacks = plain.transformer
        norms = (stacks.encoder.norm, ours.encoder_norm), (stacks.decoder.norm, ours.decoder_norm)
        embeddings(plain, ours, *norms)
        layer: Any
        own: Any
        for layer, own in zip(stacks.encoder.layers, ours.encoder, strict=True):
            attention(layer.self_attn, own.self_attention)
            copy([
                (layer.linear1, own.feed_forward.first),
                (layer.linear2, own.feed_forward.second),
                (layer.norm1, own.self_residual.norm),
                (layer.norm2, own.feed_residual.norm),
            ])  # fmt: skip
        for layer, own in zip(stacks.decoder.layers, ours.decoder, strict=True):
            attention(layer.self_attn, own.self_attention)
            attention(layer.multihead_attn, own.cross_attention)
            copy([
                (layer.linear1, own.feed_forward.first),
                (layer.linear2, own.feed_forward.second),
                (layer.norm1, own.self_residual.norm),
                (layer.norm2, own.cross_residual.norm),
                (layer.norm3, own.feed_residual.norm),
            ])  # fmt: skip
        return plain.eval()

    return convert


@pytest.fixture
def as_marian() -> Callable[[Transformer, nn.Module], None]:
    """Our weights into transformers' Marian, of a model with ``norm="post"``."""

    def attention(to: Any, ours: MultiHeadAttention) -> None:
        parts: tuple[Tensor, ...] = ours.in_projection.weight.chunk(3)
        biases: tuple[Tensor, ...] = ours.in_projection.bias.chunk(3)
        projections = (to.q_proj, to.k_proj, to.v_proj)
        with torch.no_grad():
            for projection, weight, bias in zip(projections, parts, biases, strict=True):
                projection.weight.copy_(weight)
                projection.bias.copy_(bias)
        copy([(to.out_proj, ours.out_projection)])

    def layers(theirs: Any, ours: Any, cross: bool) -> None:
        for to, own in zip(theirs, ours, strict=True):
            attention(to.self_attn, own.self_attention)
            copy([
                (to.fc1, own.feed_forward.first),
                (to.fc2, own.feed_forward.second),
                (to.self_attn_layer_norm, own.self_residual.norm),
                (to.final_layer_norm, own.feed_residual.norm),
            ])  # fmt: skip
            if cross:
                attention(to.encoder_attn, own.cross_attention)
                copy([(to.encoder_attn_layer_norm, own.cross_residual.norm)])

    def convert(ours: Transformer, marian: Any) -> None:
        encoder, decoder = marian.model.encoder, marian.model.decoder
        with torch.no_grad():
            encoder.embed_tokens.weight.copy_(ours.source_embedding.weight)
            decoder.embed_tokens.weight.copy_(ours.target_embedding.weight)
            marian.lm_head.weight.copy_(ours.output.weight)
            encoder.embed_positions.weight.copy_(ours.source_position.table)
            decoder.embed_positions.weight.copy_(ours.target_position.table)
        layers(encoder.layers, ours.encoder, cross=False)
        layers(decoder.layers, ours.decoder, cross=True)

    return convert
