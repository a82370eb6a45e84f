"""What is left of a sweep: the table, its files, and the picture."""

import csv
import json
from pathlib import Path

import pytest

from headlab.cli.sweep import Job, report_sweep
from headlab.heads import sweep_figures


def final(bleu: float, **more) -> dict:
    return {
        "parameters": 1000, "heads": 48, "best_validation": bleu + 1, "monitor": "val/bleu",
        "test_bleu": bleu, "test_chrf": 50.0, "test_perplexity": 6.0, "tokens_per_second": 6500.4,
    } | more  # fmt: skip


def jobs(folder: Path, *pairs: tuple[list[str], dict | None]) -> list[Job]:
    return [
        Job(",".join(overrides[1:]), overrides, folder / str(i), found)
        for i, (overrides, found) in enumerate(pairs)
    ]


@pytest.fixture
def drawn(monkeypatch) -> list:
    """What the picture was asked to show."""
    calls: list = []
    draw = sweep_figures.sweep_figure

    def keep(varied, values, panels, title, **options):
        calls.append((varied, list(values), panels))
        return draw(varied, values, panels, title, **options)

    monkeypatch.setattr(sweep_figures, "sweep_figure", keep)
    return calls


def test_one_number_is_the_axis(tmp_path: Path, drawn: list, capsys) -> None:
    same = "data.limit=5"
    done = jobs(
        tmp_path,
        ([same, "model.heads=16"], final(30.0)),
        ([same, "model.heads=2"], final(20.0)),
        ([same, "model.heads=4"], None),
    )
    report_sweep(done, tmp_path)
    ((varied, values, panels),) = drawn
    assert (varied, values) == ("model.heads", [16, 2])
    assert panels["BLEU"] == {"test": [30.0, 20.0], "validation": [31.0, 21.0]}
    rows = list(csv.DictReader((tmp_path / "sweep.csv").open()))
    assert [row["model.heads"] for row in rows] == ["16", "2", "4"]
    assert [row["test_bleu"] for row in rows] == ["30.0", "20.0", ""]
    assert "data.limit" not in rows[0]
    assert json.loads((tmp_path / "sweep.json").read_text())[2]["failed"] is True
    assert (tmp_path / "sweep.png").stat().st_size > 5000
    assert list((tmp_path / "tensorboard").glob("events*"))
    out = capsys.readouterr().out
    assert "6,500" in out
    assert "failed" in out


def test_several_keys_or_words_are_names_on_the_axis(tmp_path: Path, drawn: list, capsys) -> None:
    done = jobs(
        tmp_path,
        (["seed=1", "schedule=cosine"], final(30.0, monitor="val/objective", heads=20)),
        (["seed=2", "schedule=inverse_sqrt"], final(31.0, monitor="val/objective", heads=30)),
        (["seed=2", "schedule=cosine", "model.ablate=[cross.0.1,cross.0.2]"], final(29.0)),
    )
    report_sweep(done, tmp_path)
    ((varied, values, panels),) = drawn
    assert varied == "seed, schedule, model.ablate"
    assert values[1].startswith("2 inverse_sqrt")
    assert list(panels)[:2] == ["BLEU", "val/objective"]
    out = capsys.readouterr().out
    assert "heads" in out
    assert "val/objective" in out


def test_nothing_varies_or_everything_failed(tmp_path: Path, drawn: list) -> None:
    report_sweep(jobs(tmp_path, (["y=1", "seed=1"], final(3.0))), tmp_path)
    report_sweep(jobs(tmp_path, (["y=1", "seed=1"], None), (["y=1", "seed=2"], None)), tmp_path)
    assert len(drawn) == 1
    assert len(json.loads((tmp_path / "sweep.json").read_text())) == 1
    assert len(json.loads((tmp_path / "sweep-2.json").read_text())) == 2
