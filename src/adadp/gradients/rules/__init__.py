"""One small rule per kind of layer: per-example gradients, their norms and weighted sums from (input, output gradient)."""

from __future__ import annotations

from adadp.gradients.rules.base import Pair, Rule, Sums, instantiate, slices, square_norm, weigh
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
    "Sums",
    "instantiate",
    "slices",
    "square_norm",
    "weigh",
]
