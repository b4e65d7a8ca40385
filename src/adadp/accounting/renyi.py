"""Renyi differential privacy: log moments of the privacy loss add over releases and turn into (epsilon, delta).

The moment of order theta = alpha - 1 of a composition is K(theta) = log E_P[e^(theta L)] = (alpha - 1) RDP(alpha), the
larger of the two orders of the data sets. It is computed by quadrature at any real order (``losses``), which for the
Poisson-sampled Gaussian is the exact value (Mironov, Talwar, Zhang, "Renyi differential privacy of the sampled Gaussian
mechanism", 2019), and for fixed-size lots that of the dominating pair.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from adadp.accounting.answer import Status
from adadp.accounting.base import Accountant, Bracket
from adadp.accounting.dominating import compositions
from adadp.events import Event, Selection, SelectionMechanism, ZcdpCost

LogMoment = Callable[[float], float]

_ORDERS = [math.exp(0.25 * k) for k in range(-44, 50)]
"""theta = alpha - 1 from 2e-5 to 2e5: where the search for the best order starts."""


def log_moment(accountant: str, counts: dict[Event, int]) -> LogMoment:
    """The function theta -> K(theta) of the events in ``counts``, an upper bound at every theta > 0.

    zCDP costs have K = rho theta (theta + 1). A selection by the exponential mechanism has a bounded range and so costs
    epsilon^2/8 zCDP (Cesar and Rogers 2021); of others only pure DP is used, whose worst case is randomised response.
    """
    rho = 0.0
    ranged: list[tuple[float, int]] = []
    paired: dict[Event, int] = {}
    for event, count in counts.items():
        if isinstance(event, ZcdpCost):
            rho += count * event.rho
        elif isinstance(event, Selection) and event.mechanism is SelectionMechanism.EXPONENTIAL:
            ranged.append((event.epsilon, count))
        else:
            paired[event] = count
    parts = compositions(accountant, paired) if paired else []
    rounding = 1e-14 * sum(paired.values())  # of the quadrature, on the safe side

    def moment(theta: float) -> float:
        own = max((part.cumulants(theta)[0] for part in parts), default=0.0)
        order = theta * (theta + 1)
        # An epsilon-DP selection never has a loss above epsilon, so its moment is at most theta epsilon.
        chosen = sum(count * min(order * epsilon**2 / 8, theta * epsilon) for epsilon, count in ranged)
        return max(own, 0.0) + rounding + rho * order + chosen

    return moment


def minimise(value: Callable[[float], float], orders: list[float]) -> tuple[float, float]:
    """The least of ``value`` over the positive reals and where: over ``orders`` first, then between the neighbours.

    Any order gives a valid bound, so a minimum that is missed costs tightness, never truth.
    """
    values: list[float] = []
    for order in orders:
        values.append(value(order))
        if len(values) > 8 and values[-1] > 4 * abs(min(values)) + 1:
            break  # past the minimum: high orders of little noise are costly and hopeless
    best = min(range(len(values)), key=values.__getitem__)
    low, high = math.log(orders[max(best - 1, 0)]), math.log(orders[min(best + 1, len(values) - 1)])
    found = (values[best], orders[best])
    golden = (math.sqrt(5) - 1) / 2
    left, right = high - golden * (high - low), low + golden * (high - low)
    at_left, at_right = value(math.exp(left)), value(math.exp(right))
    for _ in range(20):
        found = min(found, (at_left, math.exp(left)), (at_right, math.exp(right)))
        if at_left < at_right:
            high, right, at_right = right, left, at_left
            left = high - golden * (high - low)
            at_left = value(math.exp(left))
        else:
            low, left, at_left = left, right, at_right
            right = low + golden * (high - low)
            at_right = value(math.exp(right))
    return found


def conversion(theta: float) -> float:
    """The log of theta^theta / (1 + theta)^(1 + theta), the most e^(-theta u) (1 - e^(-u)) can be.

    With it delta <= e^(K(theta) - theta epsilon + conversion(theta)): the conversion of Canonne, Kamath and Steinke
    2020, always below the classic one without it.
    """
    return theta * math.log(theta) - (1 + theta) * math.log1p(theta)


class RdpAccountant(Accountant):
    """Renyi DP at the best real order: additive, so it also serves filters; a little above ``pld``."""

    name = "rdp"
    status = Status.PROVED

    def _epsilon(self, counts: dict[Event, int], delta: float) -> Bracket:
        moment = log_moment(self.name, counts)
        log_delta = math.log(delta)
        least, theta = minimise(lambda t: (moment(t) + conversion(t) - log_delta) / t, _ORDERS)
        value = max(least, 0.0)
        return Bracket(value, value, f"order alpha = {theta + 1:.4g}")

    def _delta(self, counts: dict[Event, int], epsilon: float) -> Bracket:
        moment = log_moment(self.name, counts)
        least, theta = minimise(lambda t: moment(t) + conversion(t) - t * epsilon, _ORDERS)
        value = math.exp(min(least, 0.0))
        return Bracket(value, value, f"order alpha = {theta + 1:.4g}")


class MomentsAccountant(Accountant):
    """The moments accountant of Abadi et al. 2016: whole orders lambda <= 32 and the tail bound of its Theorem 2."""

    name = "moments"
    status = Status.PROVED

    def _epsilon(self, counts: dict[Event, int], delta: float) -> Bracket:
        moment = log_moment(self.name, counts)
        value, order = min(((moment(order) - math.log(delta)) / order, order) for order in range(1, 33))
        return Bracket(value, value, f"lambda = {order}")

    def _delta(self, counts: dict[Event, int], epsilon: float) -> Bracket:
        moment = log_moment(self.name, counts)
        least, order = min((moment(order) - order * epsilon, order) for order in range(1, 33))
        value = math.exp(min(least, 0.0))
        return Bracket(value, value, f"lambda = {order}")
