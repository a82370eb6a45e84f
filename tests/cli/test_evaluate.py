import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import typer
from typer.testing import CliRunner

from headlab.cli.evaluate import evaluate
from headlab.errors import HeadlabError
from headlab.evaluation import corpus_scores

Pairs = tuple[tuple[str, str], ...]

app = typer.Typer()
app.command()(evaluate)


def run(*arguments: str) -> str:
    """Standard output of the command; what it raises comes through."""
    result = CliRunner().invoke(app, list(arguments), catch_exceptions=False, standalone_mode=False)
    return result.stdout


def read(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text(encoding="utf-8"))


@pytest.fixture
def checkpoint(
    checkpoint_with_corpus: Callable[..., Path], sentence_pairs: list[tuple[str, str]]
) -> Path:
    """A checkpoint with a small corpus, one of whose pairs is in capitals."""
    parts = {"train": sentence_pairs, "validation": sentence_pairs}
    return checkpoint_with_corpus(parts | {"test": [*sentence_pairs[:4], ("A FRIEND", "UN AMI")]})


def test_a_split_is_scored_and_written_down(checkpoint: Path) -> None:
    output = run(str(checkpoint), "--split", "test")
    result = read(checkpoint.with_name("best.test.json"))
    lines = checkpoint.with_name("best.test.hyp.txt").read_text(encoding="utf-8").split("\n")
    assert lines.pop() == ""
    assert len(lines) == result["sentences"] == 5
    assert lines[:4] == [
        "le minuteur est terminé",
        "la lumière est allumée",
        "la lumière est éteinte",
        "ouvrez la porte",
    ]
    references = [*lines[:4], "UN AMI"]
    scores = corpus_scores(lines, references)
    assert (result["bleu"], result["chrf"]) == (scores.bleu, scores.chrf)
    assert result["bleu_signature"] == scores.bleu_signature
    assert result["hypotheses"] == "best.test.hyp.txt"
    assert result["settings"]["beam"] == 1
    assert result["settings"]["lowercase"] is False
    assert result["perplexity"] > 1
    assert f"{scores.bleu:.2f}" in output
    assert scores.bleu_signature in output
    assert scores.chrf_signature in output
    assert "sentences in" in output
    assert f"next: headlab attend {checkpoint} " in output


def test_other_splits_and_settings(checkpoint: Path) -> None:
    run(str(checkpoint), "--split", "validation", "--beam", "3", "--length-penalty", "0.5")
    result = read(checkpoint.with_name("best.validation.json"))
    assert result["bleu"] == pytest.approx(100)
    assert result["settings"]["beam"] == 3
    assert result["settings"]["length_penalty"] == 0.5
    run(str(checkpoint), "--limit", "2", "--lowercase")
    result = read(checkpoint.with_name("best.test-first2.json"))
    assert result["sentences"] == 2
    assert "case:lc" in result["bleu_signature"]
    assert not checkpoint.with_name("best.test.json").exists()


def test_case_is_ignored_when_the_configuration_says_so(checkpoint: Path) -> None:
    raw = torch.load(checkpoint, weights_only=True)
    raw["headlab"]["config"]["evaluation"]["lowercase"] = True
    torch.save(raw, checkpoint)
    run(str(checkpoint))
    assert "case:lc" in read(checkpoint.with_name("best.test.json"))["bleu_signature"]
    run(str(checkpoint), "--no-lowercase")
    assert "case:mixed" in read(checkpoint.with_name("best.test-2.json"))["bleu_signature"]


def test_other_settings_and_sentences_leave_earlier_results(
    checkpoint: Path, tmp_path: Path
) -> None:
    def found() -> dict[str, bytes]:
        return {path.name: path.read_bytes() for path in checkpoint.parent.glob("best.*.*")}

    run(str(checkpoint))
    before = found()
    for options in (["--beam", "2"], ["--length-penalty", "0.5"], ["--lowercase"]):
        run(str(checkpoint), *options)
        assert {name: found()[name] for name in before} == before
        before = found()
    assert len(before) == 8
    for number, folder in (("", "a"), ("-2", "b")):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "x.en").write_text(f"good morning\n{folder} friend\n")
        (tmp_path / folder / "x.fr").write_text("bonjour\nun ami\n")
        files = [str(tmp_path / folder / f"x.{side}") for side in ("en", "fr")]
        run(str(checkpoint), "--source", files[0], "--reference", files[1])
        result = read(checkpoint.with_name(f"best.file-x.en{number}.json"))
        assert result["source_file"] == files[0]
        assert result["hypotheses"] == f"best.file-x.en{number}.hyp.txt"
    run(str(checkpoint), "--beam", "2")  # again: it is the same
    assert len(found()) == 12


def test_two_files(checkpoint: Path, tmp_path: Path) -> None:
    source, reference = tmp_path / "my test.en", tmp_path / "my test.fr"
    source.write_bytes(b"good morning\n\ntwo lines\na friend")
    reference.write_bytes(b"bonjour\nvide\ndeux lignes\n\n")
    run(str(checkpoint), "--source", str(source), "--reference", str(reference))
    result = read(checkpoint.with_name("best.file-my_test.en.json"))
    lines = checkpoint.with_name("best.file-my_test.en.hyp.txt").read_text(encoding="utf-8")
    assert lines == "bonjour\n\ndeux lignes\nun ami\n"
    assert result["sentences"] == 4
    assert result["split"] is None
    assert result["source_file"] == str(source)


def test_files_without_a_sentence(checkpoint: Path, tmp_path: Path) -> None:
    blank, empty = tmp_path / "blank", tmp_path / "empty"
    blank.write_bytes(b"\n \n")
    empty.write_bytes(b"")
    output = run(str(checkpoint), "--source", str(blank), "--reference", str(blank))
    assert "BLEU    0.00" in output
    assert read(checkpoint.with_name("best.file-blank.json"))["perplexity"] is None
    with pytest.raises(HeadlabError, match="no sentence"):
        run(str(checkpoint), "--source", str(empty), "--reference", str(empty))


def test_files_of_unequal_length(checkpoint: Path, tmp_path: Path) -> None:
    source, reference = tmp_path / "a.en", tmp_path / "a.fr"
    source.write_bytes(b"good morning\na friend\n")
    reference.write_bytes(b"bonjour\n")
    with pytest.raises(HeadlabError, match=r"a\.en has 2 lines and .*a\.fr 1"):
        run(str(checkpoint), "--source", str(source), "--reference", str(reference))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--split", "tset"), "--split tset"),
        (("--source", "x"), "belong together"),
        (("--source", "absent", "--reference", "absent"), "absent"),
    ],
)
def test_mistakes_are_named(checkpoint: Path, options: tuple[str, ...], message: str) -> None:
    with pytest.raises(HeadlabError, match=message):
        run(str(checkpoint), *options)


def test_the_corpus_class_must_be_ours(learnt_checkpoint: Path, checkpoint: Path) -> None:
    raw = torch.load(learnt_checkpoint, weights_only=True)
    raw["headlab"]["config"]["data"] = {"_target_": "os.system", "command": "false"}
    torch.save(raw, checkpoint)
    with pytest.raises(HeadlabError, match=r"os\.system"):
        run(str(checkpoint))


def test_an_interrupted_writing_leaves_the_old_scores(
    checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(str(checkpoint))
    before = read(checkpoint.with_name("best.test.json"))

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(HeadlabError, match="No space left"):
        run(str(checkpoint), "--beam", "2")
    assert read(checkpoint.with_name("best.test.json")) == before
    assert sorted(p.name for p in checkpoint.parent.iterdir()) == [
        "best.ckpt",
        "best.test.hyp.txt",
        "best.test.json",
    ]
    shutil.rmtree(checkpoint.parent)
