"""A study's folder beside its checkpoint: what was measured, tables, figures, TensorBoard."""

import hashlib
import itertools
import json
import math
import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headlab.errors import HeadlabError
from headlab.files import replace_file
from headlab.tables import write_table

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class Study:
    """Collects the results of one study, and remembers what was measured when it is interrupted.

    The folder is ``<checkpoint's stem>.<name>``, beside the checkpoint. The same settings find the
    same folder again, with everything that was measured; other settings, or a checkpoint that has
    changed since, get a folder of their own (``-2``, ``-3``, ...), so that no result is lost.

    Args:
        checkpoint: the file that is studied.
        name: of the study, such as ``ablation-each_head-test``; also its tag in TensorBoard.
        settings: all that the numbers depend on, in plain types.

    Raises:
        HeadlabError: the folder cannot be made.
    """

    def __init__(self, checkpoint: Path, name: str, settings: Mapping[str, Any]) -> None:
        self.name = name
        with open(checkpoint, "rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        described = json.loads(json.dumps({"checkpoint": digest, **settings}))
        self.folder = self._find(checkpoint, described)
        self._records = self._read()
        self._written: list[Path] = []
        self._figures: dict[str, Figure] = {}
        self._scalars: dict[str, float] = {}

    def _find(self, checkpoint: Path, described: Mapping[str, Any]) -> Path:
        for n in itertools.count(1):
            suffix = "" if n == 1 else f"-{n}"
            folder = checkpoint.with_name(f"{checkpoint.stem}.{self.name}{suffix}")
            settings = folder / "settings.json"
            try:
                folder.mkdir(exist_ok=True)
                # What another study that starts just now is writing begins with a dot.
                if not any(p for p in folder.iterdir() if not p.name.startswith(".")):
                    _write(settings, json.dumps(described, indent=2, ensure_ascii=False) + "\n")
                if json.loads(settings.read_text("utf-8")) == described:
                    return folder
            except OSError as error:
                if folder.is_dir() and isinstance(error, FileNotFoundError):
                    continue  # a folder of something else
                raise HeadlabError(
                    f"{folder}: {error.strerror}; results are written beside the checkpoint, so "
                    "copy it to a folder that can be written"
                ) from None
            except ValueError:  # not JSON: somebody else's file
                continue
        raise AssertionError("unreachable")

    @property
    def _journal(self) -> Path:
        return self.folder / "measured.jsonl"

    def _read(self) -> dict[str, dict[str, Any]]:
        if not self._journal.exists():
            return {}
        records, whole = {}, []
        text = self._journal.read_text("utf-8", errors="replace")
        for line in text.split("\n"):
            try:
                entry = json.loads(line)
                records[entry["key"]] = dict(entry["values"])
            except (ValueError, KeyError, TypeError):
                continue  # cut short by a kill, or no record of ours
            whole.append(line + "\n")
        if "".join(whole) != text:
            _write(self._journal, "".join(whole))
        return records

    def done(self, key: str) -> dict[str, Any] | None:
        """What was recorded under ``key``, by this run or an earlier one with these settings."""
        return self._records.get(key)

    def record(self, key: str, values: Mapping[str, Any]) -> None:
        """Keep ``values`` (plain types) under ``key``; on disk when this returns."""
        line = json.dumps({"key": key, "values": values}, ensure_ascii=False) + "\n"
        try:
            with open(self._journal, "a", encoding="utf-8") as file:
                file.write(line)
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise HeadlabError(f"{self._journal}: {error.strerror}") from error
        self._records[key] = json.loads(line)["values"]

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
        """Write the event file of TensorBoard, in place of an older one; all files written."""
        from torch.utils.tensorboard import SummaryWriter

        from headlab.pictures import figure_to_image

        place = self.folder / "tensorboard"
        shutil.rmtree(place, ignore_errors=True)
        writer = SummaryWriter(str(place))
        for key, value in self._scalars.items():
            writer.add_scalar(f"{self.name}/{key}", value, 0)
        for name, figure in self._figures.items():
            image = figure_to_image(figure)
            writer.add_image(f"{self.name}/{name}", image, 0, dataformats="HWC")
        writer.close()
        return list(self._written)


def _write(path: Path, text: str) -> None:
    replace_file(path, lambda file: file.write(text.encode()))
