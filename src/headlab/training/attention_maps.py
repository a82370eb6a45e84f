"""Attention maps of every head in TensorBoard, while the model trains."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import lightning.pytorch as pl
from torch import Tensor

from headlab.data.batches import Batch
from headlab.data.tokenizer import PAD
from headlab.errors import HeadlabError
from headlab.training.observing import never_ending_training, tensorboard, undisturbed


class AttentionMaps(pl.Callback):
    """Draws what every head looks at in the first few validation sentences.

    Images `attention/<site>/layer_<i>/sentence_<k>`, one map a head in each, for the sites
    encoder, decoder (masked self-attention) and cross. Everything is counted from 0; heads of a
    pruned model keep their numbers, and a layer without heads has no image.

    The decoder reads the reference translation. Drawing changes nothing in the training, neither
    weights nor random numbers, and no fault in it ends the training.

    Args:
        every_n_steps: optimizer steps between drawings, of which the last is at the end of the
            training; 0: never.
        sentences: how many sentences are drawn.
        max_tokens: pieces of a sentence that are drawn; a longer one is cropped in the picture
            only. With `dpi` it bounds the size of an event: at the defaults an image takes 50 to
            75 kB with 8 heads, 70 to 110 kB with 16.
        dpi: dots per inch of the pictures.

    Raises:
        HeadlabError: an argument is out of its range.
    """

    def __init__(
        self, every_n_steps: int = 1000, sentences: int = 2, max_tokens: int = 40, dpi: int = 80
    ) -> None:
        given = {
            "every_n_steps": (every_n_steps, 0, None),
            "sentences": (sentences, 1, 100),
            "max_tokens": (max_tokens, 1, 200),
            "dpi": (dpi, 20, 300),
        }
        for key, (value, least, most) in given.items():
            if value < least or (most is not None and value > most):
                span = f"at least {least}" if most is None else f"from {least} to {most}"
                raise HeadlabError(f"callbacks.attention_maps.{key}={value} must be {span}")
        self.every_n_steps, self.sentences = every_n_steps, sentences
        self.max_tokens, self.dpi = max_tokens, dpi
        self._last_step = 0
        self._batch: Batch | None = None
        self._said: set[str] = set()

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """A resumed run has drawn the step of its checkpoint already."""
        self._last_step = trainer.global_step
        self._batch = None

    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, *args: Any
    ) -> None:
        """Draw every so many optimizer steps."""
        if self.every_n_steps and trainer.global_step % self.every_n_steps == 0:
            self._observe(trainer, pl_module)

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Draw the finished model."""
        if self.every_n_steps:
            self._observe(trainer, pl_module)

    def _observe(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        # With accumulated batches several of them end at the same optimizer step.
        step, writer = trainer.global_step, tensorboard(trainer)
        if step == self._last_step or writer is None:
            return
        self._last_step = step
        with never_ending_training("attention weights", self._said):
            batch, weights = self._weights(trainer, pl_module)
            with never_ending_training("attention maps", self._said):
                self._draw(writer, step, batch, weights, pl_module)

    def _weights(
        self, trainer: pl.Trainer, pl_module: Any
    ) -> tuple[Batch, dict[str, list[Tensor]]]:
        model: Any = pl_module.model
        with undisturbed(pl_module):
            if self._batch is None:
                data: Any = trainer.datamodule  # type: ignore[attr-defined]
                examples = data.validation_examples(self.sentences)
                if not examples:
                    raise HeadlabError("the validation split has no sentences")
                self._batch = data.batch_from_texts(examples)
            batch = self._batch.to(pl_module.device)
            gates = pl_module.evaluation_gates()
            weights = model.attention_weights(batch.source, batch.target_input, gates)
        on_cpu = {site: [maps.float().cpu() for maps in layers] for site, layers in weights.items()}
        return self._batch, on_cpu

    def _draw(
        self,
        writer: Any,
        step: int,
        batch: Batch,
        weights: Mapping[str, Sequence[Tensor]],
        pl_module: Any,
    ) -> None:
        # Here, so that even a matplotlib that cannot be imported leaves the training alone.
        from headlab.plots import attention_figure, figure_to_image, layer_maps

        both, kept = pl_module.tokenizers, pl_module.model.kept
        for row in range(len(batch.source)):
            sources, targets = batch.source[row], batch.target_input[row]
            source_pieces = both.source.pieces(sources[sources != PAD].tolist())
            target_pieces = both.target.pieces(targets[targets != PAD].tolist())
            for one in layer_maps(weights, row, source_pieces, target_pieces, kept):
                longest = max(len(one.query_pieces), len(one.key_pieces))
                title = f"{one.title}, step {step:,}"
                if longest > self.max_tokens:
                    title += f" (the first {self.max_tokens} of {longest} pieces)"
                    one = replace(
                        one,
                        query_pieces=one.query_pieces[: self.max_tokens],
                        key_pieces=one.key_pieces[: self.max_tokens],
                    )
                pieces = one.query_pieces, one.key_pieces
                figure = attention_figure(
                    one.weights, *pieces, title, heads=one.heads, dpi=self.dpi
                )
                tag = f"attention/{one.site}/layer_{one.layer}/sentence_{row}"
                writer.add_image(tag, figure_to_image(figure), step, dataformats="HWC")
