"""What a declared column makes of its cells: marks, positions and one-hot slots, by public rules alone.

A feature is a function of its own cell and of the declaration, never of another cell: no mean, no maximum and no
vocabulary is taken from the data. So a record reaches the training in its own row of features and nowhere else, and
that is what the sensitivity of every later release is counted with.

A number in a declared range is one-hot in uniform bins, several times, from coarse to fine. A linear model on such
features is a smooth curve for each column, which noise spoils less than one weight for each fine bin.

A cell is read once, to a few numbers (``parse``: a position, a slot), and these become features where they are needed
(``expand``), so that a table can wait on disk in a small form.

    cell                                        number                       category
    ==========================================  ===========================  ==========================================
    spaces around it                            dropped                      dropped
    below ``low``, above ``high``               clamped; an error with       -
                                                ``outside = "refuse"``
    not a number, NaN, infinite                 an error                     text like any other
    empty, or a text of ``missing``             an error, unless ``missing`` the slot "missing"
                                                is declared: a mark of its
                                                own, and nothing else
    equal to ``default``                        no feature                   no feature
    at or below ``low``, with ``log``           no feature                   -
    not in ``values``                           -                            the slot "other"; an error with
                                                                             ``outside = "refuse"``
    any text, with ``buckets``                  -                            one of the buckets, by SHA-256
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, TypeAlias, final

import numpy as np
from numpy.typing import NDArray

from adadp.app.owndata.tables import Numbers, distinct
from adadp.errors import InputError

Floats: TypeAlias = NDArray[np.float64]
Features: TypeAlias = NDArray[np.float32]

BINS = (4, 8, 16, 32)
"""Into how many bins a range is divided where the schema does not say."""
LOG_BINS = (8, 32, 128, 512)
"""The same for a range with ``log``."""
DECADES = 3
"""How far below the upper end a range with ``log`` begins, in powers of ten."""

NOTHING = -1.0
"""Stands for a cell that has no feature."""


@dataclass
class BadCell(Exception):
    """A cell that its column cannot take, without its text. Whoever knows the file and the row makes an error of it."""

    index: int
    what: str
    fix: str


class Column(ABC):
    """A declared column: how a cell is read, and how it becomes features."""

    @property
    def private(self) -> bool:
        """Whether its bounds are to be released from the data."""
        return False

    @property
    def kept(self) -> int:
        """How many numbers ``parse`` makes of a cell."""
        return 1

    @property
    @abstractmethod
    def width(self) -> int:
        """How many features it makes."""

    @abstractmethod
    def parse(self, cells: Sequence[str]) -> Floats:
        """The cells as numbers, of shape (len(cells), kept): NaN is a missing value, ``NOTHING`` a default."""

    @abstractmethod
    def expand(self, parsed: NDArray[Any], out: Features) -> None:
        """Write the features of what ``parse`` has read into ``out``, zeros of shape (rows, width)."""

    @abstractmethod
    def as_dict(self) -> dict[str, Any]:
        """The declaration, as the schema writes it."""

    @abstractmethod
    def describe(self) -> str:
        """The declaration in a few words, for the certificate."""


@final
@dataclass(frozen=True)
class Number(Column):
    """A number in [low, high]: its position in [-1, 1], then one slot per bin. Without a range, that is to be released.

    ``missing``: the texts that stand for no value; they have a mark, the last feature, and nothing else. ``log``: the
    position is logarithmic, and a mark says that the value is above ``low``. ``default``: the value without features.
    ``strict``: a value outside of the range is an error.
    """

    low: float | None = None
    high: float | None = None
    missing: tuple[str, ...] = ()
    bins: tuple[int, ...] = BINS
    log: bool = False
    default: float | None = None
    strict: bool = False

    def __post_init__(self) -> None:
        if self.low is None or self.high is None:
            return
        if not (math.isfinite(self.low) and math.isfinite(self.high) and self.high / 2 - self.low / 2 > 0):
            raise InputError(
                f"low must be less than high and both finite, got low={self.low:g} and high={self.high:g}.",
                why="Values are clamped to them.",
                fix="Give the smallest and the largest value that are plausible by public knowledge.",
            )

    @property
    def private(self) -> bool:
        return self.low is None

    @property
    def width(self) -> int:
        return 1 + sum(self.bins) + self.log + bool(self.missing)

    def parse(self, cells: Sequence[str]) -> Floats:
        values = self.numbers(cells)
        if self.low is None or self.high is None:
            return values[:, None]
        if self.strict:
            _refuse_outside((values < self.low) | (values > self.high))
        place = position(values, self.low, self.high)
        if self.log:
            with np.errstate(divide="ignore"):
                place = np.where(place > 0, np.clip(1 + np.log10(place) / DECADES, 0, 1), place - 1)  # 0 is NOTHING
        if self.default is not None:
            place[values == self.default] = NOTHING
        return place[:, None]

    def numbers(self, cells: Sequence[str]) -> Floats:
        """The cells as finite numbers, NaN where one is missing."""
        if isinstance(cells, Numbers) and set(self.missing) <= {""}:
            values = cells.values
            wrong = ~np.isfinite(values) & ~(cells.empty & bool(self.missing))
            if wrong.any():
                raise _not_a_number(cells, wrong)
            return values
        texts, where = distinct(cells)
        gone = [text.strip() in self.missing for text in texts]
        found = np.array([math.nan if out else _finite(text) for text, out in zip(texts, gone, strict=True)])
        wrong = np.isnan(found) & ~np.array(gone, dtype=bool)
        if wrong.any():
            raise _not_a_number(cells, wrong[where])
        return found[where]

    def expand(self, parsed: NDArray[Any], out: Features) -> None:
        if not self.private:
            place_number(parsed[:, 0], out, self.bins)
            if self.log:
                out[:, -1 - bool(self.missing)] = parsed[:, 0] >= 0
        if self.missing:
            out[:, -1] = np.isnan(parsed[:, 0])

    def as_dict(self) -> dict[str, Any]:
        if self.private:
            return {"kind": "number", "bounds": "private", **_missing_key(self.missing)}
        return {
            **{"kind": "number", "low": self.low, "high": self.high, "bins": list(self.bins)},
            **({"log": True} if self.log else {}),
            **({} if self.default is None else {"default": self.default}),
            **({"outside": "refuse"} if self.strict else {}),
            **_missing_key(self.missing),
        }

    def describe(self) -> str:
        range_ = "its bounds, which are released privately" if self.private else f"[{self.low:g}, {self.high:g}]"
        bins = f", in {', '.join(map(str, self.bins))} bins" if self.bins else ""
        return (
            f"a number, {'refused outside of' if self.strict else 'clamped to'} {range_}{bins}"
            f"{', on a logarithmic scale' if self.log else ''}"
            f"{'' if self.default is None else f', with the default {self.default:g}'}"
            f"{', with a mark for a missing value' if self.missing else ''}"
        )


def position(values: Floats, low: float, high: float) -> Floats:
    """Where ``values`` are in [low, high], from 0 to 1; NaN stays."""
    return np.clip((np.clip(values, low, high) / 2 - low / 2) / (high / 2 - low / 2), 0, 1)


def place_number(place: NDArray[Any], out: Features, bins: Sequence[int]) -> None:
    """The features of positions from 0 to 1: one in [-1, 1], and a slot in each of ``bins``; else none."""
    rows = np.flatnonzero(place >= 0)  # neither NaN nor NOTHING
    there = place[rows].astype(np.float32)
    out[rows, 0] = 2 * there - 1
    start = 1
    for count in bins:
        out[rows, start + np.minimum((there * np.float32(count)).astype(np.int64), count - 1)] = 1
        start += count


class _OneHot(Column):
    """A column whose cell puts a 1 into one of some slots, the last of which is for a missing value."""

    missing: tuple[str, ...]

    @property
    @abstractmethod
    def slots(self) -> int:
        """How many slots there are."""

    @abstractmethod
    def slot(self, text: str) -> float:
        """The slot of ``text``, which has no spaces around it and is not missing; NaN if there is none for it."""

    def parse(self, cells: Sequence[str]) -> Floats:
        texts, where = distinct(cells)
        stripped = map(str.strip, texts)
        found = np.array([self.slots - 1 if text in self.missing else self.slot(text) for text in stripped])
        chosen = found[where]
        if np.isnan(found).any():
            raise BadCell(
                int(np.isnan(chosen).argmax()),
                "is none of the declared values",
                'Correct the cell, declare the value, or take outside = "refuse" out of the schema.',
            )
        return chosen[:, None].astype(np.float64)

    def expand(self, parsed: NDArray[Any], out: Features) -> None:
        rows = np.flatnonzero(parsed[:, 0] >= 0)
        out[rows, parsed[rows, 0].astype(np.int64)] = 1


@final
@dataclass(frozen=True)
class Category(_OneHot):
    """One of the declared ``values``; behind their slots come one for any other text and one for a missing value.

    ``ordered``: the values are steps of a scale, and one feature more says how far up, from -1 to 1; 0 for any other
    text and a missing one. ``default``: the value that has no feature. ``strict``: any other text is an error.
    """

    values: tuple[str, ...]
    missing: tuple[str, ...] = ("",)
    ordered: bool = False
    default: str | None = None
    strict: bool = False

    @property
    def slots(self) -> int:
        return len(self.values) + 2

    @property
    def width(self) -> int:
        return self.slots + self.ordered

    def slot(self, text: str) -> float:
        if text == self.default:
            return NOTHING
        if text in self.values:
            return self.values.index(text)
        return math.nan if self.strict else len(self.values)

    def expand(self, parsed: NDArray[Any], out: Features) -> None:
        super().expand(parsed, out)
        if self.ordered:
            step = parsed[:, 0]
            known = (step >= 0) & (step < len(self.values))
            out[known, -1] = 2 * step[known] / max(1, len(self.values) - 1) - 1

    def as_dict(self) -> dict[str, Any]:
        return {
            **{"kind": "category", "values": list(self.values), "missing": list(self.missing)},
            **({"ordered": True} if self.ordered else {}),
            **({} if self.default is None else {"default": self.default}),
            **({"outside": "refuse"} if self.strict else {}),
        }

    def describe(self) -> str:
        return (
            f"one of {', '.join(self.values)}{'' if self.strict else ', other'} or missing"
            f"{', in this order' if self.ordered else ''}"
            f"{'' if self.default is None else f', with the default {self.default}'}"
        )


@final
@dataclass(frozen=True)
class Hashed(_OneHot):
    """Any text, in one of ``buckets`` slots, and one slot more for a missing value.

    The bucket is the first eight bytes of SHA-256 of the text (UTF-8), as a big-endian number, modulo ``buckets``: the
    same on every machine, and known before any data is.
    """

    buckets: int
    missing: tuple[str, ...] = ("",)
    default: str | None = None

    @property
    def slots(self) -> int:
        return self.buckets + 1

    @property
    def width(self) -> int:
        return self.slots

    def slot(self, text: str) -> float:
        return NOTHING if text == self.default else bucket(text, self.buckets)

    def as_dict(self) -> dict[str, Any]:
        default = {} if self.default is None else {"default": self.default}
        return {"kind": "category", "buckets": self.buckets, "missing": list(self.missing), **default}

    def describe(self) -> str:
        default = "" if self.default is None else f", with the default {self.default}"
        return f"a text, hashed into {self.buckets} buckets, or missing{default}"


@final
@dataclass(frozen=True)
class Ignored(Column):
    """A column that is never looked at; a file may lack it."""

    width = 0
    kept = 0

    def parse(self, cells: Sequence[str]) -> Floats:
        return np.empty((len(cells), 0))

    def expand(self, parsed: NDArray[Any], out: Features) -> None:
        """Nothing is made of its cells."""

    def as_dict(self) -> dict[str, Any]:
        return {"kind": "ignore"}

    def describe(self) -> str:
        return "not used"


def bucket(text: str, buckets: int) -> int:
    """Which of ``buckets`` a text belongs to."""
    return int.from_bytes(sha256(text.encode("utf-8")).digest()[:8], "big") % buckets


def class_numbers(cells: Sequence[str], classes: Sequence[str]) -> NDArray[np.int64]:
    """The number of each cell's class; a text that is none of ``classes`` is a bad cell, and so is an empty one."""
    numbers = {name: number for number, name in enumerate(classes)}
    texts, where = distinct(cells)
    labels = np.array([numbers.get(text.strip(), -1) for text in texts], dtype=np.int64)[where]
    if (labels < 0).any():
        raise BadCell(
            int(np.argmin(labels)),
            f"is none of the classes {', '.join(classes)}",
            "Correct the cell or take the row out, or declare the class in target.classes if it is publicly known.",
        )
    return labels


def read_once(cells: Sequence[str], read: Callable[[str], Floats], kept: int) -> Floats:
    """``read`` of every cell, called once for equal ones."""
    texts, where = distinct(cells)
    found = [read(text.strip()) for text in texts]
    return np.stack(found)[where] if found else np.empty((0, kept))


def _refuse_outside(outside: NDArray[np.bool_]) -> None:
    if outside.any():
        raise BadCell(
            int(outside.argmax()),
            "lies outside of the declared range",
            'Correct the cell, widen the range by what is publicly known, or take outside = "refuse" out of the '
            "schema, so that such values are clamped.",
        )


def _missing_key(missing: tuple[str, ...]) -> dict[str, Any]:
    return {"missing": list(missing)} if missing else {}


def _not_a_number(cells: Sequence[str], wrong: NDArray[np.bool_]) -> BadCell:
    index = int(wrong.argmax())
    if not cells[index].strip():
        return BadCell(
            index, "is empty", "Declare missing = true for the column, which gives it a mark for that, or fill it in."
        )
    return BadCell(
        index,
        "is not a finite number",
        'Correct the cell (a decimal point, no thousands separators), or list the text in missing: missing = ["?"].',
    )


def _finite(text: str) -> float:
    """``text`` as a number, NaN where it is no finite one."""
    try:
        value = float(text)
    except ValueError:
        return math.nan
    return value if math.isfinite(value) else math.nan
