"""The data a run trains on, record by record: tensors, or any map-style ``torch.utils.data.Dataset``.

Other kinds of data become one of these by a reader, a function that a package offers as an entry point in the group
``adadp.data_readers``: it takes the data and returns what to read in place of it, with notes for the user, or None.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from threading import Lock
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset, default_collate

from adadp.errors import InputError, without_text
from adadp.input_bound import InputBound
from adadp.registry import Registry

Data = Any
"""Tensors with the records in dimension 0 (one, or a tuple, list or dict of them), a data set with a length, or what an
installed reader makes one of these of."""

READERS: Registry[Callable[[Any], tuple[Data, tuple[str, ...]] | None]] = Registry(
    "data reader", {}, lambda found: found if callable(found) else None
)


class Stored(ABC):
    """Records, or a part of each, that are not in memory: rows by index, several at once.

    They are fetched ahead by a thread, one batch at a time.
    """

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def rows(self, indices: Tensor) -> Any:
        """The rows at ``indices``, new tensors: one, or a dict of them."""


class Grouped(Dataset[Any]):
    """A data set whose records have one of a few public shapes, each by itself: its group, counted from 0.

    A chunk holds records of one group, so that one record more changes the chunks of its own group alone.
    """

    groups: int

    @abstractmethod
    def groups_of(self, indices: Sequence[int]) -> list[int]:
        """The group of each record, which depends on that record alone. Sensitive."""

    def shaped(self, record: Any, group: int) -> Any:  # noqa: ARG002
        """``record`` in the shape of ``group``, cut where it is larger."""
        return record

    def gathered(self, indices: Tensor, group: int) -> tuple[Any, ...] | None:  # noqa: ARG002
        """The records at ``indices`` at once, in the shape of ``group``; None: they are fetched one by one."""
        return None


class Records:
    """Records by index, gathered into batches on ``device``. What it holds is sensitive, its shapes and length are not.

    ``dtype`` is that of the model. Numbers in a wider one (float64, which is what numpy makes, or float32 for a model
    in half precision) are given to it as ``dtype``. Every
    floating-point number is brought into ``bound``, a public range; where a record has several parts, the last one is
    its label and is brought into the default range instead.

    ==========================================  =====================================================================
    one tensor                                  a batch is a tuple with that tensor's rows
    a tuple or list of tensors                  a batch is the tuple of their rows; a dict is one element of the batch
    ``Stored`` in place of a tensor             its rows; ``fetch_ahead`` has them read while a batch is computed
    a ``TensorDataset``                         taken as its tensors
    another map-style ``Dataset``               records are fetched, by ``__getitems__`` where it has that, and stacked;
                                                a mapping or sequence per record works as in a ``DataLoader``
    a ``Grouped`` data set                      the records of a batch have the shape of one group
    tensors of different lengths, values that   ``InputError``
    are no tensors, fewer than two records
    an ``IterableDataset``, anything without a  ``InputError``: batches are drawn here, by index
    length
    records of unequal shapes; an exception     ``InputError``, which tells nothing of the records
    of the data set
    ==========================================  =====================================================================
    """

    def __init__(
        self,
        data: Data,
        device: torch.device | str = "cpu",
        dtype: torch.dtype | None = None,
        bound: InputBound | None = None,
    ) -> None:
        self.bound = InputBound() if bound is None else bound
        """The range of the numbers of a record, in a sentence by its ``describe``."""
        self._label_bound = InputBound()
        self._device = torch.device(device)
        self._dtype = dtype
        self._tensors: tuple[Any, ...] | None = None
        self._dataset: Any = None
        data, self.notes = _read(data)
        if isinstance(data, TensorDataset):
            data = data.tensors
        if isinstance(data, (Tensor, Stored, dict)):
            self._tensors = (data,)
        elif isinstance(data, (tuple, list)):
            self._tensors = tuple(data)
        else:
            self._dataset = data
        self._grouped = data if isinstance(data, Grouped) else None
        self.groups = 1 if self._grouped is None else self._grouped.groups
        self._kinds: dict[int, Sequence[object]] = {}
        """Shapes and dtypes of a record, by group."""
        self.stored = any(isinstance(leaf, Stored) for leaf in tree_leaves(self._tensors))
        """Whether a part of the records is not in memory."""
        self._thread: ThreadPoolExecutor | None = None
        self._reading = Lock()
        self._ahead: dict[int, tuple[Tensor, Future[tuple[Any, ...]]]] = {}
        """What is fetched ahead, by the identity of its indices. Sensitive."""
        self._length = _common_length(self._tensors) if self._tensors is not None else _length_of(self._dataset)
        if self._length < 2:
            raise InputError(
                f"The data has {self._length} record{'' if self._length == 1 else 's'}.",
                why="Protecting one record among no others leaves nothing to learn.",
                fix="Train on two records at least; for a real guarantee, on thousands.",
            )

    def __len__(self) -> int:
        return self._length

    @property
    def columns(self) -> tuple[Any, ...] | None:
        """The tensors the data was given as, or what is stored in place of them; None for a ``Dataset``. Sensitive."""
        return self._tensors

    def fetch_ahead(self, indices: Tensor, group: int | None = None) -> None:
        """Fetch what ``batch`` is going to be asked for, by this very tensor; nothing if that is in memory."""
        if self.stored:
            if self._thread is None:
                self._thread = ThreadPoolExecutor(1, "adadp-records")
            self._ahead[id(indices)] = indices, self._thread.submit(self._gathered, indices, group)

    def forget_ahead(self) -> None:
        """Nobody is going to ask for what was fetched."""
        self._ahead.clear()

    def groups_of(self, indices: Tensor) -> Tensor:
        """The group of each record. Sensitive."""
        if self._grouped is None:
            return torch.zeros_like(indices)
        with without_text("The groups of the records cannot be found"):
            return torch.tensor(self._grouped.groups_of(indices.tolist()), dtype=torch.long)

    def batch(self, indices: Tensor, group: int | None = None) -> tuple[Any, ...]:
        """The records at ``indices``, on the device, in the shape of ``group``, or of their last one. Sensitive.

        An index of -1, a row without a record, gives the first one.
        """
        _, ahead = self._ahead.pop(id(indices), (None, None))
        return self.brought_in(self._gathered(indices, group) if ahead is None else ahead.result())

    def _gathered(self, indices: Tensor, group: int | None) -> tuple[Any, ...]:
        """The records at ``indices``, in new tensors."""
        indices = indices.clamp(min=0)
        if self._tensors is not None:
            with self._reading:
                return tuple(tree_map(lambda leaf: _rows(leaf, indices), self._tensors))
        if group is None:
            group = int(self.groups_of(indices).max()) if len(indices) else 0
        batch = None if self._grouped is None else self._grouped.gathered(indices, group)
        if batch is None:
            collated = _collated(self._fetched(indices.tolist(), group))
            batch = tuple(collated) if isinstance(collated, (tuple, list)) else (collated,)
        kinds = [
            (leaf.shape[1:], leaf.dtype) if isinstance(leaf, Tensor) else type(leaf) for leaf in tree_leaves(batch)
        ]
        if kinds != self._kinds.setdefault(group, kinds):
            raise _unequal()
        return batch

    def _fetched(self, indices: list[int], group: int) -> list[Any]:
        """Each record once: rows without a record ask for the first one."""
        dataset, wanted = self._dataset, list(dict.fromkeys(indices))
        with without_text("The data set fails on a record"):
            many = getattr(dataset, "__getitems__", None)
            records = [dataset[index] for index in wanted] if many is None else many(wanted)
            if self._grouped is not None:
                records = [self._grouped.shaped(record, group) for record in records]
        found = dict(zip(wanted, records, strict=True))
        return [found[index] for index in indices]

    def brought_in(self, batch: tuple[Any, ...]) -> tuple[Any, ...]:
        """``batch``, which was made for it and may be changed, on the device and with its numbers in their range."""
        moved = tree_map(lambda leaf: to_device(leaf, self._device, self._dtype), batch)
        *inputs, last = moved
        label_bound = self._label_bound if inputs else self.bound
        return (*tree_map(self.bound.bring_in, tuple(inputs)), tree_map(label_bound.bring_in, last))

    def example(self, group: int = 0) -> tuple[Any, ...]:
        """A batch of one record in the shape of ``group``, for its shapes and dtypes only."""
        return self.batch(torch.zeros(1, dtype=torch.long), group)


def _read(data: Data) -> tuple[Data, tuple[str, ...]]:
    """``data`` as a reader gives it, and what there is to say about it."""
    found = (read(data) for read in READERS.values())
    return next((each for each in found if each is not None), (data, ()))


def to_device(leaf: Any, device: torch.device, dtype: torch.dtype | None) -> Any:
    """``leaf`` where and as the model wants it, if it is a tensor."""
    if not isinstance(leaf, Tensor):
        return leaf
    _check_dense(leaf)
    wider = dtype is not None and leaf.is_floating_point() and leaf.dtype.itemsize > dtype.itemsize
    return leaf.to(device, dtype if wider else leaf.dtype)


def _check_dense(leaf: Tensor) -> None:
    if leaf.layout != torch.strided or leaf.is_nested or leaf.is_quantized:
        raise InputError(
            "The data holds tensors that are sparse, nested or quantised.",
            why="Every record needs a row of numbers of its own.",
            fix="Pass dense tensors: to_dense() of sparse ones, padded rows for nested ones, dequantize().",
        )


def _common_length(tensors: tuple[Any, ...]) -> int:
    leaves = tree_leaves(tensors)
    strangers = {type(leaf).__name__ for leaf in leaves if not isinstance(leaf, (Tensor, Stored))}
    if strangers or not leaves:
        raise InputError(
            f"The data holds {', '.join(sorted(strangers)) or 'nothing'} where tensors are meant.",
            why="A tuple, list or dict is taken as the columns of the data, with the records in dimension 0.",
            fix="Pass tensors (torch.as_tensor makes them) such as (features, labels), or a map-style Dataset.",
        )
    for leaf in leaves:
        if isinstance(leaf, Tensor):
            _check_dense(leaf)
    lengths = {len(leaf) if isinstance(leaf, Stored) or leaf.dim() else None for leaf in leaves}
    length = lengths.pop()
    if lengths or length is None:
        raise InputError(
            "The tensors of the data have different lengths.",
            why="Dimension 0 counts the records and must be the same in each.",
            fix="Pass tensors with the records in dimension 0, such as (features, labels).",
        )
    return int(length)


def _length_of(dataset: Any) -> int:
    sized = hasattr(dataset, "__len__") and hasattr(dataset, "__getitem__")
    if not sized or isinstance(dataset, (DataLoader, IterableDataset, str, bytes)):
        raise InputError(
            f"The data is {type(dataset).__name__}, whose records cannot be counted and found by index.",
            why="A batch is drawn here, by a coin for every record; batches made elsewhere are sampled in another way.",
            fix="Pass tensors, or a map-style Dataset (__len__ and __getitem__).",
        )
    return len(dataset)


def _collated(records: list[Any]) -> Any:
    try:
        return default_collate(records)
    except (
        TypeError,
        RuntimeError,
        ValueError,
        KeyError,
    ):  # without torch's words, which name the shapes of private records
        raise _unequal() from None


def _unequal() -> InputError:
    return InputError(
        "The records of the data set cannot be put into one batch.",
        why="All records must be made of tensors or numbers, of the same shapes and dtypes.",
        fix="Let __getitem__ return tensors of one shape, numbers, or a tuple or dict of these. For records of unequal "
        "length pass adadp.Padded, with public lengths.",
    )


def in_memory(data: Data) -> Data:
    """``data`` with what is stored read as a whole."""
    return tree_map(lambda leaf: leaf.rows(torch.arange(len(leaf))) if isinstance(leaf, Stored) else leaf, data)


def _rows(leaf: Tensor | Stored, indices: Tensor) -> Any:
    """``leaf[indices]``, several times as fast for long rows."""
    if isinstance(leaf, Stored):
        with without_text("The data cannot be read"):
            return leaf.rows(indices)
    return leaf.index_select(0, indices.to(leaf.device))
