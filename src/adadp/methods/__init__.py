"""Training methods: how the records of a lot become one bounded vector, and the released vector a gradient.

dpsgd    clip, add, noise (Abadi et al. 2016)
adadp    the same in coordinates scaled by what was released before: private, the default
dpsgd-momentum  momentum on what was released, and a clip bound that falls while the noise stays (Yu et al. 2018)
agd      a private line search on every lot, and noise that falls when nothing is found (Lee and Kifer 2018)
adal     dpsgd under another name, for an adaptive rate (Xu et al. 2020): private
adan     noise that follows the gradient, for a plain step (Xu et al. 2020): private with source=released only
dpopt    noise that hurts the loss least (Xiang et al. 2019): not private with source=raw

adadp-published  Algorithm 1 of Xu et al. 2020 as printed: not private
"""

from adadp.methods.adadp import AdaDp
from adadp.methods.adambc import AdamBC
from adadp.methods.agd import Agd, AgdQuery
from adadp.methods.base import COUNT, GRADIENT, Deviations, LineSearch, Method, MethodDefaults, Parts, Query
from adadp.methods.clipped import ClippedSum, DpSgd
from adadp.methods.dpopt import DpOpt
from adadp.methods.momentum import DpSgdMomentum, signal_factor, variance_factor
from adadp.methods.published import AdadpPublished, Adal, Adan, PublishedQuery
from adadp.methods.rate import AdaptiveRate
from adadp.methods.scales import ColumnScales, ScaleSettings
from adadp.methods.shaped import ShapedScales
from adadp.methods.text import METHODS, parse_method

__all__ = [
    "COUNT",
    "GRADIENT",
    "METHODS",
    "AdaDp",
    "AdadpPublished",
    "Adal",
    "AdamBC",
    "Adan",
    "AdaptiveRate",
    "Agd",
    "AgdQuery",
    "ClippedSum",
    "ColumnScales",
    "Deviations",
    "DpOpt",
    "DpSgd",
    "DpSgdMomentum",
    "LineSearch",
    "Method",
    "MethodDefaults",
    "Parts",
    "PublishedQuery",
    "Query",
    "ScaleSettings",
    "ShapedScales",
    "parse_method",
    "signal_factor",
    "variance_factor",
]
