"""Many runs on an executor: by default a few processes of their own, one run after the other in each.

    Ctrl-C or SIGTERM                  each run saves itself after its step; then ``Interrupted``. A second Ctrl-C does
                                       not wait
    the same, to all processes         the same: by whichever way a worker is asked to stop, and however often
    this process is killed             its processes notice, save their runs and end
    a run that fails                   it is told (``finished`` with the error), and the next one begins
    a process that dies in a run       the same, and another process takes its place
    a process that dies before it      another one makes the run; if that dies too before it begins, the run has failed
    began the run it was handed
    a worker alone is asked to stop    its run is saved, and goes on

Any ``concurrent.futures.Executor`` will do whose workers see the folder of the runs; through it they tell how far they
are, and learn that they are to stop. Own processes are spawned, not forked: threads of PyTorch do not survive a fork. A
script that calls this needs the usual ``if __name__ == "__main__":``. They block SIGINT, which a terminal sends to all
of them, and stay in the process group, so that Ctrl-Z and a SIGKILL to the group reach them.
"""

from __future__ import annotations

import multiprocessing
import os
import shutil
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent import futures
from concurrent.futures import BrokenExecutor, Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing.connection import wait as wait_for
from multiprocessing.context import SpawnContext, SpawnProcess
from pathlib import Path
from typing import Any

from adadp.app.config import TrainConfig
from adadp.app.train import Status
from adadp.app.train.stopping import stop_requests
from adadp.errors import Interrupted, LedgerError, RunError
from adadp.lab.compare.measuring import Measured, measured_run

_TICK = 0.5
"""Seconds between two looks at what is running."""
_GO = "go"
"""The file among the marks without which runs stop."""
_ONE_RUN = threading.Lock()
"""In a process one run is made at a time, though its executor may have threads: all draw from PyTorch's generator."""


@dataclass(frozen=True)
class Job:
    """A run to make, in a folder."""

    config: TrainConfig
    folder: Path


@dataclass(frozen=True)
class Running:
    """A run that is under way: after ``step`` of ``steps``, both 0 as long as it has not begun to train."""

    job: Job
    step: int = 0
    steps: int = 0


@dataclass(frozen=True)
class Failure:
    """Why a run failed: what kind of error it was, and what that said; ``tells``: perhaps about records."""

    kind: str
    said: str = ""
    tells: bool = False

    def __str__(self) -> str:
        return f"{self.kind}: {self.said}" if self.said else self.kind


@dataclass(frozen=True)
class _Ended:
    measured: Measured | None
    failure: Failure | None = None
    stopped: bool = False


Finished = Callable[[Job, "Measured | None", "Failure | None"], None]
Tick = Callable[[Sequence[Running]], None]


def cores() -> int:
    """How many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _threads() -> int:
    """How many threads all workers together may use: the cores, or fewer where the user has said so."""
    said = os.environ.get("OMP_NUM_THREADS", "")
    return min(cores(), int(said)) if said.isdigit() and int(said) else cores()


def run_jobs(jobs: Sequence[Job], *, workers: int | Executor, marks: Path, finished: Finished, tick: Tick) -> None:
    """Make all ``jobs``; ``finished`` gets each with what it came to or why it failed, ``tick`` what is running.

    ``workers`` says how many processes make them, or is the executor that does. ``marks`` is a folder for the time of
    the call, which all workers see.
    """
    if isinstance(workers, Executor):
        _Work(jobs, workers, len(jobs), None, marks).run(finished, tick)
        return
    workers = max(1, min(workers, len(jobs)))
    with _Processes(workers) as processes:
        _Work(jobs, processes, workers, max(1, _threads() // workers), marks).run(finished, tick)


class _Work:
    """Jobs, of which ``at_once`` are handed to ``executor`` at a time."""

    def __init__(self, jobs: Sequence[Job], executor: Executor, at_once: int, threads: int | None, marks: Path) -> None:
        self.executor, self.at_once, self.threads, self.marks = executor, at_once, threads, marks
        self.count, self.waiting = len(jobs), list(jobs)
        self.handed: dict[Future[_Ended], Job] = {}
        self.handed_back = set[Path]()

    def run(self, finished: Finished, tick: Tick) -> None:
        done = 0
        with _marked(self.marks), stop_requests() as stop:
            while done < self.count:
                if stop.is_set():
                    (self.marks / _GO).unlink(missing_ok=True)
                    self._call_back()
                    if not self.handed:
                        raise Interrupted(f"Stopped with {done} of {self.count} runs done in this call.")
                while self.waiting and len(self.handed) < self.at_once and not stop.is_set():
                    job = self.waiting.pop(0)
                    self.handed[self._submitted(job)] = job
                tick([running for job in self.handed.values() if (running := self._running(job)) is not None])
                futures.wait(self.handed, timeout=_TICK, return_when=futures.FIRST_COMPLETED)
                for future in [each for each in self.handed if each.done()]:
                    job = self.handed.pop(future)
                    ended = self._ended(future, job)
                    if ended.stopped:
                        self.waiting.insert(0, job)
                    elif not (stop.is_set() and ended.measured is None):
                        done += 1
                        finished(job, ended.measured, ended.failure)

    def _submitted(self, job: Job) -> Future[_Ended]:
        try:
            return self.executor.submit(_make, job, self.marks, self.threads)
        except BrokenExecutor as error:  # one that is not ours stays broken
            failed = Future[_Ended]()
            failed.set_exception(error)
            return failed

    def _call_back(self) -> None:
        """What has not begun need not: an executor may hold more jobs than it has workers."""
        for future, job in list(self.handed.items()):
            if not future.done() and self._running(job) is None and future.cancel():
                del self.handed[future]

    def _running(self, job: Job) -> Running | None:
        """How far it is, None if it has not begun."""
        try:
            said = _mark(self.marks, job).read_text(encoding="ascii").split()
        except FileNotFoundError:
            return None
        return Running(job, *map(int, said)) if len(said) == 2 else Running(job)  # else it is being written

    def _ended(self, future: Future[_Ended], job: Job) -> _Ended:
        """How a run ended. What the executor raises is not the run's error: its process is gone."""
        try:
            return future.result()
        except Exception as error:
            begun = self._running(job) is not None
            _mark(self.marks, job).unlink(missing_ok=True)
            if not begun and job.folder not in self.handed_back:
                self.handed_back.add(job.folder)
                return _Ended(None, stopped=True)
            return _Ended(None, Failure(f"Its process ended by itself ({error}), perhaps out of memory."))


@contextmanager
def _marked(folder: Path) -> Iterator[None]:
    """A new folder for marks, in which runs may go on."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    (folder / _GO).touch()
    try:
        yield
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _mark(folder: Path, job: Job) -> Path:
    return folder / f"{job.folder.name}.mark"


class _Processes(ThreadPoolExecutor):
    """Processes of their own, each behind a thread, so that one that dies takes nothing but its own run along."""

    def __init__(self, workers: int) -> None:
        super().__init__(workers)
        self._own = threading.local()
        self._pools: list[tuple[ProcessPoolExecutor, _Context]] = []

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        return super().submit(self._call, fn, *args, **kwargs)

    def _call(self, fn: Callable[..., Any], *args: Any) -> Any:
        if not hasattr(self._own, "pool"):
            context = _Context()
            self._own.pool = ProcessPoolExecutor(1, mp_context=context, initializer=_begin_process), context
            self._pools.append(self._own.pool)
        pool, context = self._own.pool
        try:
            return pool.submit(fn, *args).result()
        except BrokenProcessPool:
            del self._own.pool
            pool.shutdown()  # its own thread waits for the process: two that do may leave one without the exit code
            raise BrokenProcessPool(f"exit code {context.made[0].exitcode}") from None

    def __exit__(self, *error: Any) -> None:
        """End all; at once what is still in a run, because of ``error``."""
        for pool, context in self._pools:
            for process in context.made if error[0] is not None else []:
                process.kill()
            pool.shutdown(cancel_futures=True)
        self.shutdown()


class _Context(SpawnContext):
    """Knows the processes it made, which say how they ended."""

    def __init__(self) -> None:
        self.made: list[SpawnProcess] = []

    def Process(self, *args: Any, **kwargs: Any) -> SpawnProcess:  # type: ignore[override]  # there it is a class
        self.made.append(SpawnProcess(*args, **kwargs))
        return self.made[-1]


def _begin_process() -> None:
    """What a process of ours does before the first run."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    """When the process that asks is gone, the run at hand is saved and this process ends."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    wait_for([parent.sentinel])
    while True:  # in a run the first is a request, and after it the next one ends the process
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(_TICK)


def _make(job: Job, marks: Path, threads: int | None) -> _Ended:
    """What a worker does: one run, unless it is to stop."""
    import torch  # noqa: PLC0415  # after the signals of a process of ours

    with _ONE_RUN:
        if not (marks / _GO).exists():
            return _Ended(None, stopped=True)
        if threads is not None:
            torch.set_num_threads(threads)
        mark = _mark(marks, job)
        mark.write_text("0 0", encoding="ascii")
        try:
            return _Ended(measured_run(job.config, job.folder, watch=_teller(mark)))
        except Interrupted:
            return _Ended(None, stopped=True)
        except Exception as error:  # whatever it is, the other runs go on
            return _Ended(None, failure_of(error))
        finally:
            mark.unlink(missing_ok=True)


def failure_of(error: Exception) -> Failure:
    """What ``error`` comes to. Errors about a run's folder and its ledger do not know any record."""
    return Failure(type(error).__name__, str(error), tells=not isinstance(error, (RunError, LedgerError)))


def _teller(mark: Path) -> Callable[[Status], None]:
    """Tells now and then how far a run is, and stops it when it is to; what it did until then is saved."""
    last = 0.0

    def tell(status: Status) -> None:
        nonlocal last
        if time.monotonic() - last > _TICK:
            last = time.monotonic()
            if not mark.with_name(_GO).exists():
                raise Interrupted("The run was asked to stop.")
            with suppress(OSError):
                mark.write_text(f"{status.step} {status.steps}", encoding="ascii")

    return tell
