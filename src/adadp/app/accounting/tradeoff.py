"""What an attacker can reach at best: the trade-off between false alarms and misses, and the mu of Gaussian DP.

An attacker tells two neighbouring data sets apart by what was released. Write a for the rate of false alarms and b for
the rate of misses. Every pair with delta(epsilon) <= delta bounds every attack, in both orders of the data sets:

    b >= 1 - delta - e^epsilon a        b >= e^-epsilon (1 - delta - a)

(Wasserman and Zhou 2010; Kairouz, Oh and Viswanath 2015; Dong, Roth and Su 2022). The largest of these lines, over any
set of pairs, is a convex curve f, below which no attack lies. It is made of pairs at many epsilon: upper ends of the
brackets of the privacy curve, as ``pld`` computes it. So few pairs make f looser, not false.

*mu.* A release of mu-GDP has the curve G(a) = Phi(Phi^-1(1 - a) - mu). Subsampled releases have no small mu for which
f >= G everywhere: at vanishing false alarms, runs count in which a record was drawn every time. ``mu`` is the smallest
number with f >= G wherever both rates are at least ``LEAST``. On a line of f the difference G - f is convex, so it is
largest at an end of the line: checking the corners of f checks all of it. Since f falls, for every a

    f(a) >= f(a + LEAST) >= G(a + LEAST) - LEAST:

the run is mu-GDP up to 1e-6 in either rate. ``regret`` is the least r with f(a + r) - r <= G(a) for all a (the distance
of Kaissis et al. 2024, by which Gomez et al. 2025, arXiv 2503.10945, judge the fit): how much is lost by knowing mu in
place of the curve.

    nothing released                 f(a) = 1 - a, mu 0
    Gaussian releases of all data    f = G exactly, mu = sqrt(sum of 1 / sigma^2)
    events without a privacy curve   the line of (epsilon, delta) alone
    so little that f(LEAST) < LEAST  mu = 9.51, which says nothing
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr, ndtri

from adadp.accounting import rounded_up
from adadp.accounting.base import placements
from adadp.accounting.composition import Composition
from adadp.accounting.contour import contour_curve, direct_curve, saddle_point
from adadp.accounting.dominating import compositions
from adadp.accounting.pld import IGNORED
from adadp.errors import AccountingError
from adadp.events import Event, is_silent

Array = NDArray[np.float64]
Bound = Callable[[float], float]

LEAST = 1e-6
"""Rates of errors below this are not what mu speaks of."""
FALSE_ALARMS = (1e-3, 1e-2, 5e-2)
"""The rates at which a certificate says what an attacker reaches."""
_LINES = (3e-2, LEAST / 10)
"""The deltas near which the privacy curve is computed; between and around them its bounds stay tight."""
_STEPS = 160
"""Pairs that are taken from the curve."""
_MOST_CASES = 32
"""Of more placements of a record in parts of the data the curves are not computed."""
_LARGEST = 700.0
"""The largest epsilon whose exponential is a number."""
_ROOM = 1e-9
"""Beyond what floating point can be off by in the corners of the curve, relatively."""


@dataclass(frozen=True)
class TradeOff:
    """The corners of a convex curve below which no attack lies, from no false alarms to no misses.

    ``gaussian`` is the mu of a curve that is exactly Gaussian. ``by_curve``: it was made from the whole privacy curve,
    and not from one (epsilon, delta).
    """

    alarms: Array
    misses: Array
    gaussian: float | None = None
    by_curve: bool = True

    @classmethod
    def of_nothing(cls) -> TradeOff:
        """Where nothing was released, attackers can only guess."""
        return cls(np.array([0.0, 1.0]), np.array([1.0, 0.0]), gaussian=0.0)

    def detected(self, false_alarms: float) -> float:
        """How often, at most, an attack finds its record if it raises ``false_alarms``."""
        if self.gaussian is not None:
            return float(ndtr(ndtri(false_alarms) + self.gaussian)) if self.gaussian > 0 else false_alarms
        return min(1.0, (1 - float(np.interp(false_alarms, self.alarms, self.misses))) * (1 + _ROOM))

    @property
    def mu(self) -> float:
        """The mu of Gaussian DP, valid up to ``LEAST`` in either rate."""
        if self.gaussian is not None:
            return self.gaussian
        alarms = np.append(self.alarms, LEAST)
        misses = np.interp(alarms, self.alarms, self.misses)
        within = (alarms >= LEAST) & (misses >= LEAST)
        needed = -ndtri(alarms[within]) - ndtri(misses[within])
        return (
            max(0.0, float(needed.max(initial=-math.inf))) * (1 + _ROOM) if within.any() else -2 * float(ndtri(LEAST))
        )

    @property
    def regret(self) -> float:
        """How far the curve of ``mu`` is from this one, on a grid of rates."""
        if self.gaussian is not None:
            return 0.0
        alarms = ndtr(np.linspace(-8.0, 8.0, 2001))
        of_mu = ndtr(ndtri(1 - alarms) - self.mu)
        low, high = np.zeros_like(alarms), np.ones_like(alarms)
        for _ in range(30):
            middle = (low + high) / 2
            near = np.interp(np.minimum(alarms + middle, 1.0), self.alarms, self.misses) - middle <= of_mu
            low, high = np.where(near, low, middle), np.where(near, middle, high)
        return float(high.max())

    def stated(self) -> dict[str, Any]:
        """The figures as JSON, each rounded to the safe side."""
        detected = {f"{rate:g}": min(1.0, _up(self.detected(rate))) for rate in FALSE_ALARMS}
        return {"mu": _up(self.mu), "up_to": LEAST, "regret": _up(self.regret), "detected": detected}


def trade_off(event: Event | None, epsilon: float, delta: float) -> TradeOff:
    """The trade-off of ``event``, of which (``epsilon``, ``delta``) is proved too.

    ``event`` must have been fixed in advance. ``None`` is one of which nothing but that pair is known.
    """
    curve: list[tuple[float, float]] = []
    if event is not None:
        if is_silent(event):
            return TradeOff.of_nothing()
        try:
            found = _compositions(event)
            if found and not any(each.families for each in found):
                return gaussian(math.sqrt(max(each.precision for each in found)))
            curve = _pairs(found)
        except (AccountingError, ArithmeticError, ValueError):
            curve = []  # the pair is proved all the same
    return TradeOff(*_envelope([*curve, (epsilon, delta)]), by_curve=bool(curve))


def gaussian(mu: float) -> TradeOff:
    """The trade-off of mu-GDP itself."""
    alarms = ndtr(np.linspace(-8.0, 8.0, 401))
    return TradeOff(alarms, ndtr(ndtri(1 - alarms) - mu), gaussian=mu)


def _up(value: float) -> float:
    return float(rounded_up(value, 6))


def _compositions(event: Event) -> list[Composition]:
    """Both orders of the data sets, in every place that a record can have."""
    found: list[Composition] = []
    for cases, counts in enumerate(placements(event), start=1):
        if cases > _MOST_CASES:
            raise AccountingError("A record can be in too many places.")
        found += [each for each in compositions("pld", counts, IGNORED * LEAST) if each.releases > 0]
    return found


def _pairs(found: list[Composition]) -> list[tuple[float, float]]:
    """Pairs (epsilon, delta) of the privacy curve, from epsilon 0 to where delta is far below ``LEAST``."""
    bounds = [_bounds(each) for each in found]

    def delta(epsilon: float) -> float:
        return max(min(bound(epsilon) for bound in each) for each in bounds)

    reach = 0.01
    while delta(reach) > LEAST / 100 and reach < _LARGEST:
        reach *= 1.3
    return [(epsilon, delta(epsilon)) for epsilon in np.linspace(0.0, min(reach, _LARGEST), _STEPS).tolist()]


def _bounds(composition: Composition) -> list[Bound]:
    """Upper bounds on delta(epsilon), each tight somewhere and true everywhere."""
    if (direct := direct_curve(composition)) is not None:
        return [direct.upper]
    found: list[Bound] = []
    for wanted in _LINES:
        delta = min(wanted, composition.variation / 3)
        theta = saddle_point(composition, log_delta=math.log(delta))
        epsilon = max(composition.cumulants(theta)[1] - 1 / theta - 1 / (theta + 1), 0.0)
        near = composition.around(epsilon, delta)
        theta = saddle_point(near, epsilon=epsilon, near=theta)
        found.append(contour_curve(near, theta, epsilon, delta / 100).upper)
    return found


def _envelope(pairs: list[tuple[float, float]]) -> tuple[Array, Array]:
    """The corners of the largest of all lines of ``pairs``, and of 0."""
    lines = [(0.0, 0.0)]
    for epsilon, delta in pairs:
        if epsilon <= _LARGEST and delta < 1:
            power = math.exp(epsilon)
            lines += [(-power, 1 - delta), (-1 / power, (1 - delta) / power)]
    hull: list[tuple[float, float]] = []
    for slope, height in sorted(lines, key=lambda line: (line[0], -line[1])):
        if hull and hull[-1][0] == slope:
            continue
        while hull and (_meet(hull[-1], (slope, height)) <= (_meet(*hull[-2:]) if len(hull) > 1 else 0.0)):
            hull.pop()
        hull.append((slope, height))
    alarms = np.array([0.0, *(_meet(one, two) for one, two in pairwise(hull)), 1.0])
    misses = np.array([max(slope * at + height for slope, height in hull) for at in alarms.tolist()])
    return alarms, np.maximum(misses, 0.0)


def _meet(one: tuple[float, float], two: tuple[float, float]) -> float:
    """Where two lines (slope, height) meet."""
    return (one[1] - two[1]) / (two[0] - one[0])
