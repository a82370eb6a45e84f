"""The user's own files: TSV, JSON lines, Parquet, or two line-aligned text files."""

import io
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from headlab.data.columns import ColumnNames, TextOrNone
from headlab.data.corpus import Corpus, absolute_path, checked_share
from headlab.data.pairs import SPLITS, Pair, SplitReport
from headlab.data.splits import complete
from headlab.data.text import is_blank, read_bytes, read_lines, sha256_of
from headlab.errors import HeadlabError

FORMATS = {
    ".tsv": "tsv",
    ".tab": "tsv",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".parquet": "parquet",
}

Rows = Iterator[tuple[TextOrNone, TextOrNone]]


class Files(Corpus):
    """Sentence pairs out of files, gzipped or not.

    Args:
        source, target: language codes or any two labels.
        root: folder for the cache.
        limit: keep only that many training pairs; null keeps all.
        train, validation, test: one table, or two text files of which line N of the first
            translates line N of the second. A relative path starts where the user stands. Null
            for validation or test holds a share of train out.
        format: tsv, jsonl or parquet; null goes by the ending of the name.
        source_column, target_column: names in a table; null looks for columns named `source` and
            `target`, then for a column ``translation``; a TSV file without such a first row is
            read by its first two columns.
        validation_share, test_share: what is held out of train when it must be.
    """

    name = "files"
    version = 1

    def __init__(
        self,
        source: str,
        target: str,
        root: str | Path,
        limit: int | None,
        train: str | Sequence[str] | None,
        validation: str | Sequence[str] | None,
        test: str | Sequence[str] | None,
        format: str | None,
        source_column: str | None,
        target_column: str | None,
        validation_share: float,
        test_share: float,
    ) -> None:
        super().__init__(source, target, root, limit)
        if not train:
            raise HeadlabError(
                "data.train is not set; give data.train=PAIRS.tsv or data.train=[FILE.en,FILE.fr]"
            )
        if format is not None and format not in FORMATS.values():
            raise HeadlabError(f"data.format={format}: known are tsv, jsonl, parquet")
        self.format = format
        self.columns = ColumnNames(self.source, self.target, source_column, target_column)
        self.shares = {
            "validation": checked_share(validation_share, "validation_share"),
            "test": checked_share(test_share, "test_share"),
        }
        given = zip(SPLITS, (train, validation, test), strict=True)
        self.paths = {split: _paths(split, value) for split, value in given if value}

    def identity(self) -> dict[str, Any]:
        """The files by their content: moving or touching them changes nothing."""
        return {
            "files": {
                split: [(self._format(split), sha256_of(path, f"data.{split}")) for path in paths]
                for split, paths in self.paths.items()
            },
            "columns": (self.columns.given, self.columns.source, self.columns.target),
            "shares": self.shares,
        }

    def read(self) -> dict[str, tuple[list[Pair], SplitReport]]:
        """Reads every file given, and holds out what was not given."""
        return complete({split: self._rows(split) for split in self.paths}, self.shares)

    def _format(self, split: str) -> str:
        paths = self.paths[split]
        if len(paths) == 2:
            return "text"
        if self.format is not None:
            return self.format
        endings = [ending.lower() for ending in paths[0].suffixes if ending.lower() != ".gz"]
        ending = endings[-1] if endings else ""
        if ending not in FORMATS:
            raise HeadlabError(
                f"data.{split}={paths[0]}: what {ending or 'no'} ending holds is not known; set "
                "data.format=tsv, jsonl or parquet, or give two text files as [SOURCE,TARGET]"
            )
        return FORMATS[ending]

    def _rows(self, split: str) -> Rows:
        kind, paths, key = self._format(split), self.paths[split], f"data.{split}"
        if kind == "text":
            return read_aligned(paths[0], paths[1], key)
        if kind == "tsv":
            return self._tsv(paths[0], key)
        return self._jsonl(paths[0], key) if kind == "jsonl" else self._parquet(paths[0], key)

    def _tsv(self, path: Path, key: str) -> Rows:
        """Cells end at tabs, rows at line ends, and every other character is text."""
        first, second, width = 0, 1, 0
        for number, line in enumerate(read_lines(path, key), start=1):
            cells = line.split("\t")
            if len(cells) == 1 and is_blank(line):
                yield None, None
                continue
            if not width:
                width = len(cells)
                named = {self.columns.source, self.columns.target} <= set(cells)
                if self.columns.given and not named:
                    raise HeadlabError(
                        f'{path}, line {number}: no columns "{self.columns.source}" and '
                        f'"{self.columns.target}", the first row holds {", ".join(cells)[:120]}'
                    )
                if named:
                    first, second = (
                        cells.index(name) for name in (self.columns.source, self.columns.target)
                    )
                    continue
                if width < 2:
                    raise HeadlabError(
                        f"{path}, line {number}: no tab between source and target; is it TSV?"
                    )
            if len(cells) != width:
                raise HeadlabError(
                    f"{path}, line {number}: {len(cells)} columns where the first row has {width}; "
                    "tabs must stand between columns only"
                )
            yield cells[first], cells[second]

    def _jsonl(self, path: Path, key: str) -> Rows:
        for number, line in enumerate(read_lines(path, key), start=1):
            where = f"{path}, line {number}"
            if is_blank(line):
                yield None, None
                continue
            try:
                row = json.loads(line)
            except ValueError as error:
                raise HeadlabError(f"{where}: not JSON ({error})") from None
            if not isinstance(row, dict):
                raise HeadlabError(f"{where}: an object {{...}} was expected on every line")
            pair = self.columns.row(row, where)
            # "\\ud800" is half a character: JSON lets it be written, no encoding can store it.
            if any("\ud800" <= letter <= "\udfff" for text in pair for letter in text or ""):
                raise HeadlabError(f"{where}: holds half a surrogate pair (\\ud800 to \\udfff)")
            yield pair

    def _parquet(self, path: Path, key: str) -> Rows:
        import pyarrow as pa
        import pyarrow.parquet as parquet

        try:
            table = parquet.read_table(io.BytesIO(read_bytes(path, key)))
        except (pa.ArrowException, OSError) as error:
            reason = " ".join(str(error).split())
            raise HeadlabError(f"{key}={path}: not a Parquet file ({reason})") from None
        return self.columns.table(table, str(path))


def read_aligned(source: Path, target: Path, key: str) -> Rows:
    """Line N of two text files, N by N.

    Raises HeadlabError naming both files and their numbers of lines when these differ: a missing
    line shifts every pair behind it.
    """
    sources, targets = read_lines(source, key), read_lines(target, key)
    if len(sources) != len(targets):
        raise HeadlabError(
            f"{key}: {source} has {len(sources):,} lines and {target} has {len(targets):,}; "
            "line N of one must translate line N of the other"
        )
    return zip(sources, targets, strict=True)


def _paths(split: str, value: Any) -> list[Path]:
    values = [value] if isinstance(value, str | Path) else value
    if not isinstance(values, Sequence) or len(values) not in (1, 2):
        raise HeadlabError(f"data.{split}={value}: one table or two text files were expected")
    return [absolute_path(path, split) for path in values]
