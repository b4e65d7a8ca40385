"""The picture an item asks for, of what has been measured."""

from __future__ import annotations

import io
import statistics
from collections.abc import Sequence
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from adadp.app.runs.atomic import write_atomic
from adadp.lab.reproduce.items import BARS, CURVES, Case, Item
from adadp.lab.reproduce.storing import Run, Store


def draw(target: Path, store: Store) -> None:
    """Write the picture of the item in ``store``: the cases that have runs."""
    item, found = store.item, store.runs()
    cases = [case for case in item.cases if found.get(case.name)]
    runs = [found[case.name] for case in cases]
    height = 1.2 + 0.34 * len(cases) if item.picture == BARS else 3.6
    figure, axes = plt.subplots(figsize=(7, height), layout="constrained")
    axes.grid(alpha=0.3)
    if item.picture == BARS:
        _bars(axes, cases, runs)
    else:
        axes.set_ylabel("test accuracy, %")
        if item.picture == CURVES:
            _curves(axes, cases, runs)
        else:
            _sweep(axes, item, cases, runs)
    picture = io.BytesIO()
    figure.savefig(picture, dpi=90, format="png")
    plt.close(figure)
    target.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(target, picture.getvalue())


def _curves(axes: Axes, cases: Sequence[Case], runs: Sequence[Sequence[Run]]) -> None:
    """Mean accuracy after every epoch, in a band from the least to the most, as long as all seeds went on."""
    for case, each in zip(cases, runs, strict=True):
        curves = [[100 * float(point["test_accuracy"]) for point in run["curve"]] for run in each]
        by_epoch = list(zip(*curves, strict=False))
        epochs = range(1, len(by_epoch) + 1)
        style = "-" if each[0]["private"] else "--"
        means = [statistics.mean(values) for values in by_epoch]
        (line,) = axes.plot(epochs, means, style, label=_marked(case.name, each))
        least, most = [min(values) for values in by_epoch], [max(values) for values in by_epoch]
        axes.fill_between(epochs, least, most, color=line.get_color(), alpha=0.2, linewidth=0)
    axes.set_xlabel("epochs")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.legend(frameon=False, fontsize=8)


def _points(runs: Sequence[Sequence[Run]]) -> tuple[list[float], list[list[float]]]:
    """Means in percent, and how far the least and the most are from them."""
    found = [[100 * float(run["test_accuracy"]) for run in each] for each in runs]
    means = [statistics.mean(each) for each in found]
    reach = [(mean - min(each), max(each) - mean) for mean, each in zip(means, found, strict=True)]
    return means, [list(side) for side in zip(*reach, strict=True)]


def _bars(axes: Axes, cases: Sequence[Case], runs: Sequence[Sequence[Run]]) -> None:
    """A row for each case: its mean accuracy, a bar from the least to the most, and what was printed."""
    means, reach = _points(runs)
    for place, (mean, down, up, each) in enumerate(zip(means, *reach, runs, strict=True)):
        fill = "tab:blue" if each[0]["private"] else "white"
        axes.errorbar([mean], [place], xerr=[[down], [up]], fmt="o", capsize=4, color="tab:blue", markerfacecolor=fill)
    given = [(100 * case.printed[0], place) for place, case in enumerate(cases) if case.printed]
    if given:
        axes.plot(*zip(*given, strict=True), "x", color="tab:red", label="printed")
        axes.figure.legend(loc="outside upper right", frameon=False, fontsize=8)
    names = [_marked(case.name, each) for case, each in zip(cases, runs, strict=True)]
    axes.set_yticks(range(len(cases)), names, fontsize=8)
    axes.invert_yaxis()
    axes.set_xlabel("test accuracy, %")


def _marked(name: str, runs: Sequence[Run]) -> str:
    return name if runs[0]["private"] else f"{name} (not private)"


def _sweep(axes: Axes, item: Item, cases: Sequence[Case], runs: Sequence[Sequence[Run]]) -> None:
    """Mean accuracy along what is varied; how long the runs were too, where that differs."""
    means, reach = _points(runs)
    where = [float(case.x if case.x is not None else place) for place, case in enumerate(cases)]
    safe = all(each[0]["private"] for each in runs)
    line, fill = ("o-", "tab:blue") if safe else ("o--", "white")
    axes.errorbar(
        where, means, yerr=reach, fmt=line, capsize=4, color="tab:blue", markerfacecolor=fill, label="accuracy"
    )
    if not safe:
        axes.set_ylabel("test accuracy, % (not private)")
    axes.set(xlabel=item.picture or "", xscale="log" if item.log else "linear")
    epochs = [statistics.mean(int(run["epochs"]) for run in each) for each in runs]
    if len(set(epochs)) > 1:
        length = axes.twinx()
        length.plot(where, epochs, "s--", color="tab:orange", label="epochs")
        length.set_ylabel("epochs")
        length.set_ylim(bottom=0)
        axes.figure.legend(loc="outside upper right", ncols=2, frameon=False)
