"""Corpora on the disk: Arrow files in folders that appear whole or not at all."""

import contextlib
import hashlib
import json
import logging
import os
import shutil
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headlab.data.pairs import SPLITS, Pair, SplitReport
from headlab.data.text import sha256_of
from headlab.errors import HeadlabError

if TYPE_CHECKING:
    from datasets import DatasetDict

logger = logging.getLogger("headlab")

ABANDONED_AFTER_SECONDS = 24 * 3600


def read_cache(
    folder: Path, warn: bool = True
) -> tuple["DatasetDict", dict[str, SplitReport]] | None:
    """The splits and reports stored in `folder`; None when it is absent, damaged or too old to
    hold checksums.

    Every file is compared with its checksum: a copy broken off, or a disk that gives back other
    bytes, would not show in the lengths.
    """
    from datasets import DatasetDict, load_from_disk

    try:
        stored = json.loads((folder / "report.json").read_text(encoding="utf-8"))
        if "checksums" not in stored:
            return None
        checksum = stored.pop("checksum")
        if checksum != _checksum(stored) or stored["checksums"] != _checksums(folder):
            raise ValueError("other bytes than were written")
        reports = {split: SplitReport(**stored[split]) for split in SPLITS}
        with quiet_datasets():
            splits = load_from_disk(str(folder))
        if not isinstance(splits, DatasetDict):
            return None
        if any(len(splits[split]) != reports[split].kept for split in SPLITS):
            return None
    except FileNotFoundError:
        return None
    # Whatever a damaged folder makes the readers raise, the remedy is the same: build it anew.
    except Exception as error:
        if warn:
            logger.warning("%s: damaged cache (%s), built anew", folder, type(error).__name__)
        return None
    return splits, reports


def write_cache(folder: Path, made: Mapping[str, tuple[list[Pair], SplitReport]]) -> None:
    """Stores splits and reports in `folder`, which appears whole or not at all.

    Runs that build the same corpus at once each write a folder of their own; the first to finish
    gives it its final name and the others use that one.
    """
    from datasets import Dataset, DatasetDict, Features, Value

    features = Features({"source": Value("string"), "target": Value("string")})
    with temporary_folder(folder.parent, folder.name) as temporary:
        splits = DatasetDict(
            {
                split: Dataset.from_dict(
                    {
                        "source": [source for source, _ in made[split][0]],
                        "target": [target for _, target in made[split][0]],
                    },
                    features=features,
                )
                for split in SPLITS
            }
        )
        whole = temporary / "whole"
        with quiet_datasets():
            splits.save_to_disk(str(whole))
        stored: dict[str, Any] = {split: asdict(made[split][1]) for split in SPLITS}
        stored["checksums"] = _checksums(whole)
        stored["checksum"] = _checksum(stored)
        (whole / "report.json").write_text(json.dumps(stored, indent=1), encoding="utf-8")
        try:
            os.replace(whole, folder)
        except OSError:
            # A folder of that name is there already: another run's whole one, or a damaged one.
            if read_cache(folder, warn=False) is None:
                # Yet another run may be clearing the damage too; whoever is last changes nothing.
                with contextlib.suppress(FileNotFoundError):
                    os.replace(folder, temporary / "damaged")
                with contextlib.suppress(OSError):
                    os.replace(whole, folder)


def _checksums(folder: Path) -> dict[str, str]:
    """The sha256 of every file of a cached corpus but its report."""
    return {
        path.relative_to(folder).as_posix(): sha256_of(path)
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path != folder / "report.json"
    }


def _checksum(stored: Mapping[str, Any]) -> str:
    """The sha256 of the report itself."""
    return hashlib.sha256(json.dumps(stored, sort_keys=True).encode()).hexdigest()


@contextlib.contextmanager
def temporary_folder(parent: Path, name: str) -> Iterator[Path]:
    """A new folder below `parent`, on the same disk, removed at the end.

    Folders that killed runs left behind are removed once they are a day old.
    """
    try:
        parent.mkdir(parents=True, exist_ok=True)
        for old in parent.glob(".making-*"):
            with contextlib.suppress(OSError):
                if time.time() - old.stat().st_mtime > ABANDONED_AFTER_SECONDS:
                    shutil.rmtree(old, ignore_errors=True)
        temporary = Path(tempfile.mkdtemp(prefix=f".making-{name}-", dir=parent))
    except OSError as error:
        raise HeadlabError(
            f"{parent}: cannot be written ({error.strerror or error}); "
            "set paths.data to a folder that can"
        ) from None
    try:
        yield temporary
    except OSError as error:
        raise HeadlabError(
            f"{parent}: writing failed ({error.strerror or error}); "
            "free space there or set paths.data to another folder"
        ) from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


@contextlib.contextmanager
def quiet_datasets() -> Iterator[None]:
    """No progress bars of the datasets library for work that takes a blink."""
    from datasets.utils.logging import (
        disable_progress_bar,
        enable_progress_bar,
        is_progress_bar_enabled,
    )

    shown = is_progress_bar_enabled()
    disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            enable_progress_bar()
