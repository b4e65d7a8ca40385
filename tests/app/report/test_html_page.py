"""Pages as data and as HTML: what is refused, what is escaped, what a browser is told not to do."""

from __future__ import annotations

import csv
import io
import json
import math
import re
from hashlib import sha256
from html.parser import HTMLParser
from importlib.resources import files

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from adadp.accounting import rounded_up
from adadp.app.report.html import render
from adadp.app.report.html.formatting import (
    duration,
    meaning,
    number,
    percent,
    percent_up,
    points,
    small,
    whole,
)
from adadp.app.report.html.page import (
    Axis,
    Chart,
    Command,
    Figure,
    KeyFigures,
    Matrix,
    Page,
    Section,
    Series,
    Table,
    Words,
)
from adadp.certificate.detection import detection, rules_out_little
from adadp.errors import InputError

LIBRARY = "61f13280aba3161f77fc801bf5f9c786f55f10432153a0683fc5cc0700b013d5"
"""SHA-256 of echarts.common.min.js of Apache ECharts 6.1.0, as released."""

HOSTILE = "</script><script>alert(1)</script><img src=x onerror=alert(2)>\"'&{{script}}\u2028<!--"


def chart(name: str = "one", title: str = "One", series: str = "s") -> Chart:
    return Chart(name, title, "line", Axis("x"), Axis("y"), (Series(series, (1.0, 2.0), (0.5, None)),), title)


def page(text: str = "text", *charts: Chart) -> Page:
    parts = (
        *(charts or (chart(title=text, series=text),)),
        Table((text, text), ((text, text),), text),
        KeyFigures((Figure(text, text, text),)),
        Words((text,), text, "warn", listed=True),
        Command(text, text),
        Matrix((text, "b"), ((3, 1), (0, 0)), text),
    )
    figures = KeyFigures((Figure(text, text, text),))
    return Page(text, text, text, "good", (text,), figures, (Section(text, parts, text),), text, text)


class Parsed(HTMLParser):
    """The elements of a document, their attributes, and the text of its scripts."""

    def __init__(self, document: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[str] = []
        self.inside = False
        self.feed(document)

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        self.inside = tag == "script"
        if self.inside:
            self.scripts.append("")

    def handle_endtag(self, tag):
        self.inside = self.inside and tag != "script"

    def handle_data(self, data):
        if self.inside:
            self.scripts[-1] += data


def data_of(document: str) -> dict:
    return json.loads(Parsed(document).scripts[0])


# What is refused ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "make",
    [
        lambda: Series("s", (1.0, 2.0), (1.0,)),
        lambda: Series("s", (1.0,), (1.0,), low=(0.5,)),
        lambda: Series("s", (1.0,), (math.nan,)),
        lambda: Series("s", (math.inf,), (1.0,)),
        lambda: Series("s", (1.0,), (1.0,), (0.0,), (math.inf,)),
        lambda: chart("../one"),
        lambda: chart("One"),
        lambda: Chart("one", "One", "line", Axis("x"), Axis("y"), (Series("s", (1.0,), (None,)),)),
        lambda: Chart("one", "One", "line", Axis("x"), Axis("y"), ()),
        lambda: Table(("a", "b"), (("1",),)),
        lambda: Matrix(("a", "b"), ((1, 2),)),
        lambda: Matrix(("a",), ((1, 2),)),
        lambda: Matrix((), ()),
        lambda: page("text", chart(), chart()),
    ],
)
def test_what_no_page_can_show_is_refused(make):
    with pytest.raises(InputError):
        make()


# The data of a chart ------------------------------------------------------------------------------------------------

FINITE = st.floats(allow_nan=False, allow_infinity=False)


@given(st.lists(st.tuples(FINITE, st.none() | FINITE), min_size=1), st.text(min_size=1))
def test_csv_holds_every_number_with_all_its_digits(points_, name):
    if all(y is None for _, y in points_):
        return
    x, y = zip(*points_, strict=True)
    found = Chart("one", "One", "line", Axis("a, b"), Axis("y"), (Series(name, x, y),))
    head, *rows = csv.reader(io.StringIO(found.csv(), newline=""))
    assert head == ["series", "a, b", "y"]
    assert [(row[0], float(row[1]), float(row[2])) for row in rows] == [(name, *p) for p in points_ if p[1] is not None]


def test_ends_of_error_bars_are_columns_and_gaps_are_empty():
    series = (Series("a", (1.0, 2.0), (3.0, 4.0), (2.5, None), (3.5, None)), Series("b", (1.0,), (9.0,)))
    found = Chart("one", "One", "line", Axis("x"), Axis("y"), series)
    assert found.csv().splitlines() == ["series,x,y,low,high", "a,1.0,3.0,2.5,3.5", "a,2.0,4.0,,", "b,1.0,9.0,,"]


def test_a_series_keeps_the_colour_and_symbol_it_was_given_and_has_those_of_its_place_otherwise():
    series = (Series("a", (1.0,), (2.0,), style=2), Series("b", (1.0,), (2.0,)))
    found = Chart("one", "One", "line", Axis("x"), Axis("y"), series)
    assert found.styles == (2, 1)
    assert [each["style"] for each in data_of(render(page("text", found)))["charts"][0]["series"]] == [2, 1]


def test_a_legend_is_left_out_where_the_places_say_it():
    one, two = Series("a", ("a",), (1.0,)), Series("b", ("b", "b"), (1.0, 2.0))
    other = Series("c", ("b",), (1.0,))

    def legend(*series):
        return Chart("one", "One", "dots", Axis("case", "category"), Axis("y"), series).has_legend

    assert [legend(one), legend(one, two), legend(one, other)] == [False, False, True]


def test_bounds_are_rounded_up_in_the_data_as_a_table_too():
    series = (Series("s", (1.00000049,), (2.0000001,)),)
    for bound, shown in ((True, ("1.00001", "2.00001")), (False, ("1", "2"))):
        axes = Axis("x", bound=bound), Axis("y", bound=bound)
        document = render(page("text", Chart("one", "One", "line", *axes, series)))
        assert f'<td class="n">{shown[0]}</td><td class="n">{shown[1]}</td>' in document


def test_the_last_column_of_a_table_may_be_no_number():
    for last, mark in (("", "n"), ("prose", "prose"), ("shell", "shell")):
        table = Table(("a", "b", "c"), (("1", "2", "3"),), last=last)
        figures = KeyFigures(())
        document = render(Page("t", "t", "t", "good", (), figures, (Section("s", (table,)),), "m"))
        assert f'<td>1</td><td class="n">2</td><td class="{mark}">3</td>' in document


# The document -------------------------------------------------------------------------------------------------------


def test_hostile_text_stays_text_wherever_it_stands():
    plain, hostile = Parsed(render(page())), Parsed(render(page(HOSTILE)))
    assert [tag for tag, _ in hostile.tags] == [tag for tag, _ in plain.tags]
    assert hostile.scripts[1:] == plain.scripts[1:]
    for (_, before), (_, after) in zip(plain.tags, hostile.tags, strict=True):
        assert before.keys() == after.keys()
    assert data_of(render(page(HOSTILE)))["charts"][0]["series"][0]["name"] == HOSTILE


@settings(max_examples=20)
@given(st.text())
def test_no_text_breaks_out_of_the_data(text):
    document = render(page(text))
    data = re.search(r'<script type="application/json" id="data">(.*?)</script>', document, re.DOTALL)
    assert data
    assert data[1].isascii()
    assert not set(data[1]) & set("<>&\n")
    assert json.loads(data[1])["charts"][0]["title"] == text


def test_the_policy_forbids_the_network_and_names_every_script_that_runs():
    document = render(page())
    policy = dict(
        part.strip().split(" ", 1)
        for tag, given_ in Parsed(document).tags
        if tag == "meta" and given_.get("http-equiv") == "Content-Security-Policy"
        for part in str(given_["content"]).split(";")
    )
    assert policy["default-src"] == "'none'"
    assert policy["img-src"] == "data: blob:"
    assert {"connect-src", "font-src"}.isdisjoint(policy)
    import base64

    running = [each.encode() for each in Parsed(document).scripts[1:]]
    digests = [f"'sha256-{base64.b64encode(sha256(each).digest()).decode()}'" for each in running]
    assert policy["script-src"].split() == digests


def test_nothing_in_the_document_is_fetched():
    for tag, given_ in Parsed(render(page())).tags:
        assert tag not in {"link", "iframe", "img", "object", "embed", "base", "form"}
        assert "src" not in given_
        assert str(given_.get("href") or "#").startswith("#")
    assert "url(" not in files("adadp.app.report.html").joinpath("assets/page.css").read_text()
    assert "@import" not in files("adadp.app.report.html").joinpath("assets/page.css").read_text()


def test_the_same_page_is_the_same_bytes():
    assert render(page()) == render(page())


def test_the_bundled_library_is_the_released_one_with_its_licence():
    assets = files("adadp.app.report.html").joinpath("assets")
    assert sha256(assets.joinpath("echarts.common.min.js").read_bytes()).hexdigest() == LIBRARY
    assert "Apache License" in assets.joinpath("echarts-LICENSE.txt").read_text()
    assert "Apache ECharts" in assets.joinpath("echarts-NOTICE.txt").read_text()
    assert "</script" not in assets.joinpath("echarts.common.min.js").read_text().lower()
    assert "</script" not in assets.joinpath("page.js").read_text().lower()


def test_a_matrix_shows_what_share_of_a_class_was_found():
    document = render(page())
    assert re.search(
        r'<td class="hit" style="--share:0.7500">3</td><td class="miss" style="--share:1.0000">1</td>', document
    )
    assert '<td class="n">75.00 %</td>' in document
    assert '<td class="n">-</td>' in document  # a class without test records


# Words --------------------------------------------------------------------------------------------------------------


def test_numbers_are_written_for_reading():
    assert (percent(0.98664), points(-0.0042), points(0.01)) == ("98.66 %", "-0.42", "+1.00")
    assert [points(each) for each in (-1e-9, -0.0, 0.0, 4.9e-5, -4.9e-5)] == ["0.00"] * 5
    assert (points(-5.1e-5), points(5.1e-5)) == ("-0.01", "+0.01")
    assert (number(1.9999999), number(None), small(1e-5), whole(60000)) == ("2", "-", "1e-5", "60,000")
    assert (duration(37.06), duration(200), duration(600), duration(9000)) == ("38 s", "4 min", "10 min", "2 h 30 min")


@given(st.floats(1e-6, 1e6))
def test_bounds_are_rounded_up_and_by_little(value):
    assert value <= float(rounded_up(value)) < value * 1.00101
    if value <= 1:
        assert value <= float(percent_up(value).split()[0]) / 100 + 1e-15 <= value + 1.001e-4


def test_a_bound_of_few_digits_stays_as_it_is():
    assert [rounded_up(each) for each in (0.1, 2.0, 1e-5, 2.0000001)] == ["0.1", "2", "1e-05", "2.001"]
    assert [percent_up(each) for each in (0.1, 0.36946, 1.0)] == ["10.00 %", "36.95 %", "100.00 %"]


def test_detection_is_the_region_of_tests_that_privacy_allows():
    assert detection(2, 1e-5) == pytest.approx(math.exp(2) * 0.05 + 1e-5)  # 36.95 %
    assert detection(8, 1e-5) == pytest.approx(1 - math.exp(-8) * (0.95 - 1e-5))
    assert detection(0, 0) == pytest.approx(0.05)
    assert detection(0, 0.01) == pytest.approx(0.06)
    assert detection(1e6, 1e-5) == detection(math.inf, 1e-5) == 1


def test_a_guarantee_rules_out_little_where_all_but_every_hundredth_record_may_be_detected():
    limit = math.log((0.95 - 1e-5) / 0.01)
    assert [rules_out_little(each, 1e-5) for each in (0, 2, limit - 1e-6, limit + 1e-6, 1000, math.inf)] == (
        [False] * 3 + [True] * 3
    )


@given(st.floats(0, 20), st.floats(1e-12, 0.1), st.floats(0, 1), st.floats(0, 1))
def test_no_test_that_privacy_allows_detects_more(epsilon, delta, alarms, detected):
    """Every pair of rates within both inequalities is below the bound, and the bound meets them itself."""
    factor, slack = math.exp(epsilon), 1e-9

    def allowed(hits):
        return hits <= factor * alarms + delta + slack and 1 - alarms <= factor * (1 - hits) + delta + slack * factor

    found = detection(epsilon, delta, alarms)
    assert allowed(found)
    if allowed(detected):
        assert detected <= found + 2 * slack * factor


@pytest.mark.parametrize("neighbours", ["add-remove", "replace-one", "zero-out"])
def test_the_meaning_of_epsilon_names_the_bound(neighbours):
    assert "36.95 %" in meaning(2, 1e-5, neighbours, 0.3695)[0]
    assert len(meaning(2, 1e-5, neighbours, 0.3695)) == 2
    assert "rules out very little" in meaning(8, 1e-5, neighbours, 1.0)[-1]
    assert "infinity" in meaning(1000, 1e-5, neighbours, 1.0)[1]
