"""The page of a comparison, from its results.json.

runs with seeds                       rehearsals: says so first, and every epsilon is that of a run without a seed
one seed                              means without a spread; no test, and the headline claims no winner
a winner by the mean alone            "no difference shown": a paired test has to support it (Holm, 5 %)
two cases that are no pair            "not tested": their budgets differ, or their epsilon was found by looking
runs without a seed (own data)        no word of seeds: the runs are independent
a case that is not private            dashed, marked, and never a winner
an epsilon that rules out little      the badge counts such cases, as a warning
one epsilon only                      dots by case in place of curves against epsilon
noise given in place of a budget      the epsilon that was certified stands in for the budget
runs looked at once only              no curves by epoch
a case without a finished run         a dash in the table, and in no chart
results of another format             ``InputError``
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from adadp.accounting import rounded_up
from adadp.app.report.html import comparison_charts as charts
from adadp.app.report.html.comparison_charts import Case, budget_of, epsilon_of, shown_name
from adadp.app.report.html.formatting import REHEARSALS, duration, number, percent, points
from adadp.app.report.html.page import Command, Figure, KeyFigures, Page, Part, Section, Table, Tone, Words
from adadp.certificate.detection import rules_out_little
from adadp.certificate.wording import small
from adadp.errors import InputError

FORMAT = 2

LEVEL = 0.05
"""A difference is shown where its p-value, adjusted for all pairs, is below this."""

Results = Mapping[str, Any]
Pair = Mapping[str, Any]


def comparison_page(results: Results) -> Page:
    """The page of a comparison with these ``results``."""
    if not isinstance(results, Mapping) or results.get("format") != FORMAT:
        raise InputError(
            "These are no results of a comparison that this version reads.",
            why=f"Their format is not {FORMAT}.",
            fix="Run the comparison again.",
        )
    cases, styles = results["cases"], charts.styles_of(results["cases"])
    done = [each for each in cases if each["mean"] is not None]
    unsafe = [each for each in cases if each["not_private"] is not None]
    budgets = dict.fromkeys(each["epsilon"] for each in done if each["not_private"] is None)
    verdicts = [verdict for epsilon in budgets for verdict in _verdicts(results, epsilon)]
    status, tone = _badge(results, len(unsafe))
    sections = [
        Section("Accuracy at equal budget", (*charts.by_epsilon(done, styles), _means(cases)), _equal(results)),
        *_tests(results),
        *_smallest(results),
        *_curves(done, styles),
        _privacy(results, unsafe),
        *_failed(results),
        Section("Run it again", _commands(results)),
    ]
    return Page(
        title=results["title"],
        kicker=f"Comparison on {results['data']}",
        headline=results["title"],
        status=status,
        tone=tone,
        lead=(*([REHEARSALS] if results["rehearsal"] else []), *verdicts, *results.get("misleading", ())),
        figures=KeyFigures(tuple(_figures(results))),
        sections=tuple(sections),
        made_with=f"Made with {results['made_with']}.",
    )


def _badge(results: Results, unsafe: int) -> tuple[str, Tone]:
    """The verdict on all guarantees in a few words, of which the worst counts."""
    cases, delta = results["cases"], results["delta"] or 0.0
    if results["rehearsal"]:
        return "REHEARSALS, NOT FOR RELEASE", "warn"
    if unsafe:
        return f"{unsafe} OF {len(cases)} CASES NOT PRIVATE", "warn"
    weak = [each for each in cases if any(rules_out_little(run["epsilon"], delta) for run in each["runs"])]
    return (f"ALL CASES PRIVATE, {len(weak)} WEAKLY", "warn") if weak else ("ALL CASES PRIVATE", "good")


def _verdicts(results: Results, epsilon: float | None) -> list[str]:
    """Who is ahead at ``epsilon``, as far as the paired tests go: a line for cases that were tested against others."""
    known = (each for each in results["cases"] if each["mean"] is not None)
    cases = [each for each in known if each["not_private"] is None and each["epsilon"] == epsilon]
    pairs = [pair for pair in results["pairs"] if pair["epsilon"] == epsilon]
    groups = _tested_together(cases, pairs)
    where = "With the noise that was given" if epsilon is None else f"At epsilon {number(epsilon)}"
    alone = [group[0] for group in groups if len(group) == 1]
    lines = [f"{where}: {_verdict(group, pairs, alone=len(groups) == 1)}" for group in groups if len(group) > 1]
    if alone:
        reached = ", ".join(f"{each['name']} reaches {percent(each['mean'])}" for each in alone)
        lines.append(f"{where}: {reached}{'' if len(cases) == 1 else '; not tested'}.")
    return lines


def _tested_together(cases: Sequence[Case], pairs: Sequence[Pair]) -> list[list[Case]]:
    """``cases`` in groups: within one, each is in a pair with some other of it. There are no pairs between groups."""
    groups: list[list[Case]] = []
    for case in cases:
        joined, apart = [case], []
        for group in groups:
            if any(_pair_of(pairs, case["name"], each["name"]) for each in group):
                joined = [*group, *joined]
            else:
                apart.append(group)
        groups = [*apart, joined]
    return groups


def _verdict(cases: Sequence[Case], pairs: Sequence[Pair], *, alone: bool) -> str:
    """Who is ahead among ``cases``; ``alone``: there are no others at their budget."""
    best = max(cases, key=lambda each: float(each["mean"]))
    name, mean = best["name"], percent(best["mean"])
    found: dict[str, list[str]] = {"ahead": [], "not shown": [], "not tested": []}
    for other in (each["name"] for each in cases if each is not best):
        pair = _pair_of(pairs, name, other)
        result = "not tested" if pair is None else "ahead" if _is_shown(pair, name) else "not shown"
        found[result].append(other)
    beaten, rest, untested = (", ".join(names) for names in found.values())
    if alone and not rest and not untested:
        return f"{name} is best, with {mean}."
    if alone and not beaten and not untested:
        return f"no difference to the best mean shown ({name}, {mean})."
    parts = [f"no difference shown to {rest}"] if rest else []
    parts += [f"not tested against {untested}"] if untested else []
    if beaten:
        return "; ".join([f"{name} ({mean}) is ahead of {beaten}", *parts]) + "."
    return f"{name} ({mean}): {'; '.join(parts)}."


def _pair_of(pairs: Sequence[Pair], name: str, other: str) -> Pair | None:
    return next((pair for pair in pairs if {pair["name"], pair["over"]} == {name, other}), None)


def _is_shown(pair: Pair, name: str) -> bool:
    """Whether the test of ``pair`` supports that ``name`` is ahead in it."""
    if pair["p_holm"] is None or pair["p_holm"] >= LEVEL:
        return False
    return bool(pair["gain"] > 0 if pair["name"] == name else pair["gain"] < 0)


def _figures(results: Results) -> list[Figure]:
    cases = results["cases"]
    names = dict.fromkeys(each["name"] for each in cases)
    seconds = sum(float(run["seconds"]) for each in cases for run in each["runs"])
    figures = [
        Figure("Methods", str(len(names)), ", ".join(names) if len(names) <= 4 else ""),
        Figure(
            "Runs", str(sum(len(each["runs"]) for each in cases)), f"{len(results['seeds'])} for each case and budget"
        ),
        Figure("Training time", f"\u2264 {duration(seconds)}", "all runs together"),
    ]
    if results["failed"]:
        figures.append(Figure("Failed runs", str(len(results["failed"])), "left out of every figure", "bad"))
    return figures


def _equal(results: Results) -> str:
    kept = [] if results["delta"] is None else [f"delta = {small(results['delta'])}"]
    kept += [f"{results[name]} {name}" for name in ("neighbours", "sampling") if results[name]]
    if not kept:
        return ""
    unsafe = any(case["not_private"] is not None for case in results["cases"])
    text = f"At one epsilon all {'private ' if unsafe else ''}cases have the same budget, with {', '.join(kept)}."
    return f"{text} The others have the noise of a private one, and no guarantee." if unsafe else text


def _curves(cases: Sequence[Case], styles: charts.Styles) -> list[Section]:
    drawn: list[Part] = []
    for place, epsilon in enumerate(dict.fromkeys(budget_of(each) for each in cases), 1):
        same = [each for each in cases if budget_of(each) == epsilon]
        budget = "" if epsilon is None else f", epsilon {number(epsilon)}"
        both = (make(same, styles, place, budget) for make in (charts.by_epoch, charts.by_spending))
        drawn += [chart for chart in both if chart is not None]
    return [Section("During the runs", tuple(drawn), "Means over the runs.")] if drawn else []


def _privacy(results: Results, unsafe: Sequence[Case]) -> Section:
    tone: Tone = "plain" if results["public"] else "warn"
    parts = [Words((results["total"]["text"],), "All runs looked at the same records", tone)]
    if unsafe:
        reasons = dict.fromkeys(f"{each['name']}: {each['not_private'] or 'no noise was added'}" for each in unsafe)
        parts.insert(0, Words(tuple(reasons), "Not private", "bad", listed=True))
    return Section("Privacy of the comparison itself", tuple(parts))


def _means(cases: Sequence[Case]) -> Table:
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
    found = [epsilon for run in case["runs"] if (epsilon := epsilon_of(run)) is not None]
    if case["not_private"] is not None:
        return "none"
    return rounded_up(max(found)) if found else "-"


def _tests(results: Results) -> list[Section]:
    pairs = results["pairs"]
    if not pairs:
        return []
    called = {case["name"]: shown_name(case) for case in results["cases"]}
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
            _difference(pair),
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


def _difference(pair: Pair) -> str:
    if pair["p_holm"] is None and pair["seeds"] > 1:
        return "equal each time" if pair["gain"] == 0 else "the same gain each time: no test"
    return "shown" if pair["p_holm"] is not None and pair["p_holm"] < LEVEL else "not shown"


def _smallest(results: Results) -> list[Section]:
    found = {(each["name"], each["mark"]): each["text"] for each in results["smallest"]}
    if not found:
        return []
    names, marks = (list(dict.fromkeys(key[place] for key in found)) for place in (0, 1))
    called = {case["name"]: shown_name(case) for case in results["cases"]}
    rows = tuple((called[name], *(found.get((name, mark), "-") for mark in marks)) for name in names)
    caption = (
        "The smallest epsilon of those tried from which on the mean never falls below the mark. Reading it off is a "
        "search judged by the test set: it compares methods, and is no model's guarantee."
    )
    table = Table(("Case", *(f"reaches {percent(mark)}" for mark in marks)), rows, caption, wide=True)
    return [Section("Smallest epsilon for an accuracy", (table,))]


def _failed(results: Results) -> list[Section]:
    rows = tuple(
        (each["name"], number(each["epsilon"]), str(each["seed"]), each["error"]) for each in results["failed"]
    )
    if not rows:
        return []
    columns = ("Case", "Epsilon", "Seed" if results["public"] else "Run", "Error")  # own records: no seeds, but numbers
    table = Table(columns, rows, "They are in no figure of this page.", left=4, wide=True)
    return [Section("Failed runs", (table,))]


def _commands(results: Results) -> tuple[Part, ...]:
    rows = tuple((each["name"], number(each["epsilon"]), each["command"]) for each in results["cases"])
    seed = " (add a seed)" if results["public"] else ""
    return (
        Command(results["command"], "The whole comparison; runs that are finished are not trained again:"),
        Table(("Case", "Epsilon", f"One run of it{seed}"), rows, left=2, wide=True, last="shell"),
    )
