"""HOW lots are drawn: samplers.py the ways, timetable.py which of them when, lots.py the lots of one run."""

from adadp.sampling.lots import Lots
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
    "sampler",
]
