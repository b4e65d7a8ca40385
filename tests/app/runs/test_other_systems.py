"""What differs on Windows and macOS, imitated on this system: docs/limits.md says what that does not show."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from types import SimpleNamespace

import pytest

from adadp import disk
from adadp.app.budgets import store
from adadp.app.runs import atomic

_WINDOWS = '''
"""Take away what Windows has not: fcntl, ids of users, reads at a place, masks of signals, folders and open files."""

import os, signal, sys
from pathlib import Path

import torch, filelock, getpass, platformdirs, tempfile  # these know the system they are on

os.environ["ADADP_STATE"] = sys.argv[1] + "/state"
sys.modules["fcntl"] = None
os.environ["USERNAME"] = "somebody"
for name in ("pread", "pwrite", "getuid", "sched_getaffinity"):
    delattr(os, name)
del signal.pthread_sigmask
os.O_BINARY = 0o100000  # O_LARGEFILE: no effect here
whole = {name: getattr(os, name) for name in ("open", "replace", "rename", "unlink", "remove")}

def open_files():
    found = set()
    for each in os.listdir("/proc/self/fd"):
        try:
            found.add(os.readlink("/proc/self/fd/" + each))
        except OSError:
            pass
    return found

def opened(path, flags, mode=0o777, **more):
    if os.path.isdir(path):
        raise PermissionError(13, "Permission denied", path)
    caller = sys._getframe(1).f_globals.get("__name__", "")
    empty = flags & os.O_EXCL and flags & os.O_WRONLY  # only takes a name
    assert flags & os.O_BINARY or empty or not caller.startswith("adadp."), (caller, path)
    return whole["open"](path, flags, mode, **more)

def held(name):
    def call(*paths, **more):
        for path in paths:
            if os.path.realpath(path) in open_files():
                raise PermissionError(13, "It is open", path)
        calls.append(name)
        return whole[name](*paths, **more)
    return call

calls = []
os.open = opened
for name in ("replace", "rename", "unlink", "remove"):
    setattr(os, name, held(name))

from torch import nn
from adadp.app import zoo
from adadp.app.budgets import BudgetFile
from adadp.app.runs.atomic import clean
from adadp.app.sweeps import processes
from adadp.app.train import fit, verify_run
from adadp.errors import Interrupted

torch.set_num_threads(1)
place = Path(sys.argv[1])
budget = BudgetFile.create(place / "people.budget", epsilon=4, delta=1e-6, unit="patient", order=7.0)

def train(**more):
    torch.manual_seed(0)
    own = {"noise_multiplier": 4.0, "delta": 1e-4, "steps": 6, "batch_size": 28, "lr": 0.1, "out": place / "run"}
    return fit(nn.Linear(9, 2), zoo.load("cancer").train, budget=str(budget.path), **own, **more)

def stop(status):
    if status.step == 3:
        raise KeyboardInterrupt

try:
    train(watch=stop)
except (KeyboardInterrupt, Interrupted):
    pass
(place / "run" / ".adadp-dead.tmp").touch()
busy = (place / "run" / ".adadp-busy.tmp").open("wb")
clean(place / "run")
assert sorted(each.name for each in (place / "run").glob(".adadp*")) == [".adadp-busy.tmp"]
busy.close()
train(resume=True)
assert b"\\r" not in (place / "run" / "ledger.jsonl").read_bytes()
assert all(check.passed for check in verify_run(place / "run", budget.path))
(run,) = budget.state().runs
assert run.settled and run.resumed == 1
assert "replace" in calls and "unlink" in calls
processes._end_with_parent = print
processes._begin_process()
assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
getpass.getuser = lambda: __import__("pwd_of_windows")
assert BudgetFile.create(place / "b", epsilon=1, delta=1e-6, unit="x").path.exists()
'''


def test_a_run_is_stopped_resumed_counted_and_verified_without_what_windows_has_not(tmp_path):
    script = tmp_path / "windows.py"
    script.write_text(_WINDOWS)
    found = subprocess.run([sys.executable, script, tmp_path], capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stderr


@pytest.fixture
def macos(monkeypatch):
    """A system with F_FULLFSYNC: the codes it is called with, and what it answers."""
    seen = SimpleNamespace(calls=[], error=None)

    def fcntl(file, command):
        seen.calls.append(command)
        if seen.error is not None:
            raise OSError(seen.error, os.strerror(seen.error))

    monkeypatch.setattr(disk, "fcntl", SimpleNamespace(F_FULLFSYNC=51, fcntl=fcntl))
    monkeypatch.setattr(os, "fsync", lambda file: seen.calls.append("fsync"))
    return seen


@pytest.mark.parametrize("code", [errno.ENOTSUP, errno.EINVAL, errno.ENOTTY])
def test_where_the_drive_has_a_cache_it_is_emptied_and_fsync_is_the_second_best(macos, tmp_path, code):
    atomic.write_atomic(tmp_path / "file", b"x")
    assert macos.calls == [51, "fsync"]  # the file, then the folder
    macos.error = code
    disk.force(0)
    assert macos.calls[2:] == [51, "fsync"]


def test_a_drive_that_fails_is_no_drive_that_does_not_know_the_command(macos):
    macos.error = errno.EIO
    with pytest.raises(OSError, match=os.strerror(errno.EIO)):
        disk.force(0)
    assert macos.calls == [51]


def test_sqlite_is_told_to_empty_the_cache_of_the_drive_too(tmp_path, monkeypatch):
    monkeypatch.setenv("ADADP_STATE", str(tmp_path / "state"))
    made = store.Store.create(tmp_path / "file", store.Entry("create", {"id": "0" * 32}))
    with made._connected() as connection:
        settings = [connection.execute(f"PRAGMA {name}").fetchone()[0] for name in ("fullfsync", "synchronous")]
    assert settings == [1, 3]
