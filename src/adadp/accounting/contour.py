"""delta(epsilon) of composed releases, by one Fourier integral along a tilted line.

With K(s) = log E_P[e^(s L)] of the summed loss, for every theta > 0,

    delta(epsilon) = 1/(2 pi i) * integral over Re s = theta of e^(K(s) - s epsilon) / (s (s + 1)) ds,

because 1/(s (s + 1)) is the transform of (1 - e^(-u))+. On the line through the saddle point the integrand is a
Gaussian-like bump whose width does not depend on how many releases were composed, so a few dozen evaluations of K give
delta to many digits *relative to itself*: a delta of 1e-12 after 10^7 releases is no harder than 1e-2 after a hundred.
Few releases, or rarely sampled ones, decay more slowly along the line. They take more nodes, for which the transform is
a non-uniform FFT, and if that is not enough the curve is blurred: averaged over [epsilon - a, epsilon + a] with a
smooth weight whose transform decays by itself. Since delta falls with epsilon, the blurred value at epsilon + a is
below delta(epsilon) and that at epsilon - a above it.

Three errors:

* The trapezoidal rule with spacing tau = 2 pi / Lambda. By Poisson summation it returns the sum over all integers k of
  delta(epsilon + k Lambda) e^(k theta Lambda): never too small, and Chernoff's inequality bounds the surplus.
* The cut at height t_max. If L has density at least c on an interval of width w then
  |E e^(itL)| <= 1 - c w (1 - |sin(tw/2) / (tw/2)|): with the intervals of the quadrature this bounds everything beyond
  (c is the density at their ends, less a margin of 5 %).
* The quadrature for K itself, compared with its own half at no frequency and at up to half of the highest: a
  geometrically convergent rule of twice the resolution is right to about the square of what its half is off by. For a
  half off by e the bracket allows the smaller of 1e-3 e and 1e3 e^2.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import log_ndtr

from adadp.accounting.composition import Composition
from adadp.accounting.nufft import nonuniform_transform
from adadp.accounting.privacy_losses import Discrete
from adadp.accounting.quadrature import Array, Family
from adadp.errors import UnsupportedEvent

ComplexArray = NDArray[np.complex128]

_RELATIVE_CUT = 1e-3
"""Wanted size of the cut-off tail, relative to delta."""
_ALIASED = 7.0
"""Aliasing is pushed below e^-7 of that."""
_MOST_SHARP, _MOST_BLURRED, _MOST_HEIGHTS = 1 << 14, 1 << 16, 1 << 18
"""Integration nodes allowed without blurring, with it, and where the blur would have to be wider than ``_WIDEST``."""
_MOST_WORK = 1 << 18
"""Integration nodes times noise levels allowed before the curve is blurred."""
_FINEST, _WIDEST, _SPLINE = 5e-4, 4e-3, 12
"""Half widths of the blur relative to epsilon, and the order of its spline."""
_ROUGH = 8
"""How many times wider the blur is, and fewer the nodes, where epsilon is not known yet."""
_MOST_POINTS = 1 << 19
_SINGLE_POINTS = 1 << 15
_MOST_OUTCOMES = 1 << 22
_DIRECT = 3e4
"""Evaluations of e^(sL) per release up to which the plain sum is faster than the non-uniform FFT."""
_NUFFT = 2e-13
"""What the non-uniform FFT and rounding are off by, relative to the mass."""
_SIDE_LOBE = 0.21723362821122166
"""Largest |sin x / x| beyond its first zero."""


@dataclass(frozen=True)
class Curve:
    """Bounds on delta as a function of epsilon, tight near the epsilon they were built for and true everywhere."""

    lower: Callable[[float], float]
    upper: Callable[[float], float]
    most: float = math.inf
    """Beyond this epsilon the upper bound is of no use."""

    def bounds(self, epsilon: float) -> tuple[float, float]:
        """(low, high) with low <= delta(epsilon) <= high."""
        low = self.lower(epsilon)
        return low, max(low, self.upper(epsilon))


def saddle_point(
    composition: Composition, *, epsilon: float | None = None, log_delta: float | None = None, near: float | None = None
) -> float:
    """The theta where e^(K(theta) - theta epsilon) / (theta (theta + 1)) is least, for a given epsilon or log delta.

    Any positive theta gives a true answer; this one needs the fewest nodes. For a log delta the saddle-point
    approximation of delta is solved for theta. ``near`` is where the search begins.
    """

    def excess(theta: float) -> float:
        """Increasing in theta, 0 at the answer."""
        value, first, second = composition.cumulants(theta)
        at = first - 1 / theta - 1 / (theta + 1)
        if log_delta is None:
            assert epsilon is not None
            return at - epsilon
        spread = second + 1 / theta**2 + 1 / (theta + 1) ** 2
        log_size = value - theta * at - math.log(theta * (theta + 1)) - 0.5 * math.log(2 * math.pi * spread)
        return log_delta - log_size

    # theta has the unit of 1/loss: start from the scale of the loss, and never go where e^(theta L) loses its digits.
    _, first, second = composition.cumulants(0.0)
    scale = math.log(1 / math.sqrt(second + first * first))
    floor, ceiling, reach = scale - 30, scale + 14, 1.0
    low = high = scale
    if near is not None:
        low = high = min(max(math.log(near), floor), ceiling)
        reach = 0.1
    if excess(math.exp(low)) > 0:
        while low > floor and excess(math.exp(low)) > 0:
            high, low, reach = low, low - reach, min(3 * reach, 1.0)
    else:
        while high < ceiling and excess(math.exp(high)) < 0:
            low, high, reach = high, high + reach, min(3 * reach, 1.0)
    while high - low > 0.03:
        middle = (low + high) / 2
        if excess(math.exp(middle)) > 0:
            high = middle
        else:
            low = middle
    return math.exp((low + high) / 2)


def log_chernoff(composition: Composition, theta: float, epsilon: float) -> float:
    """Upper bound on log delta(epsilon): (1 - e^(-u))+ <= e^(theta u) theta^theta / (1 + theta)^(1 + theta)."""
    constant = theta * math.log(theta) - (1 + theta) * math.log1p(theta)
    return composition.cumulants(theta)[0] - theta * epsilon + constant


def _window(composition: Composition, theta: float, tiny: float) -> tuple[float, float]:
    """(low, high): delta(x) e^(theta x) is below e^(K(theta) - tiny) for x > high, and for x < low, or known there.

    By Chernoff's inequality; for x below ``mostly_above``, delta(x) is a formula (``_surplus``).
    """
    value, first, second = composition.cumulants(theta)
    spread = max(math.sqrt(second), 1e-9 * abs(first))  # a tilt to the very end of a bounded loss leaves no spread
    high, low = composition.highest, composition.mostly_above
    if high > first + spread:
        high = min(high, _least(lambda shift: (composition.cumulants(theta + shift)[0] - value + tiny) / shift, spread))
    if low < first - spread:
        steep = max(spread, 1 / theta)  # no further back than to theta = 0
        back = _least(lambda back: (composition.cumulants(theta - back)[0] - value + tiny) / back, steep, theta)
        low = max(low, -back)
    return min(low, first), max(high, first)


def _least(bound: Callable[[float], float], spread: float, most: float = math.inf) -> float:
    """A small value of ``bound`` over shifts up to ``most``: any one is valid, and a factor of 2 is near enough."""
    shift = min(2 / spread, most)
    best = bound(shift)
    for factor in (0.5, 2.0):
        tried = shift
        while 1e-3 < (tried := tried * factor) * spread < 1e3 and tried <= most:
            if (found := bound(tried)) >= best:
                break
            best, shift = found, tried
    return best


def _levels(composition: Composition) -> int:
    """How many different releases are in it."""
    return max(1, sum(len(family.counts) for family in composition.families))


def _resolution(  # noqa: PLR0917
    composition: Composition, theta: float, epsilon: float, tau: float, wanted: float, rough: int
) -> tuple[int, float, float]:
    """How many nodes tau apart, how wide a blur, and the bound on what is then cut off: ``wanted`` if it can be had.

    Without a blur if the nodes are few enough; else with the narrowest that as many nodes as are affordable resolve.
    """
    damping = [_Damping(family, theta) for family in composition.families]
    affordable = max(_MOST_WORK // _levels(composition), 1 << 12) // rough
    known: dict[int, float] = {}

    def cut(steps: int, blur: float) -> float:
        if steps not in known:
            known[steps] = _cut_bound(composition, damping, tau * steps)
        return known[steps] * (min(1.0, _SPLINE / (tau * steps * blur)) ** _SPLINE if blur > 0 else 1.0)

    few, many = 5, math.floor(math.log2(min(_MOST_SHARP, affordable)))
    if cut(1 << many, 0.0) <= wanted:
        while few < many:  # the least power of 2 that will do
            middle = (few + many) // 2
            if cut(1 << middle, 0.0) <= wanted:
                many = middle
            else:
                few = middle + 1
        return 1 << many, 0.0, cut(1 << many, 0.0)
    unit = _unit(epsilon, theta, rough)
    blur, steps = _FINEST * unit, min(_MOST_BLURRED, affordable)
    while (left := cut(steps, blur)) > wanted:
        if blur < _WIDEST * unit:
            blur = min(blur * math.sqrt(2), _WIDEST * unit)
        elif steps < _MOST_HEIGHTS:
            steps *= 2
        else:
            break
    while steps > 64 and (fewer := cut(steps // 2, blur)) <= wanted:
        steps, left = steps // 2, fewer
    return steps, blur, left


def _unit(epsilon: float, theta: float, rough: int) -> float:
    """What the width of the blur is relative to."""
    return min(rough * max(epsilon, 1e-3 / theta), 1 / (_WIDEST * theta))


class _Line(NamedTuple):
    """A line Re s = theta with its window, its nodes and what is cut off."""

    theta: float
    value: float
    low: float
    high: float
    tau: float
    steps: int
    blur: float
    cut: float
    wanted: float
    tiny: float
    work: float


def _line(composition: Composition, theta: float, epsilon: float, delta: float, rough: int) -> _Line:
    value = composition.cumulants(theta)[0]
    # Errors are relative to e^(K(theta) - theta epsilon), the Chernoff bound on delta but for a factor. Where epsilon
    # is small delta hardly falls with it, and must be known better.
    relative = _RELATIVE_CUT * min(1.0, max(theta * epsilon, 0.03)) ** 2
    wanted = relative * math.exp(max(min(math.log(delta) + theta * epsilon - value, 0.0), -600.0))
    tiny = _ALIASED - math.log(wanted)
    low, high = _window(composition, theta, tiny)
    tau = 2 * math.pi / (high - low + 4 * _WIDEST * _unit(epsilon, theta, rough))
    steps, blur, cut = _resolution(composition, theta, epsilon, tau, wanted, rough)
    # A blur twice as wide saves half of the nodes.
    work = rough * steps * _levels(composition) * max(1.0, blur / (_FINEST * rough * max(epsilon, 1e-300)))
    return _Line(theta, value, low, high, tau, steps, blur, cut, wanted, tiny, work)


def contour_curve(
    composition: Composition, theta: float, epsilon: float, delta: float, *, rough: bool = False
) -> Curve:
    """Bounds on delta(.) from the line Re s = theta, tight near ``epsilon`` where it is about ``delta``.

    ``rough``: epsilon is a guess, and a tenth of the work will do unless that is little anyway.
    """
    coarser = _ROUGH if rough else 1
    line = _line(composition, theta, epsilon, delta, coarser)
    # The saddle point may lie where rare large losses begin to rule, and the window is wide: a lower line has less of
    # them, and costs a smaller wanted error.
    while line.work > _MOST_WORK // 8:
        lower_line = _line(composition, 0.7 * line.theta, epsilon, delta, coarser)
        if lower_line.work > 0.8 * line.work or 10 * lower_line.wanted < composition.releases * _NUFFT:
            break
        line = lower_line
    theta, value, low, high, tau, steps, blur, cut, wanted, tiny, _ = line
    heights = tau * np.arange(steps + 1, dtype=np.float64)
    exponent, roughness = _log_transform(composition, theta, heights)
    s = theta + 1j * heights
    weight = _blur_factor(heights, theta, blur) / (s * (s + 1))
    weight[0] *= 0.5
    slack = float(np.abs(weight).sum()) * tau / math.pi * roughness
    # The atoms at loss 0 multiply to a point mass at 0, which adds nothing to delta(epsilon >= 0). _cut_bound leaves it
    # out of the tail, so it is left out of the sum too. Below 0, where the blur may reach, it is 1 - e^epsilon of it.
    kernel = np.asarray((np.exp(exponent - value) - composition.at_zero * math.exp(-value)) * weight)
    size = np.abs(kernel) * tau / math.pi
    # The bound on the cut is often far above what there is: leave out the end that adds nothing.
    after = np.cumsum(size[::-1])[::-1]
    kept = int(np.count_nonzero(after > 0.01 * max(cut, wanted)))
    slack += float(after[kept]) if kept < len(after) else 0.0
    kernel, heights = kernel[:kept], heights[:kept]
    aliased = 2 * math.exp(-tiny)
    known = low == composition.mostly_above
    surplus, spill = _surplus(composition, theta, 2 * math.pi / tau, blur) if known else (None, 0.0)

    def integral(at: float) -> tuple[float, float]:
        """The integral at epsilon = ``at``, and the scale e^(K(theta) - theta at) its errors are relative to."""
        scale = math.exp(min(value - theta * at, 700.0))
        body = scale * tau / math.pi * float(np.sum((kernel * np.exp(-1j * heights * at)).real))
        return body if surplus is None else body - surplus(at), scale

    # Outside the window the surplus of aliasing is not bounded: there the trivial bounds stand.
    def lower(at: float) -> float:
        if at + blur > high:
            return 0.0
        body, scale = integral(max(at, low) + blur)
        return min(1.0, max(0.0, body - spill - scale * (cut + slack + aliased)) + composition.jumped(at)[0])

    def upper(at: float) -> float:
        if at - blur < low:
            return 1.0
        body, scale = integral(at - blur)
        reached = -composition.at_zero * math.expm1(min(at - 2 * blur, 0.0))
        body = max(0.0, body + spill + scale * (cut + slack + aliased)) + reached
        return min(1.0, body + composition.cut_off + composition.jumped(at)[1])

    # Beyond ``farthest`` jumps are the greater part of delta, and their bound is of no use.
    few_jumps = composition.jumped(math.inf)[1] <= _RELATIVE_CUT * delta
    return Curve(lower, upper, math.inf if few_jumps else composition.farthest)


def _surplus(
    composition: Composition, theta: float, period: float, blur: float
) -> tuple[Callable[[float], float], float]:
    """What aliasing adds from below, where the loss almost never falls below a level: a formula, and its error.

    For x <= level, delta(x) = E_P[1 - e^(x - L)] = P - Q e^x with the masses P and Q that are not let go, but for
    e^x Q(L < x); blurred, e^x is multiplied by the mean of e^u. The trapezoidal rule adds it at x = epsilon - k period,
    times e^(-k theta period).
    """
    by_p, by_q = composition.kept
    knot = blur / _SPLINE
    mean = 1.0
    if blur > 0:
        mean = (math.sinh((theta + 1) * knot) / math.sinh(theta * knot) * theta / (theta + 1)) ** _SPLINE
    whole = by_p / math.expm1(min(theta * period, 700.0))
    rising = by_q * mean / math.expm1(min((theta + 1) * period, 700.0))
    level = composition.mostly_above
    # The masses are known to 1e-15 a release.
    missed = math.exp(level) * composition.dip(level) + 1e-15 * composition.releases
    spill = missed / math.expm1(min(theta * period, 700.0))
    return (lambda at: whole - rising * math.exp(min(at, 700.0))), spill


def _blur_factor(heights: Array, theta: float, blur: float) -> Array:
    """The transform on the line of a density on [-blur, blur]: e^(theta u) times a B-spline of order 12, normalised."""
    if blur == 0:
        return np.ones_like(heights)
    knot = blur / _SPLINE
    return np.asarray((np.sinc(heights * knot / math.pi) * (theta * knot) / math.sinh(theta * knot)) ** _SPLINE)


def gaussian_delta(mu: float, epsilon: float) -> float:
    """The delta of one Gaussian release with sensitivity / std = ``mu`` (Balle and Wang 2018, Theorem 8)."""
    first = float(log_ndtr(mu / 2 - epsilon / mu))
    second = epsilon + float(log_ndtr(-mu / 2 - epsilon / mu))
    return math.exp(first) * -math.expm1(min(second - first, 0.0))


def direct_curve(composition: Composition) -> Curve | None:
    """Bounds on delta where E[(1 - e^(epsilon - L))+] can be summed as it stands; None where it cannot.

    Gaussian releases alone have a closed form, and finitely many losses are added up. For a single smooth release the
    kink at L = epsilon leaves the quadrature, on many nodes, an error of second order, which is bounded.
    """
    if not composition.families:
        mu = math.sqrt(composition.precision)
        return _closed_form(lambda epsilon: gaussian_delta(mu, epsilon))
    if composition.precision > 0:
        return None
    if all(isinstance(family, Discrete) for family in composition.families):
        return _discrete_curve([family for family in composition.families if isinstance(family, Discrete)])
    if composition.releases > 1:
        return None
    (family,) = composition.families
    nodes = family.nodes(0.0, 0.0, least=_SINGLE_POINTS)
    mass, loss = np.exp(nodes.log_mass), nodes.loss
    kinks = mass * nodes.width / 10

    def value_and_error(epsilon: float) -> tuple[float, float]:
        value = float(np.sum(mass * -np.expm1(np.minimum(epsilon - loss, 0.0))))
        # A kink of slope J costs the trapezoidal rule at most h^2 J / 12, and here h^2 J is a node's mass times width.
        near = np.where(np.abs(loss - epsilon) <= 2 * nodes.width, kinks, 0.0)
        return value, sum(float(near[:, part].max()) for part in nodes.parts) + 1e-13 * value

    def lower(epsilon: float) -> float:
        value, error = value_and_error(epsilon)
        return max(0.0, value - error)

    def upper(epsilon: float) -> float:
        return min(1.0, sum(value_and_error(epsilon)) + composition.cut_off)

    return Curve(lower, upper)


def _discrete_curve(families: list[Discrete]) -> Curve:
    masses, losses = np.ones(1), np.zeros(1)
    for family in families:
        part = family.composed(_MOST_OUTCOMES // len(masses))
        if part is None:
            raise UnsupportedEvent(
                f"pld cannot account for selections with more than {_MOST_OUTCOMES:,} joint outcomes.",
                why="Without a Gaussian release their privacy loss has no density to integrate over.",
                fix="Use rdp.",
            )
        masses = np.multiply.outer(masses, part[0]).ravel()
        losses = np.add.outer(losses, part[1]).ravel()

    return _closed_form(lambda epsilon: float(np.sum(masses * -np.expm1(np.minimum(epsilon - losses, 0.0)))))


def _closed_form(value: Callable[[float], float]) -> Curve:
    """A formula with room for the rounding of its evaluation."""
    return Curve(lambda epsilon: value(epsilon) * (1 - 1e-9), lambda epsilon: min(1.0, value(epsilon) * (1 + 1e-9)))


def _log_transform(composition: Composition, theta: float, heights: Array) -> tuple[ComplexArray, float]:
    """K(theta + i t) for all heights, and a bound on what its errors do to the integrand, relative to that at t = 0.

    An error e of one factor E[e^(sL)], relative to its size at t = 0, moves the product of n of them by at most n e,
    since the other factors are at most their size at t = 0.
    """
    s = theta + 1j * heights
    total = np.asarray(composition.precision * s * (s + 1) / 2, dtype=np.complex128)
    error = 1e-13
    for family in composition.families:
        nodes = family.nodes(theta, theta, float(heights[-1]), most=_MOST_POINTS)
        points = nodes.loss.shape[1]
        tilted = nodes.log_mass + theta * nodes.loss
        top = tilted.max(axis=1)
        weights = np.exp(tilted - top[:, None])
        direct = points * len(heights) <= _DIRECT
        rows = max(1, int(4e6 // (points * len(heights) if direct else 4 * len(heights) + points)))
        for start in range(0, len(family.counts), rows):
            chunk = slice(start, start + rows)
            if direct:
                waves = np.exp(1j * nodes.loss[chunk, :, None] * heights)
                sums = np.einsum("rp,rph->rh", weights[chunk], waves)
            else:
                sums = nonuniform_transform(weights[chunk], nodes.loss[chunk] * heights[1], len(heights))
            total = total + family.counts[chunk] @ (top[chunk, None] + np.log(sums))
            # Half of the rule at half the height resolves an oscillation half as well as the rule does at the top.
            tried = heights[[0, len(heights) // 4, 3 * len(heights) // 8, len(heights) // 2]]
            ends = np.exp(1j * nodes.loss[chunk, :, None] * tried) * weights[chunk, :, None]
            worst = np.abs(2 * _half(ends, nodes.parts) - ends.sum(axis=1)).max(axis=1) / sums[:, 0].real
            error += float(
                family.counts[chunk] @ (np.minimum(1e-3 * worst, 1e3 * worst**2) + (2e-14 if direct else _NUFFT))
            )
    return total, error


def _half(waves: ComplexArray | NDArray[np.float64], parts: tuple[slice, ...]) -> ComplexArray:
    """Every second node of each part of the quadrature; what belongs to no part (atoms) is exact and counts half."""
    covered = parts[-1].stop if parts else 0
    half: ComplexArray = waves[:, covered:].sum(axis=1) / 2
    for part in parts:
        half = half + waves[:, part.start : part.stop : 2].sum(axis=1)
    return half


def _cut_bound(composition: Composition, damping: list[_Damping], t_max: float) -> float:
    """Bound on the integral beyond t_max, relative to e^(K(theta) - theta epsilon), without a blur."""
    log_factor = -composition.precision * t_max * t_max / 2
    log_atoms = 0.0 if composition.precision == 0 else -math.inf
    for family, damped in zip(composition.families, damping, strict=True):
        with np.errstate(divide="ignore"):
            log_factor += float(family.counts @ np.log(damped.beyond(t_max)))
            log_atoms += float(family.counts @ np.log(damped.atom))
    # The point mass that the atoms at loss 0 make was taken out of the integrand, so only the rest is cut off.
    beyond = math.exp(log_factor) - (math.exp(log_atoms) if log_atoms > -700 else 0.0)
    return max(beyond, 0.0) / (math.pi * t_max)


class _Damping:
    """How |E e^((theta + it)L)| / E e^(theta L) of each release falls with t."""

    def __init__(self, family: Family, theta: float) -> None:
        nodes = family.nodes(theta, theta)
        tilted = nodes.log_mass + theta * nodes.loss
        top = tilted.max(axis=1, keepdims=True)
        weights = np.exp(tilted - top)
        self.total = weights.sum(axis=1)
        self.atom = np.clip(family.atom * np.exp(-top[:, 0]) / self.total, 0.0, 1.0)
        """The share of the atom at 0."""
        density = np.divide(weights, nodes.width, out=np.zeros_like(weights), where=nodes.width > 0)
        self.parts = [_blocks(density[:, part], nodes.loss[:, part]) for part in nodes.parts]

    def beyond(self, t_max: float) -> Array:
        """A bound on it for every t >= t_max."""
        gained = np.zeros(len(self.total))
        for blocks in self.parts:
            found = [(share * (1 - _sinc_envelope(t_max * width / 2))).sum(axis=1) for share, width in blocks]
            gained += np.max(found, axis=0, initial=0.0)
        return np.asarray(np.clip(1 - 0.95 * gained / self.total, 1e-300, 1.0))


def _blocks(density: Array, loss: Array) -> list[tuple[Array, Array]]:
    """Intervals of 1, 2, 4, ... nodes: the mass of the least density on each, and how wide it is."""
    found: list[tuple[Array, Array]] = []
    while loss.shape[1] > 1:
        width = np.abs(np.diff(loss, axis=1))
        floor = np.minimum(density[:, :-1], density[:, 1:]) if not found else density
        found.append((floor * width, width))
        even = (loss.shape[1] - 1) // 2 * 2
        density = np.minimum(floor[:, 0:even:2], floor[:, 1:even:2])
        loss = loss[:, : even + 1 : 2]
    return found


def _sinc_envelope(x: Array) -> Array:
    """The largest |sin z / z| over z >= x."""
    with np.errstate(divide="ignore", invalid="ignore"):
        main = np.where(x < 1e-8, 1.0, np.sin(x) / x)
        return np.where(x < 2.5, np.maximum(main, _SIDE_LOBE), np.minimum(_SIDE_LOBE, 1 / x))
