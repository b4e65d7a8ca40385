"""Theorem 1 of the ADADP paper (Xu et al. 2020), equation 7, as printed."""

from __future__ import annotations

import math
from decimal import Decimal, localcontext
from functools import lru_cache

from adadp.accounting.answer import Status
from adadp.accounting.base import Accountant, Bracket
from adadp.accounting.dominating import gaussian_multiplier, refuse_adaptive, refuse_other, sampling_rate
from adadp.errors import UnsupportedEvent
from adadp.events import AdaptivelyChosen, Event, FixedSizeSampled, OtherEvent, PoissonSampled, describe

_ORDERS = range(2, 65)


class Theorem1(Accountant):
    """Equation 7 with whole orders alpha in 2..64, for sampled Gaussian releases of multiplier sigma_*.

        T/(alpha-1) ln(1 + q^2 C(alpha,2) min(4 (e^(1/s^2) - 1), 2 e^(1/s^2))
                         + 4 sum_{j=3}^{alpha} q^j C(alpha,j) sqrt(B(2 ceil(j/2)) B(2 floor(j/2))))
            + ln(1/delta)/(alpha-1)
        B(l) = sum_{i=0}^{l} (-1)^i C(l,i) e^(i (i-1) / (2 s^2))

    It is the bound of Wang, Balle and Kasiviswanathan 2019 for sampling WITHOUT replacement and neighbours that REPLACE
    a record, where a clipped sum moves by up to 2C, not C; the paper samples each record independently and uses C. So
    the figure belongs to no mechanism that is run, and is kept for comparison. It also is not what the paper computes
    with: the example (q=.01, sigma=.9, T=1800, delta=1e-5) gives 6.92 at alpha=4, not the printed 4.0 at alpha=6, which
    is the Poisson-sampled Gaussian under the classic conversion.
    """

    name = "theorem1"
    status = Status.AS_PUBLISHED

    def _curve(self, counts: dict[Event, int]) -> dict[int, float]:
        """The summed RDP at each order."""
        total = dict.fromkeys(_ORDERS, 0.0)
        for event, count in counts.items():
            if isinstance(event, AdaptivelyChosen):
                refuse_adaptive(self.name, event)
            if isinstance(event, OtherEvent):
                refuse_other(self.name, event)
            if (
                not isinstance(event, (PoissonSampled, FixedSizeSampled))
                or (multiplier := gaussian_multiplier(event.event)) is None
            ):
                raise UnsupportedEvent(
                    f"{self.name} cannot account for {describe(event)}: equation 7 is for sampled Gaussian releases.",
                    fix="Use pld or rdp.",
                )
            q = sampling_rate(event)
            for order, value in zip(_ORDERS, _one_step(q, multiplier), strict=True):
                total[order] += count * value
        return total

    def _epsilon(self, counts: dict[Event, int], delta: float) -> Bracket:
        value, order = min((rdp - math.log(delta) / (order - 1), order) for order, rdp in self._curve(counts).items())
        return Bracket(value, value, _note(order))

    def _delta(self, counts: dict[Event, int], epsilon: float) -> Bracket:
        least, order = min(((order - 1) * (rdp - epsilon), order) for order, rdp in self._curve(counts).items())
        value = math.exp(min(least, 0.0))
        return Bracket(value, value, _note(order))


def _note(order: int) -> str:
    return f"alpha = {order}; stated for other sampling and neighbours than the algorithm's: no guarantee"


@lru_cache(maxsize=256)
def _one_step(q: float, multiplier: float) -> tuple[float, ...]:
    """The RDP of one step at every order. B(l) is a tiny alternating sum of huge terms, hence the long decimals."""
    with localcontext() as context:
        context.prec = 400
        context.Emax, context.Emin = 10**9, -(10**9)
        rate, precision = Decimal(q), 1 / (Decimal(multiplier) ** 2)
        powers = [(i * (i - 1) * precision / 2).exp() for i in range(_ORDERS.stop + 1)]

        def b(order: int) -> Decimal:
            return sum(((-1) ** i * math.comb(order, i) * powers[i] for i in range(order + 1)), Decimal(0))

        even = {order: b(order) for order in range(2, _ORDERS.stop + 1, 2)}
        root = {j: (even[2 * math.ceil(j / 2)] * even[2 * (j // 2)]).sqrt() for j in range(3, _ORDERS.stop)}
        second = min(4 * (precision.exp() - 1), 2 * precision.exp())
        values = []
        for alpha in _ORDERS:
            inside = 1 + rate**2 * math.comb(alpha, 2) * second
            inside += 4 * sum((rate**j * math.comb(alpha, j) * root[j] for j in range(3, alpha + 1)), Decimal(0))
            values.append(float(inside.ln() / (alpha - 1)))
        return tuple(values)
