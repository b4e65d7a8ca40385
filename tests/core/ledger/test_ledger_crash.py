"""Processes that really die: killed at random moments they never leave a ledger that counts too little."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time

import pytest

from adadp.errors import LedgerBusy, LedgerError
from adadp.events import GaussianRelease
from adadp.ledger import Ledger, read_ledger

pytestmark = pytest.mark.slow


# Charges in a loop, and "releases" after each charge by writing the name of the event into a pipe. New events turn up
# all the time, so that kills also fall between a definition and its charge.
CHARGER = """
import os, sys
from adadp.events import GaussianRelease
from adadp.ledger import Ledger
path = sys.argv[1]
os.write(1, b"ready ")
with Ledger.open(path) if os.path.exists(path) else Ledger.create(path) as ledger:
    for step in range(10**6):
        sigma = 1 + step % (10 + step // 10)
        count = 1 + step % 2
        ledger.charge(GaussianRelease(sigma), count)
        os.write(1, b"%d:%d " % (sigma, count))
"""

HOLDER = """
import sys
from adadp.ledger import Ledger
with Ledger.create(sys.argv[1]):
    print("held", flush=True)
    sys.stdin.read()
"""


def run_until_killed(path, moments):
    """Releases (event and how often) that a process made before it was killed at a random moment."""
    with subprocess.Popen([sys.executable, "-c", CHARGER, path], stdout=subprocess.PIPE) as process:
        said = b""
        wanted = 1 + moments.choice(
            [0, moments.randrange(60)]
        )  # after "ready": in create() or open(), or among charges
        while said.count(b" ") < wanted:
            said += os.read(process.stdout.fileno(), 100)
        time.sleep(0.01 * moments.random())
        process.send_signal(signal.SIGKILL)
        said += process.stdout.read()
        assert process.wait() == -signal.SIGKILL
    words = said.decode().split(" ")
    assert words.pop(0) == "ready"
    assert words.pop() == ""
    return [(GaussianRelease(float(word.split(":")[0])), int(word.split(":")[1])) for word in words]


def was_begun(path):
    """Whether a kill left a ledger with a header; if not, the ledger says itself that it was never charged."""
    if path.exists() and path.stat().st_size:
        return True
    with pytest.raises(LedgerError, match=r"Nothing was charged|cannot be opened"):
        read_ledger(path)
    path.unlink(missing_ok=True)
    return False


@pytest.mark.parametrize("ledger_number", range(5))
def test_a_killed_process_never_released_more_than_the_ledger_counts(tmp_path, ledger_number):
    """Fifty kills over five ledgers, each resumed nine times."""
    moments = random.Random(ledger_number)
    path = tmp_path / "ledger"
    released = {}
    for kills in range(1, 11):
        for event, count in run_until_killed(path, moments):
            released[event] = released.get(event, 0) + count
        if not was_begun(path):
            assert not released
            continue
        record = read_ledger(path)
        assert all(record.charges[event] >= count for event, count in released.items())
        # A kill costs at most the one charge it interrupted (of two releases), or what a torn line may have been.
        assert sum(record.charges.values()) <= sum(released.values()) + 2 * kills * max(1, 12 * record.torn)
        with Ledger.open(path) as ledger:
            assert ledger.charges == record.charges
        assert read_ledger(path, expected_head=ledger.head).charges == record.charges
    assert released


def test_a_second_process_is_kept_out_until_the_first_dies(tmp_path):
    path = tmp_path / "ledger"
    holder = [sys.executable, "-c", HOLDER, path]
    with subprocess.Popen(holder, stdout=subprocess.PIPE, stdin=subprocess.PIPE) as process:
        assert process.stdout.readline() == b"held\n"
        with pytest.raises(LedgerBusy, match=str(path)):
            Ledger.open(path)
        assert read_ledger(path).length == 1  # reading needs no lock
        process.send_signal(signal.SIGKILL)
        process.wait()
    with Ledger.open(path) as ledger:
        assert ledger.charge(GaussianRelease(1.0)) == 1
