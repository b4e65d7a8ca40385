"""The privacy loss distribution: the exact privacy curve of the composed dominating pairs, as a narrow bracket."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

from scipy.optimize import brentq

from adadp.accounting.answer import Status
from adadp.accounting.base import Accountant, Bracket
from adadp.accounting.composition import Composition
from adadp.accounting.contour import Curve, contour_curve, direct_curve, log_chernoff, saddle_point
from adadp.accounting.dominating import compositions
from adadp.events import Event, Repeated, compose
from adadp.registry import Registry

IGNORED = 1e-4
"""Outcomes that together have this share of delta are cut off (and added to the upper bound)."""
_NOTHING = 1e-25
"""Chernoff bounds on delta below this are answered as they are: no delta anybody asks for is smaller."""

_TIGHT = 5e-4
"""Brackets narrower than this, relative to epsilon, are left as they are."""
_NEAR = 0.1
"""How far epsilon may be from where a line was put, relatively, for another line not to be worth it."""
_MOST_LINES = 12
_LEAST_DELTA = 1e-100
"""Below it an integral of such a size, and its errors, come too near to the smallest numbers there are."""
_LEAST = 1e-300
"""Where the logarithm of a bound on delta ends."""


class PldAccountant(Accountant):
    """The tight accountant: what the composition of the dominating pairs costs, neither more nor less.

    Both orders of the two data sets are composed separately and the worse one counts. The multipliers must have been
    fixed in advance (or by anything but earlier releases).

    The dominating pair of a choice does not know of its bounded range. There ``rdp``, where it is installed, lowers the
    bracket, and for a delta below 1e-100 its bound is the answer; the note says so.
    """

    name = "pld"
    status = Status.PROVED

    def _epsilon(self, counts: dict[Event, int], delta: float) -> Bracket:
        if delta < _LEAST_DELTA:
            bound = accountant("rdp").epsilon(composed(counts), delta).epsilon
            return Bracket(0.0, bound, f"a Renyi bound: delta is below {_LEAST_DELTA:g}")
        low, high = _composed_bracket(counts, IGNORED * delta, partial(worse_epsilon, delta=delta))
        return _lowered(low, high, counts, lambda rdp: rdp.epsilon(composed(counts), delta).epsilon)

    def _delta(self, counts: dict[Event, int], epsilon: float) -> Bracket:
        guess = 1e-20
        while True:
            low, high = _composed_bracket(counts, IGNORED * guess, partial(worse_delta, epsilon=epsilon, guess=guess))
            if high < 10 * guess or high - low < 1e-3 * high:
                break
            # What may be ignored is known only once delta is: look again with the better guess.
            guess = high
        return _lowered(low, high, counts, lambda rdp: rdp.delta(composed(counts), epsilon).delta)


def _composed_bracket(
    counts: dict[Event, int], ignored: float, worse: Callable[[list[Composition]], tuple[float, float]]
) -> tuple[float, float]:
    """The bracket of the worse order of the data sets; its low end from below where the compositions are loose."""
    above = compositions(PldAccountant.name, counts, ignored)
    low, high = worse(above)
    if any(composition.loose for composition in above):
        low = min(worse(compositions(PldAccountant.name, counts, ignored, below=True)[:1])[0], high)
    return low, high


def worse_epsilon(found: list[Composition], delta: float) -> tuple[float, float]:
    """The bracket of whichever composition needs the larger epsilon."""
    low, high = 0.0, 0.0
    for composition in found:
        # The second order of the data sets matters only if it needs more than the first.
        if composition.releases == 0 or (high > 0 and _delta_bracket(composition, high, delta, delta)[1] <= delta):
            continue
        at_low, at_high = _epsilon_bracket(composition, delta)
        low, high = max(low, at_low), max(high, at_high)
    return low, high


def worse_delta(found: list[Composition], epsilon: float, guess: float) -> tuple[float, float]:
    """The bracket of whichever composition has the larger delta."""
    brackets = [_delta_bracket(composition, epsilon, guess) for composition in found if composition.releases > 0]
    return max((low for low, _ in brackets), default=0.0), max((high for _, high in brackets), default=0.0)


def sharper(counts: dict[Event, int]) -> Accountant | None:
    """``rdp`` where it is there and knows more."""
    rdp = ACCOUNTANTS.get("rdp")
    return rdp if rdp is not None and rdp.sharper(counts) else None


def _lowered(low: float, high: float, counts: dict[Event, int], ask: Callable[[Accountant], float]) -> Bracket:
    """The bracket, or the bound of a sharper accountant where that is below it."""
    rdp = sharper(counts)
    if rdp is None or (bound := ask(rdp)) >= high:
        return Bracket(low, high)
    return Bracket(min(low, bound), bound, "the bound of rdp, which uses the bounded range of a choice")


def composed(counts: dict[Event, int]) -> Event:
    """The flattened events as one."""
    return compose(*(Repeated(event, count) for event, count in counts.items()))


def _epsilon_bracket(composition: Composition, delta: float) -> tuple[float, float]:
    """(low, high) around the smallest epsilon >= 0 with delta(epsilon) <= ``delta``."""
    if composition.variation * (1 + 1e-9) <= delta:
        return 0.0, 0.0
    epsilon, theta = _saddle_epsilon(composition, delta)
    if (direct := direct_curve(composition)) is not None:
        return _invert(direct, delta, epsilon, 1 / theta)
    low, high, rough = 0.0, math.inf, True
    for _ in range(_MOST_LINES):
        width = high - low
        near = composition.around(epsilon, delta)
        theta = saddle_point(near, epsilon=epsilon, near=theta)
        curve = contour_curve(near, theta, epsilon, delta, rough=rough)
        at_low, at_high = _invert(curve, delta, epsilon, 1 / theta)
        low, high = max(low, at_low), min(high, at_high)
        if math.isinf(high):  # the outcomes that were let go are those that count
            epsilon = max(3 * epsilon, 1.1 * low, 0.1 / theta)
            continue
        middle = (low + high) / 2
        there = abs(middle - epsilon) <= _NEAR * epsilon or high - low > 0.7 * width
        if high - low <= _TIGHT * high or (there and not rough):
            break  # the line was the right one, or another one does not help
        rough = not there and high - low > _NEAR * high
        epsilon = middle
    return low, high


def _saddle_epsilon(composition: Composition, delta: float) -> tuple[float, float]:
    """The epsilon of the saddle-point approximation, and its theta: an estimate."""
    theta = saddle_point(composition, log_delta=math.log(delta))
    return max(composition.cumulants(theta)[1] - 1 / theta - 1 / (theta + 1), 0.0), theta


def _delta_bracket(composition: Composition, epsilon: float, guess: float, enough: float = 0.0) -> tuple[float, float]:
    """(low, high) around delta(epsilon), tight if that is about ``guess`` or more, and more than ``enough``."""
    if epsilon > composition.highest * (1 + 1e-9):
        return 0.0, 0.0
    if (direct := direct_curve(composition)) is not None:
        return direct.bounds(epsilon)
    near = composition.around(epsilon, guess)
    theta = saddle_point(near, epsilon=epsilon)
    chernoff = math.exp(min(log_chernoff(near, theta, epsilon), 0.0))
    least, most = near.jumped(epsilon)
    most += chernoff + near.cut_off
    if chernoff <= max(_NOTHING, near.cut_off) or most <= enough:
        return least, most
    low, high = contour_curve(near, theta, epsilon, min(guess, most)).bounds(epsilon)
    return min(low, most), min(high, most)


def _invert(curve: Curve, delta: float, near: float, scale: float) -> tuple[float, float]:
    """Where the lower and the upper bound on delta(epsilon) pass ``delta``: a bracket for epsilon."""
    return (
        _crossing(curve.lower, delta, near, scale)[0],
        _crossing(curve.upper, delta, min(near, curve.most), scale, curve.most)[1],
    )


def _crossing(
    bound: Callable[[float], float], delta: float, near: float, scale: float, most: float = math.inf
) -> tuple[float, float]:
    """An interval of relative width about 1e-9 at whose left end ``bound`` exceeds ``delta``, and at whose right not.

    It is searched from ``near`` outwards, where the bounds are tight; (0, 0) where ``bound`` exceeds it nowhere, and
    an infinite right end where it still does at ``most``.
    """
    low = high = near
    reach = max(scale, 1e-9 * near)
    if bound(near) > delta:
        while bound(high) > delta:
            if high >= most:
                return high, math.inf
            low, high, reach = high, min(high + reach, most), 2 * reach
    else:
        while bound(low) <= delta:
            if low == 0:
                return 0.0, 0.0
            low, high, reach = max(low - reach, 0.0), low, 2 * reach
    # Interpolate log bound for the root, then narrow to it each end that stays on its proper side.
    root = brentq(
        lambda epsilon: math.log(max(bound(epsilon), _LEAST) / delta), low, high, xtol=1e-12 * scale, rtol=1e-10
    )
    width = 5e-10 * root + 1e-12 * scale
    left, right = root - width, root + width
    return (
        left if left > low and bound(left) > delta else low,
        right if right < high and bound(right) <= delta else high,
    )


def _accept(found: object) -> Accountant | None:
    made = found() if isinstance(found, type) and issubclass(found, Accountant) else found
    return made if isinstance(made, Accountant) else None


ACCOUNTANTS: Registry[Accountant] = Registry("accountant", {PldAccountant.name: PldAccountant()}, _accept)
"""By name: ``pld``, the default everywhere, and those that packages offer, ours among them."""


def accountant(name: str = "pld") -> Accountant:
    """The accountant called ``name``, or the one at ``module:Name``."""
    return ACCOUNTANTS.find(name)
