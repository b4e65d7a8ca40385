"""One column's declaration in a schema, from its keys to a ``Column``; what is wrong with it is named."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import Any

from adadp import checks
from adadp.app.owndata.columns import Category, Column, Hashed, Ignored, Number
from adadp.errors import InputError, within

LARGEST_BUCKETS = 65_536

_COLUMN_KEYS = {
    "number": ("kind", "low", "high", "bounds", "missing"),
    "category": ("kind", "values", "buckets", "missing"),
    "ignore": ("kind",),
}
_KINDS = 'Write kind = "number" with low and high, kind = "category" with values or buckets, or kind = "ignore".'


def parse_column(name: str, values: object) -> Column:
    """The column ``name``; an error inside says which column it is."""
    with within(f"Column {name!r}"):
        return _column(values)


def _column(values: object) -> Column:
    if not isinstance(values, Mapping) or "kind" not in values:
        raise InputError("it has no kind.", why="What a cell becomes must be declared, not guessed.", fix=_KINDS)
    kind = values["kind"]
    if kind not in _COLUMN_KEYS:
        raise InputError(f"unknown kind {kind!r}.", fix=_KINDS)
    refuse_unknown("the column", values, _COLUMN_KEYS[kind])
    if kind == "ignore":
        return Ignored()
    missing = _missing(values.get("missing", False))
    if kind == "number":
        return _number(values, missing)
    if ("values" in values) == ("buckets" in values):
        raise InputError("a category needs values or buckets, and not both.", fix='Write values = ["a", "b"].')
    if "values" in values:
        return Category(different_texts("values", values["values"]), missing or ("",))
    buckets = checks.count("buckets", values["buckets"])
    if buckets > LARGEST_BUCKETS:
        raise InputError(f"buckets must be at most {LARGEST_BUCKETS}, got {buckets}.", why="Each is a feature.")
    return Hashed(buckets, missing or ("",))


def _number(values: Mapping[str, Any], missing: tuple[str, ...]) -> Number:
    if "bounds" in values:
        if values["bounds"] != "private" or "low" in values or "high" in values:
            raise InputError(
                'a number has low and high, or bounds = "private".', fix="Keep the one of the two that is meant."
            )
        return Number(missing=missing)
    if "low" not in values or "high" not in values:
        raise InputError(
            "a number needs low and high.",
            why="Taken from the data they would be a release.",
            fix='Write low = 0 and high = 100 from public knowledge, or bounds = "private" to release them privately.',
        )
    return Number(_finite("low", values["low"]), _finite("high", values["high"]), missing)


def _finite(name: str, value: object) -> float:
    """``value`` as a float of either sign."""
    if isinstance(value, int | float) and value < 0:
        return -checks.positive(name, -value)
    return checks.non_negative(name, value)


def _missing(value: object) -> tuple[str, ...]:
    """The texts that mean a missing value: none, the empty one, or the listed ones and the empty one."""
    if isinstance(value, bool):
        return ("",) if value else ()
    listed = [text for text in value if text != ""] if isinstance(value, list) else value
    return ("", *(different_texts("missing", listed) if listed != [] else ()))


def different_texts(name: str, values: object) -> tuple[str, ...]:
    """A list of different texts, none of them empty or with spaces around it; a whole number becomes its text."""
    if not isinstance(values, list | tuple) or not values:
        raise InputError(f"{name} must be a list of texts, got {values!r}.", fix=f'Write {name} = ["a", "b"].')
    texts: list[str] = []
    for value in values:
        if isinstance(value, bool) or not isinstance(value, int | str):
            raise InputError(f"{value!r} in {name} is not a text.", fix=f'Write it in quotes: "{value}".')
        text = str(value)
        if text != text.strip() or not text:
            raise InputError(
                f"{text!r} in {name} is empty or has spaces around it.",
                why="Cells are compared without those, and an empty cell is always a missing one.",
                fix="Write the text alone.",
            )
        if text in texts:
            raise InputError(f"{text!r} is twice in {name}.", fix="Write it once.")
        texts.append(text)
    return tuple(texts)


def refuse_unknown(where: str, values: Mapping[str, Any], keys: tuple[str, ...]) -> None:
    """An error for the first key of ``values`` that is none of ``keys``, with the nearest that is."""
    for key in values:
        if key not in keys:
            near = difflib.get_close_matches(key, keys, n=1)
            raise InputError(
                f"Unknown key {key!r} in {where}.",
                fix=f"Did you mean {near[0]}?" if near else f"It may have {', '.join(keys)}.",
            )
