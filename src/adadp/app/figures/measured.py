"""Figures of public records, with intervals by the bootstrap, as JSON: what ``figures.json`` of a run holds.

The interval of a figure is that of its values on ``DRAWS`` test sets of the same size, drawn with replacement from the
one there is (Efron 1979), by a fixed seed: from the 2.5 % to the 97.5 % quantile. It says how far the figure is due to
which records happen to be in the test set, and nothing of other trainings.

    case                                               what happens
    =================================================  ===========================================================
    a figure that too few draws have (a class that is  it has no interval
    in half of them or fewer)
    more than ``MOST_CLASSES`` classes                 no figures: ``None``
    labels that are probabilities, or several to a     no figures: ``None``
    record
    a group without records                            it is left out
    a group without positives                          no recall of it; it is left out of the gap
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from adadp.app.figures import scores
from adadp.app.figures.scores import Floats, Ranking, Whole
from adadp.errors import InputError

FORMAT = 1
LEVEL = 0.95
DRAWS = 200
MOST_CLASSES = 200
"""With more classes nobody reads them one by one, and a confusion matrix is their square."""
_MOST_RANKED = 20
"""AUROC of every class against the others is computed for so many classes at most."""
_BINS, _POINTS = 10, 60

Figure = Callable[[Floats], "float | None"]
"""A figure of the records counted as often as the weights say."""


@dataclass(frozen=True, eq=False)
class Groups:
    """To which declared group each test record belongs, such as a sex or a hospital: for the gap between them."""

    called: str
    names: tuple[str, ...]
    places: Whole
    """The number of each record's group."""

    def __post_init__(self) -> None:
        places = np.asarray(self.places)
        if places.ndim != 1 or not len(places) or places.min() < 0 or places.max() >= len(self.names):
            raise InputError(
                f"The groups by {self.called} do not fit their names.",
                fix="Give every test record the number of its group, counted from 0.",
            )

    @classmethod
    def of(cls, called: str, values: Sequence[object]) -> Groups:
        """The groups of records with these ``values``: a group for each different one."""
        names, places = np.unique(np.asarray([str(each) for each in values]), return_inverse=True)
        return cls(called, tuple(map(str, names)), places.astype(np.int64))


def classes_figures(
    probabilities: Floats,
    labels: Whole,
    names: Sequence[str],
    *,
    threshold: float = 0.5,
    groups: Groups | None = None,
) -> dict[str, Any]:
    """Figures of a classifier; of two classes, the second is the positive one, called so from ``threshold`` on."""
    size, kinds = len(labels), probabilities.shape[1]
    said = answers(probabilities, threshold)
    figures: dict[str, Figure] = {"accuracy": _mean_of(said == labels)}
    found: dict[str, Any] = {
        "format": FORMAT,
        "kind": "binary" if kinds == 2 else "classes",
        "records": size,
        "classes": [_of_class(name, place, said, labels) for place, name in enumerate(names)],
    }
    figures["balanced_accuracy"] = lambda weights: _balanced(said, labels, weights, kinds)
    if kinds == 2:
        positive, score = labels == 1, probabilities[:, 1]
        ranking = Ranking(score, positive)
        figures |= {"auroc": ranking.auroc, "auprc": ranking.auprc}
        figures |= _at_threshold(said == 1, positive)
        roc, precision = ranking.curves(_POINTS)
        curves = {"roc": roc, "precision": precision, "calibration": scores.calibration(score, positive, _BINS)}
        found |= {"threshold": threshold, "curves": curves}
    elif kinds <= _MOST_RANKED:
        rankings = [Ranking(probabilities[:, place], labels == place) for place in range(kinds)]
        figures["auroc"] = lambda weights: _mean([ranking.auroc(weights) for ranking in rankings])
    figures["log_loss"] = lambda weights: scores.log_loss(probabilities, labels, weights)
    figures["brier"] = lambda weights: scores.brier(probabilities, labels, weights)
    found["figures"] = with_intervals(figures, size)
    if groups is not None:
        found["groups"] = _by_group(groups, probabilities, labels, said)
    return found


def answers(probabilities: Floats, threshold: float) -> Whole:
    """The class that is said: the most probable one; of two classes the second one above ``threshold``."""
    if probabilities.shape[1] == 2:
        return (probabilities[:, 1] > threshold).astype(np.int64)
    said: Whole = probabilities.argmax(1).astype(np.int64)
    return said


def number_figures(
    targets: Floats, found: Floats, names: Sequence[str], *, groups: Groups | None = None
) -> dict[str, Any]:
    """Figures of a model of numbers: of each of its targets, which are the columns."""
    by_target = []
    for place, name in enumerate(names):
        by_target.append(
            {"target": name, "figures": with_intervals(_errors(targets[:, place], found[:, place]), len(targets))}
        )
    content: dict[str, Any] = {"format": FORMAT, "kind": "numbers", "records": len(targets), "targets": by_target}
    if groups is not None:
        content["groups"] = _errors_by_group(groups, targets[:, 0], found[:, 0])
    return content


def with_intervals(figures: Mapping[str, Figure], size: int) -> dict[str, dict[str, float | None]]:
    """Each figure with its value and the ends of its interval."""
    all_once = np.ones(size)
    drawn: dict[str, list[float]] = {name: [] for name in figures}
    generator = np.random.default_rng(0)
    for _ in range(DRAWS):
        weights = np.bincount(generator.integers(size, size=size), minlength=size).astype(np.float64)
        for name, figure in figures.items():
            value = figure(weights)
            if value is not None:
                drawn[name].append(value)
    found = {}
    for name, figure in figures.items():
        value = figure(all_once)
        low, high = None, None
        if value is not None and len(drawn[name]) > DRAWS // 2:
            low, high = (_plain(each) for each in np.quantile(drawn[name], [(1 - LEVEL) / 2, (1 + LEVEL) / 2]))
        found[name] = {"value": None if value is None else _plain(value), "low": low, "high": high}
    return found


def _errors(targets: Floats, found: Floats) -> dict[str, Figure]:
    return {
        "mae": lambda weights: scores.mean_absolute_error(targets, found, weights),
        "rmse": lambda weights: scores.root_mean_squared_error(targets, found, weights),
        "r2": lambda weights: scores.explained(targets, found, weights),
    }


def _mean_of(right: NDArray[np.bool_]) -> Figure:
    return lambda weights: float(np.average(right, weights=weights))


def _mean(values: Sequence[float | None]) -> float | None:
    known = [each for each in values if each is not None]
    return sum(known) / len(known) if known else None


def _balanced(said: Whole, labels: Whole, weights: Floats, kinds: int) -> float | None:
    sizes = np.bincount(labels, weights=weights, minlength=kinds)
    right = np.bincount(labels, weights=weights * (said == labels), minlength=kinds)
    return _mean([scores.share(mine, size) for mine, size in zip(right, sizes, strict=True)])


def _at_threshold(called: NDArray[np.bool_], positive: NDArray[np.bool_]) -> dict[str, Figure]:
    """Recall, precision and false alarms of calling those positive that are ``called`` so."""
    return {
        "recall": lambda weights: scores.share(weights[called & positive].sum(), weights[positive].sum()),
        "precision": lambda weights: scores.share(weights[called & positive].sum(), weights[called].sum()),
        "false_alarms": lambda weights: scores.share(weights[called & ~positive].sum(), weights[~positive].sum()),
    }


def _of_class(name: str, place: int, said: Whole, labels: Whole) -> dict[str, Any]:
    mine, called = labels == place, said == place
    right = int((mine & called).sum())
    return {
        "class": name,
        "records": int(mine.sum()),
        "recall": scores.share(right, int(mine.sum())),
        "precision": scores.share(right, int(called.sum())),
    }


def _by_group(groups: Groups, probabilities: Floats, labels: Whole, said: Whole) -> dict[str, Any]:
    """Figures of each group, and the largest difference between two of them."""
    rows = []
    for place, name in enumerate(groups.names):
        mine = groups.places == place
        if not mine.any():
            continue
        row: dict[str, Any] = {"group": name, "records": int(mine.sum())}
        weights = mine.astype(np.float64)
        row["accuracy"] = float((said == labels)[mine].mean())
        if probabilities.shape[1] == 2:
            row["called"] = float((said[mine] == 1).mean())
            row |= {key: figure(weights) for key, figure in _at_threshold(said == 1, labels == 1).items()}
            row["auroc"] = Ranking(probabilities[mine, 1], labels[mine] == 1).auroc(np.ones(int(mine.sum())))
        rows.append(row)
    return {"by": groups.called, "rows": rows, "gaps": _gaps(rows)}


def _errors_by_group(groups: Groups, targets: Floats, found: Floats) -> dict[str, Any]:
    rows = []
    for place, name in enumerate(groups.names):
        mine = groups.places == place
        if mine.any():
            figures = _errors(targets[mine], found[mine])
            values = {key: figure(np.ones(int(mine.sum()))) for key, figure in figures.items()}
            rows.append({"group": name, "records": int(mine.sum()), **values})
    return {"by": groups.called, "rows": rows, "gaps": _gaps(rows)}


def _gaps(rows: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """The largest value less the smallest one, of every figure that at least two groups have."""
    found = {}
    for name in rows[0] if rows else ():
        values = [row[name] for row in rows if isinstance(row[name], float)]
        if name != "records" and len(values) > 1:
            found[name] = _plain(max(values) - min(values))
    return found


def _plain(value: float) -> float:
    """Ten digits: the same on every computer that sums in another order."""
    return float(f"{value:.10g}")
