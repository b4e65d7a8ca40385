"""The file of a budget: one SQLite database of entries that are only ever added, each with a checksum over all before.

SQLite locks the file between processes and keeps a transaction whole through a kill or a power failure; it needs no
server and comes with Python. The checksums find an entry that was edited, removed or moved. A file that was cut back
as a whole, restored or copied still looks good: against that this machine notes, apart from the file, how many entries
it has seen, the checksum of the last one, and where the file was.

    the file lacks entries that were noted here       ``LedgerError``: it is an older copy
    another file with the same id is where the file   ``LedgerError``: one of them is a copy, and both would be spent
    was that was noted here
    that file is gone                                 it was moved: the new place is noted
    nothing was noted here                            accepted: another machine's notes are not known
    another process is writing                        waits for it; after a minute ``LedgerBusy``
    killed before the commit                          nothing was added
    killed between commit and note                    the note is behind, which the next one mends
"""

from __future__ import annotations

import hashlib
import json
import os
import sqlite3
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from adadp.app.state import FOLDER, state_folder
from adadp.disk import force
from adadp.errors import InputError, LedgerBusy, LedgerCorrupt, LedgerError

_TABLE = "CREATE TABLE entries (number INTEGER PRIMARY KEY, entry TEXT NOT NULL, chain TEXT NOT NULL)"
_PATIENCE = 60.0
"""Seconds to wait for another process."""
_LARGEST = 1 << 28
"""Bytes of a file that is read at all: a stranger's must not fill the memory."""


@dataclass(frozen=True)
class Entry:
    """One thing that happened to a budget."""

    kind: str
    body: dict[str, Any]


class Store:
    """The entries in one file; get it from :meth:`create`, or name a file that is there. Holds nothing open."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(os.path.realpath(path))

    @classmethod
    def create(cls, path: str | os.PathLike[str], first: Entry) -> Store:
        """Begin a new file with its ``first`` entry, which has the ``id`` of the budget."""
        store = cls(path)
        try:
            os.close(os.open(store.path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666))
        except FileExistsError as error:
            raise InputError(
                f"There is already a file at {store.path}.",
                why="A budget is never overwritten: it counts what has been spent.",
                fix="Choose another path.",
            ) from error
        except OSError as error:
            raise _unusable(store.path, error) from error
        try:
            with store._connected() as connection, _said(store.path):
                connection.execute("BEGIN IMMEDIATE")
                connection.execute(_TABLE)
                chain = _insert(connection, [first], 0, "")
                connection.execute("COMMIT")
            with store._noted(first.body["id"]) as note:
                note.check_alone(store.path)
                note.write(1, chain, store.path)
        except BaseException:
            with suppress(OSError):
                store.path.unlink()
            raise
        return store

    def read(self) -> tuple[Entry, ...]:
        """All entries, each checked; what this machine has noted is in them."""
        with self._entries(write=False) as (entries, _):
            return entries

    @contextmanager
    def adding(self) -> Iterator[tuple[tuple[Entry, ...], list[Entry]]]:
        """All entries, and a list to put further ones into. They are on the disk when the block has ended well.

        No other process reads or writes meanwhile, so what is decided by the entries still holds when it is added.
        """
        with self._entries(write=True) as (entries, new):
            yield entries, new

    @contextmanager
    def _entries(self, *, write: bool) -> Iterator[tuple[tuple[Entry, ...], list[Entry]]]:
        with ExitStack() as stack:
            connection = stack.enter_context(self._connected())
            with _said(self.path):
                _check_form(connection, self.path)
                # the id is needed to find the lock, and never changes
                first = _decoded(*connection.execute("SELECT entry FROM entries WHERE number = 1").fetchone() or ("",))
            note = stack.enter_context(self._noted(_id_of(first, self.path)))
            with _said(self.path):
                connection.execute("BEGIN IMMEDIATE" if write else "BEGIN")
                _check_form(connection, self.path)  # now that nobody can change it
                entries, chains = _chained(connection, self.path)
            note.check(chains, self.path, entries[0].body["id"])
            new: list[Entry] = []
            yield tuple(entries), new
            last = chains[-1]
            if new:
                with _said(self.path):
                    last = _insert(connection, new, len(entries), last)
            with _said(self.path):
                connection.execute("COMMIT")
            note.write(len(entries) + len(new), last, self.path)

    @contextmanager
    def _connected(self) -> Iterator[sqlite3.Connection]:
        """A connection without a transaction; what is not committed when it closes has not happened."""
        _check_file(self.path)
        mode = "rw" if os.access(self.path, os.W_OK) else "ro"
        with _said(self.path):
            connection = sqlite3.connect(
                f"{self.path.as_uri()}?mode={mode}", uri=True, timeout=_PATIENCE, isolation_level=None
            )
        with closing(connection):
            with _said(self.path):
                connection.execute("PRAGMA trusted_schema = OFF")
                connection.execute("PRAGMA journal_mode = DELETE")
                # FULL would let a power failure bring the journal of the last commit back: that is an entry lost
                connection.execute("PRAGMA synchronous = EXTRA")
                connection.execute("PRAGMA fullfsync = ON")  # macOS: through the cache of the drive
            yield connection

    @contextmanager
    def _noted(self, budget: str) -> Iterator[_Note]:
        """What this machine has noted of ``budget``, held against other processes of this machine."""
        place = state_folder() / "budgets" / budget
        lock = FileLock(f"{place}.lock", timeout=_PATIENCE, thread_local=False)
        try:
            place.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            lock.acquire()
        except Timeout as error:
            raise _busy(self.path) from error
        except OSError as error:
            raise _cannot_note(place, error) from error
        try:
            yield _Note(place)
        finally:
            lock.release()


@dataclass(frozen=True)
class _Note:
    """What was noted of a budget: its number of entries, the checksum of the last one, and where it was."""

    place: Path

    def check(self, chains: list[str], path: Path, budget: str) -> None:
        """Refuse a file at ``path`` that lacks what was noted, or is a second one."""
        try:
            noted = json.loads(self.place.read_bytes())
            length, chain, where = int(noted["length"]), str(noted["chain"]), Path(noted["path"])
        except FileNotFoundError:
            self.check_alone(path)
            return
        except (ValueError, LookupError, TypeError):
            raise LedgerError(
                f"The note of the budget at {self.place} is damaged.",
                why="Whether this file is the latest one is not known.",
                fix="If you are sure that no other copy of it was spent from, remove the note.",
            ) from None
        if len(chains) < length or chains[length - 1] != chain:
            raise LedgerError(
                f"The budget {path} lacks entries that this machine has seen.",
                why="It is an older copy, or was cut back: what was spent since would be spent a second time.",
                fix="Put the latest file back.",
            )
        if where != path:
            self.check_alone(path)
        if where != path and where.exists() and not where.samefile(path) and _has_id(where, budget):
            raise LedgerError(
                f"The budget {path} is a copy of {where}, which is still there.",
                why="Each of them would be spent, and the records are the same.",
                fix="Use that one. If it was moved, remove what was left behind.",
            )

    def check_alone(self, path: Path) -> None:
        """Refuse a file at ``path`` in place of another budget that was there and is gone."""
        for other in self.place.parent.glob("[0-9a-f]" * 32):
            there = False
            with suppress(OSError, ValueError, LookupError, TypeError):
                noted = json.loads(other.read_bytes())
                there = noted["path"] == str(path) and noted["length"] > 1
            if there and other != self.place:
                raise InputError(
                    f"This machine remembers another budget at {path}, in which runs were counted.",
                    why="Another one in its place begins at nothing, and the records are the same.",
                    fix="Put that one back; if it was moved, show it where it is now (adadp budget show). If it was "
                    f"for other data, choose another path for this one, or remove the note {other}.",
                )

    def write(self, length: int, chain: str, path: Path) -> None:
        """Note the file as it is now."""
        text = json.dumps({"length": length, "chain": chain, "path": str(path)})
        new = Path(f"{self.place}.new")
        try:
            if self.place.exists() and self.place.read_text(encoding="utf-8", errors="replace") == text:
                return
            with new.open("w", encoding="utf-8") as file:
                file.write(text)
                file.flush()
                force(file.fileno())
            new.replace(self.place)
        except OSError as error:
            raise _cannot_note(self.place, error) from error


def _insert(connection: sqlite3.Connection, entries: list[Entry], number: int, chain: str) -> str:
    """Add ``entries`` after the ``number`` that are there, the last with ``chain``; returns the new last checksum."""
    for number, entry in enumerate(entries, number + 1):  # noqa: B020, PLR1704
        text = json.dumps({"kind": entry.kind, **entry.body}, sort_keys=True, separators=(",", ":"), allow_nan=False)
        chain = _checksum(chain, number, text)
        connection.execute("INSERT INTO entries VALUES (?, ?, ?)", (number, text, chain))
    return chain


def _checksum(before: str, number: int, text: str) -> str:
    return hashlib.sha256(f"{before}\n{number}\n{text}".encode()).hexdigest()


def _chained(connection: sqlite3.Connection, path: Path) -> tuple[list[Entry], list[str]]:
    """All entries with their checksums, which hold."""
    entries, chains = list[Entry](), [""]
    for expected, (number, text, chain) in enumerate(
        connection.execute("SELECT number, entry, chain FROM entries ORDER BY number"), 1
    ):
        if number != expected or not isinstance(text, str) or chain != _checksum(chains[-1], number, text):
            raise _corrupt(path, f"entry {expected} was edited, or one before it was removed")
        entries.append(_decoded(text))
        chains.append(chain)
    if not entries:
        raise _corrupt(path, "it has no entries")
    return entries, chains[1:]


def _decoded(text: object) -> Entry:
    """An entry from its text; ValueError if it is none."""
    if not isinstance(text, str):
        raise ValueError("an entry is no text")
    try:
        body = json.loads(text)
        return Entry(str(body.pop("kind")), body)
    except (LookupError, AttributeError, TypeError, RecursionError) as error:
        raise ValueError(f"an entry cannot be read ({error})") from None


def _id_of(first: Entry, path: Path) -> str:
    """The id of the budget, which names the file of its note."""
    found = first.body.get("id")
    if first.kind != "create" or not isinstance(found, str) or len(found) != 32 or set(found) - set("0123456789abcdef"):
        raise _corrupt(path, "it does not begin with its terms")
    return found


def _has_id(path: Path, budget: str) -> bool:
    """Whether the file at ``path`` is that budget too; one that cannot be read might be."""
    try:
        with Store(path)._connected() as connection, _said(path):
            _check_form(connection, path)
            (text,) = connection.execute("SELECT entry FROM entries WHERE number = 1").fetchone() or ("",)
            return _decoded(text).body.get("id") == budget
    except (InputError, LedgerCorrupt):  # no file, or none of a budget
        return False


def _check_file(path: Path) -> None:
    try:
        size = path.stat().st_size if path.is_file() else None
    except OSError as error:
        raise _unusable(path, error) from error
    if size is None:
        raise InputError(f"There is no budget at {path}.", fix="Check the path, or make one with: adadp budget create.")
    if size > _LARGEST:
        raise _corrupt(path, "it is larger than any budget")


def _check_form(connection: sqlite3.Connection, path: Path) -> None:
    """Refuse a database with anything but the one table: a trigger could undo what was added."""
    if connection.execute("SELECT type, name, sql FROM sqlite_master").fetchall() != [("table", "entries", _TABLE)]:
        raise _corrupt(path, "it has other tables or triggers")


@contextmanager
def _said(path: Path) -> Iterator[None]:
    """What SQLite says, in the words of this package."""
    try:
        yield
    except sqlite3.OperationalError as error:
        if "locked" in str(error) or "busy" in str(error):
            raise _busy(path) from error
        if "no such table" in str(error):
            raise _corrupt(path, "it has no entries") from error
        raise LedgerError(
            f"The budget {path} cannot be used: {error}.",
            why="What is not on the disk as reserved must not be spent, and nothing was.",
            fix="Make room, or get the right to write there.",
        ) from error
    except (sqlite3.Error, ValueError) as error:
        raise _corrupt(path, str(error)) from error


def _busy(path: Path) -> LedgerBusy:
    return LedgerBusy(
        f"The budget {path} is being written by another process.",
        why="Two at once could reserve the same part of it.",
        fix="Try again. If it goes on, end the process that holds it.",
    )


def _corrupt(path: Path, why: str) -> LedgerCorrupt:
    return LedgerCorrupt(
        f"{path} is no budget that holds: {why}.",
        why="What has been spent is no longer known.",
        fix="Check the path, or put the latest copy back that holds.",
    )


def _cannot_note(place: Path, error: OSError) -> LedgerError:
    return LedgerError(
        f"The note of the budget at {place} cannot be written: {error.strerror or error}.",
        why="It keeps an older copy of the budget from being spent a second time.",
        fix=f"Make room there, or set the environment variable {FOLDER} to a folder that can be written.",
    )


def _unusable(path: Path, error: OSError) -> LedgerError:
    return LedgerError(
        f"The budget {path} cannot be used: {error.strerror or error}.", fix="Choose a folder you may write to."
    )
