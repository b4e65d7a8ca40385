"""``adadp epsilon``, ``adadp delta`` and ``adadp calibrate``: what a run costs, and what a budget buys."""

# The accounting room pulls in numpy and scipy, which `adadp --help` must not wait for: it is imported in the commands.
# ruff: noqa: PLC0415

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import click

from adadp import checks
from adadp.app.cli.options import section
from adadp.errors import AccountingError, AdaDPError, EventError, InputError

if TYPE_CHECKING:
    from adadp.accounting import Accountant, Answer
    from adadp.app.accounting.run_shape import RunShape
    from adadp.events import Event
    from adadp.schedules import Schedule

_group_option = click.option(
    "--group", type=int, default=1, show_default=True, help="For so many records together, such as one person's rows."
)

_Command = TypeVar("_Command", bound=Callable[..., Any])


_SAMPLINGS = ("poisson", "fixed", "reshuffle")


class _Way(NamedTuple):
    """A run by one way of sampling: its shape, and its length in steps or in epochs."""

    shape: RunShape
    steps: int | None
    epochs: int | None

    def event(self, noise: Schedule | float) -> Event:
        """What the run releases."""
        return self.shape.run(noise, steps=self.steps, epochs=self.epochs)

    def event_or_refusal(self, noise: Schedule | float) -> Event | EventError:
        """The same, or why there is no guarantee between these neighbours for its sampling."""
        try:
            return self.event(noise)
        except EventError as error:
            return error


def _run_options(*samplings: str) -> Callable[[_Command], _Command]:
    """The options that describe a run, shared by the commands."""
    together = " 'all': side by side." if "all" in samplings else ""
    options = [
        click.option("--q", type=float, help="Sampling rate: expected batch size / number of records."),
        click.option(
            "--noise-multiplier", type=float, help="Noise multiplier: std of the noise / l2 bound of one record."
        ),
        click.option("--schedule", help="Noise over the epochs instead of --noise-multiplier, e.g. exp:s0=10,k=0.01."),
        click.option("--steps", type=int, help="Number of batches."),
        click.option("--epochs", type=int, help="Length in epochs instead of --steps (1/q steps each)."),
        click.option(
            "--sampling",
            type=click.Choice(samplings),
            default="poisson",
            show_default=True,
            help="How batches are drawn. 'reshuffle': disjoint batches of a shuffled epoch; counts epochs, ignores q."
            + together,
        ),
        click.option(
            "--neighbours",
            type=click.Choice(["add-remove", "replace-one", "zero-out"]),
            help="What the guarantee compares. [default: add-remove, replace-one or zero-out by sampling]",
        ),
        click.option("--json", "as_json", is_flag=True, help="Print JSON for programs."),
    ]

    def decorate(command: _Command) -> _Command:
        for option in reversed(options):
            command = option(command)
        return command

    return decorate


@section("Budget")
@click.command()
@_run_options(*_SAMPLINGS, "all")
@click.option("--delta", required=True, type=float, help="Target delta, well below 1 / number of records.")
@click.option("--accountant", default="pld", show_default=True, help="An accountant's name, or 'all'.")
@_group_option
@click.option("--plot", type=click.Path(dir_okay=False), help="Draw epsilon against epochs to this .png, .svg or .pdf.")
@click.option(
    "--against", type=click.Choice(["q", "noise-multiplier"]), help="Draw epsilon at the end against this instead."
)
@click.option(
    "--range", "between", metavar="LOW,HIGH", help="Of --against. [default: q/2 to 5q, half to twice the multiplier]"
)
def epsilon(
    *,
    delta: float,
    accountant: str,
    group: int,
    plot: str | None,
    against: str | None,
    between: str | None,
    as_json: bool,
    **run: Any,
) -> None:
    """What did this cost? Epsilon of a run at a given delta.

    \b
    adadp epsilon --q .01 --noise-multiplier 4 --steps 10000 --delta 1e-5 --accountant all
    adadp epsilon --schedule exp:s0=10,k=0.01 --epochs 71 --sampling reshuffle --delta 1e-5
    adadp epsilon --q .01 --noise-multiplier 6 --epochs 400 --delta 1e-5 --sampling all --accountant all
    adadp epsilon --q .01 --noise-multiplier 6 --epochs 200 --delta 1e-5 --sampling all --against q --plot q.png
    adadp epsilon --q .01 --noise-multiplier 4 --steps 10000 --delta 1e-5 --group 5
    """
    noise, ways = _noise(run), _ways(run)
    limits = _limits(against, between, plot, run)
    _check_group(group, accountant, run["sampling"], plot)
    rows = _ask(accountant, ways, noise, lambda asked, event: asked.epsilon(event, delta), group)
    if run["sampling"] == "all":
        if as_json:
            click.echo(json.dumps(rows, allow_nan=False))
        else:
            _print_samplings(rows, accountant, delta, run, ways)
        for warning in _warnings(rows, ways, noise, delta):
            click.echo(f"Warning: {warning}", err=as_json)
    else:
        _print(rows, accountant, as_json, "epsilon", f"at delta {delta:g}")
    if plot is not None:
        from adadp.app.report.plots import plot_against, plot_epsilon

        shown = [way for way in ways if not isinstance(way.event_or_refusal(noise), EventError)]
        asked = _accountants(accountant)
        if against is None or limits is None:
            path = plot_epsilon(plot, shown, noise, delta=delta, accountants=asked)
        else:
            path = plot_against(plot, shown, noise, against=against, between=limits, delta=delta, accountants=asked)
        click.echo(f"wrote {path}", err=True)


@section("Budget")
@click.command()
@_run_options(*_SAMPLINGS)
@click.option("--epsilon", required=True, type=float, help="Target epsilon.")
@click.option("--accountant", default="pld", show_default=True, help="An accountant's name, or 'all'.")
@_group_option
def delta(epsilon: float, accountant: str, group: int, as_json: bool, **run: Any) -> None:
    """What did this cost, the other way round: delta of a run at a given epsilon."""
    _check_group(group, accountant)
    rows = _ask(accountant, _ways(run), _noise(run), lambda asked, event: asked.delta(event, epsilon), group)
    _print(rows, accountant, as_json, "delta", f"at epsilon {epsilon:g}")


@section("Budget")
@click.command()
@_run_options(*_SAMPLINGS)
@click.option(
    "--solve",
    type=click.Choice(["noise-multiplier", "steps", "epochs"]),
    default="noise-multiplier",
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
    adadp calibrate --solve steps --noise-multiplier 4 --epsilon 2 --delta 1e-5 --q .01
    adadp calibrate --solve epochs --rho .78125 --schedule time:s0=10,k=0.05 --sampling reshuffle
    """
    found = {"noise-multiplier": _solve_noise, "steps": _solve_steps, "epochs": _solve_epochs}[solve](
        accountant, options
    )
    if as_json:
        click.echo(json.dumps(found, allow_nan=False))
        return
    shown = [
        (name, f"{value:.8g}" if isinstance(value, float) else str(value))
        for name, value in found.items()
        if not name.endswith(("_low", "_high")) and value != ""
    ]
    _table(shown, title=f"Calibrated: {solve}", show_header=False)


def _solve_noise(accountant: str, options: dict[str, Any]) -> dict[str, Any]:
    from adadp.app.accounting.calibrate import smallest_noise
    from adadp.schedules import Uniform

    _need(options, "solve noise-multiplier", needed=("epsilon", "delta"), barred=("rho", "noise_multiplier"))
    shape, schedule = _shape(options), _schedule(options)
    unit = Uniform(1.0) if schedule is None else schedule
    result = smallest_noise(
        lambda x: shape.run(unit.scaled(x), steps=options["steps"], epochs=options["epochs"]),
        **_target(accountant, options),
    )
    found: dict[str, Any] = {"noise_multiplier": result.value * unit.value_at(0)}
    if schedule is not None:
        found |= {"scale": result.value, "schedule": str(schedule.scaled(result.value))}
    length = {name: options[name] for name in ("steps", "epochs") if options[name] is not None}
    return found | length | _row(result.answer, shape)


def _solve_steps(accountant: str, options: dict[str, Any]) -> dict[str, Any]:
    from adadp.app.accounting.calibrate import most_repetitions

    _need(
        options,
        "solve steps",
        needed=("epsilon", "delta", "noise_multiplier"),
        barred=("rho", "schedule", "steps", "epochs"),
    )
    shape = _shape(options)
    if options["sampling"] == "reshuffle":
        raise InputError("A reshuffled run is counted in epochs, not steps.", fix="Use --solve epochs.")
    result = most_repetitions(shape.step(options["noise_multiplier"]), **_target(accountant, options))
    return {"steps": int(result.value), "noise_multiplier": options["noise_multiplier"]} | _row(result.answer, shape)


def _solve_epochs(accountant: str, options: dict[str, Any]) -> dict[str, Any]:
    from adadp.app.accounting.calibrate import longest, longest_within_rho
    from adadp.schedules import Uniform

    _need(options, "solve epochs", barred=("steps", "epochs"))
    shape = _shape(options)
    schedule = _schedule(options) or Uniform(_constant(options))
    if options["rho"] is None:
        _need(options, "solve epochs", needed=("epsilon", "delta"))
        result = longest(lambda n: shape.first_epochs(schedule, n), **_target(accountant, options))
        return {"epochs": int(result.value), "schedule": str(schedule)} | _row(result.answer, shape)
    _need(options, "solve epochs with --rho", barred=("epsilon",))
    epochs, spent = longest_within_rho(lambda n: shape.first_epochs(schedule, n), rho=options["rho"])
    found = {"epochs": epochs, "rho": spent, "rho_target": options["rho"], "schedule": str(schedule)}
    if options["delta"] is None:
        context = {"accountant": "zcdp", "status": "proved"}
        return found | context | {"neighbours": shape.neighbours.value, "sampling": shape.sampling.value}
    answer = _accountants("zcdp")[0].epsilon(shape.first_epochs(schedule, epochs), options["delta"])
    return found | _row(answer, shape)


def _target(accountant: str, options: dict[str, Any]) -> dict[str, Any]:
    """What a calibration aims at, and who judges it."""
    from adadp.accounting import accountant as named

    return {"epsilon": options["epsilon"], "delta": options["delta"], "accountant": named(accountant)}


def _ways(run: dict[str, Any]) -> list[_Way]:
    """The run by the sampling asked for, or by all: what is given in steps is whole epochs where it is reshuffled."""
    if run["sampling"] != "all":
        return [_Way(_shape(run), run["steps"], run["epochs"])]
    from adadp.app.accounting.run_shape import steps_per_epoch

    shapes = [_shape(run | {"sampling": sampling}) for sampling in _SAMPLINGS]
    drawn = [_Way(shape, run["steps"], run["epochs"]) for shape in shapes[:-1]]
    if run["steps"] is None or run["epochs"] is not None:
        return [*drawn, _Way(shapes[-1], run["steps"], run["epochs"])]
    steps = checks.count("steps", run["steps"])
    return [*drawn, _Way(shapes[-1], None, math.ceil(steps / steps_per_epoch(shapes[0].q)))]


def _noise(run: dict[str, Any]) -> Schedule | float:
    schedule = _schedule(run)
    return schedule if schedule is not None else _constant(run)


def _limits(
    against: str | None, between: str | None, plot: str | None, run: dict[str, Any]
) -> tuple[float, float] | None:
    """From where to where --against is drawn: as given, or around the value of the run. None: not asked for."""
    if against is None:
        if between is not None:
            raise InputError("--range is the range of --against.", fix="Add --against q or --against noise-multiplier.")
        return None
    if plot is None:
        raise InputError("--against is drawn, not printed.", fix="Add --plot FILE.")
    if against == "q" and run["steps"] is not None:
        raise InputError(
            "--against q needs --epochs.",
            why="A number of steps is another number of epochs at every q.",
            fix="Pass --epochs.",
        )
    if against == "noise-multiplier" and run["schedule"] is not None:
        raise InputError(
            "--against noise-multiplier needs --noise-multiplier.", fix="Pass --noise-multiplier instead of --schedule."
        )
    if between is not None:
        try:
            low, high = (float(part) for part in between.split(","))
        except ValueError:
            raise InputError(
                f"--range must be two numbers, got {between!r}.", fix="Pass LOW,HIGH, such as .005,.05."
            ) from None
    else:
        value = run[against.replace("-", "_")]
        if value is None:
            raise InputError(f"--against {against} needs a range.", fix=f"Pass --range LOW,HIGH or --{against}.")
        low, high = (value / 2, min(1.0, 5 * value)) if against == "q" else (value / 2, 2 * value)
    if not 0 < low < high < math.inf or (against == "q" and high > 1):
        raise InputError(
            f"--range {low:g},{high:g} is no range of {against}.",
            fix="Pass two numbers with 0 < LOW < HIGH" + (" <= 1." if against == "q" else "."),
        )
    return low, high


def _shape(options: dict[str, Any]) -> RunShape:
    from adadp.app.accounting.run_shape import RunShape

    return RunShape(options["sampling"], q=options["q"], neighbours=options["neighbours"])


def _schedule(options: dict[str, Any]) -> Schedule | None:
    from adadp.app.texts.schedules import parse_schedule

    if options["schedule"] is None:
        return None
    if options["noise_multiplier"] is not None:
        raise InputError("--noise-multiplier and --schedule both set the noise.", fix="Give one of them.")
    return parse_schedule(options["schedule"])


def _constant(options: dict[str, Any]) -> float:
    if options["noise_multiplier"] is None:
        raise InputError("Neither --noise-multiplier nor --schedule was given.", fix="Say how much noise is added.")
    value: float = options["noise_multiplier"]
    return value


def _need(options: dict[str, Any], what: str, *, needed: tuple[str, ...] = (), barred: tuple[str, ...] = ()) -> None:
    for name in (*needed, *barred):
        flag, given = "--" + name.replace("_", "-"), options[name] is not None
        if name in needed and not given:
            raise InputError(f"--{what} needs {flag}.", fix=f"Add {flag}.")
        if name in barred and given:
            raise InputError(f"{flag} cannot be given with --{what}.", fix=f"Leave {flag} out.")


def _check_group(group: int, accountant: str, sampling: str = "", plot: str | None = None) -> None:
    """Refuse what would be answered for one record in an answer for a group."""
    checks.count("group", group)
    if group > 1 and (accountant != "pld" or sampling == "all" or plot is not None):
        given = (
            "--plot" if plot is not None else "--sampling all" if sampling == "all" else f"--accountant {accountant}"
        )
        raise InputError(
            f"--group {group} was given together with {given}.",
            why="What groups cost is computed by pld, for one run at a time.",
            fix=f"Leave {given} out.",
        )


def _accountants(named: str, group: int = 1) -> list[Accountant]:
    from adadp.accounting import ACCOUNTANTS, accountant
    from adadp.app.accounting.groups import GroupAccountant

    if group > 1:
        return [GroupAccountant(group)]
    return [accountant(name) for name in (ACCOUNTANTS if named == "all" else [named])]


def _ask(
    accountant: str,
    ways: list[_Way],
    noise: Schedule | float,
    ask: Callable[[Accountant, Event], Answer],
    group: int,
) -> list[dict[str, Any]]:
    """A row for each way and accountant. With several ways, or all accountants, refusals are rows with the reason."""
    rows = []
    for way in ways:
        event = way.event(noise) if len(ways) == 1 else way.event_or_refusal(noise)
        for each in _accountants(accountant, group):
            if isinstance(event, EventError):
                rows.append(_refused(each, way.shape, event))
                continue
            try:
                rows.append(_row(ask(each, event), way.shape))
            except AccountingError as error:
                if len(ways) == 1 and accountant != "all":
                    raise
                rows.append(_refused(each, way.shape, error))
    return rows


def _refused(accountant: Accountant, shape: RunShape, error: AdaDPError) -> dict[str, Any]:
    row = dict.fromkeys(("epsilon", "epsilon_low", "epsilon_high", "delta"))
    row |= {"accountant": accountant.name, "status": accountant.status.value, "neighbours": shape.neighbours.value}
    return row | {"sampling": shape.sampling.value, "reason": str(error)}


def _row(answer: Answer, shape: RunShape) -> dict[str, Any]:
    """The contract's keys. JSON has no infinity: it becomes null, with the reason."""
    figures = ("epsilon", "epsilon_low", "epsilon_high", "delta", "delta_low", "delta_high", "accountant")
    row = {name: getattr(answer, name) for name in figures} | {
        "status": answer.status.value,
        "neighbours": shape.neighbours.value,
        "sampling": shape.sampling.value,
        "note": answer.note,
    }
    if not math.isfinite(answer.epsilon):
        row |= {"epsilon": None, "epsilon_low": None, "epsilon_high": None, "reason": "epsilon is infinite"}
    return row


def _table(rows: Iterable[Iterable[str]], *heads: str, note: str = "", remarks: Iterable[str] = (), **how: Any) -> None:
    """Print a table, and under it a ``note`` and, dim, ``remarks``."""
    from rich.console import Console
    from rich.table import Table

    console, table = Console(highlight=False), Table(*heads, title_justify="left", **how)
    for row in rows:
        table.add_row(*row)
    console.print(table)
    if note:
        console.print(note)
    for remark in remarks:
        console.print(remark, markup=False, style="dim")


def _figures(row: dict[str, Any], asked: str = "epsilon") -> tuple[str, str, str]:
    """The figure asked for, between what it is certain to be, and its status."""
    if row[asked] is None:
        return "-", "", "cannot answer"
    low, high = row[f"{asked}_low"], row[f"{asked}_high"]
    return f"{row[asked]:.6g}", "" if low == high else f"{low:.6g} .. {high:.6g}", row["status"]


def _print(rows: list[dict[str, Any]], accountant: str, as_json: bool, asked: str, at: str) -> None:
    if as_json:
        click.echo(json.dumps(rows if accountant == "all" else rows[0], allow_nan=False))
        return
    title = f"{asked} {at} ({rows[0]['sampling']} sampling, {rows[0]['neighbours']} neighbours)"
    remarks = [f"{row['accountant']}: {said}" for row in rows if (said := row.get("reason") or row["note"])]
    shown = [(row["accountant"], *_figures(row, asked)) for row in rows]
    _table(shown, "accountant", asked, "between", "status", remarks=remarks, title=title)


def _print_samplings(
    rows: list[dict[str, Any]], accountant: str, delta: float, run: dict[str, Any], ways: list[_Way]
) -> None:
    """Every way of sampling side by side: a row each, or with all accountants a column each."""
    relations = {row["sampling"]: row["neighbours"] for row in rows}
    if accountant == "all":
        heads = ["accountant", *(f"{sampling}\n{neighbours}" for sampling, neighbours in relations.items()), "status"]
        by_name: dict[str, list[dict[str, Any]]] = {}
        for row in rows:
            by_name.setdefault(row["accountant"], []).append(row)
        shown = [[name, *(_figures(row)[0] for row in own), own[0]["status"]] for name, own in by_name.items()]
    else:
        heads = ["sampling", "neighbours", accountant, "between", "status"]
        shown = [[row["sampling"], row["neighbours"], *_figures(row)] for row in rows]
    differ = "Different neighbours: the figures belong to different guarantees."
    length = f"reshuffle: {run['steps']} steps are counted in whole epochs, {ways[-1].epochs} of them."
    _table(
        shown,
        *heads,
        title=f"epsilon at delta {delta:g} by sampling",
        note=differ if len(set(relations.values())) > 1 else "",
        remarks=[*([] if run["steps"] is None else [length]), *_reasons(rows)],
    )


def _reasons(rows: list[dict[str, Any]]) -> list[str]:
    """Why there is no figure, once for all accountants of a sampling that give the same reason."""
    silent: dict[tuple[str, str], list[str]] = {}
    for row in rows:
        if "reason" in row:
            silent.setdefault((row["sampling"], row["reason"]), []).append(row["accountant"])
    everyone = len({row["accountant"] for row in rows})
    return [
        f"{sampling}: {reason}" if len(names) == everyone else f"{sampling}, {', '.join(names)}: {reason}"
        for (sampling, reason), names in silent.items()
    ]


def _warnings(rows: list[dict[str, Any]], ways: list[_Way], noise: Schedule | float, delta: float) -> list[str]:
    """Where people under-count, as far as it is so for this run. Only figures that are proved are compared."""
    best = {way.shape.sampling.value: _least_proved(rows, way.shape.sampling.value) for way in ways}
    found = []
    poisson, reshuffled = best["poisson"], best["reshuffle"]
    if poisson is not None and reshuffled is not None and reshuffled["epsilon_low"] > poisson["epsilon"]:
        found.append(
            f"A data loader that shuffles does reshuffle: epsilon {_by(reshuffled)} can be proved for it, "
            f"not {_by(poisson)}."
        )
    for way in ways:
        row = best[way.shape.sampling.value]
        if row is not None and _moves_twice(way.shape):
            # Noise twice as large is a sensitivity half as large: what comes out if the bound is taken to be C.
            halved = way.event(noise * 2 if isinstance(noise, float) else noise.scaled(2))
            wrong = _accountants(row["accountant"])[0].epsilon(halved, delta)
            found.append(
                f"{way.shape.sampling.value}, {way.shape.neighbours.value}: a record moves a clipped sum by 2C, not C. "
                f"Epsilon {_by(row)} counts that; at C it would read {wrong.epsilon:.4g}."
            )
    unproved = dict.fromkeys(
        row["accountant"] for row in rows if row["status"] != "proved" and row["epsilon"] is not None
    )
    if unproved:
        found.append(f"No bounds, whatever they say: {', '.join(unproved)}.")
    return found


def _least_proved(rows: list[dict[str, Any]], sampling: str) -> dict[str, Any] | None:
    """The row of the least epsilon that is proved for a sampling."""
    proved = [row for row in rows if row["sampling"] == sampling and row["status"] == "proved"]
    return min((row for row in proved if row["epsilon"] is not None), key=lambda row: row["epsilon"], default=None)


def _moves_twice(shape: RunShape) -> bool:
    """Whether a clipped sum moves by 2C: a record is replaced, or another one takes its place in the batch."""
    return shape.neighbours.value == "replace-one" or (shape.sampling.value == "fixed" and shape.q < 1)


def _by(row: dict[str, Any]) -> str:
    return f"{row['epsilon']:.4g} ({row['accountant']})"
