"""How far a run is from a target, cheaply: for searches that look again."""

from __future__ import annotations

import math

import numpy as np

from adadp.accounting.base import Accountant, Bracket
from adadp.accounting.composition import Composition
from adadp.accounting.contour import contour_curve, saddle_point
from adadp.accounting.dominating import compositions
from adadp.accounting.pld import IGNORED, PldAccountant, composed, sharper
from adadp.events import Event, flatten

_LEAST = 1e-300
"""Where the logarithm of a bound on delta ends."""


def excess(accountant: Accountant, event: Event, delta: float, target: float, *, rough: bool) -> float:
    """An estimate that grows with epsilon, and is 0 where that is ``target``.

    For ``pld`` it is the log of delta(target) / delta, which is nearly linear in log sigma where log epsilon is not.
    ``rough`` is cheaper, and may be off by a factor.
    """
    if not isinstance(accountant, PldAccountant) or sharper(flatten(event)):
        return math.log(max(accountant.epsilon(event, delta).epsilon, _LEAST) / target)

    def question(counts: dict[Event, int]) -> Bracket:
        first = compositions(accountant.name, counts, IGNORED * delta)[0]
        if first.releases <= 1 or not first.families:
            found = math.log(max(accountant.epsilon(composed(counts), delta).epsilon, _LEAST) / target)
        else:
            found = _log_delta(first, target, delta, rough) - math.log(delta)
        return Bracket(found, found)

    return accountant.ask(event, question, math.inf).high


def _log_delta(composition: Composition, epsilon: float, guess: float, rough: bool) -> float:
    """An estimate of log delta(epsilon), by one cheap line or by the saddle-point approximation of all but jumps."""
    near = composition.around(epsilon, guess)
    theta = saddle_point(near, epsilon=epsilon)
    if not rough:
        low, high = contour_curve(near, theta, epsilon, guess, rough=True).bounds(epsilon)
        return math.log(max(math.sqrt(low * high) if low > 0 else high, _LEAST))
    value, _, second = near.cumulants(theta)
    spread = second + 1 / theta**2 + 1 / (theta + 1) ** 2
    log_size = value - theta * epsilon - math.log(theta * (theta + 1)) - 0.5 * math.log(2 * math.pi * spread)
    return float(np.logaddexp(log_size, math.log(max(near.jumped(epsilon)[0], _LEAST))))
