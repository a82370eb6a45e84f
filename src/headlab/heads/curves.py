"""The curve of a pruning: BLEU, heads of each site, size and speed, by the heads that are left."""

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from headlab.head_names import SITES, TITLES
from headlab.heads.figures import SITE_COLOURS
from headlab.pictures import Page, shortened, text_style

# Lengths are in inches.
_WIDTH, _HEIGHT = 3.6, 2.9  # of a panel, its axis names not counted
_LEFT, _TOP, _BOTTOM, _GAP = 0.75, 0.75, 0.65, 0.85

_STRONG, _WEAK = "#7a1f81", "#fb9a62"  # apart in grey as well
_LINE: dict[str, Any] = {"linewidth": 1.6, "marker": "o", "markersize": 4, "clip_on": False}


def pruning_curve(
    rows: Sequence[Mapping[str, Any]],
    title: str,
    choice: str,
    report: str,
    *,
    chosen: int,
    lowest: float | None = None,
    dpi: float = 120,
) -> Figure:
    """Three panels over the number of heads left, which falls from left to right.

    BLEU on both splits; how many heads each site has left; parameters and speed as shares of those
    of the model before.

    Args:
        rows: of ``Point.row``, one a step, the whole model first.
        title: of the figure.
        choice, report: names of the split that decided, and of the one that is reported.
        chosen: which row was kept.
        lowest: the BLEU that was not to be undershot; None: there was no such limit.
        dpi: pixels an inch.
    """
    page = Page(_LEFT + 3 * _WIDTH + 2 * _GAP + 0.3, _TOP + _HEIGHT + _BOTTOM, dpi)
    page.text(page.width / 2, 0.22, shortened(title, 110), size=11)
    heads = [row["heads"] for row in rows]
    panels = [
        _panel(page, i, name, heads)
        for i, name in enumerate(("BLEU", "heads left by site", "parameters and speed"))
    ]

    bleu, sites, cost = panels
    for name, colour in ((choice, _WEAK), (report, _STRONG)):
        if f"{name}_bleu" in rows[0]:
            values = [row[f"{name}_bleu"] for row in rows]
            label = f"{name} (decides)" if name == choice != report else name
            bleu.plot(heads, values, color=colour, label=label, **_LINE)
        if choice == report:
            break
    if lowest is not None:
        bleu.axhline(lowest, color="0.45", linewidth=1, linestyle=":")
        style = text_style(7.5, color="0.35", va="bottom")
        bleu.text(max(heads), lowest, f" lowest allowed on {choice}", **style)
    for site in SITES:
        colour = SITE_COLOURS[site]
        sites.plot(heads, [row[site] for row in rows], color=colour, label=TITLES[site], **_LINE)
    sites.set_ylim(bottom=0)
    size = [row["parameters"] / rows[0]["parameters"] for row in rows]
    speed = [row["speed_ratio"] for row in rows]
    cost.plot(heads, size, color=_WEAK, label="parameters", **_LINE)
    cost.plot(heads, speed, color=_STRONG, label="tokens a second", **_LINE)
    cost.axhline(1.0, color="0.75", linewidth=0.8, zorder=0)
    for axes in panels:
        axes.axvline(heads[chosen], color="0.6", linewidth=1, linestyle="--", zorder=0)
        legend = axes.legend(frameon=False, loc="best")
        for text in legend.get_texts():
            text.set(**text_style(8))
    cost.set_ylabel("share of the model before", **text_style(8.5))
    return page.figure


def _panel(page: Page, place: int, name: str, heads: Sequence[int]) -> Axes:
    left = _LEFT + place * (_WIDTH + _GAP)
    axes = page.axes(left, _TOP, _WIDTH, _HEIGHT)
    axes.set_axis_on()
    page.text(left, _TOP - 0.17, name, ha="left", size=9.5)
    axes.spines[["top", "right"]].set_visible(False)
    most = max(max(heads), 1)
    # Pruning goes on to the right.
    axes.set_xlim(most + 0.02 * most, min(heads) - 0.02 * most)
    axes.set_xlabel("heads left (dashed: what was kept)", **text_style(8.5))
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.tick_params(labelsize=8)
    axes.grid(axis="y", color="0.92")
    axes.set_axisbelow(True)
    return axes
