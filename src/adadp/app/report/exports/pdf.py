"""A certificate as a page of A4 to print, drawn by matplotlib: no browser, and the same run gives the same bytes.

The text is set in the largest of a few sizes in which all of it fits on one page. What does not fit in the smallest, as
of a record that is described at length, goes on to further pages: nothing is left out.
"""

from __future__ import annotations

import io
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import matplotlib as mpl

mpl.use("Agg")
import numpy as np
from matplotlib.backends.backend_pdf import PdfPages
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties, findfont, get_font
from matplotlib.ticker import FuncFormatter

from adadp.accounting import rounded_up
from adadp.app.accounting.tradeoff import TradeOff, gaussian
from adadp.app.report.attacks import attacks_on, share
from adadp.app.report.exports.content import Verified
from adadp.certificate.wording import small

WIDTH, HEIGHT, MARGIN = 595.3, 841.9, 42.0
"""A4, in points."""
_SIZES = (8.5, 8.0, 7.5, 7.0, 6.6)
_LEADING = 1.32
_LARGE = 200
_CHART = 150.0
"""The height of what stands beside the table, in points."""
_COLOURS = {"PRIVATE": "#00694c", "PRIVATE, WEAKLY": "#8a5a00"}
_WARNING, _INK, _SOFT = "#a1260d", "#16191d", "#4d555e"
_RATES = np.logspace(-4, 0, 97)
_SETTINGS: dict[Any, Any] = {"pdf.fonttype": 42, "font.family": "DejaVu Sans"}


@dataclass(frozen=True)
class Line:
    """Words on a page; ``y`` is their base line, from the top."""

    x: float
    y: float
    text: str
    size: float
    bold: bool = False
    colour: str = _INK


@dataclass
class Sheet:
    """Pages that are filled from the top."""

    size: float
    pages: list[list[Line]] = field(default_factory=lambda: [[]])
    y: float = MARGIN
    chart: tuple[int, float] = 0, MARGIN
    """On which page, and where, the table and the chart begin."""

    def write(self, text: str, *, size: float = 0.0, bold: bool = False, colour: str = _INK, dent: float = 0.0) -> None:
        """A paragraph."""
        size = size or self.size
        for words in wrapped(" ".join(text.split()), WIDTH - 2 * MARGIN - dent, size, bold=bold):
            self.room(size * _LEADING)
            self.y += size * _LEADING
            self.pages[-1].append(Line(MARGIN + dent, self.y, words, size, bold, colour))

    def room(self, height: float) -> None:
        """Begin a new page if so much does not fit on this one."""
        if self.y + height > HEIGHT - MARGIN:
            self.pages.append([])
            self.y = MARGIN


def pdf(run: Verified) -> bytes:
    """The pages of ``run``."""
    attacks = attacks_on(run.certificate)
    for size in _SIZES:
        sheet = laid_out(run, attacks, size)
        if len(sheet.pages) == 1:
            break
    target = io.BytesIO()
    about = {"Title": f"Certificate of differential privacy: {run.status}", "CreationDate": None}
    with mpl.rc_context(_SETTINGS), PdfPages(target, metadata=about) as pages:
        for place, lines in enumerate(sheet.pages):
            figure = Figure(figsize=(WIDTH / 72, HEIGHT / 72))
            for each in lines:
                figure.text(
                    each.x / WIDTH,
                    1 - each.y / HEIGHT,
                    each.text,
                    fontsize=each.size,
                    fontweight="bold" if each.bold else "normal",
                    color=each.colour,
                    parse_math=False,
                )
            if attacks is not None and place == sheet.chart[0]:
                _draw(figure, attacks, sheet.chart[1], rehearsal=run.certificate["rehearsal"])
            pages.savefig(figure)
    return target.getvalue()


def laid_out(run: Verified, attacks: TradeOff | None, size: float) -> Sheet:
    """Everything on its place, in letters of ``size``."""
    sheet = Sheet(size)
    colour = _COLOURS.get(run.status, _WARNING)
    sheet.write("Certificate of differential privacy", size=17, bold=True)
    sheet.y += 4
    sheet.write(f"{run.title}. The run began on {run.day}.", colour=_SOFT)
    sheet.y += 5
    sheet.write(_headline(run, attacks), size=12, bold=True, colour=colour)
    sheet.y += 4
    for said in run.guarantee:
        sheet.write(said)
        sheet.y += 0.25 * size
    if attacks is not None:
        sheet.room(_CHART)
        sheet.chart = len(sheet.pages) - 1, sheet.y
        sheet.y += _CHART
    for title, sentences in run.sections:
        sheet.y += 0.5 * size
        sheet.room(3 * size * _LEADING)  # no title alone at the end of a page
        sheet.write(title, size=size + 1, bold=True)
        for each in sentences:
            sheet.room(size * _LEADING)
            sheet.pages[-1].append(Line(MARGIN, sheet.y + size * _LEADING, "\u2013", size))
            sheet.write(each, dent=9.0)
    return sheet


def _headline(run: Verified, attacks: TradeOff | None) -> str:
    """The verdict, with the figures of a guarantee; a rehearsal has none."""
    if not run.certificate["private"] or attacks is None:
        return run.status
    figures = (rounded_up(run.certificate["epsilon"]), small(run.certificate["delta"]), rounded_up(attacks.mu))
    return f"{run.status}: \u03b5 = {figures[0]}, \u03b4 = {figures[1]}, \u03bc = {figures[2]}"


def _draw(figure: Figure, attacks: TradeOff, top: float, *, rehearsal: bool) -> None:
    """The table of what attackers reach on the left, its curve on the right."""
    without = ", without a seed" if rehearsal else ""
    head = ("False alarms", "Found, at most", "By guessing")
    detected: dict[str, float] = attacks.stated()["detected"]
    rows = [(share(float(rate)), share(most, up=True), share(float(rate))) for rate, most in detected.items()]
    for place, row in enumerate(((f"How often attackers find a record{without}", "", ""), head, *rows)):
        y = 1 - (top + 26 + 15 * place) / HEIGHT
        for column, cell in enumerate(row):
            weight = "bold" if place == 0 else "normal"
            colour = _SOFT if place == 1 else _INK
            x = (MARGIN + (0, 66, 180)[column]) / WIDTH
            figure.text(x, y, cell, fontsize=7.5, fontweight=weight, color=colour, parse_math=False)
    axes = figure.add_axes((0.53, 1 - (top + _CHART - 24) / HEIGHT, 0.385, (_CHART - 40) / HEIGHT))
    axes.plot(_RATES, [attacks.detected(rate) for rate in _RATES], color="#0072b2", linewidth=1.4, label="this run")
    of_mu = gaussian(attacks.mu)
    axes.plot(_RATES, [of_mu.detected(rate) for rate in _RATES], "--", color="#d55e00", linewidth=1.0, label="\u03bc")
    axes.plot(_RATES, _RATES, ":", color=_SOFT, linewidth=1.0, label="guessing")
    axes.set(xscale="log", yscale="log", xlim=(1e-4, 1), ylim=(1e-4, 1.1))
    for axis, label in ((axes.xaxis, "false alarms"), (axes.yaxis, "found, at most")):
        axis.set_major_formatter(FuncFormatter(lambda value, _: f"{100 * value:g} %"))
        axis.set_label_text(label, fontsize=7)
    axes.tick_params(labelsize=6.5, which="both")
    axes.grid(alpha=0.3, linewidth=0.5)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(fontsize=6.5, frameon=False, loc="lower right")


def wrapped(text: str, width: float, size: float, *, bold: bool = False) -> Iterator[str]:
    """``text`` in lines that are no wider than ``width`` points; a word that is wider is broken."""
    line = ""
    for word in text.replace(" %", "\u00a0%").split(" "):
        if line and _wide(f"{line} {word}", size, bold) > width:
            yield line
            line = ""
        line = f"{line} {word}" if line else word
        while _wide(line, size, bold) > width:
            fits = max(1, bisect_right(range(1, len(line)), width, key=lambda end: _wide(line[:end], size, bold)))
            yield line[:fits]
            line = line[fits:]
    if line:
        yield line


@lru_cache(maxsize=1 << 14)
def _wide(text: str, size: float, bold: bool) -> float:
    """How wide ``text`` is in points."""
    font = get_font(findfont(FontProperties(family="DejaVu Sans", weight="bold" if bold else "normal")))
    font.set_size(_LARGE, 72)  # at the size of the text, hints would move the letters to whole dots
    font.set_text(text, 0.0)
    return float(font.get_width_height()[0]) / 64 * size / _LARGE
