"""What a page says, as data: sections of charts, tables, figures and words. How it looks is the matter of the renderer.

given                                        becomes
===========================================  ===============================================================
a series whose columns differ in length      ``InputError``
a NaN or an infinity in a chart              ``InputError``: JSON has neither; leave the point out, or None
a name of a chart that is no file name       ``InputError``: downloads and exports are called by it
a table whose rows differ in length          ``InputError``
a matrix that is not square                  ``InputError``
a chart or matrix of no data                 ``InputError``: leave it out
"""

from __future__ import annotations

import csv
import io
import math
import re
from dataclasses import dataclass
from itertools import zip_longest
from typing import Literal, TypeAlias

from adadp.errors import InputError

Tone: TypeAlias = Literal["plain", "good", "warn", "bad"]
Kind: TypeAlias = Literal["line", "step", "bar", "dots"]
"""Lines through points, steps with each value around its place, horizontal bars from 0, horizontal dots."""
Cell: TypeAlias = "str | float | None"


@dataclass(frozen=True)
class Axis:
    """What one direction of a chart measures. ``percent``: values are shares, shown as percentages.

    ``zero``: the axis begins with 0, so that lengths and heights can be compared. ``bound``: values are upper bounds,
    which are written rounded up.
    """

    label: str
    scale: Literal["linear", "log", "category"] = "linear"
    percent: bool = False
    whole: bool = False
    zero: bool = False
    bound: bool = False


@dataclass(frozen=True)
class Series:
    """Points under one name; ``low`` and ``high`` are the ends of error bars, where a point has one.

    ``style`` is the number of its colour and symbol, the same in every chart of a page that shows the same thing; None:
    its place in the chart.
    """

    name: str
    x: tuple[float | str, ...]
    y: tuple[float | None, ...]
    low: tuple[float | None, ...] | None = None
    high: tuple[float | None, ...] | None = None
    dashed: bool = False
    style: int | None = None

    def __post_init__(self) -> None:
        columns = [self.x, self.y, *(each for each in (self.low, self.high) if each is not None)]
        if len({len(each) for each in columns}) > 1 or (self.low is None) != (self.high is None):
            raise InputError(
                f"The columns of the series {self.name!r} differ in length.", fix="Give one entry a point."
            )
        numbers = [each for column in columns for each in column if isinstance(each, (int, float))]
        if not all(math.isfinite(each) for each in numbers):
            raise InputError(
                f"The series {self.name!r} has a NaN or an infinity.",
                why="No axis has a place for it.",
                fix="Leave the point out, or pass None.",
            )


@dataclass(frozen=True)
class Chart:
    """One picture. For bars and dots ``x`` holds names, which are written beside them.

    ``wide``: it takes the whole width of the page.
    """

    name: str
    title: str
    kind: Kind
    x: Axis
    y: Axis
    series: tuple[Series, ...]
    caption: str = ""
    wide: bool = False

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", self.name):
            raise InputError(f"{self.name!r} is no name of a chart.", fix="Use small letters, digits and dashes.")
        if not any(value is not None for each in self.series for value in each.y):
            raise InputError(f"The chart {self.name} has no data.", fix="Leave it out.")

    @property
    def styles(self) -> tuple[int, ...]:
        """The number of the colour and symbol of each series."""
        return tuple(place if each.style is None else each.style for place, each in enumerate(self.series))

    @property
    def has_legend(self) -> bool:
        """Whether the names of the series must be told: there are several, and they are not those of the places."""
        return len(self.series) > 1 and any(set(each.x) != {each.name} for each in self.series)

    @property
    def columns(self) -> tuple[str, ...]:
        """The head of the data as a table."""
        ends = ("low", "high") if any(each.low is not None for each in self.series) else ()
        return ("series", self.x.label, self.y.label, *ends)

    @property
    def rows(self) -> tuple[tuple[Cell, ...], ...]:
        """The data as a table: a row for each point, one series after another."""
        return tuple(
            (each.name, *cells[: len(self.columns) - 1])
            for each in self.series
            for cells in zip_longest(each.x, each.y, each.low or (), each.high or ())
            if cells[1] is not None
        )

    def csv(self) -> str:
        """The data as CSV, every number with all its digits."""
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerows([self.columns, *(["" if cell is None else cell for cell in row] for row in self.rows)])
        return text.getvalue()


@dataclass(frozen=True)
class Table:
    """Rows of text. The first ``left`` columns are text, those after them numbers, set to the right.

    ``wide``: it takes the whole width of the page. ``last``: what the last column is in place of numbers: prose, which
    may take several lines, or lines for the shell, which on a phone stand below the rest of their row.
    """

    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    caption: str = ""
    left: int = 1
    wide: bool = False
    last: Literal["", "prose", "shell"] = ""

    def __post_init__(self) -> None:
        if any(len(row) != len(self.columns) for row in self.rows):
            raise InputError("The rows of a table differ in length.", fix="Give one cell for each column.")


@dataclass(frozen=True)
class Figure:
    """One number to remember, with what it is and what to know about it."""

    label: str
    value: str
    note: str = ""
    tone: Tone = "plain"


@dataclass(frozen=True)
class KeyFigures:
    """Figures beside each other."""

    figures: tuple[Figure, ...]


@dataclass(frozen=True)
class Words:
    """A few sentences under a small heading, as a list where ``listed``."""

    lines: tuple[str, ...]
    title: str = ""
    tone: Tone = "plain"
    listed: bool = False


@dataclass(frozen=True)
class Command:
    """A line for the shell."""

    text: str
    caption: str = ""


@dataclass(frozen=True)
class Matrix:
    """How often each true class (rows) was called what (columns)."""

    labels: tuple[str, ...]
    counts: tuple[tuple[int, ...], ...]
    caption: str = ""

    def __post_init__(self) -> None:
        size = len(self.labels)
        if not size or len(self.counts) != size or any(len(row) != size for row in self.counts):
            raise InputError("A matrix of mistakes needs a row and a column for each class.", fix="Check its labels.")


Part: TypeAlias = "Chart | Table | KeyFigures | Words | Command | Matrix"


@dataclass(frozen=True)
class Section:
    """Parts that belong together."""

    title: str
    parts: tuple[Part, ...]
    text: str = ""


@dataclass(frozen=True)
class Page:
    """A whole page. ``status`` is its verdict in a word or two, coloured by ``tone``."""

    title: str
    headline: str
    status: str
    tone: Tone
    lead: tuple[str, ...]
    figures: KeyFigures
    sections: tuple[Section, ...]
    made_with: str
    kicker: str = ""

    def __post_init__(self) -> None:
        names = [chart.name for chart in self.charts()]
        if len(set(names)) < len(names):
            raise InputError("Two charts of a page have the same name.", fix="Name them apart.")

    def charts(self) -> tuple[Chart, ...]:
        """Every chart of the page, in order."""
        return tuple(part for section in self.sections for part in section.parts if isinstance(part, Chart))
