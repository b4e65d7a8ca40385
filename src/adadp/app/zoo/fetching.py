"""Have the files of a data set, verified: from the cache, or from the first source that can give them.

Order: the folder the caller names, the cache, the entry's sources, the folder ADADP_DATA names. Of several forms of a
data set one that is whole in the named folder goes first, then one that is whole in the cache. Pooch checks every file
before it stands in the cache under its name, and asks an address again.

    what happens                          what is done
    all files verified in the cache       nothing is written, no lock is taken (the cache may be read-only)
    a file of the cache is corrupt        a warning, and the file is had again from a source
    a source gives wrong or too many      its bytes are thrown away and the next source is asked; files it gave before
      bytes, stops halfway, is silent       that were right are kept
    no source has a form of the data      the next form, an alternative with files of its own, is tried
    killed while downloading              what came (``.download``) is kept; the next fetch asks for the rest
    two processes at once                 one fetches, the others wait and find the cache filled
    no source can give a file             ``InputError`` with every source, why it failed, and how to get the data
    the cache cannot be written           ``InputError``, without asking the other sources
    a folder is named that is not there   ``InputError``: it is a typing error, not a reason to go elsewhere
    a folder is named for packaged files  ``InputError``: it would be ignored
"""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Generic, TypeVar, cast

import pooch
from filelock import FileLock
from pooch.core import stream_download
from requests import RequestException as ConnectionBroken

from adadp.app.zoo.description import PACKAGED, Entry
from adadp.app.zoo.sources import (
    FAILURES,
    UNREADABLE,
    DataFile,
    Folder,
    Lacking,
    Members,
    Source,
    SourceFailed,
    Workplace,
)
from adadp.errors import InputError

pooch.get_logger().setLevel("WARNING")  # progress is shown here, on a terminal only

StrPath = str | os.PathLike[str]
EntryT = TypeVar("EntryT", bound=Entry)


class FileState(str, Enum):
    """What was found where a file should be."""

    VERIFIED = "verified"
    MISSING = "missing"
    CORRUPT = "corrupt"


@dataclass(frozen=True, eq=False)
class Fetched(Generic[EntryT]):
    """Verified bytes of every file, where each came from, and the folder they lie in (None: inside the package).

    ``form`` is the entry, or the one of its alternatives, that could be had.
    """

    form: EntryT
    folder: Path | None
    origin: Mapping[str, str]
    contents: Mapping[str, bytes] = field(repr=False)


def cache_folder() -> Path:
    """``ADADP_CACHE``, or ``adadp`` in the folder where this system keeps a user's caches."""
    return Path(os.environ.get("ADADP_CACHE") or pooch.os_cache("adadp")).expanduser()


def inspect(entry: Entry, *, cache: StrPath | None = None) -> dict[str, FileState]:
    """The state of every file in the cache (or in the package), by reading it. Alternatives have their own."""
    return {file.name: _state(_bytes_of(file, entry, cache), file) for file in entry.files}


def cached_form(entry: EntryT, *, cache: StrPath | None = None) -> EntryT | None:
    """The first form of ``entry`` that is whole in the cache (or in the package), by reading it."""
    whole = {FileState.VERIFIED}
    return next((form for form in _forms(entry) if set(inspect(form, cache=cache).values()) == whole), None)


def fetch(entry: EntryT, *, cache: StrPath | None = None, source_dir: StrPath | None = None) -> Fetched[EntryT]:
    """All files of ``entry`` (or of an alternative), verified and cached. The table above says what may be amiss.

    ``cache`` takes the place of ``cache_folder()``; ``source_dir`` is asked before anything else. A form that is whole
    in the named folder goes first, then one that is whole in the cache, then their order.
    """
    if source_dir is not None and entry.packaged:
        raise InputError(f"{entry.name} comes with AdaDP; nothing is taken from {source_dir}.", fix="Leave it out.")
    forms = _forms(entry)
    if source_dir is not None:
        if not Path(source_dir).is_dir():
            raise InputError(f"There is no folder {source_dir}.", fix="Name the folder that holds the files.")
        folder = Folder(Path(source_dir), entry.name)
        forms.sort(key=lambda form: not all(map(folder.find, form.files)))
    elif entry.alternatives:
        here = cached_form(entry, cache=cache)
        forms.sort(key=lambda form: form is not here)
    failed: list[_NotHad] = []
    for form in forms:
        try:
            return _Order(form, cache).fetched(source_dir)
        except _NotHad as error:
            failed.append(error)
    raise _NotHad(failed[0].what, why="\nAnother form of it: ".join(error.why for error in failed), fix=failed[0].fix)


class _NotHad(InputError):
    """No source could give the files."""


class _Order(Generic[EntryT]):
    """One fetch under way: what was had so far, from where, and what failed."""

    def __init__(self, entry: EntryT, cache: StrPath | None) -> None:
        self._entry, self._cache = entry, cache
        self._folder = _folder_of(entry, cache)
        self._contents: dict[str, bytes] = {}
        self._origin: dict[str, str] = {}
        self._failures: list[str] = []

    def fetched(self, source_dir: StrPath | None) -> Fetched[EntryT]:
        if source_dir is None:
            self._take_cached()
        if self._missing and self._entry.packaged:
            raise InputError(
                f"{self._missing[0].name} of the data set {self._entry.name} is missing from the installed package, "
                "or was changed.",
                why=f"Its SHA-256 must be {self._missing[0].sha256}.",
                fix="Install AdaDP again.",
            )
        if self._missing:
            self._fetch(source_dir)
        if self._missing:
            raise self._not_had()
        return Fetched(self._entry, None if self._entry.packaged else self._folder, self._origin, self._contents)

    @property
    def _missing(self) -> list[DataFile]:
        return [file for file in self._entry.files if file.name not in self._contents]

    def _fetch(self, source_dir: StrPath | None) -> None:
        name, named = self._entry.name, os.environ.get("ADADP_DATA")
        sources = [*self._entry.sources, *([Folder(Path(named).expanduser(), name)] if named else [])]
        with closing(_Progress(name)) as progress:
            place = Workplace(self._folder, progress.show)
            try:
                self._folder.mkdir(parents=True, exist_ok=True)
                lock = FileLock(self._folder / ".lock").acquire()
            except OSError as error:
                raise place.cannot_write(error) from error
            with lock:
                if source_dir is not None:
                    self._ask(Folder(Path(source_dir), name), place)
                    for failure in self._failures:
                        warnings.warn(f"{failure}. Asking the other sources.", stacklevel=4)
                self._take_cached(remember=True)
                for source in sources:
                    self._ask(source, place)
                if (
                    not self._missing
                ):  # what an earlier source, or pooch when it was killed, left half done is of no use
                    for path in (*self._folder.glob("*.download"), *self._folder.glob("tmp*")):
                        path.unlink(missing_ok=True)

    def _take_cached(self, *, remember: bool = False) -> None:
        """Take what the cache holds, verified; ``remember`` what it does not, and warn of what is corrupt."""
        for file in self._missing:
            state = self._take(file, "package" if self._entry.packaged else "cache")
            if remember and state is not FileState.VERIFIED:
                self._failures.append(f"cache {self._folder}: {file.name} is {state.value}")
                if state is FileState.CORRUPT:
                    warnings.warn(f"{self._folder / file.name} is corrupt and is fetched again.", stacklevel=4)

    def _take(self, file: DataFile, origin: str) -> FileState:
        content = _bytes_of(file, self._entry, self._cache)
        state = _state(content, file)
        if content is not None and state is FileState.VERIFIED:
            self._contents[file.name], self._origin[file.name] = content, origin
        return state

    def _ask(self, source: Source, place: Workplace) -> None:
        """Ask ``source`` for what is missing; if it fails, keep what it gave and remember why."""
        if not self._missing:
            return
        place.tell(f"asking {source}")
        try:
            with source.opened(place) as members:
                for file in self._missing:
                    try:
                        self._store(file, members, place, source.retries)
                        self._take(file, str(source))
                    except Lacking as error:
                        self._failures.append(f"{source}: {error}")
        except FAILURES as error:
            self._failures.append(f"{source}: {error or type(error).__name__}")

    def _store(self, file: DataFile, members: Members, place: Workplace, retries: int) -> None:
        """Have pooch put ``file`` into the cache, under its own name only after its checksum held."""

        def write(_: str, target: str, __: object) -> None:
            try:
                with members(file) as stream:
                    content = file.read(stream)
            except UNREADABLE as error:
                if isinstance(error, ConnectionBroken):
                    raise
                raise _Unreadable(str(error) or type(error).__name__) from error
            Path(target).write_bytes(content)

        try:
            stream_download("", self._folder / file.name, f"sha256:{file.sha256}", write, retry_if_failed=retries)
        except (InputError, ConnectionBroken):
            raise
        except ValueError as error:
            said = str(error) if isinstance(error, _Unreadable) else f"{file.name} has the wrong checksum"
            raise SourceFailed(said) from error
        except OSError as error:
            raise place.cannot_write(error) from error

    def _not_had(self) -> _NotHad:
        name = self._entry.name
        names = ", ".join(file.name for file in self._missing)
        tried = "".join(f"\n    - {failure}" for failure in self._failures)
        return _NotHad(
            f"{name} could not be had: {names}.",
            why=f"Every source failed:{tried}",
            fix=f"Run 'adadp data fetch {name}' where one of these sources can be reached, bring its files here, and "
            f"run 'adadp data fetch {name} --from DIR', or set ADADP_DATA=DIR. DIR holds the files, raw or gzipped.",
        )


class _Unreadable(ValueError):
    """What pooch takes as a reason to ask again."""


class _Progress:
    """One line on a terminal that says what is under way; nothing where there is no terminal."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._shown = False

    def show(self, text: str) -> None:
        if sys.stderr.isatty():
            self._shown = True
            print(f"\r\033[K{self._name}: {text}", end="", file=sys.stderr, flush=True)

    def close(self) -> None:
        if self._shown:
            print("\r\033[K", end="", file=sys.stderr, flush=True)


def _forms(entry: EntryT) -> list[EntryT]:
    return [entry, *cast("tuple[EntryT, ...]", entry.alternatives)]


def _state(content: bytes | None, file: DataFile) -> FileState:
    if content is None:
        return FileState.MISSING
    return FileState.VERIFIED if file.holds(content) else FileState.CORRUPT


def _folder_of(entry: Entry, cache: StrPath | None) -> Path:
    return (cache_folder() if cache is None else Path(cache)) / entry.name


def _bytes_of(file: DataFile, entry: Entry, cache: StrPath | None) -> bytes | None:
    path = (PACKAGED if entry.packaged else _folder_of(entry, cache)) / file.name
    try:
        return path.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error}.", fix="Remove it, or give the right to read it.") from error
