"""Sentence pairs out of tables: TSV, CSV, JSON and Parquet, every text as it was written.

Nothing here guesses at types: ``null``, ``NA``, ``007`` and ``2024-01-01`` are the texts that
they look like, and only a cell that is not there, or a null where the format has one, is missing.
"""

import csv
import io
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from headlab.data.columns import ColumnNames, TextOrNone
from headlab.data.text import is_blank, read_bytes, read_lines
from headlab.errors import HeadlabError

FORMATS = {
    ".tsv": "tsv",
    ".tab": "tsv",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".parquet": "parquet",
}
DIGITS = 4000  # of a whole number; Python makes no larger ones out of text

Rows = Iterator[tuple[TextOrNone, TextOrNone]]
Note = Callable[[str], None]


def ending_of(path: Path) -> str:
    """How a file's name ends, in small letters and without ``.gz``; empty without an ending."""
    endings = [ending.lower() for ending in path.suffixes if ending.lower() != ".gz"]
    return endings[-1] if endings else ""


def read_tsv(
    path: Path, columns: ColumnNames, key: str, note: Note | None = None, header: bool = False
) -> Rows:
    """The pairs of a TSV file. Cells end at tabs, rows at line ends, every other sign is text.

    Args:
        path: the file, gzipped or not.
        columns: which columns; without names and header the first two are taken.
        key: the configuration key that the path came from, for errors.
        note: is told which columns are taken where the user might expect others.
        header: whether the first row must be one.
    """
    rows = ((n, line.split("\t")) for n, line in enumerate(read_lines(path, key), start=1))
    hint = "tabs must stand between columns only"
    return _cells(rows, path, columns, hint, header or columns.given, note)


def read_csv(path: Path, columns: ColumnNames, key: str, separator: str = ",") -> Rows:
    """The pairs of a CSV file with a header (RFC 4180); arguments as for ``read_tsv``."""
    csv.field_size_limit(sys.maxsize)
    lines = (f"{line}\n" for line in read_lines(path, key))
    reader = csv.reader(lines, delimiter=separator, strict=True)

    def rows() -> Iterator[tuple[int, list[str]]]:
        while True:
            number = reader.line_num + 1
            try:
                cells = next(reader)
            except StopIteration:
                return
            except csv.Error as error:
                raise HeadlabError(f"{path}, line {number}: not CSV ({error})") from None
            yield number, cells or [""]

    return _cells(rows(), path, columns, "put cells with a separator between quotes", True)


def _cells(
    rows: Iterator[tuple[int, list[str]]],
    path: Path,
    columns: ColumnNames,
    hint: str,
    header: bool,
    note: Note | None = None,
) -> Rows:
    """The two wanted cells of each row; the first row may, or must, name the columns."""
    first, second, width = 0, 1, 0
    wanted = (columns.source, columns.target)
    for number, cells in rows:
        where = f"{path}, line {number}"
        if len(cells) == 1 and is_blank(cells[0]):
            yield None, None
            continue
        if not width:
            width = len(cells)
            named = set(wanted) <= set(cells)
            if header and not named:
                raise HeadlabError(columns.absent(where, cells))
            if named:
                first, second = (columns.once(cells, name, where) for name in wanted)
                continue
            if width < 2:
                raise HeadlabError(f"{where}: no tab between source and target; is it TSV?")
            if width > 2 and note is not None:
                note(
                    f"{path.name} has {width} columns, none named {wanted[0]} and {wanted[1]}: "
                    f"columns 1 and 2 are taken, in the first row {_short(cells[0])} and "
                    f"{_short(cells[1])}; if that row is a header, name its columns with "
                    "data.source_column, data.target_column"
                )
        if len(cells) != width:
            raise HeadlabError(
                f"{where}: {len(cells)} columns where the first row has {width}; {hint}"
            )
        yield cells[first], cells[second]


def read_jsonl(path: Path, columns: ColumnNames, key: str) -> Rows:
    """The pairs of a file with a JSON object a line; arguments as for ``read_tsv``."""
    return _objects(read_lines(path, key), path, columns)


def read_json(path: Path, columns: ColumnNames, key: str) -> Rows:
    """As ``read_jsonl``, also for a file that is one list of objects."""
    lines = read_lines(path, key)
    text = "\n".join(lines).lstrip()
    if not text.startswith("["):
        return _objects(lines, path, columns)
    rows = _parsed(text, str(path))
    places = (f"{path}, entry {n}" for n in range(1, len(rows) + 1))
    return (_pair(row, columns, where) for row, where in zip(rows, places, strict=True))


def _objects(lines: Sequence[str], path: Path, columns: ColumnNames) -> Rows:
    for number, line in enumerate(lines, start=1):
        where = f"{path}, line {number}"
        if is_blank(line):
            yield None, None
        else:
            yield _pair(_parsed(line, where), columns, where)


def _parsed(text: str, where: str) -> Any:
    try:
        return json.loads(text, object_pairs_hook=_without_doubles, parse_int=_whole)
    except ValueError as error:
        raise HeadlabError(f"{where}: not JSON ({error})") from None
    except RecursionError:
        raise HeadlabError(f"{where}: lists or objects nested too deeply to be read") from None


def _without_doubles(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Of two values for one key, which one was meant cannot be known."""
    made = dict(pairs)
    if len(made) < len(pairs):
        keys = [key for key, _ in pairs]
        double = next(key for key in keys if keys.count(key) > 1)
        raise ValueError(f'the key "{double[:80]}" stands twice in one object')
    return made


def _whole(digits: str) -> int | float:
    return int(digits) if len(digits) <= DIGITS else float(digits)


def _pair(row: Any, columns: ColumnNames, where: str) -> tuple[TextOrNone, TextOrNone]:
    if not isinstance(row, dict):
        raise HeadlabError(f"{where}: an object {{...}} was expected on every line")
    pair = columns.row(row, where)
    # "\\ud800" is half a character: JSON lets it be written, no encoding can store it.
    if any("\ud800" <= letter <= "\udfff" for text in pair for letter in text or ""):
        raise HeadlabError(f"{where}: holds half a surrogate pair (\\ud800 to \\udfff)")
    return pair


def read_parquet(path: Path, columns: ColumnNames, key: str) -> Rows:
    """The pairs of a Parquet file; arguments as for ``read_tsv``."""
    import pyarrow as pa
    import pyarrow.parquet as parquet

    try:
        table = parquet.ParquetFile(io.BytesIO(read_bytes(path, key))).read()
    except (pa.ArrowException, OSError) as error:
        reason = " ".join(str(error).split())
        raise HeadlabError(f"{key}={path}: not a Parquet file ({reason})") from None
    return columns.table(table, str(path))


def _short(text: str) -> str:
    return repr(text if len(text) <= 40 else f"{text[:40]}...")
