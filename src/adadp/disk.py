"""Bytes that are on the disk, not in a cache, on every system.

Linux      fsync, of a file and of the folder that names it
macOS      F_FULLFSYNC, as fsync leaves the bytes in the cache of the drive; fsync where a disk does not know it
Windows    fsync of files. Folders cannot be opened there, and NTFS journals names by itself
"""

from __future__ import annotations

import errno
import os
from pathlib import Path

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

BINARY = getattr(os, "O_BINARY", 0)
"""For ``os.open``: without it Windows would write other line ends than those that are counted and hashed."""


def force(file: int) -> None:
    """Force what was written to the descriptor ``file`` to the disk."""
    if hasattr(fcntl, "F_FULLFSYNC"):
        try:
            fcntl.fcntl(file, fcntl.F_FULLFSYNC)
            return
        except OSError as error:
            if error.errno not in (errno.ENOTSUP, errno.EINVAL, errno.ENOTTY):
                raise
    os.fsync(file)


def force_folder(folder: Path) -> None:
    """Force the names in ``folder`` to the disk: a new file, or a renamed one."""
    if fcntl is None:
        return
    file = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(file)
    finally:
        os.close(file)
