"""Figures of the studies. Each function draws one file."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib import colormaps
from matplotlib.ticker import FuncFormatter, MaxNLocator

from adadp.app.report.plots import drawing, plain_numbers
from adadp.lab.studies.cosine import CosineStudy
from adadp.lab.studies.descent import Method
from adadp.lab.studies.deviation import Deviation
from adadp.lab.studies.functions import Array
from adadp.lab.studies.gradients import GradientStudy
from adadp.lab.studies.keys import pair_text
from adadp.lab.studies.norms import HIGH, NormStudy
from adadp.lab.studies.timing import TimeStudy

LABELS = {
    Method.ADADP: "ADADP (adaptive noise, adaptive rate)",
    Method.ADAL: "ADAL (global noise, adaptive rate)",
    Method.DPSGD: "DP-SGD (global noise, fixed rate)",
}
COLOURS = {Method.ADADP: "#0072b2", Method.ADAL: "#009e73", Method.DPSGD: "#d55e00"}
_PRINTED: dict[str, Any] = {"marker": "D", "color": "black", "linestyle": "none", "markersize": 6, "zorder": 5}
_BY_PAPER = "printed by Xu et al. 2020"
_GRADIENT, _ESTIMATE = "#d55e00", "#0072b2"
_BINS = 80
_CONTOURS = 16
_GRID = 220


def plot_cosine(path: Path, study: CosineStudy) -> None:
    """Mean cosine similarity against sigma_1/sigma_2 along the constraint, with the choices and what was printed."""
    with drawing(path) as (_, axes):
        axes.plot(
            [point.ratio for point in study.curve],
            [point.similarity for point in study.curve],
            color=COLOURS[Method.ADADP],
            linewidth=1.8,
            label=f"on the constraint, as private as sigma* = {study.sigma_star:g}",
        )
        ratios = [choice.noise[0] / choice.noise[1] for choice in study.choices]
        axes.errorbar(
            ratios,
            [choice.sampled for choice in study.choices],
            yerr=[3 * choice.error for choice in study.choices],
            fmt="o",
            color=COLOURS[Method.DPSGD],
            capsize=3,
            label=f"choices, {study.draws:,} draws (bars: 3 standard errors)",
            zorder=4,
        )
        printed = [(x, each.printed) for x, each in zip(ratios, study.choices, strict=True) if each.printed is not None]
        if printed:
            axes.plot(*zip(*printed, strict=True), **_PRINTED, label=_BY_PAPER)
        for point, name in ((study.proportional, "in proportion"), (study.equal, "equal"), (study.best, "best")):
            axes.axvline(point.ratio, color="grey", linewidth=0.7, linestyle="--")
            axes.annotate(
                f"{name}: {point.similarity:.3f}",
                (point.ratio, 0.03),
                xycoords=("data", "axes fraction"),
                rotation=90,
                fontsize=8,
                ha="right",
                va="bottom",
            )
        title = f"query {pair_text(study.query)}, sensitivities {pair_text(study.sensitivity)}"
        axes.set(xscale="log", xlabel="sigma_1 / sigma_2", ylabel="mean cosine similarity", title=title)
        axes.set_ylim(0, 1.2 * axes.get_ylim()[1])
        plain_numbers(axes.xaxis)
        axes.legend(loc="upper right")


def plot_paths(path: Path, found: Sequence[Deviation]) -> None:
    """The first noisy path of each method beside its own without noise, over the contours of one function."""
    landscape = found[0].landscape
    window = _window(found)
    with drawing(path, 1, len(found), figsize=(4.1 * len(found), 4.5), sharex=True, sharey=True, squeeze=False) as (
        figure,
        panels,
    ):
        x, y = np.meshgrid(np.linspace(*window[0], _GRID), np.linspace(*window[1], _GRID))
        height = np.arcsinh(landscape.value(np.stack([x, y], axis=-1)) - landscape.lowest)
        for axes, each in zip(panels[0], found, strict=True):
            colour = COLOURS[each.method]
            axes.grid(visible=False)
            axes.contour(x, y, height, levels=_CONTOURS, colors="0.75", linewidths=0.6, zorder=0)
            axes.scatter(*each.noisy[-1].T, s=6, color=colour, alpha=0.25, linewidths=0, label="ends of all noisy runs")
            axes.plot(*_from_start(each, each.quiet), color="black", label="without noise")
            axes.plot(*_from_start(each, each.noisy[:, 0]), color=colour, linewidth=1.0, label="with noise, first run")
            axes.plot(
                *landscape.start, "o", color="white", markeredgecolor="black", markersize=6, zorder=5, label="start"
            )
            axes.plot(
                *zip(*landscape.minima, strict=True),
                "*",
                color="gold",
                markeredgecolor="black",
                markersize=11,
                label=landscape.goal,
            )
            axes.set_title(f"{LABELS[each.method]}\nD = {each.mean:.2f}, run to run {each.spread:.2f}", fontsize=9.5)
            axes.set(xlabel="x", xlim=window[0], ylim=window[1])
        panels[0][0].set_ylabel("y")
        figure.legend(*panels[0][0].get_legend_handles_labels(), loc="outside lower center", ncols=5)
        figure.suptitle(
            f"{landscape.name}, {found[0].quiet.shape[0]} steps, {found[0].noisy.shape[1]} noisy runs", fontsize=11
        )


def plot_deviations(path: Path, found: Sequence[Deviation]) -> None:
    """Mean distance between noisy and noise-free paths, a group of bars per function."""
    names = list(dict.fromkeys(each.landscape.name for each in found))
    with drawing(path, figsize=(max(6.0, 1.1 * len(names) + 1.5), 4.6)) as (figure, axes):
        width = 0.8 / len(Method)
        for place, method in enumerate(Method):
            mine = [each for each in found if each.method is method]
            at = np.arange(len(mine)) + (place - (len(Method) - 1) / 2) * width
            axes.bar(
                at,
                [each.mean for each in mine],
                width,
                yerr=[2 * each.error for each in mine],
                color=COLOURS[method],
                error_kw={"elinewidth": 0.9, "capsize": 2},
                label=LABELS[method],
            )
            printed = [(x, value) for x, each in zip(at, mine, strict=True) if (value := each.printed) is not None]
            if printed:
                axes.plot(*zip(*printed, strict=True), **_PRINTED, label=_BY_PAPER if method is Method.ADADP else None)
        axes.set_xticks(np.arange(len(names)), names, rotation=25, ha="right", fontsize=9)
        axes.set(ylabel="distance to the path without noise", title="mean over runs, bars: 2 standard errors")
        axes.grid(visible=False, axis="x")
        figure.legend(loc="outside lower center", ncols=2)


def plot_gradients(path: Path, study: GradientStudy) -> None:
    """Figure 4c: |g_t| against sqrt(E'_{t-1}) of every coordinate, a column per look, and both distributions below."""
    looks = study.looks
    size = {"figsize": (max(6.0, 4.8 * len(looks)), 8.0), "height_ratios": (3, 2)}
    with drawing(path, 2, len(looks), sharey="row", squeeze=False, **size) as (figure, panels):
        shown = [(look.estimate[look.shown], look.gradient[look.shown]) for look in looks]
        low, high = _decades(np.concatenate([np.concatenate(pair) for pair in shown]))
        bins = np.geomspace(low, high, _BINS).tolist()
        for (above, below), look, (estimate, gradient) in zip(panels.T, looks, shown, strict=True):
            above.grid(visible=False)
            above.set(xscale="log", yscale="log", ylim=(low, high), xlim=(low, high), xlabel="sqrt(E')")
            if len(estimate):
                extent = (np.log10(low), np.log10(high)) * 2
                above.hexbin(
                    estimate, gradient, gridsize=60, xscale="log", yscale="log", extent=extent, bins="log", cmap="Blues"
                )
            above.plot((low, high), (low, high), color="black", linewidth=0.9, linestyle="--", label="|g| = sqrt(E')")
            said = "not defined" if look.correlation is None else f"{look.correlation:.2f}"
            ratio = "" if look.ratio is None else f", median |g|/sqrt(E') {look.ratio:.2g}"
            above.set_title(f"step {look.step}: rank correlation {said}{ratio}", fontsize=9.5)
            for values, name, colour in ((look.gradient, "|g|", _GRADIENT), (look.estimate, "sqrt(E')", _ESTIMATE)):
                label = f"{name}, 0 for {np.mean(values == 0):.0%}" if (values == 0).any() else name
                below.hist(values, bins=bins, histtype="step", color=colour, label=label)
            below.legend(loc="upper left")
            below.set(xscale="log", xlim=(low, high), xlabel="|g|, sqrt(E')")
        panels[0][0].legend(loc="upper left")
        panels[0][0].set_ylabel("|g| of the mean of the coming batch")
        panels[1][0].set_ylabel("coordinates")
        figure.suptitle(_run(study))


def plot_noise(path: Path, study: GradientStudy) -> None:
    """Figure 4d: how sigma_i is distributed over the coordinates, a line per look."""
    with drawing(path) as (_, axes):
        noise = np.concatenate([look.noise for look in study.looks])
        if (noise > 0).any():
            bins = np.geomspace(*_decades(noise[noise > 0]), _BINS).tolist()
            axes.set_xscale("log")
            for place, look in enumerate(study.looks):
                colour = colormaps["viridis"](0.85 * place / max(1, len(study.looks) - 1))
                median = float(np.median(look.noise))
                gate = "" if look.gate_open else " (gate closed: the same for all)"
                axes.hist(
                    look.noise,
                    bins=bins,
                    histtype="step",
                    linewidth=1.8,
                    color=colour,
                    label=f"step {look.step}: median {median:.3g}{gate}",
                )
                axes.axvline(median, color=colour, linewidth=0.9, linestyle="--")
            axes.legend(loc="upper left")
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axes.set(xlabel="sigma_i, the noise on the sum over a batch", ylabel="coordinates", title=_run(study))


def plot_norms(path: Path, study: NormStudy) -> None:
    """Figure 1 of Yu et al. 2018: norms of gradients by epoch, a panel per model."""
    size = (max(6.0, 4.8 * len(study.models)), 4.4)
    with drawing(path, 1, len(study.models), figsize=size, squeeze=False) as (figure, panels):
        lines = (
            ("mean", "records' own, mean", _ESTIMATE, "-"),
            ("median", "records' own, median", _ESTIMATE, "--"),
            ("high", f"records' own, {HIGH:.0%} are below", _ESTIMATE, ":"),
            ("of_mean", "of the mean gradient", _GRADIENT, "-"),
        )
        for axes, found in zip(panels[0], study.models.values(), strict=True):
            epochs = [look.epoch for look in found.looks]
            for name, label, colour, style in lines:
                norms = [getattr(look, name) for look in found.looks]
                axes.plot(epochs, norms, color=colour, linestyle=style, label=label)
            axes.set(xlabel="epoch", title=f"{found.model}: mean norm {'falls' if found.falls else 'does not fall'}")
            axes.set_ylim(bottom=0)
            axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        panels[0][0].set_ylabel("norm of the gradient")
        figure.legend(*panels[0][0].get_legend_handles_labels(), loc="outside lower center", ncols=4)
        settings = study.settings
        figure.suptitle(f"{settings.data}, SGD without noise, rate {settings.lr:g}, q = {settings.q:g}")


def plot_times(path: Path, study: TimeStudy) -> None:
    """Table II of Xu et al. 2020: time of a step over DP-SGD's, a group of bars per method."""
    names = list(study.methods)
    with drawing(path, figsize=(8.4, 0.55 * len(names) + 2.2)) as (figure, axes):
        width = 0.8 / len(study.cases)
        for place, each in enumerate(study.cases):
            at = np.arange(len(names)) + (place - (len(study.cases) - 1) / 2) * width
            colour = list(COLOURS.values())[place % len(COLOURS)]
            axes.barh(at, list(each.over_dpsgd.values()), width, color=colour, label=each.case.title)
            printed = [(value, at[names.index(name)]) for name, value in each.printed_over_dpsgd.items()]
            if printed:
                label = None if any(case.printed_over_dpsgd for case in study.cases[:place]) else _BY_PAPER
                axes.plot(*zip(*printed, strict=True), **_PRINTED, label=label)
        axes.set(xscale="log", xlabel="time of a step over DP-SGD's")
        axes.set_xlim(left=0.5)
        axes.axvline(1, color="black", linewidth=0.9, linestyle="--")
        plain_numbers(axes.xaxis)
        shown = [f"{name} (not private)" if name in study.not_private else name for name in names]
        axes.set_yticks(np.arange(len(names)), shown, fontsize=9)
        axes.invert_yaxis()
        axes.grid(visible=False, axis="y")
        figure.legend(loc="outside lower center", ncols=1)


def _decades(values: Array) -> tuple[float, float]:
    """What an axis shows of positive ``values``: all but one in a thousand at the lower end, and some room."""
    if not len(values):
        return 0.1, 1.0
    return float(np.quantile(values, 0.001)) / 1.5, float(values.max()) * 1.5


def _run(study: GradientStudy) -> str:
    """What was trained, in a line."""
    settings = study.settings
    where = f"{settings.method} on {settings.data}, {study.coordinates:,} coordinates"
    return f"{where}, sigma* = {settings.noise_multiplier:g}"


def _window(found: Sequence[Deviation]) -> tuple[tuple[float, float], tuple[float, float]]:
    """What a figure shows: start, minima near the paths, the paths drawn, and nine in ten of the ends."""
    landscape = found[0].landscape
    shown: list[Array] = [np.asarray([landscape.start])]
    for each in found:
        shown += [each.quiet, each.noisy[:, 0], np.quantile(each.noisy[-1], [0.05, 0.95], axis=0)]
    points = np.concatenate(shown)
    nearest = min(landscape.minima, key=lambda minimum: float(np.linalg.norm(points - minimum, axis=1).min()))
    points = np.concatenate([points, [nearest]])
    low, high = points.min(axis=0), points.max(axis=0)
    margin = 0.08 * (high - low).max()
    return (low[0] - margin, high[0] + margin), (low[1] - margin, high[1] + margin)


def _from_start(each: Deviation, path: Array) -> Array:
    """The coordinates of a path with its start."""
    coordinates: Array = np.concatenate([[each.landscape.start], path]).T
    return coordinates


_FIGURES: dict[str, dict[str, Callable[[Path, Any], None]]] = {
    "cosine": {"cosine": plot_cosine},
    "functions": {"functions": plot_deviations},
    "gradients": {"gradients": plot_gradients, "noise": plot_noise},
    "norms": {"norms": plot_norms},
    "time": {"time": plot_times},
}
"""Study -> the names of its figures, and what draws them."""


def draw_study(name: str, folder: Path, found: Any) -> list[Path]:
    """Draw the figures of a study into ``folder``."""
    figures = [(folder / f"{figure}.png", draw, found) for figure, draw in _FIGURES[name].items()]
    if name == "functions":
        for each in dict.fromkeys(deviation.landscape for deviation in found):
            mine = [deviation for deviation in found if deviation.landscape is each]
            figures.append((folder / f"paths-{each.name}.png", plot_paths, mine))
    for path, draw, what in figures:
        draw(path, what)
    return [path for path, _, _ in figures]
