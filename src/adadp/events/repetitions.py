"""How many runs a search makes: the laws of a random count for which choosing the best run has a known price.

With a fixed count k the best run can cost almost what all k cost together; drawn from one of these laws, it costs a
small multiple of one run (Liu and Talwar 2019; Papernot and Steinke 2022). The count itself is never published.

==============================  ==========================================
case                            result
==============================  ==========================================
eta <= -1                       InputError: the law does not exist
eta = 0                         the logarithmic law (a limit, not a gap)
eta = 1                         the geometric law, mean 1/gamma
gamma <= 0 or gamma >= 1        InputError; gamma = 1 would be a single run
gamma so small that the mean    InputError
is not a number
Poisson mean < 1                InputError: the theorem needs at least 1
==============================  ==========================================
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TypeAlias

from adadp import checks
from adadp.errors import InputError


@dataclass(frozen=True)
class TruncatedNegativeBinomial:
    """P[K = k] is proportional to (1 - gamma)^k prod_{l < k} (l + eta) / (l + 1), for k = 1, 2, ...

    ``gamma`` sets how many runs there are, ``eta`` how heavy the tail is: the lower eta, the more often K is 1 and the
    longer it can get.
    """

    eta: float
    gamma: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "eta", _above_minus_one(self.eta))
        gamma = checks.positive("gamma", self.gamma, why="It is the chance that the search stops.")
        if gamma >= 1:
            raise InputError(
                f"gamma must be less than 1, got {gamma:g}.",
                why="At 1 there is exactly one run, which is no search.",
                fix="Pass gamma below 1, or charge the run as itself.",
            )
        object.__setattr__(self, "gamma", gamma)
        if not math.isfinite(self.mean):
            raise InputError(f"gamma = {gamma:g} makes the mean number of runs infinite.", fix="Pass a larger gamma.")

    @property
    def mean(self) -> float:
        """E[K] = eta (1 - gamma) / (gamma (1 - gamma^eta)), and (1/gamma - 1) / log(1/gamma) for eta = 0."""
        log = math.log(self.gamma)
        power = self.eta * log
        # eta / (1 - gamma^eta), written so that it has its limit at eta = 0 without cancellation.
        ratio = -1 / log if power == 0 else self.eta / -math.expm1(power)
        return ratio * (1 - self.gamma) / self.gamma


def _above_minus_one(value: float) -> float:
    """``value`` as an eta: positive, or if not, of a size below 1."""
    why = "The law exists for finite eta > -1 only."
    if isinstance(value, (int, float)) and not isinstance(value, bool) and -1 < value <= 0:
        return float(value)
    return checks.positive("eta", value, why=why)


@dataclass(frozen=True)
class PoissonRepetitions:
    """P[K = k] = e^-mean mean^k / k!, for k = 0, 1, ...; with K = 0 nothing is trained and nothing is published."""

    mean: float

    def __post_init__(self) -> None:
        mean = checks.positive("mean", self.mean, why="It is the mean number of runs.")
        if mean < 1:
            raise InputError(
                f"The mean of a Poisson number of runs must be at least 1, got {mean:g}.",
                why="The price of the search is proved for means of at least 1.",
                fix="Pass mean >= 1.",
            )
        object.__setattr__(self, "mean", mean)


Repetitions: TypeAlias = TruncatedNegativeBinomial | PoissonRepetitions
REPETITION_TYPES = (TruncatedNegativeBinomial, PoissonRepetitions)
