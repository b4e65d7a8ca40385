"""Have the files of a data set, verified: from the cache, or from the first source that can give them.

Order: the folder the caller names, the cache, the entry's sources, the folder ADADP_DATA names.

    what happens                          what is done
    all files verified in the cache       nothing is written, no lock is taken (the cache may be read-only)
    a file of the cache is corrupt        a warning, and the file is had again from a source
    a source gives wrong or too many      its bytes are thrown away and the next source is asked; files it gave before
      bytes, stops halfway, is silent       that were right are kept
    killed while writing                  a ``.part`` file is left, which the next fetch overwrites
    two processes at once                 one fetches, the others wait and find the cache filled
    no source can give a file             ``InputError`` with every source, why it failed, and how to get the data
    the cache cannot be written           ``InputError``, without asking the other sources
    a folder is named that is not there   ``InputError``: it is a typing error, not a reason to go elsewhere
    a folder is named for packaged files  ``InputError``: it would be ignored
"""

from __future__ import annotations

import hashlib
import os
import sys
import warnings
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from enum import Enum
from importlib import resources
from pathlib import Path

from filelock import FileLock

from adadp.errors import InputError
from adadp.zoo.description import DataSet
from adadp.zoo.sources import FAILURES, DataFile, Folder, Readable, Source, SourceFailed

CHUNK = 1 << 18


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
    """The state of every file in the cache (or in the package), by reading it."""
    if entry.packaged:
        return {file.name: _state(_packaged(file), file) for file in entry.files}
    folder = _folder_of(entry, cache)
    return {file.name: _state(_bytes_of(folder / file.name), file) for file in entry.files}


def fetch(
    entry: DataSet,
    *,
    cache: str | os.PathLike[str] | None = None,
    source_dir: str | os.PathLike[str] | None = None,
) -> Fetched:
    """All files of ``entry``, verified and cached. The table above says what happens when something is amiss.

    ``cache`` takes the place of ``cache_folder()``; ``source_dir`` is asked before anything else.
    """
    if entry.packaged:
        return _from_package(entry, source_dir)
    order = _Order(entry, _folder_of(entry, cache))
    if source_dir is None:
        order.take_cached()
        if not order.missing:
            return order.fetched()
    elif not Path(source_dir).is_dir():
        raise InputError(f"There is no folder {source_dir}.", fix="Name the folder that holds the files.")
    with _writing(order.folder):
        order.folder.mkdir(parents=True, exist_ok=True)
        lock = FileLock(order.folder / ".lock")
        lock.acquire()
    with closing(_Progress(entry.name)) as progress:
        try:
            if source_dir is not None:
                order.ask(Folder(Path(source_dir), entry.name), progress)
                order.warn_of_failures()
            order.take_cached(remember=True)
            for source in (*entry.sources, *_named_by_environment(entry)):
                order.ask(source, progress)
        finally:
            lock.release()
    return order.fetched()


class _Order:
    """One fetch under way: what was had so far, from where, and what failed."""

    def __init__(self, entry: DataSet, folder: Path) -> None:
        self.entry = entry
        self.folder = folder
        self._contents: dict[str, bytes] = {}
        self._origin: dict[str, str] = {}
        self._failures: list[str] = []

    @property
    def missing(self) -> list[DataFile]:
        return [file for file in self.entry.files if file.name not in self._contents]

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

    def ask(self, source: Source, progress: _Progress) -> None:
        """Ask ``source`` for what is missing; if it fails, keep what it gave and remember why."""
        if not self.missing:
            return
        progress.show(f"asking {source}")
        try:
            with closing(source.streams(self.missing)) as streams:
                for file, stream in streams:
                    self._contents[file.name] = _store(stream, file, self.folder, progress)
                    self._origin[file.name] = str(source)
        except FAILURES as error:
            self._failures.append(f"{source}: {error or type(error).__name__}")

    def warn_of_failures(self) -> None:
        for failure in self._failures:
            warnings.warn(f"{failure}. Asking the other sources.", stacklevel=3)

    def fetched(self) -> Fetched:
        """What was had, or the error that says how to get what was not."""
        if not self.missing:
            return Fetched(self.folder, self._origin, self._contents)
        names = ", ".join(file.name for file in self.missing)
        tried = "".join(f"\n    - {failure}" for failure in self._failures)
        raise InputError(
            f"The data set {self.entry.name} could not be had: {names}.",
            why=f"Every source failed:{tried}",
            fix=f"Run 'adadp data fetch {self.entry.name}' where one of these sources can be reached, bring its files "
            f"here, and run 'adadp data fetch {self.entry.name} --from DIR', or set ADADP_DATA=DIR. DIR holds the "
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


def _store(stream: Readable, file: DataFile, folder: Path, progress: _Progress) -> bytes:
    """Copy ``stream`` into the cache, under its own name only after its checksum held; give its bytes back."""
    part = folder / f"{file.name}.part"
    content = bytearray()
    with _writing(folder):
        try:
            with part.open("wb") as target:
                for chunk in _chunks(stream):
                    content += chunk
                    if len(content) > file.size:
                        raise SourceFailed(f"{file.name} has more than its {file.size} bytes")
                    target.write(chunk)
                    progress.show(f"{file.name} {len(content) / file.size:4.0%}")
            if _state(content, file) is not FileState.VERIFIED:
                raise SourceFailed(f"{file.name} ({len(content)} of {file.size} bytes) has the wrong checksum")
            part.replace(folder / file.name)
        finally:
            part.unlink(missing_ok=True)
    return bytes(content)


def _chunks(stream: Readable) -> Iterator[bytes]:
    """Pieces of ``stream``. What goes wrong in reading is the source's failure, not the cache's."""
    while True:
        try:
            chunk = stream.read(CHUNK)
        except FAILURES as error:
            raise SourceFailed(str(error) or type(error).__name__) from error
        if not chunk:
            return
        yield chunk


@contextmanager
def _writing(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise InputError(
            f"The cache {folder} cannot be written: {error}.",
            why="Data sets are kept there so that they are fetched once.",
            fix="Make room or give the right to write, or set ADADP_CACHE to another folder.",
        ) from error


def _state(content: bytes | bytearray | None, file: DataFile) -> FileState:
    if content is None:
        return FileState.MISSING
    matches = hashlib.sha256(content).hexdigest() == file.sha256
    return FileState.VERIFIED if matches else FileState.CORRUPT


def _bytes_of(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error}.", fix="Remove it, or give the right to read it.") from error


def _folder_of(entry: DataSet, cache: str | os.PathLike[str] | None) -> Path:
    return (cache_folder() if cache is None else Path(cache)) / entry.name


def _named_by_environment(entry: DataSet) -> list[Source]:
    folder = os.environ.get("ADADP_DATA")
    return [Folder(Path(folder).expanduser(), entry.name)] if folder else []


def _packaged(file: DataFile) -> bytes | None:
    place = resources.files("adadp.zoo") / "files" / file.name
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
