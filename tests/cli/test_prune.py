import csv
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import typer
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf
from typer.testing import CliRunner

from headlab.checkpoint import read_checkpoint
from headlab.cli import configuration
from headlab.cli import prune as module
from headlab.cli.prune import prune
from headlab.cli.prune_report import from_scratch
from headlab.errors import HeadlabError
from headlab.head_names import parse_heads
from headlab.heads import pruning
from headlab.heads.gates import gates_without
from headlab.heads.measure import Measurer
from headlab.heads.speed import Speeds

app = typer.Typer()
app.command()(prune)


def run(*arguments: object) -> str:
    """Standard output of the command; what it raises comes through."""
    texts = [str(argument) for argument in arguments]
    result = CliRunner().invoke(app, texts, catch_exceptions=False, standalone_mode=False)
    return result.stdout


@pytest.fixture
def checkpoint(
    checkpoint_with_corpus: Callable[..., Path],
    sentence_pairs: list[tuple[str, str]],
    monkeypatch: pytest.MonkeyPatch,
) -> Path:
    """A checkpoint with a small corpus, whose speed is not measured."""
    monkeypatch.setattr(pruning, "compare_speeds", lambda *_: Speeds(10.0, 20.0, 4.0))
    parts = {"validation": sentence_pairs[::2], "test": sentence_pairs[1::2]}
    return checkpoint_with_corpus(parts | {"train": sentence_pairs})


def curve(folder: Path) -> list[dict[str, str]]:
    with open(folder / "curve.csv", encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def test_half_of_the_heads(checkpoint: Path, tmp_path: Path) -> None:
    before = checkpoint.read_bytes()
    out = tmp_path / "pruned.ckpt"
    run(checkpoint, "--keep", 0.25, "--out", out)  # an older file
    output = run(checkpoint, "--keep", 0.5, "--steps", 2, "--out", out)
    assert checkpoint.read_bytes() == before
    whole, pruned = read_checkpoint(checkpoint), read_checkpoint(out)
    assert len(pruned.model.head_names) == 6
    gone = set(whole.model.head_names) - set(pruned.model.head_names)
    assert parse_heads(pruned.config["model"]["ablate"], whole.model.head_names, "") == sorted(
        gone, key=whole.model.head_names.index
    )
    source, target = torch.tensor([[5, 9, 3]]), torch.tensor([[2, 8]])
    masked = whole.model(source, target, gates_without(whole.model, gone))
    torch.testing.assert_close(pruned.model(source, target), masked, atol=1e-5, rtol=0)

    folder = checkpoint.parent / "best.pruning-gradient-keep-0.5"
    rows = curve(folder)
    assert [row["heads"] for row in rows] == ["12", "9", "6"]
    assert [row["kept"] for row in rows] == ["False", "False", "True"]
    sites = [sum(int(row[site]) for site in ("encoder", "decoder", "cross")) for row in rows]
    assert sites == [12, 9, 6]
    references = [line.split("\t") for line in (tmp_path / "test.tsv").read_text().splitlines()]
    sources, targets = zip(*references, strict=True)
    found = Measurer(pruned, sources, targets).measure()
    assert float(rows[2]["test_bleu"]) == pytest.approx(found.scores.bleu)
    assert float(rows[2]["test_nll"]) == pytest.approx(found.nll, rel=1e-5)
    result = {r["quantity"]: r for r in json.loads((folder / "result.json").read_text())}
    assert result["heads"]["change"] == -6
    assert 0 < result["test_bleu"]["p_value"] <= 1
    assert (folder / "curve.png").read_bytes().startswith(b"\x89PNG")
    assert "heads       12 -> 6" in output
    assert "10 -> 20 target tokens a second (x 2.00)" in output
    assert f"next: headlab evaluate {out}" in output
    ablate = ",".join(pruned.config["model"]["ablate"])
    assert f"the command that trained best.ckpt, with 'model.ablate=[{ablate}]'" in output


def test_what_was_pruned_is_pruned_again(checkpoint: Path, tmp_path: Path) -> None:
    first, second = tmp_path / "first.ckpt", tmp_path / "second.ckpt"
    run(checkpoint, "--keep", 0.5, "--out", first)
    output = run(first, "--keep", 0.34, "--by", "loss", "--out", second)
    kept, left = (read_checkpoint(p).model.head_names for p in (first, second))
    assert len(left) == 2
    assert set(left) < set(kept)
    assert str(left[0]) in output


@pytest.mark.parametrize(("keep", "left"), [(0, 0), (1, 12)])
def test_nothing_and_everything(checkpoint: Path, tmp_path: Path, keep: int, left: int) -> None:
    output = run(checkpoint, "--keep", keep, "--by", "confidence", "--out", tmp_path / "p.ckpt")
    assert len(read_checkpoint(tmp_path / "p.ckpt").model.head_names) == left
    assert ("cross-attention: none" in output) == (left == 0)


def test_one_site_by_chance(checkpoint: Path, tmp_path: Path) -> None:
    def left(seed: int) -> list[str]:
        out = tmp_path / f"{seed}.ckpt"
        options = "--site", "cross, encoder", "--by", "random", "--seed", seed
        run(checkpoint, "--keep", 0.25, *options, "--out", out)
        return [str(one) for one in read_checkpoint(out).model.head_names]

    found = left(1)
    assert len(found) == 4 + 2
    assert sum(name.startswith("decoder") for name in found) == 4
    assert left(2) != found


def test_until_bleu_falls(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last step within the limit is kept, and the one beyond it is on the curve."""
    out = tmp_path / "pruned.ckpt"
    output = run(checkpoint, "--max-bleu-drop", 20, "--step-heads", 1, "--out", out)
    rows = curve(checkpoint.parent / "best.pruning-gradient-drop-20")
    bleu = [float(row["validation_bleu"]) for row in rows]
    assert all(bleu[0] - value <= 20 for value in bleu[:-1])
    assert bleu[0] - bleu[-1] > 20
    kept = int(next(row["heads"] for row in rows if row["kept"] == "True"))
    assert kept == int(rows[-2]["heads"]) == len(read_checkpoint(out).model.head_names) < 12
    assert f"12 -> {kept}" in output

    output = run(checkpoint, "--max-bleu-drop", 0, "--step-heads", 12, "--out", out)
    assert "no step stayed within 0 BLEU" in output
    assert len(read_checkpoint(out).model.head_names) == 12


def test_chosen_and_reported_on_one_split(
    checkpoint: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    options = "--choose-on", "test", "--split", "test", "--limit", 2, "--normalize-by-layer"
    run(checkpoint, "--keep", 0.75, *options, "--out", tmp_path / "p.ckpt")
    assert "the result is flattered" in caplog.text
    row = curve(checkpoint.parent / "best.pruning-gradient-keep-0.75")[0]
    assert "validation_bleu" not in row


def test_from_scratch_repeats_what_trained_this_very_model(tmp_path: Path) -> None:
    typed = ["data=files", "data.train=x.tsv", "model.heads=4", "model.ablate=[cross.0.3]"]
    configuration.register_resolvers()
    with initialize_config_dir(str(configuration.folder()), version_base="1.3"):
        config: Any = OmegaConf.to_container(compose("train", typed), resolve=True)
    pruned: Any = SimpleNamespace(model=SimpleNamespace(hparams={"ablate": ["cross.0.2-3"]}))

    def told(overrides: list[str], **changes: Any) -> str:
        (tmp_path / ".hydra").mkdir(exist_ok=True)
        text = "".join(f"- {one}\n" for one in overrides)
        (tmp_path / ".hydra" / "overrides.yaml").write_text(text, encoding="utf-8")
        whole: Any = SimpleNamespace(config=config | changes)
        return from_scratch(tmp_path / "best.ckpt", whole, pruned)

    ablate = "'model.ablate=[cross.0.2-3]'"
    assert told(typed) == f"python train.py data=files data.train=x.tsv model.heads=4 {ablate}"
    elsewhere = f"the command that trained best.ckpt, with {ablate} behind it"
    assert told(typed, model={**config["model"], "heads": 2}) == elsewhere
    assert told([*typed, "init_from=y.ckpt"]) == elsewhere
    assert told(["data=nothing"]) == elsewhere
    (tmp_path / ".hydra" / "overrides.yaml").unlink()
    whole: Any = SimpleNamespace(config=config)
    assert from_scratch(tmp_path / "best.ckpt", whole, pruned) == elsewhere


def test_finetuning_is_told_what_to_do(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The training itself is tested with the real command."""
    from headlab.checkpoint import save_checkpoint
    from headlab.cli import finetuning

    asked: list[tuple[int, int]] = []

    def train(self: Any, loaded: Any, step: int, out: Path) -> None:
        asked.append((step, len(loaded.model.head_names)))
        save_checkpoint(out, loaded, loaded.model)

    monkeypatch.setattr(finetuning.Finetuning, "__call__", train)
    out = tmp_path / "p.ckpt"
    run(checkpoint, "--keep", 0.5, "--steps", 2, "--finetune-epochs", 1, "--out", out)
    assert asked == [(1, 9), (2, 6)]
    folder = checkpoint.parent / "best.pruning-gradient-keep-0.5-finetuned"
    assert json.loads((folder / "settings.json").read_text())["finetuning"]["optimizer"]["lr"] > 0
    assert (folder / "step-2.ckpt").is_file()

    # Another process is at it: two trainings would write the same files.
    pytest.importorskip("fcntl")
    holding = "import sys, pathlib, headlab.locks as l; print(l.hold(pathlib.Path(sys.argv[1])))"
    holding += "; sys.stdout.flush(); sys.stdin.read()"
    command = [sys.executable, "-c", holding, str(folder)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == b"True\n"
        with pytest.raises(HeadlabError, match=r"finetuned: another process is at work"):
            run(checkpoint, "--keep", 0.5, "--steps", 2, "--finetune-epochs", 1, "--out", out)
        other.communicate()
    assert asked == [(1, 9), (2, 6)]


Mistake = Callable[[Path, Path], tuple[object, ...]]
MISTAKES: dict[str, Mistake] = {
    r"say how much to cut: --keep SHARE, such as 0.5, or --max-bleu-drop BLEU": lambda c, o: (
        c,
        "--out",
        o,
    ),
    r"one goal at a time: --keep .* or --max-bleu-drop": lambda c, o: (
        *(c, "--out", o, "--keep", 0.5),
        *("--max-bleu-drop", 0.5),
    ),
    r"--keep 24 must be a share": lambda c, o: (c, "--out", o, "--keep", 24),
    r"--keep nan must be a share": lambda c, o: (c, "--out", o, "--keep", "nan"),
    r"--max-bleu-drop -1 must lie between": lambda c, o: (c, "--out", o, "--max-bleu-drop", -1),
    r"--steps belongs to --keep": lambda c, o: (
        *(c, "--out", o, "--max-bleu-drop", 1),
        *("--steps", 3),
    ),
    r"--step-heads belongs to --max-bleu-drop": lambda c, o: (
        *(c, "--out", o, "--keep", 0.5),
        *("--step-heads", 3),
    ),
    r"--steps 0 must be at least 1": lambda c, o: (c, "--out", o, "--keep", 0.5, "--steps", 0),
    r"--by loss2: choose gradient, loss, confidence or random": lambda c, o: (
        *(c, "--out", o, "--keep", 0.5),
        *("--by", "loss2"),
    ),
    r"--normalize-by-layer is for --by gradient, not for --by loss": lambda c, o: (
        *(c, "--out", o, "--keep", 0.5),
        *("--by", "loss", "--normalize-by-layer"),
    ),
    r"--finetune-epochs 0 must be at least 1": lambda c, o: (
        *(c, "--out", o, "--keep", 0.5),
        *("--finetune-epochs", 0),
    ),
    r"--site cross,source: choose .* of encoder, decoder, cross": lambda c, o: (
        *(c, "--out", o, "--keep", 0.5),
        *("--site", "cross,source"),
    ),
    r"--out .*best.ckpt is the checkpoint itself": lambda c, o: (c, "--out", c, "--keep", 0.5),
    r"--out .* is a folder; name a file in it": lambda c, o: (
        *(c, "--out", c.parent, "--keep", 0.5),
    ),
    r"there is no folder .*nowhere; make it first": lambda c, o: (
        *(c, "--keep", 0.5),
        *("--out", o.parent / "nowhere" / "p.ckpt"),
    ),
    r"choose train, validation or test": lambda c, o: (
        *(c, "--out", o, "--keep", 0.5),
        *("--choose-on", "dev"),
    ),
}


@pytest.mark.parametrize("message", MISTAKES)
def test_mistakes_are_one_line_before_any_work(
    message: str, checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(*_: object, **__: object) -> None:
        raise AssertionError("work began")

    monkeypatch.setattr(Measurer, "measure", never)
    with pytest.raises(HeadlabError, match=message):
        run(*MISTAKES[message](checkpoint, tmp_path / "p.ckpt"))
    assert not (tmp_path / "p.ckpt").exists()


def test_another_name_of_the_checkpoint_is_refused(checkpoint: Path, tmp_path: Path) -> None:
    link = tmp_path / "link.ckpt"
    link.symlink_to(checkpoint)
    with pytest.raises(HeadlabError, match="is the checkpoint itself"):
        run(checkpoint, "--keep", 0.5, "--out", link)


def test_a_model_without_heads_has_none_to_cut(checkpoint: Path, tmp_path: Path) -> None:
    run(checkpoint, "--keep", 0, "--site", "cross", "--out", tmp_path / "p.ckpt")
    with pytest.raises(HeadlabError, match=r"p.ckpt has no head left to cut in cross"):
        run(tmp_path / "p.ckpt", "--keep", 0.5, "--site", "cross", "--out", tmp_path / "q.ckpt")
    assert module.RANKINGS == ("gradient", "loss", "confidence", "random")
