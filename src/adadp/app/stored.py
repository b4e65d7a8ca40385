"""Data in files, read by index and never as a whole: numpy arrays, Arrow and Parquet, one file or a folder of shards.

======================================================  ==============================================================
``.npy``                                                memory-mapped
``.arrow``, ``.feather``, ``.ipc``                      memory-mapped, record batch by record batch
``.parquet``                                            the row groups that hold a record of the batch are decoded, one
                                                        after the other: for small data, or as a source for conversion
a folder                                                its files of one of these kinds, in the order of their names
a column with lists of one public length                a matrix
whole numbers with empty cells                          floats, NaN where empty
text, objects or dates                                  ``InputError`` that names the column
a file that is cut or changed during a run              not covered
======================================================  ==============================================================
"""

from __future__ import annotations

import math
import mmap
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from adadp.errors import InputError
from adadp.records import Stored

_IPC, _KINDS = (".arrow", ".feather", ".ipc"), (".npy", ".arrow", ".feather", ".ipc", ".parquet")

_READERS = 8
"""Threads that wait for the disk where rows are not in memory: it serves many reads in the time of one."""

TAKEN = {"u2": np.int32, "u4": np.int64, "u8": np.int64, "f16": np.float64}
"""Types of numpy that torch does not compute with, as ones that hold their values."""


class _Parts(Stored):
    """Records in several parts, one behind the other."""

    def __init__(self, lengths: Sequence[int]) -> None:
        self._ends = np.cumsum(np.asarray(lengths, dtype=np.int64))

    def __len__(self) -> int:
        return int(self._ends[-1]) if len(self._ends) else 0

    def _split(self, indices: Tensor) -> list[tuple[int, npt.NDArray[np.intp], npt.NDArray[np.int64]]]:
        """For each part with one of ``indices`` its number, the places of its records in them, and those in it."""
        wanted = indices.numpy()
        if len(self._ends) == 1:
            return [(0, np.arange(len(wanted)), wanted)]
        part_of = np.searchsorted(self._ends, wanted, side="right")
        starts = np.concatenate([[0], self._ends])
        found = []
        for part in np.flatnonzero(np.bincount(part_of, minlength=1)).tolist():
            places = np.flatnonzero(part_of == part)
            found.append((part, places, wanted[places] - starts[part]))
        return found


class Without(Stored):
    """Stored records without those at some places, given in their order."""

    def __init__(self, data: Stored, left_out: Tensor) -> None:
        self._data, self._kept_before = data, left_out - torch.arange(len(left_out))

    def __len__(self) -> int:
        return len(self._data) - len(self._kept_before)

    def rows(self, indices: Tensor) -> Any:
        """The rows at ``indices``."""
        return self._data.rows(indices + torch.searchsorted(self._kept_before, indices, right=True))


class Arrays(_Parts):
    """Arrays on disk, one behind the other; rows become tensors."""

    def __init__(self, parts: Sequence[npt.NDArray[Any]], name: object = None) -> None:
        first = parts[0]
        for part in parts:
            if part.dtype.kind not in "biufc":
                raise no_numbers(name)
            if part.shape[1:] != first.shape[1:] or part.dtype != first.dtype or not part.ndim:
                raise InputError(
                    "The arrays of the data do not fit together.",
                    why="They are taken as one array in several files, one behind the other.",
                    fix="Give them the same type, and the same shape behind dimension 0.",
                )
        super().__init__([len(part) for part in parts])
        self._parts, self._dtype = parts, first.dtype
        mapped = [part for part in parts if isinstance(part, np.memmap)]
        self._readers = _READERS if _read_at_random(mapped) else 1

    def rows(self, indices: Tensor) -> Tensor:
        """The rows at ``indices``."""
        if self._readers == 1 or len(indices) <= self._readers:
            return self._rows(indices)
        with ThreadPoolExecutor(self._readers) as readers:  # for this batch only: a process that is forked has none
            return torch.cat([*readers.map(self._rows, indices.tensor_split(self._readers))])

    def _rows(self, indices: Tensor) -> Tensor:
        taken = np.empty((len(indices), *self._parts[0].shape[1:]), dtype=self._dtype)
        for part, places, inside in self._split(indices):
            taken[places] = self._parts[part][inside]
        return torch.from_numpy(computable(taken))


class Tables(_Parts):
    """Tables, one behind the other; rows become a dict of tensors by column. ``read`` gives the table of a number."""

    def __init__(self, read: Callable[[int], Any], lengths: Sequence[int], schema: Any, nullable: set[str]) -> None:
        super().__init__(lengths)
        self._read, self._names, self._nullable = read, list(schema.names), nullable
        self._widths = {}
        for field in schema:
            self._widths[field.name] = getattr(field.type, "list_size", None)
            self._column(field.name, schema.empty_table().column(field.name))

    def rows(self, indices: Tensor) -> dict[str, Tensor]:
        """The rows at ``indices``."""
        import pyarrow as pa  # noqa: PLC0415

        split = self._split(indices) or [(0, np.empty(0, dtype=np.intp), np.empty(0, dtype=np.int64))]
        taken = pa.concat_tables([pa.table(self._read(part).take(pa.array(inside))) for part, _, inside in split])
        back = torch.from_numpy(np.argsort(np.concatenate([places for _, places, _ in split])))
        return {name: self._column(name, taken.column(name))[back] for name in self._names}

    def _column(self, name: str, values: Any) -> Tensor:
        """``values`` as a tensor, of a type that does not depend on them."""
        width = self._widths[name]
        if width is not None:
            flat = values.combine_chunks()
            values = flat.flatten() if hasattr(flat, "flatten") else flat
            if len(values) != width * len(flat):
                raise InputError(f"The column {name} has empty cells.", fix="Fill them: a record has as many numbers.")
        found = np.asarray(values)
        if name in self._nullable and found.dtype.kind in "iu":
            found = found.astype(np.float64)
        if found.dtype.kind not in "biuf":
            raise no_numbers(name)
        found = computable(found)
        tensor = torch.from_numpy(found if found.flags.writeable else found.copy())
        return tensor if width is None else tensor.reshape(-1, width)


def opened(path: str | os.PathLike[str]) -> Stored:
    """The records in the file or folder ``path``."""
    place = Path(path)
    files = sorted(each for each in place.iterdir() if each.suffix in _KINDS) if place.is_dir() else [place]
    kinds = {".arrow" if each.suffix in _IPC else each.suffix for each in files}
    if len(kinds) != 1 or not kinds <= set(_KINDS) or not all(each.is_file() for each in files):
        raise InputError(
            f"{place} is no data that is read by index.",
            why="One kind of file, or a folder with files of one kind, is one data set.",
            fix=f"Pass an existing file ending in {', '.join(_KINDS)}, or a folder of such files.",
        )
    try:
        if kinds == {".npy"}:
            return Arrays([np.load(each, mmap_mode="r") for each in files], place.name)
        return of_batches(_mapped(files)) if kinds == {".arrow"} else of_parquet(files)
    except (OSError, ValueError, ImportError) as error:  # of Arrow too, whose errors are ValueErrors
        raise InputError(f"{place} cannot be read: {error}", fix="Write it anew, or install pyarrow.") from error


def of_batches(batches: Sequence[Any]) -> Tables:
    """Record batches of Arrow in memory, which may be mapped."""
    schema = batches[0].schema
    nullable = {name for name in schema.names if any(batch.column(name).null_count for batch in batches)}
    return Tables(lambda number: batches[number], [batch.num_rows for batch in batches], schema, nullable)


def of_parquet(files: Sequence[str | os.PathLike[str]], columns: Sequence[str] | None = None) -> Tables:
    """Parquet files by row group. What is known of them is their metadata."""
    import pyarrow as pa  # noqa: PLC0415
    from pyarrow import parquet  # noqa: PLC0415

    readers = [parquet.ParquetFile(each, memory_map=True) for each in files]
    groups = [(reader, group) for reader in readers for group in range(reader.metadata.num_row_groups)]
    schema = readers[0].schema_arrow
    if columns is not None:
        schema = pa.schema([schema.field(name) for name in columns])
    if any(reader.schema_arrow.names != readers[0].schema_arrow.names for reader in readers):
        raise InputError("The Parquet files have different columns.", fix="Pass files of one data set.")
    lengths = [reader.metadata.row_group(group).num_rows for reader, group in groups]
    names = list(schema.names)
    return Tables(
        lambda number: groups[number][0].read_row_group(groups[number][1], columns=names, use_threads=False),
        lengths,
        schema,
        {name for name in names if schema.field(name).nullable and _has_nulls(groups, name)},
    )


def _has_nulls(groups: Sequence[tuple[Any, int]], name: str) -> bool:
    """Whether a column has empty cells, or nobody knows."""
    for reader, group in groups:
        metadata = reader.metadata.row_group(group)
        for place in range(metadata.num_columns):
            column = metadata.column(place)
            if column.path_in_schema.partition(".")[0] == name:
                known = column.statistics
                if known is None or not known.has_null_count or known.null_count:
                    return True
    return False


def _mapped(files: Sequence[Path]) -> list[Any]:
    import pyarrow as pa  # noqa: PLC0415

    contents = [np.memmap(each, np.uint8, "r") for each in files]
    _read_at_random(contents)
    readers = [pa.ipc.open_file(pa.BufferReader(pa.py_buffer(each))) for each in contents]
    before = pa.total_allocated_bytes()
    batches = [reader.get_batch(number) for reader in readers for number in range(reader.num_record_batches)]
    if not batches or pa.total_allocated_bytes() > before + 64 * len(batches):
        raise InputError(
            "The Arrow file is empty or compressed.",
            why="What is compressed cannot be read by index from disk.",
            fix="Write it without compression: pyarrow.feather.write_feather(table, path, compression='uncompressed').",
        )
    return batches


def _read_at_random(mapped: Sequence[npt.NDArray[Any]]) -> bool:
    """Whether files will not stay in memory; then the system is told to read single pages of them.

    Otherwise it reads megabytes for every row, which is how files that fit get there soon.
    """
    random = 2 * sum(each.nbytes for each in mapped) > _memory() and hasattr(mmap, "MADV_RANDOM")
    for each in mapped if random else ():
        each._mmap.madvise(mmap.MADV_RANDOM)  # type: ignore[attr-defined]
    return random


def _memory() -> float:
    """Bytes of memory of this machine, where the system tells."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError):
        return math.inf


def computable(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """``values`` in a type that torch computes with."""
    return values.astype(TAKEN.get(values.dtype.str[1:], values.dtype.newbyteorder("=")), copy=False)


def no_numbers(name: object) -> InputError:
    """A column that a model cannot compute with."""
    return InputError(
        f"{'A part' if name is None else f'The column {name}'} of the data holds no numbers.",
        why="A model computes with numbers. Which texts or categories there are must be public.",
        fix="Turn it into numbers by a public list of its values, or leave it out.",
    )
