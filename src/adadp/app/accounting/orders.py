"""Renyi orders: where to look for the best one, and what turns a log moment into (epsilon, delta)."""

from __future__ import annotations

import math
from collections.abc import Callable

from scipy.optimize import minimize_scalar

LogMoment = Callable[[float], float]
"""theta -> log E_P[e^(theta L)] = (alpha - 1) RDP(alpha) with theta = alpha - 1, or an upper bound on it."""

ORDERS = [math.exp(0.25 * k) for k in range(-44, 50)]
"""theta = alpha - 1 from 2e-5 to 2e5: where the search for the best order starts."""


def minimise(value: Callable[[float], float], orders: list[float]) -> tuple[float, float]:
    """The least of ``value`` over the positive reals and where: every third of ``orders``, those around, then between.

    Any order gives a valid bound, so a minimum that is missed costs tightness, never truth. A Renyi bound on
    epsilon is a convex function of the order over a linear one, and one on log delta is convex: a single minimum.
    """
    known: dict[int, float] = {}
    for k in range(0, len(orders), 3):
        known[k] = value(orders[k])
        if k > 8 and known[k] > 4 * abs(min(known.values())) + 1:
            break  # past the minimum: high orders of little noise are costly and hopeless
    last, best = max(known), min(known, key=known.__getitem__)
    if last + 3 >= len(orders):
        last = len(orders) - 1
    for k in range(max(best - 2, 0), min(best + 2, last) + 1):
        known[k] = known[k] if k in known else value(orders[k])
    best = min(known, key=known.__getitem__)
    low, high = math.log(orders[max(best - 1, 0)]), math.log(orders[min(best + 1, last)])
    found = (known[best], orders[best])
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


def largest_moment(theta: float, epsilon: float, delta: float) -> float:
    """The largest log moment K(theta) with which *every* mechanism is (epsilon, delta)-DP.

    Theorem (Asoodeh et al. 2020, Theorem 3). It is the least, over p in (delta, 1] with q = (p - delta) e^-epsilon, of

        log[p^(1+theta) q^-theta + (1-p)^(1+theta) (1-q)^-theta],

    the log moment between two coins of probabilities p and q. Proof: were the mechanism not (epsilon, delta)-DP, some
    event would have p > delta + e^epsilon q; telling only whether it happened is post-processing, which lowers moments,
    and the moment of the coins falls as q grows towards p. Conversely the best two coins have this moment and reach
    delta, so nothing better is true of all mechanisms. Without the second term it is ``conversion``.

    The bracket is convex in p and its first term least at p - delta = theta delta; the second falls with p, so the
    minimum is not below. The search ends within 1e-10 of it, where the value is off by the square; 1e-12 is allowed.
    """

    def moment(log_excess: float) -> float:
        excess = math.exp(log_excess)
        p, q = excess + delta, excess * math.exp(-epsilon)
        both = (1 + theta) * math.log(p) - theta * (log_excess - epsilon)
        if p >= 1:
            return both
        neither = (1 + theta) * math.log1p(-p) - theta * math.log1p(-q)
        return max(both, neither) + math.log1p(math.exp(-abs(both - neither)))

    last = math.log1p(-delta)
    first = min(math.log(theta * delta), last)
    least = min(moment(first), moment(last))
    if first < last:
        inside = minimize_scalar(moment, bounds=(first, last), method="bounded", options={"xatol": 1e-10})
        least = min(least, float(inside.fun))
    return max(least - 1e-12 * (1 + least), 0.0)
