"""Comparisons on executors that are not ours: threads, and a real Dask cluster."""

from __future__ import annotations

import json
import multiprocessing
import os
import threading
import time
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor

import pytest
from click.testing import CliRunner
from distributed import LocalCluster
from safetensors.torch import load_file

from adadp.app.config import TrainConfig
from adadp.app.runs import RunFolder
from adadp.errors import Interrupted
from adadp.lab.cli.compare import compare as command
from adadp.lab.compare import Case, Comparison, Progress, compare
from adadp.lab.compare.running import Job, run_jobs

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
        command, [str(tmp_path / "spec.toml"), "--workers", address, "--out", str(tmp_path / "out"), "--json"]
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
        begun.touch()
        os._exit(7)
    return nn.Linear(input_shape[0], classes)

def always(input_shape, classes):
    if multiprocessing.parent_process() is not None:
        os._exit(7)
    return nn.Linear(input_shape[0], classes)
"""


def test_a_dask_worker_that_dies_costs_no_other_run(cluster, tmp_path):
    """Dask hands its run to another worker, a few times; the run that kills every one of them has failed."""
    address, models = cluster
    (models / "dying_on_dask.py").write_text(DYING)
    cases = (Case("once", {"model": "dying_on_dask:once"}), Case("always", {"model": "dying_on_dask:always"}))
    spec = SPEC.replace(cases=(*cases, Case("fine", {})), seeds=(0,))
    (tmp_path / "spec.toml").write_text(spec.to_toml())
    done = CliRunner().invoke(
        command, [str(tmp_path / "spec.toml"), "--workers", address, "--out", str(tmp_path / "out"), "--json"]
    )
    assert done.exit_code == 1, done.output
    results = json.loads(done.stdout.splitlines()[-1])
    assert [each["name"] for each in results["failed"]] == ["always"]
    assert "Its process ended by itself" in results["failed"][0]["error"]
    assert set(models_of(tmp_path / "out")) == {"once-2-seed0", "fine-2-seed0"}


def test_an_executor_that_breaks_is_told_run_by_run(tmp_path):
    """It cannot be mended here: what it did not make has failed, and the same call with another one goes on."""
    broken = ProcessPoolExecutor(
        1, mp_context=multiprocessing.get_context("spawn"), initializer=os._exit, initargs=(7,)
    )
    with broken as executor:
        results = compare(SPEC, tmp_path / "out", executor=executor)
    assert len(results["failed"]) == 4
    assert all("Its process ended by itself" in each["error"] for each in results["failed"])
    assert compare(SPEC, tmp_path / "out", workers=1)["failed"] == []


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
    jobs = [Job(config, tmp_path / "runs" / str(number)) for number in range(3)]

    def tick(running):
        if any(each.step for each in running):
            os.kill(os.getpid(), 15)

    began, threads = time.monotonic(), threading.active_count()
    with ThreadPoolExecutor(2) as executor, pytest.raises(Interrupted, match="0 of 3 runs"):
        run_jobs(jobs, workers=executor, marks=tmp_path / "marks", finished=pytest.fail, tick=tick)
    assert time.monotonic() - began < 60
    assert threading.active_count() < threads + 8, "no thread for each tick"
    begun = list((tmp_path / "runs").iterdir())
    assert len(begun) == 1, "in a process one run is made at a time"
    found = RunFolder.open(begun[0]).load_checkpoint()
    assert found is not None
    assert found.state["clean"]


@pytest.mark.parametrize(
    ("workers", "said"),
    [
        ("tcp://127.0.0.1:1", "cannot be reached"),
        ("many", "--workers must be numbers"),
        ("0", "workers must be at least 1"),
    ],
)
def test_workers_that_are_none(tmp_path, workers, said):
    (tmp_path / "spec.toml").write_text(SPEC.to_toml())
    done = CliRunner().invoke(
        command, [str(tmp_path / "spec.toml"), "--workers", workers, "--out", str(tmp_path / "out")]
    )
    assert said in str(done.exception)
