"""``adadp study``: small experiments of papers, recomputed. Each command prints what is printed and what comes out."""

# The studies pull in numpy, scipy and torch, which `adadp --help` must not wait for: they are imported in the commands.
# ruff: noqa: PLC0415

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, TypeVar

import click

from adadp.app.cli.options import section
from adadp.errors import InputError

_Command = TypeVar("_Command", bound=Callable[..., Any])


@section("Laboratory")
@click.group()
def study() -> None:
    """Small experiments of papers, recomputed: what is printed, and what comes out."""


_JSON = click.option("--json", "as_json", is_flag=True, help="Print JSON for programs.")
_FOLDER = click.Path(file_okay=False, path_type=Path)
_OUT = click.option("--out", type=_FOLDER, help="Folder for the numbers (JSON) and the figures (PNG).")


_setting = functools.partial(click.option, show_default=True)
"""An option whose default says what type it has."""


def _study_options(command: _Command) -> _Command:
    """The options every study has that draws random numbers."""
    seed = _setting("--seed", default=0, help="The same seed gives the same numbers.")
    return seed(_OUT(_JSON(command)))


@study.command()
@_setting("--sensitivity", nargs=2, type=float, default=(12, 6), help="s_1 s_2.")
@_setting("--query", nargs=2, type=float, default=(10, 5), help="f_1 f_2.")
@click.option(
    "--noise", nargs=2, type=float, multiple=True, help="sigma_1 sigma_2, repeatable. [default: the paper's three]"
)
@_setting("--sigma-star", default=1.0, help="sigma* of Lemma 1.")
@_setting("--draws", default=200_000, help="Draws of the noise per choice.")
@_study_options
def cosine(noise: tuple[tuple[float, float], ...], out: Path | None, as_json: bool, **options: Any) -> None:
    """Which noise turns a query least? The worked example to Lemma 1 of Xu et al. 2020.

    \b
    adadp study cosine --out figures
    adadp study cosine --query 10 1 --noise 17 8.5 --noise 13.5 13.5
    """
    from adadp.lab.studies.cosine import PRINTED, study_cosine

    found = study_cosine(noise or tuple(PRINTED), **options)
    _tell("cosine", found, out, as_json, found.to_json() | {"seed": options["seed"]})


@study.command()
@click.argument("names", nargs=-1, metavar="[NAME]...")
@_setting("--runs", default=200, help="Draws of the noise per function.")
@_setting("--steps", default=150, help="Length of a path.")
@_setting("--noise-multiplier", default=1.0, help="sigma*; not printed in the paper.")
@_setting("--clip-norm", default=4.0, help="C of the global clip; not printed.")
@_setting("--rate", default=0.05, help="Rate of DP-SGD; not printed.")
@_setting("--adaptive-rate", default=0.02, help="Rate of ADADP; not printed.")
@_setting("--beta", default=1.5, help="Local clipping factor of ADADP.")
@click.option("--start", nargs=2, type=float, help="Start of the paths instead of the function's own.")
@_study_options
def functions(
    names: tuple[str, ...],
    *,
    runs: int,
    start: tuple[float, float] | None,
    seed: int,
    out: Path | None,
    as_json: bool,
    **constants: Any,
) -> None:
    """How far does noise lead a path astray on test functions? Figure 1 of Xu et al. 2020.

    NAME: one or more test functions, all if none is given; a wrong one lists them.

    \b
    adadp study functions --out figures
    adadp study functions beale --clip-norm 8 --runs 1000
    """
    from adadp.lab.studies.descent import Settings
    from adadp.lab.studies.deviation import deviations
    from adadp.lab.studies.functions import LANDSCAPES, landscape

    chosen = [landscape(name) for name in dict.fromkeys(names or LANDSCAPES)]
    if start is not None:
        chosen = [replace(each, start=start) for each in chosen]
    settings = Settings(**constants)
    found = deviations(chosen, settings, runs=runs, seed=seed)
    numbers = {
        "settings": asdict(settings) | {"runs": runs, "seed": seed},
        "rows": [each.to_json() for each in found],
    }
    _tell("functions", found, out, as_json, numbers)


@study.command()
@_setting("--data", default="mnist", help="A public data set; data of your own is refused.")
@_setting("--step", "looks", type=int, multiple=True, default=(100, 1000), help="To look at, repeatable.")
@_setting("--method", default="adadp-published", help="With options: another reading of it.")
@_setting("--model", default="mlp:1000", help="Name of the network.")
@_setting("--dim", default=60, help="Principal components it sees; 0: all values.")
@_setting("--batch-size", default=600, help="Expected number of records in a step.")
@_setting("--noise-multiplier", default=8.0, help="sigma*.")
@_setting("--clip-norm", default=4.0, help="C, used while the gate is closed.")
@_setting("--rate", default=0.002, help="Rate of the adaptive step.")
@_study_options
def gradients(method: str, out: Path | None, as_json: bool, **settings: Any) -> None:
    """Does E' foresee the gradient? Figures 4c and 4d of Xu et al. 2020, on public data.

    Trains ADADP as published, which is not private, and looks at its raw gradients before the given steps.

    \b
    adadp study gradients --out figures
    adadp study gradients --method adadp-published:clip=batch,square=square-of-mean
    adadp study gradients --data cancer --dim 0 --model cancer-mlp --batch-size 56 --step 10 --step 100
    """
    from adadp.app.cli.progress import feature_bar
    from adadp.app.texts.methods import parse_method
    from adadp.lab.studies.gradients import GradientSettings, study_gradients

    chosen = GradientSettings(method=parse_method(method), **settings)
    with feature_bar() as progress:
        found = study_gradients(chosen, watch=lambda done, steps: progress("steps", done, steps))
    _tell("gradients", found, out, as_json)


@study.command()
@_setting("--q", default=0.01, help="Sampling rate.")
@_setting("--noise-multiplier", default=4.0, help="Noise multiplier.")
@click.option("--out", type=click.Path(dir_okay=False), help="Draw the divergences to this .png, .svg or .pdf.")
@_JSON
def renyi(q: float, noise_multiplier: float, out: str | None, as_json: bool) -> None:
    """Up to which order does sampling help? Figures 1 and 16 of Yu et al. 2019.

    \b
    adadp study renyi --q .01 --noise-multiplier 4 --out renyi.png
    """
    from adadp.lab.studies.renyi import study_renyi

    found = study_renyi(q, noise_multiplier)
    if as_json:
        click.echo(json.dumps(found.to_json(), allow_nan=False))
    else:
        from adadp.lab.cli.study_tables import print_renyi

        print_renyi(found)
    if out is not None:
        from adadp.app.report.plots import Curve, plot_renyi
        from adadp.lab.cli.study_tables import how_far

        curves = [
            Curve("not sampled: alpha / (2 sigma^2)", found.orders, found.unsampled),
            Curve("sampled", found.orders, found.sampled),
            Curve("conjectured: alpha q^2 / sigma^2", found.orders, found.bound, {"linestyle": "--"}),
        ]
        title = f"q = {found.q:g}, sigma = {found.noise_multiplier:g}: {how_far(found)}"
        _wrote(plot_renyi(out, curves, title=title))


@study.command()
@click.option("--c", "coefficients", type=float, multiple=True, help="Momentum, repeatable.  [default: 0, 0.1 ... 0.9]")
@click.option("--steps", type=int, help="After so many steps.  [default: in the long run]")
@_JSON
def momentum(coefficients: tuple[float, ...], steps: int | None, as_json: bool) -> None:
    """How much noise is in momentum on released gradients? The formula of Yu et al. 2018, section 2.

    \b
    adadp study momentum
    adadp study momentum --c 0.6 --steps 10
    """
    from adadp.lab.cli.study_tables import print_momentum
    from adadp.lab.methods.momentum import signal_factor, variance_factor

    asked = coefficients or tuple(place / 10 for place in range(10))
    rows = [(c, variance_factor(c, steps), signal_factor(c, steps)) for c in asked]
    if as_json:
        names = ("c", "variance_factor", "signal_factor")
        click.echo(json.dumps([dict(zip(names, row, strict=True)) for row in rows]))
        return
    print_momentum(rows)
    when = "in the long run" if steps is None else f"after {steps} steps"
    click.echo(f"{when}, each beside one release without momentum")


@study.command()
@_setting("--data", default="mnist", help="A public data set; data of your own is refused.")
@_setting(
    "--model",
    "models",
    multiple=True,
    default=("conv", "convex"),
    help="Repeatable: conv, convex (the paper's), or the name of any network.",
)
@_setting("--epochs", default=10, help="Not printed in the paper.")
@_setting("--lr", default=0.02, help="Rate of SGD.")
@_setting("--q", default=0.01, help="Share of the records in a batch.")
@_setting("--sample", default=2000, help="Records whose gradients are looked at.")
@click.option("--raw", is_flag=True, default=False, help="Values as they are, not standardised.")
@_study_options
def norms(out: Path | None, as_json: bool, **settings: Any) -> None:
    """Do gradients get smaller while training converges? Figure 1 of Yu et al. 2018, on public data.

    Trains without noise, which is not private, and looks at the norms of the records' own gradients after each epoch.

    \b
    adadp study norms --out figures
    adadp study norms --model convex --raw --epochs 20
    adadp study norms --data cancer --model linear --model mlp:10 --q .1
    """
    from adadp.app.cli.progress import feature_bar
    from adadp.lab.studies.norms import NormSettings, study_norms

    chosen = NormSettings(**settings)
    with feature_bar() as progress:
        found = study_norms(chosen, watch=lambda model, done, epochs: progress(f"{model}, epochs", done, epochs))
    _tell("norms", found, out, as_json)


@study.command("time")
@_setting("--rounds", default=25, help="Of which the median counts.")
@click.option("--case", "cases", multiple=True, help="Repeatable: mnist, cifar10, mnist-1200.  [default: all]")
@click.option(
    "--method", "methods", multiple=True, help="Repeatable: a short name of the table, or a method.  [default: all]"
)
@_OUT
@_JSON
def time_(rounds: int, cases: tuple[str, ...], methods: tuple[str, ...], out: Path | None, as_json: bool) -> None:
    """How long does a step of every method take beside DP-SGD's? Table II of Xu et al. 2020.

    Measures on made-up records and one thread. The machine should have nothing else to do.

    \b
    adadp study time
    adadp study time --case mnist --method adadp --method agd:grid=5 --rounds 5
    """
    from adadp.app.cli.progress import feature_bar
    from adadp.lab.studies.timing import CASES, METHODS, study_time

    with feature_bar() as progress:
        found = study_time(
            cases or tuple(CASES),
            methods or tuple(METHODS),
            rounds=rounds,
            watch=lambda case, done, total: progress(f"{case}, rounds", done, total),
        )
    _tell("time", found, out, as_json)


def _tell(name: str, found: Any, out: Path | None, as_json: bool, numbers: dict[str, Any] | None = None) -> None:
    """Print what a study found, for programs or for people; write it to the folder ``out``, with its figures."""
    numbers = found.to_json() if numbers is None else numbers
    if as_json:
        click.echo(json.dumps(numbers, allow_nan=False))
    else:
        from adadp.lab.cli.study_tables import PRINTED

        PRINTED[name](found)
        if "settings" in numbers:
            click.echo(f"settings: {json.dumps(numbers['settings'])}")
    if out is not None:
        from adadp.lab.studies.plots import draw_study

        target = out / f"{name}.json"
        try:
            out.mkdir(parents=True, exist_ok=True)
            target.write_text(json.dumps(numbers, allow_nan=False, indent=1) + "\n", encoding="utf-8")
        except OSError as error:
            raise InputError(
                f"Cannot write {target}: {error.strerror}.", fix="Choose a folder that can be written."
            ) from error
        _wrote(target)
        for path in draw_study(name, out, found):
            _wrote(path)


def _wrote(path: Path) -> None:
    click.echo(f"wrote {path}", err=True)
