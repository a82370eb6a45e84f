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
    from sacrebleu.metrics import BLEU
    from sacrebleu.significance import PairedTest

    one, other = noisy(references, 0.30, 1), noisy(references, 0.31, 4)
    monkeypatch.setenv("SACREBLEU_SEED", "7")
    systems = [("one", one), ("other", other)]
    test = PairedTest(systems, {"BLEU": BLEU(lowercase=True)}, [references], "bs", 150)
    expected = test()[1]["BLEU"][1].p_value
    options = {"lowercase": True, "tokenize": "13a", "resamples": 150}
    assert bleu_p_value(one, other, references, **options, seed=7) == expected
    assert 0.01 < expected < 0.99


@pytest.mark.parametrize("before", [None, "55"])
def test_the_environment_is_left_as_it_was(references, monkeypatch, caplog, before) -> None:
    monkeypatch.delenv("SACREBLEU_SEED", raising=False)
    if before is not None:
        monkeypatch.setenv("SACREBLEU_SEED", before)
    level = logging.getLogger("sacrebleu").level
    with caplog.at_level(logging.INFO):
        bleu_p_value(references, references, references, **OPTIONS)
    assert os.environ.get("SACREBLEU_SEED") == before
    assert logging.getLogger("sacrebleu").level == level
    assert not caplog.records


def exact(change: np.ndarray) -> float:
    """The share of all sign patterns whose sum is at least as large."""
    patterns = np.array(list(itertools.product((-1, 1), repeat=len(change))))
    return float((np.abs(patterns @ change) >= abs(change.sum()) - 1e-12).mean())


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("entries", [significance._ENTRIES, 1000])
def test_permutations_agree_with_the_enumeration(monkeypatch, seed: int, entries: int) -> None:
    monkeypatch.setattr(significance, "_ENTRIES", entries)
    draw = np.random.default_rng(seed)
    baseline, other = 10 * draw.random(9), 10 * draw.random(9)
    p = exact(other - baseline)
    found = likelihood_p_value(baseline, other, resamples=20_000, seed=seed + 1)
    assert abs(found - p) < 4 * (p * (1 - p) / 20_000) ** 0.5 + 1e-4


def test_ties_count_as_at_least_as_large() -> None:
    """Of eight patterns of three equal changes, two have the measured sum; rounding or not."""
    change = np.array([0.1, 0.1, 0.1])
    p = likelihood_p_value(np.zeros(3), change, resamples=20_000, seed=3)
    assert p == pytest.approx(0.25, abs=0.02)


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
