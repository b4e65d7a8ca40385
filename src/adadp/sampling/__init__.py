"""How batches are drawn: samplers.py the ways, heads.py the coins, timetable.py when, batches.py the batches,
placement.py their rows.
"""

from adadp.sampling.batches import Batches
from adadp.sampling.placement import places
from adadp.sampling.samplers import SAMPLERS, PoissonSampler, Sampler, sampler
from adadp.sampling.timetable import Stretch, Timetable

__all__ = [
    "SAMPLERS",
    "Batches",
    "PoissonSampler",
    "Sampler",
    "Stretch",
    "Timetable",
    "places",
    "sampler",
]
