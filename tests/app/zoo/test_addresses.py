"""Downloads from an address: gone on with after a break, never trusted, never endless; and members of a tar there."""

from __future__ import annotations

import gzip

import numpy as np
import pytest
from stand_ins import FILES, tar_of

from adadp.app.zoo import addresses, fetch
from adadp.app.zoo.addresses import Address, TarAddress
from adadp.errors import InputError

ZIPPED = gzip.compress(FILES["b.bin"])
KEPT = "b.bin.gz.download"


AFTER = 49_152
"""Bytes after which a connection breaks: whole chunks are kept."""


def break_off(entry, server, cache, after=AFTER):
    """A fetch whose connection breaks in the second file, for good."""
    server.cut = after
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(entry.sources[0]), "retries", 0)
        with pytest.raises(InputError, match=rf"IncompleteRead\({after} bytes read"):
            fetch(entry, cache=cache)
    server.cut = None
    server.asked.clear()
    server.rests.clear()
    return cache / "tiny" / KEPT


def whole(cache):
    return {path.name: path.read_bytes() for path in (cache / "tiny").iterdir() if path.name != ".lock"} == FILES


def test_a_download_goes_on_where_it_broke_off(tiny, server, tmp_path):
    server.ranges = "give"
    entry = tiny(Address(server.base))
    kept = break_off(entry, server, tmp_path)
    assert kept.read_bytes() == server.answers["/b.bin.gz"][:AFTER]
    assert fetch(entry, cache=tmp_path).contents == FILES
    assert (server.asked, server.rests) == (["/b.bin.gz"], [f"bytes={AFTER}-"])
    assert whole(tmp_path)


@pytest.mark.usefixtures("two_attempts")
def test_a_connection_that_breaks_is_resumed_at_once(tiny, server, tmp_path):
    server.ranges, server.cut = "give", 65_536
    assert fetch(tiny(Address(server.base)), cache=tmp_path).contents == FILES
    assert server.rests == [None, None, "bytes=65536-"]
    assert whole(tmp_path)


@pytest.mark.usefixtures("two_attempts")
@pytest.mark.parametrize("suffix", [".gz", ""])
def test_a_zipped_file_is_unzipped_once_whatever_the_server_calls_it(tiny, server, tmp_path, suffix):
    server.answers |= {f"/{name}": content for name, content in FILES.items()}
    server.encoding = "x-gzip" if suffix else None
    assert fetch(tiny(Address(server.base, suffix=suffix)), cache=tmp_path).contents == FILES


def test_a_download_may_break_off_twice(tiny, server, tmp_path):
    server.ranges = "give"
    entry = tiny(Address(server.base))
    kept = break_off(entry, server, tmp_path)
    server.cut = 16_384
    with pytest.raises(InputError, match="IncompleteRead"):
        fetch(entry, cache=tmp_path)
    assert kept.stat().st_size == AFTER + 16_384
    server.cut = None
    assert fetch(entry, cache=tmp_path).contents == FILES
    assert server.rests == [f"bytes={AFTER}-", f"bytes={AFTER + 16_384}-"]


def test_a_server_that_gives_no_pieces_is_asked_for_the_whole(tiny, server, tmp_path):
    entry = tiny(Address(server.base))
    break_off(entry, server, tmp_path)
    assert fetch(entry, cache=tmp_path).contents == FILES
    assert server.rests == [f"bytes={AFTER}-"], "its answer is the whole file, no second one is needed"
    assert whole(tmp_path)


def test_a_piece_that_does_not_start_where_it_should_is_not_used(two_attempts, tiny, server, tmp_path):
    server.ranges = "another"
    entry = tiny(Address(server.base))
    break_off(entry, server, tmp_path)
    assert fetch(entry, cache=tmp_path).contents == FILES
    assert server.rests == [f"bytes={AFTER}-", None]
    assert whole(tmp_path)


@pytest.mark.parametrize("kept", [b"x" * AFTER, ZIPPED, ZIPPED + b"more"], ids=["other bytes", "whole", "too long"])
def test_what_was_kept_and_does_not_fit_is_downloaded_again(two_attempts, tiny, server, tmp_path, kept):
    server.ranges = "give"
    entry = tiny(Address(server.base))
    break_off(entry, server, tmp_path).write_bytes(kept)
    assert fetch(entry, cache=tmp_path).contents == FILES
    assert server.rests == [f"bytes={len(kept)}-", None]
    assert whole(tmp_path)


def test_wrong_bytes_are_not_kept_however_they_came_together(two_attempts, tiny, server, tmp_path):
    server.ranges = "give"
    entry = tiny(Address(server.base))
    kept = break_off(entry, server, tmp_path)
    server.answers["/b.bin.gz"] = gzip.compress(np.random.RandomState(1).bytes(100_000))
    with pytest.raises(InputError, match="wrong checksum"):
        fetch(entry, cache=tmp_path)
    assert server.rests == [f"bytes={AFTER}-", None], "downloaded again from its start once"
    assert not kept.exists()


@pytest.mark.parametrize("no_length", [False, True])
def test_a_server_that_sends_without_end_is_stopped(tiny, server, tmp_path, no_length):
    server.no_length = no_length
    server.answers["/b.bin"] = bytes(100_000_000)
    server.answers["/a.bin"] = FILES["a.bin"]
    with pytest.raises(InputError, match=r"b\.bin has more than 102000 bytes"):
        fetch(tiny(Address(server.base, suffix="")), cache=tmp_path)
    assert {path.name for path in (tmp_path / "tiny").iterdir()} <= {"a.bin", ".lock"}
    assert server.sent < 50_000_000, "the connection was closed long before its end"


def test_a_server_need_not_say_how_long_a_file_is(tiny, server, tmp_path):
    server.no_length = True
    assert fetch(tiny(Address(server.base)), cache=tmp_path).contents == FILES


def test_a_download_that_cannot_be_written_is_not_blamed_on_the_source(tiny, server, tmp_path):
    (tmp_path / "tiny" / "a.bin.gz.download").mkdir(parents=True)
    with pytest.raises(InputError, match="cannot be written"):
        fetch(tiny(Address(server.base)), cache=tmp_path)


TAR = tar_of(FILES | {"readme.txt": b"not asked for"}, "inner/")


@pytest.mark.parametrize("mode", ["w:gz", "w:xz", "w"])
def test_files_are_read_out_of_a_tar(tiny, server, tmp_path, mode):
    server.answers["/all.tar"] = tar_of(FILES, "inner/", mode)
    fetched = fetch(tiny(TarAddress(f"{server.base}all.tar", 200_000, "inner")), cache=tmp_path)
    assert fetched.contents == FILES
    assert set(fetched.origin.values()) == {f"{server.base}all.tar"}
    assert server.asked == ["/all.tar"]
    assert whole(tmp_path)


@pytest.mark.parametrize("ranges", ["give", "ignore", "another"])
def test_a_tar_goes_on_where_it_broke_off(request, tiny, server, tmp_path, ranges):
    server.answers["/all.tar.gz"] = TAR
    server.ranges = ranges
    entry = tiny(TarAddress(f"{server.base}all.tar.gz", len(TAR), "inner"))
    break_off(entry, server, tmp_path)
    request.getfixturevalue("two_attempts")
    assert fetch(entry, cache=tmp_path).contents == FILES
    assert server.rests[0] == f"bytes={AFTER}-"
    assert whole(tmp_path)


def test_a_tar_whose_pieces_do_not_fit_is_downloaded_again(two_attempts, tiny, server, tmp_path):
    server.answers["/all.tar.gz"] = TAR
    server.ranges = "give"
    entry = tiny(TarAddress(f"{server.base}all.tar.gz", len(TAR), "inner"))
    break_off(entry, server, tmp_path)
    (tmp_path / "tiny" / "all.tar.gz.download").write_bytes(b"x" * AFTER)
    assert fetch(entry, cache=tmp_path).contents == FILES
    assert server.rests == [f"bytes={AFTER}-", None]


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (TAR + b"x", f"has more than {len(TAR)} bytes"),
        (tar_of({"a.bin": FILES["a.bin"]}, "inner/"), r"holds no file inner/b\.bin"),
        (tar_of(FILES, "outer/"), r"holds no file inner/a\.bin"),
        (tar_of(FILES | {"b.bin": b"wrong"}, "inner/"), "wrong checksum"),
        (tar_of({"b.bin/x": b"", "a.bin": FILES["a.bin"]}, "inner/"), r"holds no file inner/b\.bin"),
        (b"<html>please log in</html>", "could not be had"),
        (b"", "could not be had"),
        (TAR[:-20_000], "could not be had"),
    ],
)
def test_what_is_wrong_with_a_tar_is_said(tiny, server, tmp_path, answer, reason):
    server.answers["/all.tar.gz"] = answer
    with pytest.raises(InputError, match=reason):
        fetch(tiny(TarAddress(f"{server.base}all.tar.gz", len(TAR), "inner")), cache=tmp_path)
    assert not list((tmp_path / "tiny").glob("*.download"))


def test_a_server_that_sends_a_little_now_and_then_has_failed_in_the_end(tiny, server, tmp_path, monkeypatch):
    monkeypatch.setattr(addresses, "_PATIENCE", 0.3)
    monkeypatch.setattr(addresses, "_SLOWEST", 1e9)
    server.pause = 0.1  # twenty times in a file, and never so long that it is silent
    with pytest.raises(InputError, match="comes too slowly"):
        fetch(tiny(Address(server.base)), cache=tmp_path)
    assert not (tmp_path / "tiny" / "a.bin").exists()


@pytest.mark.parametrize("place", ["file:///etc/", "ftp://127.0.0.1/", "data:,"])
def test_nothing_but_http_is_opened(tiny, server, tmp_path, place):
    with pytest.raises(InputError, match="could not be had"):
        fetch(tiny(Address(place, suffix="")), cache=tmp_path)
    server.moved = place
    with pytest.raises(InputError, match="could not be had"):
        fetch(tiny(Address(server.base)), cache=tmp_path)
    assert server.asked
