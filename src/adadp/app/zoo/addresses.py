"""Files from an address, over HTTP. What a broken connection left is kept, and the next fetch goes on from there.

what happens                              what is done
the connection breaks, or falls silent    what came is kept as ``NAME.download``; the next fetch asks for the rest
the server ignores that (HTTP Range), or  the file is downloaded from its start
  sends another piece
the pieces do not make the file           it is downloaded again from its start
the server sends without end              it has failed where the file would be too long; nothing is kept
a whole download is wrong                 it has failed; nothing is kept
"""

from __future__ import annotations

import gzip
import urllib.request
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from http.client import HTTPResponse
from pathlib import Path
from typing import IO, cast
from urllib.error import HTTPError

from adadp.app.zoo.archives import Members, open_tar
from adadp.app.zoo.sources import FAILURES, DataFile, Source, SourceFailed, Streams, Workplace, chunks, read_verified

_PARTIAL = 206
_RANGE_NOT_SATISFIABLE = 416


class _Downloads(Source):
    """What ``Address`` and ``TarAddress`` share: whole downloads on disk, resumed, then opened."""

    silence: float

    @abstractmethod
    def downloads(self, files: Sequence[DataFile]) -> list[tuple[str, int, Sequence[DataFile]]]:
        """What to download for ``files``: an address, the most bytes it may have, and which of the files are in it."""

    @abstractmethod
    def opened(self, path: Path) -> AbstractContextManager[Members]:
        """A download, opened: from the name of a file in it to a stream of its bytes."""

    def streams(self, files: Sequence[DataFile], place: Workplace) -> Streams:
        for url, most, inside in self.downloads(files):
            path = place.folder / f"{url.rpartition('/')[2]}.download"
            begun = path.exists()
            _download(url, path, most, self.silence, place)
            if begun and not self._makes(inside, path):
                path.unlink()
                _download(url, path, most, self.silence, place)
            try:
                with self.opened(path) as members:
                    for file in inside:
                        with members(file.name) as stream:
                            yield file, stream
            finally:
                path.unlink()

    def _makes(self, files: Sequence[DataFile], path: Path) -> bool:
        """Whether the download holds what it should."""
        try:
            with self.opened(path) as members:
                for file in files:
                    with members(file.name) as stream:
                        read_verified(file, stream)
        except FAILURES:
            return False
        return True


@dataclass(frozen=True)
class Address(_Downloads):
    """``base`` + file name + ``suffix`` over HTTP; gzipped when the suffix is ``.gz``.

    It has failed after ``silence`` seconds without an answer, to the call or in the middle of a file.
    """

    base: str
    suffix: str = ".gz"
    silence: float = 5.0

    def __str__(self) -> str:
        return self.base

    def downloads(self, files: Sequence[DataFile]) -> list[tuple[str, int, Sequence[DataFile]]]:
        # Zipping what cannot be made smaller adds less than a thousandth and a header.
        return [(self.base + file.name + self.suffix, file.size + file.size // 100 + 1000, (file,)) for file in files]

    @contextmanager
    def opened(self, path: Path) -> Iterator[Members]:
        def member(_: str) -> IO[bytes]:
            return cast(IO[bytes], gzip.open(path)) if self.suffix == ".gz" else path.open("rb")

        yield member


@dataclass(frozen=True)
class TarAddress(_Downloads):
    """``folder`` of a tar file of ``size`` bytes at the address ``url``."""

    url: str
    size: int
    folder: str
    silence: float = 5.0

    def __str__(self) -> str:
        return self.url

    def downloads(self, files: Sequence[DataFile]) -> list[tuple[str, int, Sequence[DataFile]]]:
        return [(self.url, self.size, files)]

    @contextmanager
    def opened(self, path: Path) -> Iterator[Members]:
        with open_tar(path) as members:
            yield lambda name: members(f"{self.folder}/{name}")


def _download(url: str, path: Path, most: int, silence: float, place: Workplace) -> None:
    """Have all bytes of ``url`` in ``path``, which may hold some of them; at most ``most``."""
    answer, had = _answer(url, path.stat().st_size if path.is_file() else 0, silence)
    length = answer.headers.get("Content-Length", "")
    whole = had + int(length) if length.isdigit() else None
    with answer, place.writing(), path.open("ab") as target:
        target.truncate(had)
        for chunk in chunks(answer):
            had += len(chunk)
            if had > most:
                break
            target.write(chunk)
            place.tell(f"{path.stem} {had / 1e6:.1f} MB" if whole is None else f"{path.stem} {had / whole:4.0%}")
    if had > most:
        path.unlink()
        raise SourceFailed(f"{url} has more than {most} bytes")
    if whole is not None and had < whole:
        raise SourceFailed(f"the connection ended before the end, after {had} of {whole} bytes")


def _answer(url: str, had: int, silence: float) -> tuple[HTTPResponse, int]:
    """The server's answer, without the first ``had`` bytes if it can, and how many bytes it leaves out."""
    request = urllib.request.Request(url, headers={"User-Agent": "adadp"})
    if had:
        request.add_header("Range", f"bytes={had}-")
    try:
        answer: HTTPResponse = urllib.request.urlopen(request, timeout=silence)
    except HTTPError as error:
        with error:
            if not had or error.code != _RANGE_NOT_SATISFIABLE:
                raise
        return _answer(url, 0, silence)
    return answer, had if answer.status == _PARTIAL else 0
