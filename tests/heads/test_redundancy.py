"""Distances between heads, against scipy's."""

import numpy as np
import pytest
import torch
from scipy.spatial.distance import jensenshannon

from headlab.heads.redundancy import HeadDistances, cluster


def test_distances_against_scipy() -> None:
    torch.manual_seed(0)
    distances, expected, queries = HeadDistances(), np.zeros((5, 5)), 0
    for rows, length in ((2, 4), (3, 6)):
        # Layers of different numbers of heads, also of none.
        layers = [torch.rand(rows, heads, length, length).softmax(-1) for heads in (2, 0, 3)]
        layers[0][:, 0, :, 1:] = 0.0  # weights of exactly 0
        layers[0][:, 0, :, 0] = 1.0
        real = torch.ones(rows, length, dtype=torch.bool)
        real[0, 2:] = False
        distances.add(layers, real)
        heads = torch.cat(layers, dim=1).numpy().astype(float)
        for row, query in real.nonzero().tolist():
            queries += 1
            for i in range(5):
                for j in range(5):
                    pair = heads[row, i, query], heads[row, j, query]
                    expected[i, j] += jensenshannon(*pair, base=2) if i != j else 0.0
    np.testing.assert_allclose(distances.matrix(), expected / queries, atol=1e-6)


def test_equal_heads_have_no_distance_and_foreign_ones_the_whole() -> None:
    weights = torch.zeros(1, 3, 1, 4)
    weights[0, :2, 0, :2] = 0.5
    weights[0, 2, 0, 2:] = 0.5
    distances = HeadDistances()
    distances.add([weights], torch.ones(1, 1, dtype=torch.bool))
    matrix = distances.matrix()
    assert matrix[0, 1] == 0
    assert matrix[0, 2] == matrix[2, 1] == pytest.approx(1.0)
    np.testing.assert_array_equal(matrix, matrix.T)


def test_few_heads() -> None:
    assert HeadDistances().matrix().shape == (0, 0)
    for heads in (0, 1):
        distances = HeadDistances()
        distances.add([torch.ones(1, heads, 2, 2) / 2], torch.ones(1, 2, dtype=torch.bool))
        assert distances.matrix().shape == (heads, heads)


def test_the_tree_joins_what_is_alike() -> None:
    matrix = np.array([[0, 0.9, 0.1], [0.9, 0, 0.8], [0.1, 0.8, 0]])
    tree = cluster(matrix)
    assert sorted(tree[0, :2]) == [0, 2]
    assert tree[0, 2] == pytest.approx(0.1)
    assert tree[1, 2] == pytest.approx(0.85)  # average linkage
