"""An executor of ``concurrent.futures`` from a text, for ``--executor``.

processes:N, processes       N processes on this machine, or one for each core
dask:HOST:PORT               the workers of a Dask cluster, by the address of its scheduler (``tcp://`` in front or
                             not, ``tls://``) or by the file that the scheduler wrote
package.module:function      what the function, or class, returns when it is called: MPI and Ray have executors
NAME                         the same, of a package that offers it under ``adadp.executors``
an unknown name, a scheduler that does not answer, a cluster without workers    ``InputError``, within seconds
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Executor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from adadp.app.sweeps.processes import Processes, cores
from adadp.errors import InputError
from adadp.registry import Registry

_PROCESSES, _DASK = "processes", "dask"
_PATIENCE = 10
"""Seconds a scheduler has to answer, and then again to have a worker."""

_OWN: Registry[Callable[[], object]] = Registry("executor", {}, lambda found: found if callable(found) else None)


@contextmanager
def executor_named(text: str) -> Iterator[Executor]:
    """The executor that ``text`` names, shut down in the end."""
    kind, _, where = text.partition(":")
    if kind == _PROCESSES:
        with Processes(_number(text, where)) as processes:
            yield processes
    elif kind == _DASK:
        with _connected(where) as client:
            # Every task is another one, though its arguments may be the same. Dask makes a task again whose worker
            # died, whatever is asked here; a task notices that (``handing.py``).
            yield client.get_executor(pure=False, retries=0)
    else:
        with _made(text) as executor:
            yield executor


def _number(text: str, said: str) -> int:
    if said and not (said.isdecimal() and int(said)):
        raise InputError(f"{text} names no number of processes.", fix="Write it like processes:4.")
    return int(said) if said else cores()


def _connected(where: str) -> Any:
    """A client of the Dask cluster whose scheduler is at ``where``."""
    try:
        import distributed  # noqa: PLC0415  # an extra
    except ImportError as error:
        raise InputError("A Dask cluster needs the package distributed.", fix="pip install 'adadp[dask]'") from error
    connect: Any = distributed.Client  # it has no types
    file = Path(where).is_file()
    if not file and ":" not in where:
        raise InputError(
            f"dask:{where} names neither an address nor a file that is there.",
            fix="Write it like dask:tcp://HOST:8786, or name the file that the scheduler wrote.",
        )
    try:
        client = connect(**{"scheduler_file" if file else "address": where}, timeout=_PATIENCE)
    except (OSError, ValueError, KeyError) as error:
        raise InputError(
            f"The Dask scheduler {where} cannot be reached: {error}.", fix="Start it, or correct `executor`."
        ) from error
    try:
        client.wait_for_workers(1, timeout=_PATIENCE)
    except TimeoutError as error:
        client.close()
        raise InputError(
            f"The Dask cluster {where} has no workers.", fix="Start some: dask worker ADDRESS --nthreads 1."
        ) from error
    return client


def _made(text: str) -> Executor:
    """What the user's own function returns."""
    make = _OWN.find(text)
    try:
        found = make()
    except Exception as error:
        raise InputError(
            f"The executor {text} could not be made: {type(error).__name__}: {error}.",
            fix="Call it by itself, without arguments, until it returns an executor.",
        ) from error
    if not isinstance(found, Executor):
        raise InputError(
            f"{text} returned a {type(found).__name__}, and no executor.",
            fix="Name a function, or a class, that returns a concurrent.futures.Executor.",
        )
    return found
