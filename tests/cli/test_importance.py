import csv
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from headlab.checkpoint import read_checkpoint, save_checkpoint
from headlab.cli.importance import importance
from headlab.errors import HeadlabError
from headlab.heads.gates import gates_without
from headlab.heads.measure import Measurer
from headlab.heads.surgery import cut_heads

app = typer.Typer()
app.command()(importance)


def run(*arguments: str) -> str:
    """Standard output of the command; what it raises comes through."""
    result = CliRunner().invoke(app, list(arguments), catch_exceptions=False, standalone_mode=False)
    return result.stdout


@pytest.fixture
def place(learnt_checkpoint: Path, learnt_pairs: Any, tmp_path: Path) -> Path:
    """A folder with the checkpoint and two files of sentences."""
    shutil.copy(learnt_checkpoint, tmp_path / "best.ckpt")
    pairs = [pair for pair in learnt_pairs if "\n" not in pair[1]]
    for i, name in enumerate(("source.txt", "reference.txt")):
        (tmp_path / name).write_text("".join(f"{pair[i]}\n" for pair in pairs), encoding="utf-8")
    return tmp_path


@pytest.fixture
def weigh(place: Path) -> Callable[..., str]:
    def weigh(*options: str, name: str = "best.ckpt") -> str:
        files = "--source", str(place / "source.txt"), "--reference", str(place / "reference.txt")
        return run(str(place / name), *files, *options)

    return weigh


def rows(path: Path) -> list[dict[str, str]]:
    with open(path, encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def test_tables_figures_and_what_to_do_next(place: Path, weigh: Callable[..., str]) -> None:
    output = weigh("--normalize-by-layer")
    folder = place / "best.importance-file-source.txt"
    names = ("gradient", "gradient_in_layer", "confidence", "entropy", "loss_change")
    for name in names:
        assert (folder / f"{name}.png").read_bytes().startswith(b"\x89PNG")
    assert list((folder / "tensorboard").glob("events*"))
    table = rows(folder / "importance.csv")
    assert len(table) == 12
    assert table[5]["name"] == "decoder.0.1"
    assert table[5]["site"] == "decoder"
    for layer in range(3):
        norms = [float(row["gradient_in_layer"]) ** 2 for row in table[4 * layer : 4 * layer + 4]]
        assert sum(norms) == pytest.approx(1.0)

    loaded = read_checkpoint(place / "best.ckpt")
    texts = [(place / n).read_text("utf-8").splitlines() for n in ("source.txt", "reference.txt")]
    measurer = Measurer(loaded, *texts, translate=False)
    without = measurer.measure(gates_without(loaded.model, [loaded.model.head_names[9]])).nll
    change = without - measurer.measure().nll
    assert float(table[9]["loss_change"]) == pytest.approx(change, rel=1e-4)

    found = json.loads((folder / "correlations.json").read_text("utf-8"))
    assert [(row["score"], row["site"]) for row in found[:4]] == [
        ("gradient", place) for place in ("encoder", "decoder", "cross", "all")
    ]
    assert found[3]["heads"] == 12
    assert f"{found[3]['rho']:+.2f}" in output
    assert "next: headlab prune" in output
    # The most important head comes first.
    first = max(table, key=lambda row: float(row["loss_change"]))["name"]
    lines = [line for line in output.splitlines() if ".0." in line]
    assert first in lines[0]


def test_it_goes_on_where_it_was_stopped(
    place: Path, weigh: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = Measurer.measure
    left = [7]

    def stops(self: Measurer, *arguments: Any, **options: Any) -> Any:
        left[0] -= 1
        if left[0] < 0:
            raise TimeoutError
        return whole(self, *arguments, **options)

    monkeypatch.setattr(Measurer, "measure", stops)
    with pytest.raises(TimeoutError):
        weigh()
    left[0] = 6  # 13 in all: the whole model, and twelve heads
    weigh()
    assert left[0] == 0
    first = (place / "best.importance-file-source.txt" / "importance.csv").read_bytes()
    weigh()
    assert (place / "best.importance-file-source.txt" / "importance.csv").read_bytes() == first


def test_without_the_slow_part(place: Path, weigh: Callable[..., str]) -> None:
    output = weigh("--no-loss-change", "--limit", "3")
    folder = place / "best.importance-file-source.txt-first3"
    assert "loss_change" not in rows(folder / "importance.csv")[0]
    assert not (folder / "loss_change.png").exists()
    assert "rho" not in output


def test_a_pruned_model_keeps_its_numbers(place: Path, weigh: Callable[..., str]) -> None:
    loaded = read_checkpoint(place / "best.ckpt")
    heads = loaded.model.head_names
    save_checkpoint(place / "cut.ckpt", loaded, cut_heads(loaded.model, [*heads[:2], *heads[4:8]]))
    output = weigh(name="cut.ckpt")
    table = rows(place / "cut.importance-file-source.txt" / "importance.csv")
    assert [row["name"] for row in table] == [str(one) for one in (*heads[2:4], *heads[8:])]
    assert "encoder.0.2" in output
    assert "encoder.0.0" not in output


def test_mistakes(place: Path, weigh: Callable[..., str]) -> None:
    with pytest.raises(HeadlabError, match=r"need references.*headlab roles .*best.ckpt --source"):
        run(str(place / "best.ckpt"), "--source", str(place / "source.txt"))
    loaded = read_checkpoint(place / "best.ckpt")
    save_checkpoint(place / "bare.ckpt", loaded, cut_heads(loaded.model, loaded.model.head_names))
    with pytest.raises(HeadlabError, match=r"bare.ckpt has no attention head left to weigh"):
        weigh(name="bare.ckpt")
    with pytest.raises(HeadlabError, match="choose train, validation or test"):
        run(str(place / "best.ckpt"), "--split", "tets")


def test_a_later_call_takes_nothing_away(
    place: Path, weigh: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Options that change what is written have folders of their own; nothing is measured twice."""
    weigh()
    folder = place / "best.importance-file-source.txt"
    before = {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}
    monkeypatch.setattr(Measurer, "measure", None)
    weigh("--no-loss-change")
    weigh("--normalize-by-layer")
    weigh()
    after = {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}
    assert after == before
    names = [set(rows(place / f"{folder.name}{n}" / "importance.csv")[0]) for n in ("", "-2", "-3")]
    assert names[0] - names[1] == {"loss_change"}
    assert names[2] - names[0] == {"gradient_in_layer"}
    assert not (place / f"{folder.name}-2" / "correlations.csv").exists()
