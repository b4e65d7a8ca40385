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
"""

from __future__ import annotations

import itertools
import math
from abc import abstractmethod
from copy import copy

import numpy as np
from numpy.typing import NDArray
from scipy.special import erf, gammaln, ndtr, xlogy

from adadp.accounting.quadrature import AHEAD, TAPER, Array, Family, Nodes, SmoothFamily

_STEEP = 0.03
"""The same for a cap on the loss, in units of the log likelihood ratio y: the cap is sharp to a factor of 4/3."""
_CLEAR = 20.0
"""Widths of the taper between a loss of 0 and the cap on it, so that nothing is let go at 0."""
_LOG_SQRT_2PI = 0.5 * math.log(2 * math.pi)


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


class PoissonOneSided(SmoothFamily):
    """Common ground of remove and add. ``shift``, of the other releases on the same batch, is added to y."""

    def __init__(self, q: Array, mu: Array, counts: Array, cap: float = math.inf, shift: float = 0.0) -> None:
        super().__init__(q, mu, counts, cap)
        self.shift = shift

    def _y(self, u: Array) -> Array:
        mu = self.mu[:, None]
        return mu * u - mu * mu / 2 + self.shift

    def _moved(self, power: float) -> Array:
        """Where the bump of phi(u) w^power is, at most: w^power is between 1 and e^(power y).

        For a negative power the mode, u = power d(log w)/du, is nearer to 0 than that with the slope at 0, which falls.
        """
        slope = 1.0 if power > 0 else _mix_slope(self.q, -(self.mu**2) / 2 + self.shift)
        return np.asarray(power * self.mu * slope)

    def within(self, loss: float) -> PoissonOneSided:
        """The same, with outcomes whose |loss| exceeds about ``loss`` let go, half of those at ``loss``."""
        found = copy(self)
        reached = (_log_ratio(self.q, loss) - self.shift + self.mu**2 / 2) / self.mu
        found.jumps = reached < self.last
        found.last = np.minimum(reached, self.last)
        found.taper = np.where(found.jumps, np.minimum(TAPER, _STEEP / self.mu), TAPER)
        return found

    @property
    def least_jump(self) -> float:
        """The least |loss| of what ``within`` lets go of: that ten widths of the taper before the cap."""
        first = np.where(self.jumps, self.last - AHEAD * self.taper, math.inf)
        y = self.mu * first - self.mu**2 / 2 + self.shift
        return float(_log_mix(self.q, y).min())


class PoissonRemove(PoissonOneSided):
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


class PoissonAdd(PoissonOneSided):
    """The record is in the second data set only: Q is the mixture, and the loss never exceeds -log(1 - q)."""

    shifted = False
    rising = -1.0

    @property
    def let_go(self) -> float:
        rows = ~self.jumps
        return float(self.counts[rows] @ ndtr(-self.last[rows] / math.hypot(1, TAPER)))

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
        steep = np.minimum(TAPER, _STEEP / self.mu)
        reached = np.maximum(self._where(loss), _CLEAR * steep)
        found.jumps = reached < self.edge
        found._end(np.where(found.jumps, reached, self.edge), np.where(found.jumps, steep, self.soft))
        return found

    @property
    def least_jump(self) -> float:
        """The least |loss| of what ``within`` lets go of: that ten widths of the taper before the edge."""
        first = np.where(self.jumps, self.edge - AHEAD * self.soft, self.edge)
        return float(np.where(self.jumps, self._half(first[:, None])[1][:, 0], math.inf).min())

    @property
    def variation(self) -> float:
        """The sum of the total variation distances, q (2 Phi(d) - 1) for outcomes at d with the record in the batch."""
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
