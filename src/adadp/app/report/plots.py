"""Plots of planned privacy, drawn without touching any data. Each function draws one file and returns its path.

A line's colour is its accountant (its sampling, where there is one accountant), its marker the sampling, its dashes
whether the figure is proved. Where an accountant cannot answer, or says infinity, the line has a gap; a line of gaps
alone is left out.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot as plt
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator

from adadp.accounting import Accountant, Status
from adadp.app.accounting.run_shape import RunShape, Sampling, steps_per_epoch
from adadp.app.report.preview import Outlook, has_rho, rho_by_epoch
from adadp.errors import AccountingError, InputError
from adadp.events import Event
from adadp.schedules import Schedule

Way = tuple[RunShape, int | None, int | None]
"""A run to draw: how it samples, and its length in steps or in epochs."""

_STYLES = {Status.PROVED: "-", Status.ESTIMATE: "--", Status.AS_PUBLISHED: ":"}
_MARKERS = {Sampling.POISSON: "", Sampling.FIXED: "s", Sampling.RESHUFFLE: "o"}
_POINTS = 24
_LEGEND = 44
"""So many characters of a schedule fit into a legend of two columns."""
_WIDE = 10
"""An axis whose ends differ by more than this factor is logarithmic."""


@dataclass(frozen=True)
class Curve:
    """One line of a figure; ``look`` is passed to matplotlib."""

    label: str
    x: Sequence[float]
    y: Sequence[float]
    look: dict[str, Any] = field(default_factory=dict)


STYLE: dict[Any, Any] = {
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.titlesize": 10,
    "figure.figsize": (8.4, 4.6),
    "figure.titlesize": 10,
    "grid.alpha": 0.3,
    "grid.linewidth": 0.6,
    "legend.fontsize": 8.5,
    "legend.frameon": False,
    "lines.linewidth": 1.6,
    "savefig.dpi": 150,
}
"""What all pictures have in common."""


@contextmanager
def drawing(path: str | Path, rows: int = 1, columns: int = 1, **how: Any) -> Iterator[tuple[Figure, Any]]:
    """A figure and its panels, to be drawn in the block and saved to ``path`` at its end."""
    with matplotlib.rc_context(STYLE):
        figure, panels = plt.subplots(rows, columns, layout="constrained", **how)
        try:
            yield figure, panels
            figure.savefig(path)
        except OSError as error:
            raise InputError(
                f"Cannot write {path}: {error.strerror}.", fix="Choose a folder that can be written."
            ) from error
        finally:
            plt.close(figure)


def plot_epsilon(
    path: str | Path, ways: Sequence[Way], noise: Schedule | float, *, delta: float, accountants: Sequence[Accountant]
) -> Path:
    """Draw epsilon against epochs (figure 2 of Abadi et al. 2016 and of Yu et al. 2019)."""
    target = _target(path)
    curves = []
    for way in ways:
        shape, steps, epochs = way
        length = epochs if steps is None else steps
        assert length is not None
        places = sorted({max(1, round(length * k / _POINTS)) for k in range(1, _POINTS + 1)})
        per_epoch = 1 if steps is None else steps_per_epoch(shape.q)
        events = [shape.run(noise, epochs=n) if steps is None else shape.run(noise, steps=n) for n in places]
        for each in accountants:
            values = _epsilons(each, events, delta)
            label = f"{_name(each, way, ways)}: {values[-1]:.4g}"
            look = _look(each, way, accountants, ways)
            curves.append(Curve(label, [n / per_epoch for n in places], values, look))
    rates = {f"q = {shape.q:g}" for shape, _, _ in ways if shape.sampling is not Sampling.RESHUFFLE}
    title = _title(ways, *rates, _noise(noise))
    return _draw(target, curves, x_label="epochs", y_label=f"epsilon at delta = {delta:g}", title=title)


def plot_against(
    path: str | Path,
    ways: Sequence[Way],
    noise: Schedule | float,
    *,
    against: str,
    between: tuple[float, float],
    delta: float,
    accountants: Sequence[Accountant],
) -> Path:
    """Draw epsilon at the end of a run against ``"q"`` or ``"noise-multiplier"`` (figure 3 of Yu et al. 2019).

    Against q the length stays the same in epochs, so there are 1/q steps in each of them.
    """
    target = _target(path)
    low, high = between
    values = [*(low * (high / low) ** (k / (_POINTS - 1)) for k in range(_POINTS - 1)), high]
    curves = []
    for way in ways:
        shape, steps, epochs = way
        if against == "q":
            shapes = (RunShape(shape.sampling, q=value, neighbours=shape.neighbours) for value in values)
            events = [each.run(noise, epochs=epochs) for each in shapes]
        else:
            events = [shape.run(value, steps=steps, epochs=epochs) for value in values]
        for each in accountants:
            found = _epsilons(each, events, delta)
            curves.append(Curve(_name(each, way, ways), values, found, _look(each, way, accountants, ways)))
    shape, steps, epochs = ways[0]
    length = f"{epochs} epochs" if steps is None else f"{steps} steps"
    fixed = _noise(noise) if against == "q" else f"q = {shape.q:g}"
    title = _title(ways, *(() if fixed == "q = 1" else (fixed,)), length)
    return _draw(
        target, curves, x_label=against.replace("-", " "), y_label=f"epsilon at delta = {delta:g}", title=title
    )


def plot_renyi(path: str | Path, curves: Sequence[Curve], *, title: str) -> Path:
    """Draw Renyi divergences against their order (figures 1 and 16 of Yu et al. 2019)."""
    return _draw(_target(path), curves, x_label="order alpha", y_label="Renyi divergence of one step", title=title)


def plot_outlooks(path: str | Path, outlooks: Sequence[Outlook]) -> Path:
    """Draw noise multipliers, and privacy spent, against epochs (figures 4 and 13 of Yu et al. 2019): one line per run.

    Privacy is rho where every run has one (reshuffled and whole batches), and epsilon otherwise.
    """
    target = _target(path)
    for each in outlooks:
        if each.budget is not None or each.not_private is not None:
            raise InputError(
                f"The run with noise {each.schedule} cannot be drawn ahead.",
                why="Its noise is chosen during the run."
                if each.budget is not None
                else "It spends no privacy: it has none.",
                fix="Leave the plot out.",
            )
    in_rho = all(has_rho(each.plan) for each in outlooks)
    with drawing(target, 1, 2, figsize=(9.6, 4.6)) as (figure, (noises, spent)):
        for place, each in enumerate(outlooks):
            noise, epochs, colour = each.plan.noise, each.plan.epochs, f"C{place}"
            assert noise is not None
            noises.stairs(noise.values(epochs), range(epochs + 1), baseline=None, color=colour, label=_label(each))
            spent.plot(*_spending(each, in_rho=in_rho), color=colour, marker="o", markevery=[-1], markersize=4)
        config = outlooks[0].config
        budget = config.rho if in_rho else config.epsilon
        if budget is not None:
            spent.axhline(budget, color="0.4", linewidth=1, linestyle="--", zorder=0, label="budget")
        noises.set_ylabel("noise multiplier")
        spent.set_ylabel("rho spent" if in_rho else f"epsilon spent at delta = {config.delta:g}")
        for panel in (noises, spent):
            panel.set_xlabel("epochs")
            panel.set_xlim(left=0)
            panel.xaxis.set_major_locator(MaxNLocator(integer=True, steps=[1, 2, 5, 10]))
            panel.set_ylim(bottom=0)
        figure.legend(loc="outside lower center", ncols=2)
    return target


def _spending(run: Outlook, *, in_rho: bool) -> tuple[list[float], list[float]]:
    """Epochs and what is spent by then, from the beginning on; what features release is spent at once."""
    if in_rho:
        rhos = rho_by_epoch(run.plan)
        return [float(epoch) for epoch in range(len(rhos))], rhos
    found = [(float(row.epoch), row.epsilon) for row in run.rows if row.epsilon is not None]
    return [0.0, *(epoch for epoch, _ in found)], [run.epsilon_before or 0.0, *(value for _, value in found)]


def _label(run: Outlook) -> str:
    """The schedule with as many digits as fit into a legend, and how long it lasts."""
    text = run.short if len(run.short) <= _LEGEND else f"{run.short[:_LEGEND]}..."
    return f"{text}: {run.plan.epochs} epochs"


def _epsilons(accountant: Accountant, events: Sequence[Event], delta: float) -> list[float]:
    """The epsilon of every event, not a number where the accountant cannot say, or says infinity."""
    found = []
    for event in events:
        try:
            value = accountant.epsilon(event, delta).epsilon
        except AccountingError:
            value = math.nan
        found.append(value if math.isfinite(value) else math.nan)
    return found


def _name(accountant: Accountant, way: Way, ways: Sequence[Way]) -> str:
    name = accountant.name if accountant.status is Status.PROVED else f"{accountant.name} ({accountant.status.value})"
    return f"{way[0].sampling.value}, {name}" if len(ways) > 1 else name


def _look(accountant: Accountant, way: Way, accountants: Sequence[Accountant], ways: Sequence[Way]) -> dict[str, Any]:
    place = accountants.index(accountant) if len(accountants) > 1 else ways.index(way)
    marker = _MARKERS[way[0].sampling] if len(ways) > 1 else ""
    return {"color": f"C{place}", "linestyle": _STYLES[accountant.status], "marker": marker}


def _noise(noise: Schedule | float) -> str:
    return str(noise) if isinstance(noise, Schedule) else f"noise multiplier = {noise:g}"


def _title(ways: Sequence[Way], *settings: str) -> str:
    """How batches are drawn, with the neighbours of each way, and what else is the same for all lines."""
    shapes = [way[0] for way in ways]
    relations = {shape.neighbours.value for shape in shapes}
    if len(relations) > 1:
        sampled = ", ".join(f"{shape.sampling.value} ({shape.neighbours.value})" for shape in shapes)
        return "\n".join([sampled, ", ".join(settings)])
    sampled = ", ".join(shape.sampling.value for shape in shapes)
    return ", ".join([f"{sampled} sampling", *settings, f"{relations.pop()} neighbours"])


def _draw(target: Path, curves: Sequence[Curve], *, x_label: str, y_label: str, title: str) -> Path:
    """The style of every figure: lines with a legend beside them, in the order in which the lines end."""
    drawn = [curve for curve in curves if any(math.isfinite(value) for value in curve.y)]
    if not drawn:
        raise InputError("There is nothing to draw.", why="No accountant can answer for any point of the figure.")
    with drawing(target) as (_, axes):
        for curve in sorted(drawn, key=lambda curve: [value for value in curve.y if math.isfinite(value)][-1]):
            axes.plot(curve.x, curve.y, label=curve.label, markersize=4, markevery=3, **curve.look)
        axes.set_xlabel(x_label)
        axes.set_ylabel(y_label)
        axes.set_title(title)
        if len(drawn) > 1:
            axes.set_yscale("log")
            plain_numbers(axes.yaxis, [value for curve in drawn for value in curve.y if value > 0])
        if x_label == "q" and drawn[0].x[-1] > _WIDE * drawn[0].x[0]:
            axes.set_xscale("log")
            plain_numbers(axes.xaxis, drawn[0].x)
        axes.grid(which="both")
        handles, labels = axes.get_legend_handles_labels()
        axes.legend(handles[::-1], labels[::-1], loc="center left", bbox_to_anchor=(1.0, 0.5))
    return target


def plain_numbers(axis: Axis, values: Sequence[float] = (1,)) -> None:
    """0.1, 1, 10 on a logarithmic axis, with 2 and 5 between them where it is short."""
    if max(values) < 1000 * min(values):
        axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.set_minor_formatter(FuncFormatter(lambda *_: ""))


def _target(path: str | Path) -> Path:
    target = Path(path)
    if target.suffix.lower() not in {".png", ".svg", ".pdf"}:
        raise InputError(f"Cannot draw to {target.name!r}.", fix="Use a file name that ends in .png, .svg or .pdf.")
    return target
