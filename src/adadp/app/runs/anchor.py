"""What this machine remembers of a run apart from its folder: a folder that was set back or copied does not go on.

A ledger shows what was edited in it, and not that lines were cut off its end: a folder from a backup, or a copy of it,
looks like a run that was stopped earlier. Resumed, it would release steps a second time, each charged once. So every
line of the ledger is also noted here, in a file named by the run, before its charge counts as made:

    the ledger ends before what was noted here      ``LedgerError``: it was cut back, or is an older copy
    it has the noted line and further ones          goes on: a kill came between ledger and note
    the run is going on somewhere on this machine   ``LedgerBusy``
    nothing was noted here                          ``LedgerError``, unless the owner says that the folder is the
                                                    latest one (``moved``), which the certificate then states
    the records are others than at the beginning    ``InputError``; see ``Fingerprint``

A note is not forced to the disk: a crash of the whole machine can lose the last ones, and then less is noticed, never
more. Rehearsals (runs with a seed) have no note: they may be resumed as often as one likes, and protect nothing.
"""

from __future__ import annotations

import hashlib
import os
import re
import zlib
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import torch
from filelock import FileLock, Timeout
from torch import Tensor
from torch.utils._pytree import tree_leaves

from adadp.app.runs.atomic import write_all
from adadp.app.state import FOLDER as FOLDER  # noqa: PLC0414  # its tests ask for it here
from adadp.app.state import state_folder
from adadp.disk import BINARY
from adadp.errors import InputError, LedgerBusy, LedgerCorrupt, LedgerError
from adadp.ledger import Ledger
from adadp.records import Records, Stored

_SLOT = 128
"""Bytes of a note; two take turns, so that one is whole while the other is written."""
_KEY = 32
_TURN = 16
_KEYS, _MOVED, _TURNS = 2 * _SLOT, 2 * _SLOT + 2 * _KEY, 2 * _SLOT + 2 * _KEY + 1
"""Where key and fingerprint stand, whether the run was moved here, and its turns."""
_STATED = (
    "The run was resumed on a machine that had no record of it, or an older one. That its folder was the latest one, "
    "so that no step was released twice, is the word of whoever resumed it."
)
_FEW = 1000
"""Records on disk that a fingerprint reads."""


class Anchor:
    """The notes on one run, which it holds while it goes on. Get it from :meth:`of`, and close it."""

    def __init__(self, path: Path, file: int, resources: ExitStack) -> None:
        self.path = path
        self._file, self._resources = file, resources

    @classmethod
    def of(cls, ledger: Ledger, folder: Path, *, moved: bool) -> Anchor:
        """The notes on the run that ``ledger`` in ``folder`` belongs to, checked against it; from now on it is noted.

        A ledger without charges may be new here. ``moved``: the owner says that no other copy of the run went on.
        """
        with ExitStack() as resources:
            path = resources.enter_context(going_on(ledger.run, folder))
            try:
                file = os.open(path, os.O_RDWR | os.O_CREAT | BINARY, 0o600)
                resources.callback(os.close, file)
            except OSError as error:
                raise _cannot_note(path, error) from error
            anchor = cls(path, file, resources)
            anchor._check(ledger, folder, moved=moved)
            anchor.note(ledger.length, ledger.head)
            ledger.witness = anchor.note
            anchor._resources = resources.pop_all()
        return anchor

    def note(self, length: int, head: str) -> None:
        """The ledger has ``length`` lines, and ``head`` is the checksum of the last one."""
        text = f"{length} {head} "
        note = f"{text}{zlib.crc32(text.encode()):08x}".encode().ljust(_SLOT - 1) + b"\n"
        self._write(note, length % 2 * _SLOT)

    def check_records(self, records: Records, units: Tensor | None = None, *, begun: bool) -> None:
        """Refuse other records than those the run was ``begun`` with; if it was not, remember these by a keyed digest.

        Where these are rows of ``units``, which unit each row belongs to is a part of it.

        The key is drawn here and stays here: without it nobody can try records out against the digest.
        """
        kept = self._read(2 * _KEY, _KEYS)
        if begun and len(kept) == 2 * _KEY and kept.strip(b"\0"):
            if _fingerprint(records, units, kept[:_KEY]) != kept[_KEY:]:
                raise InputError(
                    "The records are not those the run was begun with.",
                    why="What was released and what is released now would be charged as one run on one data set.",
                    fix="Pass the same records in the same order, or begin a new run in another folder.",
                )
            return
        key = os.urandom(_KEY)
        self._write(key + _fingerprint(records, units, key), _KEYS)

    @property
    def moved(self) -> str | None:
        """What the certificate states of a run that was resumed on a machine without a note of it."""
        return _STATED if self._read(1, _MOVED) == b"1" else None

    @property
    def turns(self) -> tuple[str, ...]:
        """The turns of the run in the budget of its data after which it may go on here; none: it was not counted."""
        kept = self._read(2 * _TURN, _TURNS).decode("ascii", "replace").strip("\0")
        return (kept[:_TURN], kept[_TURN:]) if kept else ()

    def note_turns(self, last: str, new: str) -> None:
        """The run goes on in its turn ``new``, or, if a kill comes before the budget knows that, after ``last``."""
        self._write(f"{last}{new}".encode("ascii"), _TURNS)

    def note_move(self) -> None:
        """That the folder is the latest one is the word of whoever resumes the run."""
        self._write(b"1", _MOVED)

    def forget(self) -> None:
        """Remove the notes on a run that has released nothing, and whose folder is taken back."""
        self.path.unlink(missing_ok=True)

    def close(self) -> None:
        """Give up the run: another process may go on with it."""
        self._resources.close()

    def _read(self, length: int, place: int) -> bytes:
        os.lseek(self._file, place, os.SEEK_SET)
        return os.read(self._file, length)

    def _write(self, data: bytes, place: int) -> None:
        try:
            os.lseek(self._file, place, os.SEEK_SET)
            write_all(self._file, data)
        except OSError as error:
            raise _cannot_note(self.path, error) from error

    def _check(self, ledger: Ledger, folder: Path, *, moved: bool) -> None:
        """Refuse a ledger that lacks what was noted."""
        noted = max(filter(None, map(self._noted, (0, 1))), default=None)
        if noted is None:
            if ledger.charges and moved:
                self.note_move()
            elif ledger.charges:
                raise LedgerError(
                    f"This machine has no note of the run in {folder}.",
                    why="It may be an older copy of a run that went on elsewhere: steps would be released twice.",
                    fix="Resume it where it ran. If it was moved, and nothing went on with any other copy, say so: "
                    "--moved, or fit(moved=True). The certificate will state it.",
                )
        elif not any(line.endswith(f',"chain":"{noted[1]}"}}'.encode()) for line in _lines(ledger)):
            raise LedgerError(
                f"The ledger of the run in {folder} ends before what this machine has noted of it.",
                why="The folder is an older copy, or lines were cut off: releases that were made are not in it.",
                fix="Put the latest folder of the run back, and resume that one.",
            )

    def _noted(self, slot: int) -> tuple[int, str] | None:
        """A note that is whole."""
        text, _, check = self._read(_SLOT, slot * _SLOT).decode("ascii", "replace").strip().rpartition(" ")
        if not text or check != f"{zlib.crc32(f'{text} '.encode()):08x}":
            return None
        length, head = text.split(" ")
        return int(length), head


def note_of(run: str) -> Path:
    """The file of the notes on ``run``. A stranger's ledger may call its run what it likes, such as a path."""
    if not re.fullmatch("[0-9a-f]{16}", run):
        raise LedgerCorrupt(
            "The ledger does not name its run as AdaDP does.",
            why="The name says where this machine keeps its notes on the run.",
            fix="Do not go on with a folder whose ledger was edited.",
        )
    return state_folder() / "runs" / run


@contextmanager
def going_on(run: str, folder: Path) -> Iterator[Path]:
    """Where the notes on ``run`` in ``folder`` are; no copy of it goes on meanwhile on this machine."""
    path = note_of(run)
    lock = FileLock(f"{path}.lock", thread_local=False)
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        lock.acquire(blocking=False)
    except Timeout as error:
        raise LedgerBusy(
            f"The run in {folder} is going on in another folder.",
            why="This one is a copy of it. Two runs would release the same steps, each charged once.",
            fix="Wait until the other one has ended, and go on with that one.",
        ) from error
    except OSError as error:
        raise _cannot_note(path, error) from error
    try:
        yield path
    finally:
        lock.release()


def _lines(ledger: Ledger) -> list[bytes]:
    return Path(ledger.path).read_bytes().splitlines()


def _fingerprint(records: Records, units: Tensor | None, key: bytes) -> bytes:
    """A digest under ``key`` of all records in memory; of those on disk, of a thousand and how many there are; and of
    the unit of each.

    Of a ``Dataset``, which may draw random numbers whenever it is read, it covers the number of records alone.
    """
    digest = hashlib.blake2b(str(len(records)).encode(), key=key, digest_size=_KEY)
    for part in (*_parts(records), *([] if units is None else [units])):
        digest.update(f"{part.dtype} {tuple(part.shape)}".encode())
        digest.update(part.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return digest.digest()


def _parts(records: Records) -> Iterable[Tensor]:
    few = torch.linspace(0, len(records) - 1, min(_FEW, len(records)), dtype=torch.float64).round().long()
    for leaf in tree_leaves(records.columns or ()):
        found = tree_leaves(leaf.rows(few)) if isinstance(leaf, Stored) else [leaf]
        yield from (each for each in found if isinstance(each, Tensor))


def _cannot_note(path: Path, error: OSError) -> LedgerError:
    return LedgerError(
        f"The note of the run at {path} cannot be written: {error.strerror}.",
        why="It keeps a copy of the run from releasing the same steps again. Nothing was released.",
        fix=f"Make room there, or set the environment variable {FOLDER} to a folder that can be written.",
    )
