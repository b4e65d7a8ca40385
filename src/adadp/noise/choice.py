"""The exponential mechanism (McSherry and Talwar 2007): one of several candidates, the better the more likely.

A candidate with the sensitive loss z_i is chosen with a probability proportional to exp(-epsilon z_i / bound). Let one
record more move every loss by a number between 0 and ``bound``. Then log(p_i / p'_i) is, up to a number that all
candidates share, between 0 and epsilon: the privacy loss has a range of epsilon, which is epsilon-DP, and epsilon^2 / 8
zCDP (Dong, Durfee, Rogers 2020; Cesar and Rogers 2021). Where a record can move losses by ``bound`` in both directions
the range is 2 epsilon: pass twice the bound to have epsilon.

Drawn as the largest of -epsilon z_i / bound plus Gumbel noise. Only the number of the candidate leaves, so low bits of
the noise tell nothing; the probabilities are right to the precision of doubles.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from adadp import checks
from adadp.errors import InputError
from adadp.randomness import RandomSource

_LEAST, _MOST = 2.0**-54, 1 - 2.0**-53
"""Uniform numbers are kept half a step away from 0 and a step from 1, where Gumbel noise would be infinite."""


def choose_least(losses: Tensor, *, bound: float, epsilon: float, source: RandomSource, step: int, purpose: str) -> int:
    """The number of a candidate, drawn by the exponential mechanism from sensitive ``losses``. It must be paid for.

    ==============================================  ======================================================
    epsilon infinite                                a least loss, the first of them: not private
    epsilon 0                                       any candidate, equally likely
    no candidates, losses that are not finite       ``InputError`` without a word about them
    ==============================================  ======================================================
    """
    values = losses.detach().double().cpu().flatten()
    if not len(values) or not bool(values.isfinite().all()):
        raise InputError(
            "There is nothing to choose from, or a loss is not finite. Nothing was released.",
            why="No sum of bounded losses can be; what is in it must not be shown.",
            fix="Bound every record's loss.",
        )
    if math.isinf(epsilon):
        return int(values.argmin())
    sharpness = checks.non_negative("epsilon", epsilon) / checks.positive("bound", bound)
    return perturbed_least(values * sharpness, source.uniform(len(values), purpose=purpose, step=step))


def perturbed_least(losses: Tensor, uniforms: Tensor) -> int:
    """A number i with probability proportional to exp(-losses[i]), from a uniform number in [0, 1) for each."""
    noise = -torch.log(-torch.log(uniforms.clamp(_LEAST, _MOST)))
    return int(torch.argmax(noise - losses))
