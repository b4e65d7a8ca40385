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
