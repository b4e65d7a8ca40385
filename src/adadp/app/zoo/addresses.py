"""Files from an address, over HTTP. What a broken connection left is kept, and the next attempt goes on from there.

what happens                              what is done
nothing answers, or not with the file     it has failed
the connection breaks, or falls silent    what came is kept as ``NAME.download``; the next attempt asks for the rest
the server ignores that (HTTP Range)      the file is downloaded from its start
the bytes are not those of the file       it is downloaded again from its start, once
the server sends without end              it has failed where the file would be too long; nothing is kept
a byte comes now and then                 it has failed after a minute and what the file takes at 20 kB a second; what
                                          came is kept
an address that is not of HTTP, also      it has failed: nothing else is opened
one the server sends us on to
"""

from __future__ import annotations

import gzip
import io
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from time import monotonic
from typing import IO, Any, ClassVar, cast

import pooch
from requests import RequestException

from adadp.app.zoo import archives
from adadp.app.zoo.sources import DataFile, Members, Source, SourceFailed, Workplace

_CHUNK = 1 << 13
_WHOLE = 200
_RANGE_NOT_SATISFIABLE = 416
_PATIENCE, _SLOWEST = 60.0, 20_000
"""Seconds for any file, and the bytes a second that a download must have on top of these."""


@dataclass(frozen=True)
class Address(Source):
    """``base`` + file name + ``suffix`` over HTTP; gzipped when the suffix is ``.gz``.

    It has failed after ``silence`` seconds without an answer, to the call or in the middle of a file.
    """

    base: str
    suffix: str = ".gz"
    silence: float = 5.0
    retries: ClassVar[int] = 1

    def __str__(self) -> str:
        return self.base

    @contextmanager
    def opened(self, place: Workplace) -> Iterator[Members]:
        def member(file: DataFile) -> IO[bytes]:
            # Zipping what cannot be made smaller adds less than a thousandth and a header.
            most = file.size + file.size // 100 + 1000
            path = _download(self.base + file.name + self.suffix, most, self.silence, place)
            content = io.BytesIO(path.read_bytes())
            path.unlink()
            return cast(IO[bytes], gzip.GzipFile(fileobj=content)) if self.suffix == ".gz" else content

        yield member


@dataclass(frozen=True)
class TarAddress(Source):
    """``folder`` of a tar file of ``size`` bytes at the address ``url``."""

    url: str
    size: int
    folder: str
    silence: float = 5.0
    retries: ClassVar[int] = 1

    def __str__(self) -> str:
        return self.url

    @contextmanager
    def opened(self, place: Workplace) -> Iterator[Members]:
        members: archives.Members | None = None

        def member(file: DataFile) -> IO[bytes]:
            nonlocal members
            if members is None:
                with ExitStack() as opening:
                    path = _download(self.url, self.size, self.silence, place)
                    opening.callback(path.unlink)
                    members = opening.enter_context(archives.open_tar(path))
                    archive.push(opening.pop_all())
            return members(f"{self.folder}/{file.name}")

        with ExitStack() as archive:
            yield member


class _TooSlow(SourceFailed):
    """What would not end in a sensible time."""


def _download(url: str, most: int, silence: float, place: Workplace) -> Path:
    """A file with all bytes of ``url``, at most ``most``, in the folder of ``place``, which may hold some of them."""
    path = place.folder / f"{url.rpartition('/')[2]}.download"
    try:
        with path.open("ab") as target:

            def answered(response: Any, **_: Any) -> None:
                if response.status_code in (_WHOLE, _RANGE_NOT_SATISFIABLE):
                    target.truncate(0)
                    bar.begun = 0
                response.raw.headers.pop("Content-Encoding", None)  # a zipped file is unzipped here, and once
                response.raw.stream = partial(_as_it_comes, response.raw)

            bar = _Bar(path.stem, target, most, place, monotonic() + _PATIENCE + most / _SLOWEST, begun=target.tell())
            asked = {"Accept-Encoding": "identity"} | ({"Range": f"bytes={bar.begun}-"} if bar.begun else {})
            options = {"headers": asked, "hooks": {"response": answered}, "timeout": silence, "chunk_size": _CHUNK}
            pooch.HTTPDownloader(bar, **options)(url, target, None)
    except _TooSlow:
        raise  # what came is kept
    except SourceFailed:
        path.unlink()
        raise
    except RequestException as error:
        if error.response is not None and error.response.status_code == _RANGE_NOT_SATISFIABLE:
            return _download(url, most, silence, place)  # of nothing kept: the answer was no piece
        if path.stat().st_size:
            raise
        path.unlink()
        raise SourceFailed(str(error)) from error
    except OSError as error:
        raise place.cannot_write(error) from error
    return path


def _as_it_comes(stream: Any, most: int, **_: Any) -> Iterator[bytes]:
    """The bytes of ``stream`` as they arrive: who waits for a whole block waits for each of its bytes."""
    while block := stream.read1(most):
        yield block


@dataclass
class _Bar:
    """What pooch tells of a download: shown, and stopped where it is too long."""

    name: str
    target: IO[bytes]
    most: int
    place: Workplace
    until: float
    begun: int
    total: int = 0

    def update(self, _: int) -> None:
        had, whole = self.target.tell(), self.begun + self.total
        if had > self.most:
            raise SourceFailed(f"{self.name} has more than {self.most} bytes")
        if monotonic() > self.until:
            raise _TooSlow(f"{self.name} comes too slowly")
        self.place.tell(f"{self.name} {had / whole:4.0%}" if self.total else f"{self.name} {had / 1e6:.1f} MB")

    def reset(self) -> None:
        """Pooch counts from 0 to say the end; the file knows."""

    def close(self) -> None:
        """The line is cleared after the last file."""
