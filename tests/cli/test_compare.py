"""``headlab compare`` and ``headlab convert``."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

from headlab.checkpoint import read_checkpoint
from headlab.cli.app import app
from headlab.comparison import cache_size, describe_kind
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
        (["--to", "gqa", "--kv-heads", "3", "--out", "x.ckpt"], "kv_heads=3 does not divide"),
    ],
)
def test_mistakes(checkpoint: Path, arguments: list[str], message: str) -> None:
    with pytest.raises(HeadlabError, match=message):
        run("convert", checkpoint, *arguments)


def test_a_checkpoint_is_not_replaced_by_its_own_conversion(checkpoint: Path) -> None:
    with pytest.raises(HeadlabError, match="would replace the checkpoint itself"):
        run("convert", checkpoint, "--to", "mla", "--out", checkpoint)
