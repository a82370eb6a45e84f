"""A study's folder beside its checkpoint: what was measured, tables, figures, TensorBoard."""

import dataclasses
import errno
import glob
import hashlib
import itertools
import json
import math
import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from pydantic import TypeAdapter, ValidationError

from headlab.errors import HeadlabError
from headlab.files import replace_file
from headlab.locks import hold, release
from headlab.tables import write_table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FORMAT = 2  # raise it when a study measures something else under the same settings
EVENTS = "events.out.tfevents.*"  # TensorBoard's own files
TEXT = "utf-8", "surrogatepass"  # of the files, since names of files may be no Unicode
PATIENCE = 10.0  # seconds that another study may take to write down its settings

T = TypeVar("T")


class Study:
    """Collects the results of one study, and remembers what was measured when it is interrupted.

    The folder is ``<checkpoint's stem>.<name>``, beside the checkpoint. The same settings find the
    same folder again, with everything that was measured; other settings, a checkpoint that has
    changed since, or a version of this program that measures otherwise get a folder of their own
    (``-2``, ``-3``, ...), so that no result is lost. What the same ``settings`` measured, but
    ``shown`` otherwise, is taken over from there. One process at a time works on a folder.

    Args:
        checkpoint: the file that is studied.
        name: of the study, such as ``ablation-each_head-test``; also its tag in TensorBoard.
        settings: all that what is measured depends on, in plain types.
        shown: all else that changes what the tables and figures hold, in plain types.

    Raises:
        HeadlabError: the folder cannot be made, or another process is at work in it, or the
            checkpoint's name is no Unicode.
    """

    def __init__(
        self,
        checkpoint: Path,
        name: str,
        settings: Mapping[str, Any],
        shown: Mapping[str, Any] | None = None,
    ) -> None:
        self.name = name
        try:
            str(checkpoint).encode()
        except UnicodeEncodeError:  # TensorBoard could not name its file
            raise HeadlabError(f"{checkpoint}: the name is no Unicode; rename it") from None
        with open(checkpoint, "rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        measured = {"format": FORMAT, "checkpoint": digest, **settings}
        described = json.loads(json.dumps({**measured, "shown": shown or {}}))
        self.folder = self._find(checkpoint, described)
        self._records = self._read(checkpoint, described)
        self._written: list[Path] = []
        self._figures: dict[str, Figure] = {}
        self._scalars: dict[str, float] = {}

    def _find(self, checkpoint: Path, described: Mapping[str, Any]) -> Path:
        for n in itertools.count(1):
            suffix = "" if n == 1 else f"-{n}"
            folder = checkpoint.with_name(f"{checkpoint.stem}.{self.name}{suffix}")
            try:
                folder.mkdir(exist_ok=True)
                mine = hold(folder)
                # Temporary files begin with a dot.
                if mine and not any(p for p in folder.iterdir() if not p.name.startswith(".")):
                    _write_settings(folder, described)
                found = _settings(folder, wait=not mine)
            except OSError as error:
                remedy = "copy it to a folder that can be written"
                if error.errno == errno.ENAMETOOLONG:
                    remedy = "give it a shorter name"
                raise HeadlabError(
                    f"{folder}: {error.strerror}; results are written beside the checkpoint, so "
                    f"{remedy}"
                ) from None
            if found == described:
                if mine:
                    return folder
                raise HeadlabError(
                    f"{folder}: another process is at work on this very study; wait for its end, "
                    "or choose other settings"
                )
            if mine:
                release(folder)
        raise AssertionError("unreachable")

    @property
    def _journal(self) -> Path:
        return self.folder / "measured.jsonl"

    def _read(self, checkpoint: Path, described: Mapping[str, Any]) -> dict[str, Any]:
        """The records of this study, on top of those of studies that only show them otherwise."""
        own = _records(self._journal)
        if own:
            return own
        pattern = f"{glob.escape(checkpoint.stem + '.' + self.name)}*"
        for folder in sorted(checkpoint.parent.glob(pattern)):
            found = _settings(folder)
            if found is not None and {**found, "shown": None} == {**described, "shown": None}:
                for key, values in _records(folder / "measured.jsonl").items():
                    if key not in own:
                        self._append(key, values)
                        own[key] = values
        return own

    def done(self, key: str, kind: type[T]) -> T | None:
        """What was recorded under ``key``, by this run or an earlier one with these settings.

        Args:
            key: of the record.
            kind: its type: a dataclass, a named tuple, or plain types in ``dict`` and ``list``.

        Returns:
            None where there is no such record, or one with other fields or types.
        """
        values = self._records.get(key)
        if values is None:
            return None
        try:
            found: T = TypeAdapter(kind).validate_python(values)
        except ValidationError:
            return None
        return found if _same(_plain(found), values) else None

    def record(self, key: str, value: Any) -> None:
        """Keep ``value``, see ``done``, under ``key``; on disk when this returns."""
        values = json.loads(json.dumps(_plain(value)))
        self._append(key, values)
        self._records[key] = values

    def _append(self, key: str, values: Any) -> None:
        """One more line at the end, in one write: whatever is there already stays as it is."""
        line = json.dumps({"key": key, "values": values}, ensure_ascii=False) + "\n"
        flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | getattr(os, "O_BINARY", 0)
        try:
            with open(os.open(self._journal, flags, 0o666), "r+b", buffering=0) as file:
                if file.seek(0, os.SEEK_END):
                    file.seek(-1, os.SEEK_END)
                    if file.read(1) != b"\n":  # cut short by a kill
                        line = "\n" + line
                content = line.encode(*TEXT)
                if file.write(content) != len(content):
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
                os.fsync(file.fileno())
        except OSError as error:
            raise HeadlabError(f"{self._journal}: {error.strerror}") from error

    def table(self, name: str, rows: Sequence[Mapping[str, Any]]) -> None:
        """Write rows to ``name.csv`` and ``name.json``; None is an empty cell, and so is NaN."""
        self._written += write_table(self.folder, name, rows)

    def figure(self, name: str, figure: "Figure") -> None:
        """Write a figure to ``name.png``; it goes into TensorBoard as well."""
        from headlab.pictures import save_figure

        self._written.append(Path(save_figure(figure, self.folder / f"{name}.png")))
        self._figures[name] = figure

    def scalars(self, values: Mapping[str, float]) -> None:
        """Numbers for TensorBoard, by the end of their tag."""
        self._scalars.update({key: float(v) for key, v in values.items() if math.isfinite(v)})

    def close(self) -> list[Path]:
        """Write the event file of TensorBoard, in place of older ones; all files written."""
        from torch.utils.tensorboard import SummaryWriter

        from headlab.pictures import figure_to_image

        place = self.folder / "tensorboard"
        older = [path for path in place.glob(EVENTS) if path.is_file()]
        writer = SummaryWriter(str(place))
        for key, value in self._scalars.items():
            writer.add_scalar(f"{self.name}/{key}", value, 0)
        for name, figure in self._figures.items():
            image = figure_to_image(figure)
            writer.add_image(f"{self.name}/{name}", image, 0, dataformats="HWC")
        writer.close()
        for path in older:
            path.unlink(missing_ok=True)
        release(self.folder)
        return list(self._written)


def _write_settings(folder: Path, described: Mapping[str, Any]) -> None:
    text = json.dumps(described, indent=2, ensure_ascii=False) + "\n"
    replace_file(folder / "settings.json", lambda file: file.write(text.encode(*TEXT)))


def _settings(folder: Path, wait: bool = False) -> dict[str, Any] | None:
    """What a study's folder says of itself; None: it is no study's.

    Args:
        folder: to look into.
        wait: for another process to write it.
    """
    end = time.monotonic() + PATIENCE
    while True:
        try:
            found = json.loads((folder / "settings.json").read_text(*TEXT))
            return found if isinstance(found, dict) else None
        except (ValueError, RecursionError):
            return None
        except OSError:
            if not wait or time.monotonic() > end:
                return None
        time.sleep(0.02)


def _records(journal: Path) -> dict[str, Any]:
    """Key -> values of its last record; lines that are no whole record are passed over."""
    if not journal.is_file():
        return {}
    records = {}
    for line in journal.read_text(*TEXT).split("\n"):
        try:
            entry = json.loads(line)
            key, values = entry["key"], entry["values"]
        except (ValueError, KeyError, TypeError, RecursionError):
            continue  # cut short by a kill, or no record of ours
        if isinstance(key, str):
            records[key] = values
    return records


def _plain(value: Any) -> Any:
    """A record as mappings, lists and plain types, with the names of all fields."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        value = {one.name: getattr(value, one.name) for one in dataclasses.fields(value)}
    elif hasattr(value, "_asdict"):
        value = value._asdict()
    if isinstance(value, Mapping):
        return {key: _plain(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    return value


def _same(one: Any, other: Any) -> bool:
    """Whether two plain values are equal; NaN is equal to itself here."""
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_same(one[key], other[key]) for key in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(_same, one, other))
    return bool(one == other) or (one != one and other != other)
