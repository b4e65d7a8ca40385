"""``adadp plan``: what a run will do and cost, before a single record is read."""

# torch and the rooms over it take seconds to load, which `adadp --help` must not wait for: imported in the commands.
# ruff: noqa: PLC0415

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import click

from adadp.app.cli.options import RunCommand, config_of, given_options, section

if TYPE_CHECKING:
    from collections.abc import Sequence

    from adadp.app.config import TrainConfig
    from adadp.app.report.preview import Outlook


@section("Train")
@click.command(cls=RunCommand, own="What is shown")
@click.option("--config", "config_file", type=click.Path(dir_okay=False), help="TOML file; flags win over it.")
@click.option("--beside", multiple=True, metavar="SCHEDULE", help="Another noise schedule to compare with; repeatable.")
@click.option("--all", "every", is_flag=True, help="Every epoch.  [default: about 20 of them]")
@click.option("--plot", type=click.Path(dir_okay=False), help="Draw noise and what is spent: .png, .svg or .pdf.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON for programs.")
def plan(
    config_file: str | None, beside: tuple[str, ...], every: bool, plot: str | None, as_json: bool, **flags: Any
) -> None:
    """What a run will do and cost. Takes the options of adadp train and reads no data.

    \b
    adadp plan --data mnist --epsilon 2
    adadp plan --data mnist --features none --epsilon 3 --epochs 20 --batch-size 600 --noise-schedule exp:k=0.10536
    adadp plan --data table:people.csv --schema people.toml --records 5000 --epsilon 1 --delta 1e-6
    adadp plan --data mnist --features none --method dpsgd --batch-size 600 --rho .78125 --sampling reshuffle \\
               --noise-schedule uniform:s0=8 --beside time:s0=10,k=0.05 --beside exp:s0=10,k=0.01 --plot plan.png
    """
    from adadp.app.report.preview import with_schedule

    config = config_of(given_options(flags), config_file)
    configs = [config, *(with_schedule(config, schedule) for schedule in beside)]
    outlooks = [_outlook(each, every=every) for each in configs]
    if plot is not None:
        from adadp.app.report.plots import plot_outlooks

        click.echo(f"wrote {plot_outlooks(plot, outlooks)}", err=True)
    if as_json:
        others = [each.as_json() for each in outlooks[1:]]
        click.echo(json.dumps(outlooks[0].as_json() | {"beside": others}, allow_nan=False))
    else:
        _show(outlooks)


def _outlook(config: TrainConfig, *, every: bool) -> Outlook:
    from adadp.app.report.preview import outlook
    from adadp.app.resolve import resolve, training_records
    from adadp.app.train.planning import filter_of, plan_of

    spec = resolve(config)
    planned = plan_of(spec, training_records(spec.config))
    budget = filter_of(spec.config, planned) if planned.adaptive else None
    return outlook(spec, planned, budget=budget, every=every)


def _show(outlooks: Sequence[Outlook]) -> None:
    run = outlooks[0]
    for line in run.head():
        click.echo(line)
    if run.rows:
        columns = _columns(run)
        _table(list(columns), [[_text(getattr(row, field)) for field in columns.values()] for row in run.rows])
        if len(run.rows) < run.plan.epochs:
            click.echo(f"{len(run.rows)} of {run.plan.epochs} epochs; --all shows every one.")
    if len(outlooks) > 1:
        _compare(outlooks)


def _compare(outlooks: Sequence[Outlook]) -> None:
    """One row for each run; what none of them has is left out."""
    columns: dict[str, list[float | None]] = {
        "first noise": [each.plan.noise_multiplier_at(0) for each in outlooks],
        "last noise": [each.rows[-1].noise_multiplier if each.rows else None for each in outlooks],
        "epsilon": [each.epsilon for each in outlooks],
        "rho": [each.rho for each in outlooks],
    }
    shown = {name: values for name, values in columns.items() if any(value is not None for value in values)}
    names = [each.short for each in outlooks]
    lengths = [str(each.plan.epochs) if each.rows else f"at most {each.plan.epochs}" for each in outlooks]
    numbers = [[_text(value) for value in row] for row in zip(*shown.values(), strict=True)]
    rows = [[name, length, *row] for name, length, row in zip(names, lengths, numbers, strict=True)]
    _table(["schedule", "epochs", *shown], rows)


def _table(names: list[str], rows: list[list[str]]) -> None:
    from rich.box import SIMPLE
    from rich.console import Console
    from rich.table import Table

    table = Table(box=SIMPLE)
    for name in names:
        table.add_column(name, justify="left" if name == "schedule" else "right", overflow="fold")
    for row in rows:
        table.add_row(*row)
    Console().print(table)


def _columns(run: Outlook) -> dict[str, str]:
    """Heading -> field of a row, of those that say something."""
    plan, first = run.plan, run.rows[0]
    shown = {"epoch": "epoch", "steps so far": "steps"}
    if plan.batch_size_schedule is not None:
        shown["batch"] = "batch_size"
    shown["noise"] = "noise_multiplier"
    if plan.clip_norm_schedule is not None:
        shown["clip factor" if ":" in run.config.clip_rule else "clip bound"] = "clip_norm"
    if first.lr is not None:
        shown["lr"] = "lr"
    if first.epsilon is not None:
        shown["epsilon so far"] = "epsilon"
    if first.rho is not None:
        shown["rho so far"] = "rho"
    return shown


def _text(value: float | None) -> str:
    return "-" if value is None else str(value) if isinstance(value, int) else f"{value:.4g}"
