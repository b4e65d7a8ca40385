"""Tables to tensors: every cell is checked, none shapes another's features.

A record is the features of its columns, followed by a constant 1, all divided by their l2 norm: records of length 1
have gradients of a known scale, which one clip bound fits. Rows are kept as few numbers per column; where their
features would take much memory, they are made of these when a batch is drawn.

file                                          what happens
============================================  =====================================================================
its columns in another order                  features keep the order of the schema
a column the schema does not declare          an error; kind = "ignore" leaves one out
a declared column the file lacks              an error, unless it is ignored
no target column                              an error where labels are asked for, and only there
a target that is none of the classes          an error with file, row and column
a target beyond its declared range            clipped to it, as a column is; one that is no number is an error
several of these                              one error that lists them: of each column the first bad cell
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
from numpy.typing import NDArray
from torch import Tensor

from adadp.app.figures import Groups
from adadp.app.owndata.base import Encoder, Path
from adadp.app.owndata.columns import BadCell, Category, Column, Ignored, Number, class_numbers
from adadp.app.owndata.mistakes import Mistakes
from adadp.app.owndata.spool import Spool
from adadp.app.owndata.tables import Cells, Table, distinct, open_table
from adadp.app.stored import Arrays
from adadp.app.targets import Target
from adadp.app.units import Codes, numbered
from adadp.errors import InputError
from adadp.records import Stored, in_memory

Columns: TypeAlias = tuple[tuple[str, Column], ...]
"""Names and declarations, in the order of the features."""

IN_MEMORY = 1 << 29
_SHOWN = 100
"""Columns that an error names at most."""
"""Bytes up to which the features of a table are kept in memory."""


@final
@dataclass(frozen=True)
class TableEncoder(Encoder):
    """Declared columns to features.

    Columns whose bounds are to be released have zeros for features (``private_positions`` says where), and their raw
    values (float64, NaN where one is missing) come behind the constant: the stage ``bounds`` of a run, which learns the
    bounds, makes features of them in their places. Such records are divided by their norm when it has.
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
        return (sum(column.width for _, column in self.columns) + 1 + len(self.private_columns),)

    def read(self, path: Path | Table) -> Tensor:
        values = in_memory(self._encoded(path, labelled=False)[0])
        assert isinstance(values, Tensor)
        return values

    def read_labelled(self, path: Path | Table) -> tuple[Tensor, Tensor]:
        values, labels = in_memory(self.stored(path))
        return values, labels

    def unit_codes(self, path: Path | Table) -> Codes | None:
        """The unit of each row of ``path`` by number, and the number of each id; None where it has no column of ids."""
        table = open_table(path, self.delimiter)
        if self.unit is None or self.unit not in table.header:
            return None
        known: dict[str, int] = {}
        parts = [np.empty(0, np.int64)]
        for (cells,) in table.chunks([self.unit]):
            texts, where = distinct(cells)
            used = np.unique(where)  # a text that no row has may stand for an empty cell
            numbers = np.zeros(len(texts), np.int64)
            numbers[used] = numbered([texts[each] for each in used], known, self.unit)
            parts.append(numbers[where])
        return torch.from_numpy(np.concatenate(parts)), known

    def stored(self, path: Path | Table) -> tuple[Tensor | Stored, Tensor | Stored]:
        """The records and labels of ``path``, on disk where they would take much memory."""
        values, labels = self._encoded(path, labelled=True)
        assert labels is not None
        return values, labels

    def features(self, parsed: NDArray[Any]) -> Tensor:
        """The records that ``parsed`` rows are."""
        (width,) = self.shape
        out = np.zeros((len(parsed), width - len(self.private_columns)), np.float32)
        raw = []
        start = at = 0
        for _, column in self.columns:
            part = parsed[:, at : at + column.kept]
            column.expand(part, out[:, start : start + column.width])
            if column.private:
                raw.append(part)
            start, at = start + column.width, at + column.kept
        out[:, -1] = 1
        if raw:  # lengths are known when the bounds are
            return torch.from_numpy(np.concatenate([out, *raw], axis=1, dtype=np.float64))
        out /= np.sqrt(np.einsum("ij,ij->i", out, out, dtype=np.float64)).astype(np.float32)[:, None]
        return torch.from_numpy(out)

    def check(self, path: Path, mistakes: Mistakes, *, labelled: bool) -> None:
        """Note everything that is wrong with ``path``."""
        self._rows(path, mistakes, labelled=labelled)

    def _encoded(self, path: Path | Table, *, labelled: bool) -> tuple[Tensor | Stored, Tensor | Stored | None]:
        mistakes = Mistakes(f"The table {getattr(path, 'path', path)} does not fit its schema")
        rows, learned = self._rows(path, mistakes, labelled=labelled)
        mistakes.raise_any()
        values = _Encoded(self, rows.array())
        labels = Arrays([learned.array()]) if labelled else None
        if len(values) * self.shape[0] * 4 > IN_MEMORY:
            return values, labels
        return in_memory((values, labels))  # type: ignore[no-any-return]

    def _rows(self, path: Path | Table, mistakes: Mistakes, *, labelled: bool) -> tuple[Spool, Spool]:
        """The rows of ``path`` and what is learned of them; of no use where there are mistakes."""
        table = open_table(path, self.delimiter)
        _check_columns(table, self.columns, self.target_names, self.unit, mistakes, labelled=labelled)
        labelled = labelled and set(self.target_names) <= set(table.header)
        there = set(table.header)
        used = [(name, column) for name, column in self.columns if not isinstance(column, Ignored) and name in there]
        rows = Spool(np.float64 if self.private_columns else np.float32, (sum(column.kept for _, column in used),))
        learned = Spool(np.float32, (len(self.targets),)[len(self.targets) == 1 :]) if self.targets else Spool(np.int64)
        bad: dict[str, tuple[int, BadCell]] = {}
        with mistakes.noted():
            wanted = [name for name, _ in used] + list(self.target_names if labelled else ())
            for chunk in table.chunks(wanted) if wanted else ():
                parsed = [np.empty((len(chunk[0]), 0))]
                for (name, column), cells in zip(used, chunk, strict=False):  # the targets' cells may come last
                    with _first_of(bad, name, rows.rows):
                        parsed.append(column.parse(cells))
                if labelled:
                    learned.add(self._learned(chunk[len(used) :], bad, rows.rows))
                rows.add(np.concatenate(parsed, axis=1) if not bad else parsed[0])
        for name, (row, cell) in bad.items():
            with mistakes.noted():
                where = f"{table.path}, {table.place(row)}, column {name!r}"
                raise InputError(f"{where}: the cell {cell.what}.", fix=cell.fix)
        if not rows.rows and not mistakes:
            with mistakes.noted():
                raise InputError(f"The table {table.path} has no rows.", fix="Give a file with a header and rows.")
        return rows, learned

    def _learned(self, chunk: Sequence[Cells], bad: dict[str, tuple[int, BadCell]], first: int) -> NDArray[Any]:
        """What is learned of the cells of the targets: class numbers, or numbers in range; nothing of bad ones."""
        found: list[NDArray[Any]] = []
        for name, cells in zip(self.target_names, chunk, strict=True):
            with _first_of(bad, name, first):
                found.append(self._of_target(name, cells))
        if len(found) < len(self.target_names):
            return np.empty((0, len(self.targets))) if len(self.targets) > 1 else np.empty(0)
        return found[0] if len(found) == 1 else np.stack(found, axis=1)

    def _of_target(self, name: str, cells: Cells) -> NDArray[Any]:
        for target in self.targets:
            if target.name == name:
                return target.learned(torch.from_numpy(Number(target.low, target.high).numbers(cells))).numpy()
        return class_numbers(cells, self.class_names)

    def groups(self, records: Tensor, column: str) -> Groups:
        """The groups of ``records``, as ``read`` gives them, by the declared category ``column``."""
        start = 0
        for name, declared in self.columns:
            if name == column and isinstance(declared, Category):
                slots = records[:, start : start + declared.slots]
                chosen = slots.argmax(1)
                if declared.default in declared.values:
                    chosen[slots.amax(1) == 0] = declared.values.index(declared.default)
                return Groups(column, (*declared.values, "other", "missing"), chosen.numpy())
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


class _Encoded(Stored):
    """Rows of a table as records, whose features are made when they are asked for."""

    def __init__(self, encoder: TableEncoder, parsed: NDArray[Any]) -> None:
        self._encoder, self._rows = encoder, Arrays([parsed])

    def __len__(self) -> int:
        return len(self._rows)

    def rows(self, indices: Tensor) -> Tensor:
        """The records at ``indices``."""
        return self._encoder.features(self._rows.rows(indices).numpy())


@contextmanager
def _first_of(bad: dict[str, tuple[int, BadCell]], name: str, first: int) -> Iterator[None]:
    """Keep the first bad cell of a column, with its row; ``first`` is the row of the chunk."""
    try:
        yield
    except BadCell as cell:
        bad.setdefault(name, (first + cell.index, cell))


def _check_columns(
    table: Table, columns: Columns, targets: tuple[str, ...], unit: str | None, mistakes: Mistakes, *, labelled: bool
) -> None:
    """Every column that is used must be in the file, and every column of the file must be declared."""
    needed = [name for name, column in columns if not isinstance(column, Ignored)] + (list(targets) if labelled else [])
    one = len(table.header) == 1 and any(mark in table.header[0] for mark in ";\t|")
    hint = "If cells are not separated by commas, write [file] with delimiter in the schema." if one else ""
    there, declared = set(table.header), {*targets, unit, *(name for name, _ in columns)}
    absent = [name for name in needed if name not in there]
    shown = ", ".join(table.header[:_SHOWN]) + (", ..." if len(table.header) > _SHOWN else "")
    for name in absent[: 1 if hint else _SHOWN]:
        near = difflib.get_close_matches(name, table.header[:_SHOWN], n=1)
        role = "the target" if name in targets else "declared"
        with mistakes.noted():
            raise InputError(
                f"{table.path} has no column {name!r}, which is {role}.",
                fix=hint or f"Its columns are {shown}." + (f" Did you mean {near[0]}?" if near else ""),
            )
    undeclared = [name for name in table.header if name not in declared]
    for name in [] if hint else undeclared[:_SHOWN]:
        with mistakes.noted():
            raise InputError(
                f"{table.path} has a column {name!r}, which the schema does not declare.",
                why="What becomes of a column must be declared, not guessed.",
                fix=f'Declare it; to leave it out, write [columns.{name}] and kind = "ignore".',
            )
