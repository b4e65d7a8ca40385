"""What the catalogue says about a data set, and what loading one gives."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import resources
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
from numpy.typing import NDArray

from adadp.app.zoo.sources import DataFile, Source

if TYPE_CHECKING:
    from torch import Tensor

Records: TypeAlias = tuple[NDArray[np.float32] | NDArray[np.uint8], NDArray[np.int64]]
"""Features and labels, one row per record; of texts their bytes."""

Contents: TypeAlias = Mapping[str, bytes]
"""File name -> its verified bytes."""

PACKAGED = resources.files("adadp.app.zoo") / "files"
"""Files that come with AdaDP: a small data set, and sizes and checksums of all files of the catalogue."""


def listed(entry: str) -> tuple[DataFile, ...]:
    """The files of ``entry``, as ``files/checksums.tsv`` lists them."""
    rows = (line.split("\t") for line in (PACKAGED / "checksums.tsv").read_text(encoding="ascii").splitlines())
    return tuple(DataFile(name, int(size), sha, md5.strip("-")) for of, name, size, sha, md5 in rows if of == entry)


@dataclass(frozen=True, kw_only=True)
class Entry:
    """Files that can be had: from ``sources``, asked in order, and then cached; ``packaged`` files come with AdaDP.

    ``alternatives`` are other forms of the same data, for where this one cannot be had: entries of the same name, with
    files of their own.
    """

    name: str
    files: tuple[DataFile, ...]
    sources: tuple[Source, ...] = ()
    packaged: bool = False
    alternatives: tuple[Entry, ...] = ()


@dataclass(frozen=True, kw_only=True)
class DataSet(Entry):
    """One entry of the catalogue: everything AdaDP knows about a data set without having its data.

    ``record`` says what one record is. It is the unit a guarantee protects, so it also says when that is not a person.
    ``read`` turns verified bytes into (training, test) records; it scales by the constants of ``scaling`` and never by
    anything computed from the data. ``text``: a record is the bytes of a text (``adadp.app.text_rows``).
    """

    title: str
    citation: str
    licence: str
    record: str
    scaling: str
    split: str
    shape: tuple[int, ...]
    classes: int
    train_records: int
    test_records: int
    default_model: str
    text: bool = False
    read: Callable[[Contents], tuple[Records, Records]]
    alternatives: tuple[DataSet, ...] = ()


@dataclass(frozen=True, eq=False)
class LoadedData:
    """A data set in memory: (features as float32, labels as int64) of the training and of the test records; of a data
    set of texts, their bytes as uint8.

    ``description`` is the entry, or the one of its alternatives, that was read.
    """

    train: tuple[Tensor, Tensor]
    test: tuple[Tensor, Tensor]
    classes: int
    description: DataSet
