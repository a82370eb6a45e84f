import csv
import hashlib
import json
import math
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from matplotlib.figure import Figure

from headlab.errors import HeadlabError
from headlab.heads import study as study_module
from headlab.heads.study import Study


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    path = tmp_path / "best.ckpt"
    path.write_bytes(b"weights")
    return path


def test_a_study_is_taken_up_again(checkpoint: Path) -> None:
    study = Study(checkpoint, "ablation-test", {"split": "test", "k": [1, 2]})
    assert study.folder == checkpoint.parent / "best.ablation-test"
    assert study.done("encoder.0.0", dict) is None
    study.record("encoder.0.0", {"bleu": 1.5, "text": ["é\u2028x"]})
    again = Study(checkpoint, "ablation-test", {"split": "test", "k": [1, 2]})
    assert again.folder == study.folder
    assert again.done("encoder.0.0", dict) == {"bleu": 1.5, "text": ["é\u2028x"]}


def test_a_record_cut_short_by_a_kill_is_measured_again(checkpoint: Path) -> None:
    study = Study(checkpoint, "s", {})
    for i in range(3):
        study.record(str(i), {"value": i})
    journal = study.folder / "measured.jsonl"
    journal.write_bytes(journal.read_bytes()[:-9])
    again = Study(checkpoint, "s", {})
    assert again.done("1", dict) == {"value": 1}
    assert again.done("2", dict) is None
    again.record("2", {"value": 22})
    assert Study(checkpoint, "s", {}).done("2", dict) == {"value": 22}
    assert Study(checkpoint, "s", {}).done("1", dict) == {"value": 1}


def test_other_settings_and_other_weights_get_their_own_folder(checkpoint: Path) -> None:
    first = Study(checkpoint, "s", {"split": "test"})
    first.record("a", {})
    second = Study(checkpoint, "s", {"split": "validation"})
    assert second.folder.name == "best.s-2"
    assert second.done("a", dict) is None
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


class Found(NamedTuple):
    value: float
    texts: list[str]


def lines(study: Study) -> list[str]:
    return (study.folder / "measured.jsonl").read_text("utf-8").splitlines()


def test_a_record_of_another_version_is_not_used_and_not_destroyed(checkpoint: Path) -> None:
    """A field that is unknown, missing, or of another type: it is measured again."""
    study = Study(checkpoint, "s", {})
    whole = {"value": 1.0, "texts": ["a"]}
    for key, values in {
        "more": {**whole, "extra": 1},
        "less": {"value": 1.0},
        "other": {**whole, "value": "1.0"},
        "nested": {**whole, "texts": [["a"]]},
        "nothing": None,
        "list": [1.0, ["a"], 3],
        "right": whole,
        "nan": {**whole, "value": math.nan},
    }.items():
        study.record(key, values)
    (study.folder / "measured.jsonl").open("a").write("[" * 100_000 + "\n{}\nnonsense\n")
    before = lines(study)
    again = Study(checkpoint, "s", {})
    for key in ("more", "less", "other", "nested", "nothing", "list", "missing"):
        assert again.done(key, Found) is None
    assert again.done("right", Found) == Found(1.0, ["a"])
    nan = again.done("nan", Found)
    assert nan is not None
    assert math.isnan(nan.value)
    again.record("more", Found(2.0, []))
    assert Study(checkpoint, "s", {}).done("more", Found) == Found(2.0, [])
    assert lines(study)[: len(before)] == before


def test_numbers_of_an_older_version_stay_in_their_folder(
    checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    older = Study(checkpoint, "s", {})
    older.record("a", 1.0)
    older.table("t", [{"a": 1}])
    monkeypatch.setattr(study_module, "FORMAT", study_module.FORMAT + 1)
    newer = Study(checkpoint, "s", {})
    assert newer.folder.name == "best.s-2"
    assert newer.done("a", float) is None
    assert (older.folder / "t.csv").exists()


def test_a_folder_without_a_version_is_not_used(checkpoint: Path) -> None:
    """As the first version of the program wrote it."""
    digest = hashlib.sha256(checkpoint.read_bytes()).hexdigest()
    folder = checkpoint.with_name("best.s")
    folder.mkdir()
    (folder / "settings.json").write_text(json.dumps({"checkpoint": digest}), "utf-8")
    (folder / "measured.jsonl").write_text('{"key": "a", "values": 1.0}\n', "utf-8")
    study = Study(checkpoint, "s", {})
    assert study.folder.name == "best.s-2"
    assert study.done("a", float) is None


def test_what_is_shown_otherwise_is_not_measured_again(checkpoint: Path) -> None:
    first = Study(checkpoint, "s", {"k": 1}, {"digits": 2})
    first.record("a", 1.0)
    other = Study(checkpoint, "s", {"k": 1}, {"digits": 3})
    assert other.folder.name == "best.s-2"
    assert other.done("a", float) == 1.0
    other.record("b", 2.0)
    assert Study(checkpoint, "s", {"k": 1}, {"digits": 3}).done("a", float) == 1.0
    assert Study(checkpoint, "s", {"k": 2}, {"digits": 2}).done("a", float) is None
    assert Study(checkpoint, "s", {"k": 1}, {"digits": 2}).folder == first.folder


AT_WORK = """
import sys
from pathlib import Path
from headlab.heads import study as study_module
from headlab.heads.study import Study
study = Study(Path(sys.argv[1]), "s", {"k": 1})
print("ready", flush=True)
sys.stdin.readline()
study.record("theirs", 1.0)
"""


def test_one_process_at_a_time(checkpoint: Path) -> None:
    """The same study is refused; another one goes on beside it, and after its end the same."""
    pytest.importorskip("fcntl")
    command = [sys.executable, "-c", AT_WORK, str(checkpoint)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == b"ready\n"
        with pytest.raises(HeadlabError, match=r"best\.s: another process is at work") as refusal:
            Study(checkpoint, "s", {"k": 1})
        assert "\n" not in str(refusal.value)
        assert Study(checkpoint, "s", {"k": 2}).folder.name == "best.s-2"
        other.communicate(b"\n", timeout=30)
    study = Study(checkpoint, "s", {"k": 1})
    assert study.done("theirs", float) == 1.0
    study.close()


@pytest.mark.parametrize("name", ["a b'\n\\*[x]?.ckpt", "-é%s{}.ckpt", "..ckpt"])
def test_odd_names(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.write_bytes(b"weights")
    study = Study(path, "s", {"file": name}, {"a": 1})
    study.record("a", name)
    study.scalars({"x": 1.0})
    study.close()
    assert study.folder == tmp_path / f"{path.stem}.s"
    assert Study(path, "s", {"file": name}, {"a": 2}).done("a", str) == name
    assert len(list((study.folder / "tensorboard").glob("events*"))) == 1


def test_a_name_that_leaves_no_room_and_a_folder_that_is_closed(
    tmp_path: Path, checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a\udcff.ckpt").write_bytes(b"weights")
    with pytest.raises(HeadlabError, match="the name is no Unicode; rename it"):
        Study(tmp_path / "a\udcff.ckpt", "s", {})
    long = tmp_path / f"{'a' * 245}.ckpt"
    long.write_bytes(b"weights")
    with pytest.raises(HeadlabError, match="give it a shorter name"):
        Study(long, "ablation-each_head", {})

    def closed(path: Path, **_: object) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "mkdir", closed)
    with pytest.raises(HeadlabError, match=r"best\.s: Permission denied; .*copy it to a folder"):
        Study(checkpoint, "s", {})


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
        (study.folder / "tensorboard").mkdir(exist_ok=True)
        (study.folder / "tensorboard" / "notes.txt").write_text("mine")
        written = study.close()
    assert [path.name for path in written] == ["map.png"]
    events = EventAccumulator(str(study.folder / "tensorboard"))
    events.Reload()
    assert [e.value for e in events.Scalars("s/bleu/full")] == [3.5]
    assert events.Tags()["scalars"] == ["s/bleu/full"]
    assert len(events.Images("s/map")) == 1
    assert (study.folder / "tensorboard" / "notes.txt").read_text() == "mine"


def test_a_place_that_cannot_be_written(checkpoint: Path) -> None:
    (checkpoint.parent / "best.s").write_text("a file")
    with pytest.raises(HeadlabError, match=r"best\.s"):
        Study(checkpoint, "s", {})
