"""benchmarks/table1.py: which epsilon is read off, what is run again, and the page it writes."""

from __future__ import annotations

import importlib
import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from adadp import launch

BENCHMARKS = Path(__file__).resolve().parents[1] / "benchmarks"


@pytest.fixture(scope="module")
def table1():
    """The script, which finds its helpers beside itself."""
    sys.path.insert(0, str(BENCHMARKS))
    try:
        yield importlib.import_module("table1")
    finally:
        sys.path.remove(str(BENCHMARKS))


@pytest.fixture
def tiny(table1):
    settings = {"data": "cancer", "model": "linear", "steps": 2, "lot": 50, "method": "dpsgd", "accountant": "rdp"}
    return table1.Side("tiny", "a tiny one", settings, (1.0, 4.0))


def result(accuracies: list[float]) -> dict:
    runs = [{"seed": seed, "test_accuracy": each, "seconds": 2.0, "sigma": 3.0} for seed, each in enumerate(accuracies)]
    return {"mean": sum(accuracies) / len(accuracies), "runs": runs}


@given(
    st.dictionaries(st.integers(1, 50).map(float), st.sampled_from([0.90, 0.92, 0.94, 0.96]), min_size=1),
    st.sampled_from([0.91, 0.92, 0.95]),
)
def test_the_mark_is_reached_from_the_smallest_epsilon_on(table1, found, mark):
    reached = table1.smallest(found, mark)
    if reached is None:
        assert found[max(found)] < mark
        return
    assert all(mean >= mark for epsilon, mean in found.items() if epsilon >= reached)
    before = [epsilon for epsilon in found if epsilon < reached]
    assert not before or found[max(before)] < mark


def test_an_epsilon_above_which_the_mean_falls_again_does_not_count(table1):
    assert table1.smallest({1.0: 0.93, 2.0: 0.91, 3.0: 0.92, 4.0: 0.95}, 0.92) == 3.0


def test_a_cell_says_what_is_not_known(table1, tiny):
    assert table1.cell(tiny, {1.0: 0.93}, 0.92) == "not measured"
    assert table1.cell(tiny, {1.0: 0.93, 4.0: 0.95}, 0.92) == "<= 1"
    assert table1.cell(tiny, {1.0: 0.93, 4.0: 0.95}, 0.94) == "4"
    assert table1.cell(tiny, {1.0: 0.93, 4.0: 0.95}, 0.96) == "> 4"


def test_tables_hold_means_spreads_and_the_printed_figures(table1, tiny):
    done = {"tiny@1": result([0.91, 0.93, 0.95]), "tiny@4": result([0.97])}
    summary = table1.summary([tiny], done)
    assert "search over epsilon" in summary[0]
    assert "| a tiny one | <= 1 | 4 | 4 | 4 |" in summary
    assert "| printed: ADADP, not private | 0.75 | 0.78 | 0.80 | 1.40 |" in summary
    assert "| printed: DP-SGD | 1.10 | 1.61 | 1.96 | 5.48 |" in summary
    details = table1.details([tiny], done)
    assert "| a tiny one | 1 | 3 | 93.00 ± 2.00 | 3 | 2 |" in details
    assert "| a tiny one | 4 | 3 | 97.00 | 1 | 2 |" in details


def test_a_run_is_trained_verified_and_kept(table1, tiny, tmp_path):
    one = replace(tiny, epsilons=(1.0,))
    kept = table1.measure([one], [3], tmp_path / "results.json", missing=False)["tiny@1"]
    run = kept["runs"][0]
    assert run["verified"]
    assert run["epsilon"] <= 1
    assert run["seed"] == 3
    assert (kept["delta"], kept["epsilon"], kept["mean"]) == (1e-4, 1.0, run["test_accuracy"])
    assert "--epsilon 1" in kept["command"]
    assert json.loads((tmp_path / "results.json").read_text()) == {"tiny@1": kept}


def test_only_missing_runs_are_made_if_asked(table1, tiny, tmp_path, monkeypatch):
    """The runs are counted and not trained: what is tested is which of them are started."""
    started = []

    def count(config):
        started.append((config.epsilon, config.seed))
        return {"seed": config.seed, "test_accuracy": len(started) / 100, "seconds": 1.0, "sigma": 1.0}

    monkeypatch.setattr(table1, "one_run", count)
    path = tmp_path / "results.json"
    table1.measure([tiny], [1], path, missing=True)
    assert started == [(1.0, 1), (4.0, 1)]
    done = table1.measure([tiny], [1, 0], path, missing=True)
    assert started[2:] == [(1.0, 0), (4.0, 0)]
    assert [(run["seed"], run["test_accuracy"]) for run in done["tiny@1"]["runs"]] == [(0, 0.03), (1, 0.01)]
    assert done["tiny@1"]["mean"] == pytest.approx(0.02)

    again = table1.measure([replace(tiny, epsilons=(1.0,))], [0], path, missing=False)
    assert started[4:] == [(1.0, 0)]
    assert [run["test_accuracy"] for run in again["tiny@1"]["runs"]] == [0.05, 0.01]
    assert again["tiny@4"] == done["tiny@4"]


def test_only_what_stands_between_the_marks_is_written(table1, tmp_path):
    page = tmp_path / "page.md"
    page.write_text(f"before\n{table1.BEGIN}\nold\n{table1.END}\nafter\n")
    table1.write_between_marks(page, "new")
    table1.write_between_marks(page, "newer")
    assert page.read_text() == f"before\n{table1.BEGIN}\nnewer\n{table1.END}\nafter\n"
    page.write_text("no marks")
    with pytest.raises(SystemExit, match="lacks the marks"):
        table1.write_between_marks(page, "new")
    assert page.read_text() == "no marks"


def test_every_side_is_a_run_that_can_be_started(table1):
    for side in table1.SIDES:
        config = launch.resolved(side.config(side.epsilons[0]))
        assert config.delta == 1e-4
        assert config.epsilon == side.epsilons[0]
        assert list(side.epsilons) == sorted(set(side.epsilons))
    scatter, adadp, dpsgd = (launch.resolved(side.config(1.0)) for side in table1.SIDES)
    assert scatter.features.startswith("scatter")
    assert adadp.replace(method="dpsgd") == dpsgd
    assert adadp.features.startswith("pca:dim=60")


def test_the_page_shows_what_was_measured(table1):
    done = table1.measured_so_far(table1.RESULTS)
    page = table1.PAGE.read_text(encoding="utf-8")
    assert "\n".join(table1.summary(table1.SIDES, done)) in page
    assert "\n".join(table1.details(table1.SIDES, done)) in page
    assert set(done) <= {side.key(epsilon) for side in table1.SIDES for epsilon in side.epsilons}
