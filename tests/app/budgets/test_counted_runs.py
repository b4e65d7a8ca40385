"""Runs that are counted in a budget: trained, stopped, settled, verified, killed."""

from __future__ import annotations

import ast
import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from adadp.app import state, zoo
from adadp.app.budgets import BudgetFile
from adadp.app.budgets.settling import settle_folder
from adadp.app.train import fit, verify_run
from adadp.errors import BudgetExceeded, InputError, Interrupted, LedgerBusy, LedgerError
from adadp.ledger import Ledger, read_ledger

FEATURES, LABELS = zoo.load("cancer").train
SETTINGS = {"noise_multiplier": 4.0, "delta": 1e-4, "steps": 12, "batch_size": 28, "lr": 0.1}


@pytest.fixture(autouse=True)
def notes(tmp_path, monkeypatch):
    monkeypatch.setenv(state.FOLDER, str(tmp_path / "state"))


@pytest.fixture
def budget(tmp_path):
    return BudgetFile.create(tmp_path / "people.budget", epsilon=4, delta=1e-6, unit="patient", order=7.0)


def train(to, out=None, *, features=FEATURES, watch=None, resume=False, **settings):
    torch.manual_seed(0)
    settings = {**SETTINGS, "budget": str(to.path), **settings}
    return fit(nn.Linear(9, 2), (features, LABELS), out=out, watch=watch, resume=resume, **settings)


def stopped(budget, out, after=5):
    def stop(status):
        if status.step == after:
            raise KeyboardInterrupt

    with pytest.raises((KeyboardInterrupt, Interrupted)):
        train(budget, out, watch=stop)
    return out


def checks(out, budget=None):
    return {check.name: check for check in verify_run(out, budget)}


def edit(path, **changes):
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def test_a_finished_run_is_settled_with_what_its_ledger_says(budget, tmp_path):
    found = train(budget, tmp_path / "run")
    (run,) = budget.state().runs
    record = read_ledger(tmp_path / "run" / "ledger.jsonl")
    assert (run.id, run.head, run.command) == (record.run, record.head, "adadp.fit")
    assert run.released == record.event() == found.plan.event()
    assert found.certificate["data_budget"]["text"] in found.describe()
    text = "All runs on this data that are counted there together, however they were chosen, are (4, 1e-06)-"
    assert text in found.certificate["data_budget"]["text"]
    assert text in (tmp_path / "run" / "report.html").read_text()
    assert all(check.passed for check in checks(tmp_path / "run", budget.path).values())


def test_a_run_without_a_folder_is_settled_too(budget):
    train(budget)
    (run,) = budget.state().runs
    assert run.settled is not None
    assert run.released is not None


def test_a_run_without_a_folder_that_stops_counts_what_it_released(budget):
    stopped(budget, None, after=3)
    (run,) = budget.state().runs
    assert run.settled is not None
    assert budget.state().used == pytest.approx(budget.state().terms.rule.share([run.planned]) / 4)


def test_a_refusal_says_what_fits_and_leaves_nothing(budget, tmp_path):
    with pytest.raises(BudgetExceeded, match=r"noise multiplier of .* fits: pass an epsilon of at most") as refused:
        train(budget, tmp_path / "run", noise_multiplier=0.6, steps=300)
    assert budget.state().runs == ()
    assert not (tmp_path / "run").exists()
    epsilon = float(str(refused.value).split("at most ")[1].split(" at delta")[0])
    train(budget, tmp_path / "run", noise_multiplier=None, epsilon=epsilon, steps=300)
    assert 0.8 < budget.state().used <= 1
    with pytest.raises(BudgetExceeded):
        train(budget, noise_multiplier=None, epsilon=epsilon, steps=300)


def test_what_fails_before_the_first_charge_is_given_back(budget, tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "other").touch()
    with pytest.raises(InputError, match="not a new or empty folder"):
        train(budget, tmp_path / "run")
    (run,) = budget.state().runs
    assert run.given_back
    assert budget.state().used == 0


def test_a_stopped_run_stays_counted_and_goes_on_with_what_it_reserved(budget, tmp_path):
    out = stopped(budget, tmp_path / "run")
    (run,) = budget.state().runs
    assert run.settled is None
    reserved = budget.state().used
    train(budget, out, resume=True)
    (run,) = budget.state().runs
    assert (run.resumed, budget.state().used) == (1, reserved)
    assert all(check.passed for check in checks(out, budget.path).values())


def test_a_stopped_run_that_is_settled_gives_back_and_does_not_go_on(budget, tmp_path):
    out = stopped(budget, tmp_path / "run")
    reserved = budget.state().used
    settle_folder(budget, out)
    charged = sum(read_ledger(out / "ledger.jsonl").charges.values())
    assert budget.state().used == pytest.approx(reserved * charged / 12)
    assert charged < 12
    shutil.copytree(out, tmp_path / "copy")
    for place in (out, tmp_path / "copy"):
        with pytest.raises(LedgerError, match="has been settled"):
            train(budget, place, resume=True)
        with pytest.raises(InputError, match="another configuration"):
            train(budget, place, resume=True, budget=None)
    with pytest.raises(LedgerError, match="has been settled"):
        settle_folder(budget, out)


def test_only_the_latest_ledger_settles_a_run(budget, tmp_path, monkeypatch):
    out = stopped(budget, tmp_path / "run")
    reserved, whole = budget.state().used, (out / "ledger.jsonl").read_bytes()
    (out / "ledger.jsonl").write_bytes(b"".join(whole.splitlines(keepends=True)[:1]))  # no charge at all
    with pytest.raises(LedgerError, match="ends before"):
        settle_folder(budget, out)
    with monkeypatch.context() as elsewhere:
        elsewhere.setenv(state.FOLDER, str(tmp_path / "elsewhere"))
        with pytest.raises(LedgerError, match="no note of the run"):
            settle_folder(budget, out)
    (out / "ledger.jsonl").unlink()
    with pytest.raises(InputError, match="stays counted"):
        settle_folder(budget, out)
    shutil.copytree(out, tmp_path / "stranger")
    Ledger.create(tmp_path / "stranger" / "ledger.jsonl", run=budget.state().runs[0].id).close()
    with pytest.raises(LedgerError, match="created with the budget None"):
        settle_folder(budget, tmp_path / "stranger")
    assert budget.state().used == reserved


def test_a_run_that_is_going_on_is_not_settled(budget, tmp_path):
    asked = []

    def look(status):
        if status.step == 3:
            with pytest.raises(LedgerBusy):
                settle_folder(budget, tmp_path / "run")
            asked.append(status.step)

    train(budget, tmp_path / "run", watch=look)
    assert asked == [3]


def test_a_run_of_another_budget_is_not_settled_here(budget, tmp_path):
    out = stopped(budget, tmp_path / "run")
    other = BudgetFile.create(tmp_path / "other.budget", epsilon=4, delta=1e-6, unit="patient", order=7.0)
    with pytest.raises(LedgerError, match="is not counted in"):
        settle_folder(other, out)
    train(budget, out, resume=True)
    assert not checks(out, other.path)["budget file"].passed


def test_what_a_certificate_says_of_its_budget_is_checked(budget, tmp_path):
    train(budget, tmp_path / "run")
    place = tmp_path / "run" / "certificate.json"
    stated = json.loads(place.read_text())["data_budget"]
    for wrong in (
        {**stated, "text": stated["text"].replace("(4,", "(1,")},
        {**stated, "run": "0" * 16},
        {**stated, "more": 1},
        None,
        "all is well",
    ):
        edit(place, data_budget=wrong)
        assert not checks(tmp_path / "run")["budget"].passed
    smaller = {**stated, "epsilon": 1.0, "text": stated["text"].replace("(4,", "(1,")}
    edit(place, data_budget=smaller)
    found = checks(tmp_path / "run", budget.path)
    assert found["budget"].passed
    assert not found["budget file"].passed


def test_a_run_without_a_budget_is_not_covered_by_one(budget, tmp_path):
    train(budget, tmp_path / "run", budget=None)
    assert budget.state().runs == ()
    assert "budget" not in checks(tmp_path / "run")
    assert not checks(tmp_path / "run", budget.path)["budget file"].passed


@pytest.mark.parametrize(
    ("settings", "match"),
    [
        ({"seed": 0}, "the run protects nothing"),
        ({"noise_multiplier": 0, "allow_nonprivate": True}, "No budget covers"),
        ({"allow_nonprivate": True}, "No budget covers"),
        ({"neighbours": "replace-one", "sampling": "fixed"}, "for add-remove neighbours"),
        ({"budget": "missing.budget"}, "There is no budget"),
    ],
)
def test_what_no_budget_can_count_is_refused(budget, settings, match):
    with pytest.raises(InputError, match=match):
        train(budget, **settings)
    assert budget.state().runs == ()


def test_noise_chosen_during_a_run_is_reserved_by_its_rho_or_refused(budget):
    settings = {
        "noise_multiplier": None,
        "method": "agd",
        "rho": 0.05,
        "batch_size": len(LABELS),
        "steps": 4,
        "lr": None,
    }
    train(budget, **settings)
    (run,) = budget.state().runs
    rule = budget.state().terms.rule
    assert run.planned.rho == pytest.approx(0.05)
    shares = rule.share([run.released]), rule.share([run.planned])
    assert budget.state().used == min(shares) > 0
    with pytest.raises(InputError, match="chosen during the run"):
        train(budget, **{**settings, "rho": None, "epsilon": 0.5, "batch_size": 50})


@pytest.mark.slow
def test_two_runs_at_once_never_pass_the_budget_and_a_kill_counts_what_was_released(tmp_path, budget):
    """Two that want more than half each: one is refused. A kill between each two writes to budget, ledger and notes; a
    run that can go on does, on what it reserved.
    """
    at_once, points = killed(tmp_path)
    assert sorted(at_once) == [0, 5]
    assert budget.state().used <= 1
    assert len(budget.state().runs) == 1
    rule = budget.state().terms.rule
    for point, code in points.items():
        out, file = tmp_path / point, BudgetFile(tmp_path / f"{point}.budget")
        assert code == 9, point
        found = file.state()
        released = None
        if (out / "ledger.jsonl").exists():
            released = read_ledger(out / "ledger.jsonl").event()
            assert found.run(read_ledger(out / "ledger.jsonl").run) is not None, point
        assert found.used >= (0.0 if released is None else rule.share([released])) * (1 - 1e-12), point
        assert len(found.runs) == (point != "before the reservation"), point
        if (out / "checkpoint.safetensors").exists():
            train(file, out, resume=True, steps=4)
        if point.startswith("before the settling"):
            settle_folder(file, out)
        if (out / "certificate.json").exists():
            assert file.state().runs[0].settled is not None, point


_CHILD = '''
import os, sys
from pathlib import Path
import torch
from torch import nn
from adadp.app import zoo
from adadp.app.budgets import BudgetFile, store
from adadp.app.train import fit, session
from adadp.errors import BudgetExceeded
from adadp.ledger import Ledger

torch.set_num_threads(1)
data = zoo.load("cancer").train

def train(budget, out, **settings):
    settings = {"noise_multiplier": 4.0, "delta": 1e-4, "steps": 4, "batch_size": 28, "lr": 0.1} | settings
    fit(nn.Linear(9, 2), data, out=out, budget=str(budget), **settings)

def die(*_, **__):
    os._exit(9)

def at(owner, name, number=1, after=False):
    """Die at a call of a function: before it, or after it."""
    whole, calls = getattr(owner, name), []
    def counted(*given, **more):
        calls.append(1)
        if len(calls) == number and not after:
            die()
        result = whole(*given, **more)
        if len(calls) == number:
            die()
        return result
    setattr(owner, name, counted)

POINTS = {
    "before the reservation": lambda: at(store, "_insert"),
    "after the commit": lambda: at(store._Note, "write"),
    "before the folder": lambda: at(session.RunFolder, "create"),
    "before the ledger": lambda: at(Ledger, "create"),
    "after the ledger": lambda: at(Ledger, "create", after=True),
    "before the first charge": lambda: at(Ledger, "charge"),
    "after a charge": lambda: at(Ledger, "charge", 3, after=True),
    "before the settling": lambda: at(session._Place, "_settle"),
    "before the settling is written": lambda: at(store, "_insert", 2),
    "after the settling": lambda: at(session._Place, "_settle", after=True),
}

def child(work):
    found = os.fork()
    if not found:
        code = 77
        try:
            work()
            code = 0
        except BudgetExceeded:
            code = 5
        finally:
            sys.stderr.flush()
            os._exit(code)
    return found

def code_of(found):
    return os.waitstatus_to_exitcode(os.waitpid(found, 0)[1])

def new(name):
    BudgetFile.create(place / name, epsilon=4, delta=1e-6, unit="patient", order=7.0)
    return place / name

place = Path(sys.argv[1])
train(new("first"), place / "warm")  # what it loads and computes, its forks need not
path = place / "people.budget"
runs = [child(lambda: train(path, place / str(n), noise_multiplier=1.6, steps=250)) for n in range(2)]
at_once = [code_of(run) for run in runs]
codes = {}
for point, arm in POINTS.items():
    file = new(f"{point}.budget")
    codes[point] = code_of(child(lambda: (arm(), train(file, place / point))))
print((at_once, codes))
'''


def killed(tmp_path: Path):
    """The exit codes of real processes: forks of one that has torch loaded, and no threads."""
    script = tmp_path / "child.py"
    script.write_text(_CHILD)
    found = subprocess.run([sys.executable, script, tmp_path], capture_output=True, text=True, check=True)
    return ast.literal_eval(found.stdout.splitlines()[-1])
