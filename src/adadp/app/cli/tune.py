"""``adadp tune``: choose a setting and train it, with one guarantee for both."""

# torch and the rooms over it take seconds to load, which `adadp --help` must not wait for: imported in the commands.
# ruff: noqa: PLC0415

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from adadp.app.cli.options import (
    RunCommand,
    config_of,
    executor_option,
    given_executor,
    given_options,
    section,
    trust_option,
)
from adadp.app.launch import refuse_several
from adadp.errors import InputError, Interrupted

if TYPE_CHECKING:
    from adadp.app.accounting.repetitions import Repetitions
    from adadp.app.config import TrainConfig
    from adadp.app.selection import SearchResult
    from adadp.app.train.search_spec import Search

_SCORED = ("validation", "validation_public", "validation_data")
"""Options of a training run that here say what the runs are compared on."""

_OWN = (
    *("config_file", "grid", "settings", "law", "eta", "runs", "score_noise_multiplier", "select_epsilon", "out"),
    "only_plan",
)
"""Options of a search alone, which cannot be given when one resumes."""


@section("Train")
@click.command(cls=RunCommand, own="Search")
@click.option("--config", "config_file", type=click.Path(dir_okay=False), help="TOML file; flags win over it.")
@click.option(
    "--grid", multiple=True, metavar="NAME=VALUES", help="lr=0.05,0.1; with | between values that hold commas."
)
@click.option("--settings", type=click.Path(dir_okay=False), help="TOML file with a [[setting]] for each.")
@click.option(
    "--by", type=click.Choice(["repeat", "parts", "gupta"]), default="repeat", show_default=True, help="How to search."
)
@click.option("--law", type=click.Choice(["poisson", "tnb"]), help="Law of the number of runs.  [default: poisson]")
@click.option("--eta", type=float, help="For --law tnb: -1 < eta; 0 logarithmic, 1 geometric.  [default: 1]")
@click.option("--runs", type=float, help="Mean number of runs.  [default: 10]")
@click.option(
    "--score-noise-multiplier", type=float, help="Noise of private scores, in records.  [default: the least possible]"
)
@click.option("--select-epsilon", type=float, help="By parts: epsilon of the choice.  [default: --epsilon]")
@click.option("--plan", "only_plan", is_flag=True, help="Say what it would do and cost. Reads no data.")
@click.option("--out", type=click.Path(file_okay=False), help="Folder for the chosen run.")
@click.option("--resume", type=click.Path(file_okay=False), help="Resume the search in this folder.")
@trust_option
@executor_option
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object as the last line.")
def tune(*, by: str, resume: str | None, trust_code: bool, executor: str | None, as_json: bool, **flags: Any) -> None:
    """Choose a setting and train it privately; --epsilon and --delta are what both cost together.

    Takes the options of adadp train as what all settings share. --validation, --validation-public and
    --validation-data say what the runs are compared on.

    \b
    adadp tune --data cancer --epsilon 2 --grid lr=0.1,0.5,2 --grid clip_norm=0.5,1 --validation 100 --out runs/tuned
    adadp tune --data cancer --epsilon 2 --grid lr=0.1,0.5,2 --validation 100 --plan
    adadp tune --data mnist --epsilon 2 --settings settings.toml --by parts --out runs/tuned
    adadp tune --resume runs/tuned
    """
    from adadp.app import selection

    refuse_several("tune")
    own = {name: flags.pop(name) for name in _OWN}
    given = given_options(flags)
    if resume is not None:
        _only_resume([*given, *(name for name, value in own.items() if value)])
        _search(resume, as_json, executor, partial(selection.resume, resume, trust_code=trust_code))
        return
    if trust_code:
        raise InputError(
            "--trust-code was given without --resume.", why="It says something about a search that goes on."
        )
    chosen = _settings(own["grid"], own["settings"])
    scored = {name: given.pop(name) for name in _SCORED if name in given}
    base = config_of(given, own["config_file"])
    law = (own["law"], own["eta"], own["runs"])
    if by == "gupta":
        _gupta(base, chosen, _law(*law), own["select_epsilon"], own["out"], as_json)
        return
    options = scored | {"by": by} | {name: own[name] for name in ("score_noise_multiplier", "select_epsilon")}
    options["law"] = None if by == "parts" and law == (None, None, None) else _law(*law)
    if own["only_plan"]:
        _show_plan(selection.planned(base, chosen, **options), as_json)
        return
    if own["out"] is None:
        raise InputError("A search needs a folder.", fix="Pass --out, or --plan to see what it would do.")
    _search(own["out"], as_json, executor, partial(selection.tune, base, chosen, out=own["out"], **options))


def _only_resume(others: list[str]) -> None:
    if others:
        raise InputError(
            f"--resume was given together with {', '.join(others)}.",
            why="A search goes on as it was planned and charged; nothing about it can change.",
            fix="Leave the other options out.",
        )


def _settings(grid: tuple[str, ...], file: str | None) -> tuple[dict[str, Any], ...]:
    from adadp.app.selection import parse_grid, read_settings

    if bool(grid) == (file is not None):
        raise InputError("The settings must be given once.", fix="Pass --grid (once per field), or --settings.")
    return parse_grid(grid) if file is None else read_settings(Path(file))


def _law(law: str | None, eta: float | None, runs: float | None) -> Repetitions:
    from adadp.app.accounting.repetitions import repetitions_for

    if eta is not None and law != "tnb":
        raise InputError("--eta was given without --law tnb.", why="It would be ignored.", fix="Add --law tnb.")
    tail = math.inf if law != "tnb" else 1.0 if eta is None else eta
    return repetitions_for(10.0 if runs is None else runs, tail)


def _search(place: str, as_json: bool, executor: str | None, search: Callable[..., SearchResult]) -> None:
    """Do ``search`` in ``place``. What it shows does not depend on the number of runs."""

    def begun() -> None:
        if not as_json:
            told = "Searching. How many runs it makes must not become known, so there is nothing to watch."
            click.echo(told, err=True)

    try:
        with given_executor(executor) as hands:
            result = search(checks_passed=begun, executor=hands)
    except Interrupted as stopped:
        click.echo(f"{stopped.what} {stopped.why} {stopped.fix}", err=True)
        sys.exit(130)
    except KeyboardInterrupt:
        click.echo(f"Interrupted. If the search had begun, go on with: adadp tune --resume {place}", err=True)
        sys.exit(130)
    _show(result, as_json)


def _show(result: SearchResult, as_json: bool) -> None:
    from adadp.app.report.attacks import stated_attacks
    from adadp.certificate.wording import stated

    if as_json:
        summary = {
            **stated(result.certificate),
            **stated_attacks(result.certificate),
            "setting": result.setting,
            "score": result.search.score,
            "test_accuracy": result.test_accuracy,
            "delta": result.certificate["delta"],
            "by": result.search.by,
            "out": str(result.out),
        }
        click.echo(json.dumps(summary))
        return
    click.echo(result.describe())
    if result.setting is None:
        click.echo("The number of runs came out as 0: nothing was trained.")
    else:
        click.echo(f"Chosen: {_text(result.setting)}")
        score = "" if result.search.score is None else f"Score {result.search.score:.4f}. "
        accuracy = "" if result.test_accuracy is None else f"Test accuracy {result.test_accuracy:.4f}."
        click.echo(f"{score}{accuracy}".strip())
    click.echo(
        f"Everything is in {result.out}, with a page to read: report.html. Check it with: adadp verify {result.out}"
    )


def _show_plan(search: Search, as_json: bool) -> None:
    from adadp.accounting import rounded_up
    from adadp.app.selection import cost_of

    cost = cost_of(search)
    if as_json:
        click.echo(json.dumps(search.as_json() | {"cost": cost}))
        return
    for number, (setting, plan) in enumerate(zip(search.settings, search.plans(), strict=True), 1):
        noise = f"noise multiplier {plan.noise_multiplier_at(0):.6g}" if plan.noise is not None else ""
        size = f"{plan.steps} steps, batches of about {plan.batch_size} of {plan.records} records"
        click.echo(f"{number:3}  {_text(setting)}: {noise}, {size}")
    click.echo(search.describe())
    click.echo(
        f"Epsilon {rounded_up(cost)} at delta {search.delta:g} for everything; {search.epsilon:g} was asked for."
    )


def _gupta(  # noqa: PLR0917
    base: TrainConfig,
    settings: tuple[dict[str, Any], ...],
    law: Repetitions,
    epsilon_prime: float | None,
    out: str | None,
    as_json: bool,
) -> None:
    from adadp.app.selection.published import gupta_numbers

    if out is not None:
        raise InputError(
            "A search by gupta does not train.",
            why="Its claim could not be verified, so nothing can be certified by it.",
            fix="Leave --out out to see its numbers, or search by repeat or parts.",
        )
    numbers = gupta_numbers(base, settings, law, epsilon_prime=0.5 if epsilon_prime is None else epsilon_prime)
    if as_json:
        click.echo(json.dumps(numbers))
        return
    click.echo(
        "Appendix D of Abadi et al. 2016 (Theorem 10.2 of Gupta et al. 2010), as published; it certifies nothing.\n"
        f"{numbers['settings']} settings, runs of epsilon {numbers['epsilon_of_a_run']:g} at delta "
        f"{numbers['delta']:g}, epsilon' {numbers['epsilon_prime']:g}, failure {numbers['failure']:g}:\n"
        f"  runs            {numbers['runs']}\n"
        f"  lost            up to {numbers['lost_answers']:.1f} right answers\n"
        f"  claimed epsilon {numbers['claimed_epsilon']:g}; with validation records of their own "
        f"{numbers['claimed_epsilon_own_validation']:g}\n"
        f"By repeat, the best of about {numbers['repeat_mean_runs']:g} of the same runs costs epsilon "
        f"{numbers['repeat_epsilon']:.4g}, proved."
    )


def _text(setting: dict[str, Any]) -> str:
    return ", ".join(f"{name}={value}" for name, value in setting.items()) or "as the base"
