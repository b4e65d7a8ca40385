"""Training methods: how the records of a batch become one bounded vector, and the released vector a gradient.

The core has ``dpsgd``: clip, add, noise (Abadi et al. 2016). The default, ``adadp``, is in ``adadp.app.methods``;
others come from ``adadp.lab.methods``, from packages and from files of the user's own (``adadp.app.texts.methods``).
"""

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

__all__ = [
    "COUNT",
    "GRADIENT",
    "Choose",
    "ClippedSum",
    "Contribution",
    "Deviations",
    "DpSgd",
    "Method",
    "MethodDefaults",
    "Parts",
    "Query",
    "Tensors",
]
