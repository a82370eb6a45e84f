"""What figures are drawn on and how they are kept: a page, its text, and the way to a file.

A figure belongs to nobody but its caller. Nothing here touches pyplot, so that no display is
needed, no figure stays open, and the user's own back end (`MPLBACKEND`) is left alone.
"""

import math
import os
import unicodedata
import warnings
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib import font_manager
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure
from matplotlib.ft2font import FT2Font

from headlab.errors import HeadlabError
from headlab.files import replace_file

MAX_PIXELS = 8_000_000
MAX_SIDE = 8_000
SUFFIXES = (".png", ".pdf", ".svg")

# 0 is white, so that sparse maps print well. Darkness rises all the way, so that the order of
# weights can be read on a bad projector and without colour vision.
_POSITIVE = ("#ffffff", "#fde3b0", "#fb9a62", "#d1426f", "#7a1f81", "#2b0f54", "#000004")
_NEGATIVE = ("#031a12", "#0b4a3a", "#1c7c6b", "#4faf9d", "#98d3c8", "#d5eeea")
WEIGHT_COLOURS = LinearSegmentedColormap.from_list("attention", _POSITIVE)
# From -1 to 1: below 0 the colours are greens, darker the further from 0.
SIGNED_COLOURS = LinearSegmentedColormap.from_list("signed", (*_NEGATIVE, *_POSITIVE))

# Each is used only where it is installed: a first font, then others for the scripts it lacks.
_FONTS = (
    "DejaVu Sans",
    "Noto Sans",
    "Noto Sans CJK JP",
    "Noto Sans CJK SC",
    "Noto Sans JP",
    "Noto Sans SC",
    "Noto Sans KR",
    "WenQuanYi Micro Hei",
    "WenQuanYi Zen Hei",
    "IPAexGothic",
    "Hiragino Sans",
    "PingFang SC",
    "Yu Gothic",
    "Microsoft YaHei",
    "Malgun Gothic",
    "Arial Unicode MS",
    "Noto Sans Thai",
    "Noto Sans Devanagari",
    "Noto Sans Arabic",
    "Noto Sans Hebrew",
)


class Page:
    """A figure measured in inches from its upper left corner.

    dpi is lowered where the figure would have more than `MAX_PIXELS` (8 million) pixels or a side
    of more than `MAX_SIDE` (8,000) pixels.
    """

    def __init__(self, width: float, height: float, dpi: float) -> None:
        self.width, self.height = width, height
        # A hair less than fits, since sides are rounded to whole pixels.
        fits = 0.999 * math.sqrt(MAX_PIXELS / (width * height))
        dpi = min(dpi, fits, (MAX_SIDE - 1) / max(width, height))
        self.figure: Figure = _QuietFigure((width, height), dpi=dpi, facecolor="white")
        FigureCanvasAgg(self.figure)

    def text(self, left: float, top: float, text: str, **style: Any) -> None:
        """Writes text, centred on this place unless the style says otherwise."""
        style = text_style(**({"ha": "center", "va": "center"} | style))
        self.figure.text(left / self.width, 1 - top / self.height, visible(text), **style)

    def axes(self, left: float, top: float, width: float, height: float) -> Axes:
        """Bare axes in this rectangle, without frame, ticks or names."""
        bottom = self.height - top - height
        box = left / self.width, bottom / self.height, width / self.width, height / self.height
        axes = self.figure.add_axes(box)
        axes.set_axis_off()
        return axes

    def colour_bar(
        self, left: float, top: float, height: float, name: str, signed: bool = False
    ) -> None:
        """The scale of `weight_colours` from 0 or -1 to 1, with its name above."""
        axes = self.axes(left, top, 0.14, height)
        least = -1 if signed else 0
        shades = np.linspace(1, least, 256)[:, None]
        colours, box = weight_colours(signed), (0, 1, 0, 1)
        axes.imshow(shades, colours, vmin=least, vmax=1, aspect="auto", extent=box)
        axes.plot([0, 1, 1, 0, 0], [0, 0, 1, 1, 0], color="0.35", linewidth=0.8, clip_on=False)
        for value in (least, (1 + least) / 2, 1):
            place = top + height * (1 - value) / (1 - least)
            self.text(left + 0.19, place, f"{value:g}", ha="left", size=8)
        self.text(left + 0.07, top - 0.12, name, size=8)


def weight_colours(signed: bool) -> LinearSegmentedColormap:
    """The colours of weights, of those from -1 to 1 where some are negative."""
    return SIGNED_COLOURS if signed else WEIGHT_COLOURS


def figure_to_image(figure: Figure) -> np.ndarray:
    """The drawn figure as uint8 (height, width, 3), "HWC" for `SummaryWriter.add_image`."""
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    return np.asarray(canvas.buffer_rgba())[:, :, :3].copy()


def check_picture_name(path: str | Path) -> Path:
    """The path, once its suffix is one of a picture; else raises HeadlabError."""
    path = Path(path)
    if path.suffix.lower() not in SUFFIXES:
        raise HeadlabError(f"{path} is no name for a picture; end it in {', '.join(SUFFIXES)}")
    return path


def check_picture_path(path: str | Path) -> Path:
    """The path, once a picture can be written there; its folder is made where it is missing.

    Raises HeadlabError on an unknown suffix, a folder in the file's place, or a closed folder.
    """
    path = check_picture_name(path)
    if path.is_dir():
        raise HeadlabError(f"{path} is a folder; name a file in it, such as {path / 'map.png'}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        reason = error.strerror or error
        raise HeadlabError(f"cannot make {path.parent}: {reason}; choose another folder") from error
    if not os.access(path.parent, os.W_OK | os.X_OK):
        raise HeadlabError(f"cannot write into {path.parent}: no permission; choose another folder")
    return path


def save_figure(figure: Figure, path: str | Path) -> Path:
    """Writes .png, .pdf or .svg; the path never holds half a picture.

    Raises HeadlabError as `check_picture_path` does, and on a full disk.
    """
    path = check_picture_path(path)
    kind = path.suffix.lower()[1:]
    replace_file(path, lambda file: figure.savefig(file, format=kind, dpi=figure.dpi))
    return path


def text_style(size: float = 9, **style: Any) -> dict[str, Any]:
    """Arguments of a matplotlib text that is never read as a formula, in installed fonts."""
    # parse_math would read $..$ as a formula; usetex, a user's default perhaps, everything.
    return {"parse_math": False, "usetex": False, "family": _fonts(), "size": size, **style}


def visible(text: str) -> str:
    r"""The text with control characters written out (`\n`), so that none breaks a line."""
    return "".join(
        char.encode("unicode_escape").decode() if unicodedata.category(char)[0] == "C" else char
        for char in text
    )


def shortened(text: str, columns: int) -> str:
    """The visible text, cut with an ellipsis where it is wider than so many columns."""
    text = visible(text)
    if text_columns(text) <= columns:
        return text
    while text_columns(text) >= columns:
        text = text[:-1]
    return text + "…"


def text_columns(text: str) -> int:
    """Width in columns of a terminal: letters of scripts such as Chinese take two."""
    return sum(2 if unicodedata.east_asian_width(char) in "WF" else 1 for char in text)


def missing_glyphs(pieces: Sequence[str]) -> str:
    """Characters that no installed font can draw (they become boxes), each once, in order."""
    known = _known_characters()
    seen = dict.fromkeys(char for piece in pieces for char in visible(piece))
    return "".join(char for char in seen if ord(char) not in known)


class _QuietFigure(Figure):
    """A figure without matplotlib's warning for each character that no font has."""

    def draw(self, renderer: Any) -> None:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="Glyph .* missing from")
            super().draw(renderer)


@cache
def _fonts() -> list[str]:
    installed = {font.name for font in font_manager.fontManager.ttflist}
    return [name for name in _FONTS if name in installed] or ["sans-serif"]


@cache
def _known_characters() -> frozenset[int]:
    paths = (font_manager.findfont(family) for family in _fonts())
    return frozenset(code for path in paths for code in FT2Font(path).get_charmap())
