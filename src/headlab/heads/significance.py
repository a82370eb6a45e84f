"""Whether a change of BLEU or of likelihood is more than chance, compared sentence by sentence.

Both tests are permutation tests (approximate randomisation, Noreen 1989; Riezler and Maxwell
2005). If two models were alike, either one's output for a sentence might as well be the other's;
so outputs are swapped at random, sentence by sentence, and the p-value is the share of swappings
after which the models differ at least as much as they were measured to, the measured one among
them (Phipson and Smyth 2010). It lies below 0.01 for at most one of a hundred pairs of models that
are alike, whatever the number of sentences; Koehn's (2004) bootstrap has no such promise, and for
a few dozen sentences it does not hold. Two-sided.
"""

from collections.abc import Callable, Iterator, Sequence

import numpy as np

_ENTRIES = 4_000_000  # swaps held at once; bounds the memory
_ORDER = 4  # BLEU counts n-grams up to this long

# From swaps, (swappings, sentences), to how far the models then are apart, (swappings,).
Difference = Callable[[np.ndarray], np.ndarray]


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
    """Permutation test of the difference in BLEU.

    Args:
        baseline, other: translations of the same sentences by the two models.
        references: one a sentence.
        lowercase, tokenize: as for ``headlab.evaluation.corpus_scores``.
        resamples: how many swappings.
        seed: of the swappings.

    Returns:
        A p-value; 1 where both have the same BLEU.
    """
    first, second = (
        _statistics(outputs, references, lowercase, tokenize) for outputs in (baseline, other)
    )
    change = second - first
    there = change.any(axis=1)
    whole, change = first.sum(axis=0) + second.sum(axis=0), change[there]
    start = first.sum(axis=0)

    def difference(swaps: np.ndarray) -> np.ndarray:
        sums = start + swaps @ change
        return np.abs(_bleu(sums) - _bleu(whole - sums))

    return _p_value(difference, len(change), resamples, seed, 1e-9)


def likelihood_p_value(
    baseline: Sequence[float], other: Sequence[float], *, resamples: int, seed: int
) -> float:
    """Permutation test of the difference in mean negative log-likelihood a token.

    A sentence weighs as much as it has tokens, since whole sums are swapped; the number of tokens
    is the same for both models, so that the difference of the sums says as much as that of the
    means.

    Args:
        baseline, other: each sentence's loss summed over its tokens, as in ``Measurement.losses``.
        resamples: how many swappings.
        seed: of the swappings.

    Returns:
        A p-value; 1 where all losses are equal.
    """
    change = np.asarray(other, dtype=np.float64) - np.asarray(baseline, dtype=np.float64)
    change = change[change != 0]

    def difference(swaps: np.ndarray) -> np.ndarray:
        return np.abs(change.sum() - 2 * (swaps @ change))

    return _p_value(difference, len(change), resamples, seed, 1e-9 * float(np.abs(change).sum()))


def _p_value(
    difference: Difference, sentences: int, resamples: int, seed: int, rounding: float
) -> float:
    """The share of swappings after which the difference is as large as with none.

    Args:
        difference: of the two models.
        sentences: for which the models differ; no swap of another one changes anything.
        resamples: how many swappings are drawn. Where there are no more than that in all, each is
            looked at once instead, and the p-value is exact.
        seed: of the swappings.
        rounding: a sum in another order is as large but for so much.
    """
    measured = float(difference(np.zeros((1, sentences)))[0]) - rounding
    # Swapping all sentences but some says the same as swapping those: the first one stays.
    exact = sentences <= 1 or 2 ** (sentences - 1) <= resamples
    swappings = _all(sentences) if exact else _drawn(sentences, resamples, seed)
    reached, looked_at = (0, 0) if exact else (1, 1)
    for swaps in swappings:
        reached += int((difference(swaps) >= measured).sum())
        looked_at += len(swaps)
    return reached / looked_at


def _all(sentences: int) -> Iterator[np.ndarray]:
    """Every way to swap some of the sentences but the first, (swappings, sentences)."""
    numbers = np.arange(2 ** max(0, sentences - 1))
    rows = max(1, _ENTRIES // max(1, sentences))
    for start in range(0, len(numbers), rows):
        part = numbers[start : start + rows, None]
        yield (2 * part >> np.arange(sentences) & 1).astype(np.float64)


def _drawn(sentences: int, resamples: int, seed: int) -> Iterator[np.ndarray]:
    """Each sentence swapped or not with even odds, (swappings, sentences)."""
    generator = np.random.default_rng(seed)
    rows = max(1, _ENTRIES // sentences)
    for start in range(0, resamples, rows):
        shape = min(rows, resamples - start), sentences
        yield generator.integers(2, size=shape, dtype=bool).astype(np.float64)


def _statistics(
    outputs: Sequence[str], references: Sequence[str], lowercase: bool, tokenize: str
) -> np.ndarray:
    """What BLEU adds up over sentences, (sentences, 2 + 2 x 4).

    Lengths of output and reference, right n-grams of 1 to 4 words, and all n-grams.
    """
    from sacrebleu.metrics import BLEU

    metric = BLEU(lowercase=lowercase, tokenize=tokenize, force=True)
    rows = []
    for output, reference in zip(outputs, references, strict=True):
        one = metric.corpus_score([output], [[reference]])
        rows.append((one.sys_len, one.ref_len, *one.counts, *one.totals))
    return np.array(rows, dtype=np.float64).reshape(-1, 2 + 2 * _ORDER)


def _bleu(sums: np.ndarray) -> np.ndarray:
    """BLEU of summed statistics, with sacreBLEU's exponential smoothing; (rows, 10) to (rows,)."""
    length, reference = sums[:, 0], sums[:, 1]
    right, total = sums[:, 2 : 2 + _ORDER], sums[:, 2 + _ORDER :]
    halvings = np.cumsum(right == 0, axis=1)
    there = (total > 0).all(axis=1) & (right > 0).any(axis=1)  # else it is 0
    with np.errstate(divide="ignore", invalid="ignore"):
        precisions = np.where(right == 0, 0.5**halvings, right) / total
        brevity = np.minimum(0.0, 1 - reference / length)
        return np.where(there, 100 * np.exp(brevity + np.log(precisions).mean(axis=1)), 0.0)
