"""Pictures of roles: layer by head coloured by what a head does, and how alike heads are."""

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from headlab.head_names import SITES, TITLES, Head
from headlab.heads.figures import name_grid
from headlab.heads.redundancy import cluster
from headlab.heads.role_names import KINDS, NO_ROLE, Role
from headlab.pictures import WEIGHT_COLOURS, Page, shortened, text_style

# Okabe and Ito's colours (2008), which are told apart without colour vision. Even heads, which do
# nothing in particular, and heads without a role stand back.
COLOURS = {
    "even": "#cfd8dc",
    "sink": "#F0E442",
    "positional": "#56B4E9",
    "syntactic": "#D55E00",
    "rare word": "#CC79A7",
    "aligned": "#009E73",
    "diagonal": "#E69F00",
    NO_ROLE.kind: "#f7f7f7",
}
_ABSENT = "0.82"

# Lengths are in inches.
_CELL_WIDTH, _CELL_HEIGHT = 0.66, 0.42
_WIDEST = 15.0  # of panels side by side; wider ones go below each other
_NARROWEST = 2.0
_LEFT, _TOP, _BOTTOM = 0.62, 0.30, 0.50  # of each panel: layers, its name, heads
_TITLE, _MARGIN = 0.5, 0.25
_LEGEND = 0.45
_KEY = 1.28  # a colour and its name in the legend
_LETTER = 0.062  # of a label in a cell
_COLUMN = 0.09  # of a letter of the title

_LARGEST_MATRIX = 6.0
_TREE = 1.5  # height of a dendrogram


def roles_figure(
    roles: Mapping[Head, Sequence[Role]],
    shape: Mapping[str, tuple[int, int]],
    title: str,
    *,
    dpi: float = 120,
) -> Figure:
    """One panel a site, a row for each layer (0 on top): each head in the colour of its main role.

    Args:
        roles: of every head that the model has; the first is shown, a dot follows where there
            are more.
        shape: site -> (layers, heads a layer) of the unpruned model; heads that are not in
            ``roles`` are grey with a dash.
        title: of the whole figure; shortened to what fits.
    """
    sites = [site for site in SITES if site in shape]
    widths = [_LEFT + max(_NARROWEST, shape[site][1] * _CELL_WIDTH) for site in sites]
    heights = [_TOP + shape[site][0] * _CELL_HEIGHT + _BOTTOM for site in sites]
    beside = sum(widths) <= _WIDEST
    shown = [kind for kind in (*KINDS, NO_ROLE.kind) if kind in _main_kinds(roles)]
    legend = len(shown) * _KEY
    width = 2 * _MARGIN + max(legend, sum(widths) if beside else max(widths, default=0.0))
    height = _TITLE + (max(heights, default=0.0) if beside else sum(heights)) + _LEGEND
    page = Page(width, height, dpi)
    page.text(width / 2, _TITLE / 2, shortened(title, int(width / _COLUMN)), size=11)
    left, top = _MARGIN, _TITLE
    for site, w, h in zip(sites, widths, heights, strict=True):
        _panel(page, left, top, site, shape[site], roles)
        left, top = (left + w, top) if beside else (left, top + h)
    _legend(page, width / 2 - legend / 2, height - _LEGEND / 2 - 0.05, shown)
    return page.figure


def _main_kinds(roles: Mapping[Head, Sequence[Role]]) -> set[str]:
    return {_main(some).kind for some in roles.values()}


def _main(roles: Sequence[Role]) -> Role:
    return roles[0] if roles else NO_ROLE


def _panel(
    page: Page,
    left: float,
    top: float,
    site: str,
    shape: tuple[int, int],
    roles: Mapping[Head, Sequence[Role]],
) -> None:
    layers, heads = shape
    left, top = left + _LEFT, top + _TOP
    across, down = heads * _CELL_WIDTH, layers * _CELL_HEIGHT
    page.text(left, top - 0.14, TITLES[site], ha="left", size=9)
    axes = page.axes(left, top, across, down)
    axes.set_xlim(0, heads)
    axes.set_ylim(layers, 0)
    style = text_style(8, ha="center", va="center")
    for layer in range(layers):
        for head in range(heads):
            some = roles.get(Head(site, layer, head))
            colour = _ABSENT if some is None else COLOURS[_main(some).kind]
            cell = Rectangle(
                (head, layer), 1, 1, facecolor=colour, edgecolor="white", linewidth=1.5
            )
            axes.add_patch(cell)
            more = "·" if some is not None and len({role.kind for role in some}) > 1 else ""
            room = int((_CELL_WIDTH - 0.06) / _LETTER)
            text = "–" if some is None else shortened(_main(some).label, room - len(more)) + more
            axes.text(head + 0.5, layer + 0.5, text, **style)
    name_grid(page, left, top, (layers, heads), (_CELL_WIDTH, _CELL_HEIGHT))


def _legend(page: Page, left: float, middle: float, kinds: Sequence[str]) -> None:
    for index, kind in enumerate(kinds):
        place = left + index * _KEY
        axes = page.axes(place, middle - 0.08, 0.2, 0.16)
        axes.add_patch(Rectangle((0, 0), 1, 1, facecolor=COLOURS[kind], edgecolor="0.35"))
        axes.set_xlim(0, 1)
        axes.set_ylim(0, 1)
        name = "no role" if kind == NO_ROLE.kind else kind
        page.text(place + 0.26, middle, name, ha="left", size=9)


def distances_figure(
    distances: np.ndarray, heads: Sequence[Head], title: str, *, dpi: float = 120
) -> Figure:
    """The distances between a site's heads as a matrix, under the tree that they make.

    Heads are ordered by the tree (average linkage), so that alike ones are neighbours.

    Args:
        distances: (heads, heads), from 0 to 1; two heads or more.
        heads: their names.
        title: of the figure; shortened to what fits.
    """
    from scipy.cluster.hierarchy import dendrogram

    tree = dendrogram(cluster(distances), no_plot=True)
    order = tree["leaves"]
    count = len(order)
    cell = min(0.34, _LARGEST_MATRIX / count)
    side, left, right = count * cell, 0.75, 1.0
    top = _TITLE + _TREE + 0.1
    page = Page(max(left + side + right, 5.4), top + side + 0.5, dpi)
    page.text(page.width / 2, _TITLE / 2, shortened(title, int(page.width / _COLUMN)), size=11)
    branches = page.axes(left, _TITLE, side, _TREE)
    for x, y in zip(tree["icoord"], tree["dcoord"], strict=True):
        branches.plot(np.array(x) / 10, y, color="0.25", linewidth=1)  # a leaf takes 10
    highest = max(max(y) for y in tree["dcoord"])
    branches.set_xlim(0, count)
    branches.set_ylim(0, highest * 1.02 or 1.0)
    page.text(left - 0.08, _TITLE + 0.03, f"{highest:.2f}", ha="right", size=8)
    page.text(left - 0.08, _TITLE + _TREE, "0", ha="right", size=8)
    matrix = page.axes(left, top, side, side)
    shown = distances[np.ix_(order, order)]
    matrix.imshow(shown, WEIGHT_COLOURS, vmin=0, vmax=1, extent=(0, count, count, 0))
    every = max(1, round(0.13 / cell))  # so that names do not overlap
    for index in range(0, count, every):
        name = f"{heads[order[index]].layer}.{heads[order[index]].head}"
        place = (index + 0.5) * cell
        page.text(left - 0.07, top + place, name, ha="right", size=7)
        page.text(left + place, top + side + 0.06, name, rotation=90, va="top", size=7)
    page.text(0.2, top + side / 2, "layer.head", rotation=90, size=8)
    page.colour_bar(left + side + 0.3, top + 0.15, min(2.4, side - 0.15), "distance")
    return page.figure
