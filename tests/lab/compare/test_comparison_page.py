"""The page of a comparison: who is ahead only where a test supports it, and no case that is not private wins."""

from __future__ import annotations

import pytest

from adadp.app.report.html import comparison_page, render
from adadp.app.report.html.page import Table, Words
from adadp.errors import InputError

RUN = {
    "seed": 0,
    "rehearsal": False,
    "epsilon": 1.0,
    "epsilon_if_unseeded": None,
    "claimed": None,
    "seconds": 1,
    "epochs": 2,
}


def run(accuracy, *, curve=(), **fields):
    return {**RUN, "test_accuracy": accuracy, "curve": list(curve), "folder": "runs/x", **fields}


def case(name, epsilon, mean, *, private=True, runs=None, spread: float | None = 0.01):
    return {
        "name": name,
        "epsilon": epsilon,
        "method": name,
        "private": private,
        "not_private": None if private else "It reads raw gradients.",
        "features": "none",
        "model": "linear",
        "command": f"adadp train --method {name}",
        "mean": mean,
        "spread": spread,
        "seconds": 1.0,
        "runs": [run(mean, epsilon=epsilon if private else None)] if runs is None else runs,
    }


def pair(name, over, gain, p_holm, epsilon=1.0):
    low, high = (None, None) if p_holm is None else (gain - 0.01, gain + 0.01)
    return {
        "epsilon": epsilon,
        "name": name,
        "over": over,
        "seeds": 3,
        "gain": gain,
        "low": low,
        "high": high,
        "p": p_holm,
        "p_holm": p_holm,
    }


def results(cases, pairs=(), **fields):
    return {
        "format": 2,
        "title": "A comparison",
        "command": "adadp compare --data cancer",
        "made_with": "adadp 0.1.0",
        "data": "cancer",
        "public": True,
        "rehearsal": False,
        "delta": 1e-5,
        "neighbours": "add-remove",
        "sampling": "poisson",
        "seeds": [0, 1, 2],
        "marks": [],
        "cases": list(cases),
        "pairs": list(pairs),
        "smallest": [],
        "total": {"runs": 2, "epsilon": 3.0, "delta": 1e-5, "text": "All runs together cost epsilon 3."},
        "failed": [],
        **fields,
    }


def charts_of(page):
    return {chart.name: chart for chart in page.charts()}


THREE = [case("a", 1.0, 0.95), case("b", 1.0, 0.94), case("c", 1.0, 0.93)]


@pytest.mark.parametrize(
    ("pairs", "verdict"),
    [
        ([pair("a", "b", 0.01, 0.01), pair("a", "c", 0.02, 0.01)], "At epsilon 1: a is best, with 95.00 %."),
        ([pair("b", "a", -0.01, 0.01), pair("c", "a", -0.02, 0.01)], "At epsilon 1: a is best, with 95.00 %."),
        (
            [pair("a", "b", 0.01, 0.05), pair("a", "c", 0.02, 0.049)],
            "At epsilon 1: a (95.00 %) is ahead of c; no difference shown to b.",
        ),
        (
            [pair("a", "b", 0.01, 0.2), pair("a", "c", 0.02, None)],
            "At epsilon 1: no difference to the best mean shown (a, 95.00 %).",
        ),
    ],
)
def test_a_winner_needs_a_test_that_supports_it(pairs, verdict):
    assert comparison_page(results(THREE, pairs)).lead == (verdict,)


NOT_TESTED = "At epsilon 1: a reaches 95.00 %, b reaches 94.00 %, c reaches 93.00 %; not tested."


@pytest.mark.parametrize(
    ("pairs", "verdicts"),
    [
        ([], (NOT_TESTED,)),
        ([pair("a", "b", 0.01, 0.01, epsilon=2.0)], (NOT_TESTED,)),
        (
            [pair("b", "c", 0.01, 0.01)],
            ("At epsilon 1: b (94.00 %) is ahead of c.", "At epsilon 1: a reaches 95.00 %; not tested."),
        ),
        (
            [pair("b", "c", 0.01, 0.2)],
            (
                "At epsilon 1: b (94.00 %): no difference shown to c.",
                "At epsilon 1: a reaches 95.00 %; not tested.",
            ),
        ),
        (
            [pair("a", "b", 0.01, 0.01), pair("b", "c", 0.01, 0.01)],
            ("At epsilon 1: a (95.00 %) is ahead of b; not tested against c.",),
        ),
        (
            [pair("a", "c", 0.01, 0.2), pair("b", "c", 0.01, 0.01)],
            ("At epsilon 1: a (95.00 %): no difference shown to c; not tested against b.",),
        ),
    ],
)
def test_nothing_is_said_about_cases_that_are_no_pair(pairs, verdicts):
    assert comparison_page(results(THREE, pairs)).lead == verdicts


def test_cases_with_noise_of_their_own_are_compared_where_they_are_a_pair():
    """Two have one noise, the others each another: none of these is a test of equal budgets."""
    means = {"a": 0.95, "b": 0.94, "c": 0.99, "d": 0.98}
    cases = [case(name, None, mean, runs=[run(mean, epsilon=2.0)]) for name, mean in means.items()]
    page = comparison_page(results(cases, [pair("b", "a", -0.01, 0.01, epsilon=None)]))
    assert page.lead == (
        "With the noise that was given: a (95.00 %) is ahead of b.",
        "With the noise that was given: c reaches 99.00 %, d reaches 98.00 %; not tested.",
    )


def test_runs_on_own_data_are_not_said_to_share_seeds():
    failed = [{"name": "b", "epsilon": 1.0, "seed": 2, "error": "No room."}]
    seeded, secure = (
        render(comparison_page(results(THREE, [pair("a", "b", 0.01, 0.01)], public=public, failed=failed)))
        for public in (True, False)
    )
    for words in ("paired by seed", "(add a seed)"):
        assert words in seeded
        assert words not in secure
    assert "paired by number (the runs have no seed and are independent)" in secure


def test_a_case_alone_is_not_called_best():
    assert comparison_page(results(THREE[:1])).lead == ("At epsilon 1: a reaches 95.00 %.",)


def test_a_case_that_is_not_private_never_wins_and_is_marked_everywhere():
    leaky = [case("published", epsilon, 0.99, private=False) for epsilon in (1.0, 2.0)]
    cases = [case("a", 1.0, 0.95), case("a", 2.0, 0.96), *leaky]
    page = comparison_page(results(cases, [pair("published", "a", 0.04, 0.001)]))
    assert (page.status, page.tone) == ("2 OF 4 CASES NOT PRIVATE", "warn")
    assert page.lead == ("At epsilon 1: a reaches 95.00 %.", "At epsilon 2: a reaches 96.00 %.")
    private, open_ = charts_of(page)["epsilon"].series
    assert (private.name, private.dashed) == ("a", False)
    assert (open_.name, open_.dashed) == ("published (not private)", True)
    (table,) = [p for s in page.sections for p in s.parts if isinstance(p, Table) and p.columns[2] == "Certified"]
    assert [row[2] for row in table.rows] == ["1", "2", "none", "none"]
    red = [p for s in page.sections for p in s.parts if isinstance(p, Words) and p.tone == "bad"]
    assert [part.lines for part in red] == [("published: It reads raw gradients.",)]


def test_a_run_without_noise_is_a_level_across_the_chart():
    level = case("sgd", None, 0.99, private=False)
    chart = charts_of(comparison_page(results([case("a", 1.0, 0.95), case("a", 2.0, 0.96), level])))["epsilon"]
    assert (chart.series[1].x, chart.series[1].y) == ((1.0, 2.0), (0.99, 0.99))


def test_noise_that_was_given_stands_at_the_epsilon_it_came_to():
    cases = [case("a", None, mean, runs=[run(mean, epsilon=spent)]) for mean, spent in ((0.9, 3.0), (0.8, 0.7))]
    chart = charts_of(comparison_page(results(cases)))["epsilon"]
    assert chart.series[0].x == (0.7, 3.0)
    assert chart.series[0].y == (0.8, 0.9)


def test_error_bars_are_one_spread_each_way_and_none_with_one_seed():
    (series,) = charts_of(comparison_page(results([case("a", 1.0, 0.9), case("a", 2.0, 0.95)])))["epsilon"].series
    assert series.low == pytest.approx((0.89, 0.94))
    assert series.high == pytest.approx((0.91, 0.96))
    once = [case("a", 1.0, 0.9, spread=None), case("a", 2.0, 0.95, spread=None)]
    (series,) = charts_of(comparison_page(results(once, seeds=[0])))["epsilon"].series
    assert series.low is series.high is None


def test_error_bars_end_where_shares_do():
    cases = [case("a", 1.0, 0.995, spread=0.01), case("a", 2.0, 0.005, spread=0.01)]
    (series,) = charts_of(comparison_page(results(cases)))["epsilon"].series
    assert series.low == pytest.approx((0.985, 0.0))
    assert series.high == pytest.approx((1.0, 0.015))


def test_a_gain_of_nothing_has_no_sign():
    page = comparison_page(results(THREE, [pair("a", "b", -1e-9, 0.9), pair("a", "c", -0.0, None)]))
    (table,) = [p for s in page.sections for p in s.parts if isinstance(p, Table) and p.columns[-1] == "Difference"]
    assert [row[3] for row in table.rows] == ["0.00", "0.00"]


def test_the_badge_says_where_epsilon_rules_out_little():
    strong, weak = case("a", 2.0, 0.95), case("a", 8.0, 0.97)
    status = [(page.status, page.tone) for page in map(comparison_page, (results([strong]), results([strong, weak])))]
    assert status == [("ALL CASES PRIVATE", "good"), ("ALL CASES PRIVATE, 1 WEAKLY", "warn")]


def test_rehearsals_are_said_once_and_first_and_their_epsilon_is_that_without_a_seed():
    def rehearsed(epsilon):
        curve = [{"step": 1, "epoch": 1, "epsilon_if_unseeded": epsilon / 2, "test_accuracy": 0.5}]
        seeded = run(0.9, curve=curve, rehearsal=True, epsilon=None, epsilon_if_unseeded=epsilon)
        return {**case("a", epsilon, 0.9, runs=[seeded]), "private": False}

    page = comparison_page(results([rehearsed(1.0), rehearsed(2.0)], rehearsal=True))
    assert (page.status, page.tone) == ("REHEARSALS, NOT FOR RELEASE", "warn")
    assert page.lead[0].startswith("These runs are rehearsals")
    assert "whoever has a seed can compute the noise again" in page.lead[0]
    assert render(page).count("rehearsal") == 1
    assert "not private" not in render(page).replace("None of the models is private", "")
    table = next(part for section in page.sections for part in section.parts if isinstance(part, Table))
    assert table.columns[2] == "Certified without a seed"
    assert [row[2] for row in table.rows] == ["1", "2"]
    charts = charts_of(page)
    assert charts["epsilon"].series[0].x == (1.0, 2.0)
    assert not charts["epsilon"].series[0].dashed
    assert charts["spent-1"].series[0].x == (0.5, 1.0)


def test_one_epsilon_is_drawn_as_dots():
    leaky = case("published", 1.0, 0.99, private=False)
    chart = charts_of(comparison_page(results([leaky, *THREE])))["cases"]
    assert chart.kind == "dots"
    assert [each.x for each in chart.series] == [("a",), ("b",), ("c",), ("published (not private)",)]
    assert [each.style for each in chart.series] == [1, 2, 3, 0]
    assert not chart.has_legend


@pytest.mark.parametrize("budgets", [(1.0,), (1.0, 2.0)])
def test_a_case_has_one_colour_and_symbol_in_every_chart(budgets):
    def looked_at(name, epsilon, **fields):
        curve = [{"step": 1, "epoch": 1, "epsilon": epsilon / 2, "test_accuracy": 0.5}]
        spent = None if "private" in fields else epsilon
        return case(name, epsilon, 0.9, runs=[run(0.9, curve=curve, epsilon=spent)], **fields)

    cases = [
        each
        for epsilon in budgets
        for each in (
            {**case("waiting", epsilon, None, spread=None, runs=[]), "seconds": None},
            looked_at("published", epsilon, private=False),
            looked_at("a", epsilon),
            looked_at("b", epsilon),
        )
    ]
    charts = comparison_page(results(cases)).charts()
    assert len(charts) == 1 + 2 * len(budgets)
    styles = [dict(zip([each.name for each in chart.series], chart.styles, strict=True)) for chart in charts]
    private = {"a": 2, "b": 3}
    everyone = private | {"published (not private)": 1}
    spending = [chart.name.startswith("spent") for chart in charts]
    assert styles == [private if spent else everyone for spent in spending]


def test_curves_are_means_over_the_seeds_of_what_all_of_them_saw():
    def seen(*looks):
        return [
            {"step": epoch, "epoch": epoch, "epsilon": epoch / 2, "test_accuracy": accuracy}
            for epoch, accuracy in looks
        ]

    runs = [
        run(0.9, curve=seen((1, 0.5)), epsilon=1.0),
        run(0.7, curve=[*seen((1, 0.3)), {"step": 2, "epoch": 2, "epsilon": 1.0}], epsilon=1.0),
    ]
    charts = charts_of(comparison_page(results([case("a", 1.0, 0.8, runs=runs)])))
    for name, places in (("epochs-1", (1.0, 2.0)), ("spent-1", (0.5, 1.0))):
        (series,) = charts[name].series
        assert series.x == places
        assert series.y == pytest.approx((0.4, 0.8))


def test_runs_whose_epsilon_is_fixed_ahead_have_no_curve_by_spending():
    looks = [{"step": epoch, "epoch": epoch, "epsilon": 1.0, "test_accuracy": 0.5} for epoch in (1, 2)]
    runs = [run(0.9, curve=looks, epsilon=1.0, epochs=3)]
    charts = charts_of(comparison_page(results([case("a", 1.0, 0.9, runs=runs)])))
    assert "epochs-1" in charts
    assert "spent-1" not in charts


def test_failed_runs_the_total_and_the_smallest_epsilon_are_shown():
    failed = [{"name": "b", "epsilon": 1.0, "seed": 2, "error": "No room <left> on the disk."}]
    smallest = [{"name": "a", "mark": 0.92, "epsilon": 1.0, "above": None, "text": "<= 1"}]
    page = comparison_page(results(THREE, failed=failed, smallest=smallest, public=False))
    document = render(page)
    assert "All runs together cost epsilon 3." in document
    assert "No room &lt;left&gt; on the disk." in document
    assert "reaches 92.00 %" in document
    assert "&lt;= 1" in document
    assert [figure.value for figure in page.figures.figures if figure.label == "Failed runs"] == ["1"]


def test_a_comparison_that_has_just_begun_has_a_page():
    waiting = {**case("b", 1.0, None, spread=None, runs=[]), "seconds": None}
    page = comparison_page(results([*THREE[:1], waiting]))
    assert page.lead == ("At epsilon 1: a reaches 95.00 %.",)
    assert charts_of(page)["cases"].series[0].x == ("a",)
    assert render(comparison_page(results([waiting])))


def test_other_formats_are_refused():
    with pytest.raises(InputError, match="no results"):
        comparison_page(results(THREE, format=1))
    with pytest.raises(InputError, match="no results"):
        comparison_page([])  # type: ignore[arg-type]


def test_only_private_cases_have_a_budget_in_common():
    def said(*cases):
        return next(
            each.text for each in comparison_page(results(list(cases))).sections if "equal budget" in each.title
        )

    safe, unsafe = case("a", 1.0, 0.9), case("b", 1.0, 0.9, private=False)
    assert "all cases have the same budget" in said(safe)
    assert "all private cases have the same budget" in said(safe, unsafe)
    assert "no guarantee" in said(safe, unsafe)
