"""The one door from a checkpoint to text."""

import logging
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headlab.data.text import is_blank
from headlab.decoding.hypothesis import MAX_EXTRA, MAX_RATIO, Hypothesis
from headlab.decoding.search import BATCH_TOKENS, Memory, Progress, search
from headlab.errors import HeadlabError

if TYPE_CHECKING:
    import torch

    from headlab.checkpoint import Loaded
    from headlab.data.tokenizer import Tokenizers
    from headlab.decoding.speculative import Speculation
    from headlab.transformer import Gates, Transformer

logger = logging.getLogger("headlab")

# A model without a position table takes any length, but the memory for its attention grows with
# the square of it.
LONGEST_SOURCE = 1024

# The keys of the ``decoding`` configuration, as the constructor takes them.
OPTIONS = ("beam", "length_penalty", "max_ratio", "max_extra", "batch_tokens")

BLANK = Hypothesis([], 0.0, True)


class Translator:
    """Text to text: N sentences in, N translations out, in order.

    ``Translator.from_checkpoint("outputs/latest/best.ckpt").translate(["The timer is finished."])``

    A sentence's translation depends on nothing but the sentence. A blank sentence (nothing in it
    can be seen) gives an empty one. A sentence with more pieces than the model has positions for
    is cut, with a warning that names it.

    Args:
        model: the Transformer.
        tokenizers: its source and target tokenizers.
        beam, length_penalty, max_ratio, max_extra, batch_tokens, batch_rows: see ``search``.
    """

    def __init__(
        self,
        model: "Transformer",
        tokenizers: "Tokenizers",
        *,
        beam: int = 1,
        length_penalty: float = 1.0,
        max_ratio: float = MAX_RATIO,
        max_extra: float = MAX_EXTRA,
        batch_tokens: int = BATCH_TOKENS,
        batch_rows: int | None = None,
    ) -> None:
        self.model = model
        self.tokenizers = tokenizers
        self.options: dict[str, Any] = {
            "beam": beam,
            "length_penalty": length_penalty,
            "max_ratio": max_ratio,
            "max_extra": max_extra,
            "batch_tokens": batch_tokens,
            "batch_rows": batch_rows,
        }
        longest = LONGEST_SOURCE if model.max_length is None else model.max_length
        self.max_source_pieces = max(1, longest - 1)  # the encoder reads EOS as well

    @classmethod
    def from_checkpoint(
        cls, path: str | Path, device: "str | torch.device" = "cpu", **options: Any
    ) -> "Translator":
        """A translator from a checkpoint file alone.

        Args:
            path: the checkpoint.
            device: where to compute.
            **options: ``beam`` and the like, in place of those of the checkpoint's configuration;
                None leaves the configuration's.

        Raises:
            HeadlabError: the file is missing, truncated or not a checkpoint of this program.
        """
        from headlab.checkpoint import read_checkpoint

        return cls.from_loaded(read_checkpoint(path, device), **options)

    @classmethod
    def from_loaded(cls, loaded: "Loaded", **options: Any) -> "Translator":
        """As ``from_checkpoint``, from one that has been read already."""
        configured = loaded.config.get("decoding") or {}
        chosen = {key: configured[key] for key in OPTIONS if configured.get(key) is not None}
        chosen |= {key: value for key, value in options.items() if value is not None}
        return cls(loaded.model, loaded.tokenizers, **chosen)

    def translate(
        self,
        sentences: Sequence[str],
        *,
        progress: Progress | None = None,
        name: Callable[[int], str] = "sentence at index {}".format,
    ) -> list[str]:
        """Translate.

        Args:
            sentences: any texts, one sentence each; line breaks inside are part of the sentence.
            progress: called after each batch with the number of sentences done so far.
            name: how warnings call the sentence at an index.

        Returns:
            As many translations, in the same order. A model may emit any character, also a line
            break: ``one_line`` is for output with a sentence a line.

        Raises:
            HeadlabError: ``sentences`` is one string, or holds something that is not one.
        """
        return self.texts(self.hypotheses(sentences, progress=progress, name=name))

    def hypotheses(
        self,
        sentences: Sequence[str],
        *,
        progress: Progress | None = None,
        name: Callable[[int], str] = "sentence at index {}".format,
        gates: "Gates | None" = None,
        memory: Memory | None = None,
    ) -> list[Hypothesis]:
        """As ``translate``, in pieces, with score and whether the length limit cut it.

        ``gates`` and ``memory`` are those of ``search``: factors for the heads, and the encoder's
        output for further calls with the same sentences.
        """
        sources = self._sources(sentences, name)
        blanks = len(sentences) - len(sources)
        found = search(
            self.model,
            list(sources.values()),
            progress=progress and (lambda done: progress(blanks + done)),
            gates=gates,
            memory=memory,
            **self.options,
        )
        return _in_place(sources, found, len(sentences))

    def speculate(
        self,
        sentences: Sequence[str],
        draft: "Transformer",
        draft_tokens: int,
        *,
        progress: Progress | None = None,
        name: Callable[[int], str] = "sentence at index {}".format,
    ) -> "tuple[list[Hypothesis], Speculation]":
        """Greedy ``hypotheses`` with the help of a draft model, see ``speculative_search``.

        Args:
            draft: a model with the same tokenizers; sentences that it has no positions for are
                translated without it.
            draft_tokens: tokens that it proposes at a time.
            sentences, progress, name: as for ``translate``.
        """
        from headlab.decoding.speculative import speculative_search

        sources = self._sources(sentences, name)
        limits = {key: self.options[key] for key in ("length_penalty", "max_ratio", "max_extra")}
        found, report = speculative_search(
            self.model,
            draft,
            list(sources.values()),
            draft_tokens=draft_tokens,
            progress=progress,
            **limits,
        )
        return _in_place(sources, found, len(sentences)), report

    def _sources(
        self, sentences: Sequence[str], name: Callable[[int], str]
    ) -> dict[int, list[int]]:
        """The pieces of each sentence that is not blank, by its index; cut with a warning."""
        if isinstance(sentences, str):
            raise HeadlabError("translate takes a list of sentences, not one string: use [text]")
        for i, sentence in enumerate(sentences):
            if not isinstance(sentence, str):
                raise HeadlabError(f"{name(i)} is {sentence!r}, not a text")
        visible = [i for i, sentence in enumerate(sentences) if not is_blank(sentence)]
        encoded = self.tokenizers.source.encode_all([_whole(sentences[i]) for i in visible])
        sources: dict[int, list[int]] = {}
        for i, pieces in zip(visible, encoded, strict=True):
            if len(pieces) > self.max_source_pieces:
                logger.warning(
                    "%s has %d pieces and was cut to its first %d, the most that this model takes",
                    name(i),
                    len(pieces),
                    self.max_source_pieces,
                )
            sources[i] = pieces[: self.max_source_pieces]
        return sources

    def texts(self, hypotheses: Sequence[Hypothesis]) -> list[str]:
        """Hypotheses to text."""
        return self.tokenizers.target.decode_all([hypothesis.ids for hypothesis in hypotheses])


def _in_place(
    sources: Mapping[int, Sequence[int]], found: Sequence[Hypothesis], total: int
) -> list[Hypothesis]:
    """One hypothesis a sentence, blank ones included."""
    results = [BLANK] * total
    for i, hypothesis in zip(sources, found, strict=True):
        results[i] = hypothesis
    return results


def _whole(text: str) -> str:
    """Join halves of surrogate pairs and replace lone ones, which UTF-8 cannot carry, by U+FFFD."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def one_line(text: str) -> str:
    """``text`` with line feeds and carriage returns replaced by spaces.

    They are the only two characters that could shift a file with one sentence a line; a model can
    spell them through its byte pieces.
    """
    return text.replace("\r\n", " ").replace("\n", " ").replace("\r", " ")
