"""Training methods: how the records of a lot become one bounded vector, and the released vector a gradient.

dpsgd    clip, add, noise (Abadi et al. 2016)
adadp    the same in coordinates scaled by what was released before: private, the default
adal     dpsgd under another name, for an adaptive rate (Xu et al. 2020): private
adan     noise that follows the gradient, for a plain step (Xu et al. 2020): private with source=released only

adadp-published  Algorithm 1 of Xu et al. 2020 as printed: not private
"""

from adadp.methods.adadp import AdaDp
from adadp.methods.base import COUNT, GRADIENT, Method, MethodDefaults, Parts, Query
from adadp.methods.clipped import ClippedSum, DpSgd
from adadp.methods.published import AdadpPublished, Adal, Adan, PublishedQuery
from adadp.methods.rate import AdaptiveRate
from adadp.methods.scales import ColumnScales, ScaleSettings
from adadp.methods.text import METHODS, parse_method

__all__ = [
    "COUNT",
    "GRADIENT",
    "METHODS",
    "AdaDp",
    "AdadpPublished",
    "Adal",
    "Adan",
    "AdaptiveRate",
    "ClippedSum",
    "ColumnScales",
    "DpSgd",
    "Method",
    "MethodDefaults",
    "Parts",
    "PublishedQuery",
    "Query",
    "ScaleSettings",
    "parse_method",
]
