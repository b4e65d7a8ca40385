"""Tables on disk as text, a chunk of rows at a time: CSV through the standard library, Parquet through pyarrow.

file                                     what happens
=======================================  ==========================================================================
a byte order mark (UTF-8)                dropped
bytes that are not UTF-8                 an error with the line
quoted delimiters, quotes and newlines   part of the cell; a row's line is the one it begins in
an unclosed quote, text behind a quote   an error with the line: the rest of the file would be one cell
an empty line                            no row
a row with more or fewer cells           an error with the line
no header, no rows                       an error
two columns of one name, one of none     an error
Parquet: null, NaN                       an empty cell
Parquet: numbers, text, true and false   their text; a whole float without ".0", so that 3 stays 3 beside a null
Parquet: dates, lists, bytes, ...        an error, unless the column is ignored
"""

from __future__ import annotations

import csv
import importlib
import math
import os
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from decimal import Decimal
from itertools import islice
from pathlib import Path
from typing import Any, TypeAlias, final

from adadp.errors import InputError

Cells: TypeAlias = Sequence[str]

ROWS_AT_ONCE = 1_024
"""Few, so that the cells of a chunk are gone before the garbage collector looks at them."""


class Table(ABC):
    """A file with named columns. ``header`` is read when it is opened; cells come by ``chunks``."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        if not self.path.is_file():
            found = "is a folder" if self.path.is_dir() else "does not exist"
            raise InputError(f"The table {self.path} {found}.", fix="Give a .csv, .tsv or .parquet file.")
        self.header = tuple(name.strip() for name in self._names())
        self._check_header()

    @abstractmethod
    def _names(self) -> Sequence[str]:
        """The names of the columns, as the file has them."""

    @abstractmethod
    def chunks(self, columns: Sequence[str]) -> Iterator[list[Cells]]:
        """The cells of ``columns``, in this order, for some rows at a time, from the first row to the last."""

    @abstractmethod
    def place(self, row: int) -> str:
        """Where row number ``row``, counting from 0, is in the file, for people."""

    def arrow_type(self, column: str) -> Any:
        """The type the file gives a column; None where all are text."""
        del column

    def _check_header(self) -> None:
        no_header = "If the file has no header, put one line with the names of the columns on top."
        for number, name in enumerate(self.header, start=1):
            if not name:
                raise InputError(
                    f"Column {number} of {self.path} has no name.",
                    fix=f"Name it in the header (pandas leaves its index unnamed: save with index=False). {no_header}",
                )
            if name in self.header[: number - 1]:
                raise InputError(f"{self.path} has two columns called {name!r}.", fix=f"Rename one. {no_header}")


@final
class CsvTable(Table):
    """Comma-separated text, or with another delimiter."""

    def __init__(self, path: str | os.PathLike[str], delimiter: str) -> None:
        self.delimiter = delimiter
        super().__init__(path)

    def _names(self) -> Sequence[str]:
        for _, row in self._rows():
            return row
        raise InputError(f"The table {self.path} is empty.", fix="Give a file with a header and rows.")

    def _rows(self) -> Iterator[tuple[int, list[str]]]:
        """Every row that is not an empty line, the header first, with the line it begins in."""
        with self.path.open(encoding="utf-8-sig", newline="") as file:
            reader = csv.reader(file, delimiter=self.delimiter, strict=True)
            line = 1
            try:
                for row in reader:
                    if row:
                        yield line, row
                    line = reader.line_num + 1
            except csv.Error as error:
                raise InputError(
                    f"{self.path}, line {line}: the row that begins here cannot be read ({error}).",
                    why="Where quotes do not match, cells and rows cannot be told apart.",
                    fix='Close the quote; a quote inside a quoted cell is written twice, "".',
                ) from error
            except UnicodeDecodeError as error:
                lines = enumerate(self.path.read_bytes().split(b"\n"), start=1)
                wrong = next(number for number, content in lines if not _is_utf8(content))
                raise InputError(f"{self.path}, line {wrong}: not UTF-8 text.", fix="Save it as UTF-8.") from error

    def chunks(self, columns: Sequence[str]) -> Iterator[list[Cells]]:
        wanted = [self.header.index(name) for name in columns]
        rows = (row for _, row in islice(self._rows(), 1, None))
        done = 0
        while chunk := list(islice(rows, ROWS_AT_ONCE)):
            for index, row in enumerate(chunk):
                if len(row) != len(self.header):
                    raise InputError(
                        f"{self.path}, {self.place(done + index)}: {len(row)} cells, and the header has "
                        f"{len(self.header)}.",
                        why="It cannot be told which cell belongs to which column.",
                        fix=f"Write as many cells as columns; a cell with {self.delimiter!r} in it is put in quotes.",
                    )
            cells = list(zip(*chunk, strict=True))
            yield [cells[index] for index in wanted]
            done += len(chunk)

    def place(self, row: int) -> str:
        """The line the row begins in, as an editor counts; only errors ask, so the file is read again for it."""
        line, _ = next(islice(self._rows(), row + 1, None))
        return f"line {line}"


@final
class ParquetTable(Table):
    """A Parquet file. Needs pyarrow, which is imported here only."""

    def _names(self) -> Sequence[str]:
        self._arrow, parquet = pyarrow_for(self.path)
        try:
            self._file = parquet.ParquetFile(self.path)
        except (self._arrow.ArrowException, OSError) as error:
            raise InputError(f"{self.path} is not a Parquet file: {error}.", fix="Write it again.") from error
        return tuple(self._file.schema_arrow.names)

    def chunks(self, columns: Sequence[str]) -> Iterator[list[Cells]]:
        names = [self._file.schema_arrow.names[self.header.index(name)] for name in columns]
        for name in names:
            self._check_type(name)
        for batch in self._file.iter_batches(batch_size=ROWS_AT_ONCE, columns=names):
            yield [[text_of(value) for value in batch.column(name).to_pylist()] for name in names]

    def place(self, row: int) -> str:
        return f"row {row + 1}"

    def arrow_type(self, column: str) -> Any:
        kind = self._file.schema_arrow.field(self.header.index(column)).type
        return kind.value_type if self._arrow.types.is_dictionary(kind) else kind

    def _check_type(self, name: str) -> None:
        types = self._arrow.types
        kind = self._file.schema_arrow.field(name).type
        value = kind.value_type if types.is_dictionary(kind) else kind
        tests = ("integer", "floating", "decimal", "boolean", "string", "large_string", "null")
        if not any(getattr(types, f"is_{test}")(value) for test in tests):
            raise InputError(
                f"Column {name!r} of {self.path} is of type {kind}, which is neither a number nor text.",
                fix='Write it as a number or as text, or declare kind = "ignore".',
            )


def open_table(path: str | os.PathLike[str] | Table, delimiter: str | None = None) -> Table:
    """The table ``path``: Parquet by its ending, else text separated by ``delimiter`` (a tab for .tsv, or a comma).

    One that is open already is returned as it is.
    """
    if isinstance(path, Table):
        return path
    ending = Path(path).suffix.lower()
    if ending in (".parquet", ".pq"):
        return ParquetTable(path)
    return CsvTable(path, delimiter or ("\t" if ending == ".tsv" else ","))


def pyarrow_for(path: Path) -> tuple[Any, Any]:
    """pyarrow, and the part of it that reads and writes files like ``path``."""
    try:
        return importlib.import_module("pyarrow"), importlib.import_module("pyarrow.parquet")
    except ImportError as error:
        raise InputError(
            f"{path} needs pyarrow, which is not installed.",
            fix='Run pip install "adadp[table]", or use CSV.',
        ) from error


def text_of(value: bool | int | float | Decimal | str | None) -> str:
    """The cell as a CSV file would have it."""
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return str(value)


def _is_utf8(content: bytes) -> bool:
    try:
        content.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True
