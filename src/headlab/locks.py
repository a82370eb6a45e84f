"""One process at a time in a folder, so that two do not write the same files."""

import os
from pathlib import Path

_held: dict[Path, int] = {}  # folder -> the descriptor that holds it


def hold(folder: Path) -> bool:
    """Hold a folder until ``release``, or until this process ends, however it ends.

    Nothing is written into it. Where the system has no such locks (Windows, some network drives)
    every process gets the folder.

    Returns:
        False: another process holds it.
    """
    try:
        import fcntl
    except ImportError:  # Windows
        return True
    folder = folder.resolve()
    if folder in _held:
        return True
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return False
    except OSError:  # no locks here
        os.close(descriptor)
        return True
    _held[folder] = descriptor
    return True


def release(folder: Path) -> None:
    """Let other processes have a folder; one that is not held stays as it is."""
    descriptor = _held.pop(folder.resolve(), None)
    if descriptor is not None:
        os.close(descriptor)
