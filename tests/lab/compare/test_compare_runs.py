"""Real comparisons in real processes: what they write, and what is left when they are stopped, killed or fail."""

from __future__ import annotations

import csv
import json
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from filelock import FileLock

from adadp.accounting import accountant
from adadp.app.config import TrainConfig
from adadp.app.figures import baseline
from adadp.app.runs import RunFolder
from adadp.app.train import verify_run
from adadp.app.train.stopping import stop_requests
from adadp.errors import InputError
from adadp.events import compose
from adadp.lab.compare import Case, Comparison, Ended, Progress, compare
from adadp.lab.compare.results import _misleading
from adadp.ledger import read_ledger

pytestmark = pytest.mark.slow


BASE = {"data": "cancer", "delta": 1e-4, "model": "mlp:4", "batch_size": 100, "checkpoint_every": 5, "threads": 1}
BASE |= {"accountant": "zcdp"}  # the quickest to calibrate
CASES = (Case("dpsgd", {"method": "dpsgd"}), Case("adadp", {"method": "adadp:start=2"}))
SPEC = Comparison("Two methods", BASE | {"steps": 40}, CASES, (0, 1), (1.0, 3.0), (0.5, 0.99))
SCRIPT = """
import os, sys, time
from pathlib import Path
from adadp.lab.compare import Comparison, compare
from adadp.errors import Interrupted
from adadp.app.train.run import Run

step = Run.step

def held(run):  # in the workers too, which import this file
    mark = Path(os.environ["PLACE"], f"held-{run.private.step}")
    if run.private.step in (12, 17, 22, 27):
        mark.with_suffix(".new").write_text(str(os.getpid()))
        mark.with_suffix(".new").rename(mark)
        while mark.exists():
            time.sleep(0.02)
    return step(run)

Run.step = held
if __name__ == "__main__":
    for line in sys.stdin:
        place = Path(line.strip())
        number = os.fork()
        if not number:
            os.setsid()
            os.environ["PLACE"] = str(place)
            try:
                compare(Comparison.from_toml(place / "spec.toml"), place / "out", workers=1)
            except Interrupted as stopped:
                (place / "said").write_text(str(stopped))
                os._exit(130)
            os._exit(0)
        print(number, flush=True)
        print(os.waitstatus_to_exitcode(os.waitpid(number, 0)[1]), flush=True)
"""


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The comparison, undisturbed: its folder, its results, and what was told on the way."""
    told = list[Progress]()
    out = tmp_path_factory.mktemp("comparison") / "whole"
    results = compare(SPEC, out, workers=1, watch=told.append)
    return out, results, told


@pytest.fixture(scope="module")
def launcher(tmp_path_factory):
    """A process that has loaded everything, and begins comparisons as children of its own."""
    script = tmp_path_factory.mktemp("launcher") / "script.py"
    script.write_text(SCRIPT)
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen([sys.executable, str(script)], start_new_session=True, **pipes) as process:
        yield process


class Started:
    """The comparison ``spec`` in ``place / "out"``, in a process group of its own. Its runs wait at steps of SCRIPT."""

    def __init__(self, launcher: subprocess.Popen, spec: Comparison, place: Path) -> None:
        (place / "spec.toml").write_text(spec.to_toml())
        print(place, file=launcher.stdin, flush=True)
        self.launcher, self.place = launcher, place
        self.pid = int(launcher.stdout.readline())

    def is_held(self, step: int) -> Path:
        """Wait until a run waits before ``step``, and return the file with its process; without it the run goes on."""
        mark, end = self.place / f"held-{step}", time.monotonic() + 120
        while not mark.exists():
            assert is_alive(os.kill, self.pid), "it ended before it was disturbed"
            assert time.monotonic() < end, "nothing happened"
            time.sleep(0.02)
        return mark

    def ended(self) -> int:
        """Its exit code, when it has ended."""
        return int(self.launcher.stdout.readline())


def is_alive(reach, number: int) -> bool:
    """Whether there is a process, or one of a group, that a signal would ``reach``."""
    try:
        reach(number, 0)
    except ProcessLookupError:
        return False
    return True


def without_seconds(results: dict) -> dict:
    cases = [
        {**case, "seconds": None, "runs": [{**run, "seconds": None} for run in case["runs"]]}
        for case in results["cases"]
    ]
    return {**results, "cases": cases}


def test_results_are_written_as_they_are_returned(whole):
    out, results, _ = whole
    assert json.loads((out / "results.json").read_text()) == results
    assert (results["format"], results["title"], results["data"]) == (2, "Two methods", "cancer")
    assert results["public"] is results["rehearsal"] is True
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
        assert (case["private"], case["not_private"]) == (False, None), "a rehearsal of a private method"
        for run in case["runs"]:
            assert (run["private"], run["rehearsal"], run["epsilon"]) == (False, True, None)
            assert 0.999 * case["epsilon"] < run["epsilon_if_unseeded"] <= case["epsilon"]
            counts = RunFolder.open(out / run["folder"]).confusion()["counts"]
            recalls = [row[place] / sum(row) for place, row in enumerate(counts)]
            assert run["balanced_accuracy"] == pytest.approx(sum(recalls) / 2)
            assert (run["worse"] is None) == (baseline(RunFolder.open(out / run["folder"]).figures()) is None)
        asked = TrainConfig.from_toml(out / case["runs"][0]["folder"] / "config.toml")
        assert (asked.epsilon, asked.seed) == (case["epsilon"], 0)
    assert [(pair["epsilon"], pair["name"], pair["over"]) for pair in results["pairs"]] == [
        (1.0, "dpsgd", "adadp"),
        (3.0, "dpsgd", "adadp"),
    ]
    assert {each["mark"] for each in results["smallest"]} == {0.5, 0.99}
    assert results["failed"] == []


def test_an_accuracy_that_misleads_is_told():
    said = "no better than always answering no (AUROC 0.7)"
    case = {"name": "adadp", "epsilon": 2.0, "runs": [{"worse": None}, {"worse": said}, {}]}
    assert _misleading(case) == [f"adadp at epsilon 2 is, in 1 of 3 runs, {said}."]
    assert _misleading(case | {"runs": [{"worse": None}]}) == []


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
    balanced = [run["balanced_accuracy"] for case in results["cases"] for run in case["runs"]]
    assert [float(row["balanced_accuracy"]) for row in rows] == balanced
    assert {(row["private"], row["rehearsal"], row["epsilon"]) for row in rows} == {("False", "True", "")}
    assert all(float(row["epsilon_if_unseeded"]) <= float(row["asked_epsilon"]) for row in rows)


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


def test_killed_in_the_middle_it_comes_to_the_same(whole, launcher, tmp_path):
    """In its second run, some steps after a checkpoint."""
    process = Started(launcher, SPEC, tmp_path)
    for step in (12, 17, 22, 27):
        process.is_held(step).unlink()
    process.is_held(12)
    os.killpg(process.pid, signal.SIGKILL)
    assert process.ended() == -signal.SIGKILL
    found = json.loads((tmp_path / "out" / "results.json").read_text())
    assert sum(len(case["runs"]) for case in found["cases"]) == 1
    assert found["total"]["epsilon"] == pytest.approx(whole[1]["total"]["epsilon"], rel=1e-6)
    assert without_seconds(compare(SPEC, tmp_path / "out", workers=2)) == without_seconds(whole[1])


def test_asked_to_stop_or_left_alone_the_runs_save_themselves(launcher, tmp_path):
    """Each time the step at hand takes longer than it takes the request to arrive in every way it can."""
    spec = SPEC.replace(base=BASE | {"steps": 40, "noise_multiplier": 3.0}, epsilons=(), seeds=(0,), marks=())
    out = tmp_path / "out"
    for step, number in ((12, signal.SIGTERM), (17, signal.SIGINT)):  # as service managers do, as a terminal does
        process = Started(launcher, spec, tmp_path)
        mark = process.is_held(step)
        os.killpg(process.pid, number)
        assert eventually(lambda: not list(out.glob(".running/*/go")))
        time.sleep(1)
        mark.unlink()
        assert process.ended() == 130
        assert "0 of 2 runs done. Everything is saved" in (tmp_path / "said").read_text()
        assert saved_at(out) == (step + 1, True)
        assert json.loads((out / "results.json").read_text())["total"]["epsilon"] > 0
    process = Started(launcher, spec, tmp_path)
    mark = process.is_held(22)
    os.kill(int(mark.read_text()), signal.SIGTERM)  # a worker alone: its run goes on
    mark.unlink()
    mark = process.is_held(27)
    assert saved_at(out) == (25, False)
    os.kill(process.pid, signal.SIGKILL)
    assert process.ended() == -signal.SIGKILL
    time.sleep(2)  # the worker has noticed, also on a busy machine
    mark.unlink()
    assert eventually(lambda: not is_alive(os.killpg, process.pid))
    assert saved_at(out) == (28, True)


def test_a_second_polite_kill_changes_nothing_and_a_second_ctrl_c_does_not_wait():
    with stop_requests() as stop:
        for number in (signal.SIGTERM, signal.SIGTERM):
            signal.raise_signal(number)
            assert stop.is_set()
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    with stop_requests() as stop:
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGTERM)
        assert stop.is_set()


def eventually(holds: Callable[[], bool]) -> bool:
    """Whether ``holds`` within a minute."""
    end = time.monotonic() + 60
    while time.monotonic() < end and not holds():
        time.sleep(0.05)
    return holds()


def saved_at(out: Path) -> tuple[int, bool]:
    """The step of the only run's checkpoint, and whether it was made when the run was asked to stop."""
    (folder,) = (RunFolder.open(path) for path in (out / "runs").iterdir())
    found = folder.load_checkpoint()
    assert found is not None
    return found.step, found.state["clean"]


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
    """One finds another run in its folder, and the process of one dies; the runs with the other seed are made.

    The second is handed to a process that was killed since the first. It has not begun there, so another makes it.
    """
    (tmp_path / "models_that_die.py").write_text(MODEL)
    monkeypatch.syspath_prepend(tmp_path)
    cases = (Case("occupied", {"method": "dpsgd"}), Case("dies", {"model": "models_that_die:dying"}))
    spec = SPEC.replace(base=BASE | {"steps": 2}, cases=cases, epsilons=(3.0,), marks=())
    out = tmp_path / "out"
    other = out / "runs" / "occupied-3-seed0" / "config.toml"
    other.parent.mkdir(parents=True)
    other.write_text(TrainConfig("cancer", noise_multiplier=3.0, delta=1e-4).to_toml())
    (out / "comparison.toml").write_text(spec.to_toml())
    ended = list[Ended]()
    before = set(multiprocessing.active_children())

    def watch(progress):
        ended.extend([progress.ended] if progress.ended is not None else [])
        if progress.ended is not None and len(ended) == 1:
            (idle,) = set(multiprocessing.active_children()) - before
            idle.kill()
            idle.join()

    results = compare(spec, out, workers=1, watch=watch)
    assert [(each.name, each.seed) for each in ended] == [("occupied", 0), ("dies", 0), ("occupied", 1), ("dies", 1)]
    assert [[run["seed"] for run in case["runs"]] for case in results["cases"]] == [[1], [1]]
    assert [(each["name"], each["epsilon"], each["seed"]) for each in results["failed"]] == [
        ("occupied", 3.0, 0),
        ("dies", 3.0, 0),
    ]
    assert "other settings" in results["failed"][0]["error"]
    assert "exit code 7" in results["failed"][1]["error"]
    assert [pair["seeds"] for pair in results["pairs"]] == [1]


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
