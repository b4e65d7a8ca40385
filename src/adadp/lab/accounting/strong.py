"""Advanced ("strong") composition: what moments, zCDP and loss distributions are compared with in the papers."""

from __future__ import annotations

import math
from collections.abc import Callable

from adadp.accounting.answer import Status
from adadp.accounting.base import Accountant, Bracket
from adadp.accounting.contour import gaussian_delta
from adadp.accounting.dominating import (
    costliest_batch,
    gaussian_multiplier,
    moved,
    refuse_adaptive,
    refuse_other,
    sensitivity,
)
from adadp.app.accounting.orders import minimise
from adadp.errors import UnsupportedEvent
from adadp.events import (
    AdaptivelyChosen,
    Event,
    FixedSizeSampled,
    GaussianRelease,
    OtherEvent,
    PoissonSampled,
    ReshuffledEpoch,
    Selection,
    ZcdpCost,
    describe,
)


class StrongComposition(Accountant):
    """Every Gaussian step as one (epsilon_0, delta_0), amplified by its sampling, then composed.

    A step with sigma = sqrt(2 ln(1.25/delta_0)) / epsilon_0 is (epsilon_0, delta_0)-DP. That classic rule is proved for
    epsilon_0 <= 1 only, so delta_0 is raised to the exact Gaussian value wherever the rule falls short. Sampling a
    fraction q makes it (ln(1 + q (e^epsilon_0 - 1)), q delta_0); T steps are, for any delta', within
    (sqrt(2 ln(1/delta') sum e_i^2) + sum e_i (e^e_i - 1), sum d_i + delta') (Dwork, Rothblum, Vadhan 2010), or within
    the plain sums where those are smaller. delta_0 is the same for all steps and chosen, with delta', for the smallest
    epsilon.
    """

    name = "strong"
    status = Status.PROVED
    note = ""

    def _amplify(self, q: float, epsilon: float) -> float:
        return math.log1p(q * math.expm1(epsilon)) if epsilon < 700 else epsilon + math.log(q)

    def _step(self, event: Event) -> tuple[float, float, float]:
        """(q, mu, pure epsilon); mu is 0 for a pure-DP event."""
        if isinstance(event, Selection):
            return 1.0, 0.0, event.epsilon
        if isinstance(event, AdaptivelyChosen):
            refuse_adaptive(self.name, event)
        if isinstance(event, OtherEvent):
            refuse_other(self.name, event)
        q, multiplier, factor = 1.0, None, sensitivity(event.neighbours)
        if isinstance(event, GaussianRelease):
            multiplier, factor = event.noise_multiplier, moved(event)
        elif isinstance(event, ReshuffledEpoch):
            multiplier = costliest_batch(event)
        elif isinstance(event, PoissonSampled):
            q, multiplier = event.sampling_probability, gaussian_multiplier(event.event)
        elif isinstance(event, FixedSizeSampled):
            q, multiplier = event.sampling_fraction, gaussian_multiplier(event.event)
            if q < 1:  # blanking out a record of a fixed-size batch moves another one's share too
                factor = 2.0
        if multiplier is None:
            reason = "only Gaussian releases are turned into (epsilon, delta) pairs here"
            if isinstance(event, ZcdpCost):
                reason = "a zCDP cost is not an (epsilon, delta) pair"
            raise UnsupportedEvent(f"{self.name} cannot account for {describe(event)}: {reason}.", fix="Use rdp.")
        return q, factor / multiplier, 0.0

    def _compose(
        self, steps: list[tuple[float, float, float, int]], delta: float, log_delta0: float
    ) -> tuple[float, float]:
        """The epsilon at ``delta``, by the theorem and plainly added, when every Gaussian step is taken at delta_0."""
        squares = linear = basic = spent = 0.0
        log_delta0 = min(log_delta0, 0.0)
        for q, mu, pure, count in steps:
            epsilon, delta0 = pure, 0.0
            if mu > 0:
                epsilon = mu * math.sqrt(2 * (math.log(1.25) - log_delta0))
                delta0 = max(math.exp(log_delta0), gaussian_delta(mu, epsilon))
            amplified = self._amplify(q, epsilon) if q > 0 else 0.0
            squares += count * amplified**2
            linear += count * amplified * math.expm1(min(amplified, 700.0))
            basic += count * amplified
            spent += count * q * delta0
        rest = delta - spent
        if rest <= 0:
            return math.inf, math.inf
        return math.sqrt(2 * math.log(1 / rest) * squares) + linear, basic

    def _epsilon(self, counts: dict[Event, int], delta: float) -> Bracket:
        steps = [(*self._step(event), count) for event, count in counts.items()]
        weight = sum(count * q for q, mu, _, count in steps if mu > 0)
        if weight == 0:
            value = min(self._compose(steps, delta, -math.inf))
            return Bracket(value, value, self.note)
        # delta_0 * weight is the share of delta the steps take: from all but nothing of it down to 1e-30 of it.
        shares = [math.exp(-0.25 * k) for k in range(280, 0, -1)] + [1 - 1e-3, 1 - 1e-12]
        log_each = math.log(delta) - math.log(weight)

        def composed(way: int) -> Callable[[float], float]:
            return lambda share: self._compose(steps, delta, math.log(share) + log_each)[way]

        value, share = min(_best_share(composed(0), shares), _best_share(composed(1), shares))
        return Bracket(value, value, self.note or f"delta_0 = {share * math.exp(log_each):.3g} a step")

    def _delta(self, counts: dict[Event, int], epsilon: float) -> Bracket:
        """As epsilon falls with delta: bisect for the delta at which it is met, and take the safe end."""
        low, high = math.log(1e-300), math.log(1 - 1e-12)
        if self._epsilon(counts, math.exp(high)).high > epsilon:
            return Bracket(1.0, 1.0, self.note)
        while high - low > 1e-9:
            middle = (low + high) / 2
            if self._epsilon(counts, math.exp(middle)).high > epsilon:
                low = middle
            else:
                high = middle
        return Bracket(math.exp(low), math.exp(high), self.note)


def _best_share(value: Callable[[float], float], shares: list[float]) -> tuple[float, float]:
    finite = [share for share in shares if math.isfinite(value(share))]
    return minimise(value, finite) if finite else (math.inf, shares[0])


class StrongAsPublished(StrongComposition):
    """The curve Abadi et al. 2016 draw (9.34 at 100 epochs, 24.22 at 400): steps amplified to q epsilon_0.

    q epsilon_0 is below ln(1 + q (e^epsilon_0 - 1)), the value that can be proved, by any factor as epsilon_0 grows: it
    is no bound. Kept to reproduce the figure.
    """

    name = "strong-published"
    status = Status.AS_PUBLISHED
    note = "amplifies epsilon_0 to q epsilon_0, which is not a bound; the valid form is `strong`"

    def _amplify(self, q: float, epsilon: float) -> float:
        return q * epsilon
