import types
from typing import Any

import pytest

from headlab.decoding import Hypothesis
from headlab.heads import speed


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Stand-ins for models: seconds and pieces a sentence. The machine stalls once."""
    now = [0.0]
    calls = [0]

    class Translator:
        def __init__(self, model: tuple[float, int], tokenizers: Any, **options: Any) -> None:
            self.seconds, self.pieces = model

        def hypotheses(self, sources: list[str]) -> list[Hypothesis]:
            calls[0] += 1
            now[0] += self.seconds * len(sources) + (100.0 if calls[0] == 7 else 0.0)
            return [Hypothesis([5] * self.pieces, -1.0, True) for _ in sources]

    monkeypatch.setattr(speed, "Translator", Translator)
    monkeypatch.setattr(speed, "time", types.SimpleNamespace(perf_counter=lambda: now[0]))
    return now


def test_the_ratio_survives_a_stall(clock: list[float]) -> None:
    found = speed.compare_speeds((0.02, 9), (0.01, 9), None, ["a"] * 2000, {})  # type: ignore[arg-type]
    assert found.before == pytest.approx(500.0)
    assert found.after == pytest.approx(1000.0)
    assert found.ratio == pytest.approx(2.0)
    assert found.sentences == pytest.approx(100.0)
    # No more than so many sentences each, beside the first few.
    assert clock[0] == pytest.approx(100.0 + 0.03 * (speed.SENTENCES + 4))


def test_longer_output_is_not_slower(clock: list[float]) -> None:
    found = speed.compare_speeds((0.02, 9), (0.04, 19), None, ["a"], {})  # type: ignore[arg-type]
    assert found.ratio == pytest.approx(1.0)
    assert found.length == pytest.approx(20.0)
    assert found.sentences == pytest.approx(25.0)
