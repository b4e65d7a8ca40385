"""The processes of ``adadp train``: those that torchrun has started, or as many as ``--nproc`` says on this machine.

The threads of a process are this machine's processors over the number of processes, unless ``OMP_NUM_THREADS`` says
otherwise.
"""

# torch takes seconds to load, which `adadp --help` must not wait for.
# ruff: noqa: PLC0415

from __future__ import annotations

import logging
import os
import sys
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from adadp import checks
from adadp.errors import InputError

if TYPE_CHECKING:
    from adadp.ranks import Ranks

_STARTED = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")
"""What torchrun tells the processes that it starts."""


def is_one_of_several() -> bool:
    """Whether torchrun has started this process as one of several."""
    return all(name in os.environ for name in _STARTED) and os.environ["WORLD_SIZE"] != "1"


def speaks() -> bool:
    """Whether this process is the one that says what all have to say."""
    return not is_one_of_several() or os.environ["RANK"] == "0"


def refuse_several(command: str) -> None:
    """Refuse a command that would be done once in every process."""
    if is_one_of_several():
        raise InputError(
            f"adadp {command} was started in several processes.",
            why="Each of them would do all of it.",
            fix="Start it without torchrun. Training can use several: torchrun -m adadp train, or adadp train --nproc.",
        )


@contextmanager
def processes() -> Iterator[Ranks]:
    """The processes that torchrun has started, joined; without torchrun, this one alone."""
    from adadp.ranks import ONE, cannot_meet, joined, leave, timeout

    if not is_one_of_several():
        yield ONE
        return
    from datetime import timedelta

    import torch
    import torch.distributed as dist

    backend = "gloo"
    if torch.cuda.is_available() and int(os.environ["LOCAL_RANK"]) < torch.cuda.device_count():
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
        backend = "cpu:gloo,cuda:nccl"
    try:
        dist.init_process_group(backend, timeout=timedelta(seconds=timeout()))
    except (RuntimeError, ValueError) as error:
        raise cannot_meet(error) from error
    try:
        ranks = joined()
        with ranks.guarded():
            yield ranks
    finally:
        leave()
        dist.destroy_process_group()


def launch(nproc: int, arguments: Sequence[str]) -> int:
    """Run ``adadp`` with ``arguments`` in so many processes on this machine; the exit code.

    They tell their errors themselves, one of them for all. Here is said which was killed, if one was.
    """
    count = checks.count("nproc", nproc, minimum=2)
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // count)))
    logging.disable(logging.CRITICAL)  # torch would write a report on every process that ends with an error
    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=count,
        run_id=uuid.uuid4().hex,
        rdzv_backend="c10d",
        rdzv_endpoint="localhost:0",
        max_restarts=0,
        monitor_interval=0.1,
    )
    try:
        elastic_launch(config, sys.executable)("-m", "adadp", *arguments)
    except ChildFailedError as error:
        rank, failure = error.get_first_failure()
        if failure.exitcode < 0:
            print(f"Process {rank} of the run was killed by signal {-failure.exitcode}.", file=sys.stderr)
        return 128 - failure.exitcode if failure.exitcode < 0 else failure.exitcode
    except SignalException as stopped:
        return 128 + int(stopped.sigval)
    return 0
