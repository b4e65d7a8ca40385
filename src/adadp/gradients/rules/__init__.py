"""One small rule per kind of layer: how its input and output gradient give per-example gradients, norms and sums."""

from __future__ import annotations

from adadp.gradients.rules.base import (
    Pair,
    Rule,
    Scales,
    Sums,
    blank,
    instances,
    norms_of,
    scaled,
    slices,
    square_norm,
    weigh,
    weigh_all,
)
from adadp.gradients.rules.convolution import ConvolutionRule
from adadp.gradients.rules.elementwise import BroadcastRule, NormalisationRule
from adadp.gradients.rules.embedding import EmbeddingRule
from adadp.gradients.rules.linear import LinearRule

__all__ = [
    "BroadcastRule",
    "ConvolutionRule",
    "EmbeddingRule",
    "LinearRule",
    "NormalisationRule",
    "Pair",
    "Rule",
    "Scales",
    "Sums",
    "blank",
    "instances",
    "norms_of",
    "scaled",
    "slices",
    "square_norm",
    "weigh",
    "weigh_all",
]
