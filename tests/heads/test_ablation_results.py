import csv
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from headlab.heads.ablation import Row
from headlab.heads.ablation_results import Results, grid, michel_table, write_results
from headlab.heads.study import Study

# Two layers, three heads; the decoder's second layer lacks one, the cross-attention a whole layer.
MODEL: Any = SimpleNamespace(
    kept={
        "encoder": [[0, 1, 2], [0, 1, 2]],
        "decoder": [[0, 1, 2], [0, 2]],
        "cross": [[], [0, 1, 2]],
    },
    heads=3,
)


def row(name: str, part: str, change: float | None = 0.0, star: bool = False, **labels) -> Row:
    return {
        "configuration": name,
        **labels,
        "part": part,
        "off": [name],
        "left": ["encoder.0.0"],
        "heads_off": 1,
        "heads_left": 1,
        "bleu": None if change is None else 30 + change,
        "bleu_change": change,
        "bleu_p": 0.001 if star else 0.5,
        "bleu_significant": star,
    }


def heads(part: str, shift: float) -> list[Row]:
    """A row for the full model and for each head that stays, each with a change of its own."""
    rows = [row("full", part)]
    for site, layers in MODEL.kept.items():
        for layer, numbers in enumerate(layers):
            for head in numbers:
                change = shift - layer - head / 10
                place = {"site": site, "layer": layer, "head": head}
                rows.append(row(f"only-{site}.{layer}.{head}", part, change, head == 0, **place))
    return rows


def results(kind: str, rows: list[Row], choice: list[Row], best: list[Row]) -> Results:
    return Results(kind, rows, choice, best, [{"part": "test"}], [], ["bleu"], 2)


@pytest.fixture
def study(tmp_path: Path) -> Study:
    (tmp_path / "best.ckpt").write_bytes(b"weights")
    return Study(tmp_path / "best.ckpt", "ablation-all_but_one-test", {})


def read(path: Path) -> list[dict[str, str]]:
    with open(path, encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def test_the_grid_has_a_hole_for_each_absent_head() -> None:
    found = grid(heads("test", -1.0), "bleu_change", MODEL)
    np.testing.assert_allclose(found["encoder"], [[-1, -1.1, -1.2], [-2, -2.1, -2.2]])
    np.testing.assert_allclose(found["decoder"], [[-1, -1.1, -1.2], [-2, np.nan, -2.2]])
    np.testing.assert_allclose(found["cross"], [[np.nan] * 3, [-2, -2.1, -2.2]])
    stars = grid(heads("test", 0), "bleu_significant", MODEL, False)
    assert stars["decoder"].dtype == bool
    assert stars["decoder"].tolist() == [[True, False, False], [True, False, False]]
    assert grid([row("full", "test")], "bleu_change", MODEL) == {}


def test_michels_table_lays_both_splits_side_by_side(study: Study) -> None:
    choice, rows = heads("validation", 0.0), heads("test", -5.0)
    best = [one for one in choice if one.get("head") == 0]
    reported = [one for one in rows if one.get("head") in (None, 0)]
    found = results("all_but_one", reported, choice, best)
    table = michel_table(found, "bleu", MODEL)
    assert table[0] == {
        "layer": 0,
        "encoder_head": 0,
        "encoder_validation": "0.00*",
        "encoder_test": "-5.00*",
        "decoder_head": 0,
        "decoder_validation": "0.00*",
        "decoder_test": "-5.00*",
        "cross_head": None,
        "cross_validation": None,
        "cross_test": None,
    }
    assert table[1]["cross_test"] == "-6.00*"
    write_results(study, found, MODEL, 80)
    study.close()
    assert len(read(study.folder / "ablation.csv")) == len(choice) + len(reported)
    assert read(study.folder / "michel.csv")[1]["cross_validation"] == "-1.00*"
    whole = read(study.folder / "bleu_change_validation.csv")
    assert whole[3] == {
        "site": "decoder", "layer": "1", "head_0": "-1.0", "head_1": "", "head_2": "-1.2",
    }  # fmt: skip
    assert (study.folder / "bleu_change_validation.png").is_file()
    assert (study.folder / "bleu_change.png").is_file()


def test_choosing_and_reporting_on_one_set_has_two_columns() -> None:
    rows = heads("test", 0.0)
    best = [one for one in rows if one.get("head") == 0]
    table = michel_table(results("all_but_one", rows, rows, best), "bleu", MODEL)
    assert {"encoder_test_chosen", "encoder_test_reported"} <= set(table[0])


def test_values_that_could_not_be_measured_are_holes(study: Study) -> None:
    rows = [row("full", "test", None), row("encoder", "test", None, site="encoder")]
    write_results(study, results("each_site", rows, [], []), MODEL, 80)
    place = {"site": "encoder", "layer": 0, "head": 0}
    rows = [row("full", "test", None), row("encoder.0.0", "test", None, **place)]
    write_results(study, results("each_head", rows, [], []), MODEL, 80)
    assert read(study.folder / "ablation.csv")[1]["bleu_change"] == ""
