"""Tables for other programs: the same rows as CSV and as JSON."""

import csv
import io
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from headlab.files import replace_file


def write_table(folder: Path, name: str, rows: Sequence[Mapping[str, Any]]) -> list[Path]:
    """Write rows to ``name.csv`` and ``name.json``, each whole or not at all.

    A missing value, None and NaN are an empty cell, and null in JSON; a list is its items with
    spaces between them in CSV.
    """
    columns = list(dict.fromkeys(key for row in rows for key in row))
    cleaned = [{key: _plain(row.get(key)) for key in columns} for row in rows]
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows(
        {key: " ".join(map(str, v)) if isinstance(v, list) else v for key, v in row.items()}
        for row in cleaned
    )
    contents = {
        f"{name}.csv": text.getvalue(),
        f"{name}.json": json.dumps(cleaned, indent=1, ensure_ascii=False) + "\n",
    }
    for file_name, content in contents.items():
        _write(folder / file_name, content.encode())
    return [folder / file_name for file_name in contents]


def _write(path: Path, content: bytes) -> None:
    replace_file(path, lambda file: file.write(content))


def _plain(value: Any) -> Any:
    """JSON has no NaN and no infinity."""
    if hasattr(value, "item"):
        value = value.item()
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return list(value) if isinstance(value, tuple | set) else value
