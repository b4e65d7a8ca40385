"""Tasks handed to the workers of an executor, each at most once, and stopped when they are to stop.

    Ctrl-C or SIGTERM                      each run saves itself after its step; then ``Interrupted``. A second Ctrl-C
                                           does not wait
    the same, to all processes             the same: by whichever way a worker is asked to stop, and however often
    this process is killed                 its own processes notice, save their runs and end; runs on other machines
                                           stop when the next call in the same folder begins
    a task that fails                      it is told (``finished`` with the failure), and the next one begins
    a worker that dies in a task           the same, after the task was handed out ``deaths`` times more
    an executor that by itself begins a    the second is refused at once, and the task counts as one whose worker died:
    task once more (Dask does)             a run is never made twice behind our back, or by two workers at a time
    a worker that dies before it began     the task is handed out again; if nothing at all has begun since, it failed
    a ``ProcessPoolExecutor`` that breaks  it takes all that was under way along, and a new one makes the rest
    a worker that is given up but lives    it stops after its step
    a worker alone is asked to stop        its run is saved, and goes on

The workers see a folder of marks: through it they tell how far they are, and learn that they are to stop. Before it
begins, a worker makes the mark of what it was handed, which only one can make; where a worker is lost, whoever asks
here makes it too. So it is certain whether a task was begun, and nobody begins it later. The folder is a new one in
every call, so that what an earlier call has left on an executor finds that it is over.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import shutil
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent import futures
from concurrent.futures import BrokenExecutor, Executor, Future, ProcessPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from adadp.app.sweeps.processes import Processes
from adadp.errors import Interrupted, LedgerError, RunError

if TYPE_CHECKING:
    from adadp.app.train import Status

_TICK = 0.5
"""Seconds between two looks at what is running."""
_GO = "go"
"""The file among the marks without which tasks stop."""
_GIVEN_UP = ".over"
"""The ending of a file beside a mark with which that task stops."""
_ONE_RUN = threading.Lock()
"""In a process one run is made at a time, though its executor may have threads: all draw from PyTorch's generator."""


@dataclass(frozen=True)
class Task:
    """What a worker is to do: ``make(watch=...)``, which can be pickled. ``name`` is its own among the tasks."""

    name: str
    make: Callable[..., Any]


@dataclass(frozen=True)
class Running:
    """A task that is under way: after ``step`` of ``steps``, both 0 as long as it has not begun to train."""

    name: str
    step: int = 0
    steps: int = 0


@dataclass(frozen=True)
class Failure:
    """Why a task failed: what kind of error it was, and what that said; ``tells``: perhaps about records."""

    kind: str
    said: str = ""
    tells: bool = False

    def __str__(self) -> str:
        return f"{self.kind}: {self.said}" if self.said else self.kind


@dataclass(frozen=True)
class _Ended:
    """How a task ended. ``again``: it is to be made again; ``begun_before``: it was begun, and by another worker."""

    value: Any = None
    failure: Failure | None = None
    again: bool = False
    begun_before: bool = False


Finished = Callable[[Task, Any, "Failure | None"], None]
Tick = Callable[[Sequence[Running]], None]


def run_tasks(
    tasks: Sequence[Task],
    executor: Executor,
    *,
    marks: Path,
    finished: Finished,
    tick: Tick | None = None,
    deaths: int = 0,
) -> None:
    """Make all ``tasks``; ``finished`` gets each with what it came to or why it failed, ``tick`` what is running.

    ``marks`` is a folder for the time of the call, which all workers see. ``deaths`` is how many workers may die in one
    task before it has failed.
    """
    _Work(tasks, executor, marks, deaths).run(finished, tick)


class _Work:
    def __init__(self, tasks: Sequence[Task], executor: Executor, marks: Path, deaths: int) -> None:
        self.executor, self.given = executor, executor
        self.at_once = executor.workers if isinstance(executor, Processes) else len(tasks)
        self.all_marks, self.marks, self.deaths = marks, marks / secrets.token_hex(8), deaths
        self.count, self.waiting = len(tasks), list(tasks)
        self.handed: dict[Future[_Ended], tuple[Task, Path]] = {}
        self.handings = 0
        self.died = Counter[str]()
        """By name of a task, how many workers died in it."""
        self.handed_back: dict[str, int] = {}
        """By name of a task that no worker began, how many workers had died in a task then."""

    def run(self, finished: Finished, tick: Tick | None) -> None:
        from adadp.app.train.stopping import stop_requests  # noqa: PLC0415  # torch, which workers load when they begin

        done = 0
        with self._marked(), self._with_pools(), stop_requests() as stop:
            while done < self.count:
                if stop.is_set():
                    (self.marks / _GO).unlink(missing_ok=True)
                    self._call_back()
                    if not self.handed:
                        raise Interrupted(f"Stopped with {done} of {self.count} runs done in this call.")
                while self.waiting and len(self.handed) < self.at_once and not stop.is_set():
                    self._hand_out(self.waiting.pop(0))
                if tick is not None:
                    under_way = (self._running(task, mark) for task, mark in self.handed.values())
                    tick([each for each in under_way if each is not None])
                futures.wait(self.handed, timeout=_TICK, return_when=futures.FIRST_COMPLETED)
                for future in [each for each in self.handed if each.done()]:
                    task, mark = self.handed.pop(future)
                    ended = self._ended(future, task, mark)
                    if ended.again:
                        self.waiting.insert(0, task)
                    elif not (stop.is_set() and ended.failure is not None):
                        done += 1
                        finished(task, ended.value, ended.failure)

    @contextmanager
    def _marked(self) -> Iterator[None]:
        """A new folder for marks, in which runs may go on."""
        shutil.rmtree(self.all_marks, ignore_errors=True)
        self.marks.mkdir(parents=True)
        (self.marks / _GO).touch()
        try:
            yield
        finally:
            shutil.rmtree(self.all_marks, ignore_errors=True)

    @contextmanager
    def _with_pools(self) -> Iterator[None]:
        """Shut down in the end what took the place of the executor that was given."""
        try:
            yield
        finally:
            if self.executor is not self.given:
                self.executor.shutdown(cancel_futures=True)

    def _hand_out(self, task: Task) -> None:
        self.handings += 1
        mark = self.marks / f"{task.name}-{self.handings}.mark"
        try:
            try:
                future = self.executor.submit(_make, task, mark)
            except BrokenExecutor:
                if not isinstance(self.executor, ProcessPoolExecutor):
                    raise
                self.executor = _like(self.executor)
                future = self.executor.submit(_make, task, mark)
        except Exception as error:  # it is shut down, or its connection is gone
            future = Future()
            future.set_exception(error)
        self.handed[future] = task, mark

    def _call_back(self) -> None:
        """What has not begun need not: an executor may hold more tasks than it has workers."""
        for future, (task, mark) in list(self.handed.items()):
            if not future.done() and self._running(task, mark) is None and future.cancel():
                del self.handed[future]

    def _running(self, task: Task, mark: Path) -> Running | None:
        """How far it is, None if it has not begun."""
        try:
            said = mark.read_text(encoding="ascii").split()
        except FileNotFoundError:
            return None
        return Running(task.name, *map(int, said)) if len(said) == 2 else Running(task.name)  # it is being written

    def _ended(self, future: Future[_Ended], task: Task, mark: Path) -> _Ended:
        """How a task ended. What the executor raises is not the task's error: its worker is gone."""
        try:
            ended, why = future.result(), "its worker is gone"
        except (Exception, asyncio.CancelledError) as error:
            ended, why = None, str(error) if isinstance(error, BrokenExecutor) else type(error).__name__
        if ended is not None and not ended.begun_before:
            return ended
        mark.with_suffix(_GIVEN_UP).touch()
        if not _made_now(mark):
            self.died[task.name] += 1
            if self.died[task.name] <= self.deaths:
                return _Ended(again=True)
        elif self.handed_back.get(task.name) != self.died.total():
            self.handed_back[task.name] = self.died.total()
            return _Ended(again=True)
        return _Ended(failure=Failure(f"Its process ended by itself ({why}), perhaps out of memory."))


def _made_now(mark: Path) -> bool:
    """Make ``mark``, and say whether it was not there. On a shared disk too one alone can make it."""
    try:
        os.close(os.open(mark, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666))
    except FileExistsError:
        return False
    return True


def _like(pool: ProcessPoolExecutor) -> ProcessPoolExecutor:
    """A new pool with the arguments of ``pool``, which stays broken when one of its processes has died."""
    kept: Any = pool  # there is no public way to ask it
    return ProcessPoolExecutor(kept._max_workers, kept._mp_context, kept._initializer, kept._initargs)


def _make(task: Task, mark: Path) -> _Ended:
    """What a worker does: one task, unless it is to stop."""
    with _ONE_RUN:
        if not mark.with_name(_GO).exists():
            return _Ended(again=True)
        if not _made_now(mark):
            return _Ended(begun_before=True)
        try:
            return _Ended(task.make(watch=_teller(mark)))
        except Interrupted:
            return _Ended(again=True)
        except Exception as error:  # whatever it is, the other tasks go on
            return _Ended(failure=failure_of(error))


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
            if not mark.with_name(_GO).exists() or mark.with_suffix(_GIVEN_UP).exists():
                raise Interrupted("The run was asked to stop.")
            with suppress(OSError):
                mark.write_text(f"{status.step} {status.steps}", encoding="ascii")

    return tell
