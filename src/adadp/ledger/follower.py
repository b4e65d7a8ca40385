"""A ledger as the other processes of a run see it: in memory, with the same lines as the one that counts."""

from __future__ import annotations

import os
import threading
from contextlib import ExitStack

from adadp.ledger.reader import replay
from adadp.ledger.writer import Ledger


class LedgerCopy(Ledger):
    """A copy of a ledger that another process writes: ``content`` is what is in that file by now.

    It writes nothing and asks no budget. Each charge of the other ledger, once it is on the disk, is to be charged here
    too; then both hold the same lines.
    """

    def __init__(self, path: str, content: bytes) -> None:
        self.path = path
        self._chain, _ = replay(content, path)  # whoever opened the file has closed what was torn
        self._budget = None
        self._resources = ExitStack()
        self._mutex = threading.Lock()
        self._process = os.getpid()
        self.witness = None
        self._unusable = ""

    def _check_usable(self) -> None:
        """There is no file that somebody else could have written."""

    def _write(self, data: bytes, *, new_file: bool = False) -> None:
        """The other process has written it."""
