"""translate, evaluate, attend and train as typed, on a checkpoint that train.py made."""

import json
import os
import re
import subprocess
import sys

import pytest


@pytest.fixture(scope="module")
def best(run) -> str:
    """The checkpoint as it is typed in the workplace."""
    return f"outputs/{run.name}/best.ckpt"


def test_translate_arguments(command, workplace, best) -> None:
    sentences = ["the red cat", "L'ami, c'est « ça » ?", "", "a=b {x}"]
    done = command("translate", best, *sentences, cwd=workplace)
    assert done.returncode == 0, done.stderr.decode()
    lines = done.stdout.decode().split("\n")
    assert len(lines) == 5
    assert lines[2] == lines[4] == ""


def test_translate_files(command, workplace, best) -> None:
    source = "the red cat\n\nthe\u2028blue\x85dog\rruns\n \u3000\nthe big house".encode()
    done = command("translate", best, cwd=workplace, input=source)
    assert done.returncode == 0
    lines = done.stdout.decode().split("\n")
    assert len(lines) == 6
    assert lines[1] == lines[3] == lines[5] == ""
    one_by_one = [
        command("translate", best, line, cwd=workplace).stdout.decode().rstrip("\n")
        for line in ("the red cat", "the big house")
    ]
    assert [lines[0], lines[4]] == one_by_one
    assert command("translate", best, cwd=workplace, input=b"").stdout == b""
    broken = command("translate", best, cwd=workplace, input=b"ok\ncaf\xe9\n")
    assert broken.returncode == 1
    assert re.search(r"error: .*line 2.*UTF-8", broken.stderr.decode())


def test_evaluate(command, workplace, best) -> None:
    done = command("evaluate", best, "--split", "test", "--beam", "2", cwd=workplace)
    assert done.returncode == 0, done.stderr.decode()
    out = done.stdout.decode()
    assert re.search(r"BLEU +[\d.]+ +nrefs:1\|case:mixed\|eff:no\|tok:13a", out)
    assert "next: headlab attend" in out
    # best.test.json has the scores that the training ended with.
    stored = json.loads((workplace / best).with_name("best.test-2.json").read_text())
    assert f"{stored['bleu']:.2f}" in out
    assert stored["settings"]["beam"] == 2
    hypotheses = (workplace / best).with_name(stored["hypotheses"]).read_text().split("\n")
    assert len(hypotheses) == stored["sentences"] + 1


def test_evaluate_from_another_folder(command, workplace, best, tmp_path) -> None:
    """The corpus was given by a relative path; the checkpoint knows where it was."""
    done = command("evaluate", workplace / best, "--split", "validation", cwd=tmp_path)
    assert done.returncode == 0, done.stderr.decode()
    assert not list(tmp_path.iterdir())


def test_attend(command, workplace, best) -> None:
    done = command("attend", best, "the red cat sees", "--out", "attention.png", cwd=workplace)
    assert done.returncode == 0, done.stderr.decode()
    assert (workplace / "attention.png").read_bytes().startswith(b"\x89PNG")


def test_headlab_train_is_train_py(command, workplace, tiny) -> None:
    """Both print the same configuration, and take the same overrides."""
    arguments = [*tiny, "data.train=pairs.tsv", "--cfg", "job"]
    one = command("train", *arguments, cwd=workplace)
    other = command("headlab-train", *arguments, cwd=workplace)
    assert one.returncode == other.returncode == 0, other.stderr.decode()
    assert one.stdout == other.stdout
    assert b"d_model: 32" in one.stdout


def test_help_names_every_command(command, workplace) -> None:
    done = command("--help", cwd=workplace)
    assert done.returncode == 0
    for name in ("train", "translate", "evaluate", "attend"):
        assert name in done.stdout.decode()


@pytest.mark.parametrize("option", ["--help", "--cfg=job"])
def test_a_reader_that_leaves_is_no_error(option, environment, workplace) -> None:
    """As in ``headlab train --help | head -1``."""
    reading, writing = os.pipe()
    os.close(reading)
    command = [sys.executable, "-m", "headlab", "train", option]
    done = subprocess.run(
        command, stdout=writing, stderr=subprocess.PIPE, cwd=workplace, env=environment, check=False
    )
    os.close(writing)
    assert done.stderr == b""
    assert done.returncode == 141


@pytest.mark.parametrize("name", ["translate", "evaluate", "attend"])
def test_a_missing_checkpoint_is_one_line(command, workplace, name) -> None:
    done = command(
        name, "nowhere/best.ckpt", *(["hello"] if name != "evaluate" else []), cwd=workplace
    )
    assert done.returncode == 1
    assert done.stderr.decode().strip() == "error: no checkpoint at nowhere/best.ckpt"
