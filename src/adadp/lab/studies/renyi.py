"""How long does sampling help? The Renyi divergence of one sampled step by order: figures 1 and 16 of Yu et al. 2019.

The divergence of order alpha of a Poisson-sampled Gaussian step stays far below that of the step itself, which is
alpha/(2 sigma^2), until a changing point near 1 + 2 sigma^2 ln(1/q); beyond it the two rise together. Hence sampling
does not amplify zCDP, which speaks of all orders. The paper conjectures that for q <= 1/(16 sigma) and up to order
U = sigma^2 ln(1/(q sigma)) + 1 the divergence is below alpha q^2/sigma^2, after a numerical check with sigma from 1 to
30. Here that bound is followed until it fails, which near sigma = 1 is below U: q = .03, sigma = 1, alpha = 4 gives
0.003665 by the binomial sum, and the bound 0.0036. So the conjecture is false as stated.

    case                                      answer
    q = 1, q = 0                              refused: nothing is sampled
    the bound fails at order 2 already        holds_to is None (little noise: e^(1/sigma^2) - 1 > 2/sigma^2)
    the bound never fails                     holds_to is the last order looked at (q^2 > 1/2)
    q > 1/(16 sigma)                          conjectured_to and end_ratio are None: the paper claims nothing there
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass

from adadp import checks
from adadp.app.accounting.renyi import log_moment
from adadp.errors import InputError
from adadp.events import GaussianRelease, PoissonSampled

_ORDERS = 300


@dataclass(frozen=True)
class RenyiStudy:
    """Divergences of one step at whole orders, and where the conjectured bound stops holding."""

    q: float
    noise_multiplier: float
    orders: tuple[int, ...]
    sampled: tuple[float, ...]
    unsampled: tuple[float, ...]
    """alpha/(2 sigma^2)."""
    bound: tuple[float, ...]
    """alpha q^2/sigma^2."""
    conjectured_to: float | None
    """U, the largest order of the conjecture, if its condition q <= 1/(16 sigma) is met."""
    end_ratio: float | None
    """The divergence of order U over the bound. Above 1 the conjecture is false for this q and sigma."""
    holds_to: int | None
    """The last whole order before the divergence first passes the bound."""

    def to_json(self) -> dict[str, object]:
        return asdict(self)


def study_renyi(q: float = 0.01, noise_multiplier: float = 4.0) -> RenyiStudy:
    """Follow the divergence to twice the order at which sampling stops to help."""
    q, sigma = checks.probability("q", q), checks.positive("noise_multiplier", noise_multiplier)
    if q in {0.0, 1.0}:
        raise InputError(f"q must lie between 0 and 1, got {q:g}.", why="Otherwise nothing is sampled.")
    moment = log_moment("rdp", {PoissonSampled(q, GaussianRelease(sigma)): 1})

    def divergence(order: float) -> float:
        return moment(order - 1) / (order - 1)

    def bound(order: float) -> float:
        return order * (q / sigma) ** 2

    end = sigma**2 * math.log(1 / (q * sigma)) + 1 if q <= 1 / (16 * sigma) else None
    last = max(math.ceil(2 * (1 + 2 * sigma**2 * math.log(1 / q))), 10)
    orders = sorted({round(2 + (last - 2) * k / (_ORDERS - 1)) for k in range(_ORDERS)})
    sampled = [divergence(order) for order in orders]
    return RenyiStudy(
        q=q,
        noise_multiplier=sigma,
        orders=tuple(orders),
        sampled=tuple(sampled),
        unsampled=tuple(order / (2 * sigma**2) for order in orders),
        bound=tuple(bound(order) for order in orders),
        conjectured_to=end,
        end_ratio=None if end is None else divergence(end) / bound(end),
        holds_to=_last_within(orders, lambda order: divergence(order) <= bound(order)),
    )


def _last_within(orders: list[int], within: Callable[[int], bool]) -> int | None:
    """The last whole order before ``within`` first fails on the grid, found between its neighbours by halving."""
    place = next((k for k, order in enumerate(orders) if not within(order)), None)
    if place is None:
        return orders[-1]
    if place == 0:
        return None
    low, high = orders[place - 1], orders[place]
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if within(middle) else (low, middle)
    return low
