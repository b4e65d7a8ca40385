"""How much one record may contribute: rules that turn per-example gradient norms into weights.

A rule sees square norms, one column per group of parameters, and nothing else: neither gradients nor parameters. It
answers with the weight of each record's gradient in the sum and with the l2 bound of what one record contributes. The
square norms, the weights and ``count_query`` are sensitive; the rule, its state and its bounds are public.

The core has ``flat``. Others, such as ``per-layer`` and ``quantile``, come from ``adadp.app.clipping``, from packages
and from files of the user's own.
"""

from adadp.clipping.base import SLACK, AdaptiveClipRule, ClipRule, ClipState, fading, norms_of
from adadp.clipping.flat import Flat

__all__ = [
    "SLACK",
    "AdaptiveClipRule",
    "ClipRule",
    "ClipState",
    "Flat",
    "fading",
    "norms_of",
]
