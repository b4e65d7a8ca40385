"""One HTML file from a page: everything it needs is in it, and nothing in it asks the network for anything.

text of a run (titles, notes, class names)      escaped; in data "<", ">" and "&" too, so no text ends the script
the browser's own rules                         a Content-Security-Policy: no network, only the scripts with these
                                                digests run, styles are inline, pictures are data
a browser without JavaScript                    shows every word and every table, the data of the charts among them
the same page twice                             the same bytes
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterable, Sequence
from functools import cache
from hashlib import sha256
from html import escape
from importlib.resources import files
from typing import Any

from adadp.accounting import rounded_up
from adadp.app.report.html.formatting import percent, whole
from adadp.app.report.html.page import (
    Axis,
    Cell,
    Chart,
    Command,
    Figure,
    KeyFigures,
    Matrix,
    Page,
    Part,
    Section,
    Table,
    Words,
)

ECHARTS = "echarts.common.min.js"
"""Apache ECharts 6.1.0, the build with lines, bars and scatter."""


def render(page: Page) -> str:
    """``page`` as one HTML document."""
    library, script = asset(ECHARTS), asset("page.js")
    policy = (
        f"default-src 'none'; script-src {_digest(library)} {_digest(script)}; style-src 'unsafe-inline'; "
        "img-src data: blob:; base-uri 'none'; form-action 'none'"
    )
    slots = {
        **{name: escape(getattr(page, name)) for name in ("title", "kicker", "headline", "status", "made_with")},
        "policy": escape(policy),
        "tone": page.tone,
        "lead": _paragraphs(page.lead),
        "figures": "\n".join(map(_figure, page.figures.figures)),
        "contents": "\n".join(
            f'<a href="#{_anchor(place)}">{escape(each.title)}</a>' for place, each in enumerate(page.sections)
        ),
        "sections": "\n".join(_section(place, each) for place, each in enumerate(page.sections)),
        "style": asset("page.css"),
        "data": _json({"charts": [_chart_data(chart) for chart in page.charts()]}),
        "library": library,
        "script": script,
    }
    return re.sub(r"\{\{(\w+)\}\}", lambda slot: slots[slot[1]], asset("page.html"))


@cache
def asset(name: str) -> str:
    """The text of a file that comes with the package."""
    return files("adadp.app.report.html").joinpath(f"assets/{name}").read_text(encoding="utf-8")


@cache
def _digest(script: str) -> str:
    return f"'sha256-{base64.b64encode(sha256(script.encode('utf-8')).digest()).decode('ascii')}'"


def _json(value: Any) -> str:
    """JSON that can stand in a script element: ASCII, so without line separators, and without a character of HTML."""
    text = json.dumps(value, allow_nan=False, sort_keys=True, separators=(",", ":"))
    for character in "<>&":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text


def _chart_data(chart: Chart) -> dict[str, Any]:
    return {
        "name": chart.name,
        "title": chart.title,
        "kind": chart.kind,
        "x": vars(chart.x),
        "y": vars(chart.y),
        "series": [vars(each) | {"style": style} for each, style in zip(chart.series, chart.styles, strict=True)],
        "legend": chart.has_legend,
        "csv": chart.csv(),
    }


def _section(place: int, section: Section) -> str:
    text = f'<p class="intro">{escape(section.text)}</p>' if section.text else ""
    parts = "\n".join(_part(each) for each in section.parts)
    stacked = " stacked" if all(isinstance(each, Table) for each in section.parts) else ""
    return (
        f'<section id="{_anchor(place)}"><h2>{escape(section.title)}</h2>{text}\n'
        f'<div class="parts{stacked}">{parts}</div></section>'
    )


def _anchor(place: int) -> str:
    return f"section-{place + 1}"


def _part(part: Part) -> str:
    if isinstance(part, Chart):
        return _chart(part)
    if isinstance(part, Table):
        caption = f"<p class='caption'>{escape(part.caption)}</p>" if part.caption else ""
        kind = "table wide" if part.wide else "table"
        return f'<div class="{kind}">{_table(part.columns, part.rows, part.left, part.last)}{caption}</div>'
    if isinstance(part, KeyFigures):
        return f'<div class="figures">{"".join(_figure(each) for each in part.figures)}</div>'
    if isinstance(part, Words):
        return _words(part)
    if isinstance(part, Command):
        caption = f"<p>{escape(part.caption)}</p>" if part.caption else ""
        button = '<button type="button" class="copy">Copy</button>'
        return f'<div class="command">{caption}<div><pre tabindex="0">{escape(part.text)}</pre>{button}</div></div>'
    return _matrix(part)


def _figure(figure: Figure) -> str:
    note = f"<small>{escape(figure.note)}</small>" if figure.note else ""
    return (
        f'<div class="figure {figure.tone}"><span>{escape(figure.label)}</span>'
        f"<strong>{escape(figure.value)}</strong>{note}</div>"
    )


def _words(part: Words) -> str:
    title = f"<h3>{escape(part.title)}</h3>" if part.title else ""
    items = "".join(f"<li>{_prose(line)}</li>" for line in part.lines)
    body = f"<ul>{items}</ul>" if part.listed else _paragraphs(part.lines)
    return f'<div class="words {part.tone}">{title}{body}</div>'


def _paragraphs(lines: Iterable[str]) -> str:
    return "".join(f"<p>{_prose(line)}</p>" for line in lines)


def _prose(text: str) -> str:
    """``text`` escaped, with no line broken between a number and its percent sign."""
    return re.sub(r"(?<=\d) %", "\u00a0%", escape(text))


def _chart(chart: Chart) -> str:
    label = escape(f"{chart.title}: {chart.y.label} against {chart.x.label}. {chart.caption}".strip())
    buttons = "".join(
        f'<button type="button" data-save="{kind}" aria-label="Save {escape(chart.title)} as {kind.upper()}">'
        f"{kind.upper()}</button>"
        for kind in ("svg", "png", "csv")
    )
    kinds = (None, chart.x, *(chart.y,) * 3)
    rows = [tuple(_cell(cell, axis) for cell, axis in zip(row, kinds, strict=False)) for row in chart.rows]
    caption = f"<figcaption>{escape(chart.caption)}</figcaption>" if chart.caption else ""
    kind = "chart wide" if chart.wide else "chart"
    return (
        f'<figure class="{kind}" data-chart="{chart.name}"><div class="bar"><h3>{escape(chart.title)}</h3>'
        f'<div class="save">{buttons}</div></div>'
        f'<div class="plot" role="img" aria-label="{label}"></div>{caption}'
        f"<details><summary>Data as a table</summary>{_table(chart.columns, rows, 1)}</details></figure>"
    )


def _cell(value: Cell, axis: Axis | None) -> str:
    if value is None:
        return "-"
    if isinstance(value, str):
        return value
    return rounded_up(value, 6) if axis is not None and axis.bound else f"{value:.6g}"


def _table(columns: Sequence[str], rows: Sequence[Sequence[str]], left: int, last: str = "") -> str:
    kinds = ["" if place < left else "n" for place in range(len(columns))]
    kinds[-1] = last or kinds[-1]

    def line(cells: Sequence[str], tag: str) -> str:
        marks = (f' class="{kind}"' if kind else "" for kind in kinds)
        return "".join(f"<{tag}{mark}>{escape(cell)}</{tag}>" for mark, cell in zip(marks, cells, strict=True))

    body = "".join(f"<tr>{line(row, 'td')}</tr>" for row in rows)
    head = f"<thead><tr>{line(columns, 'th')}</tr></thead>" if any(columns) else ""
    return f'<div class="scroll" tabindex="0"><table>{head}<tbody>{body}</tbody></table></div>'


def _matrix(matrix: Matrix) -> str:
    """Right answers are shaded by their share of the row, mistakes in another hue by theirs over the largest one."""
    shares = [[count / sum(row) if sum(row) else 0.0 for count in row] for row in matrix.counts]
    worst = max((each for place, row in enumerate(shares) for each in row[:place] + row[place + 1 :]), default=0.0)
    head = "".join(f'<th scope="col">{escape(label)}</th>' for label in matrix.labels)
    rows = []
    for place, (label, counts) in enumerate(zip(matrix.labels, matrix.counts, strict=True)):
        cells = ""
        for column, (count, share) in enumerate(zip(counts, shares[place], strict=True)):
            kind, strength = ("hit", share) if column == place else ("miss", share / (worst or 1))
            cells += f'<td class="{kind}" style="--share:{strength:.4f}">{whole(count) if count else "<i>0</i>"}</td>'
        found = percent(shares[place][place]) if sum(counts) else "-"
        rows.append(f'<tr><th scope="row">{escape(label)}</th>{cells}<td class="n">{found}</td></tr>')
    caption = f"<p class='caption'>{escape(matrix.caption)}</p>" if matrix.caption else ""
    return (
        f'<div class="matrix"><div class="scroll" tabindex="0"><table><thead><tr><th>true \\ said</th>{head}'
        f'<th class="n">found</th></tr></thead><tbody>{"".join(rows)}</tbody></table></div>{caption}</div>'
    )
