"""The data a run trains on, record by record: tensors, or any map-style ``torch.utils.data.Dataset``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_map
from torch.utils.data import Dataset, default_collate

from adadp.errors import InputError

Data = Tensor | Sequence[Any] | dict[str, Any] | Dataset[Any]
"""Tensors with the records in dimension 0 (one, or a tuple, list or dict of them), or a data set with a length."""


class Records:
    """Records by index, gathered into batches on ``device``. What it holds is sensitive, its shapes and length are not.

    ==========================================  =====================================================================
    one tensor                                  a batch is a tuple with that tensor's rows
    a tuple or list of tensors                  a batch is the tuple of their rows; a dict is one element of the batch
    a ``Dataset``                               records are fetched one by one and collated; a mapping or sequence per
                                                record works as in a ``DataLoader``
    tensors of different lengths, no length,    ``InputError``
    fewer than two records
    ==========================================  =====================================================================
    """

    def __init__(self, data: Data, device: torch.device | str = "cpu") -> None:
        self._device = torch.device(device)
        self._tensors: tuple[Any, ...] | None = None
        self._dataset: Any = None
        if isinstance(data, (Tensor, dict)):
            self._tensors = (data,)
        elif isinstance(data, (tuple, list)):
            self._tensors = tuple(data)
        else:
            self._dataset = data
        self._length = self._measured()
        if self._length < 2:
            raise InputError(
                f"The data has {self._length} record{'' if self._length == 1 else 's'}.",
                why="Protecting one record among no others leaves nothing to learn.",
                fix="Train on two records at least; for a real guarantee, on thousands.",
            )

    def __len__(self) -> int:
        return self._length

    def batch(self, indices: Tensor) -> tuple[Any, ...]:
        """The records at ``indices``, on the device. Sensitive."""
        if self._tensors is not None:
            return tuple(tree_map(lambda leaf: leaf[indices].to(self._device), self._tensors))
        collated = default_collate([self._dataset[int(index)] for index in indices])
        batch = tuple(collated) if isinstance(collated, (tuple, list)) else (collated,)
        return tuple(tree_map(lambda leaf: leaf.to(self._device) if isinstance(leaf, Tensor) else leaf, batch))

    def example(self) -> tuple[Any, ...]:
        """A batch of one record, for its shapes and dtypes only."""
        return self.batch(torch.zeros(1, dtype=torch.long))

    def _measured(self) -> int:
        if self._tensors is None:
            try:
                return len(self._dataset)
            except TypeError:
                raise InputError(
                    f"The data is {type(self._dataset).__name__}, which has no length.",
                    why="A lot is drawn by a coin for every record, so records must be counted and found by index.",
                    fix="Pass tensors, or a map-style Dataset (__len__ and __getitem__), not a DataLoader.",
                ) from None
        lengths = {
            leaf.shape[0] if isinstance(leaf, Tensor) and leaf.dim() else None for leaf in _leaves(self._tensors)
        }
        if len(lengths) != 1 or None in lengths:
            raise InputError(
                f"The tensors of the data have different lengths: {sorted(map(str, lengths))}.",
                why="Dimension 0 counts the records and must be the same in each.",
                fix="Pass tensors with the records in dimension 0, such as (features, labels).",
            )
        length = lengths.pop()
        assert length is not None
        return length


def _leaves(tensors: tuple[Any, ...]) -> list[Any]:
    return list(tree_flatten(tensors)[0])
