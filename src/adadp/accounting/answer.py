"""What an accountant answers, and a bound as people read it."""

from __future__ import annotations

from dataclasses import dataclass
from decimal import ROUND_CEILING, Context
from enum import Enum

from adadp.events import Neighbours


class Status(str, Enum):
    """How far an answer can be trusted.

    ``PROVED``: an upper bound on the privacy loss, by a theorem whose conditions the events meet. ``ESTIMATE``: no
    proof that it is a bound. ``AS_PUBLISHED``: the number a paper's formula gives, kept for comparison although the
    formula is not a bound for the mechanism it is printed for.
    """

    PROVED = "proved"
    ESTIMATE = "estimate"
    AS_PUBLISHED = "as-published"


@dataclass(frozen=True)
class Answer:
    """An (epsilon, delta) pair, with the bracket around whichever of the two was asked for.

    ``epsilon_low <= exact <= epsilon_high`` where *exact* is this accountant's own figure in exact arithmetic: for
    ``pld`` the true privacy curve of the dominating pair, for the others the value of their bound. ``epsilon`` (or
    ``delta``) is the safe end of the bracket. The one that was given has low = high = itself.
    """

    epsilon: float
    epsilon_low: float
    epsilon_high: float
    delta: float
    delta_low: float
    delta_high: float
    accountant: str
    status: Status
    neighbours: Neighbours | None
    """None when nothing was released."""
    note: str = ""
    """What else the reader must know, such as the order used or why the figure is no bound."""


def rounded_up(value: float, digits: int = 4) -> str:
    """A bound with ``digits`` digits, rounded up, so that what is written still holds. Infinity stays what it is."""
    rounded = Context(prec=digits, rounding=ROUND_CEILING).create_decimal(repr(value))
    return f"{float(rounded):.{digits}g}"
