"""Members of archives by name: tar (also the one inside a Debian package) and zip. Nothing is unpacked to disk."""

from __future__ import annotations

import io
import tarfile
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TypeAlias

from adadp.app.zoo.sources import Lacking, SourceFailed

Members: TypeAlias = Callable[[str], IO[bytes]]
"""An open archive: from the name of a member to a stream of its bytes, or ``Lacking``."""

_AR_START = b"!<arch>\n"
_AR_HEADER = 60


@contextmanager
def open_tar(path: Path) -> Iterator[Members]:
    """A tar file, zipped in any way ``tarfile`` knows."""
    with tarfile.open(path) as archive:
        yield _of_tar(archive)


@contextmanager
def open_zip(path: Path) -> Iterator[Members]:
    """A zip file, which a wheel is."""
    with zipfile.ZipFile(path) as archive:

        def member(name: str) -> IO[bytes]:
            if name not in archive.namelist():
                raise Lacking(f"the archive holds no file {name}")
            return archive.open(name)

        yield member


@contextmanager
def open_deb(path: Path) -> Iterator[Members]:
    """The files a Debian package would install: an ar archive whose member ``data.tar.*`` is a tar of them."""
    content = path.read_bytes()
    if not content.startswith(_AR_START):
        raise SourceFailed("this is no Debian package")
    at = len(_AR_START)
    while len(header := content[at : at + _AR_HEADER]) == _AR_HEADER:
        size = header[48:58].strip()
        if not size.isdigit():
            break
        start = at + _AR_HEADER
        if header.startswith(b"data.tar"):
            with tarfile.open(fileobj=io.BytesIO(content[start : start + int(size)])) as archive:
                yield _of_tar(archive)
            return
        at = start + int(size) + int(size) % 2
    raise SourceFailed("the Debian package holds no data.tar")


def _of_tar(archive: tarfile.TarFile) -> Members:
    names = {name.removeprefix("./"): name for name in archive.getnames()}

    def member(name: str) -> IO[bytes]:
        stream = archive.extractfile(names[name]) if name in names else None
        if stream is None:
            raise Lacking(f"the archive holds no file {name}")
        return stream

    return member
