"""Whether the workers of an executor see what they need, found out before anything is charged.

    workers that are processes of ours           nothing is asked: they see what this process sees
    no worker answers within a minute            ``InputError``
    AdaDP is not installed there                 ``InputError``
    the folder is another one there, or cannot   ``InputError``
    be written
    a file is missing there, or differs in size  ``InputError`` that names it

One worker is asked. Where machines differ, a run on one that sees less fails by itself.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable
from concurrent import futures
from concurrent.futures import Executor
from pathlib import Path

from adadp.app.config import TrainConfig
from adadp.app.owndata import is_own, own_path
from adadp.app.runs.atomic import cannot_write
from adadp.app.sweeps.processes import Processes
from adadp.errors import InputError

_PATIENCE = 60.0
"""Seconds a worker has to answer: enough to start a process that loads PyTorch."""
_ANSWER = ".answer"


def check_shared(executor: Executor, folder: Path, configs: Iterable[TrainConfig], more: Iterable[str] = ()) -> None:
    """Refuse an ``executor`` whose workers do not see ``folder`` and the files that ``configs`` and ``more`` name."""
    if isinstance(executor, Processes):
        return
    names = sorted({name for config in configs for name in _files(config)} | set(more))
    sizes = {name: _size(name) for name in names}
    probe, token = folder / f".adadp-{secrets.token_hex(8)}.probe", secrets.token_hex(16)
    answer = probe.with_suffix(_ANSWER)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe.write_text(token, encoding="ascii")
        unseen = _asked(executor, probe, token, sizes)
        if unseen is None and not answer.exists():
            unseen = str(folder)
    except OSError as error:
        raise cannot_write(folder, error) from error
    finally:
        probe.unlink(missing_ok=True)
        answer.unlink(missing_ok=True)
    if unseen is not None:
        raise InputError(
            f"A worker of the executor does not see {unseen} as it is here, or cannot write there.",
            why="The runs are made there, from the same files, and their results are read here. Nothing was charged.",
            fix="Put it on a disk that all machines share under the same path, and name it by its whole path.",
        )


def _asked(executor: Executor, probe: Path, token: str, sizes: dict[str, int]) -> str | None:
    """What a worker does not see; None if it sees all."""
    try:
        future = executor.submit(_unseen, probe, token, sizes)
    except Exception as error:
        raise _no_worker(error) from error
    try:
        return future.result(_PATIENCE)
    except futures.TimeoutError as error:
        future.cancel()
        raise InputError(
            f"No worker of the executor answered within {_PATIENCE:.0f} s.",
            why="There is none, or all are busy. Nothing was charged.",
            fix="Start workers, or wait until one is free.",
        ) from error
    except Exception as error:
        raise _no_worker(error) from error


def _no_worker(error: Exception) -> InputError:
    return InputError(
        f"A worker of the executor could not answer: {type(error).__name__}: {error}",
        why="It cannot make runs either. Nothing was charged.",
        fix="Check that AdaDP, in this version, is installed where the workers are.",
    )


def _unseen(probe: Path, token: str, sizes: dict[str, int]) -> str | None:
    """In a worker: what it does not see; None if it sees all, and has left an answer."""
    try:
        same = probe.read_text(encoding="ascii") == token
        probe.with_suffix(_ANSWER).touch()
    except OSError:
        same = False
    if not same:
        return str(probe.parent)
    return next((name for name, size in sizes.items() if _size(name) != size), None)


def _size(name: str) -> int:
    """The size of a file, that of a folder as 0, and -1 of what is not there."""
    path = Path(name)
    return path.stat().st_size if path.is_file() else 0 if path.exists() else -1


def _files(config: TrainConfig) -> list[str]:
    """The files of the user's own that a run of ``config`` reads."""
    if not is_own(config.data):
        return []
    kind = config.data.partition(":")[0]
    data = (config.data, config.test_data, config.validation_data)
    return [*(str(own_path(each, kind)) for each in data if each is not None), *filter(None, [config.schema])]
