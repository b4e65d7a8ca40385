"""What a stranger's file may be: refused before it is waited for, filled the memory with, or sunk into."""

from __future__ import annotations

import os
import time

import pytest

from adadp.files import LARGEST, contents, json_of, read_toml, toml_of

DEEP = 90


def test_what_is_whole_is_read(tmp_path):
    (tmp_path / "a.toml").write_bytes(b"\xef\xbb\xbf[a]\nb = [1, 2.5, nan]\n'c.d' = 2024-01-01")
    assert read_toml(tmp_path / "a.toml")["a"]["b"][:2] == [1, 2.5]
    assert json_of(b'{"a": [null, 1e300, "\\u00e9"]}') == {"a": [None, 1e300, "\u00e9"]}
    assert json_of("[" * DEEP + "]" * DEEP)
    assert toml_of("x = " + "[" * DEEP + "]" * DEEP)


BAD_JSON = ["[" * 101 + "]" * 101, "[" * 10**6, '{"a":' * 10**5, "NaN", "[-Infinity]", "1e999", "1" * 400, "", "{"]
BAD_JSON += ["1" * 5000, '"\\ud800"', '{"\\ud800": 1}']
BAD_TOML = ["x = " + "[" * 10**5, "a." * 10**5 + "b = 1", "['a'" + ". b" * 10**5 + "]", "x = 0x" + "f" * 10**5, "x"]
BAD_TOML += ["x = " + '"a ' * 10**5, "a" * 10**5, "a" + " " * 10**5, "a." + " " * 10**5]


@pytest.mark.parametrize("text", BAD_JSON, ids=lambda text: text[:12])
def test_json_that_nobody_can_use_is_refused(text):
    with pytest.raises(ValueError, match=r"."):
        json_of(text)


@pytest.mark.parametrize("text", BAD_TOML, ids=lambda text: text[:12])
def test_toml_that_would_take_long_is_refused_soon(text):
    began = time.process_time()
    with pytest.raises(ValueError, match=r"."):
        toml_of(text)
    assert time.process_time() - began < 5


def test_what_is_no_file_with_an_end_is_not_opened(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    (tmp_path / "zero").symlink_to("/dev/zero")
    for name in ("pipe", "folder", "zero"):
        with pytest.raises(OSError, match="is a folder, a pipe or a device"):
            contents(tmp_path / name)
    with (tmp_path / "sparse").open("wb") as file:
        file.truncate(LARGEST + 1)
    with pytest.raises(OSError, match="has more than"):
        contents(tmp_path / "sparse")
    with pytest.raises(FileNotFoundError):
        contents(tmp_path / "nothing")
