"""How sharp and how positional every head is, at each validation of a training."""

import math
from collections.abc import Sequence
from typing import Any

import lightning.pytorch as pl

from headlab.errors import HeadlabError
from headlab.heads.statistics import HeadMeans
from headlab.heads.weights import (
    PositionCounts,
    attention_batches,
    candidates,
    confidences,
    entropies,
    in_use,
    off_diagonal,
)
from headlab.training.observing import never_ending_training, tensorboard, undisturbed
from headlab.transformer import Gates, Transformer

BATCH_TOKENS = 4096


class HeadStatistics(pl.Callback):
    """Logs what the first validation sentences show of each head, so that one sees roles emerge.

    Scalars `entropy/<site>/layer_<i>/head_<j>` (nats), `confidence/...` (mean largest weight),
    `positional/...` for the two self-attentions (share of tokens whose largest weight lies at the
    head's most frequent relative position) and `diagonality/...` for cross-attention; see
    `headlab.heads.weights`. Heads have their original numbers. The decoder reads the references.

    It stands before the weight averaging in the list of callbacks, which puts the averaged
    weights aside at the end of a validation epoch: the numbers are those of the averaged weights.
    They change nothing in the training, and no fault in them ends it.

    Args:
        sentences: how many validation sentences are looked at; 0: none.

    Raises:
        HeadlabError: a negative number of sentences.
    """

    def __init__(self, sentences: int = 200) -> None:
        if sentences < 0:
            raise HeadlabError(
                f"callbacks.head_statistics.sentences={sentences} must be at least 0"
            )
        self.sentences = sentences
        self._pairs: list[tuple[list[int], list[int]]] | None = None
        self._said: set[str] = set()

    def on_validation_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Measure and log, except in Lightning's check before the first step."""
        writer = tensorboard(trainer)
        if trainer.sanity_checking or writer is None or not self.sentences:
            return
        with never_ending_training("head statistics", self._said):
            module: Any = pl_module
            if self._pairs is None:
                self._pairs = self._read(trainer, pl_module)
            with undisturbed(pl_module):
                found = head_statistics(module.model, self._pairs, module.evaluation_gates())
            for tag, value in found.items():
                writer.add_scalar(tag, value, trainer.global_step)

    def _read(self, trainer: pl.Trainer, pl_module: Any) -> list[tuple[list[int], list[int]]]:
        data: Any = trainer.datamodule  # type: ignore[attr-defined]
        examples = data.validation_examples(self.sentences)
        pairs = pl_module.tokenizers.encode_pairs(*zip(*examples, strict=True))
        most = data.max_length - 1
        return [(source[:most], target[:most]) for source, target in pairs]


def head_statistics(
    model: Transformer,
    pairs: Sequence[tuple[Sequence[int], Sequence[int]]],
    gates: Gates | None = None,
) -> dict[str, float]:
    """Tag, such as ``entropy/cross/layer_2/head_0``, -> the mean over the tokens of all pairs.

    Args:
        model: in evaluation mode.
        pairs: source and target pieces, without BOS and EOS.
        gates: of the heads' outputs, for the model.
    """
    means, positions = HeadMeans(), PositionCounts()
    for batch, weights in attention_batches(model, pairs, BATCH_TOKENS, gates=gates):
        for site, layers in weights.items():
            queries, allowed = batch.real()[site][0], candidates(batch, site)
            for layer, of_heads in enumerate(layers):
                if not of_heads.size(1):
                    continue
                served = queries.unsqueeze(1) & in_use(of_heads)
                means.add(site, layer, "entropy", entropies(of_heads), served)
                means.add(site, layer, "confidence", confidences(of_heads, allowed), served)
                if site == "cross":
                    distance, even = off_diagonal(of_heads, batch)
                    means.add(site, layer, "distance", distance, served)
                    means.add(site, layer, "even", even.expand_as(distance), served)
                else:
                    positions.add(site, layer, of_heads, allowed)
    tables = {
        name: means.table(name, model.kept, model.heads)
        for name in ("entropy", "confidence", "distance", "even")
    }
    tables["diagonality"] = {
        site: 1 - tables["distance"][site] / even for site, even in tables["even"].items()
    }
    found = {}
    for head in model.head_names:
        end = f"{head.site}/layer_{head.layer}/head_{head.head}"
        for name in ("entropy", "confidence", "diagonality"):
            if head.site in tables[name]:
                found[f"{name}/{end}"] = float(tables[name][head.site][head.layer, head.head])
        if head.site != "cross":
            index = model.kept[head.site][head.layer].index(head.head)
            found[f"positional/{end}"] = positions.best(head.site, head.layer)[index][1]
    # A head that no token picked has no statistics.
    return {tag: value for tag, value in found.items() if not math.isnan(value)}
