"""Tasks on real executors: processes of ours, pools of the user's, a Dask cluster; workers are really killed."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
from concurrent.futures import Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor

import pytest
from distributed import Client
from worker_cases import begun, dask_cluster, failing, told, waiting

from adadp.app.sweeps import processes
from adadp.app.sweeps.handing import Task, run_tasks
from adadp.app.sweeps.processes import Processes
from adadp.errors import Interrupted

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def dask(tmp_path_factory):
    with dask_cluster(tmp_path_factory.mktemp("dask")) as cluster, Client(cluster) as client:
        yield lambda: client.get_executor(pure=False, retries=0)


def spawned(workers: int) -> ProcessPoolExecutor:
    return ProcessPoolExecutor(workers, mp_context=multiprocessing.get_context("spawn"))


@pytest.fixture(params=["processes", "pool", "dask"])
def executor(request):
    makes = {"processes": lambda: Processes(2), "pool": lambda: spawned(2)}
    with (makes.get(request.param) or request.getfixturevalue("dask"))() as made:
        yield made


def outcomes(tasks, executor, place, *, act=lambda running: None, deaths=0):
    """Name -> value or failure, in the order they were told."""
    ended = dict[str, object]()
    run_tasks(
        tasks,
        executor,
        marks=place / "marks",
        finished=lambda task, value, failure: ended.update({task.name: failure or value}),
        tick=act,
        deaths=deaths,
    )
    assert not (place / "marks").exists()
    return ended


def test_a_killed_worker_loses_its_run_and_no_other(executor, tmp_path):
    """``a`` is killed where it began, once; nobody begins it a second time, and what had not begun is made."""
    killed = list[int]()

    def act(running):
        if not killed and begun(tmp_path, "a"):
            killed.extend(begun(tmp_path, "a"))
            os.kill(killed[0], signal.SIGKILL)

    names = ["b", "c", "d", "e"]
    ended = outcomes([waiting(tmp_path, "a"), *(told(tmp_path, name) for name in names)], executor, tmp_path, act=act)
    assert set(ended) == {"a", *names}
    assert "Its process ended by itself" in str(ended["a"])
    assert [ended[name] for name in names] == names
    assert begun(tmp_path, "a") == killed, "it began once"
    assert all(len(begun(tmp_path, name)) == 1 for name in names)


def test_a_task_that_may_be_made_again_is(executor, tmp_path):
    """As a run of a search may, once: a second death is its failure."""
    killed = set[int]()

    def act(running):
        for each in begun(tmp_path, "a"):
            if each not in killed:
                killed.add(each)
                os.kill(each, signal.SIGKILL)

    ended = outcomes([waiting(tmp_path, "a"), told(tmp_path, "b")], executor, tmp_path, act=act, deaths=1)
    assert "Its process ended by itself" in str(ended["a"])
    assert len(begun(tmp_path, "a")) == 2
    assert ended["b"] == "b"


def test_a_failure_is_told(executor, tmp_path):
    ended = outcomes([Task("a", failing), told(tmp_path, "b")], executor, tmp_path)
    assert (str(ended["a"]), ended["a"].tells) == ("ValueError: It fails.", True)
    assert ended["b"] == "b"


def test_asked_to_stop_all_that_has_begun_stops(executor, tmp_path):
    asked = list[float]()

    def act(running):
        if running and not asked:
            asked.append(time.monotonic())
            os.kill(os.getpid(), signal.SIGTERM)

    with pytest.raises(Interrupted, match="0 of 3"):
        outcomes([waiting(tmp_path, name) for name in "abc"], executor, tmp_path, act=act)
    assert time.monotonic() - asked[0] < 20
    assert not (tmp_path / "marks").exists()


class Twice(Executor):
    """Has every task made twice, as Dask does after it has lost a worker: what counts is the second answer."""

    def submit(self, fn, /, *args, **kwargs):
        future = Future()
        fn(*args, **kwargs)
        future.set_result(fn(*args, **kwargs))
        return future


def test_an_executor_that_makes_a_task_twice_is_refused_the_second_time(tmp_path):
    ended = outcomes([told(tmp_path, "a")], Twice(), tmp_path)
    assert len(begun(tmp_path, "a")) == 1
    assert "its worker is gone" in str(ended["a"])


def test_a_worker_that_was_given_up_stops(tmp_path):
    """It lives, though its executor has said that it died; and it stops while others are still at work."""
    threads, stopped = list[threading.Thread](), list[bool]()

    class Forgetful(Executor):
        def submit(self, fn, /, *args, **kwargs):
            future = Future()
            if threads:
                threading.Thread(target=self.last, args=(future, fn, args)).start()
                return future
            threads.append(threading.Thread(target=fn, args=args))
            threads[-1].start()
            threading.Timer(1.0, future.set_exception, [RuntimeError("lost")]).start()
            return future

        def last(self, future, fn, args):
            threads[0].join(10)
            stopped.append(not threads[0].is_alive())
            (tmp_path / "a").touch()  # else it would wait for good
            future.set_result(fn(*args))

    ended = outcomes([waiting(tmp_path, "a"), told(tmp_path, "b")], Forgetful(), tmp_path)
    assert "RuntimeError" in str(ended["a"])
    assert ended["b"] == "b"
    assert stopped == [True]


def test_an_executor_that_is_shut_down_makes_nothing(tmp_path):
    executor = ThreadPoolExecutor(1)
    executor.shutdown()
    assert "Its process ended by itself" in str(outcomes([told(tmp_path, "a")], executor, tmp_path)["a"])


def test_a_process_that_cannot_begin_is_tried_twice(tmp_path, monkeypatch):
    started = list[str]()
    real = multiprocessing.process.BaseProcess.start

    def dying(process):
        started.append(process.name)
        real(process)
        process.kill()

    monkeypatch.setattr(multiprocessing.process.BaseProcess, "start", dying)
    with Processes(1) as executor:
        assert "exit code -9" in str(outcomes([told(tmp_path, "a")], executor, tmp_path)["a"])
    assert len(started) == 2


@pytest.mark.parametrize(("said", "threads"), [("1", 1), ("", 64), ("none", 64), ("0", 64), ("99", 64)])
def test_no_more_threads_than_the_user_allows(monkeypatch, said, threads):
    monkeypatch.setattr(processes, "cores", lambda: 64)
    monkeypatch.setenv("OMP_NUM_THREADS", said)
    assert processes._threads() == threads
