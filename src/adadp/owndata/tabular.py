"""Tables to tensors: every cell is checked, none shapes another's features.

file                                          what happens
============================================  =====================================================================
its columns in another order                  features keep the order of the schema
a column the schema does not declare          an error; kind = "ignore" leaves one out
a declared column the file lacks              an error, unless it is ignored
no target column                              an error where labels are asked for, and only there
a target that is none of the classes          an error with file, row and what was found
no rows                                       an error
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any, ClassVar, TypeAlias, final

import numpy as np
import torch
from torch import Tensor

from adadp.errors import InputError
from adadp.owndata.base import Encoder, Path
from adadp.owndata.columns import BadCell, Column, Features, Floats, Ignored, Number, class_numbers
from adadp.owndata.tables import Cells, Table, open_table

Columns: TypeAlias = tuple[tuple[str, Column], ...]
"""Names and declarations, in the order of the features."""


@dataclass(frozen=True, eq=False)
class EncodedTable:
    """A table in memory: ``raw`` are the numbers (records, columns) whose bounds are not known yet, NaN if missing."""

    features: Tensor
    labels: Tensor | None
    raw: Tensor

    @property
    def records(self) -> Tensor:
        """The features, followed by the raw numbers if there are any."""
        return torch.cat([self.features.double(), self.raw], dim=1) if self.raw.shape[1] else self.features


@final
@dataclass(frozen=True)
class TableEncoder(Encoder):
    """Declared columns to features. ``bounds``: the ranges that were released for the columns that ask for them.

    Before they are, ``read`` puts the raw values of those columns (float64, NaN where one is missing) behind the
    features, which have zeros in their places: ``private_positions`` says where. A stage that learns the bounds, or
    ``completed``, makes features of them.
    """

    columns: Columns
    target: str
    class_names: tuple[str, ...]
    delimiter: str | None = None
    bounds: tuple[tuple[float, float], ...] = ()
    kind: ClassVar[str] = "table"

    def __post_init__(self) -> None:
        if self.target in dict(self.columns):
            raise InputError(
                f"{self.target!r} is the target and one of the columns.",
                why="The answer would be a feature.",
                fix=f"Take [columns.{self.target}] out of the schema.",
            )
        if not any(column.width for _, column in self.columns):
            raise InputError(
                "The schema declares no column that is used.", fix="Write [columns.NAME] with a kind for each column."
            )
        if self.bounds and len(self.bounds) != len(self.private_columns):
            raise InputError(
                f"{len(self.bounds)} bounds for {len(self.private_columns)} columns.",
                why="Each column with private bounds has one.",
                fix="Pass what BoundsQuery.bounds returns.",
            )

    @property
    def private_columns(self) -> tuple[str, ...]:
        """The columns whose bounds are released from the data."""
        return tuple(name for name, column in self.columns if isinstance(column, Number) and column.private)

    @property
    def pending(self) -> bool:
        """Whether the bounds of some column are still to be released."""
        return len(self.bounds) < len(self.private_columns)

    def bounded(self) -> Columns:
        """The columns that are used, with the released bounds put in."""
        released = dict(zip(self.private_columns, self.bounds, strict=True)) if self.bounds else {}
        return tuple(
            (name, replace(column, low=released[name][0], high=released[name][1]))
            if name in released and isinstance(column, Number)
            else (name, column)
            for name, column in self.columns
            if not isinstance(column, Ignored)
        )

    @property
    def shape(self) -> tuple[int, ...]:
        width = sum(column.width for _, column in self.columns)
        return (width + len(self.private_columns) if self.pending else width,)

    def read(self, path: Path) -> Tensor:
        return self.encode(path, labelled=False).records

    def read_labelled(self, path: Path) -> tuple[Tensor, Tensor]:
        encoded = self.encode(path, labelled=True)
        assert encoded.labels is not None
        return encoded.records, encoded.labels

    def has_labels(self, path: Path) -> bool:
        return self.target in open_table(path, self.delimiter).header

    def encode(self, path: Path, *, labelled: bool) -> EncodedTable:
        """The table in ``path``; columns whose bounds are still to be released have zeros for features."""
        table = open_table(path, self.delimiter)
        columns = self.bounded()
        _check_columns(table, self.columns, self.target, labelled=labelled)
        names = [name for name, _ in columns] + ([self.target] if labelled else [])
        features, labels, raw = [], [], []
        rows = 0
        for chunk in table.chunks(names):
            part, numbers = _fill_all(columns, chunk, _Place(table, rows))
            features.append(part)
            raw.append(numbers)
            if labelled:
                with _Place(table, rows).column(self.target):
                    labels.append(class_numbers(chunk[-1], self.class_names))
            rows += len(part)
        if not rows:
            raise InputError(f"The table {table.path} has no rows.", fix="Give a file with a header and rows.")
        return EncodedTable(
            torch.from_numpy(np.concatenate(features)),
            torch.from_numpy(np.concatenate(labels)) if labelled else None,
            torch.from_numpy(np.concatenate(raw)),
        )

    def completed(self, features: Tensor, raw: Tensor) -> Tensor:
        """A copy of ``features`` that ``encode`` made before the bounds were known, with those of ``raw`` put in."""
        if self.pending:
            raise InputError(
                f"The bounds of {', '.join(self.private_columns)} were not released yet.",
                why="Without them the columns have no features.",
                fix="Pass what BoundsQuery.bounds returns.",
            )
        whole = features.numpy().copy()
        columns = dict(self.bounded())
        for name, start, numbers in zip(
            self.private_columns, private_positions(self.columns), raw.numpy().T, strict=True
        ):
            column = columns[name]
            assert isinstance(column, Number)
            column.place(numbers, whole[:, start : start + column.width])
        return torch.from_numpy(whole)

    def as_json(self) -> dict[str, Any]:
        return {
            "kind": self.kind,
            "columns": [[name, column.as_dict()] for name, column in self.columns],
            "target": self.target,
            "classes": list(self.class_names),
            "delimiter": self.delimiter,
            "bounds": [list(each) for each in self.bounds],
        }


def private_positions(columns: Columns) -> tuple[int, ...]:
    """Which features are the values of columns whose bounds are released from the data; needs no data."""
    starts = accumulate((column.width for _, column in columns), initial=0)
    return tuple(
        start
        for start, (_, column) in zip(starts, columns, strict=False)
        if isinstance(column, Number) and column.private
    )


@dataclass(frozen=True)
class _Place:
    """Rows of a table from number ``first`` on: it gives a bad cell among them its file, row and column."""

    table: Table
    first: int

    @contextmanager
    def column(self, name: str) -> Iterator[None]:
        try:
            yield
        except BadCell as error:
            where = f"{self.table.path}, {self.table.place(self.first + error.index)}, column {name!r}"
            raise InputError(f"{where}: the cell {error.what}.", fix=error.fix) from None


def _fill_all(columns: Columns, chunk: Sequence[Cells], place: _Place) -> tuple[Features, Floats]:
    """The features of some rows, and the numbers whose bounds are not known yet."""
    part = np.zeros((len(chunk[0]), sum(column.width for _, column in columns)), np.float32)
    raw = [np.empty((len(part), 0))]
    start = 0
    for (name, column), cells in zip(columns, chunk, strict=False):  # the target's cells may come last
        out = part[:, start : start + column.width]
        with place.column(name):
            if isinstance(column, Number) and column.private:
                numbers = column.numbers(cells)
                column.place(numbers, out)
                raw.append(numbers[:, None])
            else:
                column.fill(cells, out)
        start += column.width
    return part, np.concatenate(raw, axis=1)


def _check_columns(table: Table, columns: Columns, target: str, *, labelled: bool) -> None:
    """Every column that is used must be in the file, and every column of the file must be declared."""
    needed = [name for name, column in columns if not isinstance(column, Ignored)] + ([target] if labelled else [])
    absent = [name for name in needed if name not in table.header]
    if absent:
        near = difflib.get_close_matches(absent[0], table.header, n=1)
        one = len(table.header) == 1 and any(mark in table.header[0] for mark in ";\t|")
        hint = "If cells are not separated by commas, write [file] with delimiter in the schema." if one else ""
        role = "the target" if absent[0] == target else "declared"
        raise InputError(
            f"{table.path} has no column {absent[0]!r}, which is {role}.",
            fix=hint or f"Its columns are {', '.join(table.header)}." + (f" Did you mean {near[0]}?" if near else ""),
        )
    declared = {target, *dict(columns)}
    unknown = [name for name in table.header if name not in declared]
    if unknown:
        raise InputError(
            f"{table.path} has a column {unknown[0]!r}, which the schema does not declare.",
            why="What becomes of a column must be declared, not guessed.",
            fix=f'Declare it; to leave it out, write [columns.{unknown[0]}] and kind = "ignore".',
        )
