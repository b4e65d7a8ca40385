"""Losses of composed releases, which add: their sum, its cumulants, and what outcomes of large loss are set apart."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from scipy.special import ndtri

from adadp.accounting.privacy_losses import PoissonAdd, PoissonOneSided, PoissonRemove, Replaced
from adadp.accounting.quadrature import TAPER, Family, Nodes

_RARE = 1e-6
_MOST_CAPS = 12
_UNKNOWN = 1e-4
"""How well what jumps add must be known, relative to delta."""


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

    def _one_kind(self, kind: type[PoissonOneSided]) -> bool:
        return self.precision == 0 and all(type(family) is kind for family in self.families)

    @property
    def _replaced(self) -> list[Replaced]:
        return [family for family in self.families if isinstance(family, Replaced)]

    @property
    def _one_sided(self) -> list[PoissonOneSided]:
        return [family for family in self.families if isinstance(family, PoissonOneSided)]

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
    return -math.hypot(1, TAPER) * float(ndtri(ignored / (2 * max(releases, 1.0))))
