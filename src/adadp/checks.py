"""Validation of scalars. Each check returns the value it was given, or says what was wrong, why and what to do."""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterable
from numbers import Integral, Real

from adadp.errors import InputError

LARGEST_INPUT, LARGEST_DECLARED = 1e6, 1e12
"""How large the numbers of a record may be if nothing is declared, and the largest range that may be declared."""


def _real(name: str, value: object, why: str) -> float:
    """``value`` as a finite float; booleans and strings are not numbers here."""
    if isinstance(value, bool) or not isinstance(value, Real):
        raise InputError(
            f"`{name}` must be a number, got {value!r} ({type(value).__name__}).",
            why=why,
            fix=f"Pass `{name}` as a float.",
        )
    try:
        number = float(value)
    except OverflowError:
        number = -math.inf if value < 0 else math.inf
    if not math.isfinite(number):
        raise InputError(f"`{name}` must be finite, got {number}.", why=why, fix=f"Pass a finite `{name}`.")
    return number


def positive(name: str, value: object, *, why: str = "") -> float:
    """A finite number above zero."""
    number = _real(name, value, why)
    if number <= 0:
        raise InputError(f"`{name}` must be greater than 0, got {number:g}.", why=why, fix=f"Pass `{name}` > 0.")
    return number


def non_negative(name: str, value: object, *, why: str = "") -> float:
    """A finite number of at least zero."""
    number = _real(name, value, why)
    if number < 0:
        raise InputError(f"`{name}` must not be negative, got {number:g}.", why=why, fix=f"Pass `{name}` >= 0.")
    return number


def probability(name: str, value: object, *, why: str = "") -> float:
    """A number in [0, 1]."""
    number = _real(name, value, why)
    if not 0 <= number <= 1:
        raise InputError(
            f"`{name}` must lie in [0, 1], got {number:g}.", why=why, fix=f"Pass `{name}` between 0 and 1."
        )
    return number


def delta(value: object) -> float:
    """The delta of an (epsilon, delta) guarantee: strictly between 0 and 1."""
    why = "delta is the probability mass the guarantee gives up; at 1 or more nothing is promised."
    number = _real("delta", value, why)
    if not 2.3e-308 <= number < 1:  # numbers below that have few digits, or none
        raise InputError(
            f"`delta` must lie strictly between 0 and 1, got {number:g}.",
            why=why,
            fix="Pass a `delta` well below 1/N, for example 1e-5.",
        )
    return number


def input_bound(value: object) -> tuple[float, float]:
    """The range that the numbers of a record are brought into: B for [-B, B], a pair, or either as text ("0,255")."""
    why = "The numbers of every record are brought into this range before the model sees them."
    fix = "Pass a number B, which stands for -B to B, or low and high, such as 0,255."
    parts = value.split(",") if isinstance(value, str) else value
    if not isinstance(parts, (list, tuple)):
        parts = [parts]
    try:
        numbers = [float(part) if isinstance(part, str) else _real("input_bound", part, why) for part in parts]
    except ValueError:
        raise InputError(f"`input_bound` is {value!r}, which is not one or two numbers.", why=why, fix=fix) from None
    low, high = (-numbers[0], numbers[0]) if len(numbers) == 1 else numbers if len(numbers) == 2 else (1.0, 0.0)
    if not -LARGEST_DECLARED <= low < high <= LARGEST_DECLARED:
        raise InputError(
            f"`input_bound` is {value!r}, which is no range with low < high inside of {LARGEST_DECLARED:g}.",
            why=why,
            fix=fix,
        )
    return low, high


def count(name: str, value: object, *, minimum: int = 1, why: str = "") -> int:
    """A whole number of at least ``minimum``; 3.0 is accepted as 3, 3.5 is not."""
    if isinstance(value, bool) or not isinstance(value, Real):
        raise InputError(
            f"`{name}` must be a whole number, got {value!r} ({type(value).__name__}).",
            why=why,
            fix=f"Pass `{name}` as an int.",
        )
    real = value if isinstance(value, Integral) else _real(name, value, why)
    number = int(real)
    if number != real:
        raise InputError(f"`{name}` must be a whole number, got {value}.", why=why, fix=f"Round `{name}` yourself.")
    if number < minimum:
        raise InputError(
            f"`{name}` must be at least {minimum}, got {number}.", why=why, fix=f"Pass `{name}` >= {minimum}."
        )
    return number


def one_of(given: str, known: Iterable[str]) -> str:
    """What to do about a name that is not among ``known``: the one that was meant, if it can be guessed, or all."""
    names = list(known)
    near = difflib.get_close_matches(given, names, n=1)
    return f"Did you mean {near[0]}?" if near else f"Use one of: {', '.join(names)}."
