"""A group of processes on this machine that do what a test asks of them, all at the same time.

A test sends a function to a group. It is called with the rank in every process, and what it returns comes back, or the
exception that it raised. The processes are forks of one that has torch loaded, so that a group starts in no time.
"""

from __future__ import annotations

import multiprocessing
import os
import queue
import socket
import traceback
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import wait
from typing import Any

import pytest

SECONDS = 60
PRELOADED = ["torch", "torch._dynamo", "adadp.app.train", "adadp.app.gradient_rules", "scipy.stats"]
"""What takes long to import; every optimizer of torch imports torch._dynamo."""


class Failed(Exception):
    """What a process raised: the name of the class, and the text."""


class Group:
    """``size`` processes in a group of torch.distributed."""

    def __init__(self, size: int, timeout: int = 20) -> None:
        self.size = size
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(PRELOADED)
        self._asked = [context.Queue() for _ in range(size)]
        # A pipe each: a process that dies right after an answer would leave a queue of all locked.
        pipes = [context.Pipe(duplex=False) for _ in range(size)]
        self._answers, self._ends = [list(ends) for ends in zip(*pipes, strict=True)]
        port = free_port()
        self.processes = [
            context.Process(
                target=_serve, args=(rank, size, port, timeout, self._asked[rank], self._ends[rank]), daemon=True
            )
            for rank in range(size)
        ]
        for each in self.processes:
            each.start()

    def start(self, work: Callable[..., Any], *args: Any) -> None:
        """Send ``work``, a function of a module, to all processes."""
        for each in self._asked:
            each.put((work, args))

    def answers(self, count: int | None = None) -> dict[int, Any]:
        """By rank, what ``work`` returned, or a ``Failed``; of so many processes, or of all."""
        found: dict[int, Any] = {}
        while len(found) < (self.size if count is None else count):
            ready = wait(self._answers, SECONDS)
            if not ready:
                pytest.fail(f"Only the processes {sorted(found)} have answered.")
            answer = ready[0].recv()
            rank = self._answers.index(ready[0])
            found[rank] = Failed(*answer[1]) if answer[0] == "failed" else answer[1]
        return found

    def failures(self, work: Callable[..., Any], *args: Any) -> list[tuple[str, str]]:
        """The class and text of what every process raised; all must raise."""
        self.start(work, *args)
        found = self.answers()
        assert all(isinstance(each, Failed) for each in found.values()), found
        return [found[rank].args[:2] for rank in range(self.size)]

    def run(self, work: Callable[..., Any], *args: Any) -> list[Any]:
        """What ``work`` returned in every process; none may raise."""
        self.start(work, *args)
        found = self.answers()
        for rank, each in found.items():
            if isinstance(each, Failed):
                pytest.fail(f"Process {rank}: {each.args[2]}")
        return [found[rank] for rank in range(self.size)]

    def close(self) -> None:
        for each in self._asked:
            each.put(None)
        for each in self.processes:
            each.join(5)
            if each.is_alive():
                each.kill()


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def _serve(rank: int, size: int, port: int, timeout: int, asked: Any, answers: Any) -> None:
    import torch
    import torch.distributed as dist

    os.environ["ADADP_RANK_TIMEOUT"] = str(timeout)
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=size)
    while True:
        try:
            found = asked.get(timeout=1)
        except queue.Empty:
            if os.getppid() == 1:  # the tests are gone
                return
            continue
        if found is None:
            break
        work, args = found
        try:
            answer = ("done", work(rank, *args))
        except BaseException as error:
            answer = ("failed", (type(error).__name__, str(error), traceback.format_exc()))
        answers.send(answer)
    with suppress(RuntimeError):
        dist.destroy_process_group()
