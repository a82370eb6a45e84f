"""roles and align as typed, on a checkpoint that train.py made."""

import json
import os
import re
import shutil

import pytest


@pytest.fixture(scope="module")
def best(run, workplace) -> str:
    """A copy of the checkpoint, as it is typed in the workplace; results are written beside it."""
    os.makedirs(workplace / "roles", exist_ok=True)
    shutil.copy(run / "best.ckpt", workplace / "roles" / "best.ckpt")
    return "roles/best.ckpt"


def test_roles(command, workplace, best) -> None:
    done = command("roles", best, "positional=0.8", "--limit", "5", cwd=workplace)
    assert done.returncode == 0, done.stderr.decode()
    out = done.stdout.decode()
    for text in ("encoder self-attention", "cross.1.3", "most alike", "next: headlab "):
        assert text in out
    folder = workplace / "roles" / "best.roles-test-first5"
    rows = json.loads((folder / "roles.json").read_text())
    assert len(rows) == 4 + 8 + 8
    # The training has no language that a parser is known for: it says how to get parses.
    assert "no parses of the source (src): --parser NAME" in done.stderr.decode()
    again = command("roles", best, "positional=0.8", "--limit", "5", cwd=workplace)
    assert again.stdout == done.stdout


def test_a_missing_parser_names_the_extra_or_the_command(command, workplace, best) -> None:
    done = command("roles", best, "--parser", "xx_no_such_sm", cwd=workplace)
    assert done.returncode == 1
    assert re.fullmatch(
        r"error: --parser xx_no_such_sm: .*(spacy download xx_no_such_sm|headlab\[syntax\]'?)\n",
        done.stderr.decode(),
    )


def test_align(command, workplace, best) -> None:
    done = command("align", best, cwd=workplace, input=b"the red cat\tle rouge chat\n\nthe\tle\n")
    assert done.returncode == 0, done.stderr.decode()
    first, blank, third, end = done.stdout.decode().split("\n")
    assert re.fullmatch(r"[012]-0 [012]-1 [012]-2", first)
    assert (blank, third, end) == ("", "0-0", "")
    broken = command("align", best, cwd=workplace, input=b"the red cat\n")
    assert broken.returncode == 1
    assert broken.stderr == b"error: line 1 has 0 tabs; write source, one tab, target\n"
