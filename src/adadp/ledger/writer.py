"""Charging: the one object that may write a ledger, and the order in which it does."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from adadp import checks, disk
from adadp.errors import EventError, InputError, LedgerBusy, LedgerError
from adadp.events import Event, Neighbours, Repeated
from adadp.events.kinds import check_event
from adadp.ledger.budget import BudgetRule
from adadp.ledger.chain import Chain, canonical
from adadp.ledger.reader import cannot_open, replay, whole


class Ledger:
    """The writer of one ledger file; get it from :meth:`create` or :meth:`open`, and close it (``with`` does).

    ============================================  ==================================================================
    a charge beyond the budget                    ``BudgetExceeded``; nothing is written, the ledger stays usable
    an event of another neighbouring relation     ``EventError``; likewise
    the disk is full, any error while writing     ``LedgerError``; no more charges through this object. The line may
                                                  be torn: opening the ledger again counts it
    an interrupt (Ctrl-C) while writing           the same, and the interrupt goes on
    the file was replaced, removed, or written    ``LedgerError`` before anything is written
    by somebody else
    a forked child, or after ``close``            ``LedgerError``
    ============================================  ==================================================================

    In all of these ``charge`` did not return, so its caller has released nothing.
    """

    def __init__(self, path: str, file: int, chain: Chain, budget: BudgetRule | None) -> None:
        self.path = path
        self._file = file
        self._chain = chain
        self._budget = budget
        self._resources = ExitStack()
        self._mutex = threading.Lock()
        self._process = os.getpid()
        self._unusable = ""
        self.witness: Callable[[int, str], None] | None = None
        """Who is told ``length`` and ``head`` of each line on the disk before its charge counts as made."""
        status = os.fstat(file)
        self._expected = (status.st_dev, status.st_ino, status.st_size)

    @classmethod
    def create(
        cls,
        path: str | os.PathLike[str],
        *,
        budget: BudgetRule | None = None,
        run: str | None = None,
        seeded: bool | None = None,
    ) -> Ledger:
        """Begin a new ledger. A file that exists is refused, never overwritten.

        ``seeded`` says whether the noise is computed from a seed, which makes the run a rehearsal; None: not said.
        """
        place = os.path.realpath(path)
        header = Chain().header_line(
            {
                "run": run or os.urandom(8).hex(),
                "created": datetime.now(timezone.utc).isoformat(timespec="seconds"),
                "budget": _described(budget),
                **({} if seeded is None else {"seeded": seeded}),
            }
        )
        with ExitStack() as resources:
            file, _ = _acquire(place, os.O_CREAT | os.O_EXCL, resources)
            ledger = cls(place, file, Chain(), budget)
            ledger._append(header, new_file=True)
            ledger._resources = resources.pop_all()
        return ledger

    @classmethod
    def open(cls, path: str | os.PathLike[str], *, budget: BudgetRule | None = None) -> Ledger:
        """Go on with a ledger. What it holds is committed to ``budget``, which must be the rule it was created with.

        A line torn by a crash is closed and counted as spent before this returns.
        """
        place = os.path.realpath(path)
        if not os.path.isfile(place):
            raise LedgerError(
                f"There is no ledger file at {place}.", fix="Check the path, or use Ledger.create to begin a new one."
            )
        with ExitStack() as resources:
            file, data = _acquire(place, 0, resources)
            chain, torn = replay(data, place)
            _check_same_rule(place, chain.header["budget"], budget)
            ledger = cls(place, file, chain, budget)
            end = b"" if data.endswith(b"\n") else b"\n"
            closing = b"" if torn is None else chain.torn_line(torn) + b"\n"
            ledger._write(end + closing)  # even if empty: lines of a killed writer may not be on the disk yet
            if torn is not None:
                chain.accept_torn(torn)
            if budget is not None:
                for event, count in chain.charges.items():
                    budget.commit(event, count)
            ledger._resources = resources.pop_all()
        return ledger

    def charge(self, event: Event, count: int = 1) -> int:
        """Count ``count`` releases of ``event`` as spent; release them after this returned, not before.

        The order is what makes the ledger safe: check, ask the budget, define the event and fsync, charge it and
        fsync, tell the budget, return the number of this charge (1, 2, ...).
        """
        event, count = _unrolled(event, count)
        if os.getpid() != self._process:  # before the mutex, which another thread may have held when we were forked
            raise LedgerError(
                f"The ledger {self.path} was opened by another process (a parent that forked this one).",
                why="Two processes that charge through one object would overwrite each other's count.",
                fix="Charge in the process that opened it.",
            )
        with self._mutex:
            self._check_relation(event.neighbours)
            self._check_usable()
            if self._budget is not None:
                self._budget.admit(event, count)
            self._unusable = "an earlier charge through it did not finish"  # until this one has, whatever interrupts it
            number = self._chain.id_of(event, count)
            if not self._chain.defines(number):
                self._append(self._chain.define_line(event, count))
            self._append(self._chain.charge_line(number))
            if self._budget is not None:
                self._budget.commit(event, count)
            self._unusable = ""
            return self._chain.seq

    @property
    def run(self) -> str:
        """The id of the run that owns the ledger."""
        return str(self._chain.header["run"])

    @property
    def neighbours(self) -> Neighbours | None:
        """The one neighbouring relation of all events; ``None`` before the first."""
        return self._chain.neighbours

    @property
    def charges(self) -> Mapping[Event, int]:
        """How often each event counts as released, torn lines included."""
        return self._chain.charges

    @property
    def torn(self) -> int:
        """How many lines a crash tore."""
        return self._chain.torn

    @property
    def head(self) -> str:
        """Checksum of the last line; with ``length`` it pins the ledger (see ``read_ledger``)."""
        return self._chain.head

    @property
    def length(self) -> int:
        """Number of good lines."""
        return self._chain.length

    def event(self) -> Event | None:
        """Everything charged, as one event for an accountant; ``None`` if nothing was."""
        return whole(self._chain.charges)

    def close(self) -> None:
        """Give up the file and the lock. In a forked child it does nothing: the lock is the parent's."""
        if os.getpid() == self._process:
            self._unusable = "it is closed"
            self._resources.close()

    def __enter__(self) -> Ledger:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _check_relation(self, neighbours: Neighbours) -> None:
        held = self.neighbours
        if held is not None and held is not neighbours:
            raise EventError(
                f"The ledger {self.path} is for {held.value} neighbours, this event for {neighbours.value} ones.",
                why="Guarantees about different pairs of data sets do not compose.",
                fix="Declare every event of one run with the same relation.",
            )

    def _check_usable(self) -> None:
        if self._unusable:
            raise LedgerError(
                f"The ledger {self.path} cannot be charged through this object: {self._unusable}.",
                fix="Open it again with Ledger.open, which counts what was begun.",
            )
        try:
            status = os.stat(self.path)
            found = (status.st_dev, status.st_ino, status.st_size)
        except OSError:
            found = (0, 0, 0)
        if found != self._expected:
            raise LedgerError(
                f"The ledger {self.path} was removed, replaced or written by somebody else.",
                why="Charges through this object would not be found in the file that counts.",
                fix="Put the file back as it was, then open it again with Ledger.open.",
            )

    def _append(self, line: bytes, *, new_file: bool = False) -> None:
        """Write ``line``, force it to the disk, and only then take it in."""
        self._write(line + b"\n", new_file=new_file)
        self._chain.accept(line)
        if self.witness is not None:
            self.witness(self._chain.length, self._chain.head)

    def _write(self, data: bytes, *, new_file: bool = False) -> None:
        left = memoryview(data)
        try:
            while left:
                left = left[os.write(self._file, left) :]
            disk.force(self._file)
            if new_file:  # or a power failure could lose a ledger whose charges were acknowledged
                disk.force_folder(Path(self.path).parent)
        except OSError as error:
            raise LedgerError(
                f"The ledger {self.path} cannot be written: {error.strerror}.",
                why="A release that is not on the disk as charged must not happen, and this one did not.",
                fix="Make room or repair the disk, then open the ledger again: a half-written charge counts as spent.",
            ) from error
        device, inode, size = self._expected
        self._expected = (device, inode, size + len(data))


def _unrolled(event: Event, count: int) -> tuple[Event, int]:
    """``Repeated`` opened, so that the same release has one name whichever way its count was given."""
    check_event(event, "event")
    count = checks.count("count", count)
    while isinstance(event, Repeated):
        count *= event.count
        event = event.event
    return event, checks.count("count", count, why="An event that releases nothing has nothing to charge.")


def _acquire(place: str, flags: int, resources: ExitStack) -> tuple[int, bytes]:
    """Lock the ledger at ``place``, open its file for appending and read it; ``resources`` gives both back."""
    if not os.path.isdir(os.path.dirname(place)):
        raise LedgerError(f"There is no folder {os.path.dirname(place)} for the ledger.", fix="Make it first.")
    lock = FileLock(place + ".lock", thread_local=False)  # whichever thread closes the ledger gives up its lock
    try:
        lock.acquire(blocking=False)
        resources.callback(lock.release)
        file = os.open(place, os.O_RDWR | os.O_APPEND | disk.BINARY | flags, 0o666)
        resources.callback(os.close, file)
        with os.fdopen(file, "rb", closefd=False) as content:
            return file, content.read()
    except Timeout as error:
        raise LedgerBusy(
            f"The ledger {place} is being written by another process, or by another Ledger object of this one.",
            why="Two writers would count each other's releases wrongly.",
            fix="Wait until that run ends, or close the other object; if it died, end the child processes it left.",
        ) from error
    except FileExistsError as error:
        raise LedgerError(
            f"There is already a file at {place}.",
            why="A ledger is never overwritten: it counts what has been released.",
            fix="Use Ledger.open to go on with it, or choose another path.",
        ) from error
    except OSError as error:
        raise cannot_open(place, error) from error


def _described(budget: BudgetRule | None) -> Any:
    """The rule's description as it comes back from the file."""
    try:
        return json.loads(canonical(None if budget is None else budget.describe()))
    except (TypeError, ValueError) as error:
        raise InputError(
            f"The budget rule's description is not JSON: {error}.",
            why="It stands in the ledger's header, where the next writer compares it with its own rule.",
            fix="Return only dicts, lists, strings, finite numbers, booleans and None from describe().",
        ) from error


def _check_same_rule(place: str, written: object, budget: BudgetRule | None) -> None:
    """Refuse to go on under another rule than the run began with: a budget that can be swapped binds nobody."""
    given = _described(budget)
    if written != given:
        raise LedgerError(
            f"The ledger {place} was created with the budget {written}, and was opened with {given}.",
            why="The guarantee of the run rests on the rule it began with.",
            fix="Open it with the same rule, or begin a new ledger and compose the two.",
        )
