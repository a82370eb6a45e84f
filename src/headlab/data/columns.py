"""Finding the two languages in a table: named columns, or a column of translations."""

from collections.abc import Iterator, Mapping
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
                raise HeadlabError(self._absent(where, list(values)))
            if not isinstance(values[name], str | None):
                raise HeadlabError(
                    f'{where}: "{name}" is {values[name]!r}, a text was expected; '
                    "write it between quotes"
                )
        return values[self.source], values[self.target]

    def table(self, table: "pa.Table", where: str) -> Iterator[tuple[TextOrNone, TextOrNone]]:
        """The two texts of each row of an Arrow table; errors as for `row`."""
        import pyarrow as pa

        columns = {name: table.column(name) for name in table.column_names}
        if not self.given and not {self.source, self.target} <= columns.keys():
            nested = columns.get(TRANSLATION)
            if nested is not None and pa.types.is_struct(nested.type):
                names = [field.name for field in nested.type]
                columns = dict(zip(names, nested.combine_chunks().flatten(), strict=True))
        for name in (self.source, self.target):
            if name not in columns:
                raise HeadlabError(self._absent(where, list(columns)))
        return zip(
            _texts(columns[self.source], f'{where}: column "{self.source}"'),
            _texts(columns[self.target], f'{where}: column "{self.target}"'),
            strict=True,
        )

    def _absent(self, where: str, there: list[str]) -> str:
        return (
            f'{where}: no columns "{self.source}" and "{self.target}", there are '
            f"{', '.join(there) or 'none'}; name them with data.source_column, data.target_column"
        )


def _texts(column: Any, where: str) -> list[TextOrNone]:
    import pyarrow as pa

    kind = column.type.value_type if pa.types.is_dictionary(column.type) else column.type
    if not (pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_null(kind)):
        raise HeadlabError(f"{where} holds {kind}, text was expected")
    texts: list[TextOrNone] = column.to_pylist()
    return texts
