"""``adadp budget``: one budget for all runs on a data set."""

# numpy, scipy, matplotlib and torch take seconds to load, which `adadp --help` must not wait for.
# ruff: noqa: PLC0415

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from adadp.app.cli.options import section
from adadp.errors import InputError

if TYPE_CHECKING:
    from adadp.app.budgets import CountedRun, Snapshot

_FILE = click.Path(dir_okay=False)


@section("Trust")
@click.group()
def budget() -> None:
    """One privacy budget for all runs on a data set.

    \b
    adadp budget create people.budget --epsilon 4 --delta 1e-6 --unit patient
    adadp train --data table:people.csv --schema people.toml --epsilon 1 --delta 1e-6 --budget people.budget --out a
    adadp budget show people.budget --plot spent.png
    """


@budget.command()
@click.argument("path", type=_FILE)
@click.option("--epsilon", type=float, required=True, help="What all runs together may cost.")
@click.option("--delta", type=float, required=True, help="At this delta, well below 1 / number of records.")
@click.option("--unit", required=True, help="What one record stands for: patient, household, visit.")
@click.option(
    "--neighbours",
    type=click.Choice(["add-remove", "replace-one", "zero-out"]),
    default="add-remove",
    show_default=True,
    help="Which data sets the guarantee compares.",
)
@click.option("--planned", is_flag=True, help="All runs are reserved before the first begins; composed exactly.")
@click.option("--expected-noise", type=float, help="Noise multiplier of most runs, for the Renyi order.")
@click.option("--expected-sampling", type=float, help="Batch size over number of records of most runs.")
@click.option("--order", type=float, help="The Renyi order itself.")
def create(  # noqa: PLR0917
    path: str,
    epsilon: float,
    delta: float,
    unit: str,
    neighbours: str,
    planned: bool,
    expected_noise: float | None,
    expected_sampling: float | None,
    order: float | None,
) -> None:
    """Make the budget PATH.

    Its Renyi order is fixed now: the best one for the expected runs, or by default for many runs with much noise.
    """
    from adadp.app.budgets import BudgetFile
    from adadp.app.budgets.rules import best_order
    from adadp.events import Neighbours

    relation = Neighbours.parse(neighbours)
    expected = (expected_noise, expected_sampling)
    if planned + (order is not None) + (expected != (None, None)) > 1:
        raise InputError(
            "Several of --planned, --order and --expected-... are given.",
            why="Each settles how runs add up.",
            fix="Keep one of them.",
        )
    if not planned and order is None:
        order = best_order(
            epsilon, delta, noise_multiplier=expected_noise, sampling=expected_sampling, neighbours=relation
        )
    BudgetFile.create(path, epsilon=epsilon, delta=delta, unit=unit, neighbours=relation, order=order)
    how = "runs that are all reserved first" if planned else f"runs chosen one after another, at Renyi order {order:g}"
    click.echo(f"Made {path}: epsilon {epsilon:g} at delta {delta:g} for one {unit}, {how}.")
    click.echo("Keep it beside the data, and train with --budget, or name it in the schema.")


@budget.command()
@click.argument("path", type=_FILE)
@click.option("--plot", type=_FILE, help="Draw who spent what over time: .png, .svg or .pdf.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def show(path: str, plot: str | None, as_json: bool) -> None:
    """Show what was spent of PATH by whom, and what is left. With --json also the command of every run."""
    from adadp.app.budgets import BudgetFile

    state = BudgetFile(Path(path)).state()
    if plot is not None:
        from datetime import datetime, timezone

        from adadp.app.budgets.plot import plot_budget

        click.echo(f"wrote {plot_budget(plot, state, now=datetime.now(timezone.utc))}", err=True)
    if as_json:
        click.echo(json.dumps(_as_json(state), allow_nan=False))
    else:
        _print(path, state)


@budget.command()
@click.argument("path", type=_FILE)
@click.option("--config", "configs", multiple=True, required=True, type=_FILE, help="TOML file of a run; repeatable.")
def reserve(path: str, configs: tuple[str, ...]) -> None:
    """Reserve planned runs in PATH, all of them or none. For budgets made with --planned, before any run begins."""
    from adadp.app.budgets import BudgetFile
    from adadp.app.config import TrainConfig
    from adadp.app.resolve import resolve, training_records
    from adadp.app.train.counting import command_of, event_of
    from adadp.app.train.planning import plan_of
    from adadp.errors import within

    runs = []
    for file in configs:
        with within(file):
            spec = resolve(TrainConfig.from_toml(Path(file)))
            runs.append((event_of(spec, plan_of(spec, training_records(spec.config))), command_of(spec.config)))
    found = BudgetFile(Path(path))
    reserved = found.plan(runs)
    state = found.state()
    click.echo(f"Reserved {len(reserved)} runs. {_left(state)}")


@budget.command()
@click.argument("path", type=_FILE)
@click.argument("run", type=click.Path(file_okay=False))
def settle(path: str, run: str) -> None:
    """Give back to PATH what the run in the folder RUN did not release. It cannot be resumed then.

    A run that finishes is settled by itself. This is for one that was stopped for good, or killed at its end.
    """
    from adadp.app.budgets import BudgetFile
    from adadp.app.budgets.settling import settle_folder

    found = BudgetFile(Path(path))
    settled = settle_folder(found, run)
    state = found.state()
    click.echo(f"The run {settled.id} counts {_percent(state.share_of(settled))} of the budget. {_left(state)}")


def _as_json(state: Snapshot) -> dict[str, Any]:
    from adadp.events import describe

    return {
        **state.terms.as_json(),
        "created": state.created,
        "used": _finite(state.used),
        "left": _finite(max(1 - state.used, 0.0)),
        "runs": [
            {
                "run": run.id,
                "who": run.who,
                "command": run.command,
                "reserved": run.reserved,
                "settled": run.settled,
                "resumed": run.resumed,
                "state": _state_of(run),
                "share": _finite(state.share_of(run)),
                "planned_share": _finite(state.terms.rule.share([run.planned])),
                "planned": describe(run.planned),
            }
            for run in state.runs
        ],
    }


def _finite(number: float) -> float | None:
    return number if math.isfinite(number) else None


def _state_of(run: CountedRun) -> str:
    if run.given_back:
        return "given back"
    if run.settled is not None:
        return "settled"
    return "not settled" if run.started else "reserved"


def _print(path: str, state: Snapshot) -> None:
    from rich.box import SIMPLE
    from rich.console import Console
    from rich.table import Table

    terms = state.terms
    how = "all runs planned first" if terms.order is None else f"filter at Renyi order {terms.order:g}"
    console = Console(markup=False, highlight=False, soft_wrap=True)
    console.print(
        f"{path}: all runs on this data together are ({terms.epsilon:g}, {terms.delta:g})-differentially private for "
        f"one {terms.unit} ({terms.neighbours.value}; {how})."
    )
    table = Table("reserved", "run", "who", "state", "planned", "counts", box=SIMPLE)
    for column in table.columns:
        column.no_wrap = column.header != "who"
    table.columns[2].overflow = "fold"
    for run in state.runs:
        planned = _percent(terms.rule.share([run.planned]))
        counts = _percent(state.share_of(run))
        table.add_row(run.reserved[:16].replace("T", " ") or "search", run.id, run.who, _state_of(run), planned, counts)
    if state.runs:
        console.print(table)
    if terms.order is None and len(state.runs) > 1:
        console.print("The losses of planned runs are composed: together they take less than the sum of their shares.")
    console.print(_left(state))


def _left(state: Snapshot) -> str:
    waiting = sum(run.settled is None for run in state.runs)
    open_ = f", {waiting} of {len(state.runs)} runs not settled" if waiting else ""
    left = _percent(1 - state.used, up=False)
    return f"{_percent(state.used)} of the budget is spent or reserved{open_}; {left} is left."


def _percent(share: float, *, up: bool = True) -> str:
    """A share on the safe side: what is spent rounded up, what is left down."""
    if not math.isfinite(share):
        return "more than all" if share > 0 else "0 %"
    rounded = (math.ceil if up else math.floor)(max(share, 0.0) * 10000 - (1e-9 if up else 0)) / 100
    return f"{rounded:g} %"
