"""The other models: ``torch.nn.Transformer`` as tutorials use it, and transformers' Marian."""

import math
import warnings
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from headlab.attention import kind_at
from headlab.data.batches import Batch
from headlab.data.tokenizer import BOS, EOS, PAD
from headlab.head_names import SITES
from headlab.transformer import Transformer

if TYPE_CHECKING:
    from transformers import MarianMTModel

LONGEST = 1024  # positions of the others where our model has no table


class PlainTransformer(nn.Module):
    """Embeddings, sinusoidal positions, ``torch.nn.Transformer``, output layer.

    Args:
        hparams: the arguments of ``Transformer`` whose sizes it takes; its ``dropout`` is used
            wherever ``torch.nn.Transformer`` drops: also on attention weights and inside the
            feed-forward networks.
        same_dropout: drop in these two places what our model drops there, which may be nothing.
    """

    position: Tensor

    def __init__(self, hparams: Mapping[str, Any], same_dropout: bool = False) -> None:
        super().__init__()
        width, tie = hparams["d_model"], hparams["tie_embeddings"]
        self.width = width
        self.source_embedding = nn.Embedding(hparams["source_vocab_size"], width)
        self.target_embedding = nn.Embedding(hparams["target_vocab_size"], width)
        self.output = nn.Linear(width, hparams["target_vocab_size"], bias=False)
        for matrix in (self.source_embedding, self.target_embedding, self.output):
            nn.init.normal_(matrix.weight, std=width**-0.5)
        if tie in ("all", "target"):
            self.output.weight = self.target_embedding.weight
        if tie == "all":
            self.source_embedding.weight = self.target_embedding.weight
        place = torch.arange(longest(hparams))[:, None]
        angle = place / 10_000 ** (torch.arange(0, width, 2) / width)
        waves = torch.stack([angle.sin(), angle.cos()], dim=-1).flatten(1)[:, :width]
        self.register_buffer("position", waves, persistent=False)
        self.dropout = nn.Dropout(hparams["dropout"])
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "enable_nested_tensor is True")
            self.transformer = nn.Transformer(
                width,
                hparams["heads"],
                hparams["encoder_layers"],
                hparams["decoder_layers"],
                hparams["feed_forward"],
                hparams["dropout"],
                hparams["activation"],
                batch_first=True,
                norm_first=hparams["norm"] == "pre",
            )
        if same_dropout:
            for module in self.transformer.modules():
                if isinstance(module, nn.MultiheadAttention):
                    module.dropout = _attention_dropout(hparams)
                elif isinstance(module, nn.TransformerEncoderLayer | nn.TransformerDecoderLayer):
                    module.dropout.p = hparams["feed_forward_dropout"]

    def forward(self, batch: Batch) -> Tensor:
        """Logits, (batch, target length, target_vocab_size)."""
        length = batch.target_input.size(1)
        causal = nn.Transformer.generate_square_subsequent_mask(
            length, device=batch.source.device, dtype=torch.bool
        )
        hidden = self.transformer(
            self._embed(batch.source, self.source_embedding),
            self._embed(batch.target_input, self.target_embedding),
            tgt_mask=causal,
            src_key_padding_mask=batch.source == PAD,
            tgt_key_padding_mask=batch.target_input == PAD,
            memory_key_padding_mask=batch.source == PAD,
            tgt_is_causal=True,
        )
        logits: Tensor = self.output(hidden)
        return logits

    def _embed(self, ids: Tensor, embedding: nn.Embedding) -> Tensor:
        x: Tensor = self.dropout(
            embedding(ids) * math.sqrt(self.width) + self.position[: ids.size(1)]
        )
        return x


class Marian(nn.Module):
    """``MarianMTModel`` in training: a batch in, logits out."""

    def __init__(self, hparams: Mapping[str, Any]) -> None:
        super().__init__()
        self.model = marian_model(hparams)

    def forward(self, batch: Batch) -> Tensor:
        """Logits, (batch, target length, target_vocab_size)."""
        found = self.model(
            input_ids=batch.source,
            attention_mask=batch.source != PAD,
            decoder_input_ids=batch.target_input,
            use_cache=False,
        )
        logits: Tensor = found.logits
        return logits


def marian_model(hparams: Mapping[str, Any]) -> "MarianMTModel":
    """transformers' Marian with the sizes, the dropout and the ties of our model; random weights.

    Raises:
        ImportError: transformers is not installed.
    """
    from transformers import MarianConfig, MarianMTModel

    layers = {
        f"{side}_{name}": value
        for side in ("encoder", "decoder")
        for name, value in (
            ("layers", hparams[f"{side}_layers"]),
            ("attention_heads", hparams["heads"]),
            ("ffn_dim", hparams["feed_forward"]),
        )
    }
    return MarianMTModel(
        MarianConfig(
            **layers,
            vocab_size=hparams["source_vocab_size"],
            decoder_vocab_size=hparams["target_vocab_size"],
            d_model=hparams["d_model"],
            max_position_embeddings=longest(hparams),
            activation_function=hparams["activation"],
            dropout=hparams["dropout"],
            attention_dropout=_attention_dropout(hparams),
            activation_dropout=hparams["feed_forward_dropout"],
            share_encoder_decoder_embeddings=hparams["tie_embeddings"] == "all",
            tie_word_embeddings=hparams["tie_embeddings"] != "none",
            scale_embedding=True,
            pad_token_id=PAD,
            bos_token_id=BOS,
            eos_token_id=EOS,
            decoder_start_token_id=BOS,
            forced_eos_token_id=None,
        )
    )


def longest(hparams: Mapping[str, Any]) -> int:
    """Positions that the other models are given."""
    return hparams["position"].get("max_length") or LONGEST


def refusal(hparams: Mapping[str, Any]) -> str | None:
    """Why neither of the two can be built in the same sizes; None: they can."""
    if hparams["activation"] == "swiglu":
        return "it has no model.activation=swiglu"
    if hparams["d_model"] % hparams["heads"]:
        return f"it needs model.heads={hparams['heads']} to divide d_model={hparams['d_model']}"
    return None


def differences(model: Transformer, other: str) -> list[str]:
    """In what a model of the same sizes is not the same as ours.

    Args:
        model: ours.
        other: "torch" or "marian".
    """
    hparams = model.hparams
    found = []
    options = hparams["attention"]
    kinds = {
        kind_at(options, site, layer)
        for site in SITES
        for layer in range(len(model.attentions(site)))
    }
    own = [f"{key}={options[key]}" for key in ("kv_heads", "head_dim") if options.get(key)]
    if own or kinds != {"mha"}:
        found.append(f"ordinary multi-head attention (ours: {', '.join([*sorted(kinds), *own])})")
    if any(len(of) < model.heads for layers in model.kept.values() for of in layers):
        found.append("all heads in every layer")
    if not options.get("bias"):
        found.append("biases in the attention's projections")
    if hparams["position"]["kind"] != "sinusoidal":
        found.append(f"sinusoidal positions (ours: {hparams['position']['kind']})")
    if other == "marian" and hparams["norm"] == "pre":
        found.append("norms after each sub-layer, none at the end of a stack")
    if other == "torch" and hparams["norm"] == "post":
        found.append("a norm more at the end of each stack")
    return found


def drops_more(hparams: Mapping[str, Any]) -> bool:
    """Whether ``torch.nn.Transformer``'s one dropout falls on places where ours is another."""
    places = (_attention_dropout(hparams), hparams["feed_forward_dropout"])
    return any(place != hparams["dropout"] for place in places)


def _attention_dropout(hparams: Mapping[str, Any]) -> float:
    return hparams["attention"].get("dropout") or 0.0
