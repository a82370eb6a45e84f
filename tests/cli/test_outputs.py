"""One rule for the output files of all commands: nothing of the user's is replaced."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from headlab.cli.app import app
from headlab.cli.outputs import numbered
from headlab.errors import HeadlabError

PAIR = "the light is on\tla lumière est allumée"

# Command -> its arguments behind the checkpoint, its option, a name, and something of a user's.
COMMANDS: dict[str, tuple[list[str], str, str, bytes]] = {
    "prune": (["--keep", "0.5"], "--out", "x.ckpt", b"PK\x03\x04 an archive"),
    "convert": (["--to", "mla"], "--out", "x.ckpt", b"weights"),
    "compare": (["other.ckpt"], "--out", "x.json", b'{"checkpoint": "of mine"}'),
    "benchmark": ([], "--out", "x.json", b'[{"checkpoint": 1, "settings": 2}]'),
    "align": ([PAIR], "--output", "x.txt", b"0-0 1-1\n1-1 0-2 good\n"),
    "attend": (["the light is on"], "--out", "x.png", b"\x89PNG of a holiday"),
}


@pytest.fixture
def place(learnt_checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder to work in, with two checkpoints."""
    for name in ("best.ckpt", "other.ckpt"):
        shutil.copy(learnt_checkpoint, tmp_path / name)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(command: str, out: str) -> str:
    """What the command prints."""
    arguments, option, *_ = COMMANDS[command]
    result = CliRunner().invoke(app, [command, "best.ckpt", *arguments, option, out])
    if result.exception is not None:
        raise result.exception
    return result.stdout


def foreign(place: Path, name: str, content: bytes) -> tuple[str, str]:
    (place / name).write_bytes(content)
    return name, "is there already and is not"


def protected(place: Path, name: str, content: bytes) -> tuple[str, str]:
    (place / name).touch(mode=0o444)
    return name, "is protected against writing"


def link(place: Path, name: str, content: bytes) -> tuple[str, str]:
    (place / f"scratch-{name}").write_bytes(content)
    (place / name).symlink_to(f"scratch-{name}")
    return name, "is there already and is not"


def link_to_nowhere(place: Path, name: str, content: bytes) -> tuple[str, str]:
    (place / name).symlink_to(f"scratch/{name}")
    return name, f"there is no folder {place}/scratch; make it first"


def folder(place: Path, name: str, content: bytes) -> tuple[str, str]:
    (place / name).mkdir()
    return name, "is a folder; name a file in it"


def nowhere(place: Path, name: str, content: bytes) -> tuple[str, str]:
    return f"nowhere/{name}", "there is no folder nowhere; make it first"


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("trap", [foreign, protected, link, link_to_nowhere, folder, nowhere])
def test_what_is_there_is_left(
    place: Path, command: str, trap: Callable[[Path, str, bytes], tuple[str, str]]
) -> None:
    _, option, name, content = COMMANDS[command]
    out, said = trap(place, name, content)
    before = sorted((str(p), p.lstat()[:4]) for p in place.rglob("*"))
    with pytest.raises(HeadlabError, match=f"^{option} {out}:? {said}") as caught:
        run(command, out)
    assert "\n" not in str(caught.value)
    assert sorted((str(p), p.lstat()[:4]) for p in place.rglob("*")) == before
    if trap is foreign:
        assert (place / name).read_bytes() == content


@pytest.mark.parametrize("command", ["convert", "align", "attend"])
def test_an_empty_file_and_what_the_command_wrote_are_replaced(place: Path, command: str) -> None:
    out = COMMANDS[command][2]
    Path(out).touch()
    Path(f"link-{out}").symlink_to(out)
    run(command, out)
    first = Path(out).stat()
    run(command, f"link-{out}")
    assert first.st_size
    assert Path(out).stat().st_ino != first.st_ino
    assert Path(f"link-{out}").is_symlink()


def test_a_device_is_written_to_as_it_is(place: Path) -> None:
    run("align", "/dev/null")
    assert not Path("/dev/null").is_file()


@pytest.mark.parametrize("command", ["prune", "convert"])
def test_a_checkpoint_of_a_training_is_not_replaced(place: Path, command: str) -> None:
    """It holds what the run needs to go on."""
    raw = torch.load("best.ckpt", weights_only=True)
    torch.save(raw | {"optimizer_states": []}, "last.ckpt")
    with pytest.raises(HeadlabError, match=r"last\.ckpt is there already and is not a"):
        run(command, "last.ckpt")
    assert "optimizer_states" in torch.load("last.ckpt", weights_only=True)


def test_numbers(tmp_path: Path) -> None:
    path = tmp_path / "a.b.json"
    assert numbered(path, lambda one: False) == path
    path.write_text("1")
    (tmp_path / "a.b-2.json").symlink_to("nothing")
    assert numbered(path, lambda one: one.read_text() == "1") == path
    assert numbered(path, lambda one: False).name == "a.b-3.json"
