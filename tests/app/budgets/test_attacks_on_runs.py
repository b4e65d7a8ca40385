"""Folders and budgets that were forged, copied, set back or taken away while a run is counted."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from torch import nn

from adadp.app import state, zoo
from adadp.app.budgets import BudgetFile
from adadp.app.budgets.settling import settle_folder
from adadp.app.train import fit, verify_run
from adadp.errors import BudgetExceeded, Interrupted, LedgerBusy, LedgerCorrupt, LedgerError
from adadp.events import GaussianRelease, PoissonSampled, Repeated
from adadp.ledger import Ledger, read_ledger
from adadp.ledger.chain import Chain

DATA = zoo.load("cancer").train


@pytest.fixture(autouse=True)
def notes(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv(state.FOLDER, str(tmp_path / "state"))
    return tmp_path / "state" / "runs"


@pytest.fixture
def budget(tmp_path) -> BudgetFile:
    return BudgetFile.create(tmp_path / "people.budget", epsilon=4, delta=1e-6, unit="patient", order=7.0)


def train(budget, out, **settings):
    torch.manual_seed(0)
    own = {"noise_multiplier": 4.0, "delta": 1e-4, "steps": 8, "batch_size": 28, "lr": 0.1, "checkpoint_every": 2}
    named = None if budget is None else str(budget.path)
    return fit(nn.Linear(9, 2), DATA, out=out, budget=named, **(own | settings))


def stopped(budget, out, after=5, meanwhile=None, **settings):
    def stop(status):
        if status.step == after:
            if meanwhile is not None:
                meanwhile()
            raise KeyboardInterrupt

    with pytest.raises((KeyboardInterrupt, Interrupted)):
        train(budget, out, watch=stop, **settings)
    return out


def forged(ledger: Path, lines: int, **header):
    """The first ``lines`` of a ledger with another header, every checksum made anew: nothing is secret in them."""
    chain, made = Chain(), []
    for line in ledger.read_bytes().splitlines()[:lines]:
        body = json.loads(line)
        del body["chain"]
        if body["kind"] == "header":
            body |= header
        made.append(chain._sealed(body))
        assert chain.accept(made[-1])
    ledger.write_bytes(b"\n".join(made) + b"\n")


def test_a_forged_ledger_that_quotes_what_was_noted_neither_goes_on_nor_settles(budget, tmp_path):
    out = stopped(budget, tmp_path / "run")
    head, used = read_ledger(out / "ledger.jsonl").head, budget.state().used
    forged(out / "ledger.jsonl", 4, more={"chain": head})
    assert read_ledger(out / "ledger.jsonl").length == 4
    with pytest.raises(LedgerError, match="ends before what"):
        train(budget, out, resume=True)
    with pytest.raises(LedgerError, match="ends before what"):
        settle_folder(budget, out)
    assert budget.state().used == used


@pytest.mark.parametrize("name", ["absolute", "up", "other"])
def test_a_ledger_does_not_say_where_notes_are_written(budget, tmp_path, name):
    """The id of a run is the name of a file; that of a stranger's run could be any file of this machine."""
    out = stopped(None, tmp_path / "run", after=3)
    victim = tmp_path / "victim"
    victim.write_text("precious")
    forged(out / "ledger.jsonl", 99, run={"absolute": str(victim), "up": "../../victim", "other": "A" * 16}[name])
    with pytest.raises(LedgerCorrupt, match="does not name its run"):
        train(None, out, resume=True, moved=True)
    with pytest.raises(LedgerCorrupt, match="does not name its run"):
        settle_folder(budget, out)
    assert victim.read_text() == "precious"
    assert [each.name for each in tmp_path.glob("victim*")] == ["victim"]


@pytest.mark.parametrize("header", [{"run": 5}, {"run": None}, {"created": "yesterday"}, {"created": 7}], ids=str)
def test_a_header_that_says_no_run_or_no_time_is_one_clear_error(budget, tmp_path, header):
    ledger = tmp_path / "ledger.jsonl"
    Ledger.create(ledger).close()
    body = {key: value for key, value in json.loads(ledger.read_bytes()).items() if key != "chain"}
    ledger.write_bytes(Chain()._sealed(body | header) + b"\n")
    with pytest.raises(LedgerCorrupt, match="Line 1"):
        read_ledger(ledger)


def test_a_copy_that_goes_on_beside_the_original_takes_nothing_more_and_gives_nothing_back(budget, tmp_path):
    out = stopped(budget, tmp_path / "run")
    shutil.copytree(out, tmp_path / "copy")
    used = budget.state().used

    def second():
        with pytest.raises(LedgerBusy):
            train(budget, tmp_path / "copy", resume=True)
        with pytest.raises(LedgerBusy):
            settle_folder(budget, tmp_path / "copy")

    stopped(budget, out, after=7, meanwhile=second, resume=True)
    assert budget.state().used == used
    with pytest.raises(LedgerError, match="ends before what"):
        settle_folder(budget, tmp_path / "copy")
    train(budget, out, resume=True)
    with pytest.raises(LedgerError, match="ends before what"):
        train(budget, tmp_path / "copy", resume=True)
    shutil.copytree(out, tmp_path / "late")
    (tmp_path / "late" / "model.safetensors").unlink()
    with pytest.raises(LedgerError, match="has been settled"):
        train(budget, tmp_path / "late", resume=True)


def test_a_run_whose_folder_was_emptied_begins_as_a_second_one(budget, tmp_path):
    out = stopped(budget, tmp_path / "run")
    used = budget.state().used
    for each in out.iterdir():
        if each.name != "config.toml":
            each.unlink()
    train(budget, out, resume=True)
    assert len(budget.state().runs) == 2
    assert budget.state().used == pytest.approx(2 * used)


def test_a_budget_that_is_gone_at_the_end_of_a_run_lets_it_finish_when_it_is_back(budget, tmp_path):
    out, away = tmp_path / "run", tmp_path / "away"

    def take(status):
        if status.step == 5:
            budget.path.rename(away)

    with pytest.raises(Exception, match="There is no budget"):
        train(budget, out, watch=take)
    assert not (out / "certificate.json").exists()
    away.rename(budget.path)
    assert sum(read_ledger(out / "ledger.jsonl").charges.values()) == 8
    train(budget, out, resume=True)
    assert sum(read_ledger(out / "ledger.jsonl").charges.values()) == 8
    assert all(check.passed for check in verify_run(out, budget.path))


def test_a_budget_set_back_during_a_run_is_not_gone_on_with(budget, tmp_path):
    backup = tmp_path / "backup"
    shutil.copy(budget.path, backup)

    def restore(status):
        if status.step == 5:
            shutil.copy(budget.path, tmp_path / "latest")
            shutil.copy(backup, budget.path)

    with pytest.raises(LedgerError, match="lacks entries"):
        train(budget, tmp_path / "run", watch=restore)
    with pytest.raises(LedgerError, match="lacks entries"):
        train(budget, tmp_path / "other")
    shutil.copy(tmp_path / "latest", budget.path)
    (run,) = budget.state().runs
    assert run.settled is None


def test_a_refused_run_says_what_would_fit_after_others_took_their_part(budget, tmp_path):
    rule = budget.state().terms.rule
    train(budget, tmp_path / "one")
    spent = budget.state().used
    assert 0 < spent < 1
    with pytest.raises(BudgetExceeded, match="% of its budget left") as refused:
        train(budget, tmp_path / "two", noise_multiplier=0.7, steps=300)
    multiplier = float(str(refused.value).split("noise multiplier of ")[1].split(" fits")[0])
    shares = [
        rule.share([Repeated(PoissonSampled(28 / len(DATA[1]), GaussianRelease(each)), 300)])
        for each in (multiplier, multiplier * 0.98)
    ]
    assert shares[0] <= 1 - spent < shares[1]


class Machines:
    """Two machines that share the disk with the budget, each with notes of its own."""

    def __init__(self, monkeypatch, tmp_path):
        self._patch, self._path = monkeypatch, tmp_path

    def use(self, name):
        self._patch.setenv(state.FOLDER, str(self._path / f"notes of {name}"))


@pytest.fixture
def machines(monkeypatch, tmp_path):
    return Machines(monkeypatch, tmp_path)


def test_a_copy_that_went_on_elsewhere_keeps_the_original_from_going_on(budget, tmp_path, machines):
    """Neither machine has notes of the other. The budget has."""
    machines.use("first")
    out = stopped(budget, tmp_path / "run", after=3)
    copy = shutil.copytree(out, tmp_path / "copy")
    machines.use("second")
    stopped(budget, copy, after=5, resume=True, moved=True)
    machines.use("first")
    before, used = (out / "ledger.jsonl").read_bytes(), budget.state().used
    with pytest.raises(LedgerError, match="was resumed elsewhere"):
        train(budget, out, resume=True)
    with pytest.raises(LedgerError, match="was resumed elsewhere"):
        settle_folder(budget, out)
    assert (out / "ledger.jsonl").read_bytes() == before
    machines.use("second")
    train(budget, copy, resume=True)  # it has gone on there, and does
    assert budget.state().used == used
    assert [run.resumed for run in budget.state().runs] == [2]
    assert all(check.passed for check in verify_run(copy, budget.path))


def test_of_two_copies_that_go_on_at_once_one_is_certified(budget, tmp_path, machines):
    machines.use("first")
    out = stopped(budget, tmp_path / "run", after=3)
    copy = shutil.copytree(out, tmp_path / "copy")

    def elsewhere(status):
        if status.step == 5:
            machines.use("second")
            train(budget, copy, resume=True, moved=True)
            machines.use("first")

    with pytest.raises(LedgerError, match="was resumed elsewhere"):
        train(budget, out, resume=True, watch=elsewhere)
    assert (copy / "certificate.json").exists()
    assert not (out / "certificate.json").exists()
    with pytest.raises(LedgerError, match="has been settled"):
        train(budget, out, resume=True, moved=True)


def test_who_says_that_the_other_copy_released_nothing_is_quoted(budget, tmp_path, machines):
    machines.use("first")
    out = stopped(budget, tmp_path / "run", after=3)
    copy = shutil.copytree(out, tmp_path / "copy")
    machines.use("second")
    stopped(budget, copy, after=5, resume=True, moved=True)
    machines.use("first")
    train(budget, out, resume=True, moved=True)
    assert any("or an older one" in note for note in json.loads((out / "certificate.json").read_text())["notes"])


@pytest.mark.parametrize("place", ["before", "after"])
def test_a_kill_between_the_turn_in_the_notes_and_that_in_the_budget_does_not_matter(
    budget, tmp_path, monkeypatch, place
):
    out = stopped(budget, tmp_path / "run", after=3)
    whole = BudgetFile.resume

    def killed(*given):
        if place == "after":
            whole(*given)
        raise SystemExit(9)

    with monkeypatch.context() as patch:
        patch.setattr(BudgetFile, "resume", killed)
        with pytest.raises(SystemExit):
            train(budget, out, resume=True)
    train(budget, out, resume=True)
    assert all(check.passed for check in verify_run(out, budget.path))
