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
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import gammaln, log_ndtr, ndtr, ndtri, xlogy

Array = NDArray[np.float64]

NEGLIGIBLE = 42.0
"""Nodes whose tilted density is below e^-42 of the largest are left out: 6e-19 of the mass each."""
_REACH = 9.5
"""Standard deviations kept on each side of a Gaussian bump: its tails beyond hold 2e-21."""
_TAPER = 0.1
"""Width, in standard deviations, over which the density is let down to 0 at the cap."""
_RESOLVED = 28.0
"""Oscillations are resolved wherever the tilted density exceeds e^-28 of the largest."""
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

    def __init__(self, q: Array, mu: Array, counts: Array, cap: float = math.inf) -> None:
        super().__init__(counts)
        self.q = q
        self.mu = mu
        self.cap = cap

    @abstractmethod
    def _pull(self, tilt: float) -> Array:
        """Where the tilt e^(tilt L) can move the bump at 0 to, at most."""

    @abstractmethod
    def _evaluate(self, u: Array) -> tuple[Array, Array, Array]:
        """Log of the P-density of u, the loss, and |dL/du|, for an array u of shape (releases, points)."""

    def _interval(self, low: float, high: float) -> tuple[Array, Array]:
        """Where u must run, per release, for every tilt between ``low`` and ``high``."""
        ends = np.stack([self._pull(low), self._pull(high), 0 * self.mu])
        left_cap, right_cap = self._caps()
        return (
            np.maximum(ends.min(axis=0) - _REACH, left_cap - 3.0),
            np.minimum(ends.max(axis=0) + _REACH, right_cap + 3.0),
        )

    def _caps(self) -> tuple[Array, Array]:
        return 0 * self.mu - self.cap, self.cap + (self.mu if self.shifted else 0 * self.mu)

    def _tapered(self, u: Array) -> tuple[Array, Array, Array]:
        """``_evaluate`` with the density let down to 0 beyond the caps."""
        density, loss, slope = self._evaluate(u)
        left, right = self._caps()
        for inside in (right[:, None] - u, u - left[:, None]):
            if (near := inside < 10 * _TAPER).any():
                density[near] += log_ndtr(inside[near] / _TAPER)
        return density, loss, slope

    def nodes(self, low: float, high: float, frequency: float = 0.0, least: int = 3, most: int = 1 << 20) -> Nodes:
        left, right = self._interval(low, high)
        scout = _grid(left, right, max(64, int(2.2 * float(np.max(right - left)))))
        density, loss, slope = self._tapered(scout)
        kept_left, kept_right = scout[:, -1].copy(), scout[:, 0].copy()
        waves = np.zeros_like(left)
        for tilt in {low, high}:
            tilted = density + tilt * loss
            depth = tilted.max(axis=1, keepdims=True) - tilted
            kept = depth < NEGLIGIBLE
            first, last = kept.argmax(axis=1), kept.shape[1] - 1 - kept[:, ::-1].argmax(axis=1)
            rows = np.arange(len(left))
            kept_left = np.minimum(kept_left, scout[rows, np.maximum(first - 1, 0)])
            kept_right = np.maximum(kept_right, scout[rows, np.minimum(last + 1, kept.shape[1] - 1)])
            waves = np.maximum(waves, np.where(depth < _RESOLVED, slope, 0).max(axis=1))
        # A Gaussian times e^(i f u) needs a step of 2 pi / (8.6 + f) for an error of e^-37, and the taper one narrower
        # by its width; the branch point of log w at Im y = pi adds the limit 0.5 / mu. All with a margin of 1.3.
        step = np.minimum(2 * math.pi / (8.6 + frequency * waves), 0.5 / np.maximum(self.mu, 0.5))
        left_cap, right_cap = self._caps()
        at_cap = (kept_right > right_cap - 1) | (kept_left < left_cap + 1)
        step = np.where(at_cap, np.minimum(step, 2 * math.pi / 8.6 * _TAPER), step) / 1.3
        size = max(min(int(np.max((kept_right - kept_left) / step)) + 3, most), least)
        u = _grid(kept_left, kept_right, size)
        spacing = ((kept_right - kept_left) / (size - 1))[:, None]
        density, loss, slope = self._tapered(u)
        return Nodes(density + np.log(spacing), loss, spacing * slope, (slice(0, size),))


def _grid(left: Array, right: Array, size: int) -> Array:
    return left[:, None] + (right - left)[:, None] * np.linspace(0.0, 1.0, size)[None, :]


def _log_mix(q: Array, y: Array) -> Array:
    """log(1 - q + q e^y) without overflow, and without losing digits where it is close to 0."""
    mixed = np.log1p(q * np.expm1(np.minimum(y, 1.0)))
    if (large := y >= 1.0).any():
        rate = np.broadcast_to(q, y.shape)[large]
        mixed[large] = np.logaddexp(np.log1p(-rate), np.log(rate) + y[large])
    return np.asarray(mixed)


def _mix_slope(q: Array, y: Array) -> Array:
    """d/dy log(1 - q + q e^y) = q e^y / (1 - q + q e^y)."""
    e = np.exp(-np.abs(y))
    return np.where(y > 0, q / (q + (1 - q) * e), q * e / (1 - q + q * e))


class _PoissonOneSided(SmoothFamily):
    """Common ground of remove and add. ``shift`` is added to y: what the other releases on the same lot contribute."""

    def __init__(self, q: Array, mu: Array, counts: Array, cap: float = math.inf, shift: float = 0.0) -> None:
        super().__init__(q, mu, counts, cap)
        self.shift = shift

    def _y(self, u: Array) -> Array:
        mu = self.mu[:, None]
        return mu * u - mu * mu / 2 + self.shift


class PoissonRemove(_PoissonOneSided):
    """The record is in the first data set only: P is the mixture."""

    def _pull(self, tilt: float) -> Array:
        return (tilt + 1) * self.mu  # phi(u) w^(tilt + 1), w^a between 1 and e^(a y)

    def _evaluate(self, u: Array) -> tuple[Array, Array, Array]:
        y = self._y(u)
        loss = _log_mix(self.q[:, None], y)
        return -u * u / 2 - _LOG_SQRT_2PI + loss, loss, self.mu[:, None] * _mix_slope(self.q[:, None], y)


class PoissonAdd(_PoissonOneSided):
    """The record is in the second data set only: Q is the mixture, and the loss never exceeds -log(1 - q)."""

    shifted = False

    def _pull(self, tilt: float) -> Array:
        return -tilt * self.mu  # phi(u) w^(-tilt)

    def _evaluate(self, u: Array) -> tuple[Array, Array, Array]:
        y = self._y(u)
        slope = self.mu[:, None] * _mix_slope(self.q[:, None], y)
        return -u * u / 2 - _LOG_SQRT_2PI, -_log_mix(self.q[:, None], y), slope


class PoissonReplace(SmoothFamily):
    """One record against its opposite: both P and Q are mixtures. Symmetric, so one direction is enough."""

    def _pull(self, tilt: float) -> Array:
        return (2 * tilt + 1) * self.mu  # both mixtures pull the same way

    def _evaluate(self, u: Array) -> tuple[Array, Array, Array]:
        q, mu = self.q[:, None], self.mu[:, None]
        up, down = mu * u - mu * mu / 2, -mu * u - mu * mu / 2
        log_p, log_q = _log_mix(q, up), _log_mix(q, down)
        slope = mu * (_mix_slope(q, up) + _mix_slope(q, down))
        return -u * u / 2 - _LOG_SQRT_2PI + log_p, log_p - log_q, slope


class FixedSizeReplace(SmoothFamily):
    """A lot drawn without replacement. ``mu`` is that of the replacement, 2 / sigma.

    The loss is +log w with P-density phi w, or -log w with P-density phi, both for y > 0; the rest of the mass is at 0.
    """

    def __init__(self, q: Array, mu: Array, counts: Array, cap: float = math.inf) -> None:
        super().__init__(q, mu, counts, cap)
        positive = q * ndtr(mu / 2) + (1 - q) * ndtr(-mu / 2)
        self.atom = np.asarray(1 - positive - ndtr(-mu / 2))

    def _pull(self, tilt: float) -> Array:
        return (tilt + 1) * self.mu

    def _interval(self, low: float, high: float) -> tuple[Array, Array]:
        # y = mu softplus(v): v down to -40 leaves e^-40 of the half line out at y = 0; the right end as for Poisson.
        return 0 * self.mu - 40.0, super()._interval(low, high)[1]

    def _caps(self) -> tuple[Array, Array]:
        return 0 * self.mu - math.inf, self.cap + self.mu / 2

    def _evaluate(self, u: Array) -> tuple[Array, Array, Array]:
        """The positive half, as a function of v."""
        q, mu = self.q[:, None], self.mu[:, None]
        soft = np.logaddexp(0.0, u)
        log_jacobian = u - soft
        loss = _log_mix(q, mu * soft)
        density = -((soft + mu / 2) ** 2) / 2 - _LOG_SQRT_2PI + log_jacobian + loss
        return density, loss, mu * np.exp(log_jacobian) * _mix_slope(q, mu * soft)

    def nodes(self, low: float, high: float, frequency: float = 0.0, least: int = 3, most: int = 1 << 20) -> Nodes:
        # phi w^(-tilt) of the negative half is the positive half at tilt' = -1 - tilt: cover both.
        positive = super().nodes(min(low, -1.0 - high), max(high, -1.0 - low), frequency, least, most)
        size = positive.loss.shape[1]
        with np.errstate(divide="ignore"):
            log_atom = np.log(np.maximum(self.atom, 0.0))[:, None]
        zero = np.zeros_like(log_atom)
        return Nodes(
            np.hstack([positive.log_mass, positive.log_mass - positive.loss, log_atom]),
            np.hstack([positive.loss, -positive.loss, zero]),
            np.hstack([positive.width, positive.width, zero]),
            (slice(0, size), slice(size, 2 * size)),
        )


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
    """A loss that is that of ``parts[k]`` with probability ``weights[k]``: several releases on one Poisson lot."""

    def __init__(self, parts: tuple[Family, ...], weights: tuple[float, ...]) -> None:
        super().__init__(parts[0].counts)
        self.parts = parts
        self.weights = weights

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
    cap: float = math.inf
    loose: bool = False
    """Whether something in it was replaced by what costs more, so that nothing is known from below."""

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
    def cut_off(self) -> float:
        """Bound on the probability that any outcome lies beyond the cap, where the tapered density has let it go."""
        return 2 * self.releases * float(ndtr(-self.cap / math.hypot(1, _TAPER)))

    def cumulants(self, theta: float) -> tuple[float, float, float]:
        """K, K' and K'' at real ``theta``, where K(theta) = log E_P[e^(theta L)] of the sum."""
        value = self.precision * theta * (theta + 1) / 2
        first = self.precision * (theta + 0.5)
        second = self.precision
        for family in self.families:
            nodes = family.nodes(theta, theta)
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


def cap_for(releases: float, ignored: float) -> float:
    """The cap beyond which ``releases`` releases together have probability ``ignored``."""
    return -math.hypot(1, _TAPER) * float(ndtri(ignored / (2 * max(releases, 1.0))))
