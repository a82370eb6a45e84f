"""``headlab compare`` and ``headlab convert``."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from headlab.checkpoint import read_checkpoint
from headlab.cli.app import app
from headlab.comparison import cache_size, describe_kind
from headlab.conversion import to_grouped
from headlab.errors import HeadlabError
from headlab.transformer import Transformer


@pytest.fixture
def checkpoint(
    checkpoint_with_corpus: Callable[..., Path], sentence_pairs: list[tuple[str, str]]
) -> Path:
    """A checkpoint with a small corpus."""
    return checkpoint_with_corpus(dict.fromkeys(("train", "validation", "test"), sentence_pairs))


def run(*arguments: object):
    result = CliRunner().invoke(app, [str(a) for a in arguments])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


def small(**options) -> Transformer:
    sizes = {"source_vocab_size": 12, "target_vocab_size": 12, "d_model": 256, "heads": 8}
    return Transformer(**sizes, encoder_layers=1, decoder_layers=4, feed_forward=16, **options)


def test_caches_are_what_the_papers_promise() -> None:
    layers, element = 4, 4

    def per_token(**attention: object) -> float:
        size = cache_size(small(attention=attention))
        assert size.constant == 0
        assert size.per_source_token == size.per_target_token
        return size.per_target_token / layers / element

    assert per_token() == 512
    assert per_token(kind="gqa", kv_heads=2) == 512 / 4
    assert per_token(kind="mqa") == 512 / 8
    assert per_token(kind="moh", shared_heads=2, active_heads=4) == 512
    assert per_token(kind="mla", latent_dim=40, rope_dim=16) == 40
    rotary = small(attention={"kind": "mla", "latent_dim": 40, "rope_dim": 16},
                   position={"kind": "rope"})  # fmt: skip
    size = cache_size(rotary)
    assert size.per_target_token == (40 + 16) * layers * element
    assert size.per_source_token == 40 * layers * element
    hybrid = cache_size(small(attention={"decoder": "hybrid"}))
    assert hybrid.per_target_token == 512 * element
    assert hybrid.constant == 3 * (8 * 32 * 32 + 3 * 3 * 256) * element
    alone = cache_size(small(attention={"decoder": "deltanet"}))
    assert alone.per_target_token == 0


def test_kinds_in_words() -> None:
    assert describe_kind(small()) == "mha, sinusoidal"
    grouped = small(attention={"kind": "gqa", "kv_heads": 2}, position={"kind": "rope"})
    assert describe_kind(grouped) == "gqa 2, rope"
    assert describe_kind(small(attention={"kind": "mha", "cross": "mla"})) == (
        "mha, cross mla, sinusoidal"
    )
    assert describe_kind(to_grouped(small(), 1)) == "mqa, sinusoidal"
    mixture = {"kind": "moh", "shared_heads": 2, "active_heads": 4, "kv_heads": 4}
    assert describe_kind(small(attention={**mixture, "cross": "mla"})) == (
        "moh 4, cross mla, sinusoidal"
    )
    hybrid = small(attention={"kind": "gqa", "kv_heads": 2, "decoder": "hybrid"})
    assert describe_kind(hybrid) == "gqa 2, decoder hybrid 2, sinusoidal"


def test_compare_and_convert(checkpoint: Path, tmp_path: Path) -> None:
    for kind, more in (("gqa", ["--kv-heads", 2]), ("mqa", []), ("mla", [])):
        done = run("convert", checkpoint, "--to", kind, "--out", tmp_path / f"{kind}.ckpt", *more)
        assert "next: headlab compare" in done.stdout
    grouped = read_checkpoint(tmp_path / "gqa.ckpt")
    assert grouped.config["model"]["attention"]["kv_heads"] == 2
    names = [checkpoint, *(tmp_path / f"{kind}.ckpt" for kind in ("gqa", "mqa", "mla"))]
    done = run("compare", *names, "--limit", 5, "--out", tmp_path / "table.json")
    rows = json.loads((tmp_path / "table.json").read_text())
    assert [row["checkpoint"] for row in rows] == [str(name) for name in names]
    sizes = [row["cache_bytes_per_target_token"] for row in rows]
    assert sizes == [sizes[0], sizes[0] / 2, sizes[0] / 4, sizes[0]]
    assert rows[3]["bleu"] == rows[0]["bleu"]
    assert rows[3]["nll_per_token"] == pytest.approx(rows[0]["nll_per_token"], abs=1e-5)
    assert rows[0]["relative_speed"] == 1.0
    assert "next: headlab ablate" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--to", "rnn", "--out", "x.ckpt"], "--to rnn: choose gqa, mqa or mla"),
        (["--to", "gqa", "--out", "x.ckpt"], "--to gqa needs --kv-heads, such as 2"),
        (["--to", "mla", "--kv-heads", "2", "--out", "x.ckpt"], "--to mla takes no --kv-heads"),
        (
            ["--to", "gqa", "--kv-heads", "3", "--out", "x.ckpt"],
            "--kv-heads 3 must divide the 4 key/value heads of the encoder",
        ),
    ],
)
def test_mistakes(checkpoint: Path, arguments: list[str], message: str) -> None:
    with pytest.raises(HeadlabError, match=message):
        run("convert", checkpoint, *arguments)


def test_a_checkpoint_is_not_replaced_by_its_own_conversion(checkpoint: Path) -> None:
    with pytest.raises(HeadlabError, match="is the checkpoint itself; choose another name"):
        run("convert", checkpoint, "--to", "mla", "--out", checkpoint)


@pytest.mark.parametrize(
    ("out", "message"),
    [
        (".", "--out . is a folder; name a file in it"),
        ("nowhere/x", "--out nowhere/x: there is no folder nowhere; make it first"),
        ("/proc/x", "--out /proc/x: cannot write into /proc"),
    ],
)
def test_places_that_cannot_be_written(
    checkpoint: Path, out: str, message: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("headlab.checkpoint.read_checkpoint", lambda *_: pytest.fail("was read"))
    for command in (["convert", checkpoint, "--to", "mla"], ["compare", checkpoint, checkpoint]):
        with pytest.raises(HeadlabError, match=message):
            run(*command, "--out", out)


def test_a_table_never_replaces_a_checkpoint(checkpoint: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.write_bytes(checkpoint.read_bytes())
    before = other.read_bytes(), checkpoint.read_bytes()
    for out in (checkpoint, other):
        with pytest.raises(HeadlabError, match="is the checkpoint itself"):
            run("compare", checkpoint, other, "--out", out)
    with pytest.raises(HeadlabError, match="the table is JSON"):
        run("compare", checkpoint, other, "--out", tmp_path / "third.ckpt")
    with pytest.raises(HeadlabError, match="compare takes two checkpoints or more"):
        run("compare", checkpoint)
    assert (other.read_bytes(), checkpoint.read_bytes()) == before


def test_two_corpora_are_not_compared_in_silence(
    checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    raw = torch.load(checkpoint, weights_only=True)
    (tmp_path / "few.tsv").write_text("a house\tune maison\nthe cat\tle chat\n")
    raw["headlab"]["config"]["data"]["test"] = str(tmp_path / "few.tsv")
    torch.save(raw, tmp_path / "other.ckpt")
    done = run("compare", checkpoint, tmp_path / "other.ckpt", "--out", tmp_path / "table.json")
    assert "other.ckpt was trained on another corpus than" in done.stderr
    rows = json.loads((tmp_path / "table.json").read_text())
    assert [row["relative_speed"] for row in rows] == [None, None]
    assert rows[1]["sentences"] == 2


def test_caches_of_a_model_with_few_positions() -> None:
    short = small(position={"kind": "learned", "max_length": 3})
    assert cache_size(short) == cache_size(small())
