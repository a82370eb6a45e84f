"""The JSON file of ``headlab benchmark``: whole at the end, and partial from the first turn on."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import typer

from headlab.benchmark.contest import Spread
from headlab.cli.outputs import numbered, of_settings
from headlab.files import replace_file


class Figures:
    """All that was measured so far, in memory and on the disk.

    Args:
        about: what is known before anything is measured, among it ``settings``.
        out: the file of all figures; None: beside the checkpoint, and not over other settings'.
        checkpoint: a path.
    """

    def __init__(self, about: Mapping[str, Any], out: Path | None, checkpoint: Path) -> None:
        self.found = dict(about)
        if out is None:
            usual = checkpoint.with_name(f"{checkpoint.stem}.benchmark.json")
            out = numbered(usual, lambda path: of_settings(path, about["settings"]))
        self.out = out
        self.partial: Path | None = None

    def keep(self, key: str, value: Any) -> None:
        """Take over what was measured; on disk when this returns, but for mere circumstances."""
        self.found[key] = value
        if key == "surroundings":
            return
        if self.partial is None:
            usual = self.out.with_name(f"{self.out.stem}.partial.json")
            self.partial = numbered(usual, lambda path: False)
        self._write(self.partial)

    def report(self) -> None:
        """Print the tables and write the file, in place of the partial one."""
        from headlab.cli.benchmark_report import print_benchmark

        print_benchmark(self.found)
        self._write(self.out)
        if self.partial is not None:
            self.partial.unlink(missing_ok=True)
        typer.echo(f"written: {self.out}")

    def report_partial(self) -> None:
        """Print the tables of what there is, once there is something."""
        from headlab.cli.benchmark_report import print_benchmark

        if self.partial is not None:
            print_benchmark(self.found)
            typer.echo(f"stopped before the end; written: {self.partial}")

    def _write(self, path: Path) -> None:
        text = json.dumps(_plain(self.found), indent=1, ensure_ascii=False, allow_nan=False) + "\n"
        replace_file(path, lambda file: file.write(text.encode()))


def _plain(value: Any) -> Any:
    """Spreads as ``{"median": ..., "low": ..., "high": ...}``."""
    if isinstance(value, Spread):
        return value._asdict()
    if isinstance(value, Mapping):
        return {key: _plain(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    return value
