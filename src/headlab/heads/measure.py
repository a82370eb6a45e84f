"""What a model is worth with some of its heads changed: translations, scores, likelihood."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from headlab.checkpoint import Loaded
from headlab.data.text import is_blank
from headlab.decoding import Translator, one_line
from headlab.decoding.search import Memory
from headlab.errors import HeadlabError
from headlab.evaluation import Scores, corpus_scores, scoring_options, sentence_losses
from headlab.transformer import Gates, Transformer


@dataclass(frozen=True)
class Measurement:
    """One model, or one setting of its gates, on one set of sentences.

    Attributes:
        hypotheses: greedy or beam translations, a line each; None when not asked for.
        losses: negative log-likelihood of each reference, in nats, summed over its tokens (EOS
            counted); 0 for a pair that is left out (blank, or too long for the model). Empty when
            not asked for.
        tokens: how many tokens each of the sums is over.
        scores: BLEU and chrF of the hypotheses; None without references or hypotheses.
        decoding_seconds, loss_seconds: how long each took.
    """

    hypotheses: list[str] | None
    losses: list[float]
    tokens: list[int]
    scores: Scores | None
    decoding_seconds: float
    loss_seconds: float

    @property
    def nll(self) -> float | None:
        """Mean negative log-likelihood of a target token, in nats."""
        return sum(self.losses) / sum(self.tokens) if sum(self.tokens) else None


class Measurer:
    """Measures a model under many gates, on sentences that are prepared once.

    What the encoder says is computed once for all gates that leave the encoder alone.

    Args:
        loaded: the checkpoint.
        sources: sentences.
        references: their translations; None: only translations can be had, no likelihood.
        translate: whether to translate.
        likelihood: whether to measure the likelihood of the references.
        lowercase: whether scores ignore case; None: as the checkpoint's configuration says.
        **decoding: in place of the options of the checkpoint's configuration, see ``Translator``.

    Raises:
        HeadlabError: likelihood is asked for without references, or there is nothing to measure.
    """

    def __init__(
        self,
        loaded: Loaded,
        sources: Sequence[str],
        references: Sequence[str] | None,
        *,
        translate: bool = True,
        likelihood: bool = True,
        lowercase: bool | None = None,
        **decoding: Any,
    ) -> None:
        if references is None and likelihood:
            raise HeadlabError("the likelihood of references needs references; give some")
        if not sources:
            raise HeadlabError("there is no sentence to measure")
        self.loaded, self.sources, self.references = loaded, list(sources), references
        self.translate, self.likelihood = translate, likelihood
        self.scoring = scoring_options(loaded.config, lowercase)
        self.decoding = decoding
        self.translator = Translator.from_loaded(loaded, **decoding)
        self._pairs: list[tuple[list[int], list[int]]] = []
        self._seen: list[int] = []
        if references is not None and likelihood:
            self._seen = [i for i, source in enumerate(sources) if not is_blank(source)]
            if not self._seen:
                raise HeadlabError("every sentence is blank; there is nothing to measure")
            self._pairs = loaded.tokenizers.encode_pairs(
                [sources[i] for i in self._seen], [references[i] for i in self._seen]
            )
        self._for_decoding: Memory = {}
        self._for_losses: Memory = {}

    def measure(
        self,
        gates: Gates | None = None,
        model: Transformer | None = None,
        progress: Callable[[int], None] | None = None,
    ) -> Measurement:
        """Translate and score, and measure the likelihood, as far as asked for.

        Args:
            gates: see ``Transformer``.
            model: in place of the checkpoint's, with the same tokenizers.
            progress: called with the number of sentences translated so far.
        """
        shared = model is None and "encoder" not in (gates or {})
        hypotheses, scores = None, None
        start = time.perf_counter()
        if self.translate:
            translator = self.translator
            if model is not None:
                translator = Translator(model, self.loaded.tokenizers, **translator.options)
            memory = self._for_decoding if shared else None
            found = translator.hypotheses(
                self.sources, progress=progress, gates=gates, memory=memory
            )
            hypotheses = [one_line(text) for text in translator.texts(found)]
        middle = time.perf_counter()
        if hypotheses is not None and self.references is not None:
            scores = corpus_scores(hypotheses, self.references, *self.scoring)
        losses, tokens = self._losses(gates, model, self._for_losses if shared else None)
        end = time.perf_counter()
        return Measurement(hypotheses, losses, tokens, scores, middle - start, end - middle)

    def _losses(
        self, gates: Gates | None, model: Transformer | None, memory: Memory | None
    ) -> tuple[list[float], list[int]]:
        if not self.likelihood:
            return [], []
        found = sentence_losses(
            model or self.loaded.model,
            self._pairs,
            self.translator.options["batch_tokens"],
            gates=gates,
            memory=memory,
        )
        losses, tokens = [0.0] * len(self.sources), [0] * len(self.sources)
        for i, one in zip(self._seen, found, strict=True):
            losses[i], tokens[i] = one or (0.0, 0)
        return losses, tokens
