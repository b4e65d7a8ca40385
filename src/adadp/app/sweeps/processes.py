"""Processes on this machine: an executor in which one that dies takes nothing but its own run along.

They are spawned, not forked: threads of PyTorch do not survive a fork. A script that uses them needs the usual
``if __name__ == "__main__":``. They block SIGINT, which a terminal sends to all of them, and stay in the process group,
so that Ctrl-Z and a SIGKILL to the group reach them. When the process that made them is gone they save their runs and
end.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing.connection import wait as wait_for
from multiprocessing.context import SpawnContext, SpawnProcess
from typing import Any

from adadp import checks

_SECONDS_BETWEEN_REQUESTS = 0.5


def cores() -> int:
    """How many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _threads() -> int:
    """How many threads all workers together may use: the cores, or fewer where the user has said so."""
    said = os.environ.get("OMP_NUM_THREADS", "")
    return min(cores(), int(said)) if said.isdigit() and int(said) else cores()


class Processes(ThreadPoolExecutor):
    """So many processes, each behind a thread that replaces it when it has died.

    They begin when they are needed. Left with an error, ``with`` ends at once what is still being made.
    """

    def __init__(self, workers: int) -> None:
        self.workers = checks.count("workers", workers)
        super().__init__(self.workers)
        self._threads_each = max(1, _threads() // self.workers)
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
            return pool.submit(_with_threads, self._threads_each, fn, *args).result()
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
        self.shutdown(cancel_futures=True)


class _Context(SpawnContext):
    """Knows the processes it made, which say how they ended."""

    def __init__(self) -> None:
        self.made: list[SpawnProcess] = []

    def Process(self, *args: Any, **kwargs: Any) -> SpawnProcess:  # type: ignore[override]  # there it is a class
        self.made.append(SpawnProcess(*args, **kwargs))
        return self.made[-1]


def _begin_process() -> None:
    """What a process of ours does before the first run."""
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    else:  # Windows
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    """When the process that asks is gone, the run at hand is saved and this process ends."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    wait_for([parent.sentinel])
    while True:  # in a run the first is a request, and after it the next one ends the process
        if os.name == "posix":
            os.kill(os.getpid(), signal.SIGTERM)
        else:  # there os.kill would end the process at once
            signal.raise_signal(signal.SIGTERM)
        time.sleep(_SECONDS_BETWEEN_REQUESTS)


def _with_threads(threads: int, fn: Callable[..., Any], *args: Any) -> Any:
    """Call ``fn`` with its share of the cores, whatever the run before has set."""
    import torch  # noqa: PLC0415  # after the signals of a process of ours

    torch.set_num_threads(threads)
    return fn(*args)
