"""Bounds as people read them."""

from __future__ import annotations

from decimal import ROUND_CEILING, Context


def rounded_up(value: float, digits: int = 4) -> str:
    """A bound with ``digits`` digits, rounded up, so that what is written still holds. Infinity stays what it is."""
    rounded = Context(prec=digits, rounding=ROUND_CEILING).create_decimal(repr(value))
    return f"{float(rounded):.{digits}g}"
