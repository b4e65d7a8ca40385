"""HOW MUCH one record may contribute: rules that turn per-example gradient norms into weights.

A rule sees square norms, one column per group of parameters, and nothing else: neither gradients nor parameters. It
answers with the weight of each record's gradient in the sum and with the l2 bound of what one record contributes. The
square norms, the weights and ``count_query`` are sensitive; the rule, its state and its bounds are public.

    text                                             bound of one record      additional release
    flat:C                                           C                        none
    per-layer:C or per-layer:C_1,C_2,...             sqrt(sum of C_g^2)       none
    per-layer-joint:C                                C                        none
    automatic:C,gamma=0.01                           C                        none

Others, such as ``quantile``, come from ``adadp.app.clipping``, from packages and from files of the user's own.
"""

from adadp.clipping.base import SLACK, AdaptiveClipRule, ClipRule, ClipState, fading, norms_of
from adadp.clipping.fixed import Automatic, Flat, PerLayer, PerLayerJoint

__all__ = [
    "SLACK",
    "AdaptiveClipRule",
    "Automatic",
    "ClipRule",
    "ClipState",
    "Flat",
    "PerLayer",
    "PerLayerJoint",
    "fading",
    "norms_of",
]
