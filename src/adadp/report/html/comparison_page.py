"""The page of a comparison, from its results.json.

one seed                              means without a spread; no test, and the headline claims no winner
a winner by the mean alone            "no difference shown": a paired test has to support it (Holm, 5 %)
a case that is not private            dashed, marked, and never a winner
one epsilon only                      dots by case in place of curves against epsilon
noise given in place of a budget      the epsilon that was certified stands in for the budget
runs looked at once only              no curves by epoch
a case without a finished run         a dash in the table, and in no chart
results of another format             ``InputError``
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from adadp.errors import InputError
from adadp.report.html.comparison_charts import budget_of, by_epoch, by_epsilon, by_spending
from adadp.report.html.comparison_tables import LEVEL, Case, Results, commands, failed, means, smallest, tests
from adadp.report.html.page import Figure, KeyFigures, Page, Part, Section, Tone, Words
from adadp.report.html.words import duration, number, percent, small

FORMAT = 1


def comparison_page(results: Results) -> Page:
    """The page of a comparison with these ``results``."""
    if not isinstance(results, Mapping) or results.get("format") != FORMAT:
        raise InputError(
            "These are no results of a comparison that this version reads.",
            why=f"Their format is not {FORMAT}.",
            fix="Run the comparison again.",
        )
    cases = results["cases"]
    done = [each for each in cases if each["mean"] is not None]
    unsafe = [each for each in cases if not each["private"]]
    verdicts = [_verdict(results, epsilon) for epsilon in _budgets(done)]
    sections = [
        Section("Accuracy at equal budget", (*by_epsilon(done), means(cases)), _equal(results)),
        *tests(results),
        *smallest(results),
        *_curves(done),
        Section("Privacy of the comparison itself", (*_unsafe(unsafe), _total(results))),
        *failed(results),
        Section("Run it again", commands(results)),
    ]
    return Page(
        title=results["title"],
        kicker=f"Comparison on {results['data']}",
        headline=results["title"],
        status=f"{len(unsafe)} OF {len(cases)} CASES NOT PRIVATE" if unsafe else "ALL CASES PRIVATE",
        tone="warn" if unsafe else "good",
        lead=tuple(verdicts),
        figures=KeyFigures(tuple(_figures(results))),
        sections=tuple(sections),
        made_with=f"Made with {results['made_with']}.",
    )


def _budgets(cases: Sequence[Case]) -> list[float | None]:
    return list(dict.fromkeys(each["epsilon"] for each in cases if each["private"]))


def _at(epsilon: float | None) -> str:
    return "With the noise that was given" if epsilon is None else f"At epsilon {number(epsilon)}"


def _verdict(results: Results, epsilon: float | None) -> str:
    """Who is ahead at ``epsilon``, as far as the paired tests go."""
    known = (each for each in results["cases"] if each["mean"] is not None)
    cases = [each for each in known if each["private"] and each["epsilon"] == epsilon]
    best = max(cases, key=lambda each: float(each["mean"]))
    where, name, mean = _at(epsilon), best["name"], percent(best["mean"])
    others = [each["name"] for each in cases if each is not best]
    if not others:
        return f"{where}: {name} reaches {mean}."
    beaten = [other for other in others if _is_shown(results["pairs"], epsilon, name, other)]
    if len(beaten) == len(others):
        return f"{where}: {name} is best, with {mean}."
    if not beaten:
        return f"{where}: no difference to the best mean shown ({name}, {mean})."
    rest = ", ".join(other for other in others if other not in beaten)
    return f"{where}: {name} ({mean}) is ahead of {', '.join(beaten)}; no difference shown to {rest}."


def _is_shown(pairs: Sequence[Mapping[str, Any]], epsilon: float | None, name: str, over: str) -> bool:
    """Whether a paired test supports that ``name`` is ahead of ``over``, whichever way round the pair is listed."""
    for pair in pairs:
        if pair["epsilon"] != epsilon or pair["p_holm"] is None or pair["p_holm"] >= LEVEL:
            continue
        if (pair["name"], pair["over"]) == (name, over):
            return bool(pair["gain"] > 0)
        if (pair["name"], pair["over"]) == (over, name):
            return bool(pair["gain"] < 0)
    return False


def _figures(results: Results) -> list[Figure]:
    cases = results["cases"]
    names = dict.fromkeys(each["name"] for each in cases)
    seconds = sum(float(run["seconds"]) for each in cases for run in each["runs"])
    figures = [
        Figure("Methods", str(len(names)), ", ".join(names) if len(names) <= 4 else ""),
        Figure("Runs", str(sum(len(each["runs"]) for each in cases)), f"{len(results['seeds'])} seeds each"),
        Figure("Training time", duration(seconds), "all runs together"),
    ]
    if results["failed"]:
        figures.append(Figure("Failed runs", str(len(results["failed"])), "left out of every figure", "bad"))
    return figures


def _equal(results: Results) -> str:
    shared = [
        f"delta = {small(results['delta'])}" if results["delta"] is not None else "",
        f"{results['neighbours']} neighbours" if results["neighbours"] else "",
        f"{results['sampling']} sampling" if results["sampling"] else "",
    ]
    kept = [each for each in shared if each]
    return f"At one epsilon all cases have the same budget, with {', '.join(kept)}." if kept else ""


def _curves(cases: Sequence[Case]) -> list[Section]:
    charts: list[Part] = []
    for place, epsilon in enumerate(dict.fromkeys(budget_of(each) for each in cases), 1):
        same = [each for each in cases if budget_of(each) == epsilon]
        budget = "" if epsilon is None else f", epsilon {number(epsilon)}"
        charts += [chart for chart in (by_epoch(same, place, budget), by_spending(same, place, budget)) if chart]
    return [Section("On the way", tuple(charts), "Means over the seeds.")] if charts else []


def _unsafe(cases: Sequence[Case]) -> list[Part]:
    if not cases:
        return []
    reasons = dict.fromkeys(f"{each['name']}: {each['not_private'] or 'no noise was added'}" for each in cases)
    return [Words(tuple(reasons), "Not private", "bad", listed=True)]


def _total(results: Results) -> Words:
    tone: Tone = "plain" if results["public"] else "warn"
    return Words((results["total"]["text"],), "All runs looked at the same records", tone)
