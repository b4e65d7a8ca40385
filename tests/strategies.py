"""Hypothesis strategies for events.

``events()`` draws any legal event, however nested and with every edge value (no noise, q of 0 or 1, count 0).
``gaussians``, ``poissons``, ``fixed_sizes`` and ``reshuffles`` draw single events in the range of real training runs,
for tests that hand them to accountants.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

from hypothesis import strategies as st

from adadp.app.accounting.best_of import BestOf
from adadp.app.accounting.repetitions import PoissonRepetitions, TruncatedNegativeBinomial
from adadp.events import (
    AdaptivelyChosen,
    Composed,
    Event,
    FixedSizeSampled,
    GaussianRelease,
    Neighbours,
    PoissonSampled,
    Repeated,
    ReshuffledEpoch,
    Selection,
    SelectionMechanism,
    ZcdpCost,
)

RELATIONS = tuple(Neighbours)
SAME_SIZE_RELATIONS = (Neighbours.REPLACE_ONE, Neighbours.ZERO_OUT)

noise_multipliers = st.floats(0.5, 20.0)
"""Multipliers of real training runs."""

sampling_rates = st.floats(1e-4, 0.5)
"""Sampling probabilities, or fractions, of real training runs."""


def gaussians(neighbours: Neighbours = Neighbours.ADD_REMOVE) -> st.SearchStrategy[GaussianRelease]:
    """One Gaussian release on all of the data."""
    return st.builds(GaussianRelease, noise_multipliers, st.just(neighbours))


def poissons(neighbours: Neighbours = Neighbours.ADD_REMOVE) -> st.SearchStrategy[PoissonSampled]:
    """One step of DP-SGD on a Poisson batch."""
    return st.builds(PoissonSampled, sampling_rates, gaussians(neighbours))


def fixed_sizes(neighbours: Neighbours = Neighbours.REPLACE_ONE) -> st.SearchStrategy[FixedSizeSampled]:
    """One step on a subset of fixed size; ``neighbours`` must keep the size of the data."""
    return st.builds(FixedSizeSampled, sampling_rates, gaussians(neighbours))


def reshuffles(
    neighbours: Neighbours = Neighbours.ZERO_OUT, max_batches: int = 4
) -> st.SearchStrategy[ReshuffledEpoch]:
    """One epoch of disjoint batches, with up to ``max_batches`` different multipliers."""
    batches = st.lists(gaussians(neighbours), min_size=1, max_size=max_batches).map(tuple)
    return st.builds(ReshuffledEpoch, batches, _assignment(neighbours))


@cache
def leaves(neighbours: Neighbours) -> st.SearchStrategy[Event]:
    """Any single mechanism with any legal parameter."""
    near = st.just(neighbours)
    non_negative = st.floats(0.0, allow_nan=False, allow_infinity=False)
    return st.one_of(
        st.builds(GaussianRelease, non_negative, near),
        st.builds(ZcdpCost, non_negative, near),
        st.builds(Selection, non_negative, st.sampled_from(SelectionMechanism), near),
    )


@cache
def unsampled(neighbours: Neighbours, adaptive: bool = True) -> st.SearchStrategy[Event]:
    """Any nest of releases none of which is sampled: what a sampler may hold."""
    return st.recursive(leaves(neighbours), _combined(adaptive), max_leaves=4)


@cache
def sampled(neighbours: Neighbours, adaptive: bool = True) -> st.SearchStrategy[Event]:
    """Any sampled event that is legal for ``neighbours``."""
    rates, held = st.floats(0.0, 1.0), unsampled(neighbours, adaptive)
    batches = st.lists(held, min_size=1, max_size=3).map(tuple)
    kinds = [
        st.builds(PoissonSampled, rates, held),
        st.builds(ReshuffledEpoch, batches, _assignment(neighbours)),
    ]
    if neighbours is not Neighbours.ADD_REMOVE:
        kinds.append(st.builds(FixedSizeSampled, rates, held))
    return st.one_of(kinds)


laws = st.one_of(
    st.builds(TruncatedNegativeBinomial, st.floats(-1.0, 20.0, exclude_min=True), st.floats(1e-6, 0.999)),
    st.builds(PoissonRepetitions, st.floats(1.0, 1e6)),
)
"""Any law of the number of runs of a search."""


@cache
def searches(neighbours: Neighbours) -> st.SearchStrategy[BestOf]:
    """The best of a random number of runs, each of them one of up to three events."""
    run = st.one_of(leaves(neighbours), sampled(neighbours, adaptive=False))
    return st.builds(BestOf, st.lists(run, min_size=1, max_size=3).map(tuple), laws)


@cache
def events(neighbours: Neighbours | None = None, adaptive: bool = True) -> st.SearchStrategy[Event]:
    """Any legal event: for one relation, or for a drawn one; without ``AdaptivelyChosen`` if not ``adaptive``."""
    if neighbours is None:
        return st.sampled_from(RELATIONS).flatmap(lambda near: events(near, adaptive))
    return st.recursive(
        st.one_of(leaves(neighbours), sampled(neighbours, adaptive), searches(neighbours)),
        _combined(adaptive),
        max_leaves=5,
    )


def _combined(adaptive: bool) -> Callable[[st.SearchStrategy[Event]], st.SearchStrategy[Event]]:
    """How parts become a larger event."""

    def combine(parts: st.SearchStrategy[Event]) -> st.SearchStrategy[Event]:
        kinds = [
            st.builds(Composed, st.lists(parts, min_size=1, max_size=3).map(tuple)),
            st.builds(Repeated, parts, st.integers(0, 10**6)),
        ]
        if adaptive:
            kinds.append(st.builds(AdaptivelyChosen, parts))
        return st.one_of(kinds)

    return combine


def _assignment(neighbours: Neighbours) -> st.SearchStrategy[bool]:
    """``independent_assignment``, which add-remove neighbours need."""
    return st.just(True) if neighbours is Neighbours.ADD_REMOVE else st.booleans()
