"""``adadp study``: small experiments of papers, recomputed. Each command prints what is printed and what comes out."""

# The studies pull in numpy, scipy and torch, which `adadp --help` must not wait for: they are imported in the commands.
# ruff: noqa: PLC0415

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from adadp.errors import InputError

if TYPE_CHECKING:
    from adadp.studies import CosineStudy, Deviation
    from adadp.studies.gradients import GradientStudy, Look
    from adadp.studies.renyi import RenyiStudy

_Command = TypeVar("_Command", bound=Callable[..., Any])


@click.group()
def study() -> None:
    """Small experiments of papers, recomputed: what is printed, and what comes out."""


def _study_options(command: _Command) -> _Command:
    """The options every study has."""
    for option in reversed(
        [
            click.option(
                "--seed", type=int, default=0, show_default=True, help="The same seed gives the same numbers."
            ),
            click.option(
                "--out",
                type=click.Path(file_okay=False, path_type=Path),
                help="Folder for the numbers (JSON) and the figures (PNG).",
            ),
            click.option("--json", "as_json", is_flag=True, help="Print JSON for programs."),
        ]
    ):
        command = option(command)
    return command


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
    from adadp.studies.cosine import PRINTED, study_cosine

    found = study_cosine(noise or tuple(PRINTED), **options)
    numbers = found.to_json() | {"seed": options["seed"]}
    if as_json:
        click.echo(json.dumps(numbers, allow_nan=False))
    else:
        _print_cosine(found)
    if out is not None:
        from adadp.studies.plots import plot_cosine

        _wrote(_write_json(out, "cosine.json", numbers))
        _wrote(plot_cosine(out / "cosine.png", found))


@study.command()
@click.argument("names", nargs=-1, metavar="[NAME]...")
@click.option("--runs", type=int, default=200, show_default=True, help="Draws of the noise per function.")
@click.option("--steps", type=int, default=150, show_default=True, help="Length of a path.")
@click.option("--sigma", type=float, default=1.0, show_default=True, help="sigma*; not printed in the paper.")
@click.option("--clip", type=float, default=4.0, show_default=True, help="C of the global clip; not printed.")
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
    adadp study functions beale --clip 8 --runs 1000
    """
    from adadp.studies import LANDSCAPES, Settings, deviations, landscape

    chosen = [landscape(name) for name in dict.fromkeys(names or LANDSCAPES)]
    if start is not None:
        chosen = [replace(each, start=start) for each in chosen]
    settings = Settings(**constants)
    found = deviations(chosen, settings, runs=runs, seed=seed)
    rows = [each.to_json() for each in found]
    numbers = {"settings": asdict(settings) | {"runs": runs, "seed": seed}, "rows": rows}
    if as_json:
        click.echo(json.dumps(numbers, allow_nan=False))
    else:
        _print_functions(found, numbers["settings"])
    if out is not None:
        from adadp.studies.plots import plot_deviations, plot_paths

        _wrote(_write_json(out, "functions.json", numbers))
        _wrote(plot_deviations(out / "functions.png", found))
        for each in chosen:
            mine = [deviation for deviation in found if deviation.landscape is each]
            _wrote(plot_paths(out / f"paths-{each.name}.png", mine))


@study.command()
@click.option("--data", default="mnist", show_default=True, help="A public data set; data of your own is refused.")
@click.option(
    "--step", "looks", type=int, multiple=True, default=(100, 1000), show_default=True, help="To look at, repeatable."
)
@click.option("--method", default="adadp-published", show_default=True, help="With options: another reading of it.")
@click.option("--model", default="mlp:1000", show_default=True, help="Name of the network.")
@click.option("--dim", type=int, default=60, show_default=True, help="Principal components it sees; 0: all values.")
@click.option("--lot", type=int, default=600, show_default=True, help="Expected number of records in a step.")
@click.option("--sigma", type=float, default=8.0, show_default=True, help="sigma*.")
@click.option("--clip", type=float, default=4.0, show_default=True, help="C, used while the gate is closed.")
@click.option("--rate", type=float, default=0.002, show_default=True, help="Rate of the adaptive step.")
@_study_options
def gradients(method: str, out: Path | None, as_json: bool, **settings: Any) -> None:
    """Does E' foresee the gradient? Figures 4c and 4d of Xu et al. 2020, on public data.

    Trains ADADP as published, which is not private, and looks at its raw gradients before the given steps.

    \b
    adadp study gradients --out figures
    adadp study gradients --method adadp-published:clip=lot,square=square-of-mean
    adadp study gradients --data cancer --dim 0 --model cancer-mlp --lot 56 --step 10 --step 100
    """
    from adadp.cli.progress import feature_bar
    from adadp.methods import parse_method
    from adadp.studies.gradients import GradientSettings, study_gradients

    chosen = GradientSettings(method=parse_method(method), **settings)
    with feature_bar() as progress:
        found = study_gradients(chosen, watch=lambda done, steps: progress("steps", done, steps))
    numbers = found.to_json()
    if as_json:
        click.echo(json.dumps(numbers, allow_nan=False))
    else:
        _print_gradients(found)
    if out is not None:
        from adadp.studies.plots import plot_gradients, plot_noise

        _wrote(_write_json(out, "gradients.json", numbers))
        _wrote(plot_gradients(out / "gradients.png", found))
        _wrote(plot_noise(out / "noise.png", found))


@study.command()
@click.option("--q", type=float, default=0.01, show_default=True, help="Sampling rate.")
@click.option("--sigma", type=float, default=4.0, show_default=True, help="Noise multiplier.")
@click.option("--out", type=click.Path(dir_okay=False), help="Draw the divergences to this .png, .svg or .pdf.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON for programs.")
def renyi(q: float, sigma: float, out: str | None, as_json: bool) -> None:
    """Up to which order does sampling help? Figures 1 and 16 of Yu et al. 2019.

    \b
    adadp study renyi --q .01 --sigma 4 --out renyi.png
    """
    from adadp.studies.renyi import study_renyi

    found = study_renyi(q, sigma)
    if as_json:
        click.echo(json.dumps(found.to_json(), allow_nan=False))
    else:
        _print_renyi(found)
    if out is not None:
        from adadp.report.plots import Curve, plot_renyi

        curves = [
            Curve("not sampled: alpha / (2 sigma^2)", found.orders, found.unsampled),
            Curve("sampled", found.orders, found.sampled),
            Curve("conjectured: alpha q^2 / sigma^2", found.orders, found.bound, {"linestyle": "--"}),
        ]
        title = f"q = {found.q:g}, sigma = {found.sigma:g}: {_how_far(found)}"
        _wrote(plot_renyi(out, curves, title=title))


def _print_cosine(found: CosineStudy) -> None:
    from rich.box import SIMPLE
    from rich.console import Console
    from rich.table import Table

    console = Console(highlight=False, soft_wrap=True)
    title = f"mean cosine similarity of {_pair(found.query)} and itself with noise, {found.draws:,} draws"
    columns = ("noise", "sampled", "+-", "exact", "printed", "sum", "sigma*", "allowed")
    table = Table(*columns, title=title, title_justify="left", box=SIMPLE, pad_edge=False)
    table.columns[0].no_wrap = True
    for choice in found.choices:
        table.add_row(
            _pair(choice.sigma),
            f"{choice.sampled:.4f}",
            f"{choice.error:.4f}",
            f"{choice.exact:.4f}",
            "" if choice.printed is None else f"{choice.printed:.2f}",
            f"{choice.privacy_sum:.4f}",
            f"{choice.sigma_star:.4f}",
            "yes" if choice.allowed else "no",
        )
    console.print(table)
    console.print("sum: s_1^2/sigma_1^2 + s_2^2/sigma_2^2; sigma*: what the noise is exactly as private as;")
    console.print(f"allowed: whether that is at least the sigma* = {found.sigma_star:g} asked for.")
    console.print("\nOf all noise that is exactly as private as that:")
    for name, point in (("best", found.best), ("equal", found.equal), ("in proportion to s", found.proportional)):
        sigma = f"({point.sigma[0]:.4g}, {point.sigma[1]:.4g})"
        console.print(f"  {name:<20}{sigma:<18}ratio {point.ratio:<8.4g}similarity {point.similarity:.4f}")
    ahead = found.proportional.similarity > found.equal.similarity
    console.print(f"Noise in proportion to the sensitivity is {'better' if ahead else 'not better'} than equal noise.")


_SHOWN_ORDERS = 12


def _print_renyi(found: RenyiStudy) -> None:
    from rich.box import SIMPLE
    from rich.console import Console
    from rich.table import Table

    console = Console(highlight=False, soft_wrap=True)
    title = f"Renyi divergence of one step, q = {found.q:g}, sigma = {found.sigma:g}"
    table = Table("order", "sampled", "conjectured", "not sampled", title=title, title_justify="left", box=SIMPLE)
    rows = list(zip(found.orders, found.sampled, found.bound, found.unsampled, strict=True))
    for order, *values in rows[:: max(1, len(rows) // _SHOWN_ORDERS)]:
        table.add_row(str(order), *(f"{value:.4g}" for value in values))
    console.print(table)
    console.print(_how_far(found))
    if found.conjectured_to is not None and found.end_ratio is not None:
        verdict = "the conjecture is false here" if found.end_ratio > 1 else "as conjectured"
        console.print(
            f"At order {found.conjectured_to:.4g} the divergence is {found.end_ratio:.4g} of that bound: {verdict}."
        )
    else:
        console.print(f"The paper conjectures nothing here: q is above 1/(16 sigma) = {1 / (16 * found.sigma):.4g}.")


def _how_far(found: RenyiStudy) -> str:
    """Up to which order the conjectured bound holds, in a line."""
    if found.holds_to is None:
        return "alpha q^2/sigma^2 is passed at order 2 already"
    if found.holds_to == found.orders[-1]:
        return f"alpha q^2/sigma^2 holds at all orders looked at, to {found.holds_to}"
    conjectured = f", conjectured up to {found.conjectured_to:.4g}" if found.conjectured_to is not None else ""
    return f"alpha q^2/sigma^2 holds up to order {found.holds_to}{conjectured}"


_HOW_TO_READ = """\
D: distance between a path with noise and the same method's without, mean over
steps and runs, with its standard error and the spread from run to run. end: how
far from a minimum the path without noise ends; noisy: those with noise, mean.
adadp against adal is what adaptive noise does, adal against dpsgd what the
adaptive rate does. adadp is as published, which is not a private method."""


def _print_functions(found: Sequence[Deviation], settings: object) -> None:
    from rich.box import SIMPLE
    from rich.console import Console
    from rich.table import Table

    console = Console(highlight=False, soft_wrap=True)
    table = Table("function", "method", "D", "+-", "spread", "printed", "end", "noisy", box=SIMPLE, pad_edge=False)
    table.columns[0].no_wrap = True
    for column in table.columns[2:]:
        column.justify = "right"
    methods = len(type(found[0].method))
    for place, each in enumerate(found):
        titles = (each.landscape.name, f"from {_pair(each.landscape.start)}", "")
        table.add_row(
            titles[place % methods],
            each.method.value,
            f"{each.mean:.3f}",
            f"{each.error:.3f}",
            f"{each.spread:.2f}",
            "" if each.printed is None else f"{each.printed:.2f}",
            f"{each.quiet_end:.2f}",
            f"{each.noisy_end:.2f}",
            end_section=place % methods == methods - 1,
        )
    console.print(table)
    console.print(_HOW_TO_READ)
    console.print(f"settings: {json.dumps(settings)}", markup=False)


@study.command()
@click.option("--c", "coefficients", type=float, multiple=True, help="Momentum, repeatable.  [default: 0, 0.1 ... 0.9]")
@click.option("--steps", type=int, help="After so many steps.  [default: in the long run]")
@click.option("--json", "as_json", is_flag=True, help="Print JSON for programs.")
def momentum(coefficients: tuple[float, ...], steps: int | None, as_json: bool) -> None:
    """How much noise is in momentum on released gradients? The formula of Yu et al. 2018, section 2.

    \b
    adadp study momentum
    adadp study momentum --c 0.6 --steps 10
    """
    from rich.box import SIMPLE
    from rich.console import Console
    from rich.table import Table

    from adadp.methods import signal_factor, variance_factor

    asked = coefficients or tuple(place / 10 for place in range(10))
    rows = [(c, variance_factor(c, steps), signal_factor(c, steps)) for c in asked]
    if as_json:
        names = ("c", "variance_factor", "signal_factor")
        click.echo(json.dumps([dict(zip(names, row, strict=True)) for row in rows]))
        return
    table = Table("c", "variance of the noise", "a steady gradient", "noise over signal", box=SIMPLE, pad_edge=False)
    for column in table.columns:
        column.justify = "right"
    for c, variance, signal in rows:
        table.add_row(f"{c:g}", f"{variance:.4g}", f"{signal:.4g}", f"{variance**0.5 / signal:.3g}")
    Console(highlight=False, soft_wrap=True).print(table)
    when = "in the long run" if steps is None else f"after {steps} steps"
    click.echo(f"{when}, each beside one release without momentum")


_HOW_TO_READ_GRADIENTS = """\
|g|: mean gradient of the lot the step is about to use; sqrt(E'): what the method
expects of it; sigma_i: the noise on the sum over the lot. rank correlation: of
|g| and sqrt(E') over all coordinates, and within each parameter. ratio: median of
|g|/sqrt(E'). All of it is made of raw gradients: public data only."""


def _print_gradients(found: GradientStudy) -> None:
    from rich.box import SIMPLE
    from rich.console import Console
    from rich.table import Table

    from adadp.studies.gradients import quantiles

    console = Console(highlight=False, soft_wrap=True)
    table = Table("step", "", "5 %", "25 %", "50 %", "75 %", "95 %", "zero", box=SIMPLE, pad_edge=False)
    for column in table.columns[2:]:
        column.justify = "right"
    for look in found.looks:
        parts = (("|g|", look.gradient), ("sqrt(E')", look.estimate), ("sigma_i", look.noise))
        for place, (name, values) in enumerate(parts):
            cells = [f"{value:.3g}" for value in quantiles(values).values()]
            first = str(look.step) if place == 0 else ""
            zero = f"{(values == 0).mean():.1%}"
            table.add_row(first, name, *cells, zero, end_section=place == len(parts) - 1)
    console.print(table)
    for look in found.looks:
        console.print(_agreement(look))
    console.print(f"test accuracy before the last step: {found.accuracy:.4f}; coordinates: {found.coordinates:,}")
    console.print(_HOW_TO_READ_GRADIENTS)
    console.print(f"settings: {json.dumps(found.settings.to_json())}", markup=False)


def _agreement(look: Look) -> str:
    """The correlations of a step and the ratio, in a line."""
    within = ", ".join(f"{name} {_number(value)}" for name, value in look.correlations.items())
    gate = "" if look.gate_open else ", gate closed"
    return (
        f"step {look.step}: rank correlation {_number(look.correlation)} ({within}), ratio {_number(look.ratio)}{gate}"
    )


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3g}"


def _pair(pair: Sequence[float]) -> str:
    return f"({pair[0]:g}, {pair[1]:g})"


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
