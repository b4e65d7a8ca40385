"""What ``adadp study`` prints for people: what is printed in a paper, and what comes out."""

# Not every study needs torch, so none of them is imported before it is printed.
# ruff: noqa: PLC0415

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table

from adadp.lab.studies.keys import pair_text

if TYPE_CHECKING:
    from adadp.lab.studies.cosine import CosineStudy
    from adadp.lab.studies.deviation import Deviation
    from adadp.lab.studies.gradients import GradientStudy, Look
    from adadp.lab.studies.norms import NormStudy
    from adadp.lab.studies.renyi import RenyiStudy
    from adadp.lab.studies.timing import TimeStudy


def _console() -> Console:
    return Console(highlight=False, soft_wrap=True)


def _table(*columns: str, left: int = 1, title: str | None = None) -> Table:
    """A table whose columns after the first ``left`` are numbers."""
    table = Table(*columns, title=title, title_justify="left", box=SIMPLE, pad_edge=False)
    for column in table.columns[:left]:
        column.no_wrap = True
    for column in table.columns[left:]:
        column.justify = "right"
    return table


def print_cosine(found: CosineStudy) -> None:
    """A row per choice of noise, and what the whole constraint offers."""
    console = _console()
    title = f"mean cosine similarity of {pair_text(found.query)} and itself with noise, {found.draws:,} draws"
    table = _table("noise", "sampled", "+-", "exact", "printed", "sum", "sigma*", "allowed", title=title)
    for choice in found.choices:
        table.add_row(
            pair_text(choice.noise),
            *(f"{value:.4f}" for value in (choice.sampled, choice.error, choice.exact)),
            _printed(choice.printed, ".2f"),
            *(f"{value:.4f}" for value in (choice.privacy_sum, choice.sigma_star)),
            "yes" if choice.allowed else "no",
        )
    console.print(table)
    console.print("sum: s_1^2/sigma_1^2 + s_2^2/sigma_2^2; sigma*: what the noise is exactly as private as;")
    console.print(f"allowed: whether that is at least the sigma* = {found.sigma_star:g} asked for.")
    console.print("\nOf all noise that is exactly as private as that:")
    for name, point in (("best", found.best), ("equal", found.equal), ("in proportion to s", found.proportional)):
        noise = f"({point.noise[0]:.4g}, {point.noise[1]:.4g})"
        console.print(f"  {name:<20}{noise:<18}ratio {point.ratio:<8.4g}similarity {point.similarity:.4f}")
    ahead = found.proportional.similarity > found.equal.similarity
    console.print(f"Noise in proportion to the sensitivity is {'better' if ahead else 'not better'} than equal noise.")


_SHOWN_ORDERS = 12


def print_renyi(found: RenyiStudy) -> None:
    """Some of the orders, and how far the conjectured bound holds."""
    console = _console()
    title = f"Renyi divergence of one step, q = {found.q:g}, sigma = {found.noise_multiplier:g}"
    table = _table("order", "sampled", "conjectured", "not sampled", title=title)
    rows = list(zip(found.orders, found.sampled, found.bound, found.unsampled, strict=True))
    for order, *values in rows[:: max(1, len(rows) // _SHOWN_ORDERS)]:
        table.add_row(str(order), *(f"{value:.4g}" for value in values))
    console.print(table)
    console.print(how_far(found))
    if found.conjectured_to is None or found.end_ratio is None:
        most = 1 / (16 * found.noise_multiplier)
        console.print(f"The paper conjectures nothing here: q is above 1/(16 sigma) = {most:.4g}.")
        return
    verdict = "the conjecture is false here" if found.end_ratio > 1 else "as conjectured"
    where = f"At order {found.conjectured_to:.4g} the divergence is {found.end_ratio:.4g} of that bound"
    console.print(f"{where}: {verdict}.")


def how_far(found: RenyiStudy) -> str:
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


def print_functions(found: Sequence[Deviation]) -> None:
    """A row per function and method."""
    console = _console()
    table = _table("function", "method", "D", "+-", "spread", "printed", "end", "noisy", left=2)
    methods = len(type(found[0].method))
    for place, each in enumerate(found):
        titles = (each.landscape.name, f"from {pair_text(each.landscape.start)}", "")
        table.add_row(
            titles[place % methods],
            each.method.value,
            f"{each.mean:.3f}",
            f"{each.error:.3f}",
            f"{each.spread:.2f}",
            _printed(each.printed, ".2f"),
            *(f"{value:.2f}" for value in (each.quiet_end, each.noisy_end)),
            end_section=place % methods == methods - 1,
        )
    console.print(table)
    console.print(_HOW_TO_READ)


_HOW_TO_READ_GRADIENTS = """\
|g|: mean gradient of the batch the step is about to use; sqrt(E'): what the method
expects of it; sigma_i: the noise on the sum over the batch. rank correlation: of
|g| and sqrt(E') over all coordinates, and within each parameter. ratio: median of
|g|/sqrt(E'). All of it is made of raw gradients: public data only."""


def print_gradients(found: GradientStudy) -> None:
    """Quantiles over the coordinates and correlations, for every step that was looked at."""
    from adadp.lab.studies.gradients import quantiles

    console = _console()
    table = _table("step", "", "5 %", "25 %", "50 %", "75 %", "95 %", "zero", left=2)
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


def _agreement(look: Look) -> str:
    """The correlations of a step and the ratio, in a line."""
    within = ", ".join(f"{name} {_number(value)}" for name, value in look.correlations.items())
    gate = "" if look.gate_open else ", gate closed"
    overall = f"step {look.step}: rank correlation {_number(look.correlation)}"
    return f"{overall} ({within}), ratio {_number(look.ratio)}{gate}"


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3g}"


def _printed(value: float | None, digits: str) -> str:
    return "" if value is None else format(value, digits)


def print_norms(found: NormStudy) -> None:
    """Norms by epoch, and whether they fall."""
    from adadp.lab.studies.norms import HIGH

    console = _console()
    table = _table("model", "epoch", "mean", "median", f"{HIGH:.0%} below", "of the mean", "loss")
    for each in found.models.values():
        for look in each.looks:
            figures = (look.mean, look.median, look.high, look.of_mean, look.loss)
            table.add_row(
                each.model if look is each.looks[0] else "",
                str(look.epoch),
                *(f"{figure:.3f}" for figure in figures),
                end_section=look is each.looks[-1],
            )
    console.print(table)
    for each in found.models.values():
        falls = "falls" if each.falls else "does not fall"
        start = "below" if each.below_start else "not below"
        first, last = each.looks[1].mean, each.looks[-1].mean
        console.print(
            f"{each.model}: the mean norm {falls}, from {first:.3f} after epoch 1 to {last:.3f}, which is {start} "
            f"the {each.looks[0].mean:.3f} before training; test accuracy {each.accuracy:.4f}"
        )
    console.print(_HOW_TO_READ_NORMS)


_HOW_TO_READ_NORMS = """\
mean, median, below: norms of the records' own gradients, which a clip bound
meets. of the mean: norm of their mean gradient. Epoch 0 is before training. All
of it is made of raw gradients without noise: public data only."""


def print_times(found: TimeStudy) -> None:
    """A row per method: milliseconds of a step, how many times DP-SGD's, and what is printed."""
    console = _console()
    for each in found.cases:
        table = _table("", "method", "ms", "x dpsgd", "printed", left=2, title=each.case.title)
        for name, text in found.methods.items():
            figures = [f"{value:.2f}" for value in (each.ms[name], each.over_dpsgd[name])]
            table.add_row(name, text, *figures, _printed(each.printed_over_dpsgd.get(name), ".2g"))
        console.print(table)
    console.print(
        f"One thread, CPU time, median of {found.rounds} rounds, methods taking turns. printed: times DP-SGD's."
    )
    if found.not_private:
        console.print(f"Not private: {', '.join(found.not_private)}.")


def print_momentum(rows: Sequence[tuple[float, float, float]]) -> None:
    """A row per momentum coefficient, beside one release without momentum."""
    table = _table("c", "variance of the noise", "a steady gradient", "noise over signal", left=0)
    for c, variance, signal in rows:
        table.add_row(f"{c:g}", f"{variance:.4g}", f"{signal:.4g}", f"{variance**0.5 / signal:.3g}")
    _console().print(table)


PRINTED: dict[str, Callable[[Any], None]] = {
    "cosine": print_cosine,
    "functions": print_functions,
    "gradients": print_gradients,
    "norms": print_norms,
    "time": print_times,
}
"""Study -> what prints it."""
