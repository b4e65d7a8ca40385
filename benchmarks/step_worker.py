"""One side of the step benchmark in a process of its own: its turns, its peak of memory, and the parts of its step.

A process of its own because the allocator remembers: after one side has freed gigabytes, large blocks stay with the
process and the steps of all others need fewer page faults than they would by themselves.
"""

from __future__ import annotations

import ctypes
import gc
import multiprocessing
import resource
import statistics
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from step_sides import CASES, METHODS, Case, Side, build_side, our_parts, plain_parts

from adadp.app.losses import cross_entropy
from adadp.gradients import engine
from adadp.gradients.capture import Capture
from adadp.lab.methods import boxes, published
from adadp.noise import GaussianMechanism

MEGABYTE = 1 << 20


class Worker:
    """A process that holds one side of one case and answers one question at a time."""

    def __init__(self, case: str, side: str) -> None:
        context = multiprocessing.get_context("forkserver")  # of a process that has done nothing but import
        context.set_forkserver_preload(["torch", "opacus", "peft", "adadp"])
        self._connection, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs, case, side), daemon=True)
        self._process.start()
        theirs.close()
        self.failure = self._begun()
        """Why the side cannot run the case; empty if it can."""

    def turn(self, threads: int, steps: int) -> tuple[float, float]:
        """CPU and wall time of a step, in milliseconds."""
        cpu, wall = self._ask(_turn, threads, steps)
        return cpu, wall

    def peak(self) -> float:
        """Megabytes that a step needs at its peak beside what is there between steps, at one thread."""
        return float(self._ask(_peak))

    def parts(self, steps: int) -> dict[str, float]:
        """Part of a step to CPU milliseconds, at one thread; for the plain side and for AdaDP."""
        found: dict[str, float] = self._ask(_parts, steps)
        return found

    def close(self) -> None:
        self._connection.close()
        self._process.join(10)

    def _begun(self) -> str:
        try:
            return str(self._connection.recv())
        except EOFError:
            return "its process ended, probably for lack of memory"

    def _ask(self, question: Callable[..., Any], *arguments: Any) -> Any:
        self._connection.send((question, arguments))
        return self._connection.recv()


def _serve(connection: Connection, case_name: str, side_name: str) -> None:
    warnings.simplefilter("ignore")  # peers warn about hooks and autocast in every step
    case = next(case for case in CASES if case.name == case_name)
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        try:
            side = build_side(side_name, case, case.data(), Path(folder))
            stack.callback(side.close)
            side.step()
        except Exception as error:  # a peer's failure is a result
            connection.send(f"{type(error).__name__}: {error}".splitlines()[0])
            return
        connection.send("")
        while True:
            try:
                question, arguments = connection.recv()
            except EOFError:
                return
            connection.send(question(side_name, case, side, *arguments))


def _turn(_name: str, _case: Case, side: Side, threads: int, steps: int) -> tuple[float, float]:
    torch.set_num_threads(threads)
    cpu, wall = time.process_time(), time.perf_counter()
    for _ in range(steps):
        side.step()
    return 1000 * (time.process_time() - cpu) / steps, 1000 * (time.perf_counter() - wall) / steps


def _peak(_name: str, _case: Case, side: Side) -> float:
    torch.set_num_threads(1)
    before = _settled()
    side.step()
    return (_resident_peak() - before) / MEGABYTE


def _settled() -> int:
    """Give freed memory back, forget the peak so far, and return the resident bytes."""
    gc.collect()
    try:
        ctypes.CDLL(None).malloc_trim(0)
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
        return _status("VmRSS")
    except (OSError, AttributeError):
        return _resident_peak()  # it cannot be forgotten here: only what exceeds it is counted


def _resident_peak() -> int:
    try:
        return _status("VmHWM")
    except OSError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def _status(key: str) -> int:
    for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
        if line.startswith(key):
            return int(line.split()[1]) * 1024
    raise OSError(f"no {key}")


class Stopwatch:
    """CPU time by part of a step; a part within a part counts for itself only."""

    def __init__(self) -> None:
        self._running: list[str] = []
        self._since = 0.0
        self._step: dict[str, float] = {}
        self._steps: list[dict[str, float]] = []

    def around(self, part: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*args: Any, **kwargs: Any) -> Any:
            with self.part(part):
                return function(*args, **kwargs)

        return timed

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        self._switch()
        self._running.append(name)
        try:
            yield
        finally:
            self._switch()
            self._running.pop()
            if not self._running:
                self._steps.append(self._step)
                self._step = {}

    def _switch(self) -> None:
        now = time.process_time()
        if self._running:
            self._step[self._running[-1]] = self._step.get(self._running[-1], 0.0) + now - self._since
        self._since = now

    def medians(self, steps: int) -> dict[str, float]:
        """Part to the median over the last ``steps`` steps, in milliseconds."""
        last = self._steps[-steps:]
        return {part: 1000 * statistics.median(step.get(part, 0.0) for step in last) for part in last[-1]}


def _parts(name: str, case: Case, _side: Side, steps: int) -> dict[str, float]:
    torch.set_num_threads(1)
    return _parts_of_ours(name, case, steps) if name in METHODS else _parts_of_plain(case, steps)


def _parts_of_ours(side: str, case: Case, steps: int) -> dict[str, float]:
    """AdaDP's own code, with a clock around the functions that make up its step."""
    watch = Stopwatch()
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        private, optimizer = our_parts(side, case, case.data(), Path(folder), watch.around("forward", cross_entropy))
        stack.callback(private.ledger.close)
        for owner, name, part in (
            (private.batches, "batch", "draw the batch"),
            (private._records, "batch", "gather"),
            (engine, "run_batch", "record the uses"),
            (torch.autograd, "grad", "backward"),
            (private.ledger, "charge", "charge the ledger"),
            (Capture, "__init__", "norms"),
            (Capture, "square_norms", "norms"),
            (Capture, "weighted_sums", "weighted sums"),
            (boxes, "clamped_sums", "clamped sums"),
            (published, "square_sums", "sums of squares"),
            (private.query, "finalize", "scale the sum"),
            (private.query, "to_gradient", "learn from what was released"),
            (type(private.source), "normal", "draw normals"),
            (GaussianMechanism, "release", "round and add noise"),
        ):
            stack.enter_context(patch.object(owner, name, watch.around(part, getattr(owner, name))))
        for _ in range(steps + 2):
            with watch.part("the rest"):
                private.release()
                with watch.part("optimizer"):
                    optimizer.step()
                    optimizer.zero_grad()
    return watch.medians(steps)


def _parts_of_plain(case: Case, steps: int) -> dict[str, float]:
    watch = Stopwatch()
    model, optimizer, batch = plain_parts(case, case.data())
    for _ in range(steps + 2):
        with watch.part("the rest"):
            with watch.part("gather"):
                features, labels = batch()
            with watch.part("forward"):
                loss = cross_entropy(model, features, labels).mean()
            with watch.part("backward"):
                loss.backward()
            with watch.part("optimizer"):
                optimizer.step()
                optimizer.zero_grad()
    return watch.medians(steps)
