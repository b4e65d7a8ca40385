"""``adadp ledger``: look at a ledger, or check that it holds."""

from __future__ import annotations

import json
import math
from typing import Any

import click

from adadp import checks
from adadp.app.cli.options import section
from adadp.errors import AccountingError, AdaptiveEvent, InputError, LedgerError
from adadp.events import describe, to_json
from adadp.ledger import LedgerRecord, read_ledger

_NOISE = {True: "computed from a seed: a rehearsal", False: "secret", None: "the ledger does not say"}


@section("Trust")
@click.group()
def ledger() -> None:
    """Look at the record of releases, or check that it holds."""


@ledger.command()
@click.argument("path", type=click.Path())
@click.option("--delta", type=float, help="Also compute epsilon at this delta.")
@click.option("--group", type=int, default=1, help="Epsilon for so many records together, such as one person's rows.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def show(path: str, delta: float | None, group: int, as_json: bool) -> None:
    """Show what PATH counts as released."""
    checks.count("group", group)
    if delta is None and group > 1:
        raise InputError("--group needs --delta.", fix="Add --delta.")
    record = read_ledger(path)
    cost = None if delta is None else _cost(record, delta, group)
    if as_json:
        # JSON has no infinity: an epsilon without bound is null.
        finite = {key: None if value == math.inf else value for key, value in (cost or {}).items()}
        click.echo(json.dumps(_as_json(record) | finite, allow_nan=False))
    else:
        _print(record, cost)


@ledger.command()
@click.argument("path", type=click.Path())
@click.option("--head", help="The head a certificate pinned: also notices lines cut off the end.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.pass_context
def verify(context: click.Context, path: str, head: str | None, as_json: bool) -> None:
    """Check every line of PATH. Exit code 0 if it holds, 2 if not."""
    try:
        record = read_ledger(path, expected_head=head)
    except LedgerError as error:
        if as_json:
            click.echo(json.dumps({"ok": False, "length": None, "head": None, "torn": None, "error": str(error)}))
        else:
            click.echo(f"broken: {error}", err=True)
        context.exit(2)
    if as_json:
        answer = {"ok": True, "length": record.length, "head": record.head, "torn": record.torn, "error": None}
        click.echo(json.dumps(answer))
    else:
        pinned = "" if head else " (no --head given: lines cut off the end would not be noticed)"
        click.echo(f"ok: {record.length} lines, {record.torn} torn and counted as spent, head {record.head}{pinned}")


def _cost(record: LedgerRecord, delta: float, group: int) -> dict[str, Any]:
    """Epsilon of the whole ledger; ``epsilon`` is null, with a ``reason``, where none can be certified."""
    from adadp.accounting import accountant  # noqa: PLC0415  # numpy and scipy, which only this question needs
    from adadp.app.accounting.groups import GroupAccountant  # noqa: PLC0415

    cost: dict[str, Any] = {
        "delta": checks.delta(delta),
        "epsilon": None,
        "epsilon_low": None,
        "epsilon_high": None,
        "status": None,
    }
    event = record.event()
    if record.not_private is not None:
        return cost | {"reason": f"none holds: {record.not_private}"}
    if event is None:
        return cost | {"epsilon": 0.0, "epsilon_low": 0.0, "epsilon_high": 0.0, "reason": "nothing was charged"}
    try:
        bracket = (accountant("pld") if group == 1 else GroupAccountant(group)).epsilon(event, delta)
    except AdaptiveEvent:
        rule = "the ledger has none" if record.budget is None else json.dumps(record.budget)
        return cost | {"reason": f"chosen from earlier releases, so that only a budget rule bounds the cost: {rule}"}
    except AccountingError as error:
        return cost | {"reason": f"cannot be certified: {error}"}
    if record.seeded:
        without = f"whoever has the seed can compute the noise again; without a seed {bracket.epsilon}"
        return cost | {"epsilon_if_unseeded": bracket.epsilon, "reason": f"none holds, this is a rehearsal: {without}"}
    values = {name: getattr(bracket, name) for name in ("epsilon", "epsilon_low", "epsilon_high")}
    together = {} if group == 1 else {"group": group}
    return cost | values | {"status": bracket.status.value, "reason": None} | together


def _as_json(record: LedgerRecord) -> dict[str, Any]:
    return {
        "run": record.run,
        "created": record.created,
        "seeded": record.seeded,
        "neighbours": record.neighbours.value if record.neighbours else None,
        "budget": record.budget,
        "charges": [
            {"event": to_json(event), "description": describe(event), "count": count}
            for event, count in record.charges.items()
        ],
        "torn": record.torn,
        "length": record.length,
        "head": record.head,
    }


def _print(record: LedgerRecord, cost: dict[str, Any] | None) -> None:
    from rich.console import Console  # noqa: PLC0415  # `adadp --help` must not wait for it
    from rich.table import Table  # noqa: PLC0415

    facts = {
        "run": f"{record.run}, created {record.created}",
        "noise": _NOISE[record.seeded],
        "neighbours": record.neighbours.value if record.neighbours else "none yet",
        "budget": "none" if record.budget is None else json.dumps(record.budget),
        "torn lines": f"{record.torn} (counted as spent)",
        "head": f"{record.head} ({record.length} lines)",
    }
    if cost is not None:
        facts["epsilon"] = cost["reason"] or (
            f"{cost['epsilon']} (between {cost['epsilon_low']} and {cost['epsilon_high']}) "
            f"at delta {cost['delta']}, {cost['status']}"
            + (f", for {cost['group']} records together" if "group" in cost else "")
        )
    # What stands in the file is printed as it is, uninterpreted and unshortened, and epsilon unrounded.
    console = Console(markup=False, highlight=False, soft_wrap=True)
    for name, fact in facts.items():
        console.print(f"{name:<12}{fact}")
    table = Table("event", "count")
    table.columns[1].justify = "right"
    for event, count in record.charges.items():
        table.add_row(describe(event), str(count))
    console.print(table)
