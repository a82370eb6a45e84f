"""Bars and dots for studies of heads: changes by configuration, by layer, and by number of heads.

Every change is drawn from the line of the full model, at 0.
"""

import math
from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from headlab.head_names import SITES, TITLES
from headlab.heads.figures import SITE_COLOURS, number_text
from headlab.pictures import Page, shortened, text_columns, text_style

OTHER_COLOUR = "#56606B"  # of what belongs to no single site

# Lengths are in inches.
_BAR = 0.26
_LETTER = 0.075  # of text of 8 points
_LONGEST_NAME = 40  # letters of a configuration's name
_TITLE = 0.5
_SIDE = 2.4  # height of a chart with upright bars or dots
_EDGE = 0.3


def change_bars(
    names: Sequence[str],
    changes: Sequence[float],
    title: str,
    unit: str,
    *,
    colours: Sequence[str] | None = None,
    fmt: str = "{:+.2f}",
    marked: Sequence[bool] | None = None,
    dpi: float = 120,
) -> Figure:
    """A lying bar for each configuration, from top to bottom, with its number behind it.

    Args:
        names: of the configurations.
        changes: from the full model; NaN: no bar.
        title, unit: of the figure, of its axis.
        colours: of each bar.
        fmt: how a number is written.
        marked: True where the number gets a star.
    """
    stars = [False] * len(names) if marked is None else list(marked)
    texts = [
        "–" if math.isnan(change) else number_text(change, fmt) + ("*" if stars[i] else "")
        for i, change in enumerate(changes)
    ]
    labels = [shortened(name, _LONGEST_NAME) for name in names]
    left = _EDGE + _LETTER * max((text_columns(label) for label in labels), default=1) + 0.1
    room = _LETTER * max((len(text) for text in texts), default=1) + 0.15
    across, down = 4.2, max(1, len(names)) * _BAR
    page = Page(left + across + _EDGE, _TITLE + down + 0.65, dpi)
    _title(page, title)
    axes = page.axes(left, _TITLE, across, down)
    _open(axes, bottom=True)
    values = np.nan_to_num(np.asarray(changes, dtype=float))
    bars = colours or [OTHER_COLOUR] * len(names)
    axes.barh(np.arange(len(names)), values, 0.7, color=list(bars))
    # Numbers stand outside of the bars, for which both ends leave room.
    low, high = min(0.0, *values, 0.0), max(0.0, *values, 0.0)
    share = room / across
    scale = (high - low or 1.0) / (1 - share * ((low < 0) + (high > 0 or low == 0)))
    low -= share * scale if low < 0 else 0.0
    high += share * scale if high > 0 or low == 0 else 0.0
    axes.set_xlim(low, high)
    axes.set_ylim(len(names) - 0.5, -0.5)
    axes.axvline(0, color="0.2", linewidth=0.8)
    for i, (value, text) in enumerate(zip(values, texts, strict=True)):
        beside = 0.06 / across * (high - low)
        place, side = (value - beside, "right") if value < 0 else (value + beside, "left")
        axes.text(place, i, text, **text_style(8, ha=side, va="center"))
        page.text(left - 0.08, _TITLE + (i + 0.5) * _BAR, labels[i], ha="right", size=8)
    _ticks(axes, "x", low, high)
    page.text(left + across / 2, _TITLE + down + 0.45, unit, size=9)
    return page.figure


def layer_bars(
    values: Mapping[str, Mapping[str, Sequence[float]]],
    title: str,
    unit: str,
    *,
    marked: Mapping[str, Mapping[str, Sequence[bool]]],
    dpi: float = 120,
) -> Figure:
    """A panel a site; a group of bars for each layer, one for each set of sentences.

    Args:
        values: site -> name of the set of sentences -> its change for each layer, NaN: no bar.
        title, unit: of the figure, of its upright axis.
        marked: as ``values``: True where a bar gets a star.
    """
    sites = [site for site in SITES if site in values]
    series = list(dict.fromkeys(name for site in sites for name in values[site]))
    layers = max(len(of) for site in sites for of in values[site].values())
    across = max(1.9, 0.5 * layers)
    page = Page(0.9 + len(sites) * (across + 0.35), _TITLE + _SIDE + 1.05, dpi)
    _title(page, title)
    known = [v for site in sites for of in values[site].values() for v in of if not math.isnan(v)]
    low, high = min([0.0, *known]), max([0.0, *known])
    room = 0.12 * (high - low or 1.0)
    low, high = low - (room if low < 0 else 0.0), high + room
    width = 0.8 / len(series)
    for place, site in enumerate(sites):
        left, top = 0.85 + place * (across + 0.35), _TITLE + 0.25
        axes = page.axes(left, top, across, _SIDE)
        _open(axes, bottom=False)
        for i, name in enumerate(series):
            heights = np.asarray(values[site].get(name, [math.nan] * layers), dtype=float)
            at = np.arange(len(heights)) + (i - (len(series) - 1) / 2) * width
            alpha = 0.45 if i + 1 < len(series) else 1.0
            bars = np.nan_to_num(heights)
            axes.bar(at, bars, width * 0.92, color=SITE_COLOURS[site], alpha=alpha)
            for x, height, star in zip(at, bars, marked[site].get(name, ()), strict=False):
                if star:
                    side = "top" if height < 0 else "bottom"
                    axes.text(x, height, "*", **text_style(9, ha="center", va=side))
        axes.axhline(0, color="0.2", linewidth=0.8)
        axes.set_xlim(-0.5, layers - 0.5)
        axes.set_ylim(low, high)
        _ticks(axes, "y", low, high, named=place == 0)
        page.text(left, top - 0.14, TITLES[site], ha="left", size=9)
        for layer in range(layers):
            x = left + (layer + 0.5) / layers * across
            page.text(x, top + _SIDE + 0.12, str(layer), size=8)
        page.text(left + across / 2, top + _SIDE + 0.32, "layer", size=8)
    page.text(0.18, _TITLE + 0.25 + _SIDE / 2, unit, rotation=90, size=9)
    said = " and ".join(series)
    legend = f"pale: {series[0]}, full: {series[-1]}" if len(series) > 1 else said
    page.text(page.width / 2, page.height - 0.2, legend, size=8)
    return page.figure


def spread_dots(
    draws: Mapping[int, Sequence[float]],
    title: str,
    unit: str,
    *,
    dpi: float = 120,
) -> Figure:
    """A dot for each draw against the number of heads off; mean and standard deviation beside them.

    Args:
        draws: number of heads off -> the change of each draw.
        title, unit: of the figure, of its upright axis.
    """
    counts = sorted(draws)
    across = max(2.6, 0.7 * len(counts))
    page = Page(0.95 + across + _EDGE, _TITLE + _SIDE + 0.75, dpi)
    _title(page, title)
    axes = page.axes(0.9, _TITLE, across, _SIDE)
    _open(axes, bottom=False)
    known = [value for of in draws.values() for value in of]
    for x, k in enumerate(counts):
        page.text(0.9 + (x + 0.5) / len(counts) * across, _TITLE + _SIDE + 0.14, str(k), size=8)
        of = np.asarray(draws[k], dtype=float)
        if not of.size:
            continue
        axes.plot([x - 0.12] * of.size, of, "o", color=SITE_COLOURS["encoder"], alpha=0.5, ms=5)
        deviation = float(of.std(ddof=1)) if of.size > 1 else 0.0
        at, mean = x + 0.12, float(of.mean())
        known += [mean - deviation, mean + deviation]
        axes.errorbar([at], [mean], [deviation], color=OTHER_COLOUR, capsize=4, marker="s", ms=5)
    low, high = min([0.0, *known]), max([0.0, *known])
    room = 0.08 * (high - low or 1.0)
    low, high = low - room, high + room
    axes.axhline(0, color="0.2", linewidth=0.8)
    axes.set_xlim(-0.5, len(counts) - 0.5)
    axes.set_ylim(low, high)
    _ticks(axes, "y", low, high)
    page.text(0.2, _TITLE + _SIDE / 2, unit, rotation=90, size=9)
    below = _TITLE + _SIDE + 0.36
    page.text(0.9 + across / 2, below, "heads off", size=8)
    page.text(page.width / 2, below + 0.24, "dots: draws, bars: mean ± standard deviation", size=8)
    return page.figure


def _title(page: Page, title: str) -> None:
    page.text(page.width / 2, _TITLE / 2, shortened(title, int(page.width / 0.095)), size=11)


def _open(axes: Axes, *, bottom: bool) -> None:
    """Show the one axis that has numbers, and nothing else of the frame."""
    axes.set_axis_on()
    for side, spine in axes.spines.items():
        spine.set_visible(side == ("bottom" if bottom else "left"))
        spine.set_color("0.6")
    axes.patch.set_visible(False)
    axes.set_xticks([])
    axes.set_yticks([])


def _ticks(axes: Axes, axis: str, low: float, high: float, named: bool = True) -> None:
    values = [v for v in MaxNLocator(5).tick_values(low, high) if low <= v <= high]
    names = [f"{value:g}" if named else "" for value in values]
    ticks = axes.set_xticks if axis == "x" else axes.set_yticks
    ticks(values, names, **text_style(8))
    axes.grid(True, axis="x" if axis == "x" else "y", color="0.9", linewidth=0.6)
    axes.set_axisbelow(True)
