from pathlib import Path
from typing import Any

import pytest

from headlab.heads.curves import pruning_curve
from headlab.pictures import save_figure


def row(heads: int, validation: float, test: float, speed: float) -> dict[str, Any]:
    return {
        "heads": heads,
        "encoder": heads // 2,
        "decoder": heads // 4,
        "cross": heads // 4,
        "parameters": 1000 + 100 * heads,
        "validation_bleu": validation,
        "test_bleu": test,
        "speed_ratio": speed,
    }


ROWS = [row(8, 30.0, 31.0, 1.0), row(4, 29.8, 30.7, 1.1), row(0, 10.0, 11.0, 1.4)]


def lines(axes: Any) -> dict[str, tuple[list, list]]:
    """Of each line that the legend names, its points."""
    drawn = {line.get_label(): line for line in axes.get_lines()}
    return {
        name: (list(line.get_xdata()), list(line.get_ydata()))
        for name, line in drawn.items()
        if not name.startswith("_")
    }


def test_three_panels_over_the_heads_left(tmp_path: Path) -> None:
    figure = pruning_curve(ROWS, "Pruning", "validation", "test", chosen=1, lowest=29.5)
    bleu, sites, cost = figure.axes
    assert lines(bleu) == {
        "validation (decides)": ([8, 4, 0], [30.0, 29.8, 10.0]),
        "test": ([8, 4, 0], [31.0, 30.7, 11.0]),
    }
    assert lines(sites)["encoder self-attention"] == ([8, 4, 0], [4, 2, 0])
    assert lines(cost)["parameters"] == ([8, 4, 0], pytest.approx([1.0, 1400 / 1800, 1000 / 1800]))
    for axes in figure.axes:
        left, right = axes.get_xlim()
        assert left > 8 > 0 > right  # pruning goes on to the right
    path = save_figure(figure, tmp_path / "curve.png")
    assert path.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("rows", [ROWS[:1], [row(0, 1.0, 1.0, 1.0)], ROWS])
def test_one_point_no_head_and_one_split(rows: list, tmp_path: Path) -> None:
    figure = pruning_curve(rows, "x" * 500, "test", "test", chosen=0)
    assert list(lines(figure.axes[0])) == ["test"]
    save_figure(figure, tmp_path / "curve.png")
