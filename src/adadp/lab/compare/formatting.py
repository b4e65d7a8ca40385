"""Results in words and cells: accuracies in percent with two digits, and what they show. Pure text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from adadp.lab.compare.statistics import LEVEL

SEARCH = (
    "Reading off the smallest epsilon is a search judged by the test set: it compares methods, and is no model's "
    "guarantee."
)


def percent(mean: float | None, spread: float | None) -> str:
    """``97.61 ± 0.12``; nothing for nothing."""
    if mean is None:
        return ""
    return f"{100 * mean:.2f}" + ("" if spread is None else f" ± {100 * spread:.2f}")


def budgets(results: Mapping[str, Any]) -> list[float | None]:
    """The columns of a table: the epsilons from small to large, and last those cases that have none."""
    found = {case["epsilon"] for case in results["cases"]}
    return [*sorted(found - {None}), *([None] if None in found else [])]


def heading(epsilon: float | None) -> str:
    """The head of the column of ``epsilon``."""
    return "own budget" if epsilon is None else f"epsilon {epsilon:g}"


def names(results: Mapping[str, Any]) -> dict[str, str]:
    """Name of a case -> what its row is called: what is not private is marked."""
    return {
        case["name"]: case["name"] + ("" if case["not_private"] is None else " (NOT private)")
        for case in results["cases"]
    }


def cell(results: Mapping[str, Any], name: str, epsilon: float | None) -> str:
    """Mean and spread of a case at ``epsilon`` in percent, and how many seeds if some are missing."""
    for case in results["cases"]:
        if (case["name"], case["epsilon"]) == (name, epsilon):
            done, all_seeds = len(case["runs"]), len(results["seeds"])
            count = "" if done == all_seeds else f" ({done} of {all_seeds})"
            return f"{percent(case['mean'], case['spread'])}{count}".strip()
    return ""


def differences(results: Mapping[str, Any]) -> list[str]:
    """The paired gains that are significant after Holm's adjustment, the better case first; or that there are none."""
    if len(results["seeds"]) < 2:
        return [f"With one {'seed' if results['public'] else 'run of each case'} no difference can be tested."]
    if not results["pairs"]:
        return ["No two cases have the same budget, so there is no difference to test."]
    called, one_each = names(results), "seed" if results["public"] else "run"
    shown = [pair for pair in results["pairs"] if pair["p_holm"] is not None and pair["p_holm"] < LEVEL]
    alike = [pair for pair in results["pairs"] if pair["p_holm"] is None and pair["seeds"] > 1]
    lines = [_gain(pair, called, "seeds" if results["public"] else "runs each") for pair in shown]
    lines += [_alike(pair, called, one_each) for pair in alike]
    tested = [pair for pair in results["pairs"] if pair["p_holm"] is not None]
    if tested and not shown:
        lines.insert(0, f"No difference shown: no paired gain has p < {LEVEL:g} after Holm's adjustment.")
    return lines


def _gain(pair: Mapping[str, Any], called: Mapping[str, str], counted: str) -> str:
    low, high = (pair["low"], pair["high"]) if pair["gain"] >= 0 else (-pair["high"], -pair["low"])
    return (
        f"{_above(pair, called)} "
        f"({100 * low:.2f} to {100 * high:.2f}; p {pair['p_holm']:.2g} after Holm, {pair['seeds']} {counted})"
    )


def _alike(pair: Mapping[str, Any], called: Mapping[str, str], one_each: str) -> str:
    """A pair whose gain never varied, for which there is no t-test."""
    if pair["gain"] == 0:
        both = f"{called[pair['name']]} and {called[pair['over']]}"
        return f"{heading(pair['epsilon'])}: {both} came to the same accuracy with every {one_each}."
    return f"{_above(pair, called)}, by the same with every {one_each}: there is no test for that."


def _above(pair: Mapping[str, Any], called: Mapping[str, str]) -> str:
    one, other = (called[pair[place]] for place in (("name", "over") if pair["gain"] >= 0 else ("over", "name")))
    return f"{heading(pair['epsilon'])}: {one} is {100 * abs(pair['gain']):.2f} points above {other}"


def smallest(results: Mapping[str, Any]) -> list[str]:
    """The smallest epsilon of every case at every accuracy that was asked for."""
    lines, called = [], names(results)
    for mark in results["marks"]:
        found = [f"{called[each['name']]} {each['text']}" for each in results["smallest"] if each["mark"] == mark]
        lines.append(f"Smallest epsilon for {100 * mark:.2f} %: {', '.join(found)}")
    return [*lines, SEARCH] if lines else []
