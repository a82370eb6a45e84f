"""``headlab align``: streams, mistakes, and which heads and rows are taken."""

import itertools
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import typer
from typer.testing import CliRunner

from headlab.checkpoint import Loaded, read_checkpoint, save_checkpoint
from headlab.cli.align import align
from headlab.errors import HeadlabError
from headlab.head_names import Head
from headlab.heads.surgery import cut_heads

app = typer.Typer()
app.command()(align)

PAIR = "the door of the house is open\tla porte de la maison est ouverte"
OTHER = "the light is on\tla lumière est allumée"


@pytest.fixture
def checkpoint(learnt_checkpoint: Path) -> str:
    return str(learnt_checkpoint)


def run(*arguments: str, text: bytes = b"") -> list[str]:
    """Lines of standard output; what the command raises comes through."""
    runner = CliRunner()
    result = runner.invoke(
        app, arguments, input=text, catch_exceptions=False, standalone_mode=False
    )
    return result.stdout.split("\n")[:-1]


def expected(loaded: Loaded, pair: str, heads: list[int], shift: int) -> str:
    """A loop over words: sums over the pieces of a source word, means over those of a target's."""
    sides = pair.split("\t")
    both = (loaded.tokenizers.source, loaded.tokenizers.target)
    words = []
    for tokenizer, side in zip(both, sides, strict=True):
        rows = [tokenizer.encode(word) for word in side.split()]
        ends = [sum(map(len, rows[:i])) for i in range(len(rows) + 1)]
        words.append([range(a, b) for a, b in itertools.pairwise(ends)])
    source, target = (tokenizer.encode(side) for tokenizer, side in zip(both, sides, strict=True))
    assert words[0][-1].stop == len(source)  # words have the pieces that they have alone
    weights = loaded.model.attention_weights(
        torch.tensor([[*source, 3]]), torch.tensor([[2, *target]])
    )["cross"][0][0]
    mean = weights[heads].detach().mean(dim=0)
    links = []
    for t, places in enumerate(words[1]):
        scores = [sum(float(mean[q + shift, k]) for q in places for k in keys) for keys in words[0]]
        links.append(f"{scores.index(max(scores))}-{t}")
    return " ".join(links)


@pytest.mark.parametrize("shift", [0, 1])
def test_each_target_word_gets_its_source_word(checkpoint: str, learnt: Loaded, shift: int) -> None:
    option = ["--shift"] if shift else ["--no-shift"]
    every = run(checkpoint, PAIR, OTHER, *option)
    assert every == [expected(learnt, pair, [0, 1, 2, 3], shift) for pair in (PAIR, OTHER)]
    some = run(checkpoint, PAIR, *option, "--heads", "cross.0.1", "--heads", "*.0.3")
    assert some == [expected(learnt, PAIR, [1, 3], shift)]
    if not shift:
        assert run(checkpoint, PAIR) == every[:1]  # the default


def test_heads_of_a_pruned_model_keep_their_numbers(
    checkpoint: str, learnt: Loaded, tmp_path: Path
) -> None:
    path = tmp_path / "pruned.ckpt"
    gone = [Head("cross", 0, 0), Head("cross", 0, 2)]
    save_checkpoint(path, learnt, cut_heads(learnt.model, gone))
    # Cutting changes nothing before the cross-attention of a model of one layer.
    assert run(str(path), PAIR) == [expected(learnt, PAIR, [1, 3], 0)]
    assert run(str(path), PAIR, "--heads", "cross.0.3") == [expected(learnt, PAIR, [3], 0)]
    with pytest.raises(HeadlabError, match=r"no head cross\.0\.0; the heads are cross\.0\.1"):
        run(str(path), PAIR, "--heads", "cross.0.0")
    none = cut_heads(read_checkpoint(path).model, [Head("cross", 0, 1), Head("cross", 0, 3)])
    save_checkpoint(path, learnt, none)
    with pytest.raises(HeadlabError, match="no head left"):
        run(str(path), PAIR)


def test_lines_in_lines_out(checkpoint: str) -> None:
    text = f"\ufeff{PAIR}\r\n\n \t \n\tune porte\nthe door\t \n{OTHER}".encode()
    lines = run(checkpoint, text=text)
    assert [bool(line) for line in lines] == [True, False, False, False, False, True]
    assert [lines[0], lines[5]] == run(checkpoint, PAIR, OTHER)
    assert run(checkpoint, text=b"") == []
    # Characters that others take for line ends, or for spaces, are text.
    (line,) = run(checkpoint, text="a\u2028friend\x85x\tun\u00a0ami\n".encode())
    assert len(line.split()) == 2


def test_output_to_a_file(checkpoint: str, tmp_path: Path) -> None:
    out = tmp_path / "a.txt"
    assert run(checkpoint, PAIR, "--output", str(out)) == []
    assert out.read_text().split("\n")[:-1] == run(checkpoint, PAIR)
    with pytest.raises(HeadlabError, match="pair 2 has 0 tabs"):
        run(checkpoint, PAIR, "no tab", "--output", str(tmp_path / "b.txt"))
    assert not (tmp_path / "b.txt").exists()


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (b"no tab", "line 2 has 0 tabs"),
        (b"a\tb\tc", "line 2 has 2 tabs"),
        (b"caf\xe9\tcaf\xe9", "line 2 is not UTF-8"),
        (b"q" * 100 + b"\ta", "line 2: the source has"),
        (b"a\t" + b"q" * 100, "line 2: the target has"),
    ],
)
def test_mistakes_name_the_line_and_follow_what_was_well(
    checkpoint: str, line: bytes, said: str, capfdbinary: Any
) -> None:
    with pytest.raises(HeadlabError) as caught:
        run(checkpoint, text=OTHER.encode() + b"\n" + line + b"\n" + OTHER.encode())
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def program(*arguments: str, **options: Any) -> subprocess.Popen:
    return subprocess.Popen(
        [sys.executable, "-m", "headlab", "align", *arguments],
        stdin=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=os.environ | {"OMP_NUM_THREADS": "1", "LC_ALL": "C"},
        **options,
    )


def test_lines_come_as_they_are_given(checkpoint: str) -> None:
    """A writer that waits for each answer gets it; a mistake follows what was well before it."""
    with program(checkpoint, stdout=subprocess.PIPE) as running:
        assert running.stdin is not None
        assert running.stdout is not None
        answers = []
        for pair in (PAIR, OTHER):
            running.stdin.write(pair.encode() + b"\n")
            running.stdin.flush()
            answers.append(running.stdout.readline().decode().rstrip("\n"))
        assert answers == run(checkpoint, PAIR, OTHER)
        running.stdin.write(OTHER.encode() + b"\nno tab\n")
        running.stdin.close()
        assert running.stdout.read().decode().rstrip("\n") == answers[1]
        assert running.stderr is not None
        assert running.stderr.read() == b"error: line 4 has 0 tabs; write source, one tab, target\n"
    assert running.returncode == 1


def test_a_reader_that_leaves_gets_no_traceback(checkpoint: str) -> None:
    read_end, write_end = os.pipe()
    os.close(read_end)
    with program(checkpoint, PAIR, stdout=write_end) as running:
        os.close(write_end)
        assert running.stderr is not None
        assert running.stderr.read() == b""
    assert running.returncode == 141


def test_the_checkpoint_stays_alone(checkpoint: str, tmp_path: Path) -> None:
    path = Path(shutil.copy(checkpoint, tmp_path / "best.ckpt"))
    run(str(path), PAIR)
    assert list(tmp_path.iterdir()) == [path]
