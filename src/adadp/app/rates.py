"""Ranges of learning rates and weight decays."""

from __future__ import annotations

from adadp import checks
from adadp.errors import InputError

SMALLEST_RATE, LARGEST_RATE = 1e-12, 1e6
"""Range of a learning rate; a weight decay may be 0, and at most the same."""


def learning_rate(name: str, value: object) -> float:
    """A learning rate: at least ``SMALLEST_RATE``, at most ``LARGEST_RATE``."""
    number = checks.positive(name, value, why="At 0 no parameter would move.")
    if not SMALLEST_RATE <= number <= LARGEST_RATE:
        raise InputError(
            f"`{name}` must lie between {SMALLEST_RATE:g} and {LARGEST_RATE:g}, got {number:g}.",
            why="With less no parameter would move by more than its rounding; with more the parameters would leave the "
            "range of floating point, and the budget would be spent on nothing.",
            fix=f"Pass `{name}` in that range; 0.001 to 10 is usual.",
        )
    return number


def weight_decay(name: str, value: object) -> float:
    """A weight decay: not negative, at most ``LARGEST_RATE``."""
    number = checks.non_negative(name, value)
    if number > LARGEST_RATE:
        raise InputError(
            f"`{name}` must be at most {LARGEST_RATE:g}, got {number:g}.",
            why="The parameters would leave the range of floating point, and the budget would be spent on nothing.",
            fix=f"Pass a smaller `{name}`; 1e-6 to 0.1 is usual.",
        )
    return number
