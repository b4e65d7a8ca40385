"""Everything is refused, calibrated and added up before the first run."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from adadp import launch, zoo
from adadp.accounting import accountant
from adadp.compare import Case, Comparison, compare
from adadp.compare.planning import is_public, plan_all
from adadp.compare.privacy import Spent, ahead, total_of
from adadp.errors import InputError
from adadp.events import Repeated, compose
from adadp.runs import RunFolder
from adadp.sampling import Lots

BASE = {"data": "cancer", "delta": 1e-4, "steps": 3, "lot": 100, "model": "mlp:4", "threads": 1}


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


@pytest.fixture(scope="module")
def table(tmp_path_factory) -> Path:
    place = tmp_path_factory.mktemp("own")
    chance = random.Random(1)
    for name, rows in {"train": 200, "test": 40}.items():
        with (place / f"{name}.csv").open("w") as file:
            file.write("age,income\n")
            for _ in range(rows):
                age = chance.uniform(20, 70)
                file.write(f"{age:.1f},{'high' if age > 45 else 'low'}\n")
    (place / "schema.toml").write_text(
        '[target]\ncolumn = "income"\nclasses = ["low", "high"]\n[columns]\n'
        'age = {kind = "number", low = 0, high = 100}\n'
    )
    return place


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
        (lambda: spec("dpsgd", base={"sigma": 0.0, "allow_nonprivate": False}, epsilons=()), "sigma is 0"),
        (lambda: spec("agd", base={"noise_schedule": "exp:k=0.1"}), "finds its noise on the way"),
        (lambda: spec("dpsgd", base={"data": "none-such"}), "none-such"),
        (lambda: spec("dpsgd", base={"lot": 100_000}), "dpsgd at epsilon 1: "),
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
    tested = own(table, test_data=f"table:{table / 'test.csv'}")
    (counted,), (public,) = (
        plan_all(spec("dpsgd", base=tested | more, epsilons=(1.0,))) for more in ({}, {"records": 180, "lot": 90})
    )
    assert (counted.plan.records, public.plan.records) == (200, 180)
    assert not is_public([counted])


def test_names_that_look_alike_in_folders_stay_apart():
    cases = (Case("a b", {"clip": 1.0}), Case("a/b", {"clip": 2.0}), Case("///", {"clip": 3.0}))
    planned = plan_all(spec(cases=cases, epsilons=(1.0,)))
    assert [case.folder(0) for case in planned] == ["runs/a-b-1-seed0", "runs/a-b-2-1-seed0", "runs/case-1-seed0"]


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


def test_two_methods_with_one_seed_draw_the_same_lots_and_begin_with_the_same_weights(monkeypatch):
    drawn, begun = list[list[int]](), list[list[float]]()
    draw, build = Lots.lot, launch.build_model

    def lot(self, step):
        found = draw(self, step)
        drawn.append(found.tolist())
        return found

    def model(*args, **options):
        made = build(*args, **options)
        begun.append([value for weight in made.parameters() for value in weight.flatten().tolist()])
        return made

    monkeypatch.setattr(Lots, "lot", lot)
    monkeypatch.setattr(launch, "build_model", model)
    first, second = plan_all(spec("dpsgd", "adadp", epsilons=(2.0,)))
    for config in (first.config.replace(seed=1), second.config.replace(seed=1), second.config.replace(seed=2)):
        launch.start(config)
    assert drawn[0:3] == drawn[3:6] != drawn[6:9]
    assert begun[0] == begun[1] != begun[2]


def test_epsilons_that_follow_results_are_refused_on_own_data(table, tmp_path):
    """Nothing is written: it is found before the folder is taken."""
    base = own(table, test_data=f"table:{table / 'test.csv'}", records=300)
    asked = spec("dpsgd", base=base).replace(epsilons=(1.0, 2.0), marks=(0.9,), refine=1)
    with pytest.raises(InputError, match="data of your own"):
        compare(asked, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_runs_on_own_data_share_no_noise(table, tmp_path):
    """With one seed the gradients of two cases could be subtracted, and the noise would be gone."""
    base = own(table, test_data=f"table:{table / 'test.csv'}", records=200)
    base |= {"delta": 1e-4, "lot": 200, "steps": 2, "threads": 1, "accountant": "zcdp"}
    made = spec("dpsgd", "adadp", base=base).replace(epsilons=(1.0,), seeds=(4, 7))
    results = compare(made, tmp_path / "out", workers=1)
    assert results["public"] is False
    assert [[run["seed"] for run in case["runs"]] for case in results["cases"]] == [[4, 7], [4, 7]]
    folders = [RunFolder.open(tmp_path / "out" / run["folder"]) for case in results["cases"] for run in case["runs"]]
    assert [folder.config.seed for folder in folders] == [None] * 4
    assert all("secure" in folder.certificate()["randomness"] for folder in folders)
    assert results["total"]["epsilon"] > 1.0
    assert "secure noise of its own" in results["total"]["text"]
    again = compare(made, tmp_path / "out", workers=1)
    assert again["cases"] == results["cases"]
