"""Settings of all tests."""

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings
from processes import Group

# How long an example takes says something about the machine's other work, not about the code.
# The same examples every time: a change is judged by what it changed. `make fuzz` draws new ones.
settings.register_profile("adadp", deadline=None, derandomize=True)
settings.register_profile("fuzz", deadline=None)
settings.load_profile("adadp")

# Runs of tests take no note in the state folder of whoever runs them.
os.environ["ADADP_STATE"] = tempfile.mkdtemp(prefix="adadp-state-")


def _memory() -> str | None:
    """A file system in memory with room for all temporary folders, from which programs may be run; None: there is none.

    A run syncs some fifty small files, which takes milliseconds each on a disk and microseconds in memory.
    """
    place = Path("/dev/shm")
    if not (place.is_dir() and os.access(place, os.W_OK)) or os.statvfs(place).f_flag & os.ST_NOEXEC:
        return None
    return str(place) if shutil.disk_usage(place).free > 4 * 2**30 else None


if (found := _memory()) is not None:
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", found)  # where pytest makes its temporary folders


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What is neither slow, statistical nor for a browser is fast: ``make quick``."""
    for item in items:
        if not any(item.get_closest_marker(name) for name in ("slow", "statistical", "browser")):
            item.add_marker(pytest.mark.fast)


@pytest.fixture
def raw_records(monkeypatch) -> None:
    """Records reach the model as they are, for tests of what is made of gradients that are not finite."""
    from adadp.input_bound import InputBound

    monkeypatch.setattr(InputBound, "bring_in", lambda _, values: values)


@pytest.fixture(scope="session")
def two() -> Iterator[Group]:
    """Two processes, for tests that leave them as they are."""
    group = Group(2)
    yield group
    group.close()


@pytest.fixture(scope="session")
def four() -> Iterator[Group]:
    """Four processes."""
    group = Group(4)
    yield group
    group.close()
