"""Writing files so that nothing already saved is ever lost."""

import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

from headlab.errors import HeadlabError

FULL_BYTES = 64 * 1024  # a disk with less room than this is full


def replace_file(path: str | Path, write: Callable[[BinaryIO], Any]) -> None:
    """Call ``write(file)`` on a temporary neighbour of ``path``, then put it in place.

    Raises:
        HeadlabError: the disk is full or the folder cannot be written; ``path`` is untouched.
    """
    path = Path(path)
    temporary = ""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        with os.fdopen(handle, "wb") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, 0o666 & ~_umask())
        os.replace(temporary, path)
    except (OSError, RuntimeError) as error:
        full = path.parent.is_dir() and shutil.disk_usage(path.parent).free < FULL_BYTES
        if temporary and os.path.exists(temporary):
            os.unlink(temporary)
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        if full:  # PyTorch's own writer speaks of positions in the file
            reason = "no space left on the disk"
        raise HeadlabError(
            f"could not write {path}: {reason.splitlines()[0]}; what was there before is untouched"
        ) from error


def _umask() -> int:
    value = os.umask(0)
    os.umask(value)
    return value
