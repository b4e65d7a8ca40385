"""The tables of the page of a comparison."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from adadp.accounting import rounded_up
from adadp.app.report.html.comparison_charts import epsilon_of, shown_name
from adadp.app.report.html.formatting import number, percent, points
from adadp.app.report.html.page import Command, Part, Section, Table

LEVEL = 0.05
"""A difference is shown where its p-value, adjusted for all pairs, is below this."""

Results = Mapping[str, Any]
Case = Mapping[str, Any]


def means(cases: Sequence[Case]) -> Table:
    """Mean and spread of every case."""
    rehearsal = any(run["rehearsal"] for each in cases for run in each["runs"])
    certified = "Certified without a seed" if rehearsal else "Certified"
    columns = ("Case", "Epsilon", certified, "Mean", "Spread", "Runs", "Seconds a run")
    rows = tuple(
        (
            shown_name(each),
            number(each["epsilon"]),
            _certified(each),
            "-" if each["mean"] is None else percent(each["mean"]),
            "-" if each["spread"] is None else percent(each["spread"]),
            str(len(each["runs"])),
            "-" if each["seconds"] is None else f"{each['seconds']:.0f}",
        )
        for each in cases
    )
    caption = (
        "Mean and spread (standard deviation) of the test accuracy over the runs. The time of a run is rounded up "
        "to one digit."
    )
    return Table(columns, rows, caption, wide=True)


def _certified(case: Case) -> str:
    """The largest epsilon of the runs of a case."""
    found = [epsilon for run in case["runs"] if (epsilon := epsilon_of(run)) is not None]
    if case["not_private"] is not None:
        return "none"
    return rounded_up(max(found)) if found else "-"


def tests(results: Results) -> list[Section]:
    """The paired gains of every case over every other."""
    pairs = results["pairs"]
    if not pairs:
        return []
    called = _names(results)
    columns = ("Case", "Over", "Epsilon", "Gain", "95 % interval", "p", "p (Holm)", "Difference")
    rows = tuple(
        (
            called[pair["name"]],
            called[pair["over"]],
            number(pair["epsilon"]),
            "-" if pair["gain"] is None else points(pair["gain"]),
            "-" if pair["low"] is None else f"{points(pair['low'])} to {points(pair['high'])}",
            number(pair["p"]),
            number(pair["p_holm"]),
            _verdict(pair),
        )
        for pair in pairs
    )
    paired = "paired by seed" if results["public"] else "paired by number (the runs have no seed and are independent)"
    caption = (
        f"Gains in percentage points, {paired}, with a two-sided t-test. Holm's correction is over all pairs of "
        f"the page; below {LEVEL:g} a difference counts as shown. Not shown does not mean equal."
    )
    table = Table(columns, rows, caption, left=2, wide=True, last="prose")
    return [Section("Who is ahead, and is it more than chance", (table,))]


def _verdict(pair: Mapping[str, Any]) -> str:
    if pair["p_holm"] is None and pair["seeds"] > 1:
        return "equal each time" if pair["gain"] == 0 else "the same gain each time: no test"
    return "shown" if pair["p_holm"] is not None and pair["p_holm"] < LEVEL else "not shown"


def _names(results: Results) -> dict[str, str]:
    return {case["name"]: shown_name(case) for case in results["cases"]}


def smallest(results: Results) -> list[Section]:
    """The smallest epsilon with which a case reaches a mark."""
    found = {(each["name"], each["mark"]): each["text"] for each in results["smallest"]}
    if not found:
        return []
    names, marks = (list(dict.fromkeys(key[place] for key in found)) for place in (0, 1))
    called = _names(results)
    rows = tuple((called[name], *(found.get((name, mark), "-") for mark in marks)) for name in names)
    caption = (
        "The smallest epsilon of those tried from which on the mean never falls below the mark. Reading it off is a "
        "search judged by the test set: it compares methods, and is no model's guarantee."
    )
    table = Table(("Case", *(f"reaches {percent(mark)}" for mark in marks)), rows, caption, wide=True)
    return [Section("Smallest epsilon for an accuracy", (table,))]


def failed(results: Results) -> list[Section]:
    """What went wrong, if anything did."""
    rows = tuple(
        (each["name"], number(each["epsilon"]), str(each["seed"]), each["error"]) for each in results["failed"]
    )
    if not rows:
        return []
    columns = ("Case", "Epsilon", _numbers(results), "Error")
    table = Table(columns, rows, "They are in no figure of this page.", left=4, wide=True)
    return [Section("Failed runs", (table,))]


def commands(results: Results) -> tuple[Part, ...]:
    """How to make the comparison again, and each run of it."""
    rows = tuple((each["name"], number(each["epsilon"]), each["command"]) for each in results["cases"])
    seed = " (add a seed)" if results["public"] else ""
    return (
        Command(results["command"], "The whole comparison; runs that are finished are not trained again:"),
        Table(("Case", "Epsilon", f"One run of it{seed}"), rows, left=2, wide=True, last="shell"),
    )


def _numbers(results: Results) -> str:
    """What the seeds of the comparison are: on a user's own records they number runs that have none."""
    return "Seed" if results["public"] else "Run"
