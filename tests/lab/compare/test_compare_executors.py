"""Comparisons on executors that are not ours: threads, and a real Dask cluster."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import threading
import time
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from functools import partial

import pytest
from click.testing import CliRunner
from distributed import LocalCluster
from safetensors.torch import load_file

from adadp.app.config import TrainConfig
from adadp.app.runs import RunFolder
from adadp.app.sweeps import executors
from adadp.app.sweeps.executors import executor_named
from adadp.app.sweeps.handing import Task, run_tasks
from adadp.errors import InputError, Interrupted
from adadp.lab.cli.compare import compare as command
from adadp.lab.compare import Case, Comparison, Progress, compare
from adadp.lab.compare.measuring import measured_run
from adadp.lab.compare.planning import plan_all
from adadp.lab.compare.privacy import ahead, total_of
from adadp.ledger import read_ledger

pytestmark = pytest.mark.slow


BASE = {"data": "cancer", "delta": 1e-4, "model": "linear", "batch_size": 100, "threads": 1, "accountant": "zcdp"}
SPEC = Comparison("Two", BASE | {"steps": 3, "epsilon": 2.0}, (Case("a", {"lr": 0.1}), Case("b", {"lr": 0.01})), (0, 1))


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    """Two workers, each a process with one thread, that find modules in the folder ``models`` beside them."""
    models = tmp_path_factory.mktemp("models")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(models)
        with LocalCluster(
            n_workers=2, threads_per_worker=1, dashboard_address=None, local_directory=str(models)
        ) as cluster:
            yield cluster.scheduler_address, models


@pytest.fixture(scope="module")
def expected(tmp_path_factory):
    out = tmp_path_factory.mktemp("own")
    compare(SPEC, out / "out", workers=1)
    return models_of(out / "out")


def models_of(out):
    """The numbers of every model, exactly."""
    found = {path.parent.name: load_file(path) for path in out.glob("runs/*/model.safetensors")}
    return {run: {name: values.tolist() for name, values in model.items()} for run, model in found.items()}


def test_a_dask_cluster_makes_the_same_models(cluster, expected, tmp_path):
    address, _ = cluster
    (tmp_path / "spec.toml").write_text(SPEC.to_toml())
    done = CliRunner().invoke(
        command,
        [str(tmp_path / "spec.toml"), "--executor", f"dask:{address}", "--out", str(tmp_path / "out"), "--json"],
    )
    assert done.exit_code == 0, done.output
    results = json.loads(done.stdout.splitlines()[-1])
    assert results["failed"] == []
    assert [case["name"] for case in results["cases"]] == ["a", "b"]
    assert len(expected) == 4
    assert models_of(tmp_path / "out") == expected
    assert not (tmp_path / "out" / ".running").exists()


DYING = """
import multiprocessing, os, pathlib
from torch import nn

def once(input_shape, classes):
    begun = pathlib.Path(__file__).with_name("begun")
    if multiprocessing.parent_process() is not None and not begun.exists():
        begun.write_text(str(os.getpid()))
        os._exit(7)
    return nn.Linear(input_shape[0], classes)

def always(input_shape, classes):
    if multiprocessing.parent_process() is not None:
        os._exit(7)
    return nn.Linear(input_shape[0], classes)
"""


SLOW = """
import multiprocessing, os, pathlib, time
from torch import nn

class Slow(nn.Linear):
    def forward(self, values):
        if multiprocessing.parent_process() is not None:
            time.sleep(0.1)
        return super().forward(values)

def slow(input_shape, classes):
    if multiprocessing.parent_process() is not None:
        pathlib.Path(__file__).with_name("worker").write_text(str(os.getpid()))
    return Slow(input_shape[0], classes)
"""


def test_a_dask_worker_that_dies_costs_its_run_and_no_other(cluster, tmp_path):
    """Dask would begin its run on another worker: it has failed, and the same command goes on with it."""
    address, models = cluster
    (models / "dying_on_dask.py").write_text(DYING)
    cases = (Case("once", {"model": "dying_on_dask:once"}), Case("always", {"model": "dying_on_dask:always"}))
    spec, out = SPEC.replace(cases=(*cases, Case("fine", {})), seeds=(0,)), tmp_path / "out"
    (tmp_path / "spec.toml").write_text(spec.to_toml())
    for failed in ({"once", "always"}, {"always"}):
        done = CliRunner().invoke(
            command, [str(tmp_path / "spec.toml"), "--executor", f"dask:{address}", "--out", str(out), "--json"]
        )
        assert done.exit_code == 1, (done.output, done.exception)
        results = json.loads(done.stdout.splitlines()[-1])
        assert {each["name"] for each in results["failed"]} == failed
        assert "Its process ended by itself" in results["failed"][0]["error"]
        assert set(models_of(out)) == {"fine-2-seed0", "once-2-seed0"} - {f"{name}-2-seed0" for name in failed}
        assert len((models / "begun").read_text().split()) == 1


def test_the_charges_of_a_run_whose_worker_was_killed_are_counted(cluster, tmp_path):
    """Killed in its training, for good, on a Dask cluster: the total has all that was planned for it."""
    address, models = cluster
    (models / "slow_on_dask.py").write_text(SLOW)
    cases = (Case("slow", {"model": "slow_on_dask:slow"}), Case("fine", {}))
    spec = SPEC.replace(base=SPEC.base | {"steps": 60}, cases=cases, seeds=(0,))
    out, killed = tmp_path / "out", list[int]()

    def watch(progress):
        if not killed and any(each.name == "slow" and each.step for each in progress.running):
            killed.append(int((models / "worker").read_text()))
            os.kill(killed[0], signal.SIGKILL)

    with executor_named(f"dask:{address}") as executor:
        results = compare(spec, out, executor=executor, watch=watch)
    assert killed
    assert [each["name"] for each in results["failed"]] == ["slow"]
    assert set(models_of(out)) == {"fine-2-seed0"}
    charges = sum(read_ledger(out / "runs" / "slow-2-seed0" / "ledger.jsonl").charges.values())
    assert 0 < charges < 60, "some steps, and not all"
    planned = total_of(ahead(plan_all(spec), 1), public=True)
    assert results["total"]["epsilon"] == pytest.approx(planned["epsilon"])
    assert results["total"]["runs"] == 2


def test_an_executor_that_is_broken_is_refused_before_anything_is_charged(tmp_path):
    broken = ProcessPoolExecutor(
        1, mp_context=multiprocessing.get_context("spawn"), initializer=os._exit, initargs=(7,)
    )
    with broken as executor, pytest.raises(InputError, match=r"could not answer: BrokenProcessPool.*Nothing was"):
        compare(SPEC, tmp_path / "out", executor=executor)
    assert not (tmp_path / "out" / "runs").exists()


def test_threads_make_the_same_models(expected, tmp_path):
    told = list[Progress]()
    with ThreadPoolExecutor(2) as executor:
        results = compare(SPEC, tmp_path / "out", executor=executor, watch=told.append)
    assert results["failed"] == []
    assert models_of(tmp_path / "out") == expected
    assert told[-1].done == 4


def test_runs_of_any_executor_are_saved_when_they_are_to_stop(tmp_path):
    config = TrainConfig(
        "cancer", noise_multiplier=3.0, delta=1e-4, steps=20_000, batch_size=10, threads=1, model="linear"
    )
    folders = [tmp_path / "runs" / str(number) for number in range(3)]
    tasks = [Task(each.name, partial(measured_run, config, each)) for each in folders]

    def tick(running):
        if any(each.step for each in running):
            os.kill(os.getpid(), signal.SIGTERM)

    began, threads = time.monotonic(), threading.active_count()
    with ThreadPoolExecutor(2) as executor, pytest.raises(Interrupted, match="0 of 3 runs"):
        run_tasks(tasks, executor, marks=tmp_path / "marks", finished=pytest.fail, tick=tick)
    assert time.monotonic() - began < 60
    assert threading.active_count() < threads + 8, "no thread for each tick"
    begun = list((tmp_path / "runs").iterdir())
    assert len(begun) == 1, "in a process one run is made at a time"
    found = RunFolder.open(begun[0]).load_checkpoint()
    assert found is not None
    assert found.state["clean"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--executor dask:tcp://127.0.0.1:1", "cannot be reached"),
        ("--executor processes:0", "names no number"),
        ("--executor processes:2 --workers 2", "was given with"),
        ("--workers many", "--workers must be numbers"),
        ("--workers tcp://127.0.0.1:1", "--executor dask:"),
        ("--workers 0", "workers must be at least 1"),
    ],
)
def test_workers_that_are_none(tmp_path, words, said, monkeypatch):
    monkeypatch.setattr(executors, "_PATIENCE", 1)
    (tmp_path / "spec.toml").write_text(SPEC.to_toml())
    done = CliRunner().invoke(command, [str(tmp_path / "spec.toml"), *words.split(), "--out", str(tmp_path / "out")])
    assert said in str(done.exception)
    assert not (tmp_path / "out").exists()
