"""What a guarantee for one record means for a group of k records, such as the rows of one person.

It is computed from the events, and not from epsilon. Group privacy by multiplying, k epsilon and about
k e^(k epsilon) delta, holds for every mechanism, and is far above what these mechanisms cost.

    event                                   dominated, for k records, by
    ======================================  ============================================================================
    Gaussian release of all records         the same with k times the distance
    reshuffled epoch                        the same: at worst all k are in its least noisy batch
    Poisson sampled Gaussian, add-remove    (sum_j b_j N(j, sigma^2), N(0, sigma^2)) and its reverse, b_j the binomial
    and zero-out                            weights of k coins of probability q
    selection                               a selection with k epsilon
    another event; replace-one batches;     refused
    parts of the data, adaptive noise

*Proof of the third row* (the pair is that of Ganesh 2024, "Tight group-level DP guarantees for DP-SGD with sampling via
mixture of Gaussians mechanisms"). Measured in units of the noise, the records contribute u_1 .. u_k with |u_i| <= r =
1 / sigma. Given all that both runs share, the output with the records is the mixture of N(v_S, I) over the sets S of
records in the batch, v_S = sum of u_i in S, with probabilities p_S; without them it is N(0, I). The likelihood ratio
under the latter is Z = sum_S p_S exp(X_S - Var(X_S) / 2) for Gaussian X_S with covariances v_S . v_T <= |S| |T| r^2.
The pair above has these covariances exactly: there X_S = |S| r X. By Kahane's inequality (1985) E f(Z) then is largest
for the pair, for every convex f. For (z - a)+ and for (1 - a z)+ that says that it dominates in both orders.

The likelihood ratio w(u) = sum_j b_j exp(j mu u - (j mu)^2 / 2) is a polynomial in e^(mu u) all of whose zeros are
negative (that of the binomial weights is, and the factors exp(-(j mu)^2 / 2) are a multiplier sequence: Polya and Schur
1914). So log w is as smooth as for one record, and the same quadrature integrates it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar

import numpy as np
from scipy.special import gammaln, xlog1py, xlogy

from adadp import checks
from adadp.accounting import Status
from adadp.accounting.base import Accountant, Bracket
from adadp.accounting.composition import Composition, cap_for
from adadp.accounting.dominating import Lowering, gaussian_multiplier
from adadp.accounting.pld import IGNORED, PldAccountant, worse_delta, worse_epsilon
from adadp.accounting.quadrature import Array, SmoothFamily
from adadp.errors import InputError, UnsupportedEvent
from adadp.events import (
    Disjoint,
    Event,
    FixedSizeSampled,
    Neighbours,
    PoissonSampled,
    Selection,
    describe,
    flatten,
)

MOST_RECORDS = 1000
"""The largest group whose losses are integrated."""
_LEAST_DELTA = 1e-30
"""The least delta that is answered: nobody asks for less, and integrals of that size lose their digits."""


class _Group(SmoothFamily):
    """Common ground of removing and adding ``size`` records, for rates ``q`` and ``mu`` = 1 / noise multiplier."""

    def __init__(self, size: int, q: Array, mu: Array, counts: Array, cap: float = math.inf) -> None:
        super().__init__(q, mu, counts, cap)
        self.size = size
        if self.shifted:
            self.last = cap + size * mu
        j = np.arange(size + 1)
        ways = gammaln(size + 1) - gammaln(j + 1) - gammaln(size - j + 1)
        self._log_weights = ways + xlogy(j, q[:, None]) + xlog1py(size - j, -q[:, None])

    def _ratio(self, u: Array) -> tuple[Array, Array]:
        """Log w and its slope by u."""
        terms = [self._log_terms(u, j) for j in range(self.size + 1)]
        highest = np.maximum.reduce(terms)
        total, slope, above = (np.zeros_like(u) for _ in range(3))
        for j, (exponent, weight) in enumerate(zip(terms, self._log_weights.T, strict=True)):
            share = np.exp(exponent - highest)
            total += share
            slope += j * share
            above += np.exp(weight)[:, None] * np.expm1(np.minimum(exponent - weight[:, None], 1.0))
        small = self.size * self.mu[:, None] * np.maximum(u, 0.0) < 1  # then no term was cut at e
        log_w = np.where(small, np.log1p(np.where(small, above, 0.0)), highest + np.log(total))
        return log_w, self.mu[:, None] * slope / total

    def _log_terms(self, u: Array, j: int) -> Array:
        shift = j * self.mu[:, None]
        return np.asarray(self._log_weights[:, j, None] + shift * u - shift * shift / 2)

    def _moved(self, power: float) -> Array:
        """Where the bump of phi(u) w^power is, at most: w^power is between 1 and e^(power k mu u).

        For a negative power the mode, u = power d(log w)/du, is nearer to 0 than that with the slope at 0, which falls.
        """
        if power > 0:
            return np.asarray(power * self.size * self.mu)
        return np.asarray(power * self._ratio(np.zeros((len(self.mu), 1)))[1][:, 0])


class GroupRemove(_Group):
    """The group is in the first data set only: P is the mixture."""

    def _pull(self, tilt: float) -> Array:
        return self._moved(tilt + 1)

    def _evaluate(self, u: Array) -> tuple[Array, Array, Array]:
        log_w, slope = self._ratio(u)
        return -u * u / 2 - 0.5 * math.log(2 * math.pi) + log_w, log_w, slope


class GroupAdd(_Group):
    """The group is in the second data set only: Q is the mixture."""

    shifted = False
    rising = -1.0

    def _pull(self, tilt: float) -> Array:
        return self._moved(-tilt)

    def _evaluate(self, u: Array) -> tuple[Array, Array, Array]:
        log_w, slope = self._ratio(u)
        return -u * u / 2 - 0.5 * math.log(2 * math.pi), -log_w, slope


class _GroupLowering(Lowering):
    """Collects the losses of an event for groups of ``size`` records."""

    def __init__(self, size: int, *, remove: bool, cap: float, below: bool) -> None:
        super().__init__(GroupAccountant.name, remove, cap, below)
        self._size = size
        self._kind: Any = partial(GroupRemove if remove else GroupAdd, size)

    def add(self, event: Event, count: int) -> None:
        """Take in ``count`` times ``event``."""
        super().add(Selection(self._size * event.epsilon) if isinstance(event, Selection) else event, count)

    def composition(self) -> Composition:
        """All that was taken in; every distance is ``size`` times that of one record."""
        self.precision *= self._size**2
        return super().composition()

    def _poisson(self, event: PoissonSampled, q: float, count: int) -> None:
        multiplier = gaussian_multiplier(event.event)
        if multiplier is None or event.neighbours is Neighbours.REPLACE_ONE:
            raise self._unsupported(
                event,
                "for groups only Gaussian releases on a Poisson batch, not of replace-one, have a known worst case",
            )
        if not self._unsampled(1.0, multiplier / self._size, count):
            self.groups.setdefault(self._kind, []).append((q, 1 / multiplier, float(count)))
        elif not self.below:  # distances are multiplied once, at the end
            self.precision += count * (1 / multiplier**2 - (self._size / multiplier) ** 2)

    def _fixed(self, event: FixedSizeSampled, q: float, count: int) -> None:  # noqa: ARG002
        raise self._unsupported(event, "for groups on a batch of fixed size no worst case is known")


class GroupAccountant(Accountant):
    """``pld`` for groups: (epsilon, delta) for adding or removing ``size`` records at once, as a proved bracket.

    ==========================================================  ======================================================
    ``size`` 1                                                  what ``pld`` answers
    an event that the table of this module does not have        ``UnsupportedEvent``
    releases from parts of the data                             ``UnsupportedEvent``: a group may be in several parts
    a delta below 1e-30, or more than 1000 records              ``InputError``
    ==========================================================  ======================================================
    """

    name: ClassVar[str] = PldAccountant.name
    status = Status.PROVED

    def __init__(self, size: int) -> None:
        self.size = checks.count("group", size)
        if self.size > MOST_RECORDS:
            raise InputError(
                f"`group` is {self.size}, and at most {MOST_RECORDS} records are computed together.",
                fix="Protect all rows of a person as one record instead: pass `unit` when training.",
            )

    def ask(
        self, event: Event | None, question: Callable[[dict[Event, int]], Bracket], without_noise: float
    ) -> Bracket:
        """As every accountant, but refuse parts: records of one group may be in several."""
        parted = [] if event is None else [each for each in flatten(event) if isinstance(each, Disjoint)]
        if parted and self.size > 1:
            raise UnsupportedEvent(
                f"{self.name} cannot account for {describe(parted[0])} and groups.",
                why="The records of a group may be in several parts.",
                fix="Ask for one record.",
            )
        return super().ask(event, question, without_noise)

    def _epsilon(self, counts: dict[Event, int], delta: float) -> Bracket:
        if self.size == 1:
            return PldAccountant()._epsilon(counts, delta)
        if delta < _LEAST_DELTA:
            raise InputError(f"delta is {delta:g}.", fix=f"Pass at least {_LEAST_DELTA:g} for a group.")
        return self._bracket(counts, IGNORED * delta, partial(worse_epsilon, delta=delta))

    def _delta(self, counts: dict[Event, int], epsilon: float) -> Bracket:
        if self.size == 1:
            return PldAccountant()._delta(counts, epsilon)
        guess = _LEAST_DELTA
        while True:
            found = self._bracket(counts, IGNORED * guess, partial(worse_delta, epsilon=epsilon, guess=guess))
            if found.high < 10 * guess or found.high - found.low < 1e-3 * found.high:
                return found
            guess = found.high

    def _bracket(
        self, counts: dict[Event, int], ignored: float, worse: Callable[[list[Composition]], tuple[float, float]]
    ) -> Bracket:
        cap = cap_for(sum(counts.values()), ignored)

        def lowered(remove: bool, below: bool) -> Composition:
            lowering = _GroupLowering(self.size, remove=remove, cap=cap, below=below)
            for event, count in counts.items():
                lowering.add(event, count)
            return lowering.composition()

        above = [lowered(remove, below=False) for remove in (True, False)]
        low, high = worse(above)
        if any(composition.loose for composition in above):
            low = min(worse([lowered(remove=True, below=True)])[0], high)
        return Bracket(low, high, f"for {self.size} records together")
