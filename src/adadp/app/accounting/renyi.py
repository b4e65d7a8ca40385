"""Renyi differential privacy: log moments of the privacy loss add over releases and turn into (epsilon, delta).

The moment of order theta = alpha - 1 of a composition is K(theta) = log E_P[e^(theta L)] = (alpha - 1) RDP(alpha), the
larger of the two orders of the data sets. It is computed by quadrature at any real order, which for the Poisson-sampled
Gaussian is the exact value (Mironov, Talwar, Zhang, "Renyi differential privacy of the sampled Gaussian mechanism",
2019), and for fixed-size batches that of the dominating pair.
"""

from __future__ import annotations

import math

from adadp.accounting.answer import Status
from adadp.accounting.base import Accountant, Bracket
from adadp.accounting.dominating import compositions
from adadp.app.accounting.bounded_range import ranged_batch, ranged_moment
from adadp.app.accounting.orders import ORDERS, LogMoment, conversion, minimise
from adadp.events import Event, OtherEvent, Selection, SelectionMechanism, ZcdpCost


def log_moment(accountant: str, counts: dict[Event, int]) -> LogMoment:
    """The function theta -> K(theta) of the events in ``counts``, an upper bound at every theta > 0.

    zCDP costs have K = rho theta (theta + 1). A selection by the exponential mechanism has a bounded range and so costs
    epsilon^2/8 zCDP (Cesar and Rogers 2021); of others only pure DP is used, whose worst case is randomised response.
    So it is on a Poisson batch, where the range of one such selection is used too (``bounded_range``). Events of other
    packages bring their moment.
    """
    rho = 0.0
    ranged: list[tuple[float, int]] = []
    bounded: list[tuple[LogMoment, int]] = []
    paired: dict[Event, int] = {}
    for event, count in counts.items():
        if isinstance(event, ZcdpCost):
            rho += count * event.rho
        elif isinstance(event, Selection) and event.mechanism is SelectionMechanism.EXPONENTIAL:
            ranged.append((event.epsilon, count))
        elif isinstance(event, OtherEvent):
            bounded.append((event.log_moment(accountant), count))
        elif (batch := ranged_batch(event)) is not None:
            bounded.append((ranged_moment(batch), count))
        else:
            paired[event] = count
    parts = compositions(accountant, paired) if paired else []
    rounding = 1e-14 * sum(paired.values())  # of the quadrature, on the safe side

    def moment(theta: float) -> float:
        own = max((part.cumulants(theta)[0] for part in parts), default=0.0)
        order = theta * (theta + 1)
        # An epsilon-DP selection never has a loss above epsilon, so its moment is at most theta epsilon.
        chosen = sum(count * min(order * epsilon**2 / 8, theta * epsilon) for epsilon, count in ranged)
        others = sum(count * bound(theta) for bound, count in bounded)
        return max(own, 0.0) + rounding + rho * order + chosen + others

    return moment


class RdpAccountant(Accountant):
    """Renyi DP at the best real order: additive, so it also serves filters; a little above ``pld``."""

    name = "rdp"
    status = Status.PROVED

    def sharper(self, counts: dict[Event, int]) -> bool:
        """Whether an exponential mechanism is in it, of whose bounded range the loss distribution does not know."""
        return any(
            (isinstance(event, Selection) and event.mechanism is SelectionMechanism.EXPONENTIAL)
            or ranged_batch(event) is not None
            for event in counts
        )

    def _epsilon(self, counts: dict[Event, int], delta: float) -> Bracket:
        moment = log_moment(self.name, counts)
        log_delta = math.log(delta)
        least, theta = minimise(lambda t: (moment(t) + conversion(t) - log_delta) / t, ORDERS)
        value = max(least, 0.0)
        return Bracket(value, value, f"order alpha = {theta + 1:.4g}")

    def _delta(self, counts: dict[Event, int], epsilon: float) -> Bracket:
        moment = log_moment(self.name, counts)
        least, theta = minimise(lambda t: moment(t) + conversion(t) - t * epsilon, ORDERS)
        value = math.exp(min(least, 0.0))
        return Bracket(value, value, f"order alpha = {theta + 1:.4g}")
