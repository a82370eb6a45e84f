import io
import logging
import os
import subprocess
import sys
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from headlab.cli import shared
from headlab.cli.translate import translate
from headlab.errors import HeadlabError

app = typer.Typer()
app.command()(translate)

# The command in a process of its own, for what only a real process shows.
PROGRAM = [
    sys.executable,
    "-c",
    "import typer; from headlab.cli.translate import translate as t; typer.run(t)",
]


def run(*arguments: str, stdin: bytes = b"") -> bytes:
    """Standard output of the command; what it raises comes through."""
    result = CliRunner().invoke(
        app, list(arguments), input=stdin, catch_exceptions=False, standalone_mode=False
    )
    return result.stdout_bytes


@pytest.fixture
def checkpoint(learnt_checkpoint: Path) -> str:
    return str(learnt_checkpoint)


@pytest.mark.parametrize(
    "options", [(), ("--beam", "4"), ("--batch-tokens", "1", "--threads", "1")]
)
def test_sentences_as_arguments(checkpoint: str, options: tuple[str, ...]) -> None:
    output = run(checkpoint, "what is that ?", "good morning", *options)
    assert output == "qu'est-ce que « ça » ?\nbonjour\n".encode()


def test_a_sentence_may_begin_with_a_dash(checkpoint: str) -> None:
    assert run(checkpoint, "--", "good morning", "--beam").startswith(b"bonjour\n")
    assert run(checkpoint, "--", "-x").count(b"\n") == 1


@pytest.mark.parametrize(
    ("stdin", "stdout"),
    [
        (b"good morning\na friend\n", b"bonjour\nun ami\n"),
        (b"good morning\na friend", b"bonjour\nun ami\n"),
        (b"good morning\r\na friend\r\n", b"bonjour\nun ami\n"),
        (b"\xef\xbb\xbfgood morning\n", b"bonjour\n"),
        (b"\xef\xbb\xbf", b""),
        (b"", b""),
        (b"\n", b"\n"),
        (b"\n\na friend\n\n", b"\n\nun ami\n\n"),
        (" \n\u00a0\n\u3000\n\u200b\na friend".encode(), b"\n\n\n\nun ami\n"),
        (b"two lines\na friend\n", b"deux lignes\nun ami\n"),  # the model emits a line feed here
    ],
)
def test_a_line_out_for_each_line_in(checkpoint: str, stdin: bytes, stdout: bytes) -> None:
    assert run(checkpoint, stdin=stdin) == stdout


def test_only_line_feeds_end_a_line(checkpoint: str) -> None:
    lines = [
        "one\u2028two",
        "one\u0085two",
        "one\x0ctwo\x0b\x1c\x1d\x1e",
        "a\rb",
        "nul\x00",
        "a </s> b",
    ]
    output = run(checkpoint, stdin="\n".join([*lines, "a friend"]).encode())
    assert output.count(b"\n") == 7
    assert output.endswith(b"\nun ami\n")
    assert b"</s>" not in output


def test_bytes_that_are_not_utf8_are_located(checkpoint: str) -> None:
    with pytest.raises(HeadlabError, match=r"standard input, line 2: not UTF-8 .*0xe9"):
        run(checkpoint, stdin=b"ok\ncaf\xe9\n")


def test_an_overlong_line_is_named(checkpoint: str, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, logger="headlab"):
        output = run(checkpoint, stdin=b"a friend\n" + b"the door " * 500 + b"\na friend\n")
    assert output.count(b"\n") == 3
    assert output.startswith(b"un ami\n")
    assert output.endswith(b"\nun ami\n")
    assert "line 2 has" in caplog.text


def test_the_speed_is_reported_for_many(checkpoint: str) -> None:
    result = CliRunner().invoke(app, [checkpoint], input=b"a friend\n" * 100)
    assert result.exit_code == 0
    assert result.stdout_bytes == b"un ami\n" * 100
    assert "100 sentences in" in result.stderr


def test_no_checkpoint_is_an_error_before_any_reading(tmp_path: Path) -> None:
    with pytest.raises(HeadlabError, match="no checkpoint"):
        run(str(tmp_path / "absent.ckpt"), "a friend")


def test_a_device_that_is_not_there(checkpoint: str) -> None:
    for device in ("tpu9", "cuda:99"):
        with pytest.raises(HeadlabError, match="--device"):
            run(checkpoint, "a friend", "--device", device)


def test_options_out_of_range_are_usage_errors(checkpoint: str) -> None:
    result = CliRunner().invoke(app, [checkpoint, "a friend", "--beam", "0"])
    assert result.exit_code == 2
    assert "--beam" in result.stderr
    with pytest.raises(HeadlabError, match="length_penalty"):
        run(checkpoint, "a friend", "--beam", "2", "--length-penalty", "nan")


def test_progress_is_a_bar_on_a_terminal_and_lines_elsewhere(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    clock = iter([0.0, 0.0, 20.0, 25.0, 40.0, 50.0])
    monkeypatch.setattr(shared.time, "monotonic", lambda: next(clock))
    with shared.progress_bar("each_head", 40) as progress:
        for done in (8, 16, 20, 24, 40):
            progress(done)
    assert capsys.readouterr().err.splitlines() == [
        "each_head: 16 of 40, 2.5 s each, 60 s left",
        "each_head: 24 of 40, 2.5 s each, 40 s left",
    ]
    monkeypatch.undo()

    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    with shared.progress_bar("translating", 3) as progress:
        assert progress is not None
        progress(3)
    assert "translating" in terminal.getvalue()


def test_bytes_pass_unchanged_in_a_locale_without_utf8(checkpoint: str) -> None:
    environment = os.environ | {
        "LC_ALL": "C",
        "PYTHONUTF8": "0",
        "PYTHONCOERCECLOCALE": "0",
        "PYTHONIOENCODING": "latin-1",
    }
    by_argument = subprocess.run(
        [*PROGRAM, checkpoint, "what is that ?", "« ça »".encode()],
        env=environment,
        capture_output=True,
        check=True,
    )
    by_stdin = subprocess.run(
        [*PROGRAM, checkpoint],
        input="what is that ?\n« ça »\n".encode(),
        env=environment,
        capture_output=True,
        check=True,
    )
    assert by_argument.stdout == by_stdin.stdout
    assert by_argument.stdout.startswith("qu'est-ce que « ça » ?\n".encode())
    not_utf8 = subprocess.run(
        [*PROGRAM, checkpoint, b"caf\xe9"], env=environment, capture_output=True, check=False
    )
    assert not_utf8.returncode != 0
    assert b"not UTF-8" in not_utf8.stderr


def test_a_reader_that_leaves_gets_no_traceback(checkpoint: str) -> None:
    read_end, write_end = os.pipe()
    os.close(read_end)
    done = subprocess.run(
        [*PROGRAM, checkpoint, "a friend"],
        stdout=write_end,
        stderr=subprocess.PIPE,
        check=False,
    )
    os.close(write_end)
    assert done.returncode == 141
    assert done.stderr == b""
