"""The figures themselves, of probabilities and answers. ``weights`` say how often each record counts.

case                                        figure
==========================================  ================================================================
records of one class only                   no AUROC, and no AUPRC where that is the other class: None
equal scores                                half of each pair of them is in order, as in Mann and Whitney 1947
a probability of 0 of what happened         log loss as of a probability of 1e-12
nobody is called positive                   no precision: None
targets that are all equal                  no R^2: None
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Floats: TypeAlias = NDArray[np.float64]
Whole: TypeAlias = NDArray[np.int64]
Points: TypeAlias = list[list[float]]

SMALLEST = 1e-12
"""What a probability counts at least in a logarithm."""


class Ranking:
    """Records in the order of their scores, the highest first; sorted once, for any number of weights."""

    def __init__(self, scores: Floats, positive: NDArray[np.bool_]) -> None:
        self._order = np.argsort(-scores, kind="stable")
        ordered = scores[self._order]
        self._positive = positive[self._order].astype(np.float64)
        self._ends = np.append(np.flatnonzero(np.diff(ordered)), len(ordered) - 1)
        """The last record of every group of equal scores."""

    def counts(self, weights: Floats) -> tuple[Floats, Floats]:
        """Positives and negatives above every threshold, from the highest score down, 0 included."""
        weights = weights[self._order]
        found = np.cumsum(weights * self._positive)[self._ends]
        alarms = np.cumsum(weights * (1 - self._positive))[self._ends]
        return np.append(0.0, found), np.append(0.0, alarms)

    def auroc(self, weights: Floats) -> float | None:
        """The share of pairs of a positive and a negative in which the positive has the higher score."""
        return area(*self.counts(weights))

    def auprc(self, weights: Floats) -> float | None:
        """Average precision: the mean, over the positives, of the precision at their score (no interpolation)."""
        return average_precision(*self.counts(weights))

    def curves(self, points: int) -> tuple[Points, Points]:
        """The ROC curve (false alarms, recall) and that of precision (recall, precision), thinned to ``points``."""
        found, alarms = self.counts(np.ones(len(self._order)))
        if not found[-1] or not alarms[-1]:
            return [], []
        kept = np.unique(np.linspace(0, len(found) - 1, points).round().astype(np.int64))
        recall, false = found / found[-1], alarms / alarms[-1]
        precision = found[1:] / (found[1:] + alarms[1:])
        roc = [[_short(false[at]), _short(recall[at])] for at in kept]
        return roc, [[_short(recall[at]), _short(precision[at - 1])] for at in kept if at]


def area(found: Floats, alarms: Floats) -> float | None:
    """The area below the curve of ``found`` over ``alarms``, both counted down the thresholds and beginning with 0."""
    if found[-1] <= 0 or alarms[-1] <= 0:
        return None
    return float(np.sum(np.diff(alarms) * (found[1:] + found[:-1]) / 2) / (found[-1] * alarms[-1]))


def average_precision(found: Floats, alarms: Floats) -> float | None:
    """The mean precision over the steps in which positives are found."""
    if found[-1] <= 0:
        return None
    called = found[1:] + alarms[1:]
    precision = np.divide(found[1:], called, out=np.zeros_like(called), where=called > 0)
    return float(np.sum(np.diff(found) * precision) / found[-1])


def log_loss(probabilities: Floats, labels: Whole, weights: Floats) -> float:
    """Minus the mean logarithm of the probability of the true class."""
    true = np.clip(probabilities[np.arange(len(labels)), labels], SMALLEST, 1.0)
    return float(np.average(-np.log(true), weights=weights))


def brier(probabilities: Floats, labels: Whole, weights: Floats) -> float:
    """The mean squared distance of the probabilities from what happened (Brier 1950).

    Of two classes it is that of the second one alone, from 0 to 1; of more it is summed over them, from 0 to 2.
    """
    if probabilities.shape[1] == 2:
        return float(np.average((probabilities[:, 1] - labels) ** 2, weights=weights))
    happened = np.zeros_like(probabilities)
    happened[np.arange(len(labels)), labels] = 1
    return float(np.average(((probabilities - happened) ** 2).sum(1), weights=weights))


def calibration(scores: Floats, positive: NDArray[np.bool_], bins: int) -> list[list[float]]:
    """Per bin of equal width that has records: the mean probability said, the share that happened, how many records."""
    place = np.minimum((scores * bins).astype(np.int64), bins - 1)
    found = []
    for each in range(bins):
        mine = place == each
        if mine.any():
            found.append([_short(scores[mine].mean()), _short(positive[mine].mean()), int(mine.sum())])
    return found


def share(part: float, whole: float) -> float | None:
    """``part / whole``; None of nothing."""
    return float(part / whole) if whole > 0 else None


def mean_absolute_error(targets: Floats, found: Floats, weights: Floats) -> float:
    """The mean distance, in the unit of the target."""
    return float(np.average(np.abs(targets - found), weights=weights))


def root_mean_squared_error(targets: Floats, found: Floats, weights: Floats) -> float:
    """The root of the mean squared distance, in the unit of the target."""
    return float(np.sqrt(np.average((targets - found) ** 2, weights=weights)))


def explained(targets: Floats, found: Floats, weights: Floats) -> float | None:
    """R^2: 1 minus the squared error over that of always answering the mean of these targets."""
    spread = np.average((targets - np.average(targets, weights=weights)) ** 2, weights=weights)
    return None if spread <= 0 else float(1 - np.average((targets - found) ** 2, weights=weights) / spread)


def _short(value: float) -> float:
    return float(f"{value:.6g}")
