"""``adadp ledger show`` and ``adadp ledger verify``: for people, and as JSON for programs."""

from __future__ import annotations

import json
import math
import sys
from enum import Enum
from types import ModuleType, SimpleNamespace

import pytest
from click.testing import CliRunner

from adadp.app.cli.ledger import ledger as command
from adadp.errors import AdaptiveEvent, InputError, LedgerCorrupt, UnsupportedEvent
from adadp.events import AdaptivelyChosen, Composed, GaussianRelease, PoissonSampled, Repeated, from_json, to_json
from adadp.ledger import Ledger, PlannedBudget, read_ledger

STEP = PoissonSampled(0.01, GaussianRelease(1.1))
PCA = GaussianRelease(16.0)
PLAN = Composed((Repeated(STEP, 9), PCA))


class Status(str, Enum):
    CERTIFIED = "certified"


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "run[bold].ledger"
    with Ledger.create(path, run="run [red]1[/red]", budget=PlannedBudget(PLAN)) as ledger:
        ledger.charge(STEP, 7)
        ledger.charge(PCA)
    return path


@pytest.fixture
def accountant(monkeypatch):
    """Put an accountant in the place of the real one; it answers ``answer``, or raises it."""
    asked = []
    module = ModuleType("adadp.accounting")

    def epsilon(event, delta):
        asked.append((event, delta))
        if isinstance(module.answer, Exception):
            raise module.answer
        low, value, high = module.answer
        return SimpleNamespace(epsilon=value, epsilon_low=low, epsilon_high=high, status=Status.CERTIFIED)

    module.asked = asked
    module.answer = (0.5, 0.625, 0.75)
    module.accountant = lambda name: SimpleNamespace(epsilon=epsilon) if name == "pld" else None
    monkeypatch.setitem(sys.modules, "adadp.accounting", module)
    return module


@pytest.mark.usefixtures("accountant")
def test_the_ledger_of_a_rehearsal_says_so_and_certifies_nothing(tmp_path):
    with Ledger.create(tmp_path / "run.ledger", budget=PlannedBudget(PLAN), seeded=True) as ledger:
        ledger.charge(PCA)
    shown = json.loads(run("show", tmp_path / "run.ledger", "--delta", "1e-5", "--json").output)
    assert shown["seeded"] is True
    assert shown["epsilon"] is shown["epsilon_high"] is None
    assert shown["epsilon_if_unseeded"] == 0.625
    assert "this is a rehearsal" in shown["reason"]
    text = run("show", tmp_path / "run.ledger", "--delta", "1e-5").output
    assert "computed from a seed: a rehearsal" in text
    assert "none holds, this is a rehearsal" in text


@pytest.mark.usefixtures("accountant")
def test_charges_that_prove_nothing_get_no_epsilon(tmp_path):
    with Ledger.create(tmp_path / "run.ledger", budget=PlannedBudget(PLAN, not_private="Raw gradients.")) as ledger:
        ledger.charge(PCA)
    assert read_ledger(tmp_path / "run.ledger").not_private == "Raw gradients."
    assert "none holds: Raw gradients." in run("show", tmp_path / "run.ledger", "--delta", "1e-5").output
    answer = json.loads(run("show", tmp_path / "run.ledger", "--delta", "1e-5", "--json").output)
    assert (answer["epsilon"], answer["status"]) == (None, None)


def run(*arguments, code=0):
    result = CliRunner().invoke(command, [str(argument) for argument in arguments])
    assert result.exit_code == code, result.output
    return result


def test_show_tells_people_what_was_released(path):
    record = read_ledger(path)
    output = run("show", path).output
    assert "run [red]1[/red], created " + record.created in output
    assert "add-remove" in output
    assert f"{record.head} (5 lines)" in output
    assert "torn lines  0" in output
    assert '"rule": "planned"' in output
    rows = [line.split() for line in output.splitlines()]
    assert ["Poisson(q=0.01)", "of", "Gaussian(sigma=1.1)", "7"] in [
        [cell for cell in row if cell != "│"] for row in rows
    ]
    assert ["Gaussian(sigma=16)", "1"] in [[cell for cell in row if cell != "│"] for row in rows]
    assert "epsilon" not in output.replace('"epsilon', "")


def test_show_as_json(path):
    record = read_ledger(path)
    shown = json.loads(run("show", path, "--json").output)
    assert shown == {
        "run": "run [red]1[/red]",
        "created": record.created,
        "seeded": None,
        "neighbours": "add-remove",
        "budget": PlannedBudget(PLAN).describe(),
        "charges": [
            {"event": to_json(STEP), "description": "Poisson(q=0.01) of Gaussian(sigma=1.1)", "count": 7},
            {"event": to_json(PCA), "description": "Gaussian(sigma=16)", "count": 1},
        ],
        "torn": 0,
        "length": 5,
        "head": record.head,
    }
    assert from_json(shown["charges"][0]["event"]) == STEP


def test_show_counts_a_torn_line_without_touching_the_file(path):
    data = path.read_bytes()[:-9]
    path.write_bytes(data)
    shown = json.loads(run("show", path, "--json").output)
    assert (shown["torn"], shown["charges"][1]["count"]) == (1, 1)
    assert "torn lines  1 (counted as spent)" in run("show", path).output
    assert path.read_bytes() == data


def test_show_of_a_ledger_without_charges(tmp_path, accountant):
    Ledger.create(tmp_path / "new").close()
    shown = json.loads(run("show", tmp_path / "new", "--json", "--delta", "1e-5").output)
    assert (shown["neighbours"], shown["budget"], shown["charges"]) == (None, None, [])
    assert (shown["epsilon"], shown["epsilon_high"], shown["reason"]) == (0.0, 0.0, "nothing was charged")
    output = run("show", tmp_path / "new", "--delta", "1e-5").output
    assert "neighbours  none yet" in output
    assert "nothing was charged" in output
    assert accountant.asked == []


def test_show_with_delta_asks_for_the_whole_ledger(path, accountant):
    shown = json.loads(run("show", path, "--delta", "1e-5", "--json").output)
    assert accountant.asked == [(Composed((Repeated(STEP, 7), PCA)), 1e-5)]
    wanted = {"delta": 1e-5, "epsilon": 0.625, "epsilon_low": 0.5, "epsilon_high": 0.75}
    assert shown.items() >= (wanted | {"status": "certified", "reason": None}).items()
    assert "0.625 (between 0.5 and 0.75) at delta 1e-05, certified" in run("show", path, "--delta", "1e-5").output


def test_an_epsilon_without_bound_is_null_in_json(path, accountant):
    accountant.answer = (math.inf, math.inf, math.inf)
    shown = json.loads(run("show", path, "--delta", "1e-5", "--json").output)
    assert (shown["epsilon"], shown["epsilon_low"], shown["epsilon_high"]) == (None, None, None)
    assert "inf (between inf and inf)" in run("show", path, "--delta", "1e-5").output


def test_what_no_accountant_can_certify_is_said(path, accountant):
    accountant.answer = UnsupportedEvent("There is no theorem for it.")
    shown = json.loads(run("show", path, "--delta", "1e-5", "--json").output)
    assert (shown["epsilon"], shown["reason"]) == (None, "cannot be certified: There is no theorem for it.")
    assert "cannot be certified: There is no theorem" in run("show", path, "--delta", "1e-5").output


def test_adaptive_charges_show_the_budget_that_bounds_them(tmp_path, path, accountant):
    accountant.answer = AdaptiveEvent("Only a filter may certify it.")
    output = run("show", path, "--delta", "1e-5").output
    assert 'only a budget rule bounds the cost: {"rule": "planned"' in output
    with Ledger.create(tmp_path / "free") as ledger:
        ledger.charge(AdaptivelyChosen(STEP))
    shown = json.loads(run("show", tmp_path / "free", "--delta", "1e-5", "--json").output)
    assert shown["epsilon"] is None
    assert shown["reason"].endswith("the ledger has none")


def test_show_lets_errors_go_to_the_top_level_command(path, accountant):
    assert isinstance(run("show", path, "--delta", "2", code=1).exception, InputError)
    path.write_text("secret")
    assert isinstance(run("show", path, code=1).exception, LedgerCorrupt)


def test_verify_of_a_good_ledger(path):
    head = read_ledger(path).head
    assert run("verify", path, "--head", head).output == f"ok: 5 lines, 0 torn and counted as spent, head {head}\n"
    assert "lines cut off the end would not be noticed" in run("verify", path).output
    answer = {"ok": True, "length": 5, "head": head, "torn": 0, "error": None}
    assert json.loads(run("verify", path, "--json").output) == answer


def test_verify_of_a_broken_ledger(path):
    head = read_ledger(path).head
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([*lines[:2], lines[3], lines[2], lines[4]]))
    result = run("verify", path, code=2)
    assert result.stdout == ""
    assert result.stderr.startswith("broken: Line 3 of ")
    answer = json.loads(run("verify", path, "--json", code=2).stdout)
    assert answer.pop("error").startswith("Line 3 of ")
    assert answer == {"ok": False, "length": None, "head": None, "torn": None}
    path.write_bytes(b"".join(lines[:-1]))
    run("verify", path)
    assert "expected head" in run("verify", path, "--head", head, code=2).stderr


def test_verify_of_a_file_that_is_not_there(tmp_path):
    assert "cannot be opened" in run("verify", tmp_path / "missing", code=2).stderr
