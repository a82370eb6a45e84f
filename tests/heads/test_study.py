import csv
import json
import math
from pathlib import Path

import numpy as np
import pytest
from matplotlib.figure import Figure

from headlab.errors import HeadlabError
from headlab.heads.study import Study


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    path = tmp_path / "best.ckpt"
    path.write_bytes(b"weights")
    return path


def test_a_study_is_taken_up_again(checkpoint: Path) -> None:
    study = Study(checkpoint, "ablation-test", {"split": "test", "k": [1, 2]})
    assert study.folder == checkpoint.parent / "best.ablation-test"
    assert study.done("encoder.0.0") is None
    study.record("encoder.0.0", {"bleu": 1.5, "text": ["é\u2028x"]})
    again = Study(checkpoint, "ablation-test", {"split": "test", "k": [1, 2]})
    assert again.folder == study.folder
    assert again.done("encoder.0.0") == {"bleu": 1.5, "text": ["é\u2028x"]}


def test_a_record_cut_short_by_a_kill_is_measured_again(checkpoint: Path) -> None:
    study = Study(checkpoint, "s", {})
    for i in range(3):
        study.record(str(i), {"value": i})
    journal = study.folder / "measured.jsonl"
    journal.write_bytes(journal.read_bytes()[:-9])
    again = Study(checkpoint, "s", {})
    assert again.done("1") == {"value": 1}
    assert again.done("2") is None
    again.record("2", {"value": 22})
    assert Study(checkpoint, "s", {}).done("2") == {"value": 22}
    assert Study(checkpoint, "s", {}).done("1") == {"value": 1}


def test_other_settings_and_other_weights_get_their_own_folder(checkpoint: Path) -> None:
    first = Study(checkpoint, "s", {"split": "test"})
    first.record("a", {})
    second = Study(checkpoint, "s", {"split": "validation"})
    assert second.folder.name == "best.s-2"
    assert second.done("a") is None
    checkpoint.write_bytes(b"other weights")
    third = Study(checkpoint, "s", {"split": "test"})
    assert third.folder.name == "best.s-3"
    checkpoint.write_bytes(b"weights")
    assert Study(checkpoint, "s", {"split": "test"}).folder == first.folder


def test_a_folder_of_somebody_else_is_left_alone(checkpoint: Path) -> None:
    other = checkpoint.parent / "best.s"
    other.mkdir()
    (other / "notes.txt").write_text("mine")
    assert Study(checkpoint, "s", {}).folder.name == "best.s-2"


def test_tables(checkpoint: Path) -> None:
    study = Study(checkpoint, "s", {})
    rows = [
        {"head": "cross.0.0", "bleu": np.float64(1.5), "off": ["a", "b"]},
        {"head": "é", "bleu": math.nan, "stars": True},
    ]
    study.table("heads", rows)
    with open(study.folder / "heads.csv", encoding="utf-8", newline="") as file:
        found = list(csv.DictReader(file))
    assert found[0] == {"head": "cross.0.0", "bleu": "1.5", "off": "a b", "stars": ""}
    assert found[1]["bleu"] == ""
    stored = json.loads((study.folder / "heads.json").read_text("utf-8"))
    assert stored[0]["off"] == ["a", "b"]
    assert stored[1]["bleu"] is None


def test_tensorboard_has_the_numbers_and_figures_once(checkpoint: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    for _ in range(2):
        study = Study(checkpoint, "s", {})
        study.figure("map", Figure(figsize=(1, 1)))
        study.scalars({"bleu/full": 3.5, "bleu/none": math.nan})
        written = study.close()
    assert [path.name for path in written] == ["map.png"]
    events = EventAccumulator(str(study.folder / "tensorboard"))
    events.Reload()
    assert [e.value for e in events.Scalars("s/bleu/full")] == [3.5]
    assert events.Tags()["scalars"] == ["s/bleu/full"]
    assert len(events.Images("s/map")) == 1


def test_a_place_that_cannot_be_written(checkpoint: Path) -> None:
    (checkpoint.parent / "best.s").write_text("a file")
    with pytest.raises(HeadlabError, match=r"best\.s"):
        Study(checkpoint, "s", {})
