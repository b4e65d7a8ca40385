"""Tables in memory: a pandas frame or an array, with the cells a file of them would have.

So a frame, and the CSV or Parquet file it was read from or is saved to, become the same features.

in memory                                 becomes
========================================  =============================================================================
None, NaN, pandas.NA, NaT                 an empty cell
a whole float                             its text without ".0"
columns of an array                       are called x0, x1, ...
names of columns that are no texts        their text
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, final

from adadp.app.owndata.tables import ROWS_AT_ONCE, Cells, Table, text_of


@final
class FrameTable(Table):
    """A pandas frame, or an array of two dimensions; ``name`` stands for the file in errors."""

    def __init__(self, frame: Any, name: str) -> None:
        self.frame = frame
        self.path = Path(name)
        names = getattr(frame, "columns", [f"x{number}" for number in range(frame.shape[1])])
        self.header = tuple(str(each).strip() for each in names)
        self._check_header()

    def __len__(self) -> int:
        return len(self.frame)

    def _names(self) -> Sequence[str]:
        return self.header

    def chunks(self, columns: Sequence[str]) -> Iterator[list[Cells]]:
        places = [self.header.index(name) for name in columns]
        for start in range(0, len(self.frame), ROWS_AT_ONCE):
            rows = slice(start, start + ROWS_AT_ONCE)
            yield [[text_of(value) for value in self._values(rows, place)] for place in places]

    def _values(self, rows: slice, place: int) -> list[Any]:
        """Some values of a column as objects of Python; None for those that are missing."""
        if not hasattr(self.frame, "iloc"):
            found: list[Any] = self.frame[rows, place].tolist()
            return found
        column = self.frame.iloc[rows, place]
        gone = column.isna().tolist()
        return [None if out else value for out, value in zip(gone, column.tolist(), strict=True)]

    def place(self, row: int) -> str:
        return f"row {row}, counting from 0"


@final
class SomeRows(Table):
    """The rows of another ``table`` from number ``first`` on, whose ``columns`` have been read as ``cells``."""

    def __init__(self, table: Table, columns: Sequence[str], cells: Sequence[Cells], first: int) -> None:
        self.path, self.header = table.path, tuple(columns)
        self._table, self._cells, self._first = table, dict(zip(columns, cells, strict=True)), first

    def _names(self) -> Sequence[str]:
        return self.header

    def chunks(self, columns: Sequence[str]) -> Iterator[list[Cells]]:
        yield [self._cells[name] for name in columns]

    def place(self, row: int) -> str:
        return self._table.place(self._first + row)

    def only(self, column: str) -> SomeRows:
        """The same rows with this column alone."""
        return SomeRows(self._table, [column], [self._cells[column]], self._first)


def in_parts(
    table: Table, columns: Sequence[str], beside: Sequence[str] = ()
) -> Iterator[tuple[SomeRows, list[Cells]]]:
    """The ``columns`` of ``table``, some rows at a time from the first to the last, and the cells ``beside`` them."""
    first, names = 0, list(dict.fromkeys([*columns, *beside]))
    for chunk in table.chunks(names):
        cells = dict(zip(names, chunk, strict=True))
        yield SomeRows(table, columns, [cells[name] for name in columns], first), [cells[name] for name in beside]
        first += len(chunk[0])
