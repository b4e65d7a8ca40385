"""Figures of private records, from a few sums over them to which noise was added, and which anybody may have.

What one record adds, and how far that can reach (l2):

    the model tells                  a record adds                                                  l2 bound
    ===============================  =============================================================  ===================
    two classes                      1 to the cell of its class and of the bin of its probability   1
    more classes                     1 to the cell of its class, right or wrong                     1
    T numbers in declared ranges     1 to the count, and for each target |e|, e^2, u and u^2, with  sqrt(1 + 4 T)
                                     e the error over the width of the range, in [0, 1], and u the
                                     true value mapped to [-1, 1]

The first two have one entry of 1 and zeros elsewhere. In the third every entry is in [-1, 1]. Where a record is a unit
of several rows, it adds the mean of what these would add, which the same bounds hold for. Each row is given to the
model by itself, so what it adds depends on no other one, rounding included. The bins and ranges are public.

The intervals hold both chances: the noise, whose size is public, and which records there happen to be. ``DRAWS`` times
the sums are taken as what was expected, records are drawn (Poisson counts in the cells; for numbers the largest
variance that their means allow) and noise is added, and the figure computed again: its quantiles are the interval.

    case                                                       figure
    =========================================================  =======================================================
    a class with fewer records than three standard deviations  no figure that divides by their number: None
    of the noise in it
    a share beyond 0 or 1                                      the nearer end
    a sum of errors within one standard deviation of the       no figure of that error: None
    noise in it
    AUROC                                                      of the bins, with half of each pair in one bin: up to
                                                               about 0.01 below that of the scores
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from adadp.app.figures import scores
from adadp.app.figures.measured import DRAWS, FORMAT, LEVEL
from adadp.app.figures.scores import Floats, Whole

EDGES = (0.02, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
"""Where the bins of a probability end; the threshold is one more end."""

_ENOUGH = 3.0
Values = Mapping[str, "float | None"]


def edges(threshold: float) -> Floats:
    """The ends of the bins for this threshold."""
    return np.array(sorted({*EDGES, threshold}))


def class_sums(probabilities: Floats, labels: Whole, threshold: float, weights: Floats | None = None) -> Floats:
    """The sums over rows of a classifier: each adds its weight, 1 unless given, to one cell."""
    weights = _whole(np.ones(len(labels)) if weights is None else weights)
    kinds = probabilities.shape[1]
    if kinds == 2:
        ends = edges(threshold)
        bins = np.searchsorted(ends, probabilities[:, 1], side="left")  # the threshold itself is not above it
        cells, count = labels * (len(ends) + 1) + bins, 2 * (len(ends) + 1)
    else:
        cells, count = 2 * labels + (probabilities.argmax(1) == labels), 2 * kinds
    return np.bincount(cells, weights, minlength=count).astype(np.float64)


def number_sums(
    targets: Floats, found: Floats, ranges: Sequence[tuple[float, float]], weights: Floats | None = None
) -> Floats:
    """The sums over rows of a model of numbers, as ``class_sums``; ``targets`` and ``found`` lie in their ranges."""
    weights = np.ones(len(targets)) if weights is None else weights
    sums = [_whole(weights).sum()]
    for place, (low, high) in enumerate(ranges):
        error = np.clip(np.abs(targets[:, place] - found[:, place]) / (high - low), 0, 1)
        level = np.clip((targets[:, place] - low) / (high - low) * 2 - 1, -1, 1)
        sums += [_whole(weights * each).sum() for each in (error, error**2, level, level**2)]
    return np.array(sums)


def _whole(added: Floats) -> Floats:
    """``added`` in whole multiples of 2**-28, cut off towards 0: sums of 2**25 of them have no rounding errors."""
    return np.trunc(added * 2.0**28) / 2.0**28


def bound_of_numbers(targets: int) -> float:
    """The l2 bound of what one record adds to ``number_sums``."""
    return math.sqrt(1 + 4 * targets)


def class_figures(
    sums: Sequence[float], spread: float, names: Sequence[str], *, records: int, threshold: float
) -> dict[str, Any]:
    """The figures of a classifier from its sums, to each of which noise of standard deviation ``spread`` was added."""
    cells = np.array(sums).reshape(len(names), -1)
    binary = len(names) == 2
    of: Callable[[Floats], dict[str, float | None]] = (
        (lambda drawn: _binary(drawn, spread, threshold)) if binary else (lambda drawn: _several(drawn, spread))
    )
    generator = np.random.default_rng(0)
    draws = [
        of(generator.poisson(np.maximum(cells, 0)) + spread * generator.normal(size=cells.shape)) for _ in range(DRAWS)
    ]
    noise = spread * math.sqrt(cells.shape[1])
    sizes, right = cells.sum(1), _right(cells, threshold)
    content: dict[str, Any] = {
        "format": FORMAT,
        "kind": "binary" if binary else "classes",
        "noisy": True,
        "records": records,
        "classes": [
            {
                "class": name,
                "records": max(0, round(float(size))),
                "recall": _share(mine, size, noise),
                "precision": _precision(cells, place, threshold, spread) if binary else None,
            }
            for place, (name, size, mine) in enumerate(zip(names, sizes, right, strict=True))
        ],
        "figures": _with_intervals(of(cells), draws),
    }
    if binary:
        content |= {"threshold": threshold, "curves": _curves(cells, threshold, spread)}
    return content


def number_figures(
    sums: Sequence[float], spread: float, names: Sequence[str], ranges: Sequence[tuple[float, float]], *, records: int
) -> dict[str, Any]:
    """The figures of a model of numbers from its sums, as ``class_figures``."""
    count, generator = sums[0], np.random.default_rng(0)
    by_target = []
    for place, (name, (low, high)) in enumerate(zip(names, ranges, strict=True)):
        mine = np.array([count, *sums[1 + 4 * place : 5 + 4 * place]])
        draws = [_errors(_redrawn(mine, spread, generator), spread, high - low) for _ in range(DRAWS)]
        figures = _with_intervals(_errors(mine, spread, high - low), draws)
        by_target.append({"target": name, "figures": figures})
    return {"format": FORMAT, "kind": "numbers", "noisy": True, "records": records, "targets": by_target}


def _binary(cells: Floats, spread: float, threshold: float) -> dict[str, float | None]:
    above = np.searchsorted(edges(threshold), threshold) + 1
    noise = spread * math.sqrt(cells.shape[1])
    (missed, found), sizes = (cells[1, :above].sum(), cells[1, above:].sum()), cells.sum(1)
    alarms = cells[0, above:].sum()
    recall, false = _share(found, missed + found, noise), _share(alarms, sizes[0], noise)
    kept, total = sizes[0] - alarms, sizes.sum()
    area = None
    if min(sizes) > _ENOUGH * noise:
        down = cells[:, ::-1].cumsum(axis=1)
        area = scores.area(np.append(0.0, down[1]), np.append(0.0, down[0]))
    return {
        "accuracy": _share(found + kept, total, noise * math.sqrt(2)),
        "balanced_accuracy": None if recall is None or false is None else (recall + 1 - false) / 2,
        "auroc": None if area is None else min(1.0, max(0.0, area)),
        "recall": recall,
        "precision": _share(found, found + alarms, spread * math.sqrt(2 * (cells.shape[1] - above))),
        "false_alarms": false,
    }


def _several(cells: Floats, spread: float) -> dict[str, float | None]:
    shares = [_share(mine, size, spread * math.sqrt(2)) for mine, size in zip(cells[:, 1], cells.sum(1), strict=True)]
    known = [share for share in shares if share is not None]
    return {
        "accuracy": _share(cells[:, 1].sum(), cells.sum(), spread * math.sqrt(cells.size)),
        "balanced_accuracy": sum(known) / len(known) if len(known) == len(shares) else None,
    }


def _errors(sums: Floats, spread: float, width: float) -> dict[str, float | None]:
    count, distance, square, level, levels = sums
    if count <= _ENOUGH * spread:
        return {"mae": None, "rmse": None, "r2": None}
    variance = levels / count - (level / count) ** 2  # of u, which has twice the width of the range in [-1, 1]
    known = square > spread
    return {
        "mae": width * distance / count if distance > spread else None,
        "rmse": width * math.sqrt(square / count) if known else None,
        "r2": 1 - 4 * square / count / variance if known and variance * count > _ENOUGH * spread else None,
    }


def _redrawn(sums: Floats, spread: float, generator: np.random.Generator) -> Floats:
    """The sums of other records like these, with other noise."""
    count = max(sums[0], 1.0)
    distance, square, level, levels = (float(each) for each in np.clip(sums[1:] / count, (0, 0, -1, 0), 1))
    variances = [
        max(square - distance**2, 0.0),
        square * (1 - square),  # a number in [0, 1] varies most if it is 0 or 1
        max(levels - level**2, 0.0),
        levels * (1 - levels),
    ]
    drawn = sums.copy()
    drawn[1:] += np.sqrt(np.array(variances) * count) * generator.normal(size=4)
    return np.asarray(drawn + spread * generator.normal(size=5))


def _curves(cells: Floats, threshold: float, spread: float) -> dict[str, Any]:
    """The curves at the ends of the bins; of bins whose records drown in the noise no calibration."""
    alarms, found = (np.append(0.0, np.maximum(row, 0)[::-1].cumsum()) for row in cells)
    if found[-1] <= 0 or alarms[-1] <= 0:
        return {"roc": [], "precision": [], "calibration": []}
    roc = [[_plain(false), _plain(share)] for false, share in zip(alarms / alarms[-1], found / found[-1], strict=True)]
    called = found + alarms
    precision = [
        [_plain(mine / found[-1]), _plain(mine / size)]
        for mine, size in zip(found[1:], called[1:], strict=True)
        if size
    ]
    ends = np.concatenate([[0.0], edges(threshold), [1.0]])
    calibration = []
    for place, (low, high) in enumerate(pairwise(ends)):
        share = _share(cells[1, place], cells[:, place].sum(), spread * math.sqrt(2))
        if share is not None:
            calibration.append([_plain((low + high) / 2), _plain(share), round(float(cells[:, place].sum()))])
    return {"roc": roc, "precision": precision, "calibration": calibration}


def _right(cells: Floats, threshold: float) -> Floats:
    """How many of each class are right."""
    if len(cells) > 2:
        return cells[:, 1]
    above = np.searchsorted(edges(threshold), threshold) + 1
    return np.array([cells[0, :above].sum(), cells[1, above:].sum()])


def _precision(cells: Floats, place: int, threshold: float, spread: float) -> float | None:
    above = np.searchsorted(edges(threshold), threshold) + 1
    mine = cells[:, above:] if place else cells[:, :above]
    return _share(mine[place].sum(), mine.sum(), spread * math.sqrt(mine.size))


def _share(part: float, whole: float, noise: float) -> float | None:
    """``part / whole``, within 0 and 1; None where ``whole`` could be noise."""
    return None if whole <= _ENOUGH * noise else _plain(min(1.0, max(0.0, part / whole)))


def _with_intervals(found: Values, draws: Sequence[Values]) -> dict[str, dict[str, float | None]]:
    content = {}
    for name, value in found.items():
        known = [each for each in (draw[name] for draw in draws) if each is not None]
        low, high = None, None
        if value is not None and len(known) > DRAWS // 2:
            low, high = (_plain(each) for each in np.quantile(known, [(1 - LEVEL) / 2, (1 + LEVEL) / 2]))
        content[name] = {"value": None if value is None else _plain(value), "low": low, "high": high}
    return content


def _plain(value: float) -> float:
    return float(f"{value:.10g}")
