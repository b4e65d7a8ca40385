"""WHAT was released: frozen, serialisable records of mechanisms, their sampling and their neighbouring relation."""

from adadp.events.records import (
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
    compose,
    flatten,
    is_noiseless,
    is_silent,
)
from adadp.events.text import SCHEMA_VERSION, describe, from_json, to_json

__all__ = [
    "SCHEMA_VERSION",
    "AdaptivelyChosen",
    "Composed",
    "Event",
    "FixedSizeSampled",
    "GaussianRelease",
    "Neighbours",
    "PoissonSampled",
    "Repeated",
    "ReshuffledEpoch",
    "Selection",
    "SelectionMechanism",
    "ZcdpCost",
    "compose",
    "describe",
    "flatten",
    "from_json",
    "is_noiseless",
    "is_silent",
    "to_json",
]
