"""Training methods: how the records of a batch become one bounded vector, and the released vector a gradient.

dpsgd    clip, add, noise (Abadi et al. 2016)
adadp    the same in coordinates scaled by what was released before: private, the default

Others come from ``adadp.lab.methods``, from packages and from files of the user's own (``adadp.app.texts.methods``).
"""

from adadp.methods.adadp import AdaDp
from adadp.methods.base import (
    COUNT,
    GRADIENT,
    Choose,
    Contribution,
    Deviations,
    Method,
    MethodDefaults,
    Parts,
    Query,
    Tensors,
)
from adadp.methods.clipped import ClippedSum, DpSgd
from adadp.methods.scales import ColumnScales, ScaleSettings

__all__ = [
    "COUNT",
    "GRADIENT",
    "AdaDp",
    "Choose",
    "ClippedSum",
    "ColumnScales",
    "Contribution",
    "Deviations",
    "DpSgd",
    "Method",
    "MethodDefaults",
    "Parts",
    "Query",
    "ScaleSettings",
    "Tensors",
]
