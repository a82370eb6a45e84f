"""How much faster one model translates than another, on a machine that has other work too."""

import statistics
import time
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from headlab.data.tokenizer import Tokenizers
from headlab.decoding import Translator
from headlab.transformer import Transformer

SENTENCES = 1200  # translated by each of the two
TURNS = 24


class Speeds(NamedTuple):
    """Speeds of two models, in target tokens a second, EOS counted.

    Tokens and not sentences, because a model that is pruned too far may babble on to the length
    limit: it writes no slower for that.
    """

    before: float
    after: float
    length: float  # target tokens a sentence, on average, of the second model

    @property
    def ratio(self) -> float:
        """How many times faster the second one is."""
        return self.after / self.before

    @property
    def sentences(self) -> float:
        """Sentences that the second one translates in a second."""
        return self.after / self.length


def compare_speeds(
    before: Transformer,
    after: Transformer,
    tokenizers: Tokenizers,
    sources: Sequence[str],
    options: Mapping[str, Any],
) -> Speeds:
    """Two models translate the same sentences in short turns, one right after the other.

    What else a machine does comes and goes, and so meets both alike: the ratio is the median of
    the turns' ratios. The first speed is the median of its turns, the second one is as many times
    that as the ratio says.

    Args:
        before, after: the models.
        tokenizers: of both.
        sources: the first ``SENTENCES`` of them are translated, of all lengths in each turn; none
            is blank.
        options: of ``Translator``.
    """
    translators = [Translator(model, tokenizers, **options) for model in (before, after)]
    for translator in translators:  # what is slow only the first time
        translator.hypotheses(sources[:4])
    sources = sources[:SENTENCES]
    turns = max(1, min(TURNS, len(sources)))
    speeds: list[tuple[float, float]] = []
    tokens = 0
    for turn in range(turns):
        measured = [0.0, 0.0]
        for which in (0, 1) if turn % 2 == 0 else (1, 0):
            start = time.perf_counter()
            found = translators[which].hypotheses(sources[turn::turns])
            seconds = time.perf_counter() - start
            written = max(1, sum(len(one.ids) + one.finished for one in found))
            measured[which] = written / seconds
            tokens += written if which else 0
        speeds.append((measured[0], measured[1]))
    speed = statistics.median(first for first, _ in speeds)
    ratio = statistics.median(second / first for first, second in speeds)
    return Speeds(speed, speed * ratio, tokens / len(sources))
