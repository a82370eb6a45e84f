"""Every figure of the project, as functions from tensors to matplotlib figures.

No figure has more than 8 million pixels or a side of more than 8,000 (`headlab.pictures`).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from headlab.errors import HeadlabError
from headlab.maps import LayerMaps, checked_maps, layer_maps, scale_in_words, scale_of
from headlab.pictures import (
    Page,
    check_picture_name,
    check_picture_path,
    figure_to_image,
    missing_glyphs,
    save_figure,
    shortened,
    text_columns,
    text_style,
    weight_colours,
)

__all__ = [
    "LayerMaps",
    "attention_figure",
    "attention_overview",
    "check_picture_name",
    "check_picture_path",
    "figure_to_image",
    "layer_maps",
    "missing_glyphs",
    "save_figure",
]

_LONGEST_LABEL = 14  # columns of text that an axis shows of a piece

# Lengths are in inches. One cell is one weight; a panel is the wished side of one head's map.
_PANEL = 2.3
_OVERVIEW_PANEL = 1.75
_OVERVIEW_WIDTH = 26.0  # shared by all heads of an overview, so that many heads get small maps
_SMALLEST_CELL, _LARGEST_CELL = 0.045, 0.34
_GAP = 0.12  # between neighbouring maps
_HEADING = 0.26  # above a row of maps, for the heads' names
_TITLE = 0.5
_BAR = 0.85  # right margin, for the colour bar


def attention_figure(
    weights: torch.Tensor | np.ndarray,
    query_pieces: Sequence[str],
    key_pieces: Sequence[str],
    title: str,
    *,
    heads: Sequence[int] | None = None,
    dpi: float = 100,
) -> Figure:
    r"""One map a head: queries down, keys across, weights from 0 to 1 on one colour scale.

    Where weights are no distribution, the title says which weight has the colour of 1; where some
    are negative, they have colours of their own.

    weights: (heads, queries, keys); rows and columns past the pieces (padding) are cropped.
    heads: the numbers of the heads; None: 0, 1, 2 and so on.
    Pieces are drawn literally: `$`, `_`, `{` and `\` are text, never formulas. Of long sentences
    only each so-manyth piece is named, which the figure says.
    Raises HeadlabError when there is no head, no piece, or fewer rows or columns than pieces.
    """
    maps = checked_maps(weights, query_pieces, key_pieces)
    scale = scale_of(maps)
    maps, title = maps / scale, shortened(title, 100) + scale_in_words(scale)
    count, queries, keys = maps.shape
    numbers = range(count) if heads is None else heads
    cell = _cell_side(_PANEL, queries, keys)
    columns = _columns(count, keys * cell + _GAP, queries * cell + _HEADING + _GAP)
    rows = math.ceil(count / columns)
    left = _label_room(query_pieces, cell)
    across = columns * (keys * cell + _GAP) - _GAP
    first_top = _TITLE + _HEADING
    down = rows * (queries * cell + _GAP + _HEADING) - _GAP - _HEADING
    signed = bool(maps.min() < 0)
    down_to = first_top + down + _label_room(key_pieces, cell)
    page = _page(left + across, down_to, title, dpi, signed)
    block = _Block(page, left, first_top, cell, query_pieces, key_pieces, signed)
    for first in range(0, count, columns):
        # Keys are named only under the lowest map of each column.
        some, named = maps[first : first + columns], numbers[first : first + columns]
        top = first_top + first // columns * (queries * cell + _GAP + _HEADING)
        block.draw_heads(some, top, named, keys_from=count - columns - first)
    block.name_queries(first_top + down / 2)
    block.name_keys(left + across / 2, first_top + down)
    return page.figure


def attention_overview(layers: Sequence[LayerMaps], title: str, *, dpi: float = 100) -> Figure:
    """Every head of the given layers in one picture: a row for each layer, a column for each head.

    Keys are named under the last layer of a site, queries on the left of every layer. Literal
    pieces and errors are as in `attention_figure`.
    """
    if not layers:
        raise HeadlabError("no attention map to draw: choose at least one site and one layer")
    maps = [checked_maps(layer.weights, layer.query_pieces, layer.key_pieces) for layer in layers]
    scales = [scale_of(one) for one in maps]
    maps = [one / scale for one, scale in zip(maps, scales, strict=True)]
    signed = any(one.min() < 0 for one in maps)
    numbers = [list(layer.heads or range(len(layer.weights))) for layer in layers]
    heads, queries, keys = (max(one.shape[axis] for one in maps) for axis in range(3))
    cell = _cell_side(min(_OVERVIEW_PANEL, _OVERVIEW_WIDTH / heads), queries, keys)
    left = 0.5 + max(_label_room(layer.query_pieces, cell) for layer in layers)
    widths = [len(one) * (one.shape[2] * cell + _GAP) - _GAP for one in maps]
    # Heads are named above the first layer of a site, and where a layer has others than the one
    # above it; keys under the lowest map of each column.
    named = [_starts_site(layers, i) or numbers[i] != numbers[i - 1] for i in range(len(layers))]
    below = [
        max(
            (len(maps[j]) for j in range(i + 1, len(layers)) if layers[j].site == one.site),
            default=0,
        )
        for i, one in enumerate(layers)
    ]
    tops: list[float] = []
    bottom = _TITLE
    for index, layer in enumerate(layers):
        bottom += _HEADING if named[index] else _GAP
        tops.append(bottom)
        bottom += maps[index].shape[1] * cell
        if below[index] < len(maps[index]):
            bottom += _label_room(layer.key_pieces, cell)
    page = _page(left + max(widths), bottom, shortened(title, 100), dpi, signed)

    for index, (layer, top) in enumerate(zip(layers, tops, strict=True)):
        block = _Block(page, left, top, cell, layer.query_pieces, layer.key_pieces, signed)
        block.draw_heads(maps[index], top, numbers[index], below[index], named[index])
        down = maps[index].shape[1] * cell
        block.name_queries(top + down / 2)
        if _starts_site(layers, index + 1):
            block.name_keys(left + widths[index] / 2, top + down)
        name, scale = f"{layer.site} {layer.layer}", scale_in_words(scales[index])
        page.text(0.24, top + down / 2, name, rotation=90, size=10, weight="bold")
        page.text(0.44, top + down / 2, scale.strip(" ()"), rotation=90, size=8)
    return page.figure


@dataclass(frozen=True)
class _Block:
    """Maps that share their pieces, on a page; its left and top are those of the first map."""

    page: Page
    left: float
    top: float
    cell: float
    query_pieces: Sequence[str]
    key_pieces: Sequence[str]
    signed: bool  # whether some weights of the page are negative

    def draw_heads(
        self,
        maps: np.ndarray,
        top: float,
        numbers: Sequence[int],
        keys_from: int,
        named: bool = True,
    ) -> None:
        """A row of maps, (heads, queries, keys), of the heads with these numbers.

        The maps from `keys_from` on, counted from 0, have the keys' pieces under them.
        """
        heads, queries, keys = maps.shape
        step = keys + _GAP / self.cell
        across = heads * step - _GAP / self.cell
        # One axes for the row, whose unit is a cell: an axes a head would take three times as long.
        axes = self.page.axes(self.left, top, across * self.cell, queries * self.cell)
        outside = 0.05 / self.cell
        every = _label_every(self.cell)
        beside = text_style(size=_label_size(self.cell), ha="right", va="center_baseline")
        under = {**beside, "rotation": 90, "ha": "center", "va": "top"}
        for index, one in enumerate(maps):
            start, head = index * step, numbers[index]
            extent = (start, start + keys, queries, 0)
            least, colours = (-1 if self.signed else 0), weight_colours(self.signed)
            axes.imshow(one, colours, vmin=least, vmax=1, extent=extent, aspect="auto")
            frame = Rectangle((start, 0), keys, queries, fill=False, clip_on=False)
            frame.set(edgecolor="0.35", linewidth=0.6)
            axes.add_patch(frame)
            if named:
                name = f"head {head}" if keys * self.cell > 0.5 else f"{head}"
                axes.text(start + keys / 2, -outside, name, **text_style(ha="center"))
            if index >= keys_from:
                for key in range(0, keys, every):
                    label, place = _label(self.key_pieces[key]), start + key + 0.5
                    axes.text(place, queries + outside, label, **under)
        for query in range(0, queries, every):
            label = _label(self.query_pieces[query])
            axes.text(-outside, query + 0.5, label, **beside)
        axes.set_xlim(0, across)
        axes.set_ylim(queries, 0)

    def name_queries(self, middle: float) -> None:
        """Names the vertical axis, left of its pieces."""
        left = self.left - _label_room(self.query_pieces, self.cell) + 0.12
        self.page.text(left, middle, "queries", rotation=90, color="0.35")

    def name_keys(self, middle: float, bottom: float) -> None:
        """Names the horizontal axis, under its pieces."""
        every = _label_every(self.cell)
        rest = f" (1 piece in {every} is named)" if every > 1 else ""
        top = bottom + _label_room(self.key_pieces, self.cell) - 0.12
        self.page.text(middle, top, f"keys{rest}", color="0.35")


def _page(width: float, height: float, title: str, dpi: float, signed: bool) -> Page:
    """A page with room for maps and labels of this size, with title and colour bar."""
    width = max(width + _BAR, 0.115 * text_columns(title) + 0.3)
    page = Page(width, max(height, 2.2) + 0.08, dpi)
    style: dict[str, Any] = {"ha": "left", "size": 12, "weight": "bold"}
    page.text(0.14, 0.28, title, **style)
    top = _TITLE + _HEADING
    page.colour_bar(page.width - 0.6, top, min(page.height - top - 0.2, 2.4), "weight", signed)
    return page


def _cell_side(panel: float, queries: int, keys: int) -> float:
    return min(max(panel / max(queries, keys), _SMALLEST_CELL), _LARGEST_CELL)


def _columns(heads: int, width: float, height: float) -> int:
    """Columns of a grid of heads that comes near 16:9 and leaves few places empty."""

    def badness(columns: int) -> float:
        rows = math.ceil(heads / columns)
        shape = math.log((columns * width + 2) / (rows * height + 1.5) / (16 / 9))
        return abs(shape) + 6 * (rows * columns - heads) / heads

    return min(range(1, heads + 1), key=badness)


def _starts_site(layers: Sequence[LayerMaps], index: int) -> bool:
    """Whether the site changes at this place; so it does just past the end."""
    return index in (0, len(layers)) or layers[index].site != layers[index - 1].site


def _label_size(cell: float) -> float:
    return min(max(cell * 72 * 0.8, 6.0), 10.0)


def _label_every(cell: float) -> int:
    """Each how-manyth piece is named, so that labels of this size do not overlap."""
    return math.ceil(_label_size(cell) / 72 / cell)


def _label_room(pieces: Sequence[str], cell: float) -> float:
    """Inches for the longest label (a letter takes 0.62 em, amply) and the axis's name."""
    longest = max(text_columns(_label(piece)) for piece in pieces)
    return longest * 0.62 * _label_size(cell) / 72 + 0.32


def _label(piece: str) -> str:
    return shortened(piece, _LONGEST_LABEL)
