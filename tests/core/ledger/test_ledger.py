"""The ledger counts every release that may have happened, refuses what it must, and notices changes to its file."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import threading
from hashlib import sha256
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ledger_cases import (
    PCA,
    PICK,
    STEP,
    Recorder,
    path,  # noqa: F401
)

from adadp.errors import BudgetExceeded, EventError, InputError, LedgerBusy, LedgerError
from adadp.events import (
    AdaptivelyChosen,
    Composed,
    GaussianRelease,
    Neighbours,
    PoissonSampled,
    Repeated,
    ZcdpCost,
    compose,
    flatten,
)
from adadp.ledger import Ledger, LedgerRecord, PlannedBudget, read_ledger

OTHER_RELATION = GaussianRelease(1.0, Neighbours.REPLACE_ONE)


def body_of(line: bytes) -> dict:
    return json.loads(line)


# What is written and read back ------------------------------------------------------------------------------------


def test_charges_are_counted_numbered_and_read_back(path):
    with Ledger.create(path, run="my-run") as ledger:
        assert ledger.event() is None
        assert ledger.neighbours is None
        assert [ledger.charge(STEP), ledger.charge(PCA), ledger.charge(STEP), ledger.charge(STEP, 5)] == [1, 2, 3, 4]
        assert ledger.charges == {STEP: 7, PCA: 1}
        assert ledger.run == "my-run"
        assert ledger.neighbours is Neighbours.ADD_REMOVE
        written = LedgerRecord(
            run="my-run",
            created=read_ledger(path).created,
            budget=None,
            neighbours=Neighbours.ADD_REMOVE,
            charges=ledger.charges,
            torn=ledger.torn,
            head=ledger.head,
            length=ledger.length,
        )
        assert ledger.event() == written.event() == Composed((Repeated(STEP, 7), PCA))
    assert read_ledger(path) == written
    assert written.length == 1 + 3 + 4  # header, definitions (one step, five steps and PCA), charges


def test_an_empty_ledger_has_no_event_and_a_name(path):
    Ledger.create(path).close()
    record = read_ledger(path)
    assert (record.event(), record.charges, record.length, record.torn) == (None, {}, 1, 0)
    assert record.run


def test_a_repetition_is_the_same_release_as_a_count(path):
    with Ledger.create(path) as ledger:
        ledger.charge(Repeated(Repeated(STEP, 2), 3), 2)
        ledger.charge(STEP, 12)
        assert ledger.charges == {STEP: 24}
        assert ledger.length == 4  # one definition


def test_the_layout_is_the_documented_one(path):
    with Ledger.create(path, run="r") as ledger:
        ledger.charge(STEP)
    lines = path.read_bytes().splitlines()
    assert [body_of(line)["kind"] for line in lines] == ["header", "define", "charge"]
    assert lines[2].startswith(b'{"kind":"charge","id":0,"seq":1,"chain":"')
    head = ""
    for line in lines:
        body = body_of(line)
        chain = body.pop("chain")
        head = sha256(head.encode() + json.dumps(body, separators=(",", ":")).encode()).hexdigest()
        assert chain == head
    assert read_ledger(path).head == head


EVENTS = st.sampled_from(
    [
        STEP,
        PCA,
        PICK,
        ZcdpCost(0.1),
        AdaptivelyChosen(STEP),
        PoissonSampled(0.1, Composed((GaussianRelease(2.0), GaussianRelease(0.1 + 0.2)))),
        Composed((PCA, Repeated(PICK, 0))),
        Repeated(PCA, 3),
    ]
)


@pytest.mark.slow
@settings(max_examples=40, deadline=None)
@given(sessions=st.lists(st.lists(st.tuples(EVENTS, st.integers(1, 4)), max_size=6), min_size=1, max_size=3))
def test_any_charges_in_any_number_of_sessions_add_up(sessions):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "ledger")
        Ledger.create(path).close()
        for session in sessions:
            with Ledger.open(path) as ledger:
                for event, count in session:
                    ledger.charge(event, count)
        parts = [Repeated(event, count) for session in sessions for event, count in session]
        total = read_ledger(path).event()
        assert (flatten(total) if total else {}) == (flatten(compose(*parts)) if parts else {})
        assert read_ledger(path, expected_head=ledger.head).charges == ledger.charges


def test_threads_share_one_ledger(path):
    with Ledger.create(path) as ledger:
        numbers = []
        threads = [
            threading.Thread(target=lambda: numbers.extend(ledger.charge(STEP) for _ in range(20))) for _ in range(4)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert sorted(numbers) == list(range(1, 81))
    assert read_ledger(path).charges == {STEP: 80}


# The order of things ----------------------------------------------------------------------------------------------


def test_the_disk_has_the_definition_before_the_charge_and_both_before_the_budget(path, monkeypatch):
    on_disk = []
    fsync = os.fsync

    def watched(file):
        fsync(file)
        on_disk.append(path.read_bytes().count(b"\n"))

    monkeypatch.setattr(os, "fsync", watched)

    class Rule(Recorder):
        def admit(self, event, count):
            super().admit(event, count)
            assert read_ledger(path).charges.get(event, 0) == 0

        def commit(self, event, count):
            super().commit(event, count)
            assert read_ledger(path).charges == {event: count}
            assert on_disk[-1] == 3

    rule = Rule()
    with Ledger.create(path, budget=rule) as ledger:
        assert on_disk == [1, 1]  # the file, then its name in the folder
        ledger.charge(STEP, 2)
        assert on_disk == [1, 1, 2, 3]
    assert rule.calls == [("admit", STEP, 2), ("commit", STEP, 2)]


def test_opening_forces_what_a_killed_writer_left_to_the_disk(path, monkeypatch):
    Ledger.create(path).close()
    forced = []
    monkeypatch.setattr(os, "fsync", forced.append)
    Ledger.open(path).close()
    assert len(forced) == 1


def test_a_refused_charge_writes_nothing_and_the_ledger_goes_on(path):
    rule = Recorder(refuse=[PCA])
    with Ledger.create(path, budget=rule) as ledger:
        before = path.read_bytes()
        with pytest.raises(BudgetExceeded):
            ledger.charge(PCA)
        assert path.read_bytes() == before
        assert ("commit", PCA, 1) not in rule.calls
        assert ledger.charge(STEP) == 1


@pytest.mark.parametrize("count", [0, -1, 1.5, True, "2", None])
def test_a_count_must_be_a_positive_whole_number(path, count):
    with Ledger.create(path) as ledger, pytest.raises(InputError, match="count"):
        ledger.charge(STEP, count)
    assert read_ledger(path).length == 1


def test_what_is_no_release_is_not_charged(path):
    with Ledger.create(path) as ledger:
        with pytest.raises(EventError, match="must be an event"):
            ledger.charge("gaussian")
        with pytest.raises(InputError, match="releases nothing"):
            ledger.charge(Repeated(STEP, 0))
    assert read_ledger(path).length == 1


def test_one_ledger_has_one_neighbouring_relation(path):
    with Ledger.create(path) as ledger:
        ledger.charge(STEP)
        with pytest.raises(EventError, match=r"add-remove.*replace-one.*do not compose"):
            ledger.charge(OTHER_RELATION)
        ledger.charge(STEP)
    assert read_ledger(path).length == 4


# Budgets ----------------------------------------------------------------------------------------------------------


def test_a_plan_admits_its_releases_in_any_order_and_nothing_else(path):
    with Ledger.create(path, budget=PlannedBudget(Composed((PCA, Repeated(STEP, 3))))) as ledger:
        ledger.charge(STEP, 2)
        with pytest.raises(BudgetExceeded, match=r"2 x .*3 planned, 2 already charged"):
            ledger.charge(STEP, 2)
        ledger.charge(Composed((STEP, PCA)))
        for event in (STEP, PCA, PICK, AdaptivelyChosen(STEP)):
            with pytest.raises(BudgetExceeded):
                ledger.charge(event)
        assert flatten(ledger.event()) == {STEP: 3, PCA: 1}


def test_what_is_spent_stays_spent_after_reopening(path):
    plan = Repeated(STEP, 3)
    with Ledger.create(path, budget=PlannedBudget(plan)) as ledger:
        ledger.charge(STEP, 2)
    with Ledger.open(path, budget=PlannedBudget(plan)) as ledger:
        ledger.charge(STEP)
        with pytest.raises(BudgetExceeded):
            ledger.charge(STEP)


def test_a_torn_charge_is_spent_for_the_budget_too(path):
    plan = Repeated(STEP, 3)
    with Ledger.create(path, budget=PlannedBudget(plan)) as ledger:
        ledger.charge(STEP, 1)
        ledger.charge(STEP, 1)
    path.write_bytes(path.read_bytes()[:-20])
    with Ledger.open(path, budget=PlannedBudget(plan)) as ledger:
        assert ledger.charges == {STEP: 2}
        ledger.charge(STEP)
        with pytest.raises(BudgetExceeded):
            ledger.charge(STEP)


def test_plans_that_mean_the_same_are_the_same_rule():
    assert PlannedBudget(Composed((STEP, STEP))).describe() == PlannedBudget(Repeated(STEP, 2)).describe()
    assert PlannedBudget(STEP).describe() != PlannedBudget(Repeated(STEP, 2)).describe()


def test_the_rule_cannot_be_swapped_or_dropped(path):
    with Ledger.create(path, budget=Recorder({"rule": "r", "epsilon": 1})) as ledger:
        ledger.charge(STEP, 2)
    before = path.read_bytes()
    for other in (None, Recorder({"rule": "r", "epsilon": 2})):
        with pytest.raises(LedgerError, match="same rule"):
            Ledger.open(path, budget=other)
    assert path.read_bytes() == before
    same = Recorder({"epsilon": 1, "rule": "r"})  # the order of keys means nothing
    Ledger.open(path, budget=same).close()
    assert same.calls == [("commit", STEP, 2)]
    assert read_ledger(path).budget == {"rule": "r", "epsilon": 1}


def test_a_rule_cannot_be_added_later(path):
    Ledger.create(path).close()
    with pytest.raises(LedgerError, match="was created with the budget None"):
        Ledger.open(path, budget=Recorder())


@pytest.mark.parametrize("description", [{"event": STEP}, {"epsilon": float("nan")}])
def test_a_rule_that_cannot_be_written_down_is_refused(path, description):
    with pytest.raises(InputError, match="not JSON"):
        Ledger.create(path, budget=Recorder(description))
    assert not path.exists()


# One writer -------------------------------------------------------------------------------------------------------


def test_two_objects_of_one_process_conflict(path):
    with Ledger.create(path) as ledger:
        with pytest.raises(LedgerBusy, match=str(path)):
            Ledger.open(path)
        ledger.charge(STEP)
    Ledger.open(path).close()


def test_another_name_of_the_file_is_the_same_ledger(path):
    name = path.with_name("link")
    name.symlink_to(path)
    with Ledger.create(path), pytest.raises(LedgerBusy):
        Ledger.open(name)


def test_a_failed_open_gives_the_lock_back(path):
    Ledger.create(path, budget=Recorder()).close()
    with pytest.raises(LedgerError):
        Ledger.open(path)
    Ledger.open(path, budget=Recorder()).close()


def test_whichever_thread_closes_it_gives_the_lock_up(path):
    ledger = Ledger.create(path)
    thread = threading.Thread(target=ledger.close)
    thread.start()
    thread.join()
    Ledger.open(path).close()


def test_a_closed_ledger_takes_no_charge(path):
    ledger = Ledger.create(path)
    ledger.close()
    ledger.close()
    with pytest.raises(LedgerError, match="closed"):
        ledger.charge(STEP)


def test_a_process_that_did_not_open_it_can_neither_charge_nor_unlock(path, monkeypatch):
    ledger = Ledger.create(path)
    with monkeypatch.context() as child:
        child.setattr(os, "getpid", lambda: -1)
        with pytest.raises(LedgerError, match="forked"):
            ledger.charge(STEP)
        ledger.close()
    with pytest.raises(LedgerBusy):
        Ledger.open(path)
    assert ledger.charge(STEP) == 1
    ledger.close()


FORKED = """
import os, sys
from adadp.errors import LedgerBusy, LedgerError
from adadp.events import GaussianRelease
from adadp.ledger import Ledger, read_ledger
ledger = Ledger.create(sys.argv[1])
ledger.charge(GaussianRelease(1.0))
child = os.fork()
if child == 0:
    try:
        with ledger:
            ledger.charge(GaussianRelease(1.0))
    except LedgerError:
        os._exit(7)
    os._exit(0)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
try:
    Ledger.open(sys.argv[1])
except LedgerBusy:
    assert ledger.charge(GaussianRelease(1.0)) == 2
    print(read_ledger(sys.argv[1]).charges[GaussianRelease(1.0)])
"""


def test_a_forked_child_cannot_charge(path):
    done = subprocess.run([sys.executable, "-c", FORKED, path], capture_output=True, text=True, check=False)
    assert (done.stdout.strip(), done.stderr) == ("2", "")


@pytest.mark.parametrize("harm", ["remove", "replace", "append", "cut"])
def test_a_file_that_changed_under_the_writer_is_not_charged(path, harm):
    with Ledger.create(path) as ledger:
        ledger.charge(STEP)
        data = path.read_bytes()
        if harm in ("remove", "replace"):
            path.unlink()
        if harm != "remove":
            path.write_bytes({"replace": data, "append": data + b"{", "cut": data[:-1]}[harm])
        before = path.exists() and path.read_bytes()
        for _ in range(2):
            with pytest.raises(LedgerError, match="removed, replaced or written"):
                ledger.charge(STEP)
        assert (path.exists() and path.read_bytes()) == before


# Files that cannot be used ----------------------------------------------------------------------------------------


def test_an_existing_file_is_never_overwritten(path):
    path.write_text("precious")
    with pytest.raises(LedgerError, match=r"already a file.*Ledger\.open"):
        Ledger.create(path)
    assert path.read_text() == "precious"


def test_places_where_no_ledger_can_be(path):
    path.write_text("a file")
    for bad in (path / "below-a-file", path.parent / "missing" / "ledger"):
        with pytest.raises(LedgerError, match="no folder"):
            Ledger.create(bad)
    for bad in (path.parent, path.parent / "missing"):
        with pytest.raises(LedgerError, match="no ledger file"):
            Ledger.open(bad)
        with pytest.raises(LedgerError, match="cannot be opened"):
            read_ledger(bad)
    assert sorted(entry.name for entry in path.parent.iterdir()) == ["run.ledger"]
