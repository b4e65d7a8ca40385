"""``adadp epsilon``, ``adadp delta`` and ``adadp calibrate``: what a run costs, and what a budget buys."""

# The accounting room pulls in numpy and scipy, which `adadp --help` must not wait for: it is imported in the commands.
# ruff: noqa: PLC0415

from __future__ import annotations

import json
import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

from adadp.errors import AccountingError, InputError

if TYPE_CHECKING:
    from adadp.accounting import Answer, RunShape
    from adadp.events import Event
    from adadp.schedules import Schedule

_Command = TypeVar("_Command", bound=Callable[..., Any])


def _run_options(command: _Command) -> _Command:
    """The options that describe a run, shared by the commands."""
    for option in reversed(
        [
            click.option("--q", type=float, help="Sampling rate: expected lot size / number of records."),
            click.option("--sigma", type=float, help="Noise multiplier: std of the noise / l2 bound of one record."),
            click.option("--schedule", help="Noise over the epochs instead of --sigma, e.g. exp:s0=10,k=0.01."),
            click.option("--steps", type=int, help="Number of lots."),
            click.option("--epochs", type=int, help="Length in epochs instead of --steps (1/q steps each)."),
            click.option(
                "--sampling",
                type=click.Choice(["poisson", "fixed", "reshuffle"]),
                default="poisson",
                show_default=True,
                help="How lots are drawn. 'reshuffle': disjoint batches of a shuffled epoch; counts epochs, ignores q.",
            ),
            click.option(
                "--neighbours",
                type=click.Choice(["add-remove", "replace-one", "zero-out"]),
                help="What the guarantee compares. [default: add-remove, replace-one or zero-out by sampling]",
            ),
            click.option("--json", "as_json", is_flag=True, help="Print JSON for programs."),
        ]
    ):
        command = option(command)
    return command


@click.command()
@_run_options
@click.option("--delta", required=True, type=float, help="Target delta, well below 1 / number of records.")
@click.option("--accountant", default="pld", show_default=True, help="An accountant's name, or 'all'.")
@click.option("--plot", type=click.Path(dir_okay=False), help="Draw epsilon against epochs to this .png, .svg or .pdf.")
def epsilon(delta: float, accountant: str, plot: str | None, as_json: bool, **run: Any) -> None:
    """What did this cost? Epsilon of a run at a given delta.

    \b
    adadp epsilon --q .01 --sigma 4 --steps 10000 --delta 1e-5 --accountant all
    adadp epsilon --schedule exp:s0=10,k=0.01 --epochs 71 --sampling reshuffle --delta 1e-5
    """
    shape, noise, event = _read_run(run)
    rows = _ask_all(accountant, shape, lambda name: _accountant(name).epsilon(event, delta))
    _print(rows, accountant, as_json, "epsilon", f"at delta {delta:g}")
    if plot is not None:
        from adadp.report.plots import plot_epsilon

        names = [row["accountant"] for row in rows if row["epsilon"] is not None]
        path = plot_epsilon(
            plot,
            shape,
            noise,
            steps=run["steps"],
            epochs=run["epochs"],
            delta=delta,
            accountants=[_accountant(name) for name in names],
        )
        click.echo(f"wrote {path}", err=True)


@click.command()
@_run_options
@click.option("--epsilon", required=True, type=float, help="Target epsilon.")
@click.option("--accountant", default="pld", show_default=True, help="An accountant's name, or 'all'.")
def delta(epsilon: float, accountant: str, as_json: bool, **run: Any) -> None:
    """What did this cost, the other way round: delta of a run at a given epsilon."""
    shape, _, event = _read_run(run)
    rows = _ask_all(accountant, shape, lambda name: _accountant(name).delta(event, epsilon))
    _print(rows, accountant, as_json, "delta", f"at epsilon {epsilon:g}")


@click.command()
@_run_options
@click.option(
    "--solve",
    type=click.Choice(["sigma", "steps", "epochs"]),
    default="sigma",
    show_default=True,
    help="What to find: the least noise (with --schedule: the least scale of it), or the longest run.",
)
@click.option("--epsilon", type=float, help="Target epsilon, with --delta.")
@click.option("--delta", type=float, help="Target delta.")
@click.option("--rho", type=float, help="Target rho of zCDP instead of epsilon, with --solve epochs.")
@click.option("--accountant", default="pld", show_default=True, help="An accountant's name.")
def calibrate(solve: str, accountant: str, as_json: bool, **options: Any) -> None:
    """How much noise do I need, and how long may I train?

    \b
    adadp calibrate --epsilon 2 --delta 1e-5 --q .01 --steps 10000
    adadp calibrate --solve steps --sigma 4 --epsilon 2 --delta 1e-5 --q .01
    adadp calibrate --solve epochs --rho .78125 --schedule time:s0=10,k=0.05 --sampling reshuffle
    """
    found = {"sigma": _solve_noise, "steps": _solve_steps, "epochs": _solve_epochs}[solve](accountant, options)
    if as_json:
        click.echo(json.dumps(found, allow_nan=False))
        return
    from rich.console import Console
    from rich.table import Table

    table = Table(title=f"Calibrated: {solve}", title_justify="left", show_header=False)
    for name, value in found.items():
        if not name.endswith(("_low", "_high")) and value != "":
            table.add_row(name, f"{value:.8g}" if isinstance(value, float) else str(value))
    Console().print(table)


def _solve_noise(accountant: str, options: dict[str, Any]) -> dict[str, Any]:
    from adadp.accounting import smallest_noise
    from adadp.schedules import Uniform

    _need(options, "solve sigma", needed=("epsilon", "delta"), barred=("rho", "sigma"))
    shape, schedule = _shape(options), _schedule(options)
    unit = Uniform(1.0) if schedule is None else schedule
    result = smallest_noise(
        lambda x: shape.run(unit.scaled(x), steps=options["steps"], epochs=options["epochs"]),
        epsilon=options["epsilon"],
        delta=options["delta"],
        accountant=_accountant(accountant),
    )
    found: dict[str, Any] = {"sigma": result.value * unit.value_at(0)}
    if schedule is not None:
        found |= {"scale": result.value, "schedule": str(schedule.scaled(result.value))}
    return found | _length(options) | _row(result.answer, shape)


def _solve_steps(accountant: str, options: dict[str, Any]) -> dict[str, Any]:
    from adadp.accounting import most_repetitions

    _need(options, "solve steps", needed=("epsilon", "delta", "sigma"), barred=("rho", "schedule", "steps", "epochs"))
    shape = _shape(options)
    if options["sampling"] == "reshuffle":
        raise InputError("A reshuffled run is counted in epochs, not steps.", fix="Use --solve epochs.")
    result = most_repetitions(
        shape.step(options["sigma"]),
        epsilon=options["epsilon"],
        delta=options["delta"],
        accountant=_accountant(accountant),
    )
    return {"steps": int(result.value), "sigma": options["sigma"]} | _row(result.answer, shape)


def _solve_epochs(accountant: str, options: dict[str, Any]) -> dict[str, Any]:
    from adadp.accounting import longest, longest_within_rho
    from adadp.schedules import Uniform

    _need(options, "solve epochs", needed=(), barred=("steps", "epochs"))
    shape = _shape(options)
    schedule = _schedule(options) or Uniform(_one_of(options, "sigma", "schedule"))
    if options["rho"] is None:
        _need(options, "solve epochs", needed=("epsilon", "delta"), barred=())
        result = longest(
            lambda n: shape.first_epochs(schedule, n),
            epsilon=options["epsilon"],
            delta=options["delta"],
            accountant=_accountant(accountant),
        )
        return {"epochs": int(result.value), "schedule": str(schedule)} | _row(result.answer, shape)
    _need(options, "solve epochs with --rho", needed=(), barred=("epsilon",))
    epochs, spent = longest_within_rho(lambda n: shape.first_epochs(schedule, n), rho=options["rho"])
    found = {"epochs": epochs, "rho": spent, "rho_target": options["rho"], "schedule": str(schedule)}
    if options["delta"] is None:
        context = {"accountant": "zcdp", "status": "proved"}
        return found | context | {"neighbours": shape.neighbours.value, "sampling": shape.sampling.value}
    answer = _accountant("zcdp").epsilon(shape.first_epochs(schedule, epochs), options["delta"])
    return found | _row(answer, shape)


def _read_run(run: dict[str, Any]) -> tuple[RunShape, Schedule | float, Event]:
    shape, schedule = _shape(run), _schedule(run)
    noise = schedule if schedule is not None else _one_of(run, "sigma", "schedule")
    return shape, noise, shape.run(noise, steps=run["steps"], epochs=run["epochs"])


def _shape(options: dict[str, Any]) -> RunShape:
    from adadp.accounting import RunShape

    return RunShape(options["sampling"], q=options["q"], neighbours=options["neighbours"])


def _schedule(options: dict[str, Any]) -> Schedule | None:
    from adadp.schedules import parse_schedule

    if options["schedule"] is None:
        return None
    if options["sigma"] is not None:
        raise InputError("--sigma and --schedule both set the noise.", fix="Give one of them.")
    return parse_schedule(options["schedule"])


def _one_of(options: dict[str, Any], first: str, second: str) -> float:
    if options[first] is None:
        raise InputError(f"Neither --{first} nor --{second} was given.", fix="Say how much noise is added.")
    value: float = options[first]
    return value


def _need(options: dict[str, Any], what: str, *, needed: tuple[str, ...], barred: tuple[str, ...]) -> None:
    for name in needed:
        if options[name] is None:
            raise InputError(f"--{what} needs --{name}.", fix=f"Add --{name}.")
    for name in barred:
        if options[name] is not None:
            raise InputError(f"--{name} cannot be given with --{what}.", fix=f"Leave --{name} out.")


def _length(options: dict[str, Any]) -> dict[str, Any]:
    return {name: options[name] for name in ("steps", "epochs") if options[name] is not None}


def _accountant(name: str) -> Any:
    from adadp.accounting import accountant

    return accountant(name)


def _ask_all(accountant: str, shape: RunShape, ask: Callable[[str], Answer]) -> list[dict[str, Any]]:
    """One row, or with 'all' one per accountant, those that cannot answer with the reason."""
    from adadp.accounting import ACCOUNTANTS

    if accountant != "all":
        return [_row(ask(accountant), shape)]
    rows = []
    for name, each in ACCOUNTANTS.items():
        try:
            rows.append(_row(ask(name), shape))
        except AccountingError as error:
            row = dict.fromkeys(("epsilon", "epsilon_low", "epsilon_high", "delta"))
            row |= {"accountant": name, "status": each.status.value, "neighbours": shape.neighbours.value}
            rows.append(row | {"sampling": shape.sampling.value, "reason": str(error)})
    return rows


def _row(answer: Answer, shape: RunShape) -> dict[str, Any]:
    """The contract's keys. JSON has no infinity: it becomes null, with the reason."""
    row: dict[str, Any] = {
        "epsilon": answer.epsilon,
        "epsilon_low": answer.epsilon_low,
        "epsilon_high": answer.epsilon_high,
        "delta": answer.delta,
        "delta_low": answer.delta_low,
        "delta_high": answer.delta_high,
        "accountant": answer.accountant,
        "status": answer.status.value,
        "neighbours": shape.neighbours.value,
        "sampling": shape.sampling.value,
        "note": answer.note,
    }
    if not math.isfinite(answer.epsilon):
        row |= {"epsilon": None, "epsilon_low": None, "epsilon_high": None, "reason": "epsilon is infinite"}
    return row


def _print(rows: list[dict[str, Any]], accountant: str, as_json: bool, asked: str, at: str) -> None:
    if as_json:
        click.echo(json.dumps(rows if accountant == "all" else rows[0], allow_nan=False))
        return
    from rich.console import Console
    from rich.table import Table

    console = Console(highlight=False)
    title = f"{asked} {at} ({rows[0]['sampling']} sampling, {rows[0]['neighbours']} neighbours)"
    table = Table("accountant", asked, "between", "status", title=title, title_justify="left")
    for row in rows:
        low, high = row.get(f"{asked}_low"), row.get(f"{asked}_high")
        value = "-" if row[asked] is None else f"{row[asked]:.6g}"
        between = "" if low == high else f"{low:.6g} .. {high:.6g}"
        table.add_row(row["accountant"], value, between, row["status"] if value != "-" else "cannot answer")
    console.print(table)
    for row in rows:
        if remark := row.get("reason") or row["note"]:
            console.print(f"{row['accountant']}: {remark}", markup=False, style="dim")
