"""Writing files so that nothing already saved is ever lost."""

import contextlib
import os
import secrets
import shutil
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

from headlab.errors import HeadlabError

FULL_BYTES = 64 * 1024  # a disk with less room than this is full


def replace_file(path: str | Path, write: Callable[[BinaryIO], Any]) -> None:
    """Call ``write(file)`` on a temporary neighbour of ``path``, then put it in place.

    Where ``path`` is a link, what it leads to is replaced and the link stays. A file that was
    there keeps its permissions, and its owner where that is allowed; a new one has those that the
    process gives all its files. What is no file, such as ``/dev/stdout``, is written to as it is.

    Raises:
        HeadlabError: the disk is full or the folder cannot be written; ``path`` is untouched.
    """
    path = Path(path)
    temporary = None
    try:
        before = path.stat() if path.exists() else None
        if before is not None and not stat.S_ISREG(before.st_mode):
            with path.open("wb") as file:  # a folder refuses
                write(file)
            return
        place = Path(os.path.realpath(path))
        place.parent.mkdir(parents=True, exist_ok=True)
        # The kernel applies the process's umask to the mode; names may be 255 bytes long.
        temporary = place.with_name(f".{place.name[:48]}.{secrets.token_hex(8)}")
        handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
        with os.fdopen(handle, "wb") as file:
            if before is not None:
                with contextlib.suppress(PermissionError):
                    os.fchown(handle, before.st_uid, before.st_gid)
                os.fchmod(handle, stat.S_IMODE(before.st_mode))
            write(file)
            file.flush()
            os.fsync(handle)
        os.replace(temporary, place)
        _sync_folder(place.parent)
    except (OSError, RuntimeError) as error:
        full = path.parent.is_dir() and shutil.disk_usage(path.parent).free < FULL_BYTES
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        if full:  # PyTorch's own writer speaks of positions in the file
            reason = "no space left on the disk"
        raise HeadlabError(
            f"could not write {path}: {reason.splitlines()[0]}; what was there before is untouched"
        ) from error
    finally:
        if temporary is not None:  # gone, unless something went wrong
            temporary.unlink(missing_ok=True)


def _sync_folder(folder: Path) -> None:
    """Let the new name survive a loss of power, on the systems where a folder can be synced."""
    with contextlib.suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
