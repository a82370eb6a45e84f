"""The user's own files: TSV, JSON lines, Parquet, or two line-aligned text files."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from headlab.data.columns import ColumnNames
from headlab.data.corpus import Corpus, absolute_path, checked_share
from headlab.data.pairs import SPLITS, Pair, SplitReport
from headlab.data.splits import complete
from headlab.data.tables import FORMATS, Note, Rows, ending_of, read_jsonl, read_parquet, read_tsv
from headlab.data.text import read_lines, sha256_of
from headlab.errors import HeadlabError


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
        notes: dict[str, list[str]] = {split: [] for split in self.paths}
        found = {split: self._rows(split, notes[split].append) for split in self.paths}
        made = complete(found, self.shares)
        for split, some in notes.items():
            made[split][1].notes += some
        return made

    def _format(self, split: str) -> str:
        paths = self.paths[split]
        if len(paths) == 2:
            return "text"
        if self.format is not None:
            return self.format
        ending = ending_of(paths[0])
        if ending not in FORMATS:
            raise HeadlabError(
                f"data.{split}={paths[0]}: what {ending or 'no'} ending holds is not known; set "
                "data.format=tsv, jsonl or parquet, or give two text files as [SOURCE,TARGET]"
            )
        return FORMATS[ending]

    def _rows(self, split: str, note: Note) -> Rows:
        kind, paths, key = self._format(split), self.paths[split], f"data.{split}"
        if kind == "text":
            return read_aligned(paths[0], paths[1], key)
        if kind == "tsv":
            return read_tsv(paths[0], self.columns, key, note)
        read = read_jsonl if kind == "jsonl" else read_parquet
        return read(paths[0], self.columns, key)


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
