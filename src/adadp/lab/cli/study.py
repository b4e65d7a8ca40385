"""``adadp study``: small experiments of papers, recomputed. Each command prints what is printed and what comes out."""

# The studies pull in numpy, scipy and torch, which `adadp --help` must not wait for: they are imported in the commands.
# ruff: noqa: PLC0415

from __future__ import annotations

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
_OUT = click.option(
    "--out",
    type=click.Path(file_okay=False, path_type=Path),
    help="Folder for the numbers (JSON) and the figures (PNG).",
)


def _study_options(command: _Command) -> _Command:
    """The options every study has that draws random numbers."""
    seed = click.option("--seed", type=int, default=0, show_default=True, help="The same seed gives the same numbers.")
    return seed(_OUT(_JSON(command)))


@study.command()
@click.option("--sensitivity", nargs=2, type=float, default=(12, 6), show_default=True, help="s_1 s_2.")
@click.option("--query", nargs=2, type=float, default=(10, 5), show_default=True, help="f_1 f_2.")
@click.option(
    "--noise", nargs=2, type=float, multiple=True, help="sigma_1 sigma_2, repeatable. [default: the paper's three]"
)
@click.option("--sigma-star", type=float, default=1.0, show_default=True, help="sigma* of Lemma 1.")
@click.option("--draws", type=int, default=200_000, show_default=True, help="Draws of the noise per choice.")
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
@click.option("--runs", type=int, default=200, show_default=True, help="Draws of the noise per function.")
@click.option("--steps", type=int, default=150, show_default=True, help="Length of a path.")
@click.option(
    "--noise-multiplier", type=float, default=1.0, show_default=True, help="sigma*; not printed in the paper."
)
@click.option("--clip-norm", type=float, default=4.0, show_default=True, help="C of the global clip; not printed.")
@click.option("--rate", type=float, default=0.05, show_default=True, help="Rate of DP-SGD; not printed.")
@click.option("--adaptive-rate", type=float, default=0.02, show_default=True, help="Rate of ADADP; not printed.")
@click.option("--beta", type=float, default=1.5, show_default=True, help="Local clipping factor of ADADP.")
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
@click.option("--data", default="mnist", show_default=True, help="A public data set; data of your own is refused.")
@click.option(
    "--step", "looks", type=int, multiple=True, default=(100, 1000), show_default=True, help="To look at, repeatable."
)
@click.option("--method", default="adadp-published", show_default=True, help="With options: another reading of it.")
@click.option("--model", default="mlp:1000", show_default=True, help="Name of the network.")
@click.option("--dim", type=int, default=60, show_default=True, help="Principal components it sees; 0: all values.")
@click.option("--batch-size", type=int, default=600, show_default=True, help="Expected number of records in a step.")
@click.option("--noise-multiplier", type=float, default=8.0, show_default=True, help="sigma*.")
@click.option("--clip-norm", type=float, default=4.0, show_default=True, help="C, used while the gate is closed.")
@click.option("--rate", type=float, default=0.002, show_default=True, help="Rate of the adaptive step.")
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
@click.option("--q", type=float, default=0.01, show_default=True, help="Sampling rate.")
@click.option("--noise-multiplier", type=float, default=4.0, show_default=True, help="Noise multiplier.")
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
@click.option("--data", default="mnist", show_default=True, help="A public data set; data of your own is refused.")
@click.option(
    "--model",
    "models",
    multiple=True,
    default=("conv", "convex"),
    show_default=True,
    help="Repeatable: conv, convex (the paper's), or the name of any network.",
)
@click.option("--epochs", type=int, default=10, show_default=True, help="Not printed in the paper.")
@click.option("--lr", type=float, default=0.02, show_default=True, help="Rate of SGD.")
@click.option("--q", type=float, default=0.01, show_default=True, help="Share of the records in a batch.")
@click.option("--sample", type=int, default=2000, show_default=True, help="Records whose gradients are looked at.")
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
@click.option("--rounds", type=int, default=25, show_default=True, help="Of which the median counts.")
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

        _wrote(_write_json(out, f"{name}.json", numbers))
        for path in draw_study(name, out, found):
            _wrote(path)


def _write_json(folder: Path, name: str, numbers: object) -> Path:
    target = folder / name
    try:
        folder.mkdir(parents=True, exist_ok=True)
        target.write_text(json.dumps(numbers, allow_nan=False, indent=1) + "\n", encoding="utf-8")
    except OSError as error:
        raise InputError(
            f"Cannot write {target}: {error.strerror}.", fix="Choose a folder that can be written."
        ) from error
    return target


def _wrote(path: Path) -> None:
    click.echo(f"wrote {path}", err=True)
