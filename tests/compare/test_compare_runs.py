"""Real comparisons in real processes: what they write, and what is left when they are stopped, killed or fail."""

from __future__ import annotations

import csv
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from filelock import FileLock

from adadp.accounting import accountant
from adadp.compare import Case, Comparison, Progress, compare
from adadp.config import TrainConfig
from adadp.errors import InputError
from adadp.events import compose
from adadp.ledger import read_ledger
from adadp.runs import RunFolder
from adadp.train import verify_run

BASE = {"data": "cancer", "delta": 1e-4, "model": "mlp:4", "lot": 100, "checkpoint_every": 5, "threads": 1}
BASE |= {"accountant": "zcdp"}  # the quickest to calibrate
CASES = (Case("dpsgd", {"method": "dpsgd"}), Case("adadp", {"method": "adadp:start=2"}))
SPEC = Comparison("Two methods", BASE | {"steps": 40}, CASES, (0, 1), (1.0, 3.0), (0.5, 0.99))
SCRIPT = """
import sys
from pathlib import Path
from adadp.compare import Comparison, compare
from adadp.errors import Interrupted
if __name__ == "__main__":
    try:
        compare(Comparison.from_toml(Path(sys.argv[1])), sys.argv[2], workers=1)
    except Interrupted as stopped:
        print(stopped)
        sys.exit(130)
"""


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The comparison, undisturbed: its folder, its results, and what was told on the way."""
    told = list[Progress]()
    out = tmp_path_factory.mktemp("comparison") / "whole"
    results = compare(SPEC, out, workers=1, watch=told.append)
    return out, results, told


def started(spec: Comparison, place: Path) -> subprocess.Popen:
    """The comparison ``place / "out"`` in a process group of its own."""
    (place / "spec.toml").write_text(spec.to_toml())
    (place / "script.py").write_text(SCRIPT)
    command = [sys.executable, str(place / "script.py"), str(place / "spec.toml"), str(place / "out")]
    return subprocess.Popen(command, start_new_session=True, stdout=subprocess.PIPE, text=True)


def wait_until(condition, process: subprocess.Popen, seconds: float = 120) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert process.poll() is None, "it ended before it was disturbed"
        assert time.monotonic() < end, "nothing happened"
        time.sleep(0.02)


def is_running(out: Path) -> bool:
    """Whether some run has taken more steps than its first checkpoint has."""
    ledgers = out.glob("runs/*/ledger.jsonl")
    return any(
        path.read_bytes().count(b"\n") > 12 and not path.with_name("certificate.json").exists() for path in ledgers
    )


def without_seconds(results: dict) -> dict:
    cases = [
        {**case, "seconds": None, "runs": [{**run, "seconds": None} for run in case["runs"]]}
        for case in results["cases"]
    ]
    return {**results, "cases": cases}


def test_results_are_written_as_they_are_returned(whole):
    out, results, _ = whole
    assert json.loads((out / "results.json").read_text()) == results
    assert (results["format"], results["title"], results["data"]) == (1, "Two methods", "cancer")
    assert results["public"] is True
    assert (results["delta"], results["neighbours"], results["sampling"]) == (1e-4, "add-remove", "poisson")
    assert [(case["name"], case["epsilon"]) for case in results["cases"]] == [
        ("dpsgd", 1.0),
        ("dpsgd", 3.0),
        ("adadp", 1.0),
        ("adadp", 3.0),
    ]
    for case in results["cases"]:
        accuracies = [run["test_accuracy"] for run in case["runs"]]
        assert [run["seed"] for run in case["runs"]] == [0, 1]
        assert case["mean"] == pytest.approx(sum(accuracies) / 2)
        assert case["spread"] == pytest.approx(abs(accuracies[0] - accuracies[1]) / 2**0.5)
        assert all(0.999 * case["epsilon"] < run["epsilon"] <= case["epsilon"] for run in case["runs"])
        asked = TrainConfig.from_toml(out / case["runs"][0]["folder"] / "config.toml")
        assert (asked.epsilon, asked.seed) == (case["epsilon"], 0)
    assert [(pair["epsilon"], pair["name"], pair["over"]) for pair in results["pairs"]] == [
        (1.0, "dpsgd", "adadp"),
        (3.0, "dpsgd", "adadp"),
    ]
    assert {each["mark"] for each in results["smallest"]} == {0.5, 0.99}
    assert results["failed"] == []


def test_every_run_is_an_ordinary_one_that_verifies(whole):
    out, results, _ = whole
    folders = [run["folder"] for case in results["cases"] for run in case["runs"]]
    assert sorted(folders) == sorted(f"runs/{path.name}" for path in (out / "runs").iterdir())
    assert all(check.passed for check in verify_run(RunFolder.open(out / folders[0])))


def test_the_table_has_a_row_for_each_run(whole):
    out, results, _ = whole
    with (out / "results.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 8
    assert {(row["name"], row["asked_epsilon"], row["seed"]) for row in rows} == {
        (case["name"], str(case["epsilon"]), str(run["seed"])) for case in results["cases"] for run in case["runs"]
    }


def test_the_total_is_that_of_all_ledgers(whole):
    out, results, _ = whole
    events = [read_ledger(path).event() for path in sorted(out.glob("runs/*/ledger.jsonl"))]
    whole_cost = accountant("pld").epsilon(compose(*events), 1e-4).epsilon
    assert results["total"]["runs"] == 8
    assert results["total"]["epsilon"] == pytest.approx(whole_cost, rel=1e-6)


def test_runs_are_told_seed_by_seed_over_all_cases(whole):
    _, results, told = whole
    assert told[0].planned_total["epsilon"] == pytest.approx(results["total"]["epsilon"], rel=1e-6)
    ended = [each.ended for each in told if each.ended is not None]
    assert [each.seed for each in ended] == [0] * 4 + [1] * 4
    assert told[-1].done == told[-1].runs == 8
    steps = [run.steps for each in told for run in each.running]
    assert set(steps) <= {0, 40}


def test_a_page_is_written(whole):
    out, _, _ = whole
    assert "Two methods" in (out / "report.html").read_text()


def test_killed_in_the_middle_it_comes_to_the_same(whole, tmp_path):
    process = started(SPEC, tmp_path)
    out = tmp_path / "out"
    wait_until(lambda: any(out.glob("runs/*/certificate.json")) and is_running(out), process)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    found = json.loads((out / "results.json").read_text())
    assert sum(len(case["runs"]) for case in found["cases"]) < 8
    assert found["total"]["epsilon"] == pytest.approx(whole[1]["total"]["epsilon"], rel=1e-6)
    assert without_seconds(compare(SPEC, out, workers=2)) == without_seconds(whole[1])


LONG = SPEC.replace(base=BASE | {"steps": 20_000}, epsilons=(3.0,), seeds=(0,), marks=())


def test_asked_to_stop_or_left_alone_the_runs_save_themselves(tmp_path):
    out = tmp_path / "out"
    process = started(LONG, tmp_path)
    wait_until(lambda: is_running(out), process)
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does
    said, _ = process.communicate(timeout=60)
    assert process.returncode == 130, said
    assert "0 of 2 runs done" in said
    assert json.loads((out / "results.json").read_text())["total"]["epsilon"] > 0
    (folder,) = (RunFolder.open(path) for path in (out / "runs").iterdir())
    found = folder.load_checkpoint()
    assert found is not None
    assert found.state["clean"]
    again = started(LONG, tmp_path)
    wait_until(lambda: not folder.load_checkpoint().state["clean"], again)
    os.kill(again.pid, signal.SIGKILL)
    again.wait()
    end = time.monotonic() + 60
    while time.monotonic() < end and not folder.load_checkpoint().state["clean"]:
        time.sleep(0.05)
    found_later = folder.load_checkpoint()
    assert found_later.state["clean"]
    assert found_later.step > found.step
    while time.monotonic() < end and group_lives(again.pid):
        time.sleep(0.05)
    assert not group_lives(again.pid)


def group_lives(number: int) -> bool:
    try:
        os.killpg(number, 0)
    except ProcessLookupError:
        return False
    return True


MODEL = """
import multiprocessing, os, pathlib
from torch import nn

def dying(input_shape, classes):
    begun = pathlib.Path(__file__).with_name("begun")
    if multiprocessing.parent_process() is not None and not begun.exists():
        begun.touch()
        os._exit(7)
    return nn.Linear(input_shape[0], classes)
"""


def test_a_run_that_fails_leaves_the_others_alone(tmp_path, monkeypatch):
    """One finds another run in its folder, and the process of one dies; the runs with the other seed are made."""
    (tmp_path / "models_that_die.py").write_text(MODEL)
    monkeypatch.syspath_prepend(tmp_path)
    cases = (Case("occupied", {"method": "dpsgd"}), Case("dies", {"model": "models_that_die:dying"}))
    spec = SPEC.replace(base=BASE | {"steps": 2}, cases=cases, epsilons=(3.0,), marks=())
    out = tmp_path / "out"
    other = out / "runs" / "occupied-3-seed0" / "config.toml"
    other.parent.mkdir(parents=True)
    other.write_text(TrainConfig("cancer", sigma=3.0, delta=1e-4).to_toml())
    (out / "comparison.toml").write_text(spec.to_toml())
    results = compare(spec, out, workers=1)
    assert [[run["seed"] for run in case["runs"]] for case in results["cases"]] == [[1], [1]]
    assert [(each["name"], each["epsilon"], each["seed"]) for each in results["failed"]] == [
        ("occupied", 3.0, 0),
        ("dies", 3.0, 0),
    ]
    assert "other settings" in results["failed"][0]["error"]
    assert "exit code 7" in results["failed"][1]["error"]
    assert [pair["seeds"] for pair in results["pairs"]] == [1]


def test_marks_are_refined_by_further_runs(tmp_path):
    """The accuracy that lies between those of two budgets is looked for at their geometric mean."""
    cases = (Case("noisy", {"method": "dpsgd"}),)
    base = BASE | {"steps": 15, "model": "linear", "optimizer": "sgd", "lr": 1.0, "accountant": "pld"}
    results = compare(
        SPEC.replace(base=base, cases=cases, seeds=(2,), epsilons=(0.0005, 8.0), marks=(0.75,), refine=1),
        tmp_path / "out",
        workers=1,
    )
    assert [case["epsilon"] for case in results["cases"]] == [0.0005, 8.0, 0.06325]
    assert [case["refined"] for case in results["cases"]] == [False, False, True]
    (found,) = results["smallest"]
    assert (found["above"], found["epsilon"]) in {(0.0005, 0.06325), (0.06325, 8.0)}
    assert results["total"]["runs"] == 3


def test_folders_that_are_not_for_this(whole, tmp_path):
    out, _, _ = whole
    with pytest.raises(InputError, match="has another comparison"):
        compare(SPEC.replace(seeds=(0,)), out)
    with FileLock(out / ".lock"), pytest.raises(InputError, match="Another process is at work"):
        compare(SPEC, out)
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="no comparison"):
        compare(SPEC, tmp_path)
    with pytest.raises(InputError, match="workers must be at least 1"):
        compare(SPEC, tmp_path / "new", workers=0)
    with pytest.raises(InputError, match=r"more than epsilon 0\.1 in all"):
        compare(SPEC, tmp_path / "new", most_epsilon=0.1)
    with pytest.raises(InputError, match="greater than 0"):
        compare(SPEC, tmp_path / "new", most_epsilon=0.0)
    assert not (tmp_path / "new").exists()
