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
Parquet: dates, times                    their text, ISO 8601
Parquet: lists, bytes, ...               an error, unless the column is ignored
"""

from __future__ import annotations

import csv
import importlib
import math
import os
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from datetime import date
from decimal import Decimal
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any, TypeAlias, final

import numpy as np
from numpy.typing import NDArray

from adadp.errors import InputError

Cells: TypeAlias = Sequence[str]

ROWS_AT_ONCE = 1_024
"""Few, so that the cells of a chunk are gone before the garbage collector looks at them."""
_PARQUET_ROWS_AT_ONCE = 1 << 15
"""More, because those cells are no objects of Python."""


class Numbers(Cells):
    """Cells that a file holds as numbers; as text where somebody asks for it."""

    def __init__(self, held: NDArray[Any], empty: NDArray[np.bool_]) -> None:
        self.held = held
        self.empty = empty | (np.isnan(held) if held.dtype.kind == "f" else False)
        """Which cells are empty."""

    @cached_property
    def values(self) -> NDArray[np.float64]:
        """The numbers, NaN where a cell is empty."""
        return np.where(self.empty, np.nan, self.held.astype(np.float64))

    def __len__(self) -> int:
        return len(self.held)

    def __getitem__(self, index: Any) -> Any:
        return "" if self.empty[index] else text_of(self.held[index].item())


class Distinct(Cells):
    """Cells as the different ``texts`` there are, and which of them each is."""

    def __init__(self, texts: Sequence[str], where: NDArray[np.int64]) -> None:
        self.texts, self.where = texts, where

    def __len__(self) -> int:
        return len(self.where)

    def __getitem__(self, index: Any) -> Any:
        return self.texts[self.where[index]]


def distinct(cells: Cells) -> tuple[Sequence[str], NDArray[np.int64]]:
    """The different texts among ``cells``, and which of them each is."""
    if isinstance(cells, Distinct):
        return cells.texts, cells.where
    if isinstance(cells, Numbers):
        held, where = np.unique(cells.held, return_inverse=True)
        texts = [*map(text_of, held.tolist()), ""]
        return texts, np.where(cells.empty, len(held), where)
    texts = list(dict.fromkeys(cells))
    known = {text: number for number, text in enumerate(texts)}
    return texts, np.fromiter(map(known.__getitem__, cells), np.int64, len(cells))


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
        places: dict[str, int] = {}
        for number, name in enumerate(self.header, start=1):
            if not name:
                raise InputError(
                    f"Column {number} of {self.path} has no name.",
                    fix=f"Name it in the header (pandas leaves its index unnamed: save with index=False). {no_header}",
                )
            if places.setdefault(name, number) < number:
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
        places = {name: place for place, name in enumerate(self.header)}
        wanted = [places[name] for name in columns]
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
            self._file = parquet.ParquetFile(self.path, pre_buffer=False)
        except (self._arrow.ArrowException, OSError) as error:
            raise InputError(f"{self.path} is not a Parquet file: {error}.", fix="Write it again.") from error
        return tuple(self._file.schema_arrow.names)

    def chunks(self, columns: Sequence[str]) -> Iterator[list[Cells]]:
        names = [self._file.schema_arrow.names[self.header.index(name)] for name in columns]
        for name in names:
            self._check_type(name)
        for group in range(self._file.num_row_groups):  # in one go Arrow would keep what it has read of all groups
            for batch in self._file.iter_batches(_PARQUET_ROWS_AT_ONCE, row_groups=[group], columns=names):
                yield [self._cells(batch.column(name)) for name in names]

    def _cells(self, column: Any) -> Cells:
        types, kind = self._arrow.types, column.type
        if types.is_integer(kind) or types.is_floating(kind):
            empty = np.asarray(column.is_null())
            return Numbers(np.asarray(column.fill_null(0) if empty.any() else column), empty)
        coded = column if types.is_dictionary(kind) else column.dictionary_encode()
        texts = [*map(text_of, coded.dictionary.to_pylist()), ""]
        return Distinct(texts, np.asarray(coded.indices.fill_null(len(texts) - 1)).astype(np.int64))

    def place(self, row: int) -> str:
        return f"row {row + 1}"

    def kinds(self) -> dict[str, str]:
        """What kind a column seems to be by its type, which the file has apart from the values."""
        types, found = self._arrow.types, {}
        for name, field in zip(self.header, self._file.schema_arrow, strict=True):
            number = types.is_integer(field.type) or types.is_floating(field.type) or types.is_decimal(field.type)
            moment = types.is_date(field.type) or types.is_timestamp(field.type)
            found[name] = "number" if number else "date" if moment else ""
        return found

    def arrow_type(self, column: str) -> Any:
        kind = self._file.schema_arrow.field(self.header.index(column)).type
        return kind.value_type if self._arrow.types.is_dictionary(kind) else kind

    def _check_type(self, name: str) -> None:
        types = self._arrow.types
        kind = self._file.schema_arrow.field(name).type
        value = kind.value_type if types.is_dictionary(kind) else kind
        tests = ("integer", "floating", "decimal", "boolean", "string", "large_string", "null", "date", "timestamp")
        if not any(getattr(types, f"is_{test}")(value) for test in tests):
            raise InputError(
                f"Column {name!r} of {self.path} is of type {kind}, which is no number, text or date.",
                fix='Write it as one of these, or declare kind = "ignore".',
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


def text_of(value: bool | int | float | Decimal | str | date | None) -> str:
    """The cell as a CSV file would have it."""
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return value.isoformat() if isinstance(value, date) else str(value)


def _is_utf8(content: bytes) -> bool:
    try:
        content.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True
