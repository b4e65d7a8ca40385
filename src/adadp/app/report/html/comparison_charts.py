"""The charts of a comparison: accuracy against epsilon, against epochs, and against epsilon spent.

A case has one colour and symbol on the whole page, whichever of its charts leave out others.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

from adadp.app.report.html.page import Axis, Chart, Series

Case = Mapping[str, Any]
Point = tuple[float, float]
"""Where a run was (an epoch, an epsilon), and its accuracy there."""

Styles = Mapping[str, int]
"""The number of the colour and symbol of each case, by its shown name."""

ACCURACY = Axis("test accuracy", percent=True)


def shown_name(case: Case) -> str:
    """The name of a case, marked where it is not private."""
    return str(case["name"]) if case["not_private"] is None else f"{case['name']} (not private)"


def styles_of(cases: Sequence[Case]) -> Styles:
    """A colour and symbol for each of ``cases``: all of the comparison, those without a finished run too."""
    return {name: place for place, name in enumerate(dict.fromkeys(shown_name(case) for case in cases))}


def budget_of(case: Case) -> float | None:
    """The epsilon a case stands at: what was asked for, or what came of the noise that was given."""
    if case["epsilon"] is not None:
        return float(case["epsilon"])
    found = [epsilon_of(run) if case["not_private"] is None else run["claimed"] for run in case["runs"]]
    return max((float(each) for each in found if each is not None), default=None)


def epsilon_of(run: Mapping[str, Any]) -> float | None:
    """The certified epsilon of a run, or what it would be without the seed; None where the method is not private."""
    epsilon: float | None = run["epsilon_if_unseeded"] if run["rehearsal"] else run["epsilon"]
    return epsilon


def by_epsilon(cases: Sequence[Case], styles: Styles) -> list[Chart]:
    """Mean accuracy against epsilon with the spread over the seeds; dots by case where there is one epsilon only."""
    title = "Test accuracy against epsilon"
    caption = "Means over the runs; bars are one standard deviation each way, and none goes beyond 0 or 100 %."
    budgets = sorted({budget for case in cases if (budget := budget_of(case)) is not None})
    if len(budgets) < 2:
        return [_dots(cases, styles, caption)] if cases else []
    series = []
    for name, own in _by_name(cases).items():
        known = sorted(
            ((budget, case) for case in own if (budget := budget_of(case)) is not None), key=lambda each: each[0]
        )
        endless = [(budget, case) for case in own if budget_of(case) is None for budget in (budgets[0], budgets[-1])]
        places, found = zip(*(known or endless), strict=True)
        series.append(_means(name, places, found, styles))
    return [Chart("epsilon", title, "line", Axis("epsilon", "log"), ACCURACY, tuple(series), caption, wide=True)]


def _by_name(cases: Sequence[Case]) -> dict[str, list[Case]]:
    """The cases under each name, in their order."""
    names = dict.fromkeys(shown_name(case) for case in cases)
    return {name: [case for case in cases if shown_name(case) == name] for name in names}


def _dots(cases: Sequence[Case], styles: Styles, caption: str) -> Chart:
    """A row for each case, those that are not private below."""
    ordered = _by_name(sorted(cases, key=lambda case: case["not_private"] is not None))
    series = tuple(_means(name, [name] * len(own), own, styles) for name, own in ordered.items())
    return Chart("cases", "Test accuracy", "dots", Axis("case", "category"), ACCURACY, series, caption, wide=True)


def _means(name: str, places: Sequence[float | str], cases: Sequence[Case], styles: Styles) -> Series:
    low = tuple(None if case["spread"] is None else max(0.0, case["mean"] - case["spread"]) for case in cases)
    high = tuple(None if case["spread"] is None else min(1.0, case["mean"] + case["spread"]) for case in cases)
    spread = any(each is not None for each in low)
    return Series(
        name,
        tuple(places),
        tuple(float(case["mean"]) for case in cases),
        low if spread else None,
        high if spread else None,
        dashed=any(case["not_private"] is not None for case in cases),
        style=styles[name],
    )


def by_epoch(cases: Sequence[Case], styles: Styles, place: int, budget: str) -> Chart | None:
    """Mean accuracy by epoch, of the epochs that every seed looked at."""
    series = [_averaged(case, [_looks(run, "epoch", run["epochs"]) for run in case["runs"]], styles) for case in cases]
    return _curves(series, f"epochs-{place}", f"Accuracy by epoch{budget}", Axis("epoch", whole=True))


def by_spending(cases: Sequence[Case], styles: Styles, place: int, budget: str) -> Chart | None:
    """Mean accuracy by epsilon spent; cases whose epsilon is fixed ahead, or that have none, are left out."""
    series = []
    for case in cases:
        runs = [
            _looks(run, "epsilon_if_unseeded" if run["rehearsal"] else "epsilon", epsilon)
            for run in case["runs"]
            if (epsilon := epsilon_of(run)) is not None
        ]
        if runs and all(len({at for at, _ in looks}) == len(looks) for looks in runs):
            series.append(_averaged(case, runs, styles))
    return _curves(series, f"spent-{place}", f"Accuracy by epsilon spent{budget}", Axis("epsilon spent", bound=True))


def _looks(run: Mapping[str, Any], name: str, last: float) -> list[Point]:
    """The looks of a run at the test set, with ``name`` at the time; at the last one it is ``last``."""
    found = [
        (float(point[name]), float(point["test_accuracy"]))
        for point in run["curve"]
        if point.get("test_accuracy") is not None and point.get(name) is not None
    ]
    return [*(each for each in found if each[0] != last), (float(last), float(run["test_accuracy"]))]


def _averaged(case: Case, runs: Sequence[Sequence[Point]], styles: Styles) -> Series:
    shared = set.intersection(*({at for at, _ in run} for run in runs)) if runs else set()
    places = tuple(sorted(shared))
    means = tuple(fmean(dict(run)[at] for run in runs) for at in places)
    name = shown_name(case)
    return Series(name, places, means, dashed=case["not_private"] is not None, style=styles[name])


def _curves(series: Sequence[Series], name: str, title: str, axis: Axis) -> Chart | None:
    drawn = tuple(each for each in series if len(each.x) > 1)
    return Chart(name, title, "line", axis, ACCURACY, drawn) if drawn else None
