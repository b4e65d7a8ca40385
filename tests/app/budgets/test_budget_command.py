"""``adadp budget``, and the commands that are counted in one."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest
from click.testing import CliRunner
from PIL import Image

from adadp.app import state
from adadp.app.budgets import BudgetFile
from adadp.app.cli import main
from adadp.app.config import TrainConfig
from adadp.app.resolve import resolve
from adadp.errors import InputError
from adadp.events import GaussianRelease, PoissonSampled, Repeated

SCHEMA = """
budget = "people.budget"
[target]
column = "income"
classes = ["low", "high"]
[columns]
age = {kind = "number", low = 0, high = 100}
"""
SHORT = {"records": 200, "delta": 1e-4, "steps": 3, "batch_size": 50, "lr": 0.1, "threads": 1}


@pytest.fixture(autouse=True)
def place(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv(state.FOLDER, str(tmp_path / "state"))
    monkeypatch.chdir(tmp_path)
    chance = random.Random(1)
    rows = [f"{age:.1f},{'high' if age > 45 else 'low'}" for age in (chance.uniform(20, 70) for _ in range(200))]
    (tmp_path / "people.csv").write_text("\n".join(["age,income", *rows]) + "\n")
    (tmp_path / "people.toml").write_text(SCHEMA)
    return tmp_path


def do(*words, code=0):
    found = CliRunner().invoke(main, [str(word) for word in words])
    assert found.exit_code == code, found.output
    return found.output


def create(*more):
    return do("budget", "create", "people.budget", "--epsilon", 4, "--delta", 1e-6, "--unit", "patient", *more)


def flags(**settings):
    own = {"data": "table:people.csv", "schema": "people.toml", **SHORT, **settings}
    return [word for name, value in own.items() for word in (f"--{name.replace('_', '-')}", value)]


def shown():
    return json.loads(do("budget", "show", "people.budget", "--json"))


def test_a_budget_from_its_creation_to_its_picture(place):
    assert "Renyi order" in create()
    run = BudgetFile(place / "people.budget").reserve(Repeated(GaussianRelease(9.0), 4), command="adadp train [red]")
    text = do("budget", "show", "people.budget", "--plot", "spent.png")
    assert run in text
    assert "(4, 1e-06)-differentially private for one patient" in text
    assert "1 of 1 runs not settled" in text
    found = shown()
    assert (found["epsilon"], found["unit"], found["runs"][0]["state"]) == (4.0, "patient", "not settled")
    assert found["runs"][0]["command"] == "adadp train [red]"
    assert found["used"] + found["left"] == pytest.approx(1)
    assert Image.open(place / "spent.png").size[0] > 800


def test_the_picture_of_an_empty_and_of_a_planned_budget(place):
    create("--planned")
    do("budget", "show", "people.budget", "--plot", "empty.svg")
    BudgetFile(place / "people.budget").plan([(GaussianRelease(9.0), "a"), (GaussianRelease(5.0), "b")])
    do("budget", "show", "people.budget", "--plot", "planned.svg")
    assert (place / "empty.svg").read_bytes() != (place / "planned.svg").read_bytes()
    assert "no picture" in do("budget", "show", "people.budget", "--plot", "x.txt", code=2)


def test_the_expected_runs_choose_the_order():
    create("--expected-noise", 0.8, "--expected-sampling", 0.001)
    chosen = BudgetFile(Path("people.budget")).state().terms
    Path("people.budget").unlink()
    create()
    usual = BudgetFile(Path("people.budget")).state().terms
    expected = [PoissonSampled(0.001, GaussianRelease(0.8))]
    assert chosen.order < usual.order
    assert chosen.rule.share(expected) < usual.rule.share(expected)
    assert chosen.rule.share([GaussianRelease(50.0)]) > usual.rule.share([GaussianRelease(50.0)])


@pytest.mark.parametrize(
    ("more", "match"),
    [
        (("--planned", "--order", 8), "Each settles"),
        (("--order", 8, "--expected-noise", 1), "Each settles"),
        (("--expected-sampling", 0.1), "without the expected noise"),
        (("--order", 1), "greater than 1"),
        (("--expected-noise", -1), "Noise|noise"),
    ],
)
def test_options_that_contradict_each_other_make_no_file(place, more, match):
    words = ["budget", "create", "b", "--epsilon", "4", "--delta", "1e-6", "--unit", "patient", *map(str, more)]
    found = CliRunner().invoke(main, words)
    assert found.exit_code == 2
    assert any(word in found.output for word in match.split("|"))
    assert not (place / "b").exists()


def test_a_schema_that_names_a_budget_requires_it(place, monkeypatch):
    config = TrainConfig("table:people.csv", schema="people.toml", epsilon=1.0, **SHORT)
    assert resolve(config).config.budget == "people.budget"
    assert resolve(config.replace(budget=str(place / "people.budget"))).config.budget == str(place / "people.budget")
    with pytest.raises(InputError, match=r"the schema people.toml names people.budget"):
        resolve(config.replace(budget="other.budget"))
    with pytest.raises(InputError, match="the run protects nothing"):
        resolve(config.replace(seed=0))
    assert "There is no budget" in do("train", *flags(epsilon=1), "--out", "run", code=2)
    monkeypatch.chdir("/")
    again = resolve(config.replace(data=f"table:{place / 'people.csv'}", schema=str(place / "people.toml")))
    assert again.config.budget == str(place / "people.budget")


def test_a_schema_says_which_file():
    Path("people.toml").write_text(SCHEMA.replace('"people.budget"', "7"))
    assert "budget must be the path" in do("train", *flags(epsilon=1), "--out", "run", code=2)


def test_a_refusal_comes_before_the_data_is_read(place):
    create()
    (place / "people.csv").unlink()
    text = do("train", *flags(epsilon=30), "--out", "run", code=2)
    assert "--epsilon of at most" in text
    assert shown()["runs"] == []


def test_runs_and_searches_are_counted_settled_and_verified(place):
    create()
    do("train", *flags(epsilon=1), "--out", "runs/a")
    grid = ("--grid", "lr=0.1,0.5", "--runs", 2, "--validation", 60)
    own = flags(epsilon=1)
    del own[own.index("--lr") : own.index("--lr") + 2]
    do("tune", *own, *grid, "--out", "runs/b")
    train, tune = shown()["runs"]
    assert train["command"].startswith("adadp train --data table:people.csv")
    assert (train["state"], tune["state"]) == ("settled", "settled")
    assert tune["share"] == tune["planned_share"] > 0
    assert train["reserved"]
    assert tune["reserved"] == ""  # with its end it would tell how many runs were made
    do("budget", "show", "people.budget", "--plot", "spent.png")
    for run in ("runs/a", "runs/b"):
        text = do("verify", run, "--budget", "people.budget")
        assert "ok    budget file: settled in people.budget" in text
    assert "has been settled" in do("budget", "settle", "people.budget", "runs/a", code=2)


def test_a_search_that_does_not_fit_leaves_nothing(place):
    create()
    budget = BudgetFile(place / "people.budget")
    noise = 100 * (budget.state().terms.rule.share([GaussianRelease(100.0)]) / 0.95) ** 0.5
    budget.reserve(GaussianRelease(noise), command="95 % of it")
    own = flags(epsilon=1)
    del own[own.index("--lr") : own.index("--lr") + 2]
    text = do("tune", *own, "--grid", "lr=0.1,0.5", "--runs", 2, "--validation", 60, "--out", "runs/b", code=2)
    assert "of its budget left" in text
    assert len(shown()["runs"]) == 1
    assert not (place / "runs" / "b").exists()


def test_planned_runs_are_reserved_by_their_configurations(place):
    create("--planned")
    for epsilon in (1, 2):
        config = TrainConfig("table:people.csv", schema="people.toml", epsilon=float(epsilon), **SHORT)
        (place / f"{epsilon}.toml").write_text(config.to_toml())
    assert "Reserved 2 runs." in do("budget", "reserve", "people.budget", "--config", "1.toml", "--config", "2.toml")
    assert "No reservation" in do("train", *flags(epsilon=3), "--out", "runs/c", code=2)
    before = shown()["used"]
    do("train", "--config", "2.toml", "--out", "runs/b")
    assert "has begun" in do("budget", "reserve", "people.budget", "--config", "1.toml", code=2)
    assert "No reservation" in do("train", "--config", "2.toml", "--out", "runs/again", code=2)
    do("train", "--config", "1.toml", "--out", "runs/a")
    assert shown()["used"] == before
    assert "which were all planned before the first began" in do("verify", "runs/a", "--budget", "people.budget")


def test_a_strangers_budget_is_one_clear_error(place):
    (place / "people.budget").write_bytes(b"SQLite format 3\0" + bytes(4000))
    assert "no budget that holds" in do("budget", "show", "people.budget", code=2)


def test_the_documented_shares(place):
    """The figures of docs/budget.md."""
    create("--expected-noise", 1, "--expected-sampling", 0.01)
    rule = BudgetFile(place / "people.budget").state().terms.rule
    run = Repeated(PoissonSampled(0.01, GaussianRelease(1.0)), 1000)
    assert rule.share([run]) == pytest.approx(0.3237, abs=5e-4)
