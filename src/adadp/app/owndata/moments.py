"""Dates and times: a position in a declared range, and parts that come again every week or year.

cell                                    what it becomes
======================================  ===========================================================================
2024-03-31, 2024-03-31 14:30            read as ISO 8601; by ``format`` if one is declared, as strptime does
with an offset, 14:30+02:00 or Z        brought to UTC
before ``low``, after ``high``          clamped; an error with ``outside = "refuse"``. Its parts stay its own
empty, or a text of ``missing``         an error, unless ``missing`` is declared: a mark of its own
anything else                           an error
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date, datetime, timezone
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from adadp.app.owndata.columns import BINS, BadCell, Column, Features, Floats, place_number, position, read_once
from adadp.errors import InputError

PARTS = {"month": 12, "day": 31, "weekday": 7, "hour": 24}
"""Part of a date or time -> how many values it has."""
USUAL = ("month", "weekday")
_EPOCH = datetime(1970, 1, 1)
_SLACK = 1e-4
"""Added before a phase is rounded down, so that its first moment is not lost to the rounding of float32."""


@final
@dataclass(frozen=True)
class Moment(Column):
    """A date or time in [low, high], as ISO 8601: its position in bins, and of each part its phase and a slot."""

    low: str
    high: str
    missing: tuple[str, ...] = ()
    parts: tuple[str, ...] = USUAL
    bins: tuple[int, ...] = BINS
    format: str | None = None
    strict: bool = False

    def __post_init__(self) -> None:
        ends = [_seconds(end, None) for end in (self.low, self.high)]
        if any(map(math.isnan, ends)) or not ends[0] < ends[1]:
            raise InputError(
                f"low must be a date before high, got low={self.low} and high={self.high}.",
                why="Dates are clamped to them.",
                fix="Write low = 2000-01-01 and high = 2030-12-31, what is plausible by public knowledge.",
            )

    @property
    def kept(self) -> int:
        return 1 + len(self.parts)

    @property
    def width(self) -> int:
        return 1 + sum(self.bins) + sum(2 + PARTS[part] for part in self.parts) + bool(self.missing)

    def parse(self, cells: Sequence[str]) -> Floats:
        low, high = _seconds(self.low, None), _seconds(self.high, None)
        found = read_once(cells, self._read, 1 + self.kept)
        seconds, gone = found[:, 1], found[:, 0] > 0
        for wrong, what, fix in (
            (
                np.isnan(seconds) & ~gone,
                "is no date",
                'Write it as 2024-03-31 or 2024-03-31 14:30, declare its form (format = "%d.%m.%Y"), or declare '
                "missing = true, or a list of texts.",
            ),
            (
                ((seconds < low) | (seconds > high)) & self.strict,
                "lies outside of the declared range",
                'Correct the cell, or take outside = "refuse" out of the schema, so that such dates are clamped.',
            ),
        ):
            if wrong.any():
                raise BadCell(int(wrong.argmax()), what, fix)
        return np.concatenate([position(seconds, low, high)[:, None], found[:, 2:]], axis=1)

    def _read(self, text: str) -> Floats:
        """Whether ``text`` is a missing value, its seconds, and the phases of its parts."""
        moment = None if text in self.missing else _moment(text, self.format)
        if moment is None:
            return np.array([text in self.missing, *[math.nan] * self.kept], dtype=np.float64)
        day = (moment - moment.replace(hour=0, minute=0, second=0, microsecond=0)).total_seconds() / 86_400
        phases = {
            "month": (moment.month - 1 + (moment.day - 1) / 31) / 12,
            "day": (moment.day - 1) / 31,
            "weekday": (moment.weekday() + day) / 7,
            "hour": day,
        }
        return np.array([0, (moment - _EPOCH).total_seconds(), *(phases[part] for part in self.parts)])

    def expand(self, parsed: NDArray[Any], out: Features) -> None:
        start = 1 + sum(self.bins)
        place_number(parsed[:, 0], out[:, :start], self.bins)
        there = np.flatnonzero(~np.isnan(parsed[:, 0]))
        for number, part in enumerate(self.parts, start=1):
            phase, count = parsed[there, number], PARTS[part]
            out[there, start], out[there, start + 1] = np.sin(2 * np.pi * phase), np.cos(2 * np.pi * phase)
            out[there, start + 2 + np.minimum((phase * count + _SLACK).astype(np.int64), count - 1)] = 1
            start += 2 + count
        if self.missing:
            out[:, -1] = np.isnan(parsed[:, 0])

    def as_dict(self) -> dict[str, Any]:
        return {
            **{"kind": "date", "low": self.low, "high": self.high, "parts": list(self.parts), "bins": list(self.bins)},
            **({} if self.format is None else {"format": self.format}),
            **({"outside": "refuse"} if self.strict else {}),
            **({"missing": list(self.missing)} if self.missing else {}),
        }

    def describe(self) -> str:
        parts = f", with its {', '.join(self.parts)}" if self.parts else ""
        return (
            f"a date, {'refused outside of' if self.strict else 'clamped to'} [{self.low}, {self.high}]{parts}"
            f"{', with a mark for a missing value' if self.missing else ''}"
        )


def as_text(value: object) -> str:
    """A date as TOML has it, or as text."""
    return value.isoformat() if isinstance(value, date) else str(value)


def _moment(text: str, form: str | None) -> datetime | None:
    try:
        found = datetime.strptime(text, form) if form else datetime.fromisoformat(text.replace("Z", "+00:00"))
        return found if found.tzinfo is None else found.astimezone(timezone.utc).replace(tzinfo=None)
    except (ValueError, OverflowError):
        return None


def _seconds(text: str, form: str | None) -> float:
    found = _moment(text, form)
    return math.nan if found is None else (found - _EPOCH).total_seconds()
