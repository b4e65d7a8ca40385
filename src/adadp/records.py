"""The data a run trains on, record by record: tensors, or any map-style ``torch.utils.data.Dataset``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset, default_collate

from adadp.errors import InputError
from adadp.input_bound import InputBound

Data = Tensor | Sequence[Any] | dict[str, Any] | Dataset[Any]
"""Tensors with the records in dimension 0 (one, or a tuple, list or dict of them), or a data set with a length."""


class Records:
    """Records by index, gathered into batches on ``device``. What it holds is sensitive, its shapes and length are not.

    ``dtype`` is that of the model. Numbers in float64, which is what numpy makes, are given to it as ``dtype``. Every
    floating-point number is brought into ``bound``, a public range; where a record has several parts, the last one is
    its label and is brought into the default range instead.

    ==========================================  =====================================================================
    one tensor                                  a batch is a tuple with that tensor's rows
    a tuple or list of tensors                  a batch is the tuple of their rows; a dict is one element of the batch
    a ``TensorDataset``                         taken as its tensors
    another map-style ``Dataset``               records are fetched one by one and collated; a mapping or sequence per
                                                record works as in a ``DataLoader``
    tensors of different lengths, values that   ``InputError``
    are no tensors, fewer than two records
    a ``DataLoader``, an ``IterableDataset``,   ``InputError``: batches are drawn here, by index
    anything without a length
    a record that cannot be collated            ``InputError``
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
        if isinstance(data, TensorDataset):
            data = data.tensors
        if isinstance(data, (Tensor, dict)):
            self._tensors = (data,)
        elif isinstance(data, (tuple, list)):
            self._tensors = tuple(data)
        else:
            self._dataset = data
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
        """The tensors the data was given as, None for a ``Dataset``. Sensitive."""
        return self._tensors

    def batch(self, indices: Tensor) -> tuple[Any, ...]:
        """The records at ``indices``, on the device. Sensitive."""
        if self._tensors is not None:
            batch = tuple(tree_map(lambda leaf: _rows(leaf, indices), self._tensors))
        else:
            collated = _collated([self._dataset[int(index)] for index in indices])
            batch = tuple(collated) if isinstance(collated, (tuple, list)) else (collated,)
        return self.brought_in(batch)

    def brought_in(self, batch: tuple[Any, ...]) -> tuple[Any, ...]:
        """``batch``, which was made for it and may be changed, on the device and with its numbers in their range."""
        moved = tree_map(lambda leaf: to_device(leaf, self._device, self._dtype), batch)
        *inputs, last = moved
        label_bound = self._label_bound if inputs else self.bound
        return (*tree_map(self.bound.bring_in, tuple(inputs)), tree_map(label_bound.bring_in, last))

    def example(self) -> tuple[Any, ...]:
        """A batch of one record, for its shapes and dtypes only."""
        return self.batch(torch.zeros(1, dtype=torch.long))


def to_device(leaf: Any, device: torch.device, dtype: torch.dtype | None) -> Any:
    """``leaf`` where and as the model wants it, if it is a tensor."""
    if not isinstance(leaf, Tensor):
        return leaf
    return leaf.to(device, dtype if dtype is not None and leaf.dtype == torch.float64 else leaf.dtype)


def _common_length(tensors: tuple[Any, ...]) -> int:
    leaves = tree_leaves(tensors)
    strangers = {type(leaf).__name__ for leaf in leaves if not isinstance(leaf, Tensor)}
    if strangers or not leaves:
        raise InputError(
            f"The data holds {', '.join(sorted(strangers)) or 'nothing'} where tensors are meant.",
            why="A tuple, list or dict is taken as the columns of the data, with the records in dimension 0.",
            fix="Pass tensors (torch.as_tensor makes them) such as (features, labels), or a map-style Dataset.",
        )
    lengths = {leaf.shape[0] if leaf.dim() else None for leaf in leaves}
    length = lengths.pop()
    if lengths or length is None:
        raise InputError(
            f"The tensors of the data have different lengths: shapes {[tuple(leaf.shape) for leaf in leaves]}.",
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
            fix="Pass tensors, or a map-style Dataset (__len__ and __getitem__): of a DataLoader, its dataset.",
        )
    return len(dataset)


def _collated(records: list[Any]) -> Any:
    try:
        return default_collate(records)
    except (TypeError, RuntimeError):
        raise InputError(  # without torch's words, which name the shapes of private records
            "The records of the data set cannot be put into one batch.",
            why="All records must be made of tensors or numbers, of the same shapes.",
            fix="Let __getitem__ return tensors of one shape, numbers, or a tuple or dict of these.",
        ) from None


def _rows(leaf: Tensor, indices: Tensor) -> Tensor:
    """``leaf[indices]``, several times as fast for long rows."""
    return leaf.index_select(0, indices.to(leaf.device))
