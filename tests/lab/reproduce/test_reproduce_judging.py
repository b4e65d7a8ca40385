"""Ours beside the printed figure: what counts as met, which claims hold, what state an item is in."""

from __future__ import annotations

import pytest

from adadp.accounting import accountant
from adadp.app.accounting.run_shape import RunShape
from adadp.lab.reproduce.items import Claim, item_of
from adadp.lab.reproduce.judging import State, Verdict, epsilon_along, judge, judged
from adadp.lab.reproduce.storing import Store

BASE = {"data": "cancer", "epsilon": 1.0, "delta": 1e-3}


def run(seed, accuracy, **more):
    return {
        "seed": seed, "test_accuracy": accuracy, "private": True, "epsilon": 1.0, "claimed": None, "epochs": 3,
        "steps": 30, "seconds": 1.0,
    } | more  # fmt: skip


def filled(tmp_path, content, runs, *, quick=False):
    store = Store(item_of("paper", "item", {"title": "T", "base": BASE} | content), tmp_path, quick)
    configs = store.item.runs(quick=quick)
    for name, each in runs.items():
        for one in each:
            store.keep_run(name, configs[name], one)
    return store


CASES = [{"name": "a", "printed": 0.9}, {"name": "b", "printed": 0.8, "tolerance": 0.001}]


def test_met_within_the_tolerance_and_missed_beyond(tmp_path):
    runs = {"a": [run(0, 0.905), run(1, 0.907)], "b": [run(0, 0.801), run(1, 0.803)]}
    found = judged(filled(tmp_path, {"seeds": 2, "case": CASES}, runs))
    assert [row.verdict for row in found.rows] == [Verdict.MET, Verdict.MISSED]
    assert [row.gap for row in found.rows] == ["+0.60", "+0.20"]
    assert found.rows[0].ours == "90.60 ± 0.14"
    assert found.rows[1].gain == "-10.40 ± 0.00"
    assert (found.state, found.met, found.printed) == (State.DIFFERS, 1, 2)


def test_the_states(tmp_path):
    content = {"seeds": 2, "case": CASES}
    assert judged(filled(tmp_path / "0", content, {})).state is State.NOT_RUN
    some = {"a": [run(0, 0.9), run(1, 0.9)]}
    assert judged(filled(tmp_path / "1", content, some)).state is State.IN_PART
    one = {"a": [run(0, 0.9)], "b": [run(0, 0.8)]}
    assert judged(filled(tmp_path / "2", content, one)).state is State.IN_PART
    both = {"a": [run(0, 0.9), run(1, 0.9)], "b": [run(0, 0.8), run(1, 0.8)]}
    assert judged(filled(tmp_path / "3", content, both)).state is State.REPRODUCED
    plain = {"seeds": 2, "case": [{"name": "a"}, {"name": "b"}]}
    assert judged(filled(tmp_path / "4", plain, both)).state is State.MEASURED


def test_a_method_without_privacy_says_so_and_what_its_paper_claims(tmp_path):
    runs = {"a": [run(0, 0.9, private=False, epsilon=None, claimed=0.5)]}
    (row,) = judged(filled(tmp_path, {"case": CASES[:1]}, runs)).rows
    assert row.epsilon == "none (0.5 claimed)"
    assert not row.private


@pytest.mark.parametrize(
    ("epsilon", "text"),
    [(0.0004, "0.0004"), (0.0123456, "0.0123"), (0.1, "0.100"), (0.49951, "0.500"), (8.0, "8.000"), (None, "none")],
)
def test_a_small_epsilon_is_not_shown_as_0(tmp_path, epsilon, text):
    (row,) = judged(filled(tmp_path, {"case": CASES[:1]}, {"a": [run(0, 0.9, epsilon=epsilon)]})).rows
    assert row.epsilon == text


ITEM = item_of("p", "i", {"title": "T", "base": BASE, "case": [{"name": "a"}, {"name": "b"}]})


@pytest.mark.parametrize(
    ("a", "b", "verdict"),
    [
        ([0.91, 0.92, 0.93], [0.90, 0.91, 0.92], Verdict.MET),
        ([0.90, 0.91, 0.92], [0.91, 0.92, 0.93], Verdict.MISSED),
        ([0.90, 0.93, 0.91], [0.91, 0.91, 0.91], Verdict.NOT_SHOWN),
        ([0.95], [0.90], Verdict.NOT_SHOWN),
        ([], [0.90], Verdict.NOT_SHOWN),
    ],
    ids=["better", "worse", "noise", "one seed", "not measured"],
)
def test_better_means_by_two_standard_errors(a, b, verdict):
    found = {"a": [run(seed, x) for seed, x in enumerate(a)], "b": [run(seed, x) for seed, x in enumerate(b)]}
    assert judge(Claim("says", of="a", over="b"), ITEM, found).verdict is verdict


def test_seeds_that_only_one_side_has_do_not_count():
    found = {"a": [run(0, 0.95), run(1, 0.1)], "b": [run(0, 0.90)]}
    assert judge(Claim("says", of="a", over="b", printed=0.05), ITEM, found).verdict is Verdict.MET


@pytest.mark.parametrize(
    ("printed", "verdict"), [(0.02, Verdict.MET), (0.035, Verdict.MISSED), (-0.02, Verdict.MISSED)]
)
def test_a_printed_gain_is_met_within_a_point(printed, verdict):
    found = {"a": [run(0, 0.92)], "b": [run(0, 0.90)]}
    assert judge(Claim("says", of="a", over="b", printed=printed), ITEM, found).verdict is verdict


def test_the_best_and_the_least():
    found = {"a": [run(0, 0.92)], "b": [run(0, 0.90)]}
    assert judge(Claim("says", best=("a",)), ITEM, found).verdict is Verdict.MET
    assert judge(Claim("says", best=("b",)), ITEM, found).verdict is Verdict.MISSED
    assert judge(Claim("says", above=0.9), ITEM, found).verdict is Verdict.MET
    assert judge(Claim("says", above=0.91), ITEM, found).verdict is Verdict.MISSED
    assert judge(Claim("says", above=0.5), ITEM, {"a": found["a"]}).verdict is Verdict.NOT_SHOWN


ALONG = {
    "kind": "smallest",
    "marks": [0.8, 0.9, 0.99],
    "base": {"data": "cancer", "delta": 1e-3},
    "case": [
        {"name": "long", "along": "pld", "printed": [1.0, 2.0, 3.0], "tolerance": 100.0,
         "set": {"noise_multiplier": 2.0, "batch_size": 56, "epochs": 3, "evaluate_every": 1}},
        {"name": "again", "same_as": "long", "along": "theorem1"},
        {"name": "grid", "epsilons": [0.5, 1.0, 2.0]},
    ],
}  # fmt: skip


def curve(*accuracies):
    return [{"step": 10 * (place + 1), "test_accuracy": value} for place, value in enumerate(accuracies)]


def test_an_epsilon_is_read_off_where_the_mean_reaches_the_mark(tmp_path):
    """Of two seeds, one below and one above: their mean counts."""
    runs = {"long": [run(0, 0.95, curve=curve(0.7, 0.85, 0.95)), run(1, 0.93, curve=curve(0.8, 0.81, 0.93))]}
    store = filled(tmp_path, ALONG, runs)
    found = judged(store)
    config = store.item.runs()["long"]

    def of_steps(name, steps):
        return accountant(name).epsilon(RunShape(q=56 / 560).run(2.0, steps=steps), 1e-3).epsilon

    assert epsilon_along(config, runs["long"], 0.8, "pld") == of_steps("pld", 20)
    assert [row.ours for row in found.rows[:3]] == [
        f"{of_steps('pld', 20):.3g}",
        f"{of_steps('pld', 30):.3g}",
        "not reached",
    ]
    assert [row.verdict for row in found.rows[:3]] == [Verdict.MET, Verdict.MET, Verdict.MISSED]
    assert [row.ours for row in found.rows[3:5]] == [f"{of_steps('theorem1', n):.3g}" for n in (20, 30)]
    assert all(row.verdict is Verdict.NOTHING_PRINTED for row in found.rows[3:])
    assert found.state is State.IN_PART


def test_quickly_an_epsilon_is_read_off_with_the_quick_settings(tmp_path):
    content = ALONG | {
        "marks": [0.8],
        "quick": {"cases": ["long", "again"], "set": {"batch_size": 28, "noise_multiplier": 3.0}},
    }
    content["case"] = [ALONG["case"][0] | {"printed": []}, ALONG["case"][1]]
    store = filled(tmp_path, content, {"long": [run(0, 0.9, curve=curve(0.7, 0.9))]}, quick=True)
    event = RunShape(q=28 / 560).run(3.0, steps=20)
    assert [row.ours for row in judged(store).rows] == [
        f"{accountant(name).epsilon(event, 1e-3).epsilon:.3g}" for name in ("pld", "theorem1")
    ]


def test_a_grid_gives_the_smallest_epsilon_from_which_on_the_mark_holds(tmp_path):
    runs = {"grid at 0.5": [run(0, 0.91)], "grid at 1": [run(0, 0.85)], "grid at 2": [run(0, 0.95)]}
    found = [row.ours for row in judged(filled(tmp_path, ALONG, runs)).rows if row.case.name == "grid"]
    assert found == ["<= 0.5", "2", "> 2"]


def test_quickly_the_ends_of_a_grid_are_enough(tmp_path):
    content = ALONG | {"quick": {"cases": ["grid"]}}
    runs = {"grid at 0.5": [run(0, 0.85)], "grid at 2": [run(0, 0.95)]}
    found = judged(filled(tmp_path, content, runs, quick=True))
    assert [(row.name, row.ours) for row in found.rows] == [
        ("grid: 0.8", "<= 0.5"),
        ("grid: 0.9", "2"),
        ("grid: 0.99", "> 2"),
    ]


def test_a_grid_with_gaps_says_nothing(tmp_path):
    runs = {"grid at 0.5": [run(0, 0.91)], "grid at 2": [run(0, 0.95)]}
    assert judged(filled(tmp_path, ALONG, runs)).rows == ()


def test_an_answer_is_met_within_two_percent_where_nothing_else_is_said(tmp_path):
    cases = [{"name": name, "run": "x", "read": "x", "printed": 2.0} for name in ("near", "far")]
    store = Store(item_of("p", "i", {"title": "T", "kind": "command", "case": cases}), tmp_path)
    assert judged(store).state is State.NOT_RUN
    store.keep_answers({"near": 2.03, "far": 2.05})
    assert [row.verdict for row in judged(store).rows] == [Verdict.MET, Verdict.MISSED]


def test_a_claim_of_ours_is_shown_and_not_counted(tmp_path):
    claims = [{"says": "x", "of": "a", "over": "b"}, {"says": "y", "of": "b", "over": "a", "ours": True}]
    content = {"seeds": 2, "case": [{"name": "a"}, {"name": "b"}], "claim": claims}
    runs = {"a": [run(0, 0.92), run(1, 0.93)], "b": [run(0, 0.90), run(1, 0.911)]}
    found = judged(filled(tmp_path, content, runs))
    assert [each.verdict for each in found.claims] == [Verdict.MET, Verdict.MISSED]
    assert (found.state, found.met, found.printed) == (State.REPRODUCED, 1, 1)


def test_a_quick_result_is_not_a_full_one(tmp_path):
    runs = {"a": [run(0, 0.9)]}
    store = filled(tmp_path, {"case": CASES[:1]}, runs, quick=True)
    assert judged(store).state is State.REPRODUCED
    assert judged(Store(store.item, tmp_path)).state is State.NOT_RUN


def test_what_was_measured_with_other_settings_is_dropped(tmp_path):
    filled(tmp_path, {"case": CASES[:1]}, {"a": [run(0, 0.5), run(1, 0.5)]})
    changed = {"case": CASES[:1], "base": BASE | {"epsilon": 2.0}}
    store = filled(tmp_path, changed, {})
    assert store.runs() == {}
    store.keep_run("a", store.item.runs()["a"], run(0, 0.9))
    assert [each["seed"] for each in store.runs()["a"]] == [0]
