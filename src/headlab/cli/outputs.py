"""Where commands may write: never over something that is not theirs."""

import itertools
import json
import os
import stat
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from headlab.errors import HeadlabError


def check_out(
    out: Path,
    example: str,
    *read: Path,
    ours: Callable[[Path], bool],
    what: str,
    option: str = "--out",
) -> None:
    """Refuse an output file that cannot be written, or that would replace something of the user's.

    The rule of every command with such an option: the folder must be there, and what is there
    under the file's name is replaced only if it is empty, or such a command wrote it.

    Args:
        out: the file.
        example: a name that it could have.
        read: the checkpoints that the command reads.
        ours: whether a file is one that a command like this wrote.
        what: such a file, for the error.
        option: that named it.

    Raises:
        HeadlabError: says what is wrong with ``out``.
    """
    if out.is_dir():
        raise HeadlabError(
            f"{option} {out} is a folder; name a file in it, such as {out / example}"
        )
    if any(out.exists() and one.exists() and out.samefile(one) for one in read):
        raise HeadlabError(f"{option} {out} is the checkpoint itself; choose another name")
    there = out.stat() if out.exists() else None
    if there is not None and not stat.S_ISREG(there.st_mode):
        return  # such as /dev/stdout, which is written to as it is
    # A link stays, and what it leads to is written.
    place = Path(os.path.realpath(out)).parent if out.is_symlink() else out.parent
    if not place.is_dir():
        raise HeadlabError(f"{option} {out}: there is no folder {place}; make it first")
    try:
        with tempfile.TemporaryFile(dir=place):
            pass
    except OSError as error:
        raise HeadlabError(
            f"{option} {out}: cannot write into {place} ({error.strerror})"
        ) from None
    if there is None:
        return
    if not there.st_mode & 0o222:
        raise HeadlabError(f"{option} {out} is protected against writing; choose another name")
    if there.st_size and not ours(out):
        raise HeadlabError(
            f"{option} {out} is there already and is not {what}; choose another name, or remove it"
        )


def check_checkpoint_out(out: Path, example: str, *read: Path) -> None:
    """``check_out`` for a checkpoint without a training's state, as prune and convert write."""
    what = "a pruned or converted checkpoint"
    check_out(out, example, *read, ours=_is_cut_checkpoint, what=what)


def _is_cut_checkpoint(path: Path) -> bool:
    from headlab.checkpoint import read_raw

    try:
        return read_raw(path).keys() == {"headlab", "state_dict", "global_step"}
    except HeadlabError:
        return False


def is_table(path: Path, *keys: str) -> bool:
    """Whether a file is JSON with these keys at the top, or in each row of a list."""
    try:
        found = json.loads(path.read_bytes())
    except (ValueError, RecursionError):
        return False
    rows = found if isinstance(found, list) else [found]
    return bool(rows) and all(isinstance(row, dict) and row.keys() >= {*keys} for row in rows)


def numbered(path: Path, ours: Callable[[Path], bool]) -> Path:
    """``path``, or ``path`` with -2, -3, ... before its suffix: the first that is free or ours.

    Args:
        path: of a file.
        ours: whether a file that is there may be replaced.
    """
    for n in itertools.count(1):
        one = path if n == 1 else path.with_name(f"{path.stem}-{n}{path.suffix}")
        if not os.path.lexists(one) or (one.is_file() and ours(one)):
            return one
    raise AssertionError("unreachable")


def of_settings(path: Path, settings: Mapping[str, Any]) -> bool:
    """Whether a JSON file of results says that it came about with the same settings."""
    try:
        found = json.loads(path.read_bytes())
    except (ValueError, RecursionError):
        return False
    same: Any = json.loads(json.dumps(settings))
    return isinstance(found, dict) and found.get("settings") == same
