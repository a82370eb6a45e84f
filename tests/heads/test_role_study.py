"""The study of roles finds what was planted in a model's weights."""

import csv
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
import typer
from typer.testing import CliRunner

from headlab.checkpoint import read_checkpoint, save_checkpoint
from headlab.cli.roles import roles
from headlab.errors import HeadlabError
from headlab.head_names import Head
from headlab.heads.surgery import cut_heads

app = typer.Typer()
app.command()(roles)

# What was planted: the main role and its label.
EXPECTED = {
    "encoder.0.0": ("positional", "-1"),
    "encoder.0.1": ("rare word", "rare"),
    "encoder.0.2": ("syntactic", "obj↓"),
    "encoder.0.3": ("even", "even"),
    "decoder.0.0": ("positional", "-1"),
    "decoder.0.1": ("sink", "first"),
    "decoder.0.2": ("positional", "0"),
    "decoder.0.3": ("even", "even"),
    "cross.0.0": ("aligned", "read"),
    "cross.0.1": ("aligned", "aligned"),
    "cross.0.2": ("sink", "end"),
    "cross.0.3": ("even", "even"),
}


@pytest.fixture
def checkpoint(planted: Any, tmp_path: Path) -> Path:
    """A copy, since results are written beside it."""
    return Path(shutil.copy(planted.checkpoint, tmp_path / "best.ckpt"))


def run(*arguments: Any) -> str:
    """Standard output; what the command raises comes through."""
    texts = [str(argument) for argument in arguments]
    result = CliRunner().invoke(app, texts, catch_exceptions=False, standalone_mode=False)
    return result.stdout


def table(folder: Path, name: str) -> dict[str, dict[str, Any]]:
    return {row["head"]: row for row in json.loads((folder / f"{name}.json").read_text("utf-8"))}


def main_roles(rows: dict[str, dict[str, Any]]) -> dict[str, tuple[str, str]]:
    return {
        head: (row["main_role"], row["roles"][0].split(":")[1] if row["roles"] else "")
        for head, row in rows.items()
    }


def test_planted_roles_are_found(checkpoint: Path, planted: Any) -> None:
    printed = run(checkpoint, "instances=20", "--conllu-source", planted.conllu)
    folder = checkpoint.with_name("best.roles-test")
    rows = table(folder, "roles")
    assert main_roles(rows) == EXPECTED

    previous = rows["encoder.0.0"]
    assert (previous["position"], previous["positional"]) == (-1, 1.0)
    assert previous["confidence"] > 0.8  # the first token has no previous one: it looks anywhere
    assert rows["encoder.0.1"]["rare"] == 1.0
    assert rows["encoder.0.1"]["rare_unusual"] is None  # there are not 500 words
    assert rows["encoder.0.3"]["evenness"] == pytest.approx(1.0)
    assert rows["decoder.0.1"]["first"] == pytest.approx(1.0)
    assert rows["decoder.0.1"]["end"] is None
    assert rows["cross.0.0"]["aligned_reading"] == 1.0
    assert rows["cross.0.0"]["aligned_predicting"] < 0.2
    assert rows["cross.0.1"]["aligned_predicting"] == 1.0
    assert rows["cross.0.1"]["diagonality"] == pytest.approx(1.0)
    assert rows["cross.0.1"]["roles"] == ["aligned:aligned", "diagonal:diag."]
    assert rows["cross.0.2"]["end"] == pytest.approx(1.0)
    assert rows["cross.0.3"]["diagonality"] == pytest.approx(0.0, abs=1e-6)

    relations = json.loads((folder / "relations.json").read_text("utf-8"))
    found = {(row["relation"], row["direction"]): row for row in relations}
    obj = found["obj", "to dependent"]
    assert (obj["best_head"], obj["accuracy"], obj["syntactic"]) == ("encoder.0.2", 1.0, True)
    assert obj["instances"] == 90
    assert obj["baseline"] < 0.6  # its object is one, two or three words on
    assert all(row["relation"] in ("obj", "amod") for row in relations)  # dep is ignored
    # The adjective beside the noun is at -1 for head 0 and the baseline alike.
    assert found["amod", "to dependent"]["baseline"] == 1.0
    assert not found["amod", "to dependent"]["syntactic"]

    with (folder / "distances.csv").open(newline="") as file:
        distances = {(row["head"], row["other"]): row["distance"] for row in csv.DictReader(file)}
    assert len(distances) == 3 * 6
    # One token in five reads <s>, where both look at the end of sentence.
    assert 0.7 < float(distances["cross.0.0", "cross.0.2"]) < 0.85
    for name in ("roles", "distances_encoder", "distances_decoder", "distances_cross"):
        assert (folder / f"{name}.png").read_bytes().startswith(b"\x89PNG")
    for text in ("obj↓", "-1 1.00", "encoder.0.2", "positional", "written:", "next: headlab"):
        assert text in printed
    assert list((folder / "tensorboard").iterdir())


def test_a_second_run_measures_nothing_again(
    checkpoint: Path, planted: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments = checkpoint, "instances=20", "--conllu-source", planted.conllu
    printed = run(*arguments)

    def never(*_: Any) -> Any:
        raise AssertionError("measured again")

    monkeypatch.setattr("headlab.transformer.Transformer.attention_weights", never)
    assert run(*arguments) == printed
    with pytest.raises(AssertionError, match="measured again"):
        run(checkpoint, "instances=20", "even=0.9", "--conllu-source", planted.conllu)


def test_heads_keep_their_numbers_in_a_pruned_model(checkpoint: Path, planted: Any) -> None:
    loaded = read_checkpoint(checkpoint)
    gone = [Head("encoder", 0, 0), Head("decoder", 0, 1), *(Head("cross", 0, i) for i in range(4))]
    pruned = checkpoint.with_name("pruned.ckpt")
    save_checkpoint(pruned, loaded, cut_heads(loaded.model, gone))
    run(pruned, "instances=20", "--conllu-source", planted.conllu)
    folder = pruned.with_name("pruned.roles-test")
    left = {name: role for name, role in EXPECTED.items() if name not in map(str, gone)}
    assert main_roles(table(folder, "roles")) == left
    assert not (folder / "distances_cross.png").exists()


def test_permuting_heads_permutes_the_roles(checkpoint: Path, planted: Any) -> None:
    raw = torch.load(checkpoint, weights_only=True)
    order = [2, 3, 1, 0]
    for name in (
        "encoder.0.self_attention",
        "decoder.0.self_attention",
        "decoder.0.cross_attention",
    ):
        key = f"model.{name}.in_projection.weight"
        weight = raw["state_dict"][key]
        raw["state_dict"][key] = weight.unflatten(0, (3, 4, -1))[:, order].flatten(0, 2).clone()
    torch.save(raw, checkpoint)
    run(checkpoint, "instances=20", "--conllu-source", planted.conllu)
    found = main_roles(table(checkpoint.with_name("best.roles-test"), "roles"))
    for site in ("encoder", "decoder", "cross"):
        for new, old in enumerate(order):
            assert found[f"{site}.0.{new}"] == EXPECTED[f"{site}.0.{old}"]


def test_sentences_of_a_file_with_and_without_references(
    checkpoint: Path, planted: Any, tmp_path: Path
) -> None:
    source, reference = tmp_path / "a.txt", tmp_path / "b.txt"
    source.write_text("\n".join([*planted.sources[:30], ""]) + "\n", encoding="utf-8")
    reference.write_text("\n".join([*planted.targets[:30], ""]) + "\n", encoding="utf-8")
    gold = tmp_path / "gold.txt"
    gold.write_text(
        "\n".join(" ".join(f"{i}-{i}" for i in range(len(t.split()))) for t in planted.sources[:30])
        + "\n\n"
    )
    run(checkpoint, "--source", source, "--reference", reference, "--alignments", gold)
    rows = table(checkpoint.with_name("best.roles-file-a.txt"), "roles")
    assert rows["cross.0.0"]["aligned_reading"] == 1.0
    without = {name for name, role in EXPECTED.items() if role[0] != "syntactic"}
    assert {n: r for n, r in main_roles(rows).items() if n in without} == {
        n: r for n, r in EXPECTED.items() if n in without
    }
    # The model's own translations: what encoder heads do needs no reference.
    run(checkpoint, "--source", source)
    rows = table(checkpoint.with_name("best.roles-file-a.txt-2"), "roles")
    for name in ("encoder.0.0", "encoder.0.1", "encoder.0.3"):
        assert main_roles(rows)[name] == EXPECTED[name]


def test_without_the_training_split(
    checkpoint: Path, planted: Any, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    raw = torch.load(checkpoint, weights_only=True)
    raw["headlab"]["config"]["data"] |= {"train": "/nowhere/train.tsv", "root": str(tmp_path)}
    torch.save(raw, checkpoint)
    files = tmp_path / "a.txt", tmp_path / "b.txt"
    for path, texts in zip(files, (planted.sources, planted.targets), strict=True):
        path.write_text("\n".join(texts) + "\n", encoding="utf-8")
    arguments = str(checkpoint), "--source", str(files[0]), "--reference", str(files[1])
    result = CliRunner().invoke(app, arguments, catch_exceptions=False, standalone_mode=False)
    assert "the training split cannot be read" in result.stderr
    rows = table(checkpoint.with_name("best.roles-file-a.txt"), "roles")
    assert rows["encoder.0.1"]["rare"] is None
    assert rows["cross.0.0"]["aligned_reading"] is None
    assert main_roles(rows)["encoder.0.0"] == EXPECTED["encoder.0.0"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["positional"], "positional: settings are written key=value"),
        (["position=1"], "position: no such key; did you mean positional"),
        (["positional=x"], "positional='x'"),
        (["positional=1.5"], "positional=1.5 must lie in [0, 1]"),
        (["instances=0"], "instances=0 must be at least 1"),
        (["ignored=det"], "ignored='det'"),
        (["--split", "dev"], "--split dev"),
        (["--reference", "x"], "--reference needs --source"),
        (["--alignments", "nowhere.txt"], "--alignments=nowhere.txt: no such file"),
        (["--conllu-source", "nowhere.conllu"], "--conllu-source=nowhere.conllu: no such file"),
        (["--parser", "middle=fr_core_news_sm"], "write NAME, source=NAME or target=NAME"),
    ],
)
def test_mistakes_are_one_line_and_leave_nothing(
    checkpoint: Path, arguments: list[str], said: str
) -> None:
    with pytest.raises(HeadlabError) as caught:
        run(checkpoint, *arguments)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)
    assert [path.name for path in checkpoint.parent.iterdir()] == ["best.ckpt"]


def test_references_are_needed_for_what_belongs_to_them(
    checkpoint: Path, planted: Any, tmp_path: Path
) -> None:
    source = tmp_path / "a.txt"
    source.write_text("sees cat soon\n")
    for option in ("--alignments", "--conllu-target"):
        with pytest.raises(HeadlabError, match=f"{option} needs the translations"):
            run(checkpoint, "--source", source, option, planted.conllu)


def test_parses_of_other_sentences_are_refused(
    checkpoint: Path, planted: Any, tmp_path: Path
) -> None:
    lines = planted.conllu.read_text("utf-8").split("\n\n")
    path = tmp_path / "other.conllu"
    path.write_text("\n\n".join([*lines[:6], *lines[7:]]), encoding="utf-8")
    with pytest.raises(HeadlabError, match=r"other\.conllu, sentence 7: the word"):
        run(checkpoint, "--conllu-source", path)
    path.write_text("0-0\n" * 89 + "9-0\n", encoding="utf-8")
    with pytest.raises(HeadlabError, match=r"other\.conllu, line 90: 9-0 is outside"):
        run(checkpoint, "--alignments", path)
    assert not checkpoint.with_name("best.roles-test").exists()
