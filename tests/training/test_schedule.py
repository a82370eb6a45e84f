"""Learning-rate schedules."""

import math

import pytest

from headlab.errors import HeadlabError
from headlab.training.schedule import build_schedule


def test_warmup_starts_above_zero_and_ends_at_the_peak() -> None:
    for kind in ("inverse_sqrt", "cosine", "constant"):
        factor = build_schedule(kind, warmup_steps=10, total_steps=100)
        assert [factor(s) for s in range(10)] == pytest.approx([(s + 1) / 10 for s in range(10)])


def test_inverse_sqrt() -> None:
    factor = build_schedule("inverse_sqrt", warmup_steps=10, total_steps=100)
    assert factor(39) == pytest.approx(0.5)
    assert factor(999) == pytest.approx(0.1)
    assert build_schedule("inverse_sqrt", warmup_steps=0, total_steps=1)(3) == pytest.approx(0.5)


def test_cosine_falls_to_its_end_and_stays_there() -> None:
    factor = build_schedule("cosine", warmup_steps=10, total_steps=110, final=0.1)
    assert factor(59) == pytest.approx(0.1 + 0.9 * 0.5 * (1 + math.cos(math.pi / 2)))
    assert factor(109) == pytest.approx(0.1)
    assert factor(5000) == pytest.approx(0.1)
    values = [factor(s) for s in range(10, 110)]
    assert values == sorted(values, reverse=True)


def test_a_run_shorter_than_its_warmup_still_reaches_the_peak() -> None:
    factor = build_schedule("cosine", warmup_steps=800, total_steps=50)
    assert max(factor(s) for s in range(50)) == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"kind": "linear", "warmup_steps": 1}, "schedule.kind=linear: choose"),
        ({"kind": "cosine", "warmup_steps": -1}, "schedule.warmup_steps=-1"),
        ({"kind": "cosine", "warmup_steps": 1, "final": 2.0}, "schedule.final=2.0"),
    ],
)
def test_mistakes(arguments: dict, message: str) -> None:
    with pytest.raises(HeadlabError, match=message):
        build_schedule(total_steps=10, **arguments)
