"""zCDP of sampled releases by a conjecture of Yu et al. 2019."""

from __future__ import annotations

import math

from adadp.accounting.answer import Status
from adadp.accounting.base import Accountant, Bracket
from adadp.accounting.dominating import gaussian_multiplier, refuse_adaptive, refuse_other
from adadp.app.accounting.zcdp import rho_to_delta, rho_to_epsilon
from adadp.errors import UnsupportedEvent
from adadp.events import AdaptivelyChosen, Event, Neighbours, OtherEvent, PoissonSampled, describe


class SampledZcdpEstimate(Accountant):
    """Yu et al. 2019's quick estimate for Poisson sampling: rho^ = sum q^2/sigma^2 for orders up to u, their Theorem 3.

    That P = q^2/sigma^2 bounds the Renyi divergence for q <= 1/(16 sigma) and alpha <= u = sigma^2 ln(1/(q sigma)) + 1
    was checked by its authors on a grid, not proved. At sigma = 1 and q = 0.03 it is false (order 4: 0.003665 against
    0.0036; ``adadp study renyi``): an estimate for planning, never a guarantee.
    """

    name = "zcdp-sampled"
    status = Status.ESTIMATE

    def _rho_and_order(self, counts: dict[Event, int]) -> tuple[float, float]:
        rho, order = 0.0, math.inf
        for event, count in counts.items():
            if isinstance(event, AdaptivelyChosen):
                refuse_adaptive(self.name, event)
            if isinstance(event, OtherEvent):
                refuse_other(self.name, event)
            multiplier = gaussian_multiplier(event.event) if isinstance(event, PoissonSampled) else None
            if (
                not isinstance(event, PoissonSampled)
                or multiplier is None
                or event.neighbours is Neighbours.REPLACE_ONE
            ):
                raise UnsupportedEvent(
                    f"{self.name} cannot account for {describe(event)}: the estimate is for Poisson-sampled Gaussian "
                    "releases and add-remove or zero-out neighbours only."
                )
            q = event.sampling_probability
            if q * multiplier > 1 / 16:
                raise UnsupportedEvent(
                    f"{self.name} cannot account for {describe(event)}: the estimate was checked for q <= 1/(16 sigma) "
                    f"only, here at most {1 / (16 * multiplier):.4g}.",
                    fix="Use pld or rdp.",
                )
            rho += count * (q / multiplier) ** 2
            order = min(order, multiplier**2 * math.log(1 / (q * multiplier)) + 1)
        return rho, order

    def _epsilon(self, counts: dict[Event, int], delta: float) -> Bracket:
        rho, order = self._rho_and_order(counts)
        if delta >= math.exp(-rho * (order - 1) ** 2):
            value = rho_to_epsilon(rho, delta)
        else:
            value = rho * order - math.log(delta) / (order - 1)
        return Bracket(value, value, _UNPROVED)

    def _delta(self, counts: dict[Event, int], epsilon: float) -> Bracket:
        rho, order = self._rho_and_order(counts)
        best = (epsilon + rho) / (2 * rho) if rho > 0 else math.inf
        value = (
            rho_to_delta(rho, epsilon) if best <= order else math.exp(min((order - 1) * (rho * order - epsilon), 0.0))
        )
        return Bracket(value, value, _UNPROVED)


_UNPROVED = "conjectured by Yu et al. 2019 from a check on a grid, false near sigma = 1: an estimate, not a guarantee"
