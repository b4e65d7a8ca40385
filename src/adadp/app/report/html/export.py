"""The charts of a page as files, without a browser: the data as CSV, the picture as PNG and SVG by matplotlib."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use("Agg")
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter

from adadp.accounting import rounded_up
from adadp.app.report.html.formatting import number, percent
from adadp.app.report.html.page import Axis, Chart, Page, Series
from adadp.errors import InputError

COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#b38600", "#56b4e9", "#444b53", "#8c6bb1")
"""The palette of Okabe and Ito 2008, with a darker yellow, as on the page."""
MARKERS = "os^DvP*X"
_FEW = 8
"""So many places on a logarithmic axis are named one by one."""
_ROOM = 0.2
"""Beside the bars or dots, as a share of what they span: their values are written there."""
_SAME_FILE: dict[Any, Any] = {"svg.hashsalt": "adadp", "svg.fonttype": "none"}
"""The same chart gives the same SVG."""


def export(page: Page, folder: Path) -> list[Path]:
    """Write every chart of ``page`` to ``folder`` as NAME.csv, NAME.png and NAME.svg; what was written."""
    written: list[Path] = []
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for chart in page.charts():
            table = folder / f"{chart.name}.csv"
            table.write_text(chart.csv(), encoding="utf-8")
            written.append(table)
            with mpl.rc_context(_SAME_FILE):
                written += _pictures(chart, folder)
    except OSError as error:
        raise InputError(
            f"Cannot write to {folder}: {error.strerror}.", fix="Choose a folder that can be written."
        ) from error
    return written


def draw(chart: Chart) -> Figure:
    """``chart`` as a figure of matplotlib."""
    figure, axes = plt.subplots(figsize=(7.2, 4.4), layout="constrained")
    flat = chart.kind in ("bar", "dots")
    for style, series in zip(chart.styles, chart.series, strict=True):
        look: dict[str, Any] = {"color": COLOURS[style % len(COLOURS)], "label": series.name}
        (_draw_flat if flat else _draw_line)(axes, chart, series, MARKERS[style % len(MARKERS)], look)
    _dress(axes, "y" if flat else "x", chart.x)
    places = sorted({x for series in chart.series for x in series.x if not isinstance(x, str)})
    if chart.x.scale == "log" and len(places) <= _FEW:
        axes.set_xticks(places)
    _dress(axes, "x" if flat else "y", chart.y)
    if flat:
        axes.invert_yaxis()
    axes.set_title(chart.title, fontsize=11)
    axes.grid(alpha=0.3, linewidth=0.6, axis="x" if flat else "both")
    axes.spines[["top", "right"]].set_visible(False)
    if chart.has_legend:
        axes.legend(fontsize=9, frameon=False)
    return figure


def _pictures(chart: Chart, folder: Path) -> list[Path]:
    figure = draw(chart)
    try:
        png, svg = (folder / f"{chart.name}.{kind}" for kind in ("png", "svg"))
        figure.savefig(png, dpi=200)
        figure.savefig(svg, metadata={"Date": None})
    finally:
        plt.close(figure)
    return [png, svg]


def _draw_line(axes: Axes, chart: Chart, series: Series, marker: str, look: dict[str, Any]) -> None:
    points = [(x, y) for x, y in zip(series.x, series.y, strict=True) if y is not None]
    step: dict[str, Any] = {"drawstyle": "steps-mid"} if chart.kind == "step" else {"marker": marker}
    style = "--" if series.dashed else "-"
    axes.plot(*zip(*points, strict=True), linestyle=style, linewidth=1.6, markersize=4.5, **step, **look)
    for x, low, high in zip(series.x, series.low or (), series.high or (), strict=False):
        if low is not None and high is not None:
            axes.errorbar([x], [low], yerr=[[0.0], [high - low]], color=look["color"], capsize=3, linewidth=1.2)


def _draw_flat(axes: Axes, chart: Chart, series: Series, marker: str, look: dict[str, Any]) -> None:
    names = [str(x) for each in chart.series for x in each.x]
    rows = {name: row for row, name in enumerate(dict.fromkeys(names))}
    axes.set_yticks(list(rows.values()), list(rows))
    points = [(rows[str(x)], y) for x, y in zip(series.x, series.y, strict=True) if y is not None]
    heights, values = zip(*points, strict=True)
    if chart.kind == "bar":
        axes.barh(heights, values, height=0.55, **look)
    else:
        axes.plot(values, heights, linestyle="", marker=marker, markersize=8, **look)
    for x, low, high in zip(series.x, series.low or (), series.high or (), strict=False):
        if low is not None and high is not None:
            axes.errorbar([low], [rows[str(x)]], xerr=[[0.0], [high - low]], color=look["color"], capsize=3)
    ends = {rows[str(x)]: high for x, high in zip(series.x, series.high or (), strict=False) if high is not None}
    for height, value in points:
        text = percent(value) if chart.y.percent else rounded_up(value) if chart.y.bound else number(value)
        end = (ends.get(height, value), height)
        axes.annotate(text, end, (8, 0), textcoords="offset points", fontsize=9, va="center")
    axes.margins(x=_ROOM)


def _dress(axes: Axes, side: str, axis: Axis) -> None:
    """Label, scale, ends and numbers of one side."""
    chosen = getattr(axes, f"{side}axis")
    chosen.set_label_text(axis.label)
    if axis.scale == "category":
        return
    if axis.scale == "log":
        axes.set(**{f"{side}scale": "log"})
        chosen.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        chosen.set_minor_formatter(NullFormatter())
    if axis.zero:
        axes.set(**{f"{side}lim": (0, None)})
    if axis.whole:
        chosen.set_major_locator(MaxNLocator(integer=True))
    percents = FuncFormatter(lambda value, _: f"{100 * value:g} %")
    chosen.set_major_formatter(percents if axis.percent else FuncFormatter(lambda value, _: f"{value:g}"))
    low, high = chosen.get_view_interval()
    if axis.percent and high > 1:  # what is beyond 100 % is room for marks and for the values beside them
        chosen.set_ticks([tick for tick in chosen.get_majorticklocs() if low <= tick <= 1])
        axes.spines["bottom" if side == "x" else "left"].set_bounds(low, 1)
