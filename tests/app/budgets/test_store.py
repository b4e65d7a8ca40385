"""The file of a budget: what was edited, cut back, copied or half-written is found, and nobody writes beside it."""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
from pathlib import Path

import pytest

from adadp.app import state
from adadp.app.budgets import BudgetFile, store
from adadp.app.budgets.store import Entry, Store
from adadp.errors import BudgetExceeded, InputError, LedgerBusy, LedgerCorrupt, LedgerError
from adadp.events import GaussianRelease, Repeated

RUN = Repeated(GaussianRelease(10.0), 10)
"""A third of the budget that ``made`` makes, and a little less."""


@pytest.fixture(autouse=True)
def notes(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv(state.FOLDER, str(tmp_path / "state"))
    return tmp_path / "state" / "budgets"


@pytest.fixture
def made(tmp_path) -> BudgetFile:
    return BudgetFile.create(tmp_path / "people.budget", epsilon=2.8, delta=1e-6, unit="patient", order=10.0)


def in_child(work) -> int:
    """The exit code of a real process that does ``work`` and ends; 77 where it raised something."""
    child = os.fork()
    if not child:
        code = 77
        try:
            code = work() or 0
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def sql(path, *statements):
    connection = sqlite3.connect(path)
    with connection:
        for statement in statements:
            connection.execute(statement)
    connection.close()


def test_a_run_is_a_third(made):
    assert 0.25 < made.state().terms.rule.share([RUN]) < 1 / 3


def test_a_file_is_never_overwritten(made):
    before = made.path.read_bytes()
    with pytest.raises(InputError, match="already a file"):
        BudgetFile.create(made.path, epsilon=100, delta=1e-2, unit="patient", order=10.0)
    assert made.path.read_bytes() == before


def test_entries_come_back(tmp_path):
    first = Entry("create", {"id": "0" * 32, "words": "ü"})
    made = Store.create(tmp_path / "file", first)
    with made.adding() as (entries, new):
        assert entries == (first,)
        new.append(Entry("more", {"number": 0.1}))
    assert Store(tmp_path / "file").read() == (first, Entry("more", {"number": 0.1}))


def test_an_error_adds_nothing(made):
    before = made._store.read()

    def failing():
        with made._store.adding() as (_, new):
            new.append(Entry("settle", {}))
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        failing()
    assert made._store.read() == before


@pytest.mark.parametrize(
    "edit",
    [
        "UPDATE entries SET entry = replace(entry, '\"count\":10', '\"count\":1') WHERE number = 2",
        "UPDATE entries SET entry = replace(entry, '2.8', '9.65') WHERE number = 1",
        "DELETE FROM entries WHERE number = 2",
        "DELETE FROM entries",
        "UPDATE entries SET number = 9 WHERE number = 3",
        "UPDATE entries SET chain = '' WHERE number = 2",
        "UPDATE entries SET entry = 7 WHERE number = 2",
        "INSERT INTO entries VALUES (4, '{}', '')",
        "CREATE TRIGGER gone AFTER INSERT ON entries BEGIN DELETE FROM entries WHERE number > 2; END",
        "CREATE TABLE more (x)",
        "DROP TABLE entries",
    ],
)
def test_an_edited_file_is_refused(made, edit, notes):
    made.reserve(RUN, command="one")
    made.reserve(RUN, command="two")
    sql(made.path, edit)
    shutil.rmtree(notes)  # the checksums alone find it
    for use in (made.state, lambda: made.reserve(RUN, command="three")):
        with pytest.raises(LedgerCorrupt):
            use()


def test_a_file_that_was_made_anew_with_good_checksums_is_found_by_the_note(made):
    made.reserve(RUN, command="one")
    (first, _) = made._store.read()
    made.path.unlink()
    sql(made.path, store._TABLE)
    connection = sqlite3.connect(made.path)
    with connection:
        store._insert(connection, [first], 0, "")
    connection.close()
    with pytest.raises(LedgerError, match="lacks entries"):
        made.state()


def test_an_older_copy_is_refused_and_the_latest_accepted(made, tmp_path):
    made.reserve(RUN, command="one")
    shutil.copy(made.path, tmp_path / "backup")
    made.reserve(RUN, command="two")
    shutil.copy(made.path, tmp_path / "latest")
    shutil.copy(tmp_path / "backup", made.path)
    with pytest.raises(LedgerError, match="lacks entries that this machine has seen"):
        made.reserve(RUN, command="again")
    shutil.copy(tmp_path / "latest", made.path)
    assert len(made.state().runs) == 2


def test_a_copy_beside_the_original_is_refused(made, tmp_path):
    made.reserve(RUN, command="one")
    shutil.copy(made.path, tmp_path / "copy.budget")
    copy = BudgetFile(tmp_path / "copy.budget")
    for use in (copy.state, lambda: copy.reserve(RUN, command="two")):
        with pytest.raises(LedgerError, match="is a copy of"):
            use()
    made.reserve(RUN, command="two")


def test_a_moved_file_goes_on_and_its_old_place_does_not(made, tmp_path):
    shutil.copy(made.path, tmp_path / "left")
    (tmp_path / "there").mkdir()
    moved = BudgetFile(made.path.rename(tmp_path / "there" / "people.budget"))
    moved.reserve(RUN, command="one")
    shutil.copy(tmp_path / "left", made.path)
    with pytest.raises(LedgerError, match="lacks entries"):
        made.reserve(RUN, command="two")


def test_another_machine_has_no_note(made, tmp_path, monkeypatch):
    """Its copy is accepted: what cannot be found is said in docs/budget.md."""
    shutil.copy(made.path, tmp_path / "copy.budget")
    made.reserve(RUN, command="one")
    monkeypatch.setenv(state.FOLDER, str(tmp_path / "elsewhere"))
    assert BudgetFile(tmp_path / "copy.budget").state().runs == ()


def test_a_link_to_the_file_is_the_file(made, tmp_path):
    (tmp_path / "link").symlink_to(made.path)
    os.link(made.path, tmp_path / "hard")
    BudgetFile(tmp_path / "link").reserve(RUN, command="one")
    BudgetFile(tmp_path / "hard").reserve(RUN, command="two")
    assert len(made.state().runs) == 2


def test_a_damaged_note_is_told(made, notes):
    (place,) = (path for path in notes.iterdir() if path.suffix != ".lock")
    place.write_text("{")
    with pytest.raises(LedgerError, match="damaged"):
        made.state()


@pytest.mark.parametrize("content", [b"", b"epsilon = 4", b"SQLite format 3\0" + b"\1" * 5000, b"[" * 100_000])
def test_what_is_no_budget_is_told(tmp_path, content):
    (tmp_path / "file").write_bytes(content)
    with pytest.raises((LedgerCorrupt, LedgerError), match=r"no budget|cannot be used"):
        BudgetFile(tmp_path / "file").state()


@pytest.mark.parametrize("name", ["missing", ".", "/dev/zero", "/dev/null"])
def test_what_is_no_file_is_told(tmp_path, name):
    with pytest.raises(InputError, match="There is no budget"):
        BudgetFile(tmp_path / name).state()


@pytest.mark.parametrize(
    "entry",
    [
        "[" * 50_000,
        "[]",
        '{"kind":"create"}',
        '{"kind":"create","id":"../../../../tmp/there"}',
        json.dumps({"kind": "create", "id": "0" * 32, "epsilon": 1e400}),
        json.dumps({"kind": "create", "id": "0" * 32, "unit": "\x1b[2J", "format": 1, "rule": "planned"}),
    ],
)
def test_a_strangers_entry_is_one_clear_error(tmp_path, entry):
    path = tmp_path / "file"
    sql(path, store._TABLE)
    connection = sqlite3.connect(path)
    with connection:
        connection.execute("INSERT INTO entries VALUES (1, ?, ?)", (entry, store._checksum("", 1, entry)))
    connection.close()
    with pytest.raises(LedgerCorrupt):
        BudgetFile(path).state()


def test_a_second_process_waits_and_is_refused_in_the_end(made, monkeypatch):
    monkeypatch.setattr(store, "_PATIENCE", 0.2)

    def second():
        try:
            made.reserve(RUN, command="two")
        except LedgerBusy:
            return 5
        return 0

    with made._store.adding():
        assert in_child(second) == 5
    assert in_child(second) == 0


def test_a_process_without_the_same_state_folder_waits_too(made, tmp_path, monkeypatch):
    """As one on another machine does: then SQLite's lock holds it."""
    monkeypatch.setattr(store, "_PATIENCE", 0.2)

    def second():
        os.environ[state.FOLDER] = str(tmp_path / "elsewhere")
        try:
            made.reserve(RUN, command="two")
        except LedgerBusy:
            return 5
        return 0

    with made._store.adding():
        assert in_child(second) == 5


def test_many_processes_at_once_never_pass_the_budget(made):
    """Eight processes ask for a third each: three get it."""
    children = []
    for number in range(8):
        child = os.fork()
        if not child:
            code = 77
            try:
                made.reserve(RUN, command=f"run {number}")
                code = 0
            except BudgetExceeded:
                code = 5
            finally:
                os._exit(code)
        children.append(child)
    codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
    assert sorted(codes) == [0, 0, 0, 5, 5, 5, 5, 5]
    assert len(made.state().runs) == 3
    assert made.state().used <= 1


@pytest.mark.parametrize(("place", "entries"), [("_insert", 0), ("COMMIT", 0), ("write", 1)])
def test_a_kill_leaves_all_of_an_entry_or_nothing(made, place, entries):
    """Before the entry is written, before the commit, and between commit and note."""

    def killed():
        if place == "COMMIT":
            whole = store._insert
            store._insert = lambda *given: (whole(*given), os._exit(9))
        elif place == "_insert":
            store._insert = lambda *_: os._exit(9)
        else:
            store._Note.write = lambda *_: os._exit(9)
        made.reserve(RUN, command="one")

    assert in_child(killed) == 9
    assert len(made.state().runs) == entries
    made.reserve(RUN, command="two")
    assert len(made.state().runs) == entries + 1


def test_a_full_disk_reserves_nothing(made, monkeypatch):
    def full(*_):
        raise sqlite3.OperationalError("database or disk is full")

    monkeypatch.setattr(store, "_insert", full)
    with pytest.raises(LedgerError, match="disk is full"):
        made.reserve(RUN, command="one")
    connection = sqlite3.connect(made.path)
    assert connection.execute("SELECT count(*) FROM entries").fetchone() == (1,)


def test_a_read_only_file_can_be_shown(made):
    made.path.chmod(0o444)
    assert made.state().used == 0
