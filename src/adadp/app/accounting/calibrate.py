"""How much noise is needed, how long a run may be: the inverse questions, always answered on the safe side."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

from scipy.optimize import brentq

from adadp import checks
from adadp.accounting.answer import Answer
from adadp.accounting.base import Accountant
from adadp.app.accounting.excess import excess
from adadp.app.accounting.zcdp import ZcdpAccountant
from adadp.errors import InputError, UnreachableTarget
from adadp.events import Event, Repeated, compose, flatten

_LEAST, _MOST = 1e-3, 1e6
"""Multipliers between which the search runs."""
_MOST_REPETITIONS, _MOST_EPOCHS = 10**9, 10**5
"""An epoch can have noise of its own, so that each is composed by itself."""
_LEAST_BUDGET = 1e-100
_PRECISION = 1e-7
_MOST_SECANTS = 8
_COARSE = 10.0
"""An estimate is searched to a thousandth of this."""


@dataclass(frozen=True)
class Calibration:
    """The value found and the privacy it gives: ``answer.epsilon`` is at most what was asked for."""

    value: float
    answer: Answer


def smallest_noise(
    make_event: Callable[[float], Event],
    *,
    epsilon: float,
    delta: float,
    accountant: Accountant,
    beside: Event | None = None,
) -> Calibration:
    """The smallest x for which ``make_event(x)`` (with ``beside``) is (epsilon, delta)-DP.

    To a relative 1e-7, or until epsilon is below its target by less than a thousandth of the accountant's bracket;
    where that bracket jumps with x, to its width. x is a noise multiplier, or the scale of a whole schedule; more of it
    must mean more privacy. ``beside`` is whatever else the run releases at a fixed cost.
    """
    epsilon, delta = checked_budget("epsilon", epsilon), checks.delta(delta)
    _check_beside(accountant, beside, epsilon, delta)

    found: dict[float, Answer] = {}

    def cost(x: float) -> float:
        if x not in found:
            found[x] = accountant.epsilon(_with(make_event(x), beside), delta)
        return found[x].epsilon

    def estimate(x: float, rough: bool) -> float:
        return excess(accountant, _with(make_event(x), beside), delta, epsilon, rough=rough)

    def unreachable(reached: float) -> UnreachableTarget:
        return UnreachableTarget(
            f"{accountant.name} cannot reach epsilon {epsilon:g} at delta {delta:g}: even a noise multiplier of "
            f"{_MOST:g} gives {reached:.6g}.",
            reachable=reached,
            fix=f"Ask for epsilon >= {reached:.6g}, take fewer steps, or use another accountant.",
        )

    def unknown(x: float) -> float:
        cost(x)
        return 1 - found[x].epsilon_low / max(found[x].epsilon_high, 1e-300)

    x = _smallest(cost, epsilon, unreachable, (estimate, unknown))
    return Calibration(x, found[x])


def smallest_noise_within_rho(make_event: Callable[[float], Event], *, rho: float) -> float:
    """The smallest x, to a relative 1e-7, for which the zCDP cost of ``make_event(x)`` is at most ``rho``."""
    rho = checked_budget("rho", rho)

    def unreachable(reached: float) -> UnreachableTarget:
        return UnreachableTarget(
            f"rho {rho:g} cannot be reached: even a noise multiplier of {_MOST:g} costs {reached:.6g}.",
            reachable=reached,
            fix=f"Ask for rho >= {reached:.6g}, or take fewer steps.",
        )

    return _smallest(lambda x: ZcdpAccountant().rho(flatten(make_event(x))), rho, unreachable)


def _smallest(
    price: Callable[[float], float],
    budget: float,
    unreachable: Callable[[float], UnreachableTarget],
    estimates: tuple[Callable[[float, bool], float], Callable[[float], float]] | None = None,
) -> float:
    """The smallest x, to a relative 1e-7, whose price is within ``budget``, where more never costs more.

    ``estimates`` are cheaper ones, rough or not, of whether the price exceeds the budget, by which the search begins,
    and how much of the price is unknown, of which a thousandth is not searched for.
    """

    def exact(log_x: float) -> float:
        # The log of a cost is close to linear in log x; a cost of 0 or infinity is only ever a far end.
        return math.log(min(max(price(math.exp(log_x)), 1e-6 * budget), 1e9 * budget) / budget)

    def estimate(log_x: float, rough: bool) -> float:
        return min(max(estimates[0](math.exp(log_x), rough), -30.0), 30.0) if estimates else exact(log_x)

    @cache
    def gap(log_x: float) -> float:
        return estimate(log_x, rough=True)

    low = high = 0.0
    while gap(high) > 0:
        if high >= math.log(_MOST):
            raise unreachable(price(_MOST))
        low, high = high, high + math.log(4)
    while gap(low) <= 0:
        if low <= math.log(_LEAST):
            return _safe(price, budget, math.exp(low), unreachable)
        high, low = low, low - math.log(4)
    x = brentq(gap, low, high, xtol=1e-2 if estimates else _PRECISION / 4)
    if estimates:
        slope = min((gap(x + 0.05) - gap(x - 0.05)) / 0.1, -0.1)
        x, slope = _refined(lambda log_x: estimate(log_x, rough=False), x, slope, lambda _: _COARSE)
        x, _ = _refined(exact, x, slope, lambda log_x: estimates[1](math.exp(log_x)))
    return _safe(price, budget, math.exp(x), unreachable)


def _refined(
    gap: Callable[[float], float], x: float, slope: float, unknown: Callable[[float], float]
) -> tuple[float, float]:
    """The root of ``gap`` near ``x``, where it falls with about ``slope``, and its slope there: the secant method.

    It ends on the safe side, where the gap is a thousandth of what is ``unknown`` of it.
    """
    value, bound = gap(x), 100.0
    for _ in range(_MOST_SECANTS):
        aim = -5e-4 * unknown(x)
        step = (aim - value) / slope
        if abs(step) <= _PRECISION / 4 or 2 * aim <= value <= 0:
            break
        before, x = value, x + (step := max(min(step, 0.5), -0.5))
        value = gap(x)
        # not where the bracket of the price jumps
        if slope / bound > (steeper := (value - before) / step) > slope * bound:
            slope, bound = steeper, 5.0
    return x, slope


def _safe(
    price: Callable[[float], float], budget: float, x: float, unreachable: Callable[[float], UnreachableTarget]
) -> float:
    """``x``, or a little more, on the side where the price is within ``budget``."""
    step = _PRECISION / 4
    while (cost := price(x)) > budget:
        if x >= _MOST:
            raise unreachable(cost)
        x, step = min(x * (1 + step), _MOST), 4 * step
    return x


def most_repetitions(
    event: Event, *, epsilon: float, delta: float, accountant: Accountant, beside: Event | None = None
) -> Calibration:
    """The largest n for which n times ``event`` (with ``beside``) is (epsilon, delta)-DP."""

    def first(count: int) -> Event:
        return Repeated(event, count)

    return longest(first, epsilon=epsilon, delta=delta, accountant=accountant, beside=beside, unit="step")


def checked_budget(name: str, value: object) -> float:
    """An epsilon or a rho that can be aimed at."""
    number = checks.positive(name, value)
    if number < _LEAST_BUDGET:
        raise InputError(
            f"`{name}` must be at least {_LEAST_BUDGET:g}, got {number:g}.",
            why="Below that numbers have too few digits to compute with.",
            fix="Pass a larger one: with so little nothing can be learned.",
        )
    return number


def longest(
    first: Callable[[int], Event],
    *,
    epsilon: float,
    delta: float,
    accountant: Accountant,
    beside: Event | None = None,
    unit: str = "epoch",
) -> Calibration:
    """The largest n for which ``first(n)``, the first n steps or epochs of a run, is (epsilon, delta)-DP."""
    epsilon, delta = checked_budget("epsilon", epsilon), checks.delta(delta)
    _check_beside(accountant, beside, epsilon, delta)
    answers: dict[int, Answer] = {}

    def cost(count: int) -> float:
        answers[count] = accountant.epsilon(_with(first(count), beside), delta)
        return answers[count].epsilon

    if cost(1) > epsilon:
        reached = answers[1].epsilon
        raise UnreachableTarget(
            f"Not even one {unit} fits into epsilon {epsilon:g} at delta {delta:g}: it costs {reached:.6g} by "
            f"{accountant.name}.",
            reachable=reached,
            fix=f"Ask for epsilon >= {reached:.6g}, or add noise.",
        )
    count = _largest(cost, epsilon, unit)
    return Calibration(count, answers[count])


def longest_within_rho(first: Callable[[int], Event], *, rho: float, unit: str = "epoch") -> tuple[int, float]:
    """The largest n for which the zCDP cost of ``first(n)`` is at most ``rho``, and that cost."""
    rho = checked_budget("rho", rho)

    def cost(count: int) -> float:
        return ZcdpAccountant().rho(flatten(first(count)))

    if (one := cost(1)) > rho:
        raise UnreachableTarget(
            f"Not even one {unit} fits into rho {rho:g}: it costs {one:.6g}.",
            reachable=one,
            fix=f"Ask for rho >= {one:.6g}, or add noise.",
        )
    count = _largest(cost, rho, unit)
    return count, cost(count)


def _largest(cost: Callable[[int], float], budget: float, unit: str) -> int:
    """The largest count whose cost is within ``budget``, when 1 is and more never costs less."""
    low, high = 1, 2
    at_low, at_high = cost(low), cost(high)
    while at_high <= budget:
        if high >= (most := _MOST_EPOCHS if unit == "epoch" else _MOST_REPETITIONS):
            raise InputError(
                f"More than {most:,} {unit}s fit into the budget.",
                why="The run would never end: the noise is far larger than the budget needs.",
                fix="Use less noise, or a smaller budget.",
            )
        low, at_low, high = high, at_high, high * 4
        at_high = cost(high)
    turn = 0
    while high - low > 1:
        turn += 1
        middle = (low + high) // 2
        if turn % 3 and 0 < at_low < at_high < math.inf:
            # Costs grow like a power of the count, so two of three times the line in log-log decides where to look.
            share = math.log(budget / at_low) / math.log(at_high / at_low)
            middle = min(max(int(low * (high / low) ** share), low + 1), high - 1)
        at_middle = cost(middle)
        if at_middle <= budget:
            low, at_low = middle, at_middle
        else:
            high, at_high = middle, at_middle
    return low


def _with(event: Event, beside: Event | None) -> Event:
    return event if beside is None else compose(event, beside)


def _check_beside(accountant: Accountant, beside: Event | None, epsilon: float, delta: float) -> None:
    """Refuse early when what is fixed already costs the whole budget."""
    if beside is None:
        return
    spent = accountant.epsilon(beside, delta).epsilon
    if spent >= epsilon:
        raise UnreachableTarget(
            f"What the run releases besides costs epsilon {spent:.6g} at delta {delta:g}, the target is {epsilon:g}.",
            reachable=spent,
            fix="Raise the target, or add noise to the other releases.",
        )
