"""Executors by their text, and what workers must see, on executors that are real where that is the point."""

from __future__ import annotations

from concurrent.futures import Executor, Future, ThreadPoolExecutor
from pathlib import Path

import pytest
from distributed import LocalCluster
from worker_cases import dask_cluster

from adadp.app.config import TrainConfig
from adadp.app.sweeps import executors, shared
from adadp.app.sweeps.executors import executor_named
from adadp.app.sweeps.processes import Processes
from adadp.app.sweeps.shared import check_shared
from adadp.errors import InputError

pytestmark = pytest.mark.slow


def two_threads() -> Executor:
    return ThreadPoolExecutor(2)


def no_executor() -> int:
    return 2


def broken() -> Executor:
    raise OSError("no cluster here")


def test_processes_and_a_function_of_ones_own():
    with executor_named("processes:3") as executor:
        assert isinstance(executor, Processes)
        assert executor.workers == 3
    with executor_named(f"{__name__}:two_threads") as executor:
        assert executor.submit(len, "abc").result() == 3
    with pytest.raises(RuntimeError, match="after shutdown"):
        executor.submit(len, "abc")


def test_a_dask_cluster_by_address_and_by_file(tmp_path):
    with dask_cluster(tmp_path) as cluster:
        (tmp_path / "scheduler.json").write_text(f'{{"address": "{cluster.scheduler_address}"}}')
        bare = cluster.scheduler_address.removeprefix("tcp://")
        for where in (cluster.scheduler_address, bare, tmp_path / "scheduler.json"):
            with executor_named(f"dask:{where}") as executor:
                check_shared(executor, tmp_path / "new" / "folder", [])
                assert executor.submit(len, "abc").result(30) == 3
        assert list((tmp_path / "new" / "folder").iterdir()) == []


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("processes:0", "names no number"),
        ("processes:-1", "names no number"),
        ("processes:many", "names no number"),
        ("dask:", "neither an address nor a file"),
        ("dask:nowhere.json", "neither an address nor a file"),
        ("dask:tcp://127.0.0.1:1", "cannot be reached"),
        (f"{__name__}:no_executor", "returned a int"),
        (f"{__name__}:broken", "could not be made: OSError: no cluster here"),
        (f"{__name__}:nobody", "cannot be loaded"),
        ("proceses", "Unknown executor"),
    ],
)
def test_what_names_no_executor(text, said, monkeypatch):
    monkeypatch.setattr(executors, "_PATIENCE", 2)
    with pytest.raises(InputError, match=said), executor_named(text):
        pytest.fail("there is none")


def test_a_cluster_without_workers(monkeypatch):
    monkeypatch.setattr(executors, "_PATIENCE", 1)
    with (
        LocalCluster(n_workers=0, dashboard_address=None) as cluster,
        pytest.raises(InputError, match="has no workers"),
        executor_named(f"dask:{cluster.scheduler_address}"),
    ):
        pytest.fail("there is none")


def test_without_the_package(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "distributed", None)
    with pytest.raises(InputError, match=r"adadp\[dask\]"), executor_named("dask:tcp://127.0.0.1:1"):
        pytest.fail("there is none")


class Elsewhere(Executor):
    """A worker that sees what ``change`` makes of what it is asked."""

    def __init__(self, change) -> None:
        self.change = change

    def submit(self, fn, /, *args, **kwargs):
        future = Future()
        future.set_result(fn(*self.change(*args), **kwargs))
        return future


@pytest.fixture
def own(tmp_path) -> TrainConfig:
    """A configuration with a table and a schema of the user's own."""
    for name in ("train.csv", "schema.toml"):
        (tmp_path / name).write_text("x")
    return TrainConfig(f"table:{tmp_path / 'train.csv'}", epsilon=1.0, schema=str(tmp_path / "schema.toml"))


def test_workers_that_see_everything(own, tmp_path):
    check_shared(ThreadPoolExecutor(1), tmp_path / "out", [own])
    assert list((tmp_path / "out").iterdir()) == []


def test_another_folder_of_the_same_name_is_noticed(own, tmp_path):
    """The worker reads and writes there; but it is another disk."""
    there = tmp_path / "there"
    there.mkdir()

    def change(probe, token, sizes):
        (there / probe.name).write_text(token)
        return there / probe.name, token, sizes

    with pytest.raises(InputError, match=r"does not see .*out"):
        check_shared(Elsewhere(change), tmp_path / "out", [own])
    with pytest.raises(InputError, match="does not see"):
        check_shared(Elsewhere(lambda probe, _, sizes: (probe, "other", sizes)), tmp_path / "out", [own])


@pytest.mark.parametrize("name", ["train.csv", "schema.toml"])
def test_a_file_that_is_missing_or_another_there_is_named(own, name, tmp_path):
    def change(probe, token, sizes):
        return probe, token, {each: size + (Path(each).name == name) for each, size in sizes.items()}

    with pytest.raises(InputError, match=f"does not see .*{name}"):
        check_shared(Elsewhere(change), tmp_path / "out", [own])
    assert list((tmp_path / "out").iterdir()) == []


def test_no_worker_answers(monkeypatch, tmp_path):
    monkeypatch.setattr(shared, "_PATIENCE", 0.2)

    class Silent(Executor):
        def submit(self, fn, /, *args, **kwargs):
            return Future()

    with pytest.raises(InputError, match="No worker of the executor answered"):
        check_shared(Silent(), tmp_path, [])
    assert list(tmp_path.iterdir()) == []
