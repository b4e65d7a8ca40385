"""Predictions for every record of a file, written as CSV, Parquet or JSON lines, some records at a time.

The file with them is whole or absent: until the last record is predicted they are in a temporary file.
"""

from __future__ import annotations

import csv
import json
import os
import shutil
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any

from torch import Tensor

from adadp.app.owndata.tables import open_table, pyarrow_for
from adadp.app.owndata.tabular import TableEncoder
from adadp.app.predict import TrainedModel
from adadp.errors import InputError

_ROWS_OF_A_GROUP = 1 << 16
"""Rows a Parquet file keeps together."""


def write_predictions(
    trained: TrainedModel,
    source: str | os.PathLike[str],
    output: str | os.PathLike[str] | IO[str],
    *,
    id_column: str | None = None,
    probabilities: bool = True,
    json_lines: bool = False,
) -> int:
    """Write the class, and the ``probabilities`` of all classes, of every record in ``source``; how many there are.

    Of a run that predicts numbers, these.

    ``output`` is a path, Parquet by its ending (.parquet, .pq) and CSV otherwise, or an open text file. A record is
    named by its cell in ``id_column``, or by its number, counting from 0.
    """
    path = None if hasattr(output, "write") else Path(os.path.realpath(output))
    parquet = path is not None and path.suffix.lower() in (".parquet", ".pq")
    if parquet and json_lines:
        raise InputError(f"{path} is a Parquet file by its ending, and JSON was asked for.", fix="Keep one of the two.")
    name = "record" if id_column is None else id_column
    said = ["class", *([f"p({each})" for each in trained.class_names] if probabilities else [])]
    columns = [name, *([each.name for each in trained.targets] or said)]
    if name in columns[1:]:
        raise InputError(f"The column {name!r} has the name of a prediction.", fix="Rename it in the file.")
    beside = [] if id_column is None else [id_column]
    folder = None if path is None or not os.access(path.parent, os.W_OK) else path.parent
    with tempfile.TemporaryDirectory(prefix=".adadp-", dir=folder) as place:
        written = Path(place) / "predictions"
        if parquet:
            assert path is not None
            arrow = pyarrow_for(path)
            writer: _Writer = _Parquet(
                written, columns, _type_of_id(trained, source, id_column), arrow, classed=not trained.targets
            )
        else:
            numbers = "values" if trained.targets else "probabilities" if probabilities else None
            writer = _Lines(written, columns, numbers, json_lines=json_lines)
        rows = 0
        with writer:
            for records, cells in trained.parts(source, beside):
                names = list(cells[0]) if cells else list(range(rows, rows + len(records)))
                if trained.targets:
                    writer.add(names, None, trained.numbers(records))
                else:
                    found = trained.probabilities(records)
                    classes = [trained.class_names[each] for each in trained.chosen(found).tolist()]
                    writer.add(names, classes, found if probabilities else found[:, :0])
                rows += len(records)
        try:
            _hand_over(written, output if path is None else path)
        except OSError as error:
            if path is None:
                raise
            raise InputError(
                f"{output} cannot be written: {error.strerror}.", fix="Make room, or choose another."
            ) from error
    return rows


def _hand_over(written: Path, output: Any) -> None:
    """Put what was ``written`` in its place: a file is replaced as a whole, other things are written to."""
    if not isinstance(output, Path):
        with written.open(encoding="utf-8", newline="") as file:
            shutil.copyfileobj(file, output)
    elif output.exists() and not (output.is_file() and os.access(output.parent, os.W_OK)):
        with written.open("rb") as file, output.open("wb") as stream:
            shutil.copyfileobj(file, stream)
    else:
        if output.exists():
            shutil.copymode(output, written)
        os.replace(written, output)


def _type_of_id(trained: TrainedModel, source: str | os.PathLike[str], column: str | None) -> Any:
    """The type of the column in a Parquet file; None of other files, and where no column is named."""
    if column is None or not isinstance(trained.encoder, TableEncoder):
        return None
    table = open_table(trained.place(source), trained.encoder.delimiter)
    return table.arrow_type(column) if column in table.header else None


class _Writer(ABC):
    """Writes some rows after others; leaving it without an error ends the file."""

    @abstractmethod
    def add(self, names: Sequence[Any], classes: Sequence[str] | None, numbers: Tensor) -> None:
        """Write rows: what names each record, its class if it has one, and its probabilities or predicted numbers."""

    @abstractmethod
    def __enter__(self) -> _Writer: ...

    @abstractmethod
    def __exit__(self, kind: object, *_: object) -> None: ...


class _Lines(_Writer):
    """CSV, or a JSON object on each line."""

    def __init__(self, path: Path, columns: Sequence[str], numbers: str | None, *, json_lines: bool) -> None:
        self._path, self._columns, self._json, self._numbers = path, columns, json_lines, numbers

    def __enter__(self) -> _Writer:
        self._file = self._path.open("w", encoding="utf-8", newline="")
        self._csv = csv.writer(self._file, lineterminator="\n")
        if not self._json:
            self._csv.writerow(self._columns)
        return self

    def add(self, names: Sequence[Any], classes: Sequence[str] | None, numbers: Tensor) -> None:
        for place, (name, row) in enumerate(zip(names, numbers.tolist(), strict=True)):
            said = [] if classes is None else [classes[place]]
            if self._json:
                line = {self._columns[0]: name} | ({"class": said[0]} if said else {})
                if self._numbers is not None:
                    line[self._numbers] = [round(each, 6) for each in row]
                self._file.write(json.dumps(line, ensure_ascii=False) + "\n")
            else:
                self._csv.writerow([name, *said, *(f"{each:.6g}" for each in row)])

    def __exit__(self, kind: object, *_: object) -> None:
        self._file.close()


class _Parquet(_Writer):
    """A Parquet file, in which the column that names the records has the type it has in the file they come from."""

    def __init__(
        self, path: Path, columns: Sequence[str], named_by: Any, arrow: tuple[Any, Any], *, classed: bool
    ) -> None:
        self._classed = classed
        self._arrow, self._parquet = arrow
        self._path, self._columns, self._named_by = path, columns, named_by
        self._waiting: list[tuple[list[Any], list[str] | None, list[list[float]]]] = []

    def __enter__(self) -> _Writer:
        arrow = self._arrow
        first = arrow.int64() if self._columns[0] == "record" and self._named_by is None else arrow.string()
        classes = [arrow.string()] * (self._classed)
        kinds = [self._named_by or first, *classes, *[arrow.float32()] * (len(self._columns) - 1 - len(classes))]
        self._schema = arrow.schema(list(zip(self._columns, kinds, strict=True)))
        self._file = self._parquet.ParquetWriter(self._path, self._schema)
        return self

    def add(self, names: Sequence[Any], classes: Sequence[str] | None, numbers: Tensor) -> None:
        self._waiting.append((list(names), None if classes is None else list(classes), numbers.tolist()))
        if sum(len(named) for named, _, _ in self._waiting) >= _ROWS_OF_A_GROUP:
            self._write()

    def _write(self) -> None:
        arrow, (first, *_) = self._arrow, self._schema.types
        names = [each for part, _, _ in self._waiting for each in part]
        if names and isinstance(names[0], str):
            column = arrow.array([each or None for each in names], arrow.string()).cast(first)
        else:
            column = arrow.array(names, first)
        rows = [row for _, _, part in self._waiting for row in part]
        classes = [part for _, part, _ in self._waiting if part is not None]
        found = [
            column,
            *([arrow.array([each for part in classes for each in part], arrow.string())] if classes else []),
            *(arrow.array(list(numbers), arrow.float32()) for numbers in zip(*rows, strict=True)),
        ]
        self._file.write_table(arrow.table(found, schema=self._schema))
        self._waiting.clear()

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is None and self._waiting:
            self._write()
        self._file.close()
