"""Zero-concentrated differential privacy: one number, rho, that adds (Bun and Steinke 2016; Yu et al. 2019)."""

from __future__ import annotations

import math

from scipy.optimize import brentq

from adadp.accounting.answer import Status
from adadp.accounting.base import Accountant, Bracket
from adadp.accounting.dominating import gaussian_multiplier, moved, refuse_adaptive, refuse_other, sampling_rate
from adadp.app.accounting.orders import largest_moment, minimise
from adadp.errors import UnsupportedEvent
from adadp.events import (
    Event,
    FixedSizeSampled,
    GaussianRelease,
    Neighbours,
    OtherEvent,
    PoissonSampled,
    ReshuffledEpoch,
    Selection,
    SelectionMechanism,
    ZcdpCost,
    describe,
    flatten,
)


def rho_to_epsilon(rho: float, delta: float) -> float:
    """rho-zCDP is (rho + 2 sqrt(rho ln(1/delta)), delta)-DP (Bun and Steinke, Proposition 1.3)."""
    return rho + 2 * math.sqrt(rho * math.log(1 / delta))


def rho_to_delta(rho: float, epsilon: float) -> float:
    """The inverse: delta = exp(-(epsilon - rho)^2 / (4 rho)); nothing better than 1 is claimed for epsilon <= rho."""
    if rho == 0:
        return 0.0
    return math.exp(-((epsilon - rho) ** 2) / (4 * rho)) if epsilon > rho else 1.0


def largest_rho(epsilon: float, delta: float) -> float:
    """The largest rho for which *every* rho-zCDP mechanism is (epsilon, delta)-DP; up to 1e-9 less.

    rho-zCDP says K(theta) <= rho theta (theta + 1) at every theta > 0, and each order alone gives a valid bound:
    rho = sup over theta of ``largest_moment`` / (theta (theta + 1)). Two coins reach it: at the best order their
    moments are within rho theta (theta + 1) at all others too, so they are a rho-zCDP mechanism with this very delta
    (docs/accounting.md). The Gaussian release, of which more is known than its rho, has a smaller delta.
    """
    # The classic conversion has its best order at sqrt(log(1/delta) / rho); the optimal one is lower, or little higher.
    log = math.log(1 / delta)
    highest = math.log((math.sqrt(log + epsilon) + math.sqrt(log)) * math.sqrt(log) / epsilon) + 2
    orders = [math.exp(0.25 * k) for k in range(-20, math.ceil(4 * highest))]
    return -minimise(lambda theta: -largest_moment(theta, epsilon, delta) / (theta * (theta + 1)), orders)[0]


def smallest_epsilon(rho: float, delta: float) -> float:
    """The smallest epsilon, up to a relative 1e-9, for which every rho-zCDP mechanism is (epsilon, delta)-DP."""
    high = rho_to_epsilon(rho, delta)
    low = high
    while low > 1e-9 * high and largest_rho(low, delta) > rho:
        low /= 2
    if low == high or largest_rho(low, delta) > rho:
        return low
    found = float(brentq(lambda epsilon: largest_rho(epsilon, delta) - rho, low, high, xtol=1e-11 * high, rtol=1e-11))
    while largest_rho(found, delta) < rho:  # the root may lie on either side: end on the safe one
        found *= 1 + 1e-10
    return min(found, high)


def rho_of(accountant: str, event: Event) -> float:
    """The rho of one flattened event.

    Sampling does not amplify zCDP: a sampled release keeps the rho of the unsampled one (Yu et al. 2019, appendix C). A
    reshuffled epoch costs its most expensive batch (their Theorem 2).
    """
    if isinstance(event, GaussianRelease):
        ratio = moved(event) / event.noise_multiplier
        return ratio * ratio / 2
    if isinstance(event, ZcdpCost):
        return event.rho
    if isinstance(event, Selection):
        # The exponential mechanism has a bounded range (Cesar and Rogers 2021); pure DP alone gives Bun and Steinke's.
        return event.epsilon**2 / (8 if event.mechanism is SelectionMechanism.EXPONENTIAL else 2)
    if isinstance(event, (PoissonSampled, FixedSizeSampled)):
        q = sampling_rate(event)
        inner = sum(count * rho_of(accountant, part) for part, count in flatten(event.event).items())
        # Blanking out a record of a fixed-size batch also moves another record's share, so it costs like replacing one.
        fixed_zero_out = isinstance(event, FixedSizeSampled) and event.neighbours is Neighbours.ZERO_OUT and q < 1
        if fixed_zero_out and gaussian_multiplier(event.event) is None:
            raise UnsupportedEvent(
                f"{accountant} cannot account for {describe(event)}: "
                "only Gaussian releases on a fixed-size batch have a "
                "known worst case for zero-out neighbours."
            )
        return (4 if fixed_zero_out else 1) * inner if q > 0 else 0.0
    if isinstance(event, ReshuffledEpoch):
        return max(
            sum(count * rho_of(accountant, part) for part, count in flatten(batch).items()) for batch in event.batches
        )
    if isinstance(event, OtherEvent):
        refuse_other(accountant, event)
    return refuse_adaptive(accountant, event)


class ZcdpAccountant(Accountant):
    """Adds rho and converts once. Right for full-batch and reshuffled training; blind to amplification by sampling."""

    name = "zcdp"
    status = Status.PROVED

    def rho(self, counts: dict[Event, int]) -> float:
        """The summed rho of the flattened events: of those a record can be in, which is held out or is not."""
        found = {False: 0.0, True: 0.0}
        for held in found:
            mine = ((event, count) for event, count in counts.items() if getattr(event, "held_out", False) is held)
            found[held] = math.fsum(count * rho_of(self.name, event) for event, count in mine)
        return max(found.values())

    def _epsilon(self, counts: dict[Event, int], delta: float) -> Bracket:
        rho = self.rho(counts)
        value = rho_to_epsilon(rho, delta)
        return Bracket(value, value, f"rho = {rho:.6g}")

    def _delta(self, counts: dict[Event, int], epsilon: float) -> Bracket:
        rho = self.rho(counts)
        value = rho_to_delta(rho, epsilon)
        return Bracket(value, value, f"rho = {rho:.6g}")
