"""The quadrature: what a family of privacy losses is, and expectations over the smooth ones.

Expectations are trapezoidal sums over a variable in which the integrand is analytic and decays at both ends, where the
rule converges geometrically (Trefethen and Weideman, "The exponentially convergent trapezoidal rule", 2014).
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import log_ndtr, ndtr

Array = NDArray[np.float64]

NEGLIGIBLE = 42.0
"""Nodes whose tilted density is below e^-42 of the largest are left out: 6e-19 of the mass each."""
_UNSEEN = 34.0
"""The same where rounding of 2e-14 is allowed for."""
_REACH = 9.5
"""Standard deviations kept on each side of a Gaussian bump: its tails beyond hold 2e-21."""
TAPER = 0.1
"""Width, in standard deviations, over which the density is let down to 0 at the cap."""
AHEAD = 10.0
"""Widths of the taper before the cap where the nodes begin to be denser: ndtr(-10) is nothing."""
_SMOOTH = 8.6
"""Highest frequency of a standard normal density, for an error of e^-37."""
_FAST = 20.0
"""Frequency that oscillations are slowed down to: more saves nodes where the loss runs fast, and costs elsewhere."""


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
        self.taper = np.full_like(mu, TAPER)
        self.last = cap + (mu if self.shifted else 0 * mu)
        """Outcomes beyond it are let go, over ``taper`` on either side."""
        self.jumps = np.zeros(len(mu), dtype=bool)
        """Where they are let go because of their loss."""

    @property
    def let_go(self) -> float:
        return 2 * float(self.counts[~self.jumps].sum()) * float(ndtr(-self.cap / math.hypot(1, TAPER)))

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
        before = -(v + AHEAD)
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
        if (near := v > -AHEAD).any():
            density[near] += log_ndtr(self._inside(np.nonzero(near)[0], u[near]))
        return density + np.log(du), loss, slope * du

    def nodes(self, low: float, high: float, frequency: float = 0.0, least: int = 3, most: int = 1 << 20) -> Nodes:
        left, right = self._interval(low, high)
        # Where no cap is in reach the map is the identity, but for a constant.
        last = np.where(self.last < right + 2, self.last, right + 40.0)[:, None]
        start, end = left - last[:, 0] - AHEAD, np.minimum(right - last[:, 0] - AHEAD + 1, _REACH)
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
