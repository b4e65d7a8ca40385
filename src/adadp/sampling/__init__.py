"""HOW lots are drawn: samplers.py the ways, timetable.py which of them when, lots.py the lots, places.py their rows."""

from adadp.sampling.lots import Lots
from adadp.sampling.places import places
from adadp.sampling.samplers import FixedSizeSampler, PoissonSampler, ReshuffledSampler, Sampler, sampler
from adadp.sampling.timetable import Stretch, Timetable

__all__ = [
    "FixedSizeSampler",
    "Lots",
    "PoissonSampler",
    "ReshuffledSampler",
    "Sampler",
    "Stretch",
    "Timetable",
    "places",
    "sampler",
]
