"""``headlab benchmark``."""

import importlib.util
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from headlab.benchmark import start_time
from headlab.benchmark.contest import Contest, Spread
from headlab.benchmark.process import ContestantFailed
from headlab.cli.app import app
from headlab.errors import HeadlabError

SPREAD = {"median", "low", "high"}
MARIAN = importlib.util.find_spec("transformers") is not None
CTRANSLATE = importlib.util.find_spec("ctranslate2") is not None


@pytest.fixture
def checkpoint(
    checkpoint_with_corpus: Callable[..., Path],
    sentence_pairs: list[tuple[str, str]],
    run_config: dict[str, Any],
) -> Path:
    """A checkpoint with a small corpus and the whole configuration of its run."""
    path = checkpoint_with_corpus(dict.fromkeys(("train", "validation", "test"), sentence_pairs))
    raw = torch.load(path, weights_only=True)
    described = raw["headlab"]
    sizes = {
        key: described["model"][key] for key in run_config["model"] if key in described["model"]
    }
    described["config"] = run_config | {
        "data": described["config"]["data"],
        "model": sizes,
        "position": described["model"]["position"],
        "attention": described["model"]["attention"],
    }
    torch.save(raw, path)
    return path


def run(*arguments: object) -> str:
    """What the command prints."""
    result = CliRunner().invoke(app, ["benchmark", *map(str, arguments)])
    if result.exception is not None:
        raise result.exception
    return result.stdout


def test_the_whole_command(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(start_time, "REPEATS", 1)
    out = tmp_path / "figures.json"
    options = "--seconds", 0.01, "--threads", 1, "--minutes", 600
    printed = run(checkpoint, *options, "--profile", "--out", out)
    found = json.loads(out.read_text(encoding="utf-8"))

    training = found["training"]
    assert training["batches"] == 1  # the corpus has no more, though twelve were asked for
    names = [row["name"] for row in training["contestants"]]
    torch_rows = ["torch.nn.Transformer", "torch.nn.Transformer, our memory settings"]
    assert names == ["Headlab", *torch_rows, *["transformers MarianMT"] * MARIAN]
    for row in training["contestants"]:
        assert len(row["seconds"]) == 3
        assert row["target_tokens_per_second"].keys() == SPREAD
        assert 0 < row["model_flops_utilisation"]["median"] < 1
        assert row["losses"] == sorted(row["losses"], reverse=True)  # it does learn
        assert (row["headlab_ratio"] is None) == (row["name"] == "Headlab")
    assert len(training["matrix_product_gflops"]) == 4  # before, between and after the turns

    decoding = found["decoding"]
    rows = {row["name"]: row for row in decoding["contestants"]}
    assert len(rows) == 3 + 3 * MARIAN + 2 * CTRANSLATE
    tokens = rows["Headlab"]["target_tokens"]
    for row in rows.values():
        if row["beam"] == 1 or "Marian" in row["name"]:
            assert row["target_tokens"] == tokens
        assert row["headlab_ratio"] is None or row["headlab_ratio"]["low"] > 0
    assert decoding["equal_outputs"] == (1.0 if CTRANSLATE else None)
    assert found["start_seconds"].keys() == {"translate", "training"}
    assert found["surroundings"]["threads"] == 1

    for part in ("training", "decoding"):
        shares = [row["share"] for row in found[part]["profile"]]
        assert sum(shares) == pytest.approx(1.0)
        for name in (*names, *rows):
            assert name in printed
    if not CTRANSLATE:
        assert "CTranslate2: ctranslate2 is not installed: pip install" in printed
    assert printed.splitlines()[-1] == f"next: headlab evaluate {checkpoint}"
    assert "biases in the attention's projections" in printed


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--split", "dev"], "--split dev: choose train, validation or test"),
        (["--device", "tpu"], "--device tpu: not available here; choose auto or cpu"),
        (["--out", "{folder}"], "--out .* is a folder; name a file in it"),
        (["--out", "{folder}/none/a.json"], "--out .*: there is no folder .*none; make it first"),
        (["--out", "{checkpoint}"], "--out .* is the checkpoint itself; choose another name"),
    ],
)
def test_mistakes_are_named_before_anything_starts(
    checkpoint: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    options: list[str],
    message: str,
) -> None:
    monkeypatch.setattr(subprocess, "Popen", None)
    given = [one.format(folder=tmp_path, checkpoint=checkpoint) for one in options]
    with pytest.raises(HeadlabError, match=f"^{message}"):
        run(checkpoint, *given)


@pytest.mark.parametrize("option", [["--turns", "2"], ["--only", "tuning"], ["--threads", "0"]])
def test_values_out_of_range_are_refused(checkpoint: Path, option: list[str]) -> None:
    result = CliRunner().invoke(app, ["benchmark", str(checkpoint), *option])
    assert result.exit_code == 2
    assert option[0] in result.output


def test_a_checkpoint_without_the_configuration_of_a_training_is_refused(
    checkpoint_with_corpus: Callable[..., Path], sentence_pairs: list[tuple[str, str]]
) -> None:
    path = checkpoint_with_corpus(dict.fromkeys(("train", "validation", "test"), sentence_pairs))
    with pytest.raises(HeadlabError, match="its configuration has no batches, so "):
        run(path)


def test_a_split_without_a_usable_sentence_is_named(checkpoint: Path) -> None:
    (checkpoint.parents[1] / "test.tsv").write_text(f"{'door ' * 90}\tporte\n", encoding="utf-8")
    expected = "--split test: every sentence of it is blank or longer than the 64 subwords"
    with pytest.raises(HeadlabError, match=expected):
        run(checkpoint)


def entry(name: str, seconds: list[float]) -> dict[str, Any]:
    """A row of the table of decoding."""
    return {
        "name": name,
        "batch": None,
        "beam": 1,
        "seconds": seconds,
        "sentences_per_second": Spread.of([2 / one for one in seconds]),
        "target_tokens_per_second": Spread.of([8 / one for one in seconds]),
        "peak_memory_bytes": None,
        "headlab_ratio": None,
    }


def decoding(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """What is measured of decoding."""
    shared: dict[str, Any] = {"marian_differences": [], "not_run": {}, "equal_outputs": None}
    shared |= {"matrix_product_gflops": [1.0], "left_out": ["this and that"]}
    return {"sentences": 2, "sentences_of_a_turn": 2, "contestants": rows, **shared}


@pytest.fixture
def measuring(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """``measuring(then)``: decoding has two turns, then ``then()``; nothing else is measured."""
    from headlab.benchmark import measure_decoding
    from headlab.cli import benchmark_starts

    def set_up(then: Callable[[], object]) -> None:
        def measure(contest: Any, *given: Any) -> dict[str, Any]:
            *_, keep = given
            keep(decoding([entry("Headlab", [1.0])]))
            keep(decoding([entry("Headlab", [1.0, 0.5])]))
            then()
            return decoding([entry("Headlab", [1.0, 0.5, 2.0])])

        monkeypatch.setattr(measure_decoding, "measure_decoding", measure)
        monkeypatch.setattr(benchmark_starts, "measure_starts", lambda *given: None)
        monkeypatch.setattr(Contest, "start", lambda *_, **__: None)

    return set_up


def stop(signum: signal.Signals) -> None:
    os.kill(os.getpid(), signum)
    time.sleep(5)
    raise AssertionError("it went on")


def fail() -> None:
    raise ContestantFailed("Headlab", "killed")


@pytest.mark.parametrize("way", ["SIGINT", "SIGTERM", "SIGHUP", "failure"])
def test_what_was_measured_is_printed_and_kept_when_it_is_stopped(
    checkpoint: Path, measuring: Callable[..., None], way: str
) -> None:
    whole = checkpoint.with_name("best.benchmark.json")
    whole.write_text("{}")
    signum = getattr(signal, way, None)
    before = signum and signal.getsignal(signum)
    measuring(fail if signum is None else lambda: stop(signum))
    for number in ("", "-2"):
        result = CliRunner().invoke(app, ["benchmark", str(checkpoint), "--only", "decoding"])
        if signum is None:
            assert isinstance(result.exception, ContestantFailed)
        else:
            assert result.exit_code == 128 + signum
            assert signal.getsignal(signum) == before
        partial = checkpoint.with_name(f"best.benchmark-2.partial{number}.json")
        found = json.loads(partial.read_text("utf-8"))
        assert found["decoding"]["contestants"][0]["seconds"] == [1.0, 0.5]
        assert "│ Headlab │ 3.0 (2.0 to 4.0)" in result.stdout
        assert f"written: {partial}" in result.stdout
    assert whole.read_text() == "{}"


def test_other_settings_have_a_file_of_their_own(
    checkpoint: Path, measuring: Callable[..., None]
) -> None:
    measuring(lambda: None)
    for options, name in (
        ([], "best.benchmark.json"),
        (["--turns", "4"], "best.benchmark-2.json"),
        ([], "best.benchmark.json"),
        (["--minutes", "3"], "best.benchmark-3.json"),
    ):
        printed = run(checkpoint, "--only", "decoding", *options)
        assert f"written: {checkpoint.with_name(name)}\n" in printed
        assert "no time for this and that; --minutes gives more" in printed
    left = sorted(path.name for path in checkpoint.parent.glob("*benchmark*"))
    assert left == [f"best.benchmark{n}.json" for n in ("-2", "-3", "")]


@pytest.mark.slow
@pytest.mark.parametrize("part", ["training", "decoding"])
def test_a_limit_that_is_too_short_leaves_a_turn_of_each(checkpoint: Path, part: str) -> None:
    printed = run(checkpoint, "--only", part, "--minutes", 0.01, "--turns", 5, "--threads", 1)
    found = json.loads(checkpoint.with_name("best.benchmark.json").read_text("utf-8"))
    assert {len(row["seconds"]) for row in found[part]["contestants"]} == {1}
    assert f"no time for {part}: 4 of 5 turns of each" in printed
    assert {len(times) for times in found["start_seconds"].values()} == {1}


def is_running(process: str) -> bool:
    """Whether there is such a process, and more of it than an exit status nobody has asked for."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="needs Linux's /proc")
@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
def test_nothing_is_left_running_after_a_signal(checkpoint: Path, signum: signal.Signals) -> None:
    command = [sys.executable, "-m", "headlab", "benchmark", "--only", "decoding", str(checkpoint)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as done:
        place = Path(f"/proc/{done.pid}/task/{done.pid}/children")
        children: list[str] = []
        while done.poll() is None and not children:
            time.sleep(0.02)
            children = place.read_text().split()
        time.sleep(0.5)  # until Python, which has just forked it, knows of its child
        done.send_signal(signum)
        said, _ = done.communicate(timeout=30)
    assert children, said
    assert done.returncode == 128 + signum
    assert b"Traceback" not in said
    assert not any(map(is_running, children))
    assert not checkpoint.with_name("best.benchmark.json").exists()


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="needs Linux's /proc")
def test_the_real_command_prints_its_table_when_it_is_stopped(checkpoint: Path) -> None:
    options = ["--only", "decoding", "--turns", "100", "--seconds", "0.01", "--threads", "1"]
    command = [sys.executable, "-m", "headlab", "benchmark", *options, str(checkpoint)]
    partial = checkpoint.with_name("best.benchmark.partial.json")
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as done:
        place = Path(f"/proc/{done.pid}/task/{done.pid}/children")
        deadline = time.monotonic() + 300
        while done.poll() is None and time.monotonic() < deadline:
            if partial.exists() and "decoding" in json.loads(partial.read_text("utf-8")):
                break
            time.sleep(0.05)
        children = place.read_text().split()
        done.send_signal(signal.SIGTERM)
        said = done.communicate(timeout=60)[0].decode()
    assert done.returncode == 128 + signal.SIGTERM
    assert len(children) >= 2
    assert not any(map(is_running, children))
    assert "decoding, 9 sentences a turn" in said
    assert "Traceback" not in said
    assert f"written: {partial}" in said.replace("\n", "")
    assert json.loads(partial.read_text("utf-8"))["decoding"]["contestants"][0]["seconds"]
