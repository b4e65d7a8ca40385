"""Tables to tensors: every cell is checked, none shapes another's features.

file                                          what happens
============================================  =====================================================================
its columns in another order                  features keep the order of the schema
a column the schema does not declare          an error; kind = "ignore" leaves one out
a declared column the file lacks              an error, unless it is ignored
no target column                              an error where labels are asked for, and only there
a target that is none of the classes          an error with file, row and what was found
a target beyond its declared range            clipped to it, as a column is; one that is no number is an error
no rows                                       an error
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, ClassVar, TypeAlias, final

import numpy as np
import torch
from torch import Tensor

from adadp.app.figures import Groups
from adadp.app.owndata.base import Encoder, Path
from adadp.app.owndata.columns import BadCell, Category, Column, Features, Floats, Ignored, Number, class_numbers
from adadp.app.owndata.tables import Cells, Table, open_table
from adadp.app.targets import Target
from adadp.errors import InputError

Columns: TypeAlias = tuple[tuple[str, Column], ...]
"""Names and declarations, in the order of the features."""


@final
@dataclass(frozen=True)
class TableEncoder(Encoder):
    """Declared columns to features.

    Columns whose bounds are to be released have zeros for features (``private_positions`` says where), and their raw
    values (float64, NaN where one is missing) come behind the features: the stage ``bounds`` of a run, which learns the
    bounds, puts them in their places.
    """

    columns: Columns
    target: str
    class_names: tuple[str, ...]
    delimiter: str | None = None
    unit: str | None = None
    """The column of ids, which is no feature."""
    targets: tuple[Target, ...] = ()
    kind: ClassVar[str] = "table"

    def __post_init__(self) -> None:
        for name in self.target_names:
            if name in dict(self.columns):
                raise InputError(
                    f"{name!r} is the target and one of the columns.",
                    why="The answer would be a feature.",
                    fix=f"Take [columns.{name}] out of the schema.",
                )
        if self.unit is not None and (self.unit in self.target_names or self.unit in dict(self.columns)):
            declared = dict(self.columns).get(self.unit)
            if declared is None or not isinstance(declared, Ignored):
                raise InputError(
                    f"{self.unit!r} is the unit and {'a target' if declared is None else 'one of the features'}.",
                    why="An id says who a row is about, and nothing about others.",
                    fix=f"Take [columns.{self.unit}] out of the schema, or name another column as `unit`.",
                )
        if not any(column.width for _, column in self.columns):
            raise InputError(
                "The schema declares no column that is used.", fix="Write [columns.NAME] with a kind for each column."
            )

    @property
    def target_names(self) -> tuple[str, ...]:
        """The columns to predict."""
        return tuple(each.name for each in self.targets) or (self.target,)

    @property
    def private_columns(self) -> tuple[str, ...]:
        """The columns whose bounds are released from the data."""
        return tuple(name for name, column in self.columns if column.private)

    @property
    def shape(self) -> tuple[int, ...]:
        return (sum(column.width for _, column in self.columns) + len(self.private_columns),)

    def read(self, path: Path) -> Tensor:
        return self._encoded(path, labelled=False)[0]

    def read_labelled(self, path: Path) -> tuple[Tensor, Tensor]:
        records, labels = self._encoded(path, labelled=True)
        assert labels is not None
        return records, labels

    def unit_ids(self, path: Path) -> list[str] | None:
        """The id in each row of ``path``; None where it has no column of ids."""
        table = open_table(path, self.delimiter)
        if self.unit is None or self.unit not in table.header:
            return None
        return [cell for chunk in table.chunks([self.unit]) for cell in chunk[0]]

    def _encoded(self, path: Path, *, labelled: bool) -> tuple[Tensor, Tensor | None]:
        table = open_table(path, self.delimiter)
        columns = tuple((name, column) for name, column in self.columns if not isinstance(column, Ignored))
        _check_columns(table, self.columns, self.target_names, self.unit, labelled=labelled)
        names = [*(name for name, _ in columns), *(self.target_names if labelled else ())]
        features, labels, raw = [], [], []
        rows = 0
        for chunk in table.chunks(names):
            part, numbers = _fill_all(columns, chunk, _Place(table, rows))
            features.append(part)
            raw.append(numbers)
            if labelled:
                labels.append(self._labels(chunk[len(columns) :], _Place(table, rows)))
            rows += len(part)
        if not rows:
            raise InputError(f"The table {table.path} has no rows.", fix="Give a file with a header and rows.")
        records = torch.from_numpy(np.concatenate(features))
        if self.private_columns:
            records = torch.cat([records.double(), torch.from_numpy(np.concatenate(raw))], dim=1)
        return records, torch.cat(labels) if labelled else None

    def _labels(self, chunk: Sequence[Cells], place: _Place) -> Tensor:
        """What is learned of the cells of the targets: class numbers, or numbers in their range."""
        if not self.targets:
            with place.column(self.target):
                return torch.from_numpy(class_numbers(chunk[0], self.class_names))
        learned = []
        for target, cells in zip(self.targets, chunk, strict=True):
            with place.column(target.name):
                learned.append(target.learned(torch.from_numpy(Number(target.low, target.high).numbers(cells))))
        return learned[0] if len(learned) == 1 else torch.stack(learned, dim=1)

    def groups(self, records: Tensor, column: str) -> Groups:
        """The groups of ``records``, as ``read`` gives them, by the declared category ``column``."""
        start = 0
        for name, declared in self.columns:
            if name == column and isinstance(declared, Category):
                slots = records[:, start : start + declared.width]
                return Groups(column, (*declared.values, "other", "missing"), slots.argmax(1).numpy())
            start += declared.width
        raise InputError(
            f"`groups` is {column!r}, which is no column with declared values.",
            why="Groups are compared by a category that the schema lists, and that is a feature of the model.",
            fix='Declare the column with kind = "category" and values, or name another one.',
        )

    def as_json(self) -> dict[str, Any]:
        return {
            "kind": self.kind,
            "columns": [[name, column.as_dict()] for name, column in self.columns],
            "target": self.target,
            "classes": list(self.class_names),
            "delimiter": self.delimiter,
            **({} if self.unit is None else {"unit": self.unit}),
            **({"targets": [each.as_json() for each in self.targets]} if self.targets else {}),
        }


def private_positions(columns: Columns) -> tuple[int, ...]:
    """Which features are the values of columns whose bounds are released from the data; needs no data."""
    starts = accumulate((column.width for _, column in columns), initial=0)
    return tuple(start for start, (_, column) in zip(starts, columns, strict=False) if column.private)


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
            numbers = column.fill(cells, out)
        if column.private and numbers is not None:
            raw.append(numbers[:, None])
        start += column.width
    return part, np.concatenate(raw, axis=1)


def _check_columns(
    table: Table, columns: Columns, targets: tuple[str, ...], unit: str | None, *, labelled: bool
) -> None:
    """Every column that is used must be in the file, and every column of the file must be declared."""
    needed = [name for name, column in columns if not isinstance(column, Ignored)] + (list(targets) if labelled else [])
    absent = [name for name in needed if name not in table.header]
    if absent:
        near = difflib.get_close_matches(absent[0], table.header, n=1)
        one = len(table.header) == 1 and any(mark in table.header[0] for mark in ";\t|")
        hint = "If cells are not separated by commas, write [file] with delimiter in the schema." if one else ""
        role = "the target" if absent[0] in targets else "declared"
        raise InputError(
            f"{table.path} has no column {absent[0]!r}, which is {role}.",
            fix=hint or f"Its columns are {', '.join(table.header)}." + (f" Did you mean {near[0]}?" if near else ""),
        )
    declared = {*targets, unit, *dict(columns)}
    unknown = [name for name in table.header if name not in declared]
    if unknown:
        raise InputError(
            f"{table.path} has a column {unknown[0]!r}, which the schema does not declare.",
            why="What becomes of a column must be declared, not guessed.",
            fix=f'Declare it; to leave it out, write [columns.{unknown[0]}] and kind = "ignore".',
        )
