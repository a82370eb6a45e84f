"""The other models compute what ours computes, where they are given the same weights."""

from collections.abc import Callable

import pytest
import torch
from torch import nn

from headlab.benchmark.networks import (
    Marian,
    PlainTransformer,
    differences,
    drops_more,
    refusal,
)
from headlab.benchmark.plain_loop import Loss, logits_loss, parameters
from headlab.data.batches import Batch, collate
from headlab.data.tokenizer import PAD
from headlab.training.loss import linear_cross_entropy
from headlab.transformer import Transformer

SMOOTHING = 0.1
Make = Callable[..., Transformer]

BATCH = collate(
    [[5, 9, 11, 7], [8, 4], [30, 31, 32, 33, 34]], [[6, 20], [7, 8, 9, 10, 11, 12], [40, 41, 42]]
)


def our_loss(model: Transformer) -> Loss:
    """That of the trainer."""

    def loss(batch: Batch) -> torch.Tensor:
        hidden = model.decode(batch.target_input, model.encode(batch.source)).hidden
        real = batch.target_output != PAD
        total, _ = linear_cross_entropy(
            hidden[real], model.output.weight, batch.target_output[real], SMOOTHING
        )
        return total / batch.target_tokens

    return loss


def check_same(ours: Transformer, other: nn.Module) -> None:
    """Losses agree, and so do the gradients of the output layer."""
    first, second = our_loss(ours)(BATCH), logits_loss(other, SMOOTHING)(BATCH)
    torch.testing.assert_close(first, second, atol=1e-5, rtol=1e-5)
    first.backward()
    second.backward()
    norms = [
        torch.nn.utils.clip_grad_norm_(one.parameters(), float("inf")) for one in (ours, other)
    ]
    torch.testing.assert_close(*norms, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("tie", ["all", "target", "none"])
@pytest.mark.parametrize("activation", ["relu", "gelu"])
def test_torch_transformer_has_our_parameters_and_our_loss(
    transformer: Make,
    as_plain: Callable[[Transformer], PlainTransformer],
    tie: str,
    activation: str,
) -> None:
    ours = transformer(tie_embeddings=tie, activation=activation)
    plain = as_plain(ours)
    assert parameters(plain) == parameters(ours)
    assert differences(ours, "torch") == []
    check_same(ours, plain)


@pytest.mark.parametrize("tie", ["all", "target", "none"])
@pytest.mark.parametrize("activation", ["relu", "gelu"])
def test_marian_has_our_parameters_and_our_loss(
    transformer: Make,
    as_marian: Callable[[Transformer, nn.Module], None],
    tie: str,
    activation: str,
) -> None:
    pytest.importorskip("transformers")
    ours = transformer(tie_embeddings=tie, activation=activation, norm="post")
    marian = Marian(ours.hparams)
    as_marian(ours, marian.model)
    assert parameters(marian) == parameters(ours)
    assert differences(ours, "marian") == []
    check_same(ours, marian.eval())


def test_what_others_cannot_be_is_said(transformer: Make) -> None:
    ours = transformer(
        norm="pre",
        attention={"kind": "mla", "latent_dim": 8},
        position={"kind": "rope"},
        ablate=[],
    )
    said = differences(ours, "marian")
    assert said[0] == "ordinary multi-head attention (ours: mla)"
    assert "sinusoidal positions (ours: rope)" in said
    assert "norms after each sub-layer, none at the end of a stack" in said
    pruned = transformer(ablate=["cross.1.0"])
    assert differences(pruned, "torch") == ["all heads in every layer"]
    assert parameters(pruned) < parameters(PlainTransformer(pruned.hparams))
    assert refusal(transformer(activation="swiglu").hparams) == "it has no model.activation=swiglu"
    odd = transformer(heads=3, attention={"kind": "mha", "head_dim": 8})
    assert refusal(odd.hparams) == "it needs model.heads=3 to divide d_model=16"


def test_where_torch_drops_more_the_same_dropout_is_a_row_of_its_own(transformer: Make) -> None:
    ours = transformer(dropout=0.3)
    assert drops_more(ours.hparams)
    assert not drops_more(
        transformer(
            dropout=0.3,
            feed_forward_dropout=0.3,
            attention={"kind": "mha", "bias": True, "dropout": 0.3},
        ).hparams
    )
    layer = PlainTransformer(ours.hparams, same_dropout=True).transformer.decoder.layers[0]
    assert layer.dropout.p == layer.self_attn.dropout == layer.multihead_attn.dropout == 0.0
    assert layer.dropout1.p == layer.dropout3.p == 0.3
