import itertools
import logging
import os
import random

import numpy as np
import pytest

from headlab.heads import significance
from headlab.heads.significance import bleu_p_value, likelihood_p_value

WORDS = [f"word{i}" for i in range(40)]
OPTIONS = {"lowercase": False, "tokenize": "13a", "resamples": 200, "seed": 1}


def noisy(texts: list[str], share: float, seed: int) -> list[str]:
    """A share of the words replaced by others."""
    draw = random.Random(seed)
    return [
        " ".join(draw.choice(WORDS) if draw.random() < share else word for word in text.split())
        for text in texts
    ]


@pytest.fixture(scope="module")
def references() -> list[str]:
    draw = random.Random(0)
    return [" ".join(draw.choices(WORDS, k=10)) for _ in range(200)]


def test_equal_outputs_never_differ(references: list[str]) -> None:
    output = noisy(references, 0.3, 1)
    assert bleu_p_value(output, list(output), references, **OPTIONS) == 1.0
    assert bleu_p_value(references, references, references, **OPTIONS) == 1.0
    losses = np.random.default_rng(0).random(50).tolist()
    assert likelihood_p_value(losses, list(losses), resamples=200, seed=1) == 1.0


def test_planted_differences_are_found(references: list[str]) -> None:
    good, bad = noisy(references, 0.1, 1), noisy(references, 0.4, 2)
    assert bleu_p_value(good, bad, references, **OPTIONS) == pytest.approx(1 / 201)
    assert bleu_p_value(bad, good, references, **OPTIONS) == pytest.approx(1 / 201)
    losses = np.random.default_rng(0).random(50)
    for change in (0.05, -0.05):
        assert likelihood_p_value(losses, losses + change, resamples=200, seed=1) == 1 / 201


def test_two_outputs_of_the_same_quality_do_not_differ(references: list[str]) -> None:
    for i in range(2, 5):
        one, other = noisy(references, 0.3, i), noisy(references, 0.3, i + 50)
        assert bleu_p_value(one, other, references, **OPTIONS) > 0.01
    draw = np.random.default_rng(0)
    losses = draw.random(200)
    assert likelihood_p_value(losses, draw.permutation(losses), resamples=500, seed=1) > 0.05


def test_the_p_value_of_bleu_is_sacrebleus(references: list[str], monkeypatch) -> None:
    """Its approximate randomisation draws the same swaps from the same seed."""
    from sacrebleu.metrics import BLEU
    from sacrebleu.significance import PairedTest

    one, other = noisy(references, 0.30, 1), noisy(references, 0.31, 4)
    # Ours draws no swap for sentences that come out alike, so leave out those.
    own = [
        significance._statistics(texts, references, True, "13a").tolist() for texts in (one, other)
    ]
    kept = [i for i, (a, b) in enumerate(zip(*own, strict=True)) if a != b]
    sides = [[texts[i] for i in kept] for texts in (one, other, references)]
    monkeypatch.setenv("SACREBLEU_SEED", "7")
    systems = [("one", sides[0]), ("other", sides[1])]
    test = PairedTest(systems, {"BLEU": BLEU(lowercase=True)}, [sides[2]], "ar", 300)
    expected = test()[1]["BLEU"][1].p_value
    monkeypatch.delenv("SACREBLEU_SEED")
    found = bleu_p_value(*sides, lowercase=True, tokenize="13a", resamples=300, seed=7)
    assert found == expected
    assert 0.01 < expected < 0.99


def test_bleu_of_sums_is_sacrebleus() -> None:
    from sacrebleu.metrics import BLEU

    draw = np.random.default_rng(0)
    rows = []
    for scale in (1, 2, 3, 10, 1000) * 40:  # few words: n-grams that are never right, or missing
        total = np.sort(draw.integers(0, 2 * scale, 4))[::-1]
        right = np.minimum(np.sort(draw.integers(0, 2 * scale, 4))[::-1], total)
        rows.append([total[0], draw.integers(1, 2 * scale + 1), *right, *total])
    table = np.array(rows, dtype=np.float64)
    found = significance._bleu(table)
    expected = [
        BLEU.compute_bleu(
            list(row[2:6]), list(row[6:]), int(row[0]), int(row[1]), smooth_method="exp"
        ).score
        for row in table
    ]
    np.testing.assert_allclose(found, expected, rtol=1e-12)
    assert 0 < sum(value == 0 for value in expected) < len(expected)


def test_nothing_of_the_process_is_touched(references, monkeypatch, caplog) -> None:
    """Other threads may be at work: no environment variable, no logger's level."""

    def never(*_: object) -> None:
        raise AssertionError("the environment was changed")

    with monkeypatch.context() as patch:
        patch.setattr(type(os.environ), "__setitem__", never)
        patch.setattr(logging.Logger, "setLevel", never)
        bleu_p_value(references, noisy(references, 0.1, 3), references, **OPTIONS)
    assert not caplog.records


def exact_bleu(one: list[str], other: list[str], references: list[str]) -> float:
    """The share of all ways to swap sentences, with sacreBLEU's own scores."""
    from sacrebleu.metrics import BLEU

    score = BLEU(force=True).corpus_score
    found = []
    for swaps in itertools.product((False, True), repeat=len(one)):
        sides = [
            [b if swap != turned else a for a, b, swap in zip(one, other, swaps, strict=True)]
            for turned in (False, True)
        ]
        first, second = (score(side, [references]).score for side in sides)
        found.append(abs(first - second))
    return float((np.array(found) >= found[0] - 1e-9).mean())


@pytest.mark.parametrize("seed", range(3))
def test_few_sentences_are_tested_exactly(references: list[str], seed: int) -> None:
    some = references[:7]
    one, other = noisy(some, 0.2, seed), noisy(some, 0.5, seed + 9)
    expected = exact_bleu(one, other, some)
    assert bleu_p_value(one, other, some, **OPTIONS) == pytest.approx(expected, abs=1e-12)
    change = 10 * np.random.default_rng(seed).normal(size=7)
    p = likelihood_p_value(np.zeros(7), change, resamples=64, seed=1)
    assert p == pytest.approx(exact(change), abs=1e-12)


def test_what_so_few_sentences_can_show(references: list[str]) -> None:
    """Seven sentences that are all better give 2 of 128 swappings: no star at 0.01."""
    for n, p in ((1, 1.0), (2, 0.5), (7, 1 / 64), (8, 1 / 128)):
        some = references[:n]
        worse = [f"{text} x y z" for text in some]
        assert bleu_p_value(some, worse, some, **OPTIONS) == p
        assert likelihood_p_value(np.zeros(n), np.arange(n) + 1.0, resamples=200, seed=1) == p


def alike(n: int, draw: random.Random) -> tuple[list[str], list[str], list[str]]:
    """Two models of the same quality, which agree on half of n sentences, and the references."""
    texts = [" ".join(draw.choices(WORDS, k=draw.randint(5, 20))) for _ in range(n)]
    one, other = (noisy(texts, 0.2, draw.randrange(2**30)) for _ in range(2))
    return one, [a if draw.random() < 0.5 else b for a, b in zip(one, other, strict=True)], texts


def shares(n: int, trials: int, resamples: int) -> tuple[float, float]:
    """How often models that are alike get p < 0.01, and p < 0.1."""
    draw, found = random.Random(n), []
    for i in range(trials):
        pair = alike(n, draw)
        options = {"lowercase": False, "tokenize": "13a", "resamples": resamples}
        found.append(bleu_p_value(*pair, **options, seed=i + 1))
    return float(np.mean(np.array(found) < 0.01)), float(np.mean(np.array(found) < 0.1))


def most(level: float, trials: int) -> float:
    """As often as a share of ``level`` comes out, but for one time in a thousand."""
    return level + 3.1 * (level * (1 - level) / trials) ** 0.5


def test_models_that_are_alike_get_no_more_stars_than_promised() -> None:
    stars, tenths = shares(10, 400, 150)
    assert stars <= most(0.01, 400)
    assert 0.01 < tenths <= most(0.1, 400)


@pytest.mark.slow
@pytest.mark.parametrize("n", [10, 20, 50, 100, 300])
def test_models_that_are_alike_at_every_size(n: int) -> None:
    stars, tenths = shares(n, 1500, 1000)
    print(f"{n} sentences: p < 0.01 in {stars:.2%}, p < 0.1 in {tenths:.2%}")
    assert stars <= most(0.01, 1500)
    assert 0.02 < tenths <= most(0.1, 1500)


def exact(change: np.ndarray) -> float:
    """The share of all sign patterns whose sum is at least as large."""
    patterns = np.array(list(itertools.product((-1, 1), repeat=len(change))))
    return float((np.abs(patterns @ change) >= abs(change.sum()) - 1e-12).mean())


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("entries", [significance._ENTRIES, 1000])
def test_permutations_agree_with_the_enumeration(monkeypatch, seed: int, entries: int) -> None:
    monkeypatch.setattr(significance, "_ENTRIES", entries)
    draw = np.random.default_rng(seed)
    baseline, other = 10 * draw.random(14), 10 * draw.random(14)
    p = exact(other - baseline)
    found = likelihood_p_value(baseline, other, resamples=8_000, seed=seed + 1)
    assert 0 < abs(found - p) < 4 * (p * (1 - p) / 8_000) ** 0.5 + 1e-4
    every = likelihood_p_value(baseline, other, resamples=2**13, seed=seed + 1)
    assert every == pytest.approx(p, abs=1e-12)


def test_ties_count_as_at_least_as_large() -> None:
    """Of eight patterns of three equal changes, two have the measured sum; rounding or not."""
    change = np.array([0.1, 0.1, 0.1])
    assert likelihood_p_value(np.zeros(3), change, resamples=20_000, seed=3) == 0.25
    many = np.full(12, 0.1)
    found = likelihood_p_value(np.zeros(12), many, resamples=2000, seed=3)
    assert found == pytest.approx(1 / 2001 + 2 / 2**12, abs=1.5e-3)


def test_a_sentence_weighs_as_much_as_its_tokens() -> None:
    """One long sentence that gains what many short ones lose: the mean a token stays."""
    change = np.array([20.0, *[-1.0] * 20])
    assert likelihood_p_value(np.zeros(21), change, resamples=500, seed=1) == 1.0


def test_p_values_of_chance_are_even() -> None:
    draw = np.random.default_rng(5)
    found = [
        likelihood_p_value(np.zeros(30), draw.normal(size=30), resamples=199, seed=i + 1)
        for i in range(400)
    ]
    assert np.mean(np.array(found) <= 0.1) == pytest.approx(0.1, abs=0.05)
    assert np.mean(found) == pytest.approx(0.5, abs=0.06)
