"""``adadp compare``: methods side by side at equal budget."""

# torch and the rooms over it take seconds to load, which `adadp --help` must not wait for: imported in the command.
# ruff: noqa: PLC0415

from __future__ import annotations

import dataclasses
import json
import shlex
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from adadp.app.cli.options import (
    RunCommand,
    executor_option,
    given_executor,
    given_options,
    name_as_in_file,
    section,
)
from adadp.app.cli.progress import feature_bar
from adadp.app.launch import refuse_several
from adadp.errors import InputError, Interrupted

if TYPE_CHECKING:
    from rich.console import RenderableType

    from adadp.lab.compare import Comparison, Progress
    from adadp.lab.compare.comparing import Watch

_WRITTEN = {"seeds": "0,1,2", "workers": "4; for a cluster pass --executor dask:tcp://host:8786"}
_SEVERAL = ("method", "epsilon", "noise_schedule", "seed")
"""Options of a training run that a comparison has in the plural."""


@section("Laboratory")
@click.command(cls=RunCommand, own="Comparison")
@click.argument("file", required=False, type=click.Path(dir_okay=False))
@click.option("--methods", metavar="A,B,...", help="Methods, with options as in adadp train: dpsgd,adadp:power=0.4.")
@click.option("--epsilon", "epsilons", metavar="E,...", help="Budgets that every method is calibrated to: .5,2,8.")
@click.option("--seeds", metavar="N", help="How many seeds (0, 1, ...), or a list: 3,5,8.  [default: 3]")
@click.option(
    "--noise-schedule", "schedules", multiple=True, help="Noise over the epochs; several (repeat, or ;) are crossed."
)
@click.option("--accuracy", "marks", metavar="A,...", help="Find the smallest epsilon for these accuracies: .92,.94.")
@click.option("--refine", type=int, help="Halve the gap before that epsilon so often.  [default: 0]")
@click.option("--most-epsilon", type=float, help="Refuse if all runs together would cost more.")
@click.option("--workers", metavar="N", help="Runs at a time, each in a process.  [default: number of cores]")
@executor_option
@click.option("--title", help="Of the report.")
@click.option("--out", type=click.Path(file_okay=False), help="Folder for results, report and runs.")
@click.option("--config", "config_file", type=click.Path(dir_okay=False), help="TOML file for all; flags win over it.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object as the last line.")
def compare(
    *,
    out: str | None,
    workers: str | None,
    executor: str | None,
    most_epsilon: float | None,
    as_json: bool,
    **flags: Any,
) -> None:
    """Train several methods at equal budget over seeds, and say what the differences are worth.

    Takes the options of adadp train for all methods, or a FILE.toml with cases of their own. The same command goes on
    with a comparison that was stopped. Exit code 1 if a run failed.

    \b
    adadp compare --data mnist --methods adadp,dpsgd --epsilon .5,2,8 --delta 1e-5 --seeds 3 --out results
    adadp compare --data cancer --methods dpsgd --epsilon 2 --noise-schedule 'uniform:;exp:k=0.1' --out results
    adadp compare --data mnist --methods adadp,dpsgd --epsilon .05,.1,.2 --accuracy .92 --refine 2 --out results
    adadp compare experiments/methods/blocks.toml --out results
    adadp compare experiments/methods/blocks.toml --executor dask:HOST:8786 --out /shared/results
    """
    from adadp.lab import compare as comparing

    refuse_several("compare")
    if out is None:
        raise InputError("A comparison needs a folder.", fix="Pass --out.")
    if workers is not None and executor is not None:
        raise InputError(
            "--workers was given with --executor.", why="Both say who makes the runs.", fix="Leave one out."
        )
    spec = _spec(flags)
    if not as_json:
        click.echo("Planning: every case is calibrated before the first run.", err=True)
    try:
        with given_executor(executor) as hands, _shown(as_json) as watch, feature_bar() as progress:
            results = comparing.compare(
                spec,
                out,
                workers=None if workers is None else _numbers(workers, "workers")[0],
                executor=hands,
                command=_command(flags, out),
                most_epsilon=most_epsilon,
                watch=watch,
                features=progress,
            )
    except Interrupted as stopped:
        click.echo(f"{stopped.what} {stopped.fix}", err=True)
        sys.exit(130)
    except KeyboardInterrupt:
        click.echo("Interrupted before the first run. The same command begins again.", err=True)
        sys.exit(130)
    if as_json:
        cases = [{name: value for name, value in case.items() if name != "runs"} for case in results["cases"]]
        click.echo(json.dumps({**results, "cases": cases, "out": out}))
    else:
        _show(results, Path(out))
    sys.exit(1 if results["failed"] else 0)


compare.params = [each for each in compare.params if each.name not in _SEVERAL]


def _spec(flags: dict[str, Any]) -> Comparison:
    """The comparison in the file, or the one that the flags describe."""
    from adadp.lab.compare import Comparison, seeds_of

    names = ("file", "methods", "epsilons", "seeds", "schedules", "marks", "refine", "title", "config_file")
    asked = {name: flags[name] for name in names}
    given = given_options({name: value for name, value in flags.items() if name not in names})
    changes: dict[str, Any] = {}
    for name in ("epsilons", "marks"):
        if asked[name] is not None:
            changes[name] = _numbers(asked[name], "epsilon" if name == "epsilons" else "accuracy")
    if asked["seeds"] is not None:
        seeds = _numbers(asked["seeds"], "seeds")
        changes["seeds"] = tuple(seeds_of(list(seeds) if "," in asked["seeds"] else seeds[0]))
    changes |= {name: asked[name] for name in ("refine", "title") if asked[name] is not None}
    if asked["file"] is None:
        return _from_flags(asked, given, changes)
    named = {"methods": "--methods", "schedules": "--noise-schedule", "config_file": "--config"}
    barred = [option for name, option in named.items() if asked[name]]
    if barred:
        raise InputError(
            f"{barred[0]} was given together with a file.",
            why="The file says what its cases are.",
            fix="Leave it out, or write it into the file.",
        )
    spec = Comparison.from_toml(Path(asked["file"]))
    name_as_in_file(key for key in spec.base if key not in given)
    return spec.replace(base={**spec.base, **given}, **changes)


def _from_flags(asked: dict[str, Any], given: dict[str, Any], changes: dict[str, Any]) -> Comparison:
    from adadp.app.config import TrainConfig
    from adadp.lab.compare import Comparison, crossed, split_methods

    if not asked["methods"]:
        raise InputError("There are no methods to compare.", fix="Pass --methods dpsgd,adadp, say, or a file.")
    schedules = [part.strip() for text in asked["schedules"] for part in text.split(";")]
    cases = crossed(split_methods(asked["methods"]), schedules)
    base = given
    if asked["config_file"] is not None:
        first = {"epsilon": changes["epsilons"][0]} if "epsilons" in changes else {}
        base = _without_defaults(TrainConfig.from_toml(Path(asked["config_file"]), **given, **first))
        for name in ("method", "seed", *first):
            base.pop(name, None)
    title = f"{', '.join(case.name for case in cases)} on {base.get('data', 'no data')}"
    return Comparison(**{"title": title, "base": base, "cases": cases, "seeds": (0, 1, 2), **changes})


def _without_defaults(config: Any) -> dict[str, Any]:
    defaults = {field.name: field.default for field in dataclasses.fields(config)}
    return {name: value for name, value in config.as_dict().items() if value != defaults[name]}


def _numbers(text: str, name: str) -> tuple[Any, ...]:
    try:
        return tuple(float(part) if name in ("epsilon", "accuracy") else int(part) for part in text.split(","))
    except ValueError:
        raise InputError(
            f"--{name} must be numbers, got {text!r}.", fix=f"Write them like {_WRITTEN.get(name, '.5,2')}."
        ) from None


def _command(flags: Mapping[str, Any], out: str) -> str:
    """The command as it can be given again."""
    renamed = {"epsilons": "epsilon", "schedules": "noise-schedule", "marks": "accuracy", "config_file": "config"}
    words = ["adadp", "compare", *([flags["file"]] if flags["file"] else [])]
    for name, value in {**flags, "out": out}.items():
        if name == "file" or value is None or value == ():
            continue
        option = renamed.get(name, name.replace("_", "-"))
        for each in value if isinstance(value, tuple) else (value,):
            words += [f"--no-{option}"] if each is False else [f"--{option}", *([] if each is True else [str(each)])]
    return shlex.join(words)


@contextmanager
def _shown(as_json: bool) -> Iterator[Watch]:
    """What is seen while runs are made: a table on a terminal, elsewhere a line for each run that ends."""
    from rich.console import Console

    console = Console(stderr=True)
    if as_json or not console.is_terminal:
        yield lambda progress: _tell(progress, quiet=as_json)
        return
    from rich.live import Live

    live = Live(console=console, auto_refresh=False, transient=True)

    def watch(progress: Progress) -> None:
        _tell(progress, quiet=True)
        if progress.running:
            live.start()
            live.update(_table(progress), refresh=True)

    try:
        yield watch
    finally:
        live.stop()


def _tell(progress: Progress, *, quiet: bool) -> None:
    """What the runs will cost, for records that are not public; and a line for the run that has just ended."""
    from adadp.lab.compare.formatting import heading, percent

    if progress.planned_total is not None and not progress.results["public"]:
        click.echo(progress.planned_total["text"], err=True)
    ended = progress.ended
    if ended is None or (quiet and not ended.error):
        return
    what = f"{percent(ended.accuracy, None)} %" if ended.accuracy is not None else f"FAILED: {ended.error}"
    where = f"{ended.name}, {heading(ended.epsilon)}, seed {ended.seed}"
    left = "" if progress.seconds_left is None else f", {_time(progress.seconds_left)} left"
    click.echo(f"{progress.done} of {progress.runs}: {where}: {what}{left}", err=True)


def _table(progress: Progress | Mapping[str, Any]) -> RenderableType:
    """Cases by epsilons with what is known so far and, while it goes on, what is running."""
    from rich.box import SIMPLE
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    from adadp.lab.compare.formatting import budgets, cell, heading, names

    results = progress if isinstance(progress, Mapping) else progress.results
    head = Text("Test accuracy, %: mean ± standard deviation over seeds")
    table = Table(box=SIMPLE)
    table.add_column("case", overflow="fold")
    columns = budgets(results)
    for epsilon in columns:
        table.add_column(heading(epsilon), justify="right")
    for name, shown in names(results).items():
        table.add_row(Text(shown), *(cell(results, name, epsilon) for epsilon in columns))
    if isinstance(progress, Mapping):
        return Group(head, table)
    left = "" if progress.seconds_left is None else f", about {_time(progress.seconds_left)} left"
    lines = [Text(f"{progress.done} of {progress.runs} runs done{left}")]
    for run in progress.running:
        far = f"step {run.step} of {run.steps}" if run.steps else "beginning"
        lines.append(Text(f"  {run.name}, {heading(run.epsilon)}, seed {run.seed}: {far}"))
    return Group(head, table, *lines)


def _time(seconds: float) -> str:
    from adadp.app.runs import coarse_seconds

    minutes, rest = divmod(coarse_seconds(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02}:{rest:02}" if minutes >= 60 else f"{minutes}:{rest:02}"


def _show(results: Mapping[str, Any], out: Path) -> None:
    from rich.console import Console

    from adadp.app.report.html.formatting import REHEARSALS
    from adadp.lab.compare.formatting import differences, heading, smallest

    if results["rehearsal"]:
        click.echo(REHEARSALS)
    Console().print(_table(results))
    for line in (*results["misleading"], *differences(results), *smallest(results), results["total"]["text"]):
        click.echo(line)
    for each in results["failed"]:
        click.echo(f"FAILED: {each['name']}, {heading(each['epsilon'])}, seed {each['seed']}: {each['error']}")
    click.echo(f"Everything is in {out}: report.html, results.json, results.csv, and the runs.")
