"""What the tests of sweeps have made by workers, and a real Dask cluster of two processes to make it."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import SimpleNamespace

from distributed import LocalCluster

from adadp.app.sweeps.handing import Task


@contextmanager
def dask_cluster(place: Path) -> Iterator[LocalCluster]:
    """Two workers, each a process with one thread."""
    with LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None, local_directory=str(place)) as cluster:
        yield cluster


def noted(place: Path, name: str, *, watch) -> str:
    """Leave a line for every time it begins."""
    watch(SimpleNamespace(step=0, steps=2))
    with (place / f"{name}.begun").open("a") as file:
        file.write(f"{os.getpid()}\n")
    return name


def held(place: Path, name: str, *, watch) -> str:
    """The same, and then wait until the file ``name`` is there, watched all the time."""
    noted(place, name, watch=watch)
    while not (place / name).exists():
        watch(SimpleNamespace(step=1, steps=2))
        time.sleep(0.05)
    return name


def failing(*, watch) -> None:
    raise ValueError("It fails.")


def told(place: Path, name: str) -> Task:
    return Task(name, partial(noted, place, name))


def waiting(place: Path, name: str) -> Task:
    return Task(name, partial(held, place, name))


def begun(place: Path, name: str) -> list[int]:
    """The processes in which it began."""
    try:
        return [int(line) for line in (place / f"{name}.begun").read_text().split()]
    except FileNotFoundError:
        return []
