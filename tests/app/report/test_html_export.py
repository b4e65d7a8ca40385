"""``adadp report``, and charts as files."""

from __future__ import annotations

import csv
import xml.etree.ElementTree as ET
from dataclasses import replace

import pytest
from click.testing import CliRunner
from matplotlib import pyplot as plt
from PIL import Image
from report_samples import small_run

from adadp.app.cli.report import report
from adadp.app.report.html import page_of
from adadp.app.report.html.export import draw, export
from adadp.app.report.html.page import Axis, Chart, Section, Series
from adadp.errors import InputError


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    return small_run(tmp_path_factory.mktemp("runs") / "run", epochs=3, lr_schedule="time:s0=0.5,k=0.5")


def invoke(*arguments):
    result = CliRunner().invoke(report, [str(each) for each in arguments])
    assert result.exit_code == 0, result.output
    return result.output


@pytest.mark.slow
def test_the_command_writes_the_page_and_says_where(finished, tmp_path):
    first, second, *_ = invoke(finished.path).splitlines()
    assert first == f"The page is {finished.path / 'report.html'}."
    assert second.endswith("% of the test set right.")
    assert (finished.path / "report.html").read_text(encoding="utf-8").startswith("<!DOCTYPE html>")
    invoke(finished.path, "--out", tmp_path / "page.html")
    assert (tmp_path / "page.html").read_bytes() == (finished.path / "report.html").read_bytes()


def test_the_page_is_opened_where_that_is_asked_for(finished, monkeypatch):
    opened: list[str] = []
    monkeypatch.setattr("webbrowser.open", lambda address: not opened.append(address))
    invoke(finished.path)
    assert opened == []
    assert "No browser" not in invoke(finished.path, "--open")
    assert opened == [(finished.path / "report.html").as_uri()]
    monkeypatch.setattr("webbrowser.open", lambda address: False)
    assert "No browser could be opened" in invoke(finished.path, "--open")


def test_a_folder_of_something_else_is_an_error(tmp_path):
    result = CliRunner().invoke(report, [str(tmp_path)])
    assert isinstance(result.exception, InputError)
    assert "adadp train --out" in str(result.exception)


@pytest.mark.slow
def test_every_chart_is_exported_as_data_and_as_pictures(finished, tmp_path):
    assert "files of charts" in invoke(finished.path, "--export", tmp_path / "figures")
    charts = page_of(finished.path).charts()
    assert {chart.name for chart in charts} == {
        *("roc", "precision", "calibration"),
        *("accuracy", "spending", "trade", "accountants", "rate", "attacks"),
    }
    names = {f"{chart.name}.{kind}" for chart in charts for kind in ("csv", "png", "svg")}
    assert {path.name for path in (tmp_path / "figures").iterdir()} == names
    for chart in charts:
        with (tmp_path / "figures" / f"{chart.name}.csv").open(newline="") as file:
            head, *rows = csv.reader(file)
        assert tuple(head) == chart.columns
        assert [float(row[2]) for row in rows] == [row[2] for row in chart.rows]
        with Image.open(tmp_path / "figures" / f"{chart.name}.png") as picture:
            assert picture.size == (1440, 880)
        text = "".join(ET.parse(tmp_path / "figures" / f"{chart.name}.svg").getroot().itertext())
        assert chart.title in text
        assert chart.y.label in text


def test_the_same_chart_is_the_same_file(finished, tmp_path):
    page = page_of(finished.path)
    page = replace(page, sections=(Section("One chart", page.charts()[-1:]),))
    first, second = (export(page, tmp_path / name) for name in ("first", "second"))
    assert [path.read_bytes() for path in first] == [path.read_bytes() for path in second]


@pytest.mark.parametrize("kind", ["line", "step", "bar", "dots"])
def test_a_picture_has_axes_a_legend_and_error_bars(kind):
    flat = kind in {"bar", "dots"}
    places = ("a", "b") if flat else (1.0, 10.0)
    series = (
        Series("first", places, (0.5, 0.75), (0.4, None), (0.6, None)),
        Series("second", places, (0.25, None), dashed=True),
    )
    x = Axis("case", "category") if flat else Axis("epsilon", "log")
    figure = draw(Chart("one", "One", kind, x, Axis("accuracy", percent=True, zero=True), series))
    (axes,) = figure.axes
    labels = (axes.get_xlabel(), axes.get_ylabel())
    assert labels == (("accuracy", "case") if flat else ("epsilon", "accuracy"))
    assert [text.get_text() for text in axes.get_legend().get_texts()] == ["first", "second"]
    assert len([each for each in axes.containers if type(each).__name__ == "ErrorbarContainer"]) == 1
    assert (axes.get_xscale() == "log") == (not flat)
    assert flat or list(axes.get_xticks()) == [1.0, 10.0]
    plt.close(figure)


@pytest.mark.parametrize("kind", ["bar", "dots"])
@pytest.mark.parametrize("scale", ["linear", "log"])
def test_values_stand_beyond_their_error_bars_and_inside_of_the_picture(kind, scale):
    series = Series("mean", ("a", "b", "c"), (0.5, 0.9, 0.97), (0.4, None, 0.95), (0.6, None, 0.99))
    figure = draw(Chart("one", "One", kind, Axis("case", "category"), Axis("share", scale, percent=True), (series,)))
    figure.canvas.draw()
    (axes,) = figure.axes
    for text, end in zip(axes.texts, (0.6, 0.9, 0.99), strict=True):
        box = text.get_window_extent()
        assert box.x0 > axes.transData.transform((end, 0))[0] + 3
        assert box.x1 < axes.bbox.x1
    plt.close(figure)


def test_colours_and_symbols_are_those_of_the_series():
    series = [Series(name, (1.0, 2.0), (0.5, 0.75), style=style) for name, style in (("a", 0), ("b", 1), ("c", 2))]

    def look(*kept):
        figure = draw(Chart("one", "One", "line", Axis("x"), Axis("y"), kept))
        plt.close(figure)
        return {line.get_label(): (line.get_color(), line.get_marker()) for line in figure.axes[0].lines}

    every = look(*series)
    assert len(set(every.values())) == 3
    assert look(*series[1:]) == {name: every[name] for name in ("b", "c")}


@pytest.mark.parametrize("kind", ["line", "bar", "dots"])
@pytest.mark.parametrize("top", [0.9, 0.97, 1.0])
def test_an_axis_of_shares_ends_at_the_whole(kind, top):
    flat = kind != "line"
    places = ("a", "b") if flat else (1.0, 2.0)
    axis = Axis("case", "category") if flat else Axis("steps")
    figure = draw(Chart("one", "One", kind, axis, Axis("share", percent=True), (Series("s", places, (top, top)),)))
    (axes,) = figure.axes
    side, spine = (axes.xaxis, axes.spines["bottom"]) if flat else (axes.yaxis, axes.spines["left"])
    end = max(axes.get_xlim() if flat else axes.get_ylim())
    assert end > top, "there is room for the marks and values"
    assert max(tick for tick in side.get_majorticklocs() if tick <= end) <= 1
    assert end <= 1 or spine.get_bounds()[1] == 1
    plt.close(figure)


def test_bounds_beside_their_bars_are_rounded_up():
    series = Series("certified", ("pld",), (2.00001,))
    figure = draw(Chart("one", "One", "bar", Axis("a", "category"), Axis("epsilon", bound=True), (series,)))
    assert [text.get_text() for text in figure.axes[0].texts] == ["2.001"]
    plt.close(figure)


def test_a_folder_that_cannot_be_written_is_an_error(finished, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="Cannot write"):
        export(page_of(finished.path), tmp_path / "file")
