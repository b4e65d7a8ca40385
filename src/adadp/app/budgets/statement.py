"""What a certificate states of the budget that a run is counted in, and whether the budget's file says so too."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from adadp.app.budgets.budget import BudgetFile
from adadp.app.budgets.rules import FILTER
from adadp.app.budgets.snapshot import Snapshot
from adadp.errors import InputError
from adadp.events import ZcdpCost, flatten
from adadp.ledger import LedgerRecord

_CHANGES = {
    "add-remove": "adding or removing the record of one {unit}",
    "replace-one": "replacing the record of one {unit} by another one",
    "zero-out": "blanking out the record of one {unit}",
}
_TERMS = ("id", "epsilon", "delta", "neighbours", "unit", "rule")


def statement(state: Snapshot, file: str, run: str) -> dict[str, Any]:
    """What the certificate of ``run`` states of its budget, which lies in the ``file`` of that name."""
    terms = state.terms.as_json()
    found = {name: terms[name] for name in _TERMS} | {"file": file, "run": run}
    return found | {"text": _in_words(found)}


def _in_words(stated: Mapping[str, Any]) -> str:
    change = _CHANGES[stated["neighbours"]].format(unit=stated["unit"])
    how = "however they were chosen" if stated["rule"] == FILTER else "which were all planned before the first began"
    return (
        f"The run is counted in {stated['file']}, the budget of its data set. All runs on this data that are counted "
        f"there together, {how}, are ({stated['epsilon']:g}, {stated['delta']:g})-differentially private for {change}, "
        f"provided that in each of them one record is one {stated['unit']}, or all rows of one."
    )


def check_statement(certificate: Mapping[str, Any], named: str | None) -> str:
    """Hold what ``certificate`` states of a budget against the one that config.toml has ``named``."""
    stated = certificate.get("data_budget")
    if (stated is None) != (named is None):
        raise InputError("The certificate and config.toml do not agree on whether the run is counted in a budget.")
    if stated is None:
        return "the run is counted in none"
    if not isinstance(stated, dict) or set(stated) != {*_TERMS, "file", "run", "text"}:
        raise InputError("The certificate states its budget in another form.")
    if stated["text"] != _in_words(stated) or stated["file"] != Path(str(named)).name:
        raise InputError("What the certificate says of its budget does not follow from its terms.")
    if stated["run"] != certificate["ledger"]["run"]:
        raise InputError("The certificate names the reservation of another run.")
    return f"counted in {stated['file']}; that file was not looked at (--budget)"


def check_against(certificate: Mapping[str, Any], ledger: LedgerRecord, budget: Path) -> str:
    """Hold what ``certificate`` states of its budget, and what ``ledger`` has charged, against the file ``budget``."""
    stated = certificate.get("data_budget")
    if not isinstance(stated, dict):
        raise InputError("The run is not counted in a budget.", why="No total covers it.")
    state = BudgetFile(budget).state()
    if any(stated.get(name) != value for name, value in state.terms.as_json().items() if name in _TERMS):
        raise InputError(f"The certificate states another budget than {budget}.")
    run = state.run(ledger.run)
    if run is None:
        raise InputError(f"The run is not counted in {budget}.")
    covering, what = run.planned, "reserved"
    if run.settled is not None:
        if run.released is None or run.head != ledger.head:
            raise InputError(f"In {budget} the run was settled with another ledger.")
        covering, what = run.released, "settled"
    allowed = flatten(covering)
    filtered = run.settled is None and any(isinstance(event, ZcdpCost) for event in allowed)
    if not filtered and any(count > allowed.get(event, 0) for event, count in ledger.charges.items()):
        raise InputError(f"The ledger has charged more than was {what} in {budget}.")
    if not state.used <= 1:
        raise InputError(f"More than the whole budget {budget} is spent.")
    return f"{what} in {budget}, of which {state.used:.1%} is spent"
