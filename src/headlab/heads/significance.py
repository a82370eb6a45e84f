"""Whether a change of BLEU or of likelihood is more than chance, compared sentence by sentence."""

import logging
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

_ENTRIES = 4_000_000  # signs drawn at once; bounds the memory


def bleu_p_value(
    baseline: Sequence[str],
    other: Sequence[str],
    references: Sequence[str],
    *,
    lowercase: bool,
    tokenize: str,
    resamples: int,
    seed: int,
) -> float:
    """sacreBLEU's paired bootstrap (Koehn 2004) of the difference in BLEU, two-sided.

    Outputs of the same BLEU get 1: sacreBLEU counts resamples whose difference is larger than the
    measured one, finds none among equal outputs, and would call them significantly different.

    Args:
        baseline, other: translations of the same sentences by the two models.
        references: one a sentence.
        lowercase, tokenize: as for ``headlab.evaluation.corpus_scores``.
        resamples: how many times the sentences are drawn anew.
        seed: at least 1; sacreBLEU takes 0 for no seed.
    """
    from sacrebleu.metrics import BLEU
    from sacrebleu.significance import PairedTest

    metric = BLEU(lowercase=lowercase, tokenize=tokenize, force=True)
    systems: Any = [("baseline", list(baseline)), ("other", list(other))]
    with _quietly(seed):
        test = PairedTest(systems, {"BLEU": metric}, [list(references)], "bs", resamples)
        results: Any = test()[1]["BLEU"]
    first, second = results
    return 1.0 if first.score == second.score else float(second.p_value)


@contextmanager
def _quietly(seed: int) -> Iterator[None]:
    """sacreBLEU takes its seed from the environment alone, and reports every step."""
    logger = logging.getLogger("sacrebleu")
    level, before = logger.level, os.environ.get("SACREBLEU_SEED")
    os.environ["SACREBLEU_SEED"] = str(seed)
    logger.setLevel(logging.WARNING)
    try:
        yield
    finally:
        logger.setLevel(level)
        os.environ.pop("SACREBLEU_SEED")
        if before is not None:
            os.environ["SACREBLEU_SEED"] = before


def likelihood_p_value(
    baseline: Sequence[float], other: Sequence[float], *, resamples: int, seed: int
) -> float:
    """Sign-flip permutation test of the mean negative log-likelihood a token, two-sided.

    If the two models were alike, either loss of a sentence might as well be the other's. Each
    resample therefore swaps the two losses of half of the sentences, at random. The statistic is
    the difference of the means a token; a sentence weighs as much as it has tokens, since whole
    sums are swapped, and the number of tokens is the same for both models, so that the difference
    of the sums says as much. The p-value is the share of resamples, the measured one among them,
    whose difference is at least as large (Good 2005; Phipson and Smyth 2010, for the one added).

    Args:
        baseline, other: each sentence's loss summed over its tokens, as in ``Measurement.losses``.
        resamples: how many.
        seed: of the swaps.

    Returns:
        A p-value; 1 where all losses are equal.
    """
    change = np.asarray(other, dtype=np.float64) - np.asarray(baseline, dtype=np.float64)
    # A sum in another order is as large but for rounding.
    measured = abs(change.sum()) - 1e-9 * np.abs(change).sum()
    generator = np.random.default_rng(seed)
    rows = max(1, _ENTRIES // max(1, change.size))
    reached = 0
    for start in range(0, resamples, rows):
        shape = min(rows, resamples - start), change.size
        signs = generator.integers(0, 2, shape, dtype=np.int8) * 2 - 1
        reached += int((np.abs(signs @ change) >= measured).sum())
    return (reached + 1) / (resamples + 1)
