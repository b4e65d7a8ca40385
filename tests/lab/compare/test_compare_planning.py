"""Everything is refused, calibrated and added up before the first run."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from adadp.accounting import accountant
from adadp.app import start, zoo
from adadp.app.budgets import BudgetFile
from adadp.app.config import TrainConfig
from adadp.app.runs import RunFolder
from adadp.app.selection.tuning import planned
from adadp.errors import BudgetExceeded, InputError
from adadp.events import Repeated, compose
from adadp.lab.compare import Case, Comparison, compare
from adadp.lab.compare.comparing import prepare
from adadp.lab.compare.planning import _label, _slugs, is_public, plan_all, plan_further
from adadp.lab.compare.privacy import Spent, ahead, total_of
from adadp.sampling import Batches

BASE = {"data": "cancer", "delta": 1e-4, "steps": 3, "batch_size": 100, "model": "mlp:4", "threads": 1}
QUICK = {"accountant": "zcdp"}
"""The quickest to calibrate."""


def spec(*methods: str, base=None, **changes) -> Comparison:
    cases = tuple(Case(method, {"method": method}) for method in methods or ("dpsgd", "adadp"))
    return Comparison(
        **{
            "title": "t",
            "base": BASE | (base or {}),
            "cases": cases,
            "seeds": (0, 1),
            "epsilons": (1.0, 2.0),
            **changes,
        }
    )


@pytest.fixture
def no_data(monkeypatch):
    def read(*_, **__):
        raise AssertionError("data was read")

    monkeypatch.setattr(zoo, "load", read)


def own(table: Path, **more) -> dict:
    return {"data": f"table:{table / 'train.csv'}", "schema": str(table / "schema.toml"), **more}


@pytest.mark.usefixtures("no_data")
def test_every_case_lands_on_the_same_budget():
    planned = plan_all(spec("dpsgd", "dpsgd-momentum", "adadp"))
    assert [(case.name, case.epsilon) for case in planned] == [
        (name, epsilon) for name in ("dpsgd", "dpsgd-momentum", "adadp") for epsilon in (1.0, 2.0)
    ]
    for case in planned:
        assert 0.999 * case.epsilon < case.plan.epsilon(1e-4).epsilon <= case.epsilon
    assert len({case.folder(seed) for case in planned for seed in (0, 1)}) == 12
    assert planned[1].folder(1) == "runs/dpsgd-2-seed1"
    assert is_public(planned)


@pytest.mark.usefixtures("no_data")
@pytest.mark.parametrize(
    ("made", "says"),
    [
        (lambda: spec("dpsgd", "sgdp"), r"^sgdp at epsilon 1: Unknown method 'sgdp'"),
        (lambda: spec("dpsgd", "adadp-published"), "is not private"),
        (
            lambda: spec("dpsgd", base={"noise_multiplier": 0.0, "allow_nonprivate": False}, epsilons=()),
            "noise_multiplier is 0",
        ),
        (lambda: spec("agd", base={"noise_schedule": "exp:k=0.1"}), "finds its noise on the way"),
        (lambda: spec("dpsgd", base={"data": "none-such"}), "none-such"),
        (lambda: spec("dpsgd", base={"batch_size": 100_000}), "dpsgd at epsilon 1: "),
        (lambda: spec("adadp", "adadp:power=0.25"), "come to the same settings"),
        (lambda: spec("dpsgd", cases=(Case("a", {}), Case("b", {"data": "mnist"}))), "other data"),
    ],
)
def test_what_cannot_be_run_is_refused_ahead(made, says):
    with pytest.raises(InputError, match=says):
        plan_all(made())


def test_own_data_needs_test_records_and_may_hide_its_size(table):
    with pytest.raises(InputError, match="no test records"):
        plan_all(spec("dpsgd", base=own(table)))
    tested = own(table, test_data=f"table:{table / 'test.csv'}") | QUICK
    (counted,), (public,) = (
        plan_all(spec("dpsgd", base=tested | more, epsilons=(1.0,)))
        for more in ({}, {"records": 180, "batch_size": 90})
    )
    assert (counted.plan.records, public.plan.records) == (200, 180)
    assert not is_public([counted])


def test_targets_that_are_numbers_have_no_accuracy_to_be_compared_or_searched_by(tmp_path):
    """Else the runs are paid for, and then there is nothing to compare."""
    schema = tmp_path / "stays.toml"
    schema.write_text('[target]\ncolumn = "days"\nkind = "count"\nhigh = 60\n[columns]\njob = {kind = "text"}\n')
    base = {"data": "table:x.csv", "schema": str(schema), "test_data": "table:y.csv", "records": 500}
    with pytest.raises(InputError, match=r"The targets of table:x\.csv are numbers.*Nothing was spent"):
        plan_all(spec(base=base))
    settings = TrainConfig(**{**BASE, **base, "epsilon": 1.0})
    with pytest.raises(InputError, match=r"The targets of table:x\.csv are numbers.*Nothing was spent"):
        planned(settings, [{"lr": 0.1}, {"lr": 0.2}], validation_data="table:y.csv")


def test_names_that_look_alike_in_folders_stay_apart():
    cases = (Case("a b", {"clip_norm": 1.0}), Case("a/b", {"clip_norm": 2.0}), Case("///", {"clip_norm": 3.0}))
    planned = plan_all(spec(cases=cases, epsilons=(1.0,), base=QUICK))
    assert [case.folder(0) for case in planned] == ["runs/a-b-1-seed0", "runs/a-b-2-1-seed0", "runs/case-1-seed0"]


def test_a_budget_and_a_name_that_ends_like_it_stay_apart():
    cases = (
        Case("dpsgd", {}),
        Case("dpsgd 2", {"noise_multiplier": 2.0}),
        Case("dpsgd-0.5", {"noise_multiplier": 3.0}),
    )
    asked = spec(cases=cases, marks=(0.5,), refine=1, base=QUICK)
    planned = plan_all(asked)
    assert [case.folder(0) for case in planned] == [
        "runs/dpsgd-1-seed0",
        "runs/dpsgd-2-seed0",
        "runs/dpsgd-2-2-seed0",
        "runs/dpsgd-0.5-2-seed0",  # at 0.5 there is no run yet, but one may come
    ]
    assert plan_further(asked, cases[0], 0.5).folder(0) == "runs/dpsgd-0.5-seed0"


NAMES = ("a", "A", "a 2", "a-2-2", "a/0.5", "a 1e", "a 1e-10", "a-case2", "///")
EPSILONS = (0.5, 2.0, 10.0, 1e-10)


def names_before_budgets_were_looked_at(names) -> list[str]:
    slugs = list[str]()
    for name in names:
        plain = re.sub(r"[^a-z0-9.=]+", "-", name.lower()).strip("-.")[:60] or "case"
        slugs.append(next(slug for slug in (plain, *(f"{plain}-{n}" for n in range(2, 99))) if slug not in slugs))
    return slugs


@given(
    st.lists(st.tuples(st.sampled_from(NAMES), st.booleans()), min_size=1, max_size=6, unique_by=lambda each: each[0]),
    st.lists(st.sampled_from(EPSILONS), min_size=2, unique=True),
    st.integers(0, 1),
)
@example([("a", False), ("a 1e", False)], [0.5, 1.5], 1)  # 1e-10 of the one, found later, and 10 of the other
def test_no_two_runs_share_a_folder(cases, epsilons, refine):
    """Neither those asked for nor, with refining, those at any further epsilon; names change only for that."""
    made = tuple(Case(name, {"noise_multiplier": 2.0} if own_noise else {}) for name, own_noise in cases)
    asked = spec(cases=made, epsilons=tuple(epsilons), marks=(0.5,), refine=refine)

    def labels(slugs, at):
        return [
            _label(slug, epsilon)
            for case, slug in zip(made, slugs, strict=True)
            for epsilon in ((None,) if case.has_budget else at)
        ]

    slugs = list(_slugs(asked).values())
    at = {*epsilons, *((*EPSILONS, 1e-5, 0.06325) if refine else ())}
    assert len(set(labels(slugs, at))) == len(labels(slugs, at))
    before = names_before_budgets_were_looked_at(case.name for case in made)
    if not refine and len(set(labels(before, at))) == len(labels(before, at)):
        assert slugs == before


def test_epsilons_that_only_the_13th_digit_tells_apart_are_refused():
    with pytest.raises(InputError, match="first 12 digits"):
        plan_all(spec("dpsgd", epsilons=(1.0, 1.0000000000001)))


def test_networks_are_tried_with_the_shape_of_their_own_features(monkeypatch):
    """Features that come back with another network have not become those in between."""
    tried = list[tuple[str, tuple[int, ...]]]()
    monkeypatch.setattr(
        "adadp.lab.compare.comparing.build_model", lambda model, *, input_shape, **_: tried.append((model, input_shape))
    )
    cases = (
        Case("raw", {"model": "linear"}),
        Case("few", {"model": "linear", "features": "pca:dim=3,noise_multiplier=16"}),
        Case("raw, mlp", {"model": "mlp:20"}),
        Case("raw, slower", {"model": "mlp:20", "lr": 0.01}),
    )
    prepare(plan_all(spec(cases=cases, epsilons=(), base={"noise_multiplier": 2.0})), None)
    assert tried == [("linear", (9,)), ("linear", (3,)), ("mlp:20", (9,))]


def test_what_is_not_private_is_marked_and_has_no_total():
    planned = plan_all(spec("dpsgd", "adadp-published", base={"allow_nonprivate": True}, epsilons=(1.0,)))
    assert [case.not_private is None for case in planned] == [True, False]
    total = total_of(ahead(planned, 2), public=True)
    assert (total["runs"], total["epsilon"]) == (4, None)
    assert "adadp-published: not private" in total["text"]


def test_costs_are_composed_at_the_same_delta():
    planned = plan_all(spec("dpsgd"))
    total = total_of(ahead(planned, 3), public=True)
    events = [Repeated(case.plan.event(), 3) for case in planned]
    assert total["epsilon"] == accountant("pld").epsilon(compose(*events), 1e-4).epsilon
    assert (total["runs"], total["delta"]) == (6, 1e-4)
    assert 2 < total["epsilon"] < 3 * (1 + 2)
    assert "nobody's privacy was spent" in total["text"]
    assert total_of([], public=True)["epsilon"] == 0
    assert total_of([Spent(planned[0], None)], public=True)["epsilon"] == 0


def test_budgets_of_noise_chosen_on_the_way_are_added():
    first, second = plan_all(spec("dpsgd", "agd", epsilons=(1.0,)))
    alone = total_of(ahead([second], 3), public=False)
    assert (alone["epsilon"], alone["delta"]) == (pytest.approx(3.0), pytest.approx(3e-4))
    both = total_of(ahead([first, second], 3), public=False)
    composed = total_of(ahead([first], 3), public=False)
    assert both["epsilon"] == pytest.approx(composed["epsilon"] + 3.0)
    assert both["delta"] == pytest.approx(4e-4)
    assert "secure noise of its own" in both["text"]
    assert "adadp tune" in both["text"]


def test_different_neighbours_have_no_total():
    cases = (Case("a", {}), Case("b", {"sampling": "fixed"}))
    total = total_of(ahead(plan_all(spec(cases=cases, epsilons=(1.0,))), 1), public=True)
    assert total["epsilon"] is None
    assert "different changes" in total["text"]


def test_two_methods_with_one_seed_draw_the_same_batches_and_begin_with_the_same_weights(monkeypatch):
    drawn, begun = list[list[int]](), list[list[float]]()
    draw, build = Batches.batch, start.build_model

    def batch(self, step):
        found = draw(self, step)
        drawn.append(found.tolist())
        return found

    def model(*args, **options):
        made = build(*args, **options)
        begun.append([value for weight in made.parameters() for value in weight.flatten().tolist()])
        return made

    monkeypatch.setattr(Batches, "batch", batch)
    monkeypatch.setattr(start, "build_model", model)
    first, second = plan_all(spec("dpsgd", "adadp", epsilons=(2.0,), base=QUICK))
    for config in (first.config.replace(seed=1), second.config.replace(seed=1), second.config.replace(seed=2)):
        start.start(config)
    assert drawn[0:3] == drawn[3:6] != drawn[6:9]
    assert begun[0] == begun[1] != begun[2]


def test_epsilons_that_follow_results_are_refused_on_own_data(table, tmp_path):
    """Nothing is written: it is found before the folder is taken."""
    base = own(table, test_data=f"table:{table / 'test.csv'}", records=300)
    asked = spec("dpsgd", base=base).replace(epsilons=(1.0, 2.0), marks=(0.9,), refine=1)
    with pytest.raises(InputError, match="data of your own"):
        compare(asked, tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("records", [None, 200])
def test_a_small_file_gets_a_batch_that_fits_it(table, records):
    base = own(table, test_data=f"table:{table / 'test.csv'}", delta=1e-4, steps=3)
    base |= {} if records is None else {"records": records}
    (case,) = plan_all(Comparison("t", base, (Case("dpsgd", {"method": "dpsgd"}),), (0,), (1.0,)))
    assert case.plan.batch_size == case.config.batch_size == 20


@pytest.mark.usefixtures("in_this_process")
def test_runs_on_own_data_share_no_noise(table, tmp_path):
    """With one seed the gradients of two cases could be subtracted, and the noise would be gone."""
    base = own(table, test_data=f"table:{table / 'test.csv'}", records=200)
    base |= {"delta": 1e-4, "batch_size": 200, "steps": 2, "threads": 1, "accountant": "zcdp"}
    made = spec("dpsgd", "adadp", base=base).replace(epsilons=(1.0,), seeds=(4, 7))
    results = compare(made, tmp_path / "out", workers=1)
    assert (results["public"], results["failed"]) == (False, [])
    assert [[run["seed"] for run in case["runs"]] for case in results["cases"]] == [[4, 7], [4, 7]]
    folders = [RunFolder.open(tmp_path / "out" / run["folder"]) for case in results["cases"] for run in case["runs"]]
    assert [folder.config.seed for folder in folders] == [None] * 4
    assert all("secure" in folder.certificate()["randomness"] for folder in folders)
    assert results["total"]["epsilon"] > 1.0
    assert "secure noise of its own" in results["total"]["text"]
    again = compare(made, tmp_path / "out", workers=1)
    assert again["cases"] == results["cases"]


@pytest.mark.usefixtures("in_this_process")
def test_all_runs_of_a_comparison_are_counted_or_none_begins(table, tmp_path, monkeypatch):
    monkeypatch.setenv("ADADP_STATE", str(tmp_path / "state"))
    budget = BudgetFile.create(tmp_path / "people.budget", epsilon=4, delta=1e-6, unit="patient", order=7.0)
    base = own(table, test_data=f"table:{table / 'test.csv'}", records=200, budget=str(budget.path))
    base |= {"delta": 1e-4, "batch_size": 200, "steps": 2, "threads": 1, "accountant": "zcdp"}
    made = spec("dpsgd", "adadp", base=base).replace(epsilons=(0.5,), seeds=(0,))
    with pytest.raises(BudgetExceeded, match=r"The first \d+ of these 120 runs fit") as refused:
        compare(made.replace(seeds=tuple(range(60))), tmp_path / "out", workers=1)
    assert not (tmp_path / "out").exists()
    fitting = int(str(refused.value).split("The first ")[1].split()[0])
    assert 2 <= fitting < 120
    assert compare(made, tmp_path / "out", workers=1)["failed"] == []
    found = budget.state()
    assert [run.settled is not None for run in found.runs] == [True, True]
    assert compare(made, tmp_path / "out", workers=1)["failed"] == []
    assert budget.state() == found
    with pytest.raises(InputError, match="public"):
        compare(spec("dpsgd", base={"budget": str(budget.path)}), tmp_path / "public", workers=1)
