"""Layer-by-head heat maps: one panel for each of the three attentions, a number in every cell."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib
import numpy as np
from matplotlib.colors import Colormap
from matplotlib.figure import Figure

from headlab.head_names import SITES, TITLES
from headlab.pictures import WEIGHT_COLOURS, Page, shortened, text_style

# Orange and purple are told apart without colour vision, and white is where nothing happens.
DIVERGING_COLOURS = "PuOr"

# Okabe and Ito's colours (2008), which also differ in grey.
SITE_COLOURS = {"encoder": "#0072B2", "decoder": "#E69F00", "cross": "#009E73"}

ABSENT = "0.82"  # the grey of a head that a pruned model does not have

# Lengths are in inches.
_WIDEST = 15.0  # of panels side by side; wider ones go below each other
_NARROWEST = 1.8  # of a panel, for its name
_CELL_HEIGHT = 0.30
_CELL_WIDTH = 0.42  # at least; numbers may need more
_LETTER = 0.075  # of a number at the size of _NUMBERS
_NUMBERS = 8  # points
_LEFT = 0.62  # of each panel, for the layers' numbers
_TOP, _BOTTOM = 0.30, 0.50  # of each panel: its name, and the heads' numbers
_TITLE = 0.5
_MARGIN = 0.25
_BAR = 1.0  # on the right, for the colour scale
_COLUMN = 0.09  # of a letter of the title


def head_heatmaps(
    values: Mapping[str, np.ndarray],
    title: str,
    unit: str,
    *,
    centre: float | None = None,
    fmt: str = "{:.2f}",
    marked: Mapping[str, np.ndarray] | None = None,
    reverse: bool = False,
    dpi: float = 120,
) -> Figure:
    """One panel a site: a row for each layer (0 on top), a column for each head.

    All panels share one colour scale.

    Args:
        values: site -> (layers, heads); NaN where a head is absent, whose cell is grey with a dash.
        title: of the whole figure; shortened to what fits.
        unit: what is measured, above the colour scale.
        centre: the value that is white between two colours; None: one colour, the darker the more.
        fmt: how a number is written into its cell.
        marked: site -> (layers, heads), True for cells whose number gets a star.
        reverse: orange below the centre and purple above it, in place of the other way round.

    Raises:
        ValueError: there is no site, or a table is not two-dimensional.
    """
    tables = {site: np.asarray(values[site], dtype=float) for site in SITES if site in values}
    if not tables or any(table.ndim != 2 for table in tables.values()):
        raise ValueError(f"values must hold (layers, heads) by site, of {', '.join(SITES)}")
    texts = {
        site: _texts(table, fmt, None if marked is None else marked.get(site))
        for site, table in tables.items()
    }
    longest = max((len(text) for rows in texts.values() for row in rows for text in row), default=1)
    cell = max(_CELL_WIDTH, longest * _LETTER + 0.1)
    widths = [_LEFT + max(_NARROWEST, table.shape[1] * cell) for table in tables.values()]
    heights = [_TOP + len(table) * _CELL_HEIGHT + _BOTTOM for table in tables.values()]
    beside = sum(widths) <= _WIDEST
    width = _MARGIN + (sum(widths) if beside else max(widths)) + _BAR
    height = _TITLE + (max(heights) if beside else sum(heights))
    page = Page(width, height, dpi)
    name = shortened(title, max(12, int((width - 2 * _MARGIN) / _COLUMN)))
    page.text(width / 2, _TITLE / 2, name, size=11)
    shades = _Shades(list(tables.values()), centre, reverse)
    left, top = _MARGIN, _TITLE
    for site, w, h in zip(tables, widths, heights, strict=True):
        _panel(page, left, top, cell, TITLES[site], tables[site], texts[site], shades)
        left, top = (left + w, top) if beside else (left, top + h)
    down = min(2.4, height - _TITLE - _TOP - _BOTTOM)
    _scale(page, width - _BAR + 0.25, _TITLE + _TOP, max(0.6, down), unit, shades, fmt)
    return page.figure


class _Shades:
    """From numbers to colours, for all panels of a figure."""

    def __init__(self, tables: Sequence[np.ndarray], centre: float | None, reverse: bool) -> None:
        finite = np.concatenate([table[np.isfinite(table)] for table in tables])
        low, high = (float(finite.min()), float(finite.max())) if finite.size else (0.0, 1.0)
        if centre is not None:
            reach = max(high - centre, centre - low)
            low, high = centre - reach, centre + reach
        if high - low <= 0:  # nothing differs: the colour of the lowest value, or of the centre
            spread = abs(low) or 1.0
            low, high = (low - spread, low + spread) if centre is not None else (low, low + spread)
        self.low, self.high = low, high
        name = DIVERGING_COLOURS if reverse else f"{DIVERGING_COLOURS}_r"
        self.colours: Colormap = WEIGHT_COLOURS if centre is None else matplotlib.colormaps[name]

    def __call__(self, values: np.ndarray) -> np.ndarray:
        """RGBA of each value, (..., 4); of NaN the grey of an absent head."""
        share = (np.clip(values, self.low, self.high) - self.low) / (self.high - self.low)
        colours = np.asarray(self.colours(np.nan_to_num(share)))
        colours[np.isnan(values)] = (*(float(ABSENT),) * 3, 1.0)
        return colours


def _texts(table: np.ndarray, fmt: str, marked: np.ndarray | None) -> list[list[str]]:
    star = np.zeros(table.shape, bool) if marked is None else np.asarray(marked, bool)
    return [
        [
            "–" if math.isnan(value) else number_text(value, fmt) + ("*" if star[i, j] else "")
            for j, value in enumerate(row)
        ]
        for i, row in enumerate(table.tolist())
    ]


def number_text(value: float, fmt: str) -> str:
    """The number by its format, without a sign where it is rounded to nothing."""
    text = fmt.format(value)
    return text.lstrip("+-") if not text.strip("+-0.,%") else text


def _panel(
    page: Page,
    left: float,
    top: float,
    cell: float,
    name: str,
    table: np.ndarray,
    texts: list[list[str]],
    shades: _Shades,
) -> None:
    layers, heads = table.shape
    across, down = heads * cell, layers * _CELL_HEIGHT
    left, top = left + _LEFT, top + _TOP
    page.text(left, top - 0.14, name, ha="left", size=9)
    colours = shades(table)
    if table.size:
        axes = page.axes(left, top, across, down)
        axes.imshow(colours, aspect="auto", interpolation="nearest", extent=(0, heads, layers, 0))
        for x in range(1, heads):
            axes.plot([x, x], [0, layers], color="white", linewidth=1)
        for y in range(1, layers):
            axes.plot([0, heads], [y, y], color="white", linewidth=1)
        axes.set_xlim(0, heads)
        axes.set_ylim(layers, 0)
        for i, row in enumerate(texts):
            for j, text in enumerate(row):
                style = text_style(_NUMBERS, ha="center", va="center", color=_ink(colours[i, j]))
                axes.text(j + 0.5, i + 0.5, text, **style)
    name_grid(page, left, top, (layers, heads), (cell, _CELL_HEIGHT))


def _ink(colour: np.ndarray) -> str:
    """Black or white, whichever stands out more (relative luminance, WCAG 2.1)."""
    linear = np.where(
        colour[:3] <= 0.04045, colour[:3] / 12.92, ((colour[:3] + 0.055) / 1.055) ** 2.4
    )
    return "black" if float(linear @ (0.2126, 0.7152, 0.0722)) > 0.179 else "white"


def _scale(
    page: Page, left: float, top: float, height: float, unit: str, shades: _Shades, fmt: str
) -> None:
    axes = page.axes(left, top, 0.14, height)
    steps: Any = shades.colours(np.linspace(1, 0, 256))[:, None]
    axes.imshow(steps, aspect="auto", extent=(0, 1, 0, 1))
    axes.plot([0, 1, 1, 0, 0], [0, 0, 1, 1, 0], color="0.35", linewidth=0.8, clip_on=False)
    for share in (0.0, 0.5, 1.0):
        value = shades.low + share * (shades.high - shades.low)
        place = top + height * (1 - share)
        page.text(left + 0.19, place, number_text(value, fmt), ha="left", size=8)
    page.text(left + 0.07, top - 0.14, shortened(unit, 16), size=8)


def name_grid(
    page: Page, left: float, top: float, shape: tuple[int, int], cell: tuple[float, float]
) -> None:
    """Numbers and names of the axes of a grid of layers by heads.

    Args:
        page: where the grid stands.
        left, top: of the grid, in inches.
        shape: layers and heads.
        cell: width and height of a cell, in inches.
    """
    (layers, heads), (width, height) = shape, cell
    across, down = heads * width, layers * height
    for layer in range(layers):
        page.text(left - 0.1, top + (layer + 0.5) * height, str(layer), ha="right", size=8)
    for head in range(heads):
        page.text(left + (head + 0.5) * width, top + down + 0.11, str(head), size=8)
    page.text(left - 0.42, top + down / 2, "layer", rotation=90, size=8)
    page.text(left + across / 2, top + down + 0.30, "head", size=8)
