import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.text import Text

from headlab.heads.charts import change_bars, layer_bars, spread_dots
from headlab.heads.figures import head_heatmaps, number_text
from headlab.pictures import figure_to_image

SITES = ("encoder", "decoder", "cross")


def texts(figure: Figure) -> list[Text]:
    """All that is written, in cells and around them."""
    found = list(figure.texts)
    for axes in figure.axes:
        found += axes.texts
        if axes.axison:
            found += [*axes.get_xticklabels(), *axes.get_yticklabels()]
    return [text for text in found if text.get_text()]


def words(figure: Figure) -> list[str]:
    return [text.get_text() for text in texts(figure)]


def assert_apart(figure: Figure) -> None:
    """No text lies over another or outside the page."""
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    renderer = canvas.get_renderer()
    boxes = np.array([text.get_window_extent(renderer).extents for text in texts(figure)])
    left, bottom, right, top = boxes.T
    assert min(left.min(), bottom.min()) >= 0
    assert right.max() <= figure.bbox.x1
    assert top.max() <= figure.bbox.y1
    beside = (right[:, None] <= left) | (left[:, None] >= right)
    above = (top[:, None] <= bottom) | (bottom[:, None] >= top)
    over = np.argwhere(~(beside | above | np.eye(len(boxes), dtype=bool)))
    assert not len(over), [words(figure)[i] for i in over[0]]


def tables(layers: int, heads: int, scale: float = 1.0) -> dict[str, np.ndarray]:
    draw = np.random.default_rng(0)
    return {site: draw.normal(0, scale, (layers, heads)) for site in SITES}


@pytest.mark.parametrize(("layers", "heads"), [(1, 1), (4, 4), (2, 8), (16, 16)])
def test_every_number_can_be_read(layers: int, heads: int) -> None:
    values = tables(layers, heads, 30.0)
    marked = {site: table > 0 for site, table in values.items()}
    figure = head_heatmaps(values, "BLEU", "BLEU", centre=0.0, fmt="{:+.2f}", marked=marked)
    written = words(figure)
    for site, table in values.items():
        for value in table.flat:
            assert number_text(value, "{:+.2f}") + "*" * int(value > 0) in written, site
    assert_apart(figure)


def test_absent_heads_are_grey_dashes() -> None:
    values = tables(2, 3)
    values["cross"][1, 2] = np.nan
    values["decoder"][0] = np.nan
    figure = head_heatmaps(values, "title", "unit")
    assert words(figure).count("–") == 4
    (picture,) = figure.axes[2].images
    grey = picture.get_array()[1, 2]
    assert grey[0] == grey[1] == grey[2]
    assert head_heatmaps({"cross": np.full((2, 2), np.nan)}, "t", "u", centre=0.0)


def test_the_centre_is_white_and_the_sides_differ() -> None:
    values = {"cross": np.array([[-2.0, 0.0, 2.0, 1.0]])}
    low, white, high, _ = (
        head_heatmaps(values, "t", "u", centre=0.0).axes[0].images[0].get_array()[0]
    )
    assert white[:3].min() > 0.9
    assert high[0] > high[2]  # orange
    assert low[0] < low[2]  # purple
    turned = head_heatmaps(values, "t", "u", centre=0.0, reverse=True).axes[0].images[0]
    np.testing.assert_allclose(turned.get_array()[0, 0], high, atol=0.02)
    # One colour: darker for more.
    grey = head_heatmaps(values, "t", "u").axes[0].images[0].get_array()[0, :, :3].sum(axis=1)
    assert grey[0] > grey[1] > grey[3] > grey[2]


def test_all_sites_share_a_scale() -> None:
    values = {"encoder": np.array([[1.0]]), "cross": np.array([[4.0, 1.0]])}
    one, other = head_heatmaps(values, "t", "u").axes[:2]
    np.testing.assert_array_equal(
        one.images[0].get_array()[0, 0], other.images[0].get_array()[0, 1]
    )


def test_a_long_title_is_shortened() -> None:
    figure = head_heatmaps(tables(2, 2), "x$_{i}$ long " * 40, "a unit that is far too long")
    assert any(word.startswith("x$_{i}$ long") and word.endswith("…") for word in words(figure))
    assert_apart(figure)


@pytest.mark.parametrize("values", [{}, {"head": np.zeros((2, 2))}, {"cross": np.zeros(3)}])
def test_other_tables_are_refused(values: dict) -> None:
    with pytest.raises(ValueError, match="encoder, decoder, cross"):
        head_heatmaps(values, "t", "u")


def test_numbers_rounded_to_nothing_have_no_sign() -> None:
    assert [number_text(v, "{:+.1f}") for v in (-0.04, 0.04, -0.06, 10.0)] == [
        "0.0", "0.0", "-0.1", "+10.0",
    ]  # fmt: skip


def test_bars_of_changes() -> None:
    names = ["cross.0.*", "encoder.0-3.*", "a very long list of heads " * 5, "nothing"]
    changes = [-12.34, 0.5, float("nan"), 0.0]
    figure = change_bars(names, changes, "title", "BLEU", marked=[True, False, False, False])
    written = words(figure)
    assert {"-12.34*", "+0.50", "–", "0.00", "cross.0.*"} <= set(written)
    assert_apart(figure)
    widths = [bar.get_width() for bar in figure.axes[0].patches]
    assert widths == [-12.34, 0.5, 0.0, 0.0]


@pytest.mark.parametrize("changes", [[0.0], [3.0, 4.0], [-3.0, -4.0]])
def test_bars_on_one_side(changes: list[float]) -> None:
    assert_apart(change_bars(["a"] * len(changes), changes, "title", "BLEU"))


def test_bars_of_two_parts() -> None:
    values = {s: {"validation": [-1.0, 0.5], "test": [-2.0, float("nan")]} for s in SITES}
    marked = {s: {"validation": [False, False], "test": [True, False]} for s in SITES}
    figure = layer_bars(values, "title", "BLEU", marked=marked)
    assert words(figure).count("*") == 3
    assert "pale: validation, full: test" in words(figure)
    assert_apart(figure)


def test_dots_of_draws() -> None:
    figure = spread_dots({1: [-1.0, -1.2], 2: [-3.0], 8: []}, "title", "BLEU")
    assert {"1", "2", "8", "heads off"} <= set(words(figure))
    assert_apart(figure)
    assert figure_to_image(figure).std() > 0
