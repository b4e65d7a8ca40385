"""From events to the privacy losses that dominate them: one composition per ordered pair of data sets to compare."""

from __future__ import annotations

import itertools
import math
from typing import NoReturn

import numpy as np

from adadp.accounting.composition import Composition, cap_for
from adadp.accounting.privacy_losses import (
    Discrete,
    FixedSizeReplace,
    Mixture,
    PoissonAdd,
    PoissonRemove,
    PoissonReplace,
)
from adadp.accounting.quadrature import Family, SmoothFamily
from adadp.errors import AdaptiveEvent, UnsupportedEvent
from adadp.events import (
    AdaptivelyChosen,
    Event,
    FixedSizeSampled,
    GaussianRelease,
    Neighbours,
    OtherEvent,
    PoissonSampled,
    ReshuffledEpoch,
    Selection,
    describe,
    flatten,
)

Counts = dict[Event, int]


def sampling_rate(event: PoissonSampled | FixedSizeSampled) -> float:
    """The share of the records in a batch."""
    return event.sampling_probability if isinstance(event, PoissonSampled) else event.sampling_fraction


def sensitivity(neighbours: Neighbours) -> float:
    """How far one record moves a sum to which it contributes at most 1: replacing it can turn +1 into -1."""
    return 2.0 if neighbours is Neighbours.REPLACE_ONE else 1.0


def moved(event: GaussianRelease) -> float:
    """The same for one release of all records, which says how far replacing one of them moves it."""
    return event.replaced if event.neighbours is Neighbours.REPLACE_ONE else 1.0


def refuse_adaptive(accountant: str, event: Event) -> NoReturn:
    """Refuse: composition theorems fix the parameters in advance; those chosen on the way need a filter."""
    raise AdaptiveEvent(
        f"{accountant} cannot certify {describe(event)}.",
        why="Its noise multiplier was chosen from earlier releases, and composition theorems need it fixed in advance.",
        fix="Charge the run through an RdpFilter or ZcdpFilter (adadp.app.accounting) and report the filter's budget.",
    )


def refuse_other(accountant: str, event: OtherEvent) -> NoReturn:
    """Refuse an event whose price is known as a Renyi divergence only."""
    raise UnsupportedEvent(f"{accountant} cannot account for {describe(event)}.", why=event.renyi_only, fix="Use rdp.")


def gaussian_multiplier(event: Event) -> float | None:
    """The multiplier of one Gaussian release equivalent to ``event``, or None where other mechanisms are in it.

    Releases on the same records compose to a Gaussian whose 1/sigma^2 is the sum of theirs.
    """
    precision = 0.0
    for part, count in flatten(event).items():
        if not isinstance(part, GaussianRelease):
            return None
        if part.noise_multiplier == 0:
            return 0.0
        precision += count / part.noise_multiplier**2
    return 1 / math.sqrt(precision) if precision > 0 else math.inf


def costliest_batch(event: ReshuffledEpoch) -> float | None:
    """The smallest multiplier among an epoch's batches: a record meets one batch, at worst the least noisy."""
    multipliers = [gaussian_multiplier(batch) for batch in event.batches]
    known = [multiplier for multiplier in multipliers if multiplier is not None]
    return min(known) if len(known) == len(multipliers) else None


class Lowering:
    """Collects the losses of a flattened event for one ordered pair (``remove`` or ``add`` the record)."""

    def __init__(self, accountant: str, remove: bool, cap: float, below: bool) -> None:
        self.accountant = accountant
        self.remove = remove
        self.cap = cap
        self.below = below
        self.loose = False
        self.precision = 0.0
        self.groups: dict[type[SmoothFamily], list[tuple[float, float, float]]] = {}
        self.discrete: list[Family] = []

    def add(self, event: Event, count: int) -> None:
        """Take in ``count`` times ``event``."""
        if isinstance(event, GaussianRelease):
            self.precision += count * (moved(event) / event.noise_multiplier) ** 2
        elif isinstance(event, Selection):
            self.discrete.append(_randomised_response(event.epsilon, count))
        elif isinstance(event, (PoissonSampled, FixedSizeSampled)):
            self._sampled(event, count)
        elif isinstance(event, ReshuffledEpoch):
            multiplier = costliest_batch(event)
            if multiplier is None:
                raise self._unsupported(event, "only Gaussian releases are known to cost their worst batch")
            self.precision += count * (sensitivity(event.neighbours) / multiplier) ** 2
        elif isinstance(event, AdaptivelyChosen):
            refuse_adaptive(self.accountant, event)
        elif isinstance(event, OtherEvent):
            refuse_other(self.accountant, event)
        else:
            raise self._unsupported(event, "a zCDP cost says nothing about the distribution of the privacy loss")

    def composition(self) -> Composition:
        """All that was taken in."""
        families: list[Family] = []
        for kind, rows in self.groups.items():
            many = len(rows) > _MOST_DISTINCT
            self.loose |= many
            for alike in _alike(_grouped(rows, self.below) if many else rows):
                q, mu, counts = (np.array(column) for column in zip(*alike, strict=True))
                families.append(kind(q, mu, counts, self.cap))
        return Composition(self.precision, (*families, *self.discrete), self.loose)

    def _unsupported(self, event: Event, reason: str) -> UnsupportedEvent:
        return UnsupportedEvent(
            f"{self.accountant} cannot account for {describe(event)}: {reason}.",
            fix="Choose another accountant (rdp and zcdp take zCDP costs), or state the release as what it is.",
        )

    def _sampled(self, event: PoissonSampled | FixedSizeSampled, count: int) -> None:
        q = sampling_rate(event)
        if q == 1:
            for part, times in flatten(event.event).items():
                self.add(part, times * count)
        elif q == 0:
            return
        elif isinstance(event, PoissonSampled):
            self._poisson(event, q, count)
        else:
            self._fixed(event, q, count)

    def _poisson(self, event: PoissonSampled, q: float, count: int) -> None:
        multiplier = gaussian_multiplier(event.event)
        if multiplier is None:
            self._poisson_mixed(event, count)
            return
        if self._unsampled(sensitivity(event.neighbours), multiplier, count):
            return
        kind: type[SmoothFamily]
        if event.neighbours is Neighbours.REPLACE_ONE:
            kind = PoissonReplace
        else:
            kind = PoissonRemove if self.remove else PoissonAdd
        self.groups.setdefault(kind, []).append((q, 1 / multiplier, float(count)))

    def _unsampled(self, distance: float, multiplier: float, count: int) -> bool:
        """Take releases with next to no noise as unsampled, which costs more: their losses cannot be resolved.

        H(mixture, Q) <= H(P, Q) at every order, since the mixture of P and Q is as close to Q as P is, or closer.
        """
        if multiplier >= _LEAST_RESOLVED:
            return False
        if not self.below:
            self.precision += count * (distance / multiplier) ** 2
        self.loose = True
        return True

    def _poisson_mixed(self, event: PoissonSampled, count: int) -> None:
        """Gaussian releases and selections on one batch: P and Q are products, amplified together."""
        if event.neighbours is Neighbours.REPLACE_ONE:
            raise self._unsupported(event, "for replace-one neighbours only Gaussian releases have a known worst case")
        precision, selections = 0.0, []
        for part, times in flatten(event.event).items():
            if isinstance(part, GaussianRelease):
                precision += times / part.noise_multiplier**2
            elif isinstance(part, Selection):
                selections.append((part.epsilon, times))
            elif isinstance(part, AdaptivelyChosen):
                refuse_adaptive(self.accountant, event)
            else:
                raise self._unsupported(event, "a zCDP cost inside a sample has no amplification theorem")
        if precision * _LEAST_RESOLVED**2 > 1 or sum(e * times for e, times in selections) > _MOST_SELECTED:
            for part, times in flatten(event.event).items() if not self.below else ():
                self.add(part, times * count)
            self.loose = True
            return
        shifts = _selection_shifts(selections)
        if len(shifts) > _MOST_SHIFTS:
            raise self._unsupported(event, f"{len(shifts)} joint outcomes of its selections are too many to enumerate")
        q, counts = event.sampling_probability, np.array([float(count)])
        if precision == 0:
            self.discrete.append(_sampled_discrete(q, shifts, counts, self.remove))
            return
        kind = PoissonRemove if self.remove else PoissonAdd
        mu = np.array([math.sqrt(precision)])
        parts = tuple(kind(np.array([q]), mu, counts, self.cap, shift) for shift in shifts)
        self.discrete.append(Mixture(parts, tuple(shifts.values())))

    def _fixed(self, event: FixedSizeSampled, q: float, count: int) -> None:
        multiplier = gaussian_multiplier(event.event)
        if multiplier is None:
            raise self._unsupported(event, "only Gaussian releases on a fixed-size batch have a known worst case")
        # Blanking a record out is one way of replacing it: the replace-one pair (distance 2) covers zero-out.
        if not self._unsampled(2.0, multiplier, count):
            self.groups.setdefault(FixedSizeReplace, []).append((q, 2 / multiplier, float(count)))


_MOST_SHIFTS = 256
_MOST_SELECTED = 200.0
"""Selections on one batch that together cost more are taken as unsampled: e^-epsilon leaves the range of a float."""
_MOST_DISTINCT = 256
"""Distinct noise levels integrated one by one; more (a multiplier for every step) are put into as many groups."""
_LEAST_RESOLVED = 0.05
"""The least noise multiplier whose sampled losses are integrated; epsilon is in the hundreds there."""


def _grouped(rows: list[tuple[float, float, float]], below: bool) -> list[tuple[float, float, float]]:
    """At most 256 distinct mu for each q: the largest of each group for all of it, or the smallest for a lower bound.

    A release with the larger mu dominates one with the smaller.
    """
    grouped: dict[tuple[float, int], tuple[float, float]] = {}
    least = min(mu for _, mu, _ in rows)
    ratio = math.log(max(mu for _, mu, _ in rows) / least) / _MOST_DISTINCT or 1.0
    for q, mu, count in rows:
        key = (q, min(int(math.log(mu / least) / ratio), _MOST_DISTINCT - 1))
        chosen, total = grouped.get(key, (mu, 0.0))
        grouped[key] = (min(chosen, mu) if below else max(chosen, mu), total + count)
    return [(q, mu, total) for (q, _), (mu, total) in grouped.items()]


def _alike(rows: list[tuple[float, float, float]]) -> list[list[tuple[float, float, float]]]:
    """Many rows in groups whose mu are within a factor of 2: they need about as many nodes, and are one array."""
    if len(rows) <= 16:
        return [rows]
    found: dict[int, list[tuple[float, float, float]]] = {}
    for row in rows:
        found.setdefault(math.floor(math.log2(row[1])), []).append(row)
    return list(found.values())


def _selection_shifts(selections: list[tuple[float, int]]) -> dict[float, float]:
    """The summed loss of independent pure-DP selections, and its probability when the record is absent.

    Each is dominated by randomised response: loss +epsilon with probability 1 / (1 + e^epsilon), else -epsilon.
    """
    shifts = {0.0: 1.0}
    for epsilon, times in selections:
        plus = 1 / (1 + math.exp(epsilon))
        steps = {
            epsilon * (2 * k - times): math.comb(times, k) * plus**k * (1 - plus) ** (times - k)
            for k in range(times + 1)
        }
        joint: dict[float, float] = {}
        for (a, p), (b, r) in itertools.product(shifts.items(), steps.items()):
            joint[a + b] = joint.get(a + b, 0.0) + p * r
        shifts = joint
    return {shift: weight for shift, weight in shifts.items() if weight > 0}


def _randomised_response(epsilon: float, count: int) -> Family:
    up = 1 / (1 + math.exp(-epsilon))
    return Discrete(np.array([[up, 1 - up]]), np.array([[epsilon, -epsilon]]), np.array([float(count)]))


def _sampled_discrete(q: float, shifts: dict[float, float], counts: np.ndarray, remove: bool) -> Family:
    """Selections alone on a Poisson batch: P-masses and losses of the mixture against the plain outcome."""
    absent = np.array([list(shifts.values())])
    mix = 1 - q + q * np.exp(np.array([list(shifts)]))
    return Discrete(absent * mix, np.log(mix), counts) if remove else Discrete(absent, -np.log(mix), counts)


def compositions(accountant: str, counts: Counts, ignored: float = 0.0, *, below: bool = False) -> list[Composition]:
    """The compositions whose worse one is the privacy curve of the events in ``counts``.

    Outcomes of total probability ``ignored`` may be left out of them; ``cut_off`` says how much was. Where they are
    ``loose`` the curve is above the exact one, or with ``below`` under it.
    """
    one_sided = any(
        isinstance(event, PoissonSampled)
        and 0 < event.sampling_probability < 1
        and event.neighbours is not Neighbours.REPLACE_ONE
        for event in counts
    )
    cap = cap_for(sum(counts.values()), ignored)
    found = []
    for remove in (True, False) if one_sided else (True,):
        lowering = Lowering(accountant, remove, cap, below)
        for event, count in counts.items():
            lowering.add(event, count)
        found.append(lowering.composition())
    return found
