"""Have the files of a data set, verified: from the cache, or from the first source that can give them.

Order: the folder the caller names, the cache, the entry's sources, the folder ADADP_DATA names. Of several forms of a
data set one that is whole in the named folder goes first, then one that is whole in the cache.

    what happens                          what is done
    all files verified in the cache       nothing is written, no lock is taken (the cache may be read-only)
    a file of the cache is corrupt        a warning, and the file is had again from a source
    a source gives wrong or too many      its bytes are thrown away and the next source is asked; files it gave before
      bytes, stops halfway, is silent       that were right are kept
    no source has a form of the data      the next form, an alternative with files of its own, is tried
    killed while writing                  a ``.part`` file is left, which the next fetch overwrites; of a download
                                            (``.download``) the next fetch asks for the rest
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
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from enum import Enum
from importlib import resources
from pathlib import Path

from filelock import FileLock

from adadp.app.zoo.description import DataSet
from adadp.app.zoo.sources import FAILURES, DataFile, Folder, Readable, Source, Workplace, read_verified
from adadp.errors import InputError


class FileState(str, Enum):
    """What was found where a file should be."""

    VERIFIED = "verified"
    MISSING = "missing"
    CORRUPT = "corrupt"


@dataclass(frozen=True, eq=False)
class Fetched:
    """Verified bytes of every file, where each came from, and the folder they lie in (None: inside the package)."""

    folder: Path | None
    origin: Mapping[str, str]
    contents: Mapping[str, bytes] = field(repr=False)


def cache_folder(environment: Mapping[str, str] = os.environ, platform: str = sys.platform) -> Path:
    """``ADADP_CACHE``, or ``adadp`` in the folder where this system keeps a user's caches."""
    if environment.get("ADADP_CACHE"):
        return Path(environment["ADADP_CACHE"]).expanduser()
    if platform == "win32" and environment.get("LOCALAPPDATA"):
        return Path(environment["LOCALAPPDATA"]) / "adadp" / "Cache"
    if platform == "darwin":
        return Path.home() / "Library" / "Caches" / "adadp"
    if environment.get("XDG_CACHE_HOME"):
        return Path(environment["XDG_CACHE_HOME"]) / "adadp"
    return Path.home() / ".cache" / "adadp"


def inspect(entry: DataSet, *, cache: str | os.PathLike[str] | None = None) -> dict[str, FileState]:
    """The state of every file in the cache (or in the package), by reading it. Alternatives have their own."""
    if entry.packaged:
        return {file.name: _state(_packaged(file), file) for file in entry.files}
    return inspect_files(entry.name, entry.files, cache=cache)


def inspect_files(
    name: str, files: Sequence[DataFile], *, cache: str | os.PathLike[str] | None = None
) -> dict[str, FileState]:
    """The state of every one of ``files`` in the folder ``name`` of the cache."""
    folder = _folder_of(name, cache)
    return {file.name: _state(_bytes_of(folder / file.name), file) for file in files}


def cached_form(entry: DataSet, *, cache: str | os.PathLike[str] | None = None) -> DataSet | None:
    """The first form of ``entry`` that is whole in the cache (or in the package), by reading it."""
    forms = (entry, *entry.alternatives)
    return next((form for form in forms if set(inspect(form, cache=cache).values()) == {FileState.VERIFIED}), None)


def fetch(
    entry: DataSet,
    *,
    cache: str | os.PathLike[str] | None = None,
    source_dir: str | os.PathLike[str] | None = None,
) -> Fetched:
    """All files of ``entry`` (or of an alternative), verified and cached. The table above says what may be amiss.

    ``cache`` takes the place of ``cache_folder()``; ``source_dir`` is asked before anything else.
    """
    return fetch_form(entry, cache=cache, source_dir=source_dir)[1]


def fetch_form(
    entry: DataSet,
    *,
    cache: str | os.PathLike[str] | None = None,
    source_dir: str | os.PathLike[str] | None = None,
) -> tuple[DataSet, Fetched]:
    """The same, with the form of the data set that could be had: ``entry``, or one of its alternatives.

    A form that is whole in the named folder goes first, then one that is whole in the cache, then their order.
    """
    if entry.packaged:
        return entry, _from_package(entry, source_dir)
    forms = [entry, *entry.alternatives]
    if source_dir is not None:
        folder = Folder(Path(source_dir), entry.name)
        forms.sort(key=lambda form: not folder.has(form.files))
    elif entry.alternatives:
        here = cached_form(entry, cache=cache)
        forms.sort(key=lambda form: form is not here)
    failed: list[NotHad] = []
    for form in forms:
        try:
            return form, fetch_files(form.name, form.files, form.sources, cache=cache, source_dir=source_dir)
        except NotHad as error:
            failed.append(error)
    raise NotHad(failed[0].what, why="\nAnother form of it: ".join(error.why for error in failed), fix=failed[0].fix)


def fetch_files(
    name: str,
    files: Sequence[DataFile],
    sources: Sequence[Source],
    *,
    cache: str | os.PathLike[str] | None = None,
    source_dir: str | os.PathLike[str] | None = None,
) -> Fetched:
    """``files``, verified and cached in the folder ``name``: what is no data set, such as weights, is had this way."""
    order = _Order(name, files, _folder_of(name, cache))
    if source_dir is None:
        order.take_cached()
        if not order.missing:
            return order.fetched()
    elif not Path(source_dir).is_dir():
        raise InputError(f"There is no folder {source_dir}.", fix="Name the folder that holds the files.")
    with closing(_Progress(name)) as progress:
        place = Workplace(order.folder, progress.show)
        with place.writing():
            order.folder.mkdir(parents=True, exist_ok=True)
            lock = FileLock(order.folder / ".lock")
            lock.acquire()
        try:
            if source_dir is not None:
                order.ask(Folder(Path(source_dir), name), place)
                order.warn_of_failures()
            order.take_cached(remember=True)
            for source in (*sources, *_named_by_environment(name)):
                order.ask(source, place)
            order.clear_unfinished()
        finally:
            lock.release()
    return order.fetched()


class NotHad(InputError):
    """No source could give the files."""


class _Order:
    """One fetch under way: what was had so far, from where, and what failed."""

    def __init__(self, name: str, files: Sequence[DataFile], folder: Path) -> None:
        self.name = name
        self.folder = folder
        self._files = files
        self._contents: dict[str, bytes] = {}
        self._origin: dict[str, str] = {}
        self._failures: list[str] = []

    @property
    def missing(self) -> list[DataFile]:
        return [file for file in self._files if file.name not in self._contents]

    def take_cached(self, *, remember: bool = False) -> None:
        """Take what the cache holds, verified; ``remember`` what it does not, and warn of what is corrupt."""
        for file in self.missing:
            content = _bytes_of(self.folder / file.name)
            state = _state(content, file)
            if state is FileState.VERIFIED and content is not None:
                self._contents[file.name] = content
                self._origin[file.name] = "cache"
            elif remember:
                self._failures.append(f"cache {self.folder}: {file.name} is {state.value}")
                if state is FileState.CORRUPT:
                    warnings.warn(f"{self.folder / file.name} is corrupt and is fetched again.", stacklevel=3)

    def ask(self, source: Source, place: Workplace) -> None:
        """Ask ``source`` for what is missing; if it fails, keep what it gave and remember why."""
        if not self.missing:
            return
        place.tell(f"asking {source}")
        try:
            with closing(source.streams(self.missing, place)) as streams:
                for file, stream in streams:
                    self._contents[file.name] = _store(stream, file, place)
                    self._origin[file.name] = str(source)
        except FAILURES as error:
            self._failures.append(f"{source}: {error or type(error).__name__}")

    def warn_of_failures(self) -> None:
        for failure in self._failures:
            warnings.warn(f"{failure}. Asking the other sources.", stacklevel=4)

    def clear_unfinished(self) -> None:
        """Once every file is here, what an earlier source left half done is of no use."""
        if not self.missing:
            for path in self.folder.glob("*.download"):
                path.unlink(missing_ok=True)

    def fetched(self) -> Fetched:
        """What was had, or the error that says how to get what was not."""
        if not self.missing:
            return Fetched(self.folder, self._origin, self._contents)
        names = ", ".join(file.name for file in self.missing)
        tried = "".join(f"\n    - {failure}" for failure in self._failures)
        raise NotHad(
            f"{self.name} could not be had: {names}.",
            why=f"Every source failed:{tried}",
            fix=f"Run 'adadp data fetch {self.name}' where one of these sources can be reached, bring its files "
            f"here, and run 'adadp data fetch {self.name} --from DIR', or set ADADP_DATA=DIR. DIR holds the "
            "files, raw or gzipped.",
        )


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


def _store(stream: Readable, file: DataFile, place: Workplace) -> bytes:
    """Copy ``stream`` into the cache, under its own name only after its checksum held; give its bytes back."""
    part = place.folder / f"{file.name}.part"
    with place.writing():
        try:
            with part.open("wb") as target:

                def keep(chunk: bytes) -> None:
                    target.write(chunk)
                    place.tell(f"{file.name} {target.tell() / file.size:4.0%}")

                content = read_verified(file, stream, keep)
            part.replace(place.folder / file.name)
        finally:
            part.unlink(missing_ok=True)
    return content


def _state(content: bytes | bytearray | None, file: DataFile) -> FileState:
    if content is None:
        return FileState.MISSING
    return FileState.VERIFIED if file.holds(content) else FileState.CORRUPT


def _bytes_of(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error}.", fix="Remove it, or give the right to read it.") from error


def _folder_of(name: str, cache: str | os.PathLike[str] | None) -> Path:
    return (cache_folder() if cache is None else Path(cache)) / name


def _named_by_environment(name: str) -> list[Source]:
    folder = os.environ.get("ADADP_DATA")
    return [Folder(Path(folder).expanduser(), name)] if folder else []


def _packaged(file: DataFile) -> bytes | None:
    place = resources.files("adadp.app.zoo") / "files" / file.name
    return place.read_bytes() if place.is_file() else None


def _from_package(entry: DataSet, source_dir: str | os.PathLike[str] | None) -> Fetched:
    if source_dir is not None:
        raise InputError(f"{entry.name} comes with AdaDP; nothing is taken from {source_dir}.", fix="Leave it out.")
    contents = {}
    for file in entry.files:
        content = _packaged(file)
        if content is None or _state(content, file) is not FileState.VERIFIED:
            raise InputError(
                f"{file.name} of the data set {entry.name} is missing from the installed package, or was changed.",
                why=f"Its SHA-256 must be {file.sha256}.",
                fix="Install AdaDP again.",
            )
        contents[file.name] = content
    return Fetched(None, dict.fromkeys(contents, "package"), contents)
