"""A lower bound on epsilon from one run: which of many canaries were trained on is guessed from their scores.

**The theorem** (Steinke, Nasr and Jagielski 2023, Theorem 5.2). Each of m canaries is trained on or not by a fair coin
of its own. An attacker who sees what the run released guesses r of the coins, and says nothing of the others. If the
run is (epsilon, delta)-private with respect to each canary, the number of right guesses is v or more with a probability
of at most

    P[W >= v] + 2 m delta max_{i = 1 .. v} P[v > W >= v - i] / i,   W binomial of r trials at 1 / (1 + e^-epsilon).

An epsilon for which that is no more than 1 - confidence is refuted, and the bound is the largest of these. The coins of
the canaries are all that is random here; nothing is assumed about the records, the network or the attack.

**How many guesses.** r must not follow from which guesses are right. ``SHARES`` of the canaries are guessed, one half
of them (the highest scores) as trained on, the other (the lowest) as not, and the error 1 - confidence is shared among
these attempts, so that the largest bound of them holds with probability ``confidence``.

**How much can be shown.** With r right guesses of r the bound is about ln(r / ln(4 / (1 - confidence))): 4.9 for 600
guesses. A real attack at a small epsilon errs often, and shows a fraction of what the strongest one in many runs would.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy import stats
from scipy.optimize import brentq

from adadp import checks
from adadp.errors import InputError

Floats = npt.NDArray[np.float64]

SHARES = (1.0, 0.5, 0.2, 0.05)
"""Of the canaries, how many are guessed in each attempt."""
CONFIDENCE = 0.95
"""That of the bound on a certificate."""
FEWEST, MOST = 20, 100_000
"""How many canaries there may be: of fewer no twentieth can be guessed, more show hardly more."""
_LARGEST = 50.0


@dataclass(frozen=True)
class OneRunBound:
    """``epsilon_low`` is at most epsilon(delta), with probability ``confidence`` over the coins of the canaries."""

    epsilon_low: float
    delta: float
    confidence: float
    canaries: int
    guesses: int
    right: int


def one_run_bound(
    scores: Sequence[float] | Floats, included: Sequence[bool], delta: float, confidence: float = CONFIDENCE
) -> OneRunBound:
    """A lower bound on epsilon at ``delta`` from the scores of canaries of which those ``included`` were trained on.

    =============================================  ===================================================================
    guesses no better than chance                  0
    scores that are equal                          guessed in their order, which the coins have nothing to do with
    NaN, infinity, fewer than ``FEWEST`` canaries  ``InputError``
    =============================================  ===================================================================
    """
    values, coins = _checked(scores, included)
    delta = checks.delta(delta)
    error = (1 - checks.probability("confidence", confidence)) / len(SHARES)
    order = np.argsort(values, kind="stable")
    attempts = []
    for share in SHARES:
        half = int(len(values) * share / 2)
        right = int(coins[order[len(order) - half :]].sum()) + int((~coins[order[:half]]).sum())
        low = refuted_up_to(len(values), 2 * half, right, delta, error)
        attempts.append(OneRunBound(low, delta, confidence, len(values), 2 * half, right))
    return max(attempts, key=lambda each: each.epsilon_low)


def refuted_up_to(canaries: int, guesses: int, right: int, delta: float, error: float) -> float:
    """The largest epsilon at which ``right`` of ``guesses`` have a probability of at most ``error``; 0 if none has."""

    def excess(epsilon: float) -> float:
        return chance(canaries, guesses, right, epsilon, delta) - error

    if excess(0.0) > 0:
        return 0.0
    if excess(_LARGEST) <= 0:
        return _LARGEST
    found = float(brentq(excess, 0.0, _LARGEST, xtol=1e-9))
    return max(0.0, found - 1e-8)


def chance(canaries: int, guesses: int, right: int, epsilon: float, delta: float) -> float:
    """How probable ``right`` or more of ``guesses`` are, at most, of a run that is (``epsilon``, ``delta``)-private."""
    law = stats.binom(guesses, 1 / (1 + np.exp(-epsilon)))
    below = np.arange(1, right + 1)
    tails = np.cumsum(law.pmf(right - below)) / below
    return float(min(1.0, law.sf(right - 1) + 2 * canaries * delta * tails.max(initial=0.0)))


def rates(scores: Sequence[float] | Floats, included: Sequence[bool]) -> tuple[Floats, Floats]:
    """False and true alarms at every threshold: how often a canary that was not, or was, trained on scores above it."""
    values, coins = _checked(scores, included)
    order = np.argsort(-values, kind="stable")
    last_of_equals = np.append(np.diff(values[order]) != 0, True)
    false, true = np.cumsum(~coins[order])[last_of_equals], np.cumsum(coins[order])[last_of_equals]
    return false / max(1, int((~coins).sum())), true / max(1, int(coins.sum()))


def fallen(content: Mapping[str, Any]) -> Floats:
    """How much the loss of each canary fell, by canaries.json."""
    try:
        start, end = (np.asarray(content[name], dtype=np.float64) for name in ("start", "end"))
        return np.asarray(start - end)
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise InputError(
            f"canaries.json has no losses before and after the run: {type(error).__name__} {error}.",
            fix="Put the run's own file back.",
        ) from error


def statement(content: Mapping[str, Any], delta: float, epsilon: float | None) -> dict[str, Any]:
    """What a certificate that claims ``epsilon`` says of the canaries of a run, ``content`` its canaries.json."""
    bound = one_run_bound(fallen(content), content["included"], delta)
    text = (
        f"Measured, no guarantee: of {bound.canaries} public random records each was trained on if a fair coin said "
        f"so. An attack by how much their losses fell guessed {bound.guesses} of the coins, {bound.right} of them "
        f"right. That proves an epsilon of at least {bound.epsilon_low:.3g} at delta = {delta:g} (confidence "
        f"{bound.confidence:.0%}). A stronger attack may prove more."
    )
    if epsilon is not None and bound.epsilon_low > epsilon:
        text += " This is more than is certified: something is wrong with this run. Do not release its model."
    return {
        "epsilon_low": bound.epsilon_low,
        "confidence": bound.confidence,
        "canaries": bound.canaries,
        "guesses": bound.guesses,
        "right": bound.right,
        "text": text,
    }


def _checked(scores: Sequence[float] | Floats, included: Sequence[bool]) -> tuple[Floats, npt.NDArray[np.bool_]]:
    values, coins = np.asarray(scores, dtype=np.float64), np.asarray(included, dtype=bool)
    if values.ndim != 1 or values.shape != coins.shape or len(values) < FEWEST or not np.isfinite(values).all():
        raise InputError(
            f"There must be one finite score and one coin for each of {FEWEST} canaries or more.",
            fix="Pass numbers, and whether each canary was trained on.",
        )
    return values, coins
