"""What somebody could try so that a budget is spent twice: each has an outcome, which counts too much at worst."""

from __future__ import annotations

import os
import random
import shutil
import sqlite3
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest
from click.testing import CliRunner

from adadp.accounting import accountant
from adadp.app import state
from adadp.app.budgets import BudgetFile, Terms, budget, store
from adadp.app.budgets.plot import plot_budget
from adadp.app.cli import main
from adadp.errors import BudgetExceeded, InputError, LedgerCorrupt, LedgerError
from adadp.events import GaussianRelease, PoissonSampled, Repeated, compose, to_json

RUN = Repeated(GaussianRelease(10.0), 10)


@pytest.fixture(autouse=True)
def notes(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv(state.FOLDER, str(tmp_path / "state"))
    return tmp_path / "state" / "budgets"


def new(path, **terms) -> BudgetFile:
    return BudgetFile.create(path, **({"epsilon": 2.8, "delta": 1e-6, "unit": "patient", "order": 10.0} | terms))


@pytest.fixture
def made(tmp_path) -> BudgetFile:
    return new(tmp_path / "people.budget")


def crashed(made, place) -> Path:
    """The files as a power failure leaves them in the middle of a commit: some pages written, and the journal."""
    place.mkdir()
    connection = sqlite3.connect(made.path, isolation_level=None)
    connection.execute("PRAGMA cache_size = 1")
    connection.execute("BEGIN IMMEDIATE")
    connection.execute("UPDATE entries SET chain = 'x'")
    for number in range(100, 200):
        connection.execute("INSERT INTO entries VALUES (?, ?, '')", (number, "y" * 4000))
    for name in (made.path.name, made.path.name + "-journal"):
        shutil.copy(made.path.parent / name, place / name)
    connection.execute("ROLLBACK")
    connection.close()
    return place / made.path.name


def test_a_crash_in_a_commit_leaves_what_was_before(made, tmp_path):
    made.reserve(RUN, command="one")
    image = crashed(made, tmp_path / "image")
    assert image.read_bytes() != made.path.read_bytes()
    made.path.unlink()
    for each in image.parent.iterdir():
        each.rename(made.path.parent / each.name)
    assert [run.command for run in made.state().runs] == ["one"]
    made.reserve(RUN, command="two")


def test_a_file_without_its_journal_is_refused(made, tmp_path):
    for _ in range(8):
        made.reserve(GaussianRelease(1e3), command="x" * 4000)  # several pages, of which some are written already
    image = crashed(made, tmp_path / "image")
    shutil.copy(image, made.path)
    with pytest.raises(LedgerCorrupt):
        made.state()


def test_a_journal_of_an_earlier_commit_cuts_nothing_off(made, tmp_path):
    image = crashed(made, tmp_path / "image")
    made.reserve(RUN, command="one")
    shutil.copy(f"{image}-journal", f"{made.path}-journal")
    with pytest.raises((LedgerError, LedgerCorrupt)):
        made.state()


@pytest.mark.parametrize("how", ["made anew", "moved here", "of another machine"])
def test_another_budget_does_not_take_the_place_of_one_that_was_spent(made, tmp_path, monkeypatch, how):
    made.reserve(RUN, command="one")
    made.path.unlink()
    if how == "moved here":
        new(tmp_path / "other.budget").path.rename(made.path)
    elif how == "of another machine":
        with monkeypatch.context() as elsewhere:
            elsewhere.setenv(state.FOLDER, str(tmp_path / "elsewhere"))
            new(made.path)
    use = made.state if made.path.exists() else lambda: new(made.path)
    with pytest.raises(InputError, match="remembers another budget"):
        use()
    assert made.path.exists() == (how != "made anew")


def test_a_budget_that_was_moved_leaves_its_place_to_another(made, tmp_path, notes):
    made.reserve(RUN, command="one")
    moved = BudgetFile(made.path.rename(tmp_path / "archive"))
    moved.state()
    (notes / ("f" * 32)).write_text("[")  # a damaged note of a third one says nothing
    new(made.path)
    assert made.state().runs == ()


def test_a_place_that_a_budget_left_may_become_anything(made, tmp_path):
    made.reserve(RUN, command="one")
    moved = BudgetFile(made.path.rename(tmp_path / "archive"))
    made.path.mkdir()
    assert len(moved.state().runs) == 1


def test_a_reservation_whose_note_cannot_be_written_counts(made, monkeypatch):
    whole = store.force

    def full(file):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(store, "force", full)
    with pytest.raises(LedgerError, match=r"note of the budget .* No space left"):
        made.reserve(RUN, command="one")
    monkeypatch.setattr(store, "force", whole)
    assert made.state().used == made.state().terms.rule.share([RUN])


def test_a_clock_that_was_set_back_changes_nothing_that_counts(made, tmp_path, monkeypatch):
    made.reserve(RUN, command="one")
    yesterday = (datetime.now(timezone.utc) - timedelta(days=1)).isoformat(timespec="seconds")
    monkeypatch.setattr(budget, "_now", lambda: yesterday)
    second = made.reserve(RUN, command="two")
    made.settle(second, GaussianRelease(10.0), "0" * 64)
    used = made.state().terms.rule.share([RUN, GaussianRelease(10.0)])
    assert made.state().used == pytest.approx(used)
    assert plot_budget(tmp_path / "spent.png", made.state(), now=datetime.fromisoformat(yesterday)).stat().st_size


@pytest.mark.parametrize("time", ["2026-01-01T00:00:00", "9999-12-31T23:59:59+00:00", "0001-01-01T00:00:00+00:00", "x"])
@pytest.mark.parametrize("where", ["create", "reserve"])
def test_a_time_that_no_picture_has_room_for_is_no_time(tmp_path, time, where):
    first = {**Terms.as_json(new(tmp_path / "a").state().terms), "time": "2026-01-01T00:00:00+00:00", "who": "x"}
    event = to_json(GaussianRelease(1.0))
    run = {"run": "r", "event": event, "command": "c", "who": "w", "time": "2026-01-01T00:00:00+00:00"}
    (first if where == "create" else run)["time"] = time
    shutil.rmtree(tmp_path / "state")
    path = tmp_path / "strange"
    made = store.Store.create(path, store.Entry("create", first))
    with made.adding() as (_, entries):
        entries.append(store.Entry("reserve", run))
    found = CliRunner().invoke(main, ["budget", "show", str(path), "--plot", str(tmp_path / "x.png")])
    assert found.exit_code == 2
    assert "no budget that holds" in found.output


def test_notes_that_depend_on_the_folder_of_a_command_are_refused(made, monkeypatch, tmp_path):
    """From another folder the same relative path would hold no note, and an older copy would be accepted."""
    monkeypatch.setenv(state.FOLDER, "state")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match="not a full path"):
        made.state()


def test_what_would_wait_for_ever_is_no_budget(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(InputError, match="There is no budget"):
        BudgetFile(tmp_path / "pipe").state()


def test_a_link_that_is_turned_to_another_copy_is_found(made, tmp_path):
    made.reserve(RUN, command="one")
    shutil.copy(made.path, tmp_path / "backup")
    made.reserve(RUN, command="two")
    link = tmp_path / "link"
    link.symlink_to(made.path)
    through = BudgetFile(link)
    assert len(through.state().runs) == 2
    link.unlink()
    link.symlink_to(tmp_path / "backup")
    with pytest.raises(LedgerError, match="lacks entries"):
        BudgetFile(link).reserve(RUN, command="three")
    assert len(through.state().runs) == 2  # which had found out where it led


def test_a_link_to_nothing_makes_one_budget(tmp_path):
    (tmp_path / "link").symlink_to(tmp_path / "target")
    new(tmp_path / "link")
    assert (tmp_path / "target").is_file()
    with pytest.raises(InputError, match="already a file"):
        new(tmp_path / "target")


@pytest.mark.parametrize(
    "terms",
    [
        {"epsilon": float("inf")},
        {"epsilon": float("nan")},
        {"epsilon": 0.0},
        {"delta": 0.0},
        {"delta": 1.0},
        {"delta": -1e-9},
        {"order": float("inf")},
        {"order": float("nan")},
        {"unit": "patient\x1b[2J"},
    ],
    ids=str,
)
def test_terms_that_promise_nothing_make_no_file(tmp_path, terms):
    with pytest.raises(InputError):
        new(tmp_path / "b", **terms)
    assert not (tmp_path / "b").exists()


@pytest.mark.parametrize(
    "terms", [{"epsilon": 1e-320}, {"delta": 1e-300}, {"epsilon": 1e300, "order": 1.0000001}], ids=str
)
def test_terms_at_the_end_of_numbers_admit_nothing_wrong(tmp_path, terms):
    made = new(tmp_path / "b", **terms)
    try:
        made.reserve(GaussianRelease(1e-3), command="far too much")
    except (BudgetExceeded, InputError):
        assert made.state().used == 0
    else:
        assert made.state().terms.epsilon == 1e300
        assert 0 <= made.state().used <= 1


@pytest.mark.parametrize("one", ["kid", "paid", "android"])
def test_units_that_only_end_like_ids_are_others(tmp_path, one):
    made = new(tmp_path / "b", unit=one)
    with pytest.raises(InputError, match="different units"):
        made.reserve(RUN, command="x", unit=one.removesuffix("id"))
    made.reserve(RUN, command="x", unit=f"{one}_id")


def test_who_stops_on_what_was_seen_and_spends_the_rest_stays_within_the_budget(tmp_path):
    """Runs chosen by what is left, stopped anywhere, settled, until nothing fits: together within the promise."""
    chance = random.Random(5)
    made = new(tmp_path / "b", epsilon=2.0, order=12.0)
    released = []
    for _ in range(60):
        step = PoissonSampled(0.05, GaussianRelease(chance.choice([0.8, 1.2, 3.0])))
        steps = chance.choice([20, 100, 400])
        try:
            run = made.reserve(Repeated(step, steps), command="chosen")
        except BudgetExceeded:
            continue
        done = chance.choice([0, 1, steps // 2, steps])
        event = Repeated(step, done) if done else None
        made.settle(run, event, "0" * 64)
        released += [event] if event else []
        assert made.state().used <= 1
    assert made.state().used > 0.9
    assert accountant("pld").epsilon(compose(*released), 1e-6).epsilon <= 2.0


def test_two_processes_begin_on_one_planned_reservation_once(tmp_path):
    made = new(tmp_path / "b", order=None)
    made.plan([(RUN, "one")])
    children = []
    for _ in range(2):
        child = os.fork()
        if not child:
            code = 77
            try:
                made.reserve(RUN, command="one")
                code = 0
            except BudgetExceeded:
                code = 5
            finally:
                os._exit(code)
        children.append(child)
    codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
    assert sorted(codes) == [0, 5]
    assert [run.started for run in made.state().runs] == [True]
