"""Figures: what stands on them, their bounds, and that they leave nothing behind."""

import os
import subprocess
import sys
import warnings
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pytest
import torch
from matplotlib.figure import Figure
from matplotlib.image import AxesImage
from matplotlib.text import Text

from headlab.errors import HeadlabError
from headlab.pictures import MAX_PIXELS, MAX_SIDE
from headlab.plots import (
    LayerMaps,
    attention_figure,
    attention_overview,
    figure_to_image,
    layer_maps,
    missing_glyphs,
    save_figure,
)

LITERAL = ["$x_{", "$", "_", "{", "\\alpha", "^", "%", "$\\frac{1}$", "#&~", "</s>"]


def random_maps(heads: int, queries: int, keys: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(heads, queries, keys, generator=generator).softmax(-1)


def texts(figure: Figure) -> list[str]:
    return [text.get_text() for text in figure.findobj(Text) if text.get_text()]


def panels(figure: Figure) -> list[AxesImage]:
    """The maps, in the order of heads, without the colour bar (which is drawn first)."""
    return [image for axes in figure.axes[1:] for image in axes.get_images()]


@pytest.mark.parametrize("heads", [1, 2, 3, 5, 7, 8, 12, 16, 64])
def test_each_head_has_a_map_of_its_own(heads: int) -> None:
    maps = random_maps(heads, 4, 3)
    figure = attention_figure(maps, list("abcd"), list("xyz"), "cross-attention, layer 0")
    drawn = panels(figure)
    assert len(drawn) == heads
    for head, image in enumerate(drawn):
        np.testing.assert_allclose(np.asarray(image.get_array()), maps[head].numpy())
        assert image.get_clim() == (0, 1)
    for head in range(heads):
        assert texts(figure).count(f"head {head}") == 1
    assert "cross-attention, layer 0" in texts(figure)
    assert "queries" in texts(figure)
    assert "keys" in texts(figure)


def test_padding_is_cropped_and_rows_still_sum_to_one() -> None:
    maps = torch.zeros(2, 6, 6)
    maps[:, :4, :3] = random_maps(2, 4, 3)
    figure = attention_figure(maps, list("abcd"), list("xyz"), "t")
    for image in panels(figure):
        shown = np.asarray(image.get_array())
        assert shown.shape == (4, 3)
        np.testing.assert_allclose(shown.sum(-1), 1, rtol=1e-6)


def test_queries_go_down_and_keys_across() -> None:
    maps = torch.zeros(1, 2, 3)
    maps[0, 1, 2] = 1.0
    figure = attention_figure(maps, ["up", "down"], ["left", "middle", "right"], "t", dpi=100)
    figure.canvas.draw()
    image = figure_to_image(figure)
    axes = figure.axes[1]

    def pixel(query: int, key: int) -> int:
        x, y = axes.transData.transform((key + 0.5, query + 0.5))
        return int(image[image.shape[0] - int(y), int(x)].sum())

    assert pixel(1, 2) < 30
    assert pixel(0, 0) > 700
    positions = {t.get_text(): t.get_window_extent() for t in figure.findobj(Text) if t.get_text()}
    assert positions["up"].y0 > positions["down"].y0
    assert positions["left"].x0 < positions["right"].x0


def test_pieces_are_drawn_literally() -> None:
    with plt.rc_context({"text.parse_math": True}):
        figure = attention_figure(random_maps(2, 10, 10), LITERAL, LITERAL, "price: $5_{x} and $6")
        figure_to_image(figure)
    assert set(LITERAL) <= set(texts(figure))
    assert not any(text.get_parse_math() for text in figure.findobj(Text) if text.get_text())
    # A formula would have been drawn without its dollars: the picture must differ from it.
    assert "price: $5_{x} and $6" in texts(figure)


def test_a_user_default_of_latex_is_overruled() -> None:
    with plt.rc_context({"text.usetex": True}):
        figure_to_image(attention_figure(random_maps(1, 2, 2), ["$", "_"], ["{", "}"], "t"))


@pytest.mark.parametrize("suffix", [".png", ".pdf", ".svg"])
def test_characters_without_a_font_warn_of_nothing(suffix: str, tmp_path: Path) -> None:
    pieces = ["▁日本語", "ไทย", "العربية", "😀", "\U0010fffd", "a\nb", "\t", "", "\x00", "\ud800"]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        figure = attention_figure(random_maps(2, 10, 10), pieces, pieces, "日本語")
        save_figure(figure, tmp_path / f"a{suffix}")
    assert {"▁日本語", "العربية", "a\\nb", "\\t"} <= set(texts(figure))


def test_missing_glyphs_are_named_once() -> None:
    assert missing_glyphs(["plain", "é"]) == ""
    assert missing_glyphs(["\ue123a", "\ue123"]) == ""  # private use: shown by its number
    assert missing_glyphs(["𒀀x", "𒀀𒀁"]) in ("𒀀𒀁", "")  # cuneiform; few systems have it


@pytest.mark.parametrize(
    ("heads", "length"), [(1, 1), (8, 12), (64, 60), (16, 200), (2, 1000), (64, 1)]
)
def test_pixels_are_bounded(heads: int, length: int) -> None:
    pieces = ["▁piece"] * length
    maps = torch.full((heads, length, length), 1 / length)
    figure = attention_figure(maps, pieces, pieces, "t", dpi=300)
    overview = attention_overview(
        [LayerMaps("encoder", i, maps, pieces, pieces) for i in range(2)], "t", dpi=300
    )
    for one in (figure, overview):
        width, height = one.get_size_inches() * one.dpi
        assert np.ceil(width) * np.ceil(height) <= MAX_PIXELS
        assert max(width, height) <= MAX_SIDE


def test_long_pieces_and_titles_are_cut() -> None:
    pieces = ["a" * 500, "漢" * 500]
    figure = attention_figure(random_maps(1, 2, 2), pieces, pieces, "b" * 5000)
    assert max(map(len, texts(figure))) <= 100
    width, height = figure.get_size_inches()
    assert width < 15
    assert height < 10


def test_long_sentences_name_some_pieces_and_say_so() -> None:
    pieces = [f"p{i}" for i in range(120)]
    figure = attention_figure(random_maps(2, 120, 120), pieces, pieces, "t")
    found = set(texts(figure))
    assert "p0" in found
    assert "p1" not in found
    assert any("is named" in text for text in found)


def test_two_hundred_figures_leave_none_open() -> None:
    before = plt.get_fignums()
    maps = random_maps(2, 2, 2)
    for _ in range(200):
        figure = attention_figure(maps, ["a", "b"], ["c", "d"], "t", dpi=20)
    image = figure_to_image(figure)
    assert image.dtype == np.uint8
    assert image.ndim == 3
    assert image.shape[2] == 3
    assert plt.get_fignums() == before == []


def test_works_without_a_display() -> None:
    code = (
        "import torch\n"
        "from headlab.plots import attention_figure, figure_to_image\n"
        "figure = attention_figure(torch.ones(1, 1, 1), ['a'], ['b'], 't')\n"
        "assert figure_to_image(figure).min() < 20\n"
        "import sys; assert 'tkinter' not in sys.modules\n"
        "assert 'matplotlib.pyplot' not in sys.modules\n"
    )
    environment = {k: v for k, v in os.environ.items() if k not in ("DISPLAY", "WAYLAND_DISPLAY")}
    subprocess.run(
        [sys.executable, "-c", code], check=True, env=environment | {"MPLBACKEND": "TkAgg"}
    )


def test_overview_shows_every_head_of_every_layer() -> None:
    source, target = list("abc"), ["<s>", "x"]
    weights = {
        "encoder": [random_maps(4, 3, 3)[None] for _ in range(2)],
        "decoder": [random_maps(4, 2, 2)[None] for _ in range(3)],
        "cross": [random_maps(4, 2, 3)[None] for _ in range(3)],
    }
    layers = layer_maps(weights, 0, source, target)
    assert [(one.site, one.layer) for one in layers] == [
        *(("encoder", i) for i in range(2)),
        *(("decoder", i) for i in range(3)),
        *(("cross", i) for i in range(3)),
    ]
    figure = attention_overview(layers, "a b c → x")
    assert len(panels(figure)) == 4 * 8
    named = texts(figure)
    assert {"encoder 0", "encoder 1", "decoder 2", "cross 0", "cross 2"} <= set(named)
    assert [named.count(f"head {i}") for i in range(4)] == [3] * 4  # once a site
    assert figure_to_image(figure).ndim == 3


def test_layer_maps_crop_a_padded_row() -> None:
    weights = {
        "encoder": [torch.rand(2, 1, 5, 5)],
        "decoder": [torch.rand(2, 1, 4, 4)],
        "cross": [torch.rand(2, 1, 4, 5)],
    }
    encoder, decoder, cross = layer_maps(weights, 1, ["a", "b", "</s>"], ["<s>", "x"])
    assert encoder.weights.shape == (1, 3, 3)
    assert decoder.weights.shape == (1, 2, 2)
    assert cross.weights.shape == (1, 2, 3)
    assert torch.equal(cross.weights, weights["cross"][0][1, :, :2, :3])
    assert "cross-attention" in cross.title


def test_heads_of_a_pruned_model_keep_their_numbers() -> None:
    source, target = list("abc"), ["<s>", "x"]
    kept = {"encoder": [[1, 3], [0, 1, 3]], "decoder": [[], [2]], "cross": [[0], [3]]}
    weights = {
        "encoder": [random_maps(len(heads), 3, 3)[None] for heads in kept["encoder"]],
        "decoder": [torch.ones(1, len(heads), 2, 2) for heads in kept["decoder"]],
        "cross": [random_maps(len(heads), 2, 3)[None] for heads in kept["cross"]],
    }
    layers = layer_maps(weights, 0, source, target, kept)
    assert [(one.site, one.layer, one.heads) for one in layers] == [
        ("encoder", 0, [1, 3]),
        ("encoder", 1, [0, 1, 3]),
        ("decoder", 1, [2]),  # a layer without heads has no maps
        ("cross", 0, [0]),
        ("cross", 1, [3]),
    ]
    overview = attention_overview(layers, "t")
    named = texts(overview)
    assert len(panels(overview)) == 8
    # Where a layer has others than the one above it, its heads are named again.
    assert [named.count(f"head {i}") for i in range(4)] == [2, 2, 1, 3]
    one = attention_figure(layers[0].weights, source, source, "t", heads=layers[0].heads)
    assert {"head 1", "head 3"} <= set(texts(one))
    assert "head 0" not in texts(one)
    figure_to_image(overview)


def test_keys_are_named_under_the_lowest_map_of_each_column() -> None:
    keys = ["left", "right"]
    layers = [
        LayerMaps("encoder", i, random_maps(len(heads), 2, 2), keys, keys, heads)
        for i, heads in enumerate(([0, 1, 2], [1], [0, 2]))
    ]
    shown = texts(attention_overview(layers, "t"))
    # Beside each of three layers, and below the third map of the first and both of the last.
    assert shown.count("left") == 3 + 1 + 2


@pytest.mark.parametrize("shape", [(2, 2), (0, 2, 2), (1, 1, 2), (1, 2, 1), (1, 1, 2, 2)])
def test_weights_that_do_not_fit_are_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(HeadlabError, match="shape"):
        attention_figure(torch.ones(shape), ["a", "b"], ["c", "d"], "t")


def test_half_precision_and_gradients_are_no_trouble() -> None:
    weights = torch.full((1, 2, 2), 0.5, dtype=torch.bfloat16, requires_grad=True)
    assert figure_to_image(attention_figure(weights, ["a", "b"], ["c", "d"], "t")).size


def test_saving_replaces_whole_files_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    figure = attention_figure(random_maps(1, 2, 2), ["a", "b"], ["c", "d"], "t")
    path = tmp_path / "new" / "picture.PNG"
    assert save_figure(figure, path) == path
    assert path.read_bytes().startswith(b"\x89PNG")
    before = path.read_bytes()

    def full_disk(file: object, **options: object) -> None:
        file.write(b"half")  # type: ignore[attr-defined]
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(figure, "savefig", full_disk)
    with pytest.raises(HeadlabError, match="No space left"):
        save_figure(figure, path)
    assert path.read_bytes() == before
    assert list(path.parent.iterdir()) == [path]


@pytest.mark.parametrize("name", ["a.gif", "a", "a.png/b.png", "folder.png"])
def test_places_that_cannot_be_written_are_refused(name: str, tmp_path: Path) -> None:
    (tmp_path / "a.png").write_text("a file")
    (tmp_path / "folder.png").mkdir()
    figure = attention_figure(random_maps(1, 1, 1), ["a"], ["b"], "t")
    with pytest.raises(HeadlabError) as caught:
        save_figure(figure, tmp_path / name)
    assert "\n" not in str(caught.value)


def signed_maps() -> torch.Tensor:
    maps = random_maps(2, 4, 4) * 0.2
    maps[1, 3, 0] = -0.4
    return maps


def test_weights_that_are_no_distribution_say_what_1_is() -> None:
    pieces = list("abcd")
    for maps, least, said in (
        (signed_maps(), -1, " (black = 0.4)"),
        (random_maps(2, 4, 4) * 3, 0, f" (black = {float(random_maps(2, 4, 4).max() * 3):.2g})"),
        (random_maps(2, 4, 4) * 0.3, 0, ""),
    ):
        scale = float(maps.abs().max()) if said else 1.0
        figure = attention_figure(maps, pieces, pieces, "layer 0")
        assert f"layer 0{said}" in texts(figure)
        for head, image in enumerate(panels(figure)):
            drawn = np.asarray(image.get_array()) * scale
            np.testing.assert_allclose(drawn, maps[head].numpy(), atol=1e-6)
            assert image.get_clim() == (least, 1)


def test_an_overview_has_a_scale_for_each_layer() -> None:
    pieces = list("abcd")
    layers = [
        LayerMaps("decoder", 0, signed_maps(), pieces, pieces),
        LayerMaps("decoder", 1, random_maps(2, 4, 4), pieces, pieces),
    ]
    figure = attention_overview(layers, "a sentence")
    assert {"decoder 0", "black = 0.4", "decoder 1"} <= set(texts(figure))
    drawn = panels(figure)
    assert {image.get_clim() for image in drawn} == {(-1, 1)}
    assert np.asarray(drawn[1].get_array()).min() == -1
    white = drawn[0].get_cmap()(0.5)
    assert white == pytest.approx((1.0, 1.0, 1.0, 1.0), abs=0.01)
