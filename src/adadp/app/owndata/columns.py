"""What a declared column makes of its cells: numbers in [-1, 1] or one-hot slots, by public rules alone.

A feature is a function of its own cell and of the declaration, never of another cell: no mean, no maximum and no
vocabulary is taken from the data. So a record reaches the training in its own row of features and nowhere else, and
that is what the sensitivity of every later release is counted with.

    cell                                        number                       category
    ==========================================  ===========================  ==========================================
    spaces around it                            dropped                      dropped
    below ``low``, above ``high``               clipped                      -
    not a number, NaN, infinite                 an error                     text like any other
    empty, or a text of ``missing``             an error, unless ``missing`` the slot "missing"
                                                is declared: 0, and 1 in a
                                                feature of its own
    not in ``values``                           -                            the slot "other"
    any text, with ``buckets``                  -                            one of the buckets, by SHA-256
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence, Set
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, TypeAlias, final

import numpy as np
from numpy.typing import NDArray

from adadp.errors import InputError

Floats: TypeAlias = NDArray[np.float64]
Features: TypeAlias = NDArray[np.float32]


@dataclass
class BadCell(Exception):
    """A cell that its column cannot take. Whoever knows the file and the row turns it into an ``InputError``."""

    index: int
    what: str
    fix: str


class Column(ABC):
    """A declared column: how wide its features are and how a cell becomes them."""

    @property
    def private(self) -> bool:
        """Whether its bounds are to be released from the data."""
        return False

    @property
    @abstractmethod
    def width(self) -> int:
        """How many features it makes."""

    @abstractmethod
    def fill(self, cells: Sequence[str], out: Features) -> Floats | None:
        """Write the features of ``cells`` into ``out``, zeros of shape (len(cells), width); the values of numbers."""

    @abstractmethod
    def as_dict(self) -> dict[str, Any]:
        """The declaration, as the schema writes it."""

    @abstractmethod
    def describe(self) -> str:
        """The declaration in a few words, for the certificate."""


@final
@dataclass(frozen=True)
class Number(Column):
    """A number, clipped to [low, high] and mapped to [-1, 1]. Without ``low`` and ``high`` they are to be released.

    ``missing``: the texts that stand for no value. They become 0, the middle of the range, and 1 in a second feature.
    """

    low: float | None = None
    high: float | None = None
    missing: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.low is None or self.high is None:
            return
        if not (math.isfinite(self.low) and math.isfinite(self.high) and self.high / 2 - self.low / 2 > 0):
            raise InputError(
                f"low must be less than high and both finite, got low={self.low:g} and high={self.high:g}.",
                why="Values are clipped to them and mapped to [-1, 1].",
                fix="Give the smallest and the largest value that are plausible by public knowledge.",
            )

    @property
    def private(self) -> bool:
        return self.low is None

    @property
    def width(self) -> int:
        return 2 if self.missing else 1

    def numbers(self, cells: Sequence[str]) -> Floats:
        """The cells as finite numbers, NaN where one is missing."""
        gone = {cell for cell in set(cells) if cell.strip() in self.missing} if self.missing else set()
        texts = ("nan" if cell in gone else cell for cell in cells) if gone else cells
        try:
            values = np.fromiter(map(float, texts), np.float64, len(cells))
        except ValueError:
            raise _not_a_number(cells, gone) from None
        if any(cells[index] not in gone for index in np.flatnonzero(~np.isfinite(values)).tolist()):
            raise _not_a_number(cells, gone)
        return values

    def place(self, values: Floats, out: Features) -> None:
        """Write the features of ``numbers`` into ``out``; 0 for a value whose bounds are not known yet."""
        if self.low is not None and self.high is not None:
            centre, half = self.low / 2 + self.high / 2, self.high / 2 - self.low / 2
            scaled = (np.clip(values, self.low, self.high) - centre) / half
            out[:, 0] = np.nan_to_num(np.clip(scaled, -1, 1), nan=0.0)
        if self.missing:
            out[:, 1] = np.isnan(values)

    def fill(self, cells: Sequence[str], out: Features) -> Floats:
        values = self.numbers(cells)
        self.place(values, out)
        return values

    def as_dict(self) -> dict[str, Any]:
        range_ = {"bounds": "private"} if self.private else {"low": self.low, "high": self.high}
        return {"kind": "number", **range_, **({"missing": list(self.missing)} if self.missing else {})}

    def describe(self) -> str:
        range_ = "its bounds, which are released privately" if self.private else f"[{self.low:g}, {self.high:g}]"
        return f"a number, clipped to {range_}{', with a feature for a missing value' if self.missing else ''}"


class _OneHot(Column):
    """A column whose cell puts a 1 into one of ``width`` slots, the last of which is for a missing value."""

    missing: tuple[str, ...]

    @abstractmethod
    def slot(self, text: str) -> int:
        """The slot of ``text``, which has no spaces around it and is not missing."""

    def fill(self, cells: Sequence[str], out: Features) -> None:
        texts = {cell: cell.strip() for cell in set(cells)}
        slots = {cell: self.width - 1 if text in self.missing else self.slot(text) for cell, text in texts.items()}
        chosen = np.fromiter(map(slots.__getitem__, cells), np.int64, len(cells))
        out[np.arange(len(cells)), chosen] = 1


@final
@dataclass(frozen=True)
class Category(_OneHot):
    """One of the declared ``values``; behind their slots come one for any other text and one for a missing value."""

    values: tuple[str, ...]
    missing: tuple[str, ...] = ("",)

    @property
    def width(self) -> int:
        return len(self.values) + 2

    def slot(self, text: str) -> int:
        return self.values.index(text) if text in self.values else len(self.values)

    def as_dict(self) -> dict[str, Any]:
        return {"kind": "category", "values": list(self.values), "missing": list(self.missing)}

    def describe(self) -> str:
        return f"one of {', '.join(self.values)}, other or missing"


@final
@dataclass(frozen=True)
class Hashed(_OneHot):
    """Any text, in one of ``buckets`` slots, and one slot more for a missing value.

    The bucket is the first eight bytes of SHA-256 of the text (UTF-8), as a big-endian number, modulo ``buckets``: the
    same on every machine, and known before any data is.
    """

    buckets: int
    missing: tuple[str, ...] = ("",)

    @property
    def width(self) -> int:
        return self.buckets + 1

    def slot(self, text: str) -> int:
        return int.from_bytes(sha256(text.encode("utf-8")).digest()[:8], "big") % self.buckets

    def as_dict(self) -> dict[str, Any]:
        return {"kind": "category", "buckets": self.buckets, "missing": list(self.missing)}

    def describe(self) -> str:
        return f"a text, hashed into {self.buckets} buckets, or missing"


@final
@dataclass(frozen=True)
class Ignored(Column):
    """A column that is never looked at; a file may lack it."""

    width = 0

    def fill(self, cells: Sequence[str], out: Features) -> None:
        """Nothing is made of its cells."""

    def as_dict(self) -> dict[str, Any]:
        return {"kind": "ignore"}

    def describe(self) -> str:
        return "not used"


def class_numbers(cells: Sequence[str], classes: Sequence[str]) -> NDArray[np.int64]:
    """The number of each cell's class; a text that is none of ``classes`` is a bad cell, and so is an empty one."""
    numbers = {name: number for number, name in enumerate(classes)}
    known = {cell: numbers.get(cell.strip(), -1) for cell in set(cells)}
    labels = np.fromiter(map(known.__getitem__, cells), np.int64, len(cells))
    if -1 in known.values():
        index = int(np.argmin(labels))
        raise BadCell(
            index,
            f"is {cells[index]!r}, which is none of the classes {', '.join(classes)}",
            "Correct the cell or take the row out, or declare the class in target.classes if it is publicly known.",
        )
    return labels


def _not_a_number(cells: Sequence[str], missing: Set[str]) -> BadCell:
    """The first of ``cells`` that is neither missing nor a finite number."""
    index = next(index for index, cell in enumerate(cells) if cell not in missing and not _is_finite(cell))
    what = f"is {cells[index]!r}, which is not a finite number"
    fix = 'Correct the cell (a decimal point, no thousands separators), or list the text in missing: missing = ["?"].'
    if not cells[index].strip():
        what = "is empty"
        fix = "Declare missing = true for the column, which gives it a feature for that, or fill it in."
    return BadCell(index, what, fix)


def _is_finite(text: str) -> bool:
    try:
        return math.isfinite(float(text))
    except ValueError:
        return False
