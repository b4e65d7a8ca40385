"""Files that are there as a whole or not at all.

``write_atomic`` writes a temporary file in the same folder, forces it to the disk (fsync), renames it over the old file
and forces the folder. A crash before the rename leaves the old file and a temporary, which ``clean`` removes.

Why ``clean`` never removes a file that is being written
    The writer holds a lock (flock) on its temporary from before the first byte until it has been renamed, and the
    kernel gives the lock up when the writer dies. ``clean`` removes a temporary only while it holds that lock itself.
    If it was quicker than the writer of a file just created, the writer finds its file locked or without a name, and
    takes another.

On Windows no file that is open can be removed: there the open file is its own lock. It cannot be renamed either, so the
writer closes it first. If it is cleaned away in that moment, the writer gets an error, and the old file stays.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from io import FileIO
from pathlib import Path

from adadp.disk import BINARY, force, force_folder
from adadp.errors import RunError

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

_PREFIX, _SUFFIX = ".adadp-", ".tmp"
_BLOCK = 2**20


def cannot_write(path: Path, error: OSError) -> RunError:
    """The error for a file or folder the system refused to write."""
    return RunError(
        f"{path} cannot be written: {error.strerror or error}.",
        why="No file is left half-written: what was there before is still there.",
        fix="Make room, or choose a folder you may write to.",
    )


def write_atomic(path: Path, data: bytes) -> None:
    """Put ``data`` into the file at ``path`` and onto the disk; on any error the file is what it was before."""
    with _temporary(path) as (temporary, file):
        write_all(file.fileno(), data)
        force(file.fileno())
        if fcntl is None:
            file.close()
        os.replace(temporary, path)
        force_folder(path.parent)


def write_new(path: Path, data: bytes) -> None:
    """Like ``write_atomic`` for a file that must not be there yet: of several writers all but one get an error.

    The name is taken with an empty file, which a kill before the rename leaves behind.
    """
    os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666))
    try:
        write_atomic(path, data)
    except BaseException:
        path.unlink(missing_ok=True)
        raise


def probe(folder: Path, size: int) -> None:
    """Really write ``size`` bytes into ``folder`` and remove them again, or say why that cannot be done."""
    with _temporary(folder / "probe") as (_, file):
        zeros = bytes(min(size, _BLOCK))
        for start in range(0, size, _BLOCK):
            write_all(file.fileno(), zeros[: size - start])
        force(file.fileno())


def clean(folder: Path) -> None:
    """Remove the temporaries that dead writers left. One that cannot be removed hurts nobody and is left alone."""
    for leftover in folder.glob(f"{_PREFIX}*{_SUFFIX}"):
        with suppress(OSError):  # still being written (locked), renamed meanwhile, or in a folder we may only read
            if fcntl is None:
                os.unlink(leftover)
                continue
            with leftover.open("rb+") as file:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                os.unlink(leftover)


@contextmanager
def _temporary(path: Path) -> Iterator[tuple[Path, FileIO]]:
    """A new, locked file beside ``path``, gone in the end unless it was renamed; ``OSError`` becomes ``RunError``."""
    try:
        temporary, number = _create_locked(path.parent)
        try:
            with FileIO(number, "r+") as file:
                yield temporary, file
        finally:
            with suppress(OSError):
                os.unlink(temporary)
    except OSError as error:
        raise cannot_write(path, error) from error


def _create_locked(folder: Path) -> tuple[Path, int]:
    while True:
        temporary = folder / f"{_PREFIX}{secrets.token_hex(8)}{_SUFFIX}"
        file = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL | BINARY, 0o666)
        if fcntl is None:
            return temporary, file
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.fstat(file).st_nlink:
                return temporary, file
        except BlockingIOError:  # somebody is cleaning it away
            pass
        os.close(file)


def write_all(file: int, data: bytes) -> None:
    """Write all of ``data`` to the descriptor ``file``, however often the system takes a part of it only."""
    left = memoryview(data)
    while left:
        left = left[os.write(file, left) :]
