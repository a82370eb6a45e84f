"""Names from numbers, and the pictures of them."""

import numpy as np
import pytest
from matplotlib.figure import Figure
from matplotlib.text import Text

from headlab.cli.role_report import summary
from headlab.cli.role_settings import read_role_settings
from headlab.head_names import SITES, Head
from headlab.heads.alignment import Agreement
from headlab.heads.role_figures import COLOURS, distances_figure, roles_figure
from headlab.heads.role_names import KINDS, NO_ROLE, Role, name_roles
from headlab.heads.roles import Numbers
from headlab.heads.syntax import DOWN, UP, Accuracy, Relation
from headlab.pictures import MAX_PIXELS, figure_to_image

PLAIN = Numbers(
    confidence=0.4, entropy=1.5, evenness=0.6, first=0.1, end=0.1, punctuation=0.1, position=-1,
    positional=0.4, rare=0.2, rare_unusual=None, two_rarest_unusual=None, diagonality=None,
)  # fmt: skip
OBJ = Relation("obj", DOWN, 200, 2, 0.5)
DET = Relation("det", UP, 300, 1, 0.8)


def labels(numbers: Numbers, aligned: Agreement | None = None, *syntax: Accuracy) -> list[str]:
    roles = name_roles(numbers, aligned, syntax, read_role_settings([]))
    assert [KINDS.index(role.kind) for role in roles] == sorted(KINDS.index(r.kind) for r in roles)
    return [role.label for role in roles]


def texts(figure: Figure) -> list[str]:
    return [text.get_text() for text in figure.findobj(Text) if text.get_text()]


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({}, []),
        ({"positional": 0.9}, ["-1"]),
        ({"positional": 0.95, "position": 2}, ["+2"]),
        ({"positional": 0.95, "position": 0}, ["0"]),
        ({"first": 0.5}, ["first"]),
        ({"end": 0.6, "positional": 1.0}, ["end", "-1"]),
        ({"punctuation": 0.6, "end": 0.55}, ["punct.", "end"]),
        ({"rare": 0.7}, ["rare"]),
        ({"diagonality": 0.7}, ["diag."]),
        ({"evenness": 0.96, "positional": 1.0, "rare": 1.0}, ["even"]),
        ({"end": None, "position": None, "positional": None, "evenness": None}, []),
    ],
)
def test_thresholds(change: dict[str, float], expected: list[str]) -> None:
    assert labels(PLAIN._replace(**change)) == expected


def test_alignment_says_which_row() -> None:
    assert labels(PLAIN, Agreement(0.7, 0.1)) == ["aligned"]
    assert labels(PLAIN, Agreement(0.2, 0.8)) == ["read"]
    assert labels(PLAIN, Agreement(0.4, 0.4)) == []
    assert labels(PLAIN, Agreement(float("nan"), float("nan"))) == []


def test_relations_need_ten_per_cent_more_than_the_baseline() -> None:
    assert labels(PLAIN, None, Accuracy(OBJ, 0.54), Accuracy(DET, 0.87)) == []
    assert labels(PLAIN, None, Accuracy(OBJ, 0.551), Accuracy(DET, 0.99)) == ["det↑", "obj↓"]


def test_every_head_is_in_the_picture() -> None:
    roles = {Head(site, i, h): [] for site in SITES for i in range(2) for h in range(4)}
    roles[Head("encoder", 0, 1)] = [Role("positional", "-1", 0.95)]
    roles[Head("decoder", 1, 3)] = [Role("syntactic", "nsubj↓", 0.6), Role("rare word", "rare", 1)]
    del roles[Head("cross", 1, 0)]
    figure = roles_figure(roles, dict.fromkeys(SITES, (2, 4)), "$roles_{1}$ of a model")
    shown = texts(figure)
    assert {"-1", "nsubj↓·", "–", "positional", "syntactic", "no role", "layer", "head"} <= set(
        shown
    )
    assert shown.count("–") == 1
    assert "rare word" not in shown  # the legend has what is in the picture
    assert {"encoder self-attention", "decoder self-attention", "cross-attention"} <= set(shown)
    assert figure_to_image(figure).std() > 1
    assert set(COLOURS) == {*KINDS, NO_ROLE.kind}


@pytest.mark.parametrize(("layers", "heads"), [(1, 1), (2, 16), (12, 16)])
def test_pictures_of_all_sizes(layers: int, heads: int) -> None:
    roles = {
        Head(site, i, h): [Role("even", "even", 1.0)]
        for site in SITES
        for i in range(layers)
        for h in range(heads)
    }
    image = figure_to_image(roles_figure(roles, dict.fromkeys(SITES, (layers, heads)), "t"))
    assert image.shape[0] * image.shape[1] <= MAX_PIXELS


@pytest.mark.parametrize("count", [2, 3, 40])
def test_the_matrix_is_in_the_order_of_the_tree(count: int) -> None:
    generator = np.random.default_rng(0)
    half = np.triu(generator.random((count, count)), 1)
    matrix = half + half.T
    heads = [Head("cross", i // 4, i % 4) for i in range(count)]
    figure = distances_figure(matrix, heads, "cross-attention: distances")
    (shown,) = [
        np.asarray(image.get_array())
        for axes in figure.axes
        for image in axes.get_images()
        if np.asarray(image.get_array()).shape == (count, count)
    ]
    names = [text for text in texts(figure) if text in {f"{h.layer}.{h.head}" for h in heads}]
    order = [heads.index(Head("cross", *map(int, name.split(".")))) for name in names[::2]]
    if count < 40:  # all are named
        np.testing.assert_allclose(shown, matrix[np.ix_(order, order)])
    np.testing.assert_allclose(np.sort(shown.ravel()), np.sort(matrix.ravel()))
    figure_to_image(figure)


def test_equal_heads_have_a_picture_too() -> None:
    figure_to_image(distances_figure(np.zeros((2, 2)), [Head("cross", 0, i) for i in (0, 1)], "t"))


def test_a_summary_names_the_heads() -> None:
    roles = {Head("encoder", 0, h): [Role("even", "even", 1.0)] for h in range(3)}
    roles[Head("encoder", 0, 3)] = []
    even, none = summary(roles)
    assert even.split() == ["even", "3", "encoder.0.0-2"]
    assert none.split() == ["no", "role", "1", "encoder.0.3"]
