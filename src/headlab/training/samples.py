"""Sample translations as a table in TensorBoard, after each validation."""

import re
from collections.abc import Sequence
from typing import Any

import lightning.pytorch as pl

from headlab.errors import HeadlabError
from headlab.training.observing import never_ending_training, tensorboard, undisturbed


class SampleTranslations(pl.Callback):
    """Writes source, reference and translation of the first few validation sentences.

    TensorBoard's text tab shows them under `samples`, letter for letter. Translations that the
    module has made of the whole validation split (`validation_translations`) are taken; where
    there are none, the sentences are translated here, greedily. No fault ends the training.

    Args:
        sentences: how many; 0: none.

    Raises:
        HeadlabError: a negative number of sentences.
    """

    def __init__(self, sentences: int = 8) -> None:
        if sentences < 0:
            raise HeadlabError(f"callbacks.samples.sentences={sentences} must be at least 0")
        self.sentences = sentences
        self._said: set[str] = set()

    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Write the table, except in Lightning's check before the first step."""
        writer = tensorboard(trainer)
        if trainer.sanity_checking or writer is None or not self.sentences:
            return
        with never_ending_training("sample translations", self._said):
            data: Any = trainer.datamodule  # type: ignore[attr-defined]
            examples = data.validation_examples(self.sentences)
            translations = self._translations(pl_module, [source for source, _ in examples])
            rows = [(*pair, text) for pair, text in zip(examples, translations, strict=True)]
            writer.add_text("samples", samples_table(rows), trainer.global_step)

    def _translations(self, pl_module: Any, sources: Sequence[str]) -> list[str]:
        done: list[str] | None = getattr(pl_module, "validation_translations", None)
        if done is not None and len(done) >= len(sources):
            return done[: len(sources)]
        from headlab.decoding import Translator

        with undisturbed(pl_module):
            translator = Translator(pl_module.model, pl_module.tokenizers)
            gates = pl_module.evaluation_gates()
            return translator.texts(translator.hypotheses(sources, gates=gates))


def samples_table(rows: Sequence[tuple[str, str, str]]) -> str:
    """A Markdown table of (source, reference, translation), each shown letter for letter."""
    lines = ["| source | reference | translation |", "| --- | --- | --- |"]
    lines += ["| " + " | ".join(map(literal_markdown, row)) + " |" for row in rows]
    return "\n".join(lines)


def literal_markdown(text: str) -> str:
    r"""Markdown that shows the text itself, in one line.

    Every ASCII sign (`|`, `<`, `*`, `_`, `$`, a backslash ...) becomes a character reference,
    which neither Markdown nor HTML reads as more than the sign. Line breaks and other control
    characters are written out as `\n`; of several spaces none is lost.
    """
    text = "".join(char if char.isprintable() else _escaped(char) for char in text)
    text = re.sub(r"[!-/:-@\[-`{-~]", lambda sign: f"&#{ord(sign[0])};", text)
    return re.sub(r"^ | (?= )| $", "&#160;", text)


def _escaped(char: str) -> str:
    if char.isspace() and char not in "\n\r\t\v\f\x1c\x1d\x1e\x1f\x85\u2028\u2029":
        return char  # the wide and the unbreakable spaces, which Python counts as not printable
    return char.encode("unicode_escape").decode()
