"""Finding the two languages in a table: named columns, or a column of translations."""

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from headlab.errors import HeadlabError

if TYPE_CHECKING:
    import pyarrow as pa

TRANSLATION = "translation"

TextOrNone = str | None


class ColumnNames:
    """Which columns hold the source and the target.

    The two names that the user gave; or else columns named like the languages; or else a column
    ``translation`` whose fields are named like the languages, in whatever order they stand.
    """

    def __init__(
        self, source: str, target: str, source_column: str | None, target_column: str | None
    ) -> None:
        if (source_column is None) != (target_column is None):
            raise HeadlabError(
                f"data.source_column={source_column} data.target_column={target_column}: "
                "give both or neither"
            )
        self.given = source_column is not None
        self.source = source if source_column is None else source_column
        self.target = target if target_column is None else target_column

    def row(self, row: Mapping[str, Any], where: str) -> tuple[TextOrNone, TextOrNone]:
        """The two texts of one row; None for a null. HeadlabError with `where` if they are not
        there or not text."""
        values = row
        if not self.given and not {self.source, self.target} <= row.keys():
            nested = row.get(TRANSLATION)
            if isinstance(nested, Mapping):
                values = nested
        for name in (self.source, self.target):
            if name not in values:
                raise HeadlabError(self.absent(where, list(values)))
            if not isinstance(values[name], str | None):
                raise HeadlabError(
                    f'{where}: "{name}" is {values[name]!r}, a text was expected; '
                    "write it between quotes"
                )
        return values[self.source], values[self.target]

    def table(self, table: "pa.Table", where: str) -> Iterator[tuple[TextOrNone, TextOrNone]]:
        """The two texts of each row of an Arrow table; errors as for `row`."""
        import pyarrow as pa

        names = list(table.column_names)
        columns = dict(zip(names, table.columns, strict=True))
        if not self.given and not {self.source, self.target} <= columns.keys():
            nested = columns.get(TRANSLATION)
            if nested is not None and pa.types.is_struct(nested.type):
                names = [field.name for field in nested.type]
                columns = dict(zip(names, nested.combine_chunks().flatten(), strict=True))
        for name in (self.source, self.target):
            if name not in columns:
                raise HeadlabError(self.absent(where, names))
            self.once(names, name, where)
        return zip(
            _texts(columns[self.source], f'{where}: column "{self.source}"'),
            _texts(columns[self.target], f'{where}: column "{self.target}"'),
            strict=True,
        )

    @staticmethod
    def once(names: Sequence[str], name: str, where: str) -> int:
        """The place of a column; HeadlabError with `where` if several have its name."""
        if names.count(name) > 1:
            raise HeadlabError(f'{where}: {names.count(name)} columns are named "{name}"; keep one')
        return names.index(name)

    def absent(self, where: str, there: Sequence[str]) -> str:
        """What to say where the two columns are not among those `there`."""
        known = ", ".join(there)[:200] or "none"
        return (
            f'{where}: no columns "{self.source}" and "{self.target}", there are {known}; '
            "name them with data.source_column, data.target_column"
        )


def _texts(column: Any, where: str) -> list[TextOrNone]:
    """A column's texts; bytes are those of UTF-8, as old writers of Parquet store texts."""
    import pyarrow as pa

    kind = column.type.value_type if pa.types.is_dictionary(column.type) else column.type
    text = (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view, pa.types.is_null)
    raw = (pa.types.is_binary, pa.types.is_large_binary, pa.types.is_binary_view)
    if any(check(kind) for check in text):
        texts: list[TextOrNone] = column.to_pylist()
        return texts
    if not any(check(kind) for check in raw):
        raise HeadlabError(f"{where} holds {kind}, text was expected")
    texts = []
    for row, value in enumerate(column.to_pylist(), start=1):
        try:
            texts.append(None if value is None else value.decode("utf-8"))
        except UnicodeDecodeError as error:
            raise HeadlabError(
                f"{where}, row {row}: not UTF-8 (byte 0x{value[error.start]:02x})"
            ) from None
    return texts
