"""Data as people have it: numpy arrays, pandas frames, Hugging Face data sets, Arrow tables and data loaders.

``read`` makes of them what :class:`adadp.records.Records` takes, by what an object can do and not by its class: none of
these libraries is imported here, and one that is not installed costs nothing.

======================================================  ==============================================================
numpy arrays, Series, Arrow arrays in a tuple or dict   tensors; arrays on disk (``numpy.memmap``) stay there
the path of a file or folder, alone or in a tuple       stays on disk (:mod:`adadp.app.stored`)
a DataFrame beside others, as in (frame, labels)        a tensor of its columns, as floats
a DataFrame or Arrow table alone                        a dict of its columns
a ``pyarrow.dataset`` of Parquet or uncompressed Arrow  dicts of its columns; stays on disk
a Hugging Face ``Dataset``                              dicts of its columns; those of text are left out, with a note
a ``DataLoader``                                        its data set, ``collate_fn`` and workers, with a note: batches
                                                        are drawn by us
text, objects or dates where numbers are meant          ``InputError`` that names the column
======================================================  ==============================================================
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils._pytree import tree_map
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset, default_collate

from adadp.app.stored import Arrays, computable, no_numbers, of_batches, of_parquet, opened
from adadp.errors import InputError
from adadp.records import Data, Grouped, Stored

LOADER_NOTE = (
    "Of the DataLoader its data set, collate_fn and workers were used. Batches were drawn as the plan says: its batch "
    "size, sampler and shuffle were not used."
)

Collate = Callable[[list[Any]], Any]


def read(data: Any) -> tuple[Data, tuple[str, ...]] | None:
    """What to read in place of ``data``, and notes about it; None for what is read as it is."""
    if isinstance(data, DataLoader):
        return _of_loader(data)
    if _is_frame(data):
        return {str(name): _column(data[name], str(name)) for name in data.columns}, ()
    if hasattr(data, "files") and hasattr(data, "get_fragments"):  # a data set of Arrow, such as a folder of Parquet
        return _of_files(data), ()
    if hasattr(data, "to_table") and hasattr(data, "count_rows"):
        data = data.to_table()
    if hasattr(data, "column_names") and hasattr(data, "to_pylist"):
        return _of_table(data), ()
    if hasattr(data, "column_names") and hasattr(data, "with_format") and hasattr(data, "__getitems__"):
        return _of_hugging_face(data)
    if isinstance(data, (tuple, list, dict, str, os.PathLike)) or hasattr(data, "__array__"):
        return tree_map(_part, data), ()
    return None


def read_data(data: Any, collate_fn: Collate | None = None) -> tuple[Data, tuple[str, ...]]:
    """``data`` for ``Records``, each record through ``collate_fn`` alone if there is one; and notes about it.

    With a ``collate_fn`` a list is one of records, as in a ``DataLoader``; without one, of columns.
    """
    if collate_fn is None:
        return read(data) or (data, ())
    data, notes = (None if isinstance(data, list) else read(data)) or (data, ())
    return Collated(data, collate_fn), notes


class Padded(Grouped):
    """Records of unequal length, each padded to the smallest of a few public ``lengths`` that holds it.

    ``data`` is any data set or list of records; ``collate_fn``, if given, makes tensors of one record. Every tensor of
    a record that has a dimension is a sequence, and its dimension 0 is padded: with 0, labels with -100, or as
    ``padding`` says, by name or place, which then also says which tensors are sequences. A record is as long as its
    longest sequence.

    Lengths must be chosen without looking at the data. Longer records are cut to the last of them. Each step has at
    least one chunk of every length, so a few lengths are enough.

    ==========================================  =====================================================================
    a record longer than all lengths            cut, without a word: that would tell of the record
    sequences of several dimensions             dimension 0 is padded
    no lengths, or one that is no number above  ``InputError``
    0; data that are tensors already
    a record without any sequence               ``InputError``
    ==========================================  =====================================================================
    """

    def __init__(
        self,
        data: Data,
        lengths: Sequence[int],
        *,
        padding: Mapping[Any, float] | None = None,
        collate_fn: Collate | None = None,
    ) -> None:
        numbers = list(lengths) if isinstance(lengths, (tuple, list)) else []
        if not numbers or not all(
            isinstance(each, int) and not isinstance(each, bool) and each > 0 for each in numbers
        ):
            raise InputError(
                f"lengths is {lengths!r}.",
                why="They are the shapes that records are computed in, and must be public.",
                fix="Pass one or more whole numbers above 0, such as lengths=(64, 128), chosen without the data.",
            )
        data, self.notes = (None if isinstance(data, list) else read(data)) or (data, ())
        if isinstance(data, (Tensor, Stored, tuple, dict, TensorDataset)):
            raise InputError(
                "The data are tensors, whose records have one length already.",
                fix="Pass the tensors as they are, or a data set with records of unequal length.",
            )
        self._data = data if collate_fn is None else Collated(data, collate_fn)
        self._lengths = tuple(sorted(set(numbers)))
        self._padding = padding
        self.groups = len(self._lengths)
        self._known: dict[int, int] = {}

    def __len__(self) -> int:
        return len(self._data)

    def __getitem__(self, index: int) -> Any:
        return self.__getitems__([index])[0]

    def __getitems__(self, indices: list[int]) -> list[Any]:
        return fetched(self._data, indices)

    def groups_of(self, indices: Sequence[int]) -> list[int]:
        """The place of each record's length among the public ones."""
        new = [index for index in dict.fromkeys(indices) if index not in self._known]
        for index, record in zip(new, self.__getitems__(new) if new else [], strict=True):
            longest = max(len(value) for value in self._sequences(_parts(record)).values())
            fitting = (place for place, length in enumerate(self._lengths) if longest <= length)
            self._known[index] = next(fitting, self.groups - 1)
        return [self._known[index] for index in indices]

    def shaped(self, record: Any, group: int) -> Any:
        """``record`` with its sequences padded, or cut, to the length of ``group``."""
        parts = _parts(record)
        sequences = self._sequences(parts)
        last = next(reversed(parts))
        for key, value in sequences.items():
            filling = (
                self._padding[key]
                if self._padding is not None
                else (-100 if key in ("label", "labels") or (key == last and not isinstance(record, Mapping)) else 0)
            )
            kept = value[: self._lengths[group]]
            behind = kept.new_full((self._lengths[group] - len(kept), *kept.shape[1:]), filling)
            parts[key] = torch.cat([kept, behind])
        if isinstance(record, Mapping):
            return parts
        return tuple(parts.values()) if isinstance(record, (tuple, list)) else parts[0]

    def _sequences(self, parts: Mapping[Any, Any]) -> dict[Any, Tensor]:
        named = parts if self._padding is None else [key for key in parts if key in self._padding]
        found = {key: parts[key] for key in named if isinstance(parts[key], Tensor) and parts[key].dim()}
        if not found:
            raise InputError(
                "A record has no sequence to pad.",
                fix="Let records hold tensors or lists of numbers with a dimension, and name them in padding= by key "
                "or place.",
            )
        return found


def fetched(data: Any, indices: list[int]) -> list[Any]:
    """The records of ``data`` at ``indices``, all at once where it can."""
    many = getattr(data, "__getitems__", None)
    return [data[index] for index in indices] if many is None else list(many(indices))


class Collated(Dataset[Any]):
    """A data set with a ``collate_fn``, which is given one record at a time.

    So what it makes of a record cannot depend on others: one that pads to the longest, scales by a mean or mixes
    records would make a record's gradient depend on the others of its batch.
    """

    def __init__(self, data: Data, collate_fn: Collate) -> None:
        if isinstance(data, (Tensor, Stored, tuple, dict)):
            parts = data if isinstance(data, tuple) else (data,)
            data = _OneByOne(*parts) if all(isinstance(part, (Tensor, Stored)) for part in parts) else data
        self._data, self._collate = data, collate_fn

    def __len__(self) -> int:
        return len(self._data)

    def __getitem__(self, index: int) -> Any:
        return self.__getitems__([index])[0]

    def __getitems__(self, indices: list[int]) -> list[Any]:
        return [self._alone(record) for record in fetched(self._data, indices)]

    def _alone(self, record: Any) -> Any:
        batch = self._collate([record])
        batch = dict(batch) if isinstance(batch, Mapping) else batch
        return tree_map(lambda leaf: leaf.squeeze(0) if isinstance(leaf, Tensor) and leaf.dim() else leaf, batch)


class _OneByOne(Dataset[Any]):
    """Tensors, or what is stored in place of them, record by record."""

    def __init__(self, *parts: Tensor | Stored) -> None:
        self._parts = parts

    def __len__(self) -> int:
        return len(self._parts[0])

    def __getitems__(self, indices: list[int]) -> list[Any]:
        wanted = torch.tensor(indices, dtype=torch.long)
        rows = [part.rows(wanted) if isinstance(part, Stored) else part[wanted] for part in self._parts]
        return [tuple(tree_map(lambda leaf, at=at: leaf[at], rows)) for at in range(len(indices))]


class _ByWorkers(Dataset[Any]):
    """A data set whose records are fetched by worker processes, which see indices only."""

    def __init__(self, data: Any, workers: int) -> None:
        self._data, self._workers = data, workers
        self._parts: list[list[int]] = []
        self._loader = DataLoader(
            _Lists(data), sampler=self._parts, batch_size=None, num_workers=workers, persistent_workers=True
        )

    def __len__(self) -> int:
        return len(self._data)

    def __getitems__(self, indices: list[int]) -> list[Any]:
        each = max(1, -(-len(indices) // self._workers))
        self._parts[:] = [indices[start : start + each] for start in range(0, len(indices), each)]
        return [record for part in self._loader for record in part]


class _Lists(Dataset[Any]):
    """Several records at one index: what a worker fetches at once."""

    def __init__(self, data: Any) -> None:
        self._data = data

    def __getitem__(self, indices: list[int]) -> list[Any]:
        return fetched(self._data, indices)


def _of_loader(loader: DataLoader[Any]) -> tuple[Data, tuple[str, ...]]:
    listed = isinstance(loader.dataset, list)  # of records, here; elsewhere a list is one of columns
    data, notes = (loader.dataset, ()) if listed else read_data(loader.dataset)
    in_memory = isinstance(data, (Tensor, tuple, dict, TensorDataset))
    collate = default_collate if loader.batch_sampler is None else loader.collate_fn
    if (listed or collate is not default_collate) and not isinstance(data, IterableDataset):
        data, in_memory = Collated(data, collate), False
    if loader.num_workers and not in_memory and not isinstance(data, (IterableDataset, Grouped)):
        data = _ByWorkers(data, loader.num_workers)
    return data, (*notes, LOADER_NOTE)


def _of_hugging_face(data: Any) -> tuple[Data, tuple[str, ...]]:
    """As its owner formatted it, or as tensors, without the columns that are none."""
    if data.format["type"] is not None or not len(data):
        return data, ()
    formatted = data.with_format("torch")
    first = formatted[0]
    kept = [name for name in data.column_names if isinstance(first[name], Tensor)]
    others = [name for name in data.column_names if name not in kept]
    if not kept:
        raise InputError(
            "The data set has no column of numbers.", fix="Tokenize its text first: data.map(tokenize, batched=True)."
        )
    note = f"Columns of the data set that hold no numbers were left out: {', '.join(others)}."
    return formatted.select_columns(kept), (note,) if others else ()


class _Rows(Dataset[Any]):
    """An Arrow table with lists in it, record by record."""

    def __init__(self, table: Any) -> None:
        self._table = table

    def __len__(self) -> int:
        return int(self._table.num_rows)

    def __getitem__(self, index: int) -> Any:
        return self.__getitems__([index])[0]

    def __getitems__(self, indices: list[int]) -> list[Any]:
        rows = self._table.take(indices).to_pylist()
        return [{name: torch.as_tensor(value) for name, value in row.items()} for row in rows]


def _of_files(data: Any) -> Data:
    """A data set of Arrow: on disk, if all of its rows can be read by index there, else in memory."""
    here = type(data.filesystem).__name__ == "LocalFileSystem"
    if here and data.format.default_extname == "parquet":
        stored = of_parquet(data.files, data.schema.names)
        if len(stored) == data.count_rows():  # no filter
            return stored
    return _of_table(data.to_table())


def _of_table(table: Any) -> Data:
    kinds = [str(field.type) for field in table.schema]
    if any(kind.startswith(("list", "large_list")) for kind in kinds):
        return _Rows(table)
    if any("list" in kind for kind in kinds) or any(column.num_chunks > 1 for column in table.columns):
        return of_batches(table.to_batches())
    return {name: _column(table.column(name), name) for name in table.column_names}


def _is_frame(data: Any) -> bool:
    return hasattr(data, "iloc") and hasattr(data, "columns")


def _part(leaf: Any) -> Any:
    """One part of a tuple or dict: a tensor, if it holds numbers, or what is read from disk by index."""
    if isinstance(leaf, Tensor):
        return leaf
    if isinstance(leaf, (str, os.PathLike)):
        return opened(leaf)
    if isinstance(leaf, np.memmap):
        return Arrays([leaf])
    if _is_frame(leaf):
        columns = [_column(leaf[name], str(name)).double() for name in leaf.columns]
        return torch.stack(columns, dim=1) if columns else leaf
    return _column(leaf, getattr(leaf, "name", None)) if hasattr(leaf, "__array__") else leaf


def _column(column: Any, name: object = None) -> Tensor:
    """A column of numbers as a tensor, over the same memory where that is possible."""
    values = np.asarray(column)
    if values.dtype.kind == "O" and getattr(getattr(column, "dtype", None), "kind", None) in ("i", "u", "f", "b"):
        values = column.to_numpy(dtype="float64", na_value=np.nan)  # pandas' numbers that may be missing
    if values.dtype.kind not in "biufc":
        raise no_numbers(name)
    values = computable(values)
    if any(stride < 0 for stride in values.strides):
        values = values.copy()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable")  # nobody writes to it
        return torch.from_numpy(values)


def _parts(record: Any) -> dict[Any, Any]:
    """The parts of a record by key or place, lists of numbers as tensors."""
    if isinstance(record, Mapping):
        return {key: _tensor(value) for key, value in record.items()}
    several = isinstance(record, tuple) or (isinstance(record, list) and not all(map(np.isscalar, record)))
    return dict(enumerate(map(_tensor, record if several else [record])))


def _tensor(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value
    return torch.as_tensor(value) if isinstance(value, (list, int, float, np.ndarray, np.generic)) else value
