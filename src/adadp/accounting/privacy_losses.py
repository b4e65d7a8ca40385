"""Privacy losses of the mechanisms AdaDP accounts for, as families of random variables.

For an ordered pair of output distributions (P, Q) the privacy loss is L = log P(o)/Q(o) with o drawn from P, and
delta(epsilon) = E_P[(1 - e^(epsilon - L))+]. Losses of composed releases add, so all an accountant needs of a release
is the distribution of its L. The pairs used here dominate the mechanism at every epsilon, not only at one, which is
what composition needs (Zhu, Dong, Wang, "Optimal accounting of differential privacy via characteristic function",
2022). With y the log likelihood ratio of the unsampled Gaussian, y ~ N(-mu^2/2, mu^2) when the record is absent, and
w = 1 - q + q e^y:

    Poisson, remove       P = (1-q) N(0) + q N(1),  Q = N(0):        L = log w,   P-density phi w
    Poisson, add          P and Q exchanged:                          L = -log w,  P-density phi
    Poisson, replace-one  P = (1-q) N(0) + q N(1),  Q = (1-q) N(0) + q N(-1)
    fixed size, replace   L > 0 as in remove, L < 0 as in add, the rest of the mass at L = 0

(docs/accounting.md proves the third and fourth). A family holds many releases of one kind that differ in (q, mu) and
in how often they occur, so that a schedule of a hundred noise levels is one array operation.

Expectations are trapezoidal sums over a variable in which the integrand is analytic and decays at both ends, where the
rule converges geometrically (Trefethen and Weideman, "The exponentially convergent trapezoidal rule", 2014).
"""

from __future__ import annotations

import itertools
import math
from abc import ABC, abstractmethod
from copy import copy
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray
from scipy.special import erf, gammaln, log_ndtr, ndtr, ndtri, xlogy

Array = NDArray[np.float64]

NEGLIGIBLE = 42.0
"""Nodes whose tilted density is below e^-42 of the largest are left out: 6e-19 of the mass each."""
_UNSEEN = 34.0
"""The same where rounding of 2e-14 is allowed for."""
_REACH = 9.5
"""Standard deviations kept on each side of a Gaussian bump: its tails beyond hold 2e-21."""
_TAPER = 0.1
"""Width, in standard deviations, over which the density is let down to 0 at the cap."""
_STEEP = 0.03
"""The same for a cap on the loss, in units of the log likelihood ratio y: the cap is sharp to a factor of 4/3."""
_AHEAD = 10.0
"""Widths of the taper before the cap where the nodes begin to be denser: ndtr(-10) is nothing."""
_CLEAR = 20.0
"""Widths of the taper between a loss of 0 and the cap on it, so that nothing is let go at 0."""
_SMOOTH = 8.6
"""Highest frequency of a standard normal density, for an error of e^-37."""
_FAST = 20.0
"""Frequency that oscillations are slowed down to: more saves nodes where the loss runs fast, and costs elsewhere."""
_RARE = 1e-6
_MOST_CAPS = 12
_UNKNOWN = 1e-4
"""How well what jumps add must be known, relative to delta."""
_LOG_SQRT_2PI = 0.5 * math.log(2 * math.pi)


@dataclass(frozen=True)
class Nodes:
    """A quadrature for a family: E_P[g(L)] = sum_j exp(log_mass[e, j]) g(loss[e, j]) for release e.

    ``width`` is how much of the loss axis a node stands for, so that ``exp(log_mass) / width`` is the density of L.
    ``parts`` are the column ranges on which the loss is a monotone function of the quadrature variable; columns in none
    of them are atoms.
    """

    log_mass: Array
    loss: Array
    width: Array
    parts: tuple[slice, ...]


class Family(ABC):
    """Releases of one kind: ``counts[e]`` times the release of row e."""

    def __init__(self, counts: Array) -> None:
        self.counts = counts
        self.atom = np.zeros_like(counts)
        """Probability that the loss is exactly 0, per release."""

    @property
    def let_go(self) -> float:
        """Bound on the probability that any outcome lies beyond the cap, where the tapered density has let it go."""
        return 0.0

    @abstractmethod
    def nodes(self, low: float, high: float, frequency: float = 0.0, least: int = 3, most: int = 1 << 20) -> Nodes:
        """A quadrature good for exp(s L) with Re s in [low, high] and |Im s| <= ``frequency``.

        It has at least ``least`` and at most ``most`` points for each part.
        """


class SmoothFamily(Family):
    """Sampled Gaussians with sampling rate ``q[e]`` and ``mu[e]`` = sensitivity / standard deviation.

    Outcomes more than ``cap`` standard deviations of the noise out are let go (smoothly, so that the quadrature still
    converges geometrically). Without a cap the moments of a sampled Gaussian are ruled, from some order on, by outcomes
    that never happen (the jump at order 147 in figure 1 of Yu et al. 2019), and a tilt towards them is of no use.
    """

    shifted = True
    """Whether P has a part around mu, not only around 0."""
    rising = 1.0
    """1 if the loss rises with the quadrature variable, -1 if it falls."""

    def __init__(self, q: Array, mu: Array, counts: Array, cap: float = math.inf) -> None:
        super().__init__(counts)
        self.q = q
        self.mu = mu
        self.cap = cap
        self.taper = np.full_like(mu, _TAPER)
        self.last = cap + (mu if self.shifted else 0 * mu)
        """Outcomes beyond it are let go, over ``taper`` on either side."""

    @property
    def let_go(self) -> float:
        return 2 * float(self.counts.sum()) * float(ndtr(-self.cap / math.hypot(1, _TAPER)))

    @abstractmethod
    def _pull(self, tilt: float) -> Array:
        """Where the tilt e^(tilt L) can move the bump at 0 to, at most."""

    @abstractmethod
    def _evaluate(self, u: Array) -> tuple[Array, Array, Array]:
        """Log of the P-density of u, the loss, and |dL/du|, for an array u of shape (releases, points)."""

    def _inside(self, rows: NDArray[np.intp], u: Array) -> Array:
        """How far ``u`` of release ``rows`` is from where half is let go, in widths of the taper."""
        return np.asarray((self.last[rows] - u) / self.taper[rows])

    def _interval(self, low: float, high: float) -> tuple[Array, Array]:
        """Where u must run, per release, for every tilt between ``low`` and ``high``."""
        ends = np.stack([self._pull(low), self._pull(high), 0 * self.mu])
        return ends.min(axis=0) - _REACH, np.minimum(ends.max(axis=0) + _REACH, self.last + _REACH * self.taper)

    def _slowed(self, v: Array, last: Array) -> tuple[Array, Array]:
        """The u of v, and du/dv: v + a constant far from the cap, in units of the taper from shortly before it on."""
        taper = self.taper[:, None]
        before = -(v + _AHEAD)
        small = np.exp(-np.abs(before))
        u = last + taper * v - (1 - taper) * (np.maximum(before, 0.0) + np.log1p(small))
        return u, taper + (1 - taper) * np.where(before > 0, 1.0, small) / (1 + small)

    def _losses(self, v: Array, last: Array) -> tuple[Array, Array]:
        """The loss and |dL/dv|."""
        u, du = self._slowed(v, last)
        _, loss, slope = self._evaluate(u)
        return loss, slope * du

    def _points(self, v: Array, last: Array) -> tuple[Array, Array, Array]:
        """Log of the P-density of v, let down to 0 at the cap, the loss, and |dL/dv|."""
        u, du = self._slowed(v, last)
        density, loss, slope = self._evaluate(u)
        if (near := v > -_AHEAD).any():
            density[near] += log_ndtr(self._inside(np.nonzero(near)[0], u[near]))
        return density + np.log(du), loss, slope * du

    def nodes(self, low: float, high: float, frequency: float = 0.0, least: int = 3, most: int = 1 << 20) -> Nodes:
        left, right = self._interval(low, high)
        # Where no cap is in reach the map is the identity, but for a constant.
        last = np.where(self.last < right + 2, self.last, right + 40.0)[:, None]
        start, end = left - last[:, 0] - _AHEAD, np.minimum(right - last[:, 0] - _AHEAD + 1, _REACH)
        scout = _grid(start, np.where(last[:, 0] == self.last, _REACH, end), _scouts(start, end))
        density, loss, slope = self._points(scout, last)
        tilts = [density + tilt * loss for tilt in {low, high}]
        ignored = NEGLIGIBLE if frequency == 0 else _UNSEEN
        kept = np.any([tilted.max(axis=1, keepdims=True) - tilted < ignored for tilted in tilts], axis=0)
        rows, most_right = np.arange(len(left)), scout.shape[1] - 1
        first = np.maximum(kept.argmax(axis=1) - 1, 0)
        final = np.minimum(most_right - kept[:, ::-1].argmax(axis=1) + 1, most_right)
        # A Gaussian times e^(i f v) needs a step of 2 pi / (8.6 + f) for an error of e^-37; the branch point of log w
        # at Im y = pi adds the limit 0.5 / mu. Both with a margin of 1.3.
        limit = 0.5 / np.maximum(self.mu, 0.5)
        if frequency == 0:
            steps = np.minimum(2 * math.pi / _SMOOTH, limit) / 1.3
            start, end = scout[rows, first], scout[rows, final]
            size = max(min(int(np.max((end - start) / steps)) + 3, most), least)
            v, spacing = _grid(start, end, size), ((end - start) / (size - 1))[:, None]
            stretch = np.ones_like(v)
            density, loss, slope = self._points(v, last)
        else:
            # In x = kappa v + beta L(v) e^(i f L) has no frequency above 20: nodes are dense where the loss runs fast.
            step = 2 * math.pi / (_SMOOTH + _FAST) / 1.3
            beta, kappa = frequency / _FAST, np.maximum(1.0, 1.3 * step / limit)[:, None]
            begin, finish = scout[rows, first], scout[rows, final]
            plain = kappa[:, 0] * (finish - begin)
            run = self.rising * (loss[rows, final] - loss[rows, first])
            if (longest := float(np.max(plain + beta * run))) > (most - 3) * step:
                # Too few nodes: high frequencies are given up first, which the half of the rule then shows.
                least_length = float(plain.max())
                beta *= max((most - 3) * step - least_length, 0.0) / max(longest - least_length, 1e-300)
            along = kappa * scout + beta * self.rising * loss
            start, end = along[rows, first], along[rows, final]
            size = max(min(int(np.max((end - start) / step)) + 3, most), least)
            spacing = ((end - start) / (size - 1))[:, None]
            table = _grid(begin, finish, max(64, int(np.max((finish - begin) * np.maximum(self.mu, 1.0) / 0.15))))
            v = self._inverted(_grid(start, end, size), table, (kappa, beta), last)
            density, loss, slope = self._points(v, last)
            stretch = kappa + beta * slope
        width = spacing / stretch
        return Nodes(density + np.log(width), loss, width * slope, (slice(0, size),))

    def _inverted(self, along: Array, table: Array, scales: tuple[Array, float], last: Array) -> Array:
        """The v with kappa v + beta L(v) = ``along``: cubic interpolation of a table, then Newton's method twice."""
        kappa, beta = scales
        loss, slope = self._losses(table, last)
        values, steep = kappa * table + beta * self.rising * loss, kappa + beta * slope
        cells = np.stack([np.searchsorted(row, x) for row, x in zip(values, along, strict=True)]) - 1
        rows, cells = np.arange(len(table))[:, None], np.clip(cells, 0, table.shape[1] - 2)
        start, width = values[rows, cells], values[rows, cells + 1] - values[rows, cells]
        share = np.clip((along - start) / width, 0.0, 1.0)
        low, rise = table[rows, cells], table[rows, cells + 1] - table[rows, cells]
        left, right = width / steep[rows, cells] - rise, rise - width / steep[rows, cells + 1]
        v = low + share * rise + share * (1 - share) * ((1 - share) * left + share * right)
        for _ in range(2):
            loss, slope = self._losses(v, last)
            gap = kappa * v + beta * self.rising * loss - along
            v = np.clip(v - gap / (kappa + beta * slope), low, low + rise)
        return np.asarray(v)


def _scouts(start: Array, end: Array) -> int:
    """How many points find where the mass is."""
    return max(96, int(3 * float(np.max(end - start))))


def _grid(left: Array, right: Array, size: int) -> Array:
    return left[:, None] + (right - left)[:, None] * np.linspace(0.0, 1.0, size)[None, :]


def _log_mix(q: Array, y: Array) -> Array:
    """log(1 - q + q e^y) without overflow, and without losing digits where it is close to 0."""
    mixed = np.log1p(q * np.expm1(np.minimum(y, 1.0)))
    if (large := y >= 1.0).any():
        rate = np.broadcast_to(q, y.shape)[large]
        mixed[large] = np.logaddexp(np.log1p(-rate), np.log(rate) + y[large])
    return np.asarray(mixed)


def _log_ratio(q: Array, loss: float) -> Array:
    """The y with log(1 - q + q e^y) = ``loss``."""
    return np.asarray(loss + np.log1p(-(1 - q) * math.exp(-loss)) - np.log(q))


def _any(counts: Array, chances: Array) -> float:
    """The probability that any of ``counts[e]`` events of probability ``chances[e]`` happens, all independent."""
    return -math.expm1(float(counts @ np.log1p(-chances)))


def _mix_slope(q: Array, y: Array) -> Array:
    """d/dy log(1 - q + q e^y) = q e^y / (1 - q + q e^y)."""
    e = np.exp(-np.abs(y))
    return np.where(y > 0, q / (q + (1 - q) * e), q * e / (1 - q + q * e))


class _PoissonOneSided(SmoothFamily):
    """Common ground of remove and add. ``shift`` is added to y: what the other releases on the same batch
    contribute.
    """

    def __init__(self, q: Array, mu: Array, counts: Array, cap: float = math.inf, shift: float = 0.0) -> None:
        super().__init__(q, mu, counts, cap)
        self.shift = shift
        self.jumps = np.zeros(len(mu), dtype=bool)
        """Where outcomes are let go because of their loss."""

    def _y(self, u: Array) -> Array:
        mu = self.mu[:, None]
        return mu * u - mu * mu / 2 + self.shift

    def _moved(self, power: float) -> Array:
        """Where the bump of phi(u) w^power is, at most: w^power is between 1 and e^(power y).

        For a negative power the mode, u = power d(log w)/du, is nearer to 0 than that with the slope at 0, which falls.
        """
        slope = 1.0 if power > 0 else _mix_slope(self.q, -(self.mu**2) / 2 + self.shift)
        return np.asarray(power * self.mu * slope)

    def within(self, loss: float) -> _PoissonOneSided:
        """The same, with outcomes whose |loss| exceeds about ``loss`` let go, half of those at ``loss``."""
        found = copy(self)
        reached = (_log_ratio(self.q, loss) - self.shift + self.mu**2 / 2) / self.mu
        found.jumps = reached < self.last
        found.last = np.minimum(reached, self.last)
        found.taper = np.where(found.jumps, np.minimum(_TAPER, _STEEP / self.mu), _TAPER)
        return found

    @property
    def least_jump(self) -> float:
        """The least |loss| of what ``within`` lets go of: that ten widths of the taper before the cap."""
        first = np.where(self.jumps, self.last - _AHEAD * self.taper, math.inf)
        y = self.mu * first - self.mu**2 / 2 + self.shift
        return float(_log_mix(self.q, y).min())


class PoissonRemove(_PoissonOneSided):
    """The record is in the first data set only: P is the mixture."""

    @property
    def jump(self) -> tuple[float, float]:
        """The probabilities, by P and by Q, that some outcome is let go because of its loss, for a shift of 0."""
        return self.beyond(self.jumps)

    @property
    def let_go(self) -> float:
        return self.beyond(~self.jumps)[0]

    def beyond(self, rows: NDArray[np.bool_]) -> tuple[float, float]:
        """The probabilities that an outcome of some release in ``rows`` lies beyond the cap."""
        spread = np.hypot(1, self.taper)
        absent, present = ndtr(-self.last / spread), ndtr((self.mu - self.last) / spread)
        with np.errstate(divide="ignore"):
            by_p, by_q = np.log1p(-(1 - self.q) * absent - self.q * present), np.log1p(-absent)
        counts = self.counts[rows]
        return -math.expm1(float(counts @ by_p[rows])), -math.expm1(float(counts @ by_q[rows]))

    def _pull(self, tilt: float) -> Array:
        return self._moved(tilt + 1)  # phi(u) w^(tilt + 1)

    def _evaluate(self, u: Array) -> tuple[Array, Array, Array]:
        y = self._y(u)
        loss = _log_mix(self.q[:, None], y)
        return -u * u / 2 - _LOG_SQRT_2PI + loss, loss, self.mu[:, None] * _mix_slope(self.q[:, None], y)


class PoissonAdd(_PoissonOneSided):
    """The record is in the second data set only: Q is the mixture, and the loss never exceeds -log(1 - q)."""

    shifted = False
    rising = -1.0

    @property
    def let_go(self) -> float:
        rows = ~self.jumps
        return float(self.counts[rows] @ ndtr(-self.last[rows] / math.hypot(1, _TAPER)))

    def _pull(self, tilt: float) -> Array:
        return self._moved(-tilt)  # phi(u) w^(-tilt)

    def _evaluate(self, u: Array) -> tuple[Array, Array, Array]:
        y = self._y(u)
        slope = self.mu[:, None] * _mix_slope(self.q[:, None], y)
        return -u * u / 2 - _LOG_SQRT_2PI, -_log_mix(self.q[:, None], y), slope


class Replaced(SmoothFamily):
    """Common ground of the replace-one pairs, which are symmetric: the loss under Q is minus that under P.

    Outcomes x > 0 have the loss l(x) > 0 and a P-density p(x); their mirror images have the loss -l(x) and the
    P-density p(x) e^(-l(x)). What is left of the mass is at 0. The quadrature runs over x = softplus(u), for both
    halves at once. Outcomes beyond ``edge``, over ``soft`` on either side, and their mirror images are let go.
    """

    def __init__(self, q: Array, mu: Array, counts: Array, cap: float = math.inf) -> None:
        super().__init__(q, mu, counts, cap)
        self.jumps = np.zeros(len(mu), dtype=bool)
        """Where outcomes are let go because of their loss."""
        self._end(cap + self._middle, self.taper)

    @property
    @abstractmethod
    def _middle(self) -> Array:
        """Where, in x, the outcomes are if the record is in the batch."""

    @abstractmethod
    def _half(self, x: Array) -> tuple[Array, Array, Array]:
        """Log of the P-density of x, the loss, and its slope, for an array x of shape (releases, points)."""

    @abstractmethod
    def _where(self, loss: float) -> Array:
        """The x with that loss."""

    @abstractmethod
    def _beyond(self) -> tuple[Array, Array]:
        """The probabilities of x beyond the edge, by P and by Q; those of the mirror images are by Q and by P."""

    def _end(self, edge: Array, soft: Array) -> None:
        """Let go what is beyond ``edge``. In u the same taper is wider where x = softplus(u) is flat."""
        self.edge, self.soft = edge, soft
        self.last, self.taper = edge + np.log(-np.expm1(-edge)), soft / -np.expm1(-edge)

    def within(self, loss: float) -> Replaced:
        """The same, with outcomes whose |loss| exceeds about ``loss`` let go, half of those at ``loss``."""
        found = copy(self)
        steep = np.minimum(_TAPER, _STEEP / self.mu)
        reached = np.maximum(self._where(loss), _CLEAR * steep)
        found.jumps = reached < self.edge
        found._end(np.where(found.jumps, reached, self.edge), np.where(found.jumps, steep, self.soft))
        return found

    @property
    def least_jump(self) -> float:
        """The least |loss| of what ``within`` lets go of: that ten widths of the taper before the edge."""
        first = np.where(self.jumps, self.edge - _AHEAD * self.soft, self.edge)
        return float(np.where(self.jumps, self._half(first[:, None])[1][:, 0], math.inf).min())

    @property
    def variation(self) -> float:
        """The sum of the total variation distances, q (2 Phi(d) - 1) for outcomes at d if the record is in the
        batch.
        """
        return float(self.counts @ (self.q * erf(self._middle / math.sqrt(2))))

    @property
    def jump(self) -> tuple[float, float]:
        """The probabilities, by P and by Q, that some loss was let go because it is so large; by Q and by P, so low."""
        by_p, by_q = (_any(self.counts[self.jumps], chance[self.jumps]) for chance in self._beyond())
        return by_p, by_q

    @property
    def beyond_either(self) -> Array:
        """The probability, by P as by Q, that an outcome or its mirror image was let go."""
        by_p, by_q = self._beyond()
        return by_p + by_q

    @property
    def let_go(self) -> float:
        return 2 * float(self.counts[~self.jumps].sum()) * float(ndtr(-self.cap / math.hypot(1, _TAPER)))

    def _inside(self, rows: NDArray[np.intp], u: Array) -> Array:
        return np.asarray((self.edge[rows] - np.logaddexp(0.0, u)) / self.soft[rows])

    def _interval(self, low: float, high: float) -> tuple[Array, Array]:
        # u down to -40 leaves e^-40 of the half line out at x = 0; the right end as for Poisson.
        return 0 * self.mu - 40.0, super()._interval(low, high)[1]

    def _evaluate(self, u: Array) -> tuple[Array, Array, Array]:
        x = np.logaddexp(0.0, u)
        density, loss, slope = self._half(x)
        return density + u - x, loss, slope * np.exp(u - x)

    def nodes(self, low: float, high: float, frequency: float = 0.0, least: int = 3, most: int = 1 << 20) -> Nodes:
        # p e^(-(1 + tilt) l) of the mirror images is the half at tilt' = -1 - tilt: cover both.
        half = super().nodes(min(low, -1.0 - high), max(high, -1.0 - low), frequency, least, most)
        size = half.loss.shape[1]
        with np.errstate(divide="ignore"):
            log_atom = np.log(self.atom)[:, None]
        zero = np.zeros_like(log_atom)
        return Nodes(
            np.hstack([half.log_mass, half.log_mass - half.loss, log_atom]),
            np.hstack([half.loss, -half.loss, zero]),
            np.hstack([half.width, half.width, zero]),
            (slice(0, size), slice(size, 2 * size)),
        )


class PoissonReplace(Replaced):
    """One record against its opposite: both P and Q are mixtures. x is the outcome in units of the noise."""

    @property
    def _middle(self) -> Array:
        return self.mu

    def _pull(self, tilt: float) -> Array:
        return (2 * tilt + 1) * self.mu  # both mixtures pull the same way

    def _half(self, x: Array) -> tuple[Array, Array, Array]:
        q, mu = self.q[:, None], self.mu[:, None]
        up, down = mu * x - mu * mu / 2, -mu * x - mu * mu / 2
        log_p, log_q = _log_mix(q, up), _log_mix(q, down)
        slope = mu * (_mix_slope(q, up) + _mix_slope(q, down))
        return -x * x / 2 - _LOG_SQRT_2PI + log_p, log_p - log_q, slope

    def _where(self, loss: float) -> Array:
        # a + b z = e^loss (a + b / z) with z = e^(mu x), a = 1 - q, b = q e^(-mu^2 / 2) is a quadratic equation.
        a, log_b = 1 - self.q, np.log(self.q) - self.mu**2 / 2
        rise = -a * math.expm1(-loss)
        root = np.sqrt(rise**2 + 4 * np.exp(2 * log_b - loss))
        return np.asarray((loss + np.log((rise + root) / 2) - log_b) / self.mu)

    def _beyond(self) -> tuple[Array, Array]:
        spread = np.hypot(1, self.soft)
        absent = (1 - self.q) * ndtr(-self.edge / spread)
        up, down = (ndtr((middle - self.edge) / spread) for middle in (self.mu, -self.mu))
        return absent + self.q * up, absent + self.q * down


class FixedSizeReplace(Replaced):
    """A batch drawn without replacement. ``mu`` is that of the replacement, 2 / sigma.

    The loss is +log w with P-density phi w, or -log w with P-density phi, both for y = mu x > 0; the rest is at 0.
    """

    def __init__(self, q: Array, mu: Array, counts: Array, cap: float = math.inf) -> None:
        super().__init__(q, mu, counts, cap)
        self.atom = np.asarray((1 - q) * erf(mu / math.sqrt(8)))

    @property
    def _middle(self) -> Array:
        return self.mu / 2

    def _pull(self, tilt: float) -> Array:
        return (tilt + 1) * self.mu

    def _half(self, x: Array) -> tuple[Array, Array, Array]:
        q, mu = self.q[:, None], self.mu[:, None]
        loss = _log_mix(q, mu * x)
        return -((x + mu / 2) ** 2) / 2 - _LOG_SQRT_2PI + loss, loss, mu * _mix_slope(q, mu * x)

    def _where(self, loss: float) -> Array:
        return _log_ratio(self.q, loss) / self.mu

    def _beyond(self) -> tuple[Array, Array]:
        spread = np.hypot(1, self.soft)
        absent, present = (ndtr((middle - self.edge) / spread) for middle in (-self.mu / 2, self.mu / 2))
        return (1 - self.q) * absent + self.q * present, absent


class Discrete(Family):
    """Finitely many losses: a pure-DP selection (randomised response dominates it), sampled or not."""

    def __init__(self, masses: Array, losses: Array, counts: Array) -> None:
        """``masses`` (under P) and ``losses`` have one row per release."""
        super().__init__(counts)
        self.masses = masses
        self.losses = losses

    def nodes(self, low: float, high: float, frequency: float = 0.0, least: int = 3, most: int = 1 << 20) -> Nodes:  # noqa: ARG002
        with np.errstate(divide="ignore"):
            return Nodes(np.log(self.masses), self.losses, np.zeros_like(self.losses), ())

    def composed(self, most: int) -> tuple[Array, Array] | None:
        """P-masses and losses of all releases together, or None where they are more than ``most``."""
        masses, losses = np.ones(1), np.zeros(1)
        for row_masses, row_losses, count in zip(self.masses, self.losses, self.counts, strict=True):
            if len(row_masses) == 2:
                if len(masses) * (count + 1) > most:
                    return None
                ups = np.arange(count + 1)
                ways = gammaln(count + 1) - gammaln(ups + 1) - gammaln(count - ups + 1)
                factors = [np.exp(ways + xlogy(ups, row_masses[0]) + xlogy(count - ups, row_masses[1]))]
                terms = [ups * row_losses[0] + (count - ups) * row_losses[1]]
            else:
                if len(row_masses) ** count * len(masses) > most:
                    return None
                factors, terms = [row_masses] * int(count), [row_losses] * int(count)
            for factor, term in zip(factors, terms, strict=True):
                masses = np.multiply.outer(masses, factor).ravel()
                losses = np.add.outer(losses, term).ravel()
        return masses, losses


class Mixture(Family):
    """A loss that is that of ``parts[k]`` with probability ``weights[k]``: several releases on one Poisson batch."""

    def __init__(self, parts: tuple[Family, ...], weights: tuple[float, ...]) -> None:
        super().__init__(parts[0].counts)
        self.parts = parts
        self.weights = weights

    @property
    def let_go(self) -> float:
        return self.parts[0].let_go  # a bound that does not depend on the shift: the weights of e^shift add up to 1

    def nodes(self, low: float, high: float, frequency: float = 0.0, least: int = 3, most: int = 1 << 20) -> Nodes:
        pieces = [part.nodes(low, high, frequency, least, most) for part in self.parts]
        log_mass = [piece.log_mass + math.log(weight) for piece, weight in zip(pieces, self.weights, strict=True)]
        starts = np.cumsum([0, *(piece.loss.shape[1] for piece in pieces)])
        return Nodes(
            np.hstack(log_mass),
            np.hstack([piece.loss for piece in pieces]),
            np.hstack([piece.width for piece in pieces]),
            tuple(slice(int(a), int(b)) for a, b in itertools.pairwise(starts)),
        )


@dataclass(frozen=True)
class Composition:
    """Independent losses that add: a Gaussian one of mean m/2 and variance m = ``precision``, and the families."""

    precision: float
    families: tuple[Family, ...]
    loose: bool = False
    """Whether something in it was replaced by what costs more, so that nothing is known from below."""
    least_jump: float = math.inf
    """The least loss of outcomes that were let go because of it."""
    dips: tuple[tuple[float, float], ...] = ()
    """Pairs (b, k) for which Q(L < x) <= e^(k + b x)."""
    rare: float = _RARE
    """How seldom the loss falls below ``mostly_above``."""

    @property
    def releases(self) -> float:
        """How many losses are added, the Gaussian part counting as one."""
        return float(sum(family.counts.sum() for family in self.families)) + (self.precision > 0)

    @property
    def at_zero(self) -> float:
        """Probability that every loss is exactly 0."""
        if self.precision > 0:
            return 0.0
        with np.errstate(divide="ignore"):
            return math.exp(sum(float(family.counts @ np.log(family.atom)) for family in self.families))

    @property
    def variation(self) -> float:
        """Bound on delta(0), which is at most the sum of the total variation distances, where a record was replaced."""
        if len(self._replaced) < len(self.families):
            return 1.0
        return sum((family.variation for family in self._replaced), math.erf(math.sqrt(self.precision / 8)))

    @cached_property
    def lowest(self) -> float:
        """What the summed loss never falls below."""
        if self._one_kind(PoissonRemove):
            return float(sum(family.counts @ np.log1p(-family.q) for family in self._one_sided))
        return -math.inf

    @cached_property
    def highest(self) -> float:
        """What the summed loss never exceeds."""
        if self._one_kind(PoissonAdd):
            return -float(sum(family.counts @ np.log1p(-family.q) for family in self._one_sided))
        return math.inf

    def _one_kind(self, kind: type[_PoissonOneSided]) -> bool:
        return self.precision == 0 and all(type(family) is kind for family in self.families)

    @property
    def _replaced(self) -> list[Replaced]:
        return [family for family in self.families if isinstance(family, Replaced)]

    @property
    def _one_sided(self) -> list[_PoissonOneSided]:
        return [family for family in self.families if isinstance(family, _PoissonOneSided)]

    def around(self, epsilon: float, delta: float) -> Composition:
        """The same without jumps: outcomes whose loss is so large that the sum almost surely exceeds ``epsilon``, or so
        negative that it cannot.

        They stretch the range of the loss, up to a million times beyond epsilon, and make the integral hard. What they
        add to delta needs none (``jumped``).
        """
        if self._replaced and len(self._replaced) == len(self.families):
            return self._around_replaced(epsilon, delta)
        if math.isfinite(self.highest):
            capped = [family.within(1.7 * self.highest) for family in self._one_sided]
            found = replace(self, families=tuple(capped))
            return found if min(family.least_jump for family in capped) >= self.highest else self
        if not math.isfinite(self.lowest):
            return self
        found = self._with_dips()
        loss = 1.7 * (1.35 * epsilon - found.mostly_above)
        capped = [family.within(loss) for family in self._one_sided]
        return replace(found, families=tuple(capped), least_jump=min(family.least_jump for family in capped))

    def _around_replaced(self, epsilon: float, delta: float) -> Composition:
        """The same for symmetric pairs: both jumps up and jumps down are let go.

        How far the other losses reach back is known only without their own jumps, so the cap is moved out until it is
        beyond that, and until runs with jumps in both directions are rare.
        """
        loss, rare = 1.7 * 1.35 * max(epsilon, 1e-9), min(_RARE, 1e-4 * delta)
        for _ in range(_MOST_CAPS):
            capped = [family.within(loss) for family in self._replaced]
            least = min(family.least_jump for family in capped)
            found = replace(self, families=tuple(capped), least_jump=least, rare=rare)._with_dips(24 / loss)
            low, high = found.jumped(1.2 * epsilon)
            if high - low <= _UNKNOWN * max(low, delta):
                return found
            loss *= 2
        return self

    def _with_dips(self, steepest: float = math.inf) -> Composition:
        """The same, with bounds on how far down the loss goes under Q.

        E_Q[e^(-b L)] = E_P[e^(-(1 + b) L)], and Chernoff's inequality.
        """
        scale = min(1 / math.sqrt(max(self.cumulants(-1.0)[2], 1e-300)), steepest / 8)
        steps = [scale * b for b in (0.5, 1.0, 2.0, 4.0, 8.0)]
        return replace(self, dips=tuple((b, self.cumulants(-1 - b)[0] - self._log_kept) for b in steps))

    def dip(self, x: float) -> float:
        """Bound on Q(L < x) if the record was removed; if it was replaced, given that no outcome was let go."""
        if x < self.lowest:
            return 0.0
        return min((math.exp(min(k + b * x, 0.0)) for b, k in self.dips), default=1.0)

    @cached_property
    def mostly_above(self) -> float:
        """A level with Q(L < level) <= ``rare``, by ``dip``; the loss may never fall below it."""
        return max([self.lowest, *((math.log(self.rare) - k) / b for b, k in self.dips)])

    @property
    def farthest(self) -> float:
        """An epsilon beyond which jumps need not be beyond it."""
        return 0.8 * self.least_jump if self._replaced else self.least_jump + self.mostly_above

    @cached_property
    def cut_off(self) -> float:
        """Bound on the probability that an outcome was let go for another reason than its loss."""
        return sum(family.let_go for family in self.families)

    @cached_property
    def _jump(self) -> tuple[float, float]:
        found = [family.jump for family in self.families if isinstance(family, (PoissonRemove, Replaced))]
        return _either([by_p for by_p, _ in found]), _either([by_q for _, by_q in found])

    @cached_property
    def _log_kept(self) -> float:
        """The logarithm of the probability, by P as by Q, that nothing was let go, where the record was replaced."""
        return sum(float(family.counts @ np.log1p(-family.beyond_either)) for family in self._replaced)

    @cached_property
    def kept(self) -> tuple[float, float]:
        """The probabilities, by P and by Q, that nothing was let go and not every loss is 0; not for added records."""
        if self._replaced:
            kept = math.exp(self._log_kept) - self.at_zero
            return kept, kept
        found = [
            family.beyond(np.ones_like(family.jumps)) for family in self.families if isinstance(family, PoissonRemove)
        ]
        return math.prod(1 - by_p for by_p, _ in found), math.prod(1 - by_q for _, by_q in found)

    def jumped(self, epsilon: float) -> tuple[float, float]:
        """(low, high) around what runs with a jump (event A) add to delta(epsilon).

        E_P[(1 - e^(epsilon - L))+; A] is at least E_P[1 - e^(epsilon - L); A] = P(A) - e^epsilon Q(A), and more than it
        by at most e^epsilon Q(A, L < epsilon): the other losses, which are independent of the jump, make up for it. If
        the record was added, jumps bring the sum below 0, and add nothing.

        If it was replaced there are jumps down too (event B): Q(A and B) <= Q(A) Q(B), since a release that jumps up
        does not jump down. Runs with jumps down only add at most P(B) = Q(A) times the chance that the other losses
        make up for one, which by symmetry is that of the same dip under Q.
        """
        symmetric = bool(self._replaced)
        if not symmetric and not self._one_kind(PoissonRemove):
            return 0.0, 0.0
        by_p, by_q = self._jump
        tilted = math.exp(min(epsilon, 700.0)) * by_q
        low = max(0.0, by_p - tilted)
        if symmetric:
            opposed, back = by_p + self.cut_off, self.dip(epsilon - self.least_jump)
            other = by_q * self.dip(-epsilon - self.least_jump)
            return low * (1 - 1e-9), (min(by_p, low + tilted * (back + opposed)) + other) * (1 + 1e-9)
        return low * (1 - 1e-9), min(by_p, low + tilted * self.dip(epsilon - self.least_jump)) * (1 + 1e-9)

    @cached_property
    def _quadratures(self) -> dict[int, list[Nodes]]:
        return {}

    def _quadrature(self, theta: float) -> list[Nodes]:
        """Nodes for real ``theta``; those of a positive one do for all up to a factor of 2, and are kept."""
        if theta <= 0:
            return [family.nodes(theta, theta) for family in self.families]
        low = math.floor(math.log2(theta))
        if low not in self._quadratures:
            self._quadratures[low] = [family.nodes(2.0**low, 2.0 ** (low + 1)) for family in self.families]
        return self._quadratures[low]

    def cumulants(self, theta: float) -> tuple[float, float, float]:
        """K, K' and K'' at real ``theta``, where K(theta) = log E_P[e^(theta L)] of the sum."""
        value = self.precision * theta * (theta + 1) / 2
        first = self.precision * (theta + 0.5)
        second = self.precision
        for family, nodes in zip(self.families, self._quadrature(theta), strict=True):
            tilted = nodes.log_mass + theta * nodes.loss
            top = tilted.max(axis=1, keepdims=True)
            weights = np.exp(tilted - top)
            total = weights.sum(axis=1)
            mean = (weights * nodes.loss).sum(axis=1) / total
            variance = (weights * (nodes.loss - mean[:, None]) ** 2).sum(axis=1) / total
            value += float(family.counts @ (top[:, 0] + np.log(total)))
            first += float(family.counts @ mean)
            second += float(family.counts @ variance)
        return value, first, second


def _either(chances: list[float]) -> float:
    """The probability that one of several independent events happens, without losing digits."""
    return -math.expm1(sum(math.log1p(-min(chance, 1 - 1e-16)) for chance in chances)) if chances else 0.0


def cap_for(releases: float, ignored: float) -> float:
    """The cap beyond which ``releases`` releases together have probability ``ignored``."""
    return -math.hypot(1, _TAPER) * float(ndtri(ignored / (2 * max(releases, 1.0))))
