"""The comparison of a sweep: scores, size and speed over what was varied."""

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from headlab.pictures import Page, shortened, text_style

# Lengths are in inches.
_WIDTH, _HEIGHT = 3.4, 2.7  # of a panel, its axis names not counted
_LEFT, _TOP, _BOTTOM, _GAP = 0.85, 0.85, 0.9, 0.85
_STRONG, _WEAK = "#7a1f81", "#fb9a62"  # apart in grey as well


def sweep_figure(
    varied: str,
    values: Sequence[Any],
    panels: Mapping[str, Mapping[str, Sequence[float | None]]],
    title: str,
    *,
    dpi: float = 120,
) -> Figure:
    """A panel for each quantity, over the varied key.

    Args:
        varied: name of the key, or of what tells the jobs apart.
        values: of each job. Numbers give a line, on a logarithmic axis where all are positive and
            the largest is at least four times the smallest; anything else gives dots, a place each.
        panels: quantity -> name of a line (as many as two) -> its value for each job, None where
            there is none.
        title: of the figure.
        dpi: pixels an inch.
    """
    width = _LEFT + len(panels) * _WIDTH + (len(panels) - 1) * _GAP + 0.3
    page = Page(width, _TOP + _HEIGHT + _BOTTOM, dpi)
    page.text(width / 2, 0.22, shortened(title, int(width / 0.095)), size=11)
    numeric = all(isinstance(v, int | float) and not isinstance(v, bool) for v in values)
    order = sorted(range(len(values)), key=lambda i: values[i]) if numeric else range(len(values))
    places: list[float] = [float(values[i]) if numeric else float(i) for i in order]
    names = [shortened(f"{values[i]:g}" if numeric else str(values[i]), 14) for i in order]
    logarithmic = numeric and min(places) > 0 and max(places) >= 4 * min(places)
    for number, (quantity, lines) in enumerate(panels.items()):
        left = _LEFT + number * (_WIDTH + _GAP)
        axes = page.axes(left, _TOP, _WIDTH, _HEIGHT)
        _frame(axes)
        page.text(left, _TOP - (0.42 if len(lines) > 1 else 0.2), quantity, ha="left", size=9)
        page.text(left + _WIDTH / 2, _TOP + _HEIGHT + 0.68, varied, size=9)
        if logarithmic:
            axes.set_xscale("log")
        for k, (name, series) in enumerate(lines.items()):
            colour = (_STRONG, _WEAK)[k % 2]
            points = [(x, series[i]) for x, i in zip(places, order, strict=True)]
            shown = [(x, y) for x, y in points if y is not None]
            style: dict[str, Any] = {"marker": "o", "markersize": 4.5, "color": colour}
            line = {"linewidth": 1.6} if numeric else {"linestyle": "none"}
            axes.plot([x for x, _ in shown], [y for _, y in shown], **style, **line)
            if len(lines) > 1:
                at = left + k * _WIDTH / 2
                page.text(at, _TOP - 0.2, f"● {name}", ha="left", size=8, color=colour)
        _scale(axes, places, names, logarithmic)
    return page.figure


def _frame(axes: Axes) -> None:
    axes.set_axis_on()
    axes.grid(True, color="0.9", linewidth=0.6)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)


def _scale(axes: Axes, places: Sequence[float], names: Sequence[str], logarithmic: bool) -> None:
    low, high = min(places), max(places)
    if logarithmic:
        axes.set_xlim(low / 1.15, high * 1.15)
    else:
        room = 0.08 * (high - low) or 0.5
        axes.set_xlim(low - room, high + room)
    rotated = {"rotation": 30, "ha": "right"} if max(map(len, names)) > 6 else {}
    axes.set_xticks(places, names, **text_style(8, **rotated))
    axes.set_xticks([], minor=True)
    bottom, top = axes.get_ylim()
    if top - bottom < 1e-3 * max(1.0, abs(top)):  # all the same: no magnified rounding
        bottom, top = bottom * 0.9, top * 1.1
        axes.set_ylim(bottom, top)
    ticks = [v for v in MaxNLocator(5).tick_values(bottom, top) if bottom <= v <= top]
    axes.set_yticks(ticks, [f"{value:,.10g}" for value in ticks], **text_style(8))
