"""How much noise the runs of a search need, so that publishing the best of them meets a target."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from adadp.app.accounting.best_of import BestOf
from adadp.app.accounting.calibrate import smallest_noise
from adadp.app.accounting.renyi import RdpAccountant
from adadp.app.accounting.repetitions import Repetitions
from adadp.errors import InputError
from adadp.events import Event, compose


def noise_for_search(
    make_events: Sequence[Callable[[float], Event]],
    repetitions: Repetitions,
    *,
    epsilon: float,
    delta: float,
    beside: Event | None = None,
) -> tuple[float, ...]:
    """A noise scale x_j for every candidate, for which the best of all is (epsilon, delta)-DP by ``rdp``.

    x_j is the smallest for which a search over candidate j alone meets the target. All together may cost a little more,
    since each candidate alone used the Renyi order that suits it best: then every x_j is raised by the same factor.
    ``make_events[j](x)`` is one whole run; ``beside`` is what is released once at a fixed cost.
    """
    if not make_events:
        raise InputError("A search needs at least one candidate.", fix="Pass one function per setting.")
    rdp = RdpAccountant()

    def alone(make: Callable[[float], Event]) -> float:
        return smallest_noise(
            lambda x: BestOf((make(x),), repetitions), epsilon=epsilon, delta=delta, accountant=rdp, beside=beside
        ).value

    scales = [alone(make) for make in make_events]

    def cost(factor: float) -> float:
        search = BestOf(tuple(make(factor * x) for make, x in zip(make_events, scales, strict=True)), repetitions)
        return rdp.epsilon(search if beside is None else compose(search, beside), delta).epsilon

    factor = _common_factor(cost, epsilon)
    return tuple(factor * scale for scale in scales)


def _common_factor(cost: Callable[[float], float], epsilon: float) -> float:
    """A factor >= 1 with a cost of at most ``epsilon``, and hardly less unless the factor is 1.

    log cost is close to linear in log factor, so each side of the target tells where it is; the upper end is returned.
    """
    low = high = 1.0
    at_low = at_high = cost(1.0)
    power = 1.0
    while at_high > epsilon:  # the cost falls about as fast as the noise grows, or faster; if not, the steps grow
        low, at_low = high, at_high
        high *= (at_high / epsilon) ** power
        at_high, power = cost(high), 2 * power
    for _ in range(_REFINEMENTS):
        if high == 1 or at_high >= _CLOSE * epsilon:
            break
        share = math.log(at_low / (_MIDDLE * epsilon)) / math.log(at_low / at_high)
        middle = low * (high / low) ** share
        if (at_middle := cost(middle)) > epsilon:
            low, at_low = middle, at_middle
        else:
            high, at_high = middle, at_middle
    return high


_REFINEMENTS = 6
_CLOSE, _MIDDLE = 0.999, 0.9995
"""A cost this close below the target is good enough, and what is aimed at."""
