"""Pages in a real browser: charts show the numbers of the run, downloads hold them, and nothing is asked of a network.

Needs chromium. Without it the tests are skipped, unless ADADP_BROWSER_REQUIRED is set.
"""

from __future__ import annotations

import copy
import csv
import io
import json
import os
import shutil
import time
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from PIL import Image
from report_samples import small_comparison, small_run

from adadp.accounting import rounded_up
from adadp.app.report.html import comparison_page, page_of, render, write_report
from adadp.app.report.html.page import Command

pytestmark = pytest.mark.browser


CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
FLAGS = ("--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update")
HOSTILE = "</script><script>window.broken = 1</script><img src=x onerror='window.broken = 2'>"


@pytest.fixture(scope="module")
def browser():
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        sync_playwright = None
    if sync_playwright is None or CHROMIUM is None:
        missing = "playwright is not installed" if sync_playwright is None else "there is no chromium"
        if os.environ.get("ADADP_BROWSER_REQUIRED"):
            pytest.fail(f"{missing}, and ADADP_BROWSER_REQUIRED is set")
        pytest.skip(missing)
    with sync_playwright() as driver:
        found = driver.chromium.launch(
            executable_path=CHROMIUM, args=[*FLAGS, "--disable-sync", "--no-first-run"], timeout=120_000
        )
        yield found
        found.close()


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Path:
    """A finished run whose class names are hostile."""
    folder = small_run(tmp_path_factory.mktemp("browser") / "run", lr_schedule="time:s0=0.5,k=0.5")
    folder.confusion_path.write_text(json.dumps({"labels": [HOSTILE, "b"], "counts": [[60, 3], [2, 49]]}))
    write_report(folder.path)
    return folder.path


@pytest.fixture(scope="module")
def comparison(tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("browser") / "comparison"
    small_comparison(out)
    return out


def until(page, condition: str) -> None:
    """Wait for ``condition``. Playwright's own way evaluates text in the page, which the page forbids."""
    deadline = time.monotonic() + 30
    while not page.evaluate(condition):
        assert time.monotonic() < deadline, condition
        page.wait_for_timeout(20)


@contextmanager
def opened(browser, folder: Path, *, width: int = 1400, scheme: str = "light") -> Iterator:
    """The page of ``folder``; whatever it asks for but itself, and every error in it, fails the test."""
    context = browser.new_context(
        viewport={"width": width, "height": 900}, color_scheme=scheme, accept_downloads=True, reduced_motion="reduce"
    )
    page, address = context.new_page(), (folder / "report.html").as_uri()
    asked, errors = [], []
    page.on("request", lambda request: asked.append(request.url))
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.on("console", lambda message: errors.append(message.text) if message.type in {"error", "warning"} else None)
    page.goto(address)
    until(page, "window.adadpCharts !== undefined")
    yield page
    context.close()
    assert [each for each in asked if not each.startswith("blob:")] == [address]
    assert errors == []


def drawn(page) -> dict[str, list]:
    """What the charts hold: for each the names of its series with their points."""
    return page.evaluate(
        "Object.fromEntries(Object.entries(adadpCharts).map(([name, chart]) =>"
        "[name, chart.getOption().series.map((each) => [each.name, each.data])]))"
    )


def expected(folder: Path) -> dict[str, list]:
    found = {}
    for chart in page_of(folder).charts():
        flat = chart.kind in {"bar", "dots"}
        found[chart.name] = [
            [each.name, [[y, x] if flat else [x, y] for x, y in zip(each.x, each.y, strict=True)]]
            for each in chart.series
        ]
    return found


def test_a_real_comparison_has_a_page(comparison):
    found = json.loads((comparison / "results.json").read_bytes())
    before = copy.deepcopy(found)
    page = comparison_page(found)
    assert found == before
    assert {chart.name for chart in page.charts()} == {"epsilon", "epochs-1", "spent-1", "epochs-2", "spent-2"}
    assert write_report(comparison).read_text(encoding="utf-8") == render(page)


def test_the_charts_of_a_run_hold_its_numbers(browser, run):
    with opened(browser, run) as page:
        assert drawn(page) == expected(run)
        of_figures = {"roc", "precision", "calibration"}
        assert set(drawn(page)) == {"accuracy", "spending", "trade", "accountants", "rate", "attacks"} | of_figures
        assert page.locator(".plot svg").count() == 9
        looks = [
            line["test_accuracy"] for line in map(json.loads, (run / "metrics.jsonl").open()) if "test_accuracy" in line
        ]
        assert [y for _, y in drawn(page)["accuracy"][0][1]] == looks
        assert page.evaluate("window.broken") is None
        assert page.locator("th", has_text="window.broken = 1").count() == 2


def test_the_charts_of_a_comparison_hold_its_numbers_and_error_bars(browser, comparison):
    write_report(comparison)
    cases = json.loads((comparison / "results.json").read_bytes())["cases"]
    with opened(browser, comparison) as page:
        assert drawn(page) == expected(comparison)
        means = {name: dict(map(tuple, points)) for name, points in drawn(page)["epsilon"]}
        assert means == {
            name: {case["epsilon"]: case["mean"] for case in cases if case["name"] == name}
            for name in ("adadp", "dpsgd")
        }
        bars = page.evaluate(
            "adadpCharts.epsilon.getOption().series[0].markLine.data.map((ends) => ends.map((e) => e.coord))"
        )
        ends = [
            [case["epsilon"], min(1, max(0, case["mean"] + sign * case["spread"]))]
            for case in cases[:2]
            if case["spread"]
            for sign in (-1, 1)
        ]
        assert [point for bar in bars for point in bar] == ends
        low, high = page.evaluate("(({ min, max }) => [min, max])(adadpCharts.epsilon.getOption().yAxis[0])")
        reached = [case["mean"] + sign * case["spread"] for case in cases for sign in (-1, 1)]
        assert low <= min(reached), "a bar that ends outside of the axis is not drawn at all"
        assert max(min(1, each) for each in reached) <= high


@pytest.mark.parametrize("chart", ["accuracy", "accountants"])
def test_downloads_are_real_files_with_the_same_numbers(browser, run, tmp_path, chart):
    with opened(browser, run) as page:
        for kind in ("csv", "svg", "png"):
            with page.expect_download() as waiting:
                page.locator(f'[data-chart="{chart}"] [data-save="{kind}"]').click()
            assert waiting.value.suggested_filename == f"{chart}.{kind}"
            waiting.value.save_as(tmp_path / f"{chart}.{kind}")
    described = next(each for each in page_of(run).charts() if each.name == chart)
    assert (tmp_path / f"{chart}.csv").read_text() == described.csv()
    rows = list(csv.reader((tmp_path / f"{chart}.csv").open(newline="")))[1:]
    assert [float(row[2]) for row in rows] == [row[2] for row in described.rows]
    text = "".join(ET.parse(tmp_path / f"{chart}.svg").getroot().itertext())
    assert described.title in text
    with Image.open(tmp_path / f"{chart}.png") as picture:
        assert picture.size == (1800, 1040)
        assert len(picture.convert("RGB").getcolors(1 << 24) or []) > 20


def test_the_data_of_a_chart_can_be_read_as_a_table(browser, run):
    with opened(browser, run) as page:
        table = page.locator('[data-chart="accuracy"] details table')
        assert not table.is_visible()
        page.locator('[data-chart="accuracy"] summary').click()
        assert table.is_visible()
        assert table.locator("tbody tr").count() == 4
        for plot in page.locator(".plot").all():
            assert plot.get_attribute("role") == "img"
            assert len(plot.get_attribute("aria-label") or "") > 20


def test_dark_follows_the_system_and_the_button_is_remembered(browser, run):
    ground = "getComputedStyle(document.body).backgroundColor"
    ink = "adadpCharts.accuracy.getOption().xAxis[0].axisLabel.color"
    with opened(browser, run) as page:
        light, light_ink = page.evaluate(ground), page.evaluate(ink)
        page.locator("#theme").click()
        dark, dark_ink = page.evaluate(ground), page.evaluate(ink)
        assert light != dark
        assert light_ink != dark_ink
    with opened(browser, run, scheme="dark") as page:
        assert page.evaluate(ground) == dark
        assert page.evaluate(ink) == dark_ink
        page.locator("#theme").click()
        assert page.evaluate(ground) == light
        page.evaluate("dispatchEvent(new Event('beforeprint'))")
        assert page.evaluate(ink) == light_ink
        assert page.evaluate("localStorage.getItem('adadp-theme')") == "light"


@pytest.fixture(scope="module")
def at_one_epsilon(comparison, tmp_path_factory) -> Path:
    """The comparison at its first epsilon; the spread of one case is wide, and another has one seed."""
    out = tmp_path_factory.mktemp("browser") / "one"
    out.mkdir()
    results = json.loads((comparison / "results.json").read_bytes())
    cases = [case for case in results["cases"] if case["epsilon"] == 0.5]
    wide, narrow = ({**cases[0], "mean": 0.93, "spread": spread} for spread in (0.04, 0.0005))
    alone = {**cases[1], "mean": 0.92, "spread": None}
    results |= {"cases": [wide, {**narrow, "name": "narrow"}, {**alone, "name": "alone"}], "pairs": []}
    results["smallest"] = []
    (out / "results.json").write_text(json.dumps(results))
    write_report(out)
    return out


@pytest.mark.parametrize("width", [400, 1400])
def test_a_value_stands_beyond_its_error_bar(browser, at_one_epsilon, width):
    boxes = (
        "(text) => [...document.querySelectorAll('[data-chart=cases] svg text')]"
        ".filter((e) => e.textContent === text).map((e) => e.getBoundingClientRect()).map((b) => [b.left, b.right])"
    )
    at = (
        "(x) => document.querySelector('[data-chart=cases] .plot').getBoundingClientRect().left"
        " + adadpCharts.cases.convertToPixel({ xAxisIndex: 0 }, x)"
    )
    with opened(browser, at_one_epsilon, width=width) as page:
        edge = page.evaluate("document.querySelector('[data-chart=cases] svg').getBoundingClientRect().right")
        found = sorted(page.evaluate(boxes, "93.00 %")) + page.evaluate(boxes, "92.00 %")
        ends = [page.evaluate(at, end) for end in (0.9305, 0.97, 0.92)]
        assert len(found) == 3, "each value is written once"
        for (left, right), end in zip(found, ends, strict=True):
            assert end + 3 < left < end + 20
            assert right < edge


def test_commands_are_broken_between_words_and_copied_whole(browser, run):
    # In each word: in how many lines its letters stand.
    lines = (
        "[...document.querySelectorAll('.command pre')].map((pre) => [...pre.querySelectorAll('span')].map((word) => {"
        "const range = document.createRange(); range.selectNodeContents(word);"
        "const tops = [...range.getClientRects()].map((box) => Math.round(box.top));"
        "return [word.textContent, new Set(tops).size, word.scrollWidth <= pre.clientWidth]; }))"
    )
    commands = page_commands(run)
    with opened(browser, run, width=400) as page:
        words = page.evaluate(lines)
        assert [[word for word, _, _ in each] for each in words] == [command.split() for command in commands]
        assert all(fits for each in words for _, _, fits in each)
        assert {count for each in words for word, count, _ in each if len(word) < 30} == {1}
        assert page.evaluate("document.querySelector('.command pre').clientHeight") > 60, "it takes several lines"
        page.locator(".copy").first.click()
        assert page.evaluate("getSelection().toString()") == commands[0]


def page_commands(folder: Path) -> list[str]:
    return [part.text for section in page_of(folder).sections for part in section.parts if isinstance(part, Command)]


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_table_that_goes_on_has_a_shade_where_it_does_and_digests_need_none(browser, at_one_epsilon, run, scheme):
    with opened(browser, run, width=400, scheme=scheme) as page:
        fits = "[...document.querySelectorAll('.table .scroll')].map((e) => e.scrollWidth <= e.clientWidth)"
        assert all(page.evaluate(fits)), "settings and digests are broken, not cut"
    with opened(browser, at_one_epsilon, width=400, scheme=scheme) as page:
        table = page.locator(".table .scroll").first
        assert table.evaluate("(e) => e.scrollWidth > e.clientWidth")
        sides = [edges(table.screenshot())]
        table.evaluate("(e) => { e.scrollLeft = e.scrollWidth; }")
        sides.append(edges(table.screenshot()))
    card = (255, 255, 255) if scheme == "light" else (25, 29, 36)
    assert sides[0][0] == sides[1][1] == card, "nothing is cut there"
    assert sides[0][1] != card
    assert sides[1][0] != card


def edges(picture: bytes) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The ground of a picture at its left and its right edge: what most of a column of pixels is."""
    image = Image.open(io.BytesIO(picture)).convert("RGB")
    columns = ([image.getpixel((x, y)) for y in range(image.height)] for x in (1, image.width - 2))
    left, right = (max(set(column), key=column.count) for column in columns)
    return left, right


@pytest.mark.parametrize("width", [400, 1400])
@pytest.mark.parametrize("kind", ["run", "comparison"])
def test_no_page_is_wider_than_the_window(browser, request, kind, width):
    folder = request.getfixturevalue(kind)
    write_report(folder)
    with opened(browser, folder, width=width) as page:
        page.evaluate("document.querySelectorAll('details').forEach((each) => { each.open = true; })")
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        widest = page.evaluate("Math.max(...[...document.querySelectorAll('.plot svg')].map((e) => e.clientWidth))")
        assert widest <= width


LOOKS = (
    "Object.fromEntries(Object.entries(adadpCharts).map(([name, chart]) => [name, Object.fromEntries("
    "chart.getOption().series.map((each) => [each.name, [each.symbol, each.itemStyle.color, each.color]]))]))"
)


@pytest.fixture(scope="module")
def crowded(comparison, tmp_path_factory) -> Path:
    """The comparison with long names, a case that is not private before the others, and every verdict of a test."""
    out = tmp_path_factory.mktemp("browser") / "crowded"
    out.mkdir()
    results = json.loads((comparison / "results.json").read_bytes())
    names = {"adadp": "adadp:start=2,floor=0.01,beta=0.98,warm=5", "dpsgd": "dpsgd-momentum:beta=0.9,falling=yes"}
    for each in (*results["cases"], *results["smallest"]):
        each["name"] = names[each["name"]]
    nothing = {"rehearsal": False, "epsilon": None, "epsilon_if_unseeded": None}
    leaky = copy.deepcopy([case for case in results["cases"] if case["method"] == "adadp"])
    for case in leaky:
        case |= {"name": "adadp-published", "private": False, "not_private": "It reads raw gradients."}
        case["runs"] = [{**run, **nothing, "claimed": case["epsilon"]} for run in case["runs"]]
    results["cases"] = [*leaky, *results["cases"]]
    for case in results["cases"]:
        case["command"] += " --delta 0.0001 --epochs 2 --batch-size 50 --threads 1 --evaluate-every 1 --accountant rdp"
    first, second, third = (case["name"] for case in results["cases"][::2])
    pair = results["pairs"][0] | {"gain": -1e-9, "low": -0.0123, "high": 0.0123, "p": 0.12345, "p_holm": 0.98765}
    same = {"gain": 0.01, "low": None, "high": None, "p": None, "p_holm": None}
    results["pairs"] = [
        pair | {"name": second, "over": third},
        pair | same | {"name": third, "over": first},
        pair | same | {"name": first, "over": second, "gain": 0},
    ]
    (out / "results.json").write_text(json.dumps(results))
    write_report(out)
    return out


def test_a_case_has_one_colour_and_symbol_on_the_whole_page(browser, crowded):
    with opened(browser, crowded) as page:
        looks = page.evaluate(LOOKS)
    assert {len(each) for each in looks.values()} == {2, 3}
    everyone = looks["epsilon"]
    assert [len(set(each)) for each in zip(*everyone.values(), strict=True)] == [3, 3, 3]
    for found in looks.values():
        assert found == {name: everyone[name] for name in found}


def test_every_verdict_of_a_test_is_on_the_page(browser, crowded):
    with opened(browser, crowded) as page:
        table = page.locator(".table .scroll", has_text="95 % interval")
        assert table.evaluate("(e) => e.scrollWidth <= e.clientWidth")
        verdicts = table.locator("td:last-child")
        assert verdicts.all_inner_texts() == ["not shown", "the same gain each time: no test", "equal each time"]
        assert table.locator("td:nth-child(4)").all_inner_texts() == ["0.00", "+1.00", "0.00"]


@pytest.mark.parametrize("width", [400, 1400])
def test_commands_in_a_table_are_wide_and_broken_between_words(browser, crowded, width):
    with opened(browser, crowded, width=width) as page:
        table = page.locator(".table .scroll", has_text="One run of it")
        assert table.evaluate("(e) => e.scrollWidth <= e.clientWidth")
        room = table.evaluate("(e) => e.clientWidth")
        cells = table.locator("td.shell")
        cases = json.loads((crowded / "results.json").read_bytes())["cases"]
        assert [" ".join(each.split()) for each in cells.all_inner_texts()] == [case["command"] for case in cases]
        assert cells.first.evaluate("(e) => e.clientWidth") > (0.95 if width == 400 else 0.6) * room
        heights = cells.first.evaluate(
            "(e) => [...e.querySelectorAll('span')].map((word) => word.getClientRects()[0].height)"
        )
        assert len(set(heights)) == 1, "no word takes two lines"


@pytest.mark.parametrize(("accuracy", "spread"), [(1.0, None), (0.9, None), (0.995, 0.01), (0.6, None), (0.9, 0.0)])
@pytest.mark.parametrize("budgets", [(0.5,), (0.5, 4.0)])
def test_no_accuracy_axis_goes_beyond_the_whole(browser, comparison, tmp_path, accuracy, spread, budgets):
    results = json.loads((comparison / "results.json").read_bytes())
    results["cases"] = [case for case in results["cases"] if case["epsilon"] in budgets]
    for case in results["cases"]:
        case |= {"mean": accuracy, "spread": spread}
        for run in case["runs"]:
            run["test_accuracy"] = accuracy
            run["curve"] = [{**point, "test_accuracy": accuracy} for point in run["curve"]]
    results["pairs"] = [pair for pair in results["pairs"] if pair["epsilon"] in budgets]
    (tmp_path / "results.json").write_text(json.dumps(results))
    write_report(tmp_path)
    ends = (
        "Object.values(adadpCharts).map((chart) => { const flat = chart.getOption().series[0].type === 'scatter';"
        "return chart.getModel().getComponent(flat ? 'xAxis' : 'yAxis').axis.scale.getExtent(); })"
    )
    with opened(browser, tmp_path) as page:
        for low, high in page.evaluate(ends):
            assert low < accuracy <= high <= 1
        if len(budgets) == 1:
            labels = page.locator("[data-chart=cases] svg text", has_text=f"{100 * accuracy:.2f} %")
            dots = page.evaluate("(at) => adadpCharts.cases.convertToPixel({ xAxisIndex: 0 }, at)", accuracy)
            left = page.locator("[data-chart=cases] .plot").bounding_box()["x"]
            assert labels.count() == 2
            assert all(label.bounding_box()["x"] > left + dots + 5 for label in labels.all()), "beside its dot"


def test_bounds_are_rounded_up_where_they_are_drawn(browser, run):
    (chart,) = (each for each in page_of(run).charts() if each.name == "accountants")
    with opened(browser, run) as page:
        texts = page.locator("[data-chart=accountants] svg text").all_text_contents()
    shown = {rounded_up(row[2]) for row in chart.rows}
    assert shown <= set(texts)
    assert shown != {f"{row[2]:.4g}" for row in chart.rows}, "rounding up and to the nearest is not the same here"


def test_charts_follow_the_window(browser, run):
    with opened(browser, run) as page:
        page.set_viewport_size({"width": 400, "height": 900})
        fits = (
            "[...document.querySelectorAll('.plot')].every((e) => e.querySelector('svg').clientWidth === e.clientWidth)"
        )
        until(page, fits)
