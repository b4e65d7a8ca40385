"""Many runs in a few processes of their own, one after the other in each.

    Ctrl-C or a polite kill            each run saves itself after its step; then ``Interrupted``. A second Ctrl-C does
                                       not wait
    the same, to all processes         the same: by whichever way a worker is asked to stop, and however often
    this process is killed             the others notice, save their runs and end
    a run that fails                   it is told (``finished`` with the error), and the next one begins
    a process that dies in a run       the same, and another process takes its place
    a process that dies before it      another one makes the run; if that dies too before it begins, the run has failed
    began the run it was handed
    a worker alone is asked to stop    its run is saved, and goes on

The processes are spawned, not forked: threads of PyTorch do not survive a fork. A script that calls this needs the
usual ``if __name__ == "__main__":``. Workers block SIGINT, which a terminal sends to all of them; this process passes
the request on, as SIGTERM. They stay in its process group, so that Ctrl-Z and a SIGKILL to the group reach them. A
SIGTERM to the group, or to everything a service manager has started, reaches them too, besides the one that is passed
on; a run takes both as one request (``stop_requests``).
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path

from adadp.app.config import TrainConfig
from adadp.app.train import Status
from adadp.app.train.stopping import stop_requests
from adadp.errors import Interrupted, LedgerError, RunError
from adadp.lab.compare.measuring import Measured, measured_run

_TICK = 0.5
"""Seconds between two looks at what is running."""


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
    begun: bool = True


Finished = Callable[[Job, "Measured | None", "Failure | None"], None]
Tick = Callable[[Sequence[Running]], None]


def cores() -> int:
    """How many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _threads() -> int:
    """How many threads all workers together may use: the cores, or fewer where the user has said so."""
    said = os.environ.get("OMP_NUM_THREADS", "")
    return min(cores(), int(said)) if said.isdigit() and int(said) else cores()


def run_jobs(jobs: Sequence[Job], *, workers: int, finished: Finished, tick: Tick) -> None:
    """Make all ``jobs``; ``finished`` gets each with what it came to or why it failed, ``tick`` what is running."""
    waiting = list(jobs)
    handed_back = set[Path]()
    workers = max(1, min(workers, len(jobs)))
    threads = max(1, _threads() // workers)
    team = [_Worker(threads) for _ in range(workers)] if jobs else []
    done = 0
    try:
        with stop_requests() as stop:
            while done < len(jobs):
                for worker in team:
                    if worker.running is None and waiting and not stop.is_set():
                        worker.begin(waiting.pop(0))
                busy = [worker for worker in team if worker.running is not None]
                if stop.is_set():
                    if not busy:
                        raise Interrupted(f"Stopped with {done} of {len(jobs)} runs done in this call.")
                    for worker in busy:
                        worker.ask_to_stop()
                tick([worker.running for worker in busy if worker.running is not None])
                ready = wait([worker.pipe for worker in busy], timeout=_TICK)
                for worker in [each for each in busy if each.pipe in ready]:
                    job, ended = worker.hear()
                    if ended is None:
                        continue
                    if not worker.process.is_alive() and not stop.is_set():
                        worker.close()
                        team[team.index(worker)] = _Worker(threads)
                    if ended.stopped:
                        waiting.insert(0, job)
                    elif not ended.begun and job.folder not in handed_back:
                        handed_back.add(job.folder)
                        waiting.insert(0, job)
                    elif not (stop.is_set() and ended.measured is None):
                        done += 1
                        finished(job, ended.measured, ended.failure)
    finally:
        for worker in team:
            worker.close()


class _Worker:
    """A process that makes one run after the other, seen from the process that asks it to."""

    def __init__(self, threads: int) -> None:
        context = multiprocessing.get_context("spawn")
        self.pipe, theirs = context.Pipe()
        self.process: BaseProcess = context.Process(target=_work, args=(theirs, threads), daemon=True)
        self.process.start()
        theirs.close()  # or its end would go unnoticed
        self.running: Running | None = None
        self._begun = self._asked = False

    def begin(self, job: Job) -> None:
        self.running, self._begun = Running(job), False
        with suppress(OSError):  # it has died: that is heard of next
            self.pipe.send(job)

    def hear(self) -> tuple[Job, _Ended | None]:
        """What it has to say: how far its run is (None), or how it ended."""
        assert self.running is not None
        job = self.running.job
        try:
            said = self.pipe.recv()
        except (EOFError, OSError):
            self.process.join()
            code = self.process.exitcode
            died = Failure(f"Its process ended by itself (exit code {code}), perhaps out of memory.")
            said = _Ended(None, died, begun=self._begun)
        if isinstance(said, _Ended):
            self.running = None
            return job, said
        self.running, self._begun = Running(job, *said), True
        return job, None

    def ask_to_stop(self) -> None:
        """Once is enough: a worker between two runs ends at once."""
        if not self._asked:
            self.process.terminate()
        self._asked = True

    def close(self) -> None:
        """End it: at once if it is in a run."""
        self.pipe.close()
        if self.running is not None:
            self.process.kill()
        self.process.join()


def _work(pipe: Connection, threads: int) -> None:
    """What a worker does until nobody asks for more."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    threading.Thread(target=_end_with_parent, daemon=True).start()
    import torch  # noqa: PLC0415  # the signals come first

    while True:
        torch.set_num_threads(threads)
        try:
            job: Job = pipe.recv()
        except EOFError:
            return
        try:
            with suppress(OSError):
                pipe.send((0, 0))  # it has been begun
            ended = _Ended(measured_run(job.config, job.folder, watch=_teller(pipe)))
        except Interrupted:
            ended = _Ended(None, stopped=True)
        except Exception as error:  # whatever it is, the other runs go on
            ended = _Ended(None, failure_of(error))
        try:
            pipe.send(ended)
        except OSError:  # nobody is there any more
            return


def failure_of(error: Exception) -> Failure:
    """What ``error`` comes to. Errors about a run's folder and its ledger do not know any record."""
    return Failure(type(error).__name__, str(error), tells=not isinstance(error, (RunError, LedgerError)))


def _teller(pipe: Connection) -> Callable[[Status], None]:
    """Tells how far a run is, now and then."""
    last = 0.0

    def tell(status: Status) -> None:
        nonlocal last
        if time.monotonic() - last > _TICK:
            last = time.monotonic()
            with suppress(OSError):
                pipe.send((status.step, status.steps))

    return tell


def _end_with_parent() -> None:
    """When the process that asks is gone, the run at hand is saved and this process ends."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    wait([parent.sentinel])
    os.kill(os.getpid(), signal.SIGTERM)
