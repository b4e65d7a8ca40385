"""The sentences of a certificate that follow from its figures; ``verify`` writes them again and compares."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from adadp.accounting import rounded_up
from adadp.certificate.detection import rules_out_little
from adadp.events import Neighbours

NOTHING = "Nothing."
MEANING = {
    Neighbours.ADD_REMOVE: "adding or removing one record",
    Neighbours.REPLACE_ONE: "replacing one record by any other",
    Neighbours.ZERO_OUT: "blanking out one record",
}
_CLAIMANT = "Xu et al. 2020"


def protects(epsilon: float, delta: float, neighbours: Neighbours) -> str:
    """The guarantee in a sentence. It must not promise what (epsilon, delta) alone does not give.

    "Except with probability delta" would: of an outcome whose probability is larger by delta than the factor allows,
    (epsilon, delta)-differential privacy does not say how rarely it happens.
    """
    change = f"{MEANING[neighbours]} of the training data"
    if rules_out_little(epsilon, delta):
        return (
            f"At so large an epsilon the guarantee alone rules out very little: the model may change much by {change}."
        )
    power = rounded_up(float(f"{epsilon:.12g}"), 3)  # 3.0000000000000004 is 3 on another computer
    factor = f"e^{power} (at most {rounded_up(math.exp(epsilon))})"
    return (
        f"{change[0].upper()}{change[1:]} changes the probability of any outcome by at most a factor of {factor}, plus "
        f"a probability of at most {small(delta)}."
    )


def seeded(seed: int) -> str:
    """Why a run with a seed protects nothing."""
    return (
        f"The noise was computed from the seed {seed}, which is in the configuration: whoever has the seed can compute "
        "the noise again and subtract it. Nothing is protected. To release a model, train it without a seed."
    )


def randomness(seed: int | None) -> str:
    """Where the random numbers came from, as the sources of ``adadp.randomness`` describe themselves."""
    return "secure (operating-system entropy)" if seed is None else f"seed {seed}: reproducible, not secure"


def claim(epsilon: float | None, covers: str | None, delta: float, paper: str | None) -> str:
    """What a paper would claim for a method that is not private."""
    what = "nothing for what this run released"
    if epsilon is not None:
        what = f"epsilon {epsilon:.4g} at delta {small(delta)} for {covers}"
    text = f"{_CLAIMANT} would claim {what} (their Theorem 1, as printed). No guarantee follows from it."
    if paper != _CLAIMANT:
        text += f" The method was published by {paper}; what that paper would claim was not computed."
    return text


def small(value: float) -> str:
    """A delta: 1e-5, and not 1e-05."""
    return f"{value:g}".replace("e-0", "e-")


def guarantee_of(certificate: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Epsilon, its bracket and what they protect, as certified, or (of a rehearsal) as without the seed; None: none."""
    if certificate["rehearsal"]:
        without: Mapping[str, Any] = certificate["if_unseeded"]
        return without
    return certificate if certificate["private"] else None


def stated(certificate: Mapping[str, Any]) -> dict[str, Any]:
    """What a program needs to know first: whether the model may be released, and under which epsilon."""
    without = certificate["if_unseeded"]["epsilon"] if certificate["rehearsal"] else None
    found = {name: certificate[name] for name in ("private", "rehearsal", "epsilon")}
    return found | {"epsilon_if_unseeded": without}
