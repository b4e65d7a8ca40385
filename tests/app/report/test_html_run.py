"""The page of a run says what the folder of the run says, and nothing that it does not."""

from __future__ import annotations

import json
import shlex
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner
from report_samples import small_run

from adadp.accounting import rounded_up
from adadp.app.cli import main
from adadp.app.config import TrainConfig
from adadp.app.report.attacks import attacks_on
from adadp.app.report.html import page_of, render, run_page, write_report
from adadp.app.report.html.formatting import doubts, percent, percent_up
from adadp.app.report.html.page import Command, Matrix, Table, Words
from adadp.app.report.html.run_charts import accountants_chart, spending_chart, trade_chart
from adadp.app.report.html.run_page import settings
from adadp.app.runs import ClassCounts, RunFolder
from adadp.errors import InputError, RunError

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> RunFolder:
    fields = {
        "noise_schedule": "exp:s0=8,k=0.1",
        "batch_size_schedule": "piecewise:0=50,2=100",
        "lr_schedule": "time:s0=0.5,k=0.5",
    }
    return small_run(tmp_path_factory.mktemp("runs") / "finished", **fields, batch_size=None)


@pytest.fixture(scope="module")
def leaky(tmp_path_factory) -> RunFolder:
    out = tmp_path_factory.mktemp("runs") / "leaky"
    return small_run(out, method="adadp-published", allow_nonprivate=True, evaluate_every=None, epochs=2)


def parts_of(page, kind):
    return [part for section in page.sections for part in section.parts if isinstance(part, kind)]


def charts_of(page):
    return {chart.name: chart for chart in page.charts()}


def words_of(page) -> str:
    return "\n".join(f"{part.title}: {' '.join(part.lines)}" for part in parts_of(page, Words))


def test_the_headline_is_the_certificate(finished):
    page, certificate = run_page(finished), finished.certificate()
    accuracy = finished.metrics()[-1]["test_accuracy"]
    assert percent(accuracy) in page.headline
    assert rounded_up(certificate["epsilon"]) in page.headline
    assert "0.0001" in page.headline
    assert "add-remove" in " ".join(page.lead)
    assert (page.status, page.tone) == ("PRIVATE", "good")
    assert "seed" not in " ".join([page.headline, *page.lead])


def test_a_rehearsal_is_called_one_first_and_promises_nothing(tmp_path):
    folder = small_run(tmp_path / "run", seed=7)
    page, certificate = run_page(folder), folder.certificate()
    without = rounded_up(certificate["if_unseeded"]["epsilon"])
    assert (page.status, page.tone) == ("REHEARSAL, NOT FOR RELEASE", "warn")
    assert page.headline.startswith("Rehearsal: ")
    assert "differential privacy" not in page.headline
    assert "\u03b5" not in page.headline
    assert page.lead[0] == certificate["reason"]
    figures = {figure.label: figure for figure in page.figures.figures}
    assert (figures["Epsilon"].value, figures["Epsilon"].tone) == ("none", "bad")
    assert f"{without} at delta = 0.0001 without a seed" in figures["Epsilon"].note
    assert "Chance to detect a record" not in figures
    first, *others = [part for part in parts_of(page, Words) if part.title]
    assert (first.title, first.tone) == ("Nothing is protected: this is a rehearsal", "bad")
    assert "good" not in {part.tone for part in others}
    charts = charts_of(page)
    for name in ("spending", "trade", "accountants"):
        assert "without a seed" in f"{charts[name].title} {charts[name].x.label} {charts[name].y.label}"
    assert charts["spending"].series[0].dashed
    assert "certified" not in {series.name for series in charts["accountants"].series}
    assert render(page)


def test_a_guarantee_that_rules_out_little_is_no_good_news(tmp_path):
    folder = small_run(tmp_path / "run", noise_multiplier=0.2, epochs=1, evaluate_every=None)
    page, certificate = run_page(folder), folder.certificate()
    assert certificate["epsilon"] > 50
    assert (page.status, page.tone) == ("PRIVATE, WEAKLY", "warn")
    assert any("rules out very little" in line for line in page.lead)
    assert "by at most a factor" not in " ".join([*page.lead, words_of(page)])
    figure = next(each for each in page.figures.figures if each.label == "Chance to detect a record")
    attacks = attacks_on(certificate)
    assert attacks is not None
    assert (figure.value, figure.tone) == (f"\u2264 {percent_up(attacks.detected(0.05))}", "warn")
    assert attacks.detected(0.05) > 0.7
    tones = {part.title: part.tone for part in parts_of(page, Words)}
    assert tones["Protected, weakly"] == "warn"
    assert "good" not in tones.values()


def test_everything_the_certificate_states_is_on_the_page(finished):
    text, certificate = words_of(run_page(finished)), finished.certificate()
    stated = [certificate["protects"], certificate["record"], certificate["randomness"]]
    for statement in [
        *stated,
        *certificate["disclosed"],
        *certificate["not_covered"],
        *certificate["caveats"],
        *certificate["notes"],
    ]:
        assert statement in text


def test_curves_are_the_metrics(finished):
    charts, lines = charts_of(run_page(finished)), finished.metrics()
    (accuracy,) = charts["accuracy"].series
    looks = [(line["step"], line["test_accuracy"]) for line in lines if "test_accuracy" in line]
    assert list(zip(accuracy.x, accuracy.y, strict=True)) == looks
    assert len(looks) == 4
    (spent,) = charts["spending"].series
    assert list(spent.y) == [line["epsilon"] for line in lines if "epsilon" in line]
    (trade,) = charts["trade"].series
    assert trade.x == spent.y
    assert trade.y == accuracy.y


def test_accountants_are_the_cross_check_and_the_certified_one_stands_apart(finished):
    chart, certificate = charts_of(run_page(finished))["accountants"], finished.certificate()
    shown = {row[1]: (row[0], row[2]) for row in chart.rows}
    assert {name: value for name, (_, value) in shown.items()} == {
        each["accountant"]: each["epsilon"] for each in certificate["cross_check"]
    }
    assert [name for name, (kind, _) in shown.items() if kind == "certified"] == [certificate["accountant"]]
    assert f"{rounded_up(certificate['epsilon_high'], 6)}, the upper end counts" in chart.caption
    assert chart.y.bound


def test_what_changes_is_drawn_and_what_does_not_stands_in_a_table(finished):
    page = run_page(finished)
    charts = charts_of(page)
    assert charts["batch-size"].series[0].y == (50, 50, 100, 100)
    assert charts["rate"].series[0].y == pytest.approx((0.5, 0.5 / 1.5, 0.25, 0.2))
    noise = charts["noise"].series[0].y
    assert noise[1] / noise[0] == pytest.approx(0.904837, rel=1e-5)
    assert "clip-norm" not in charts
    constants = next(table for table in parts_of(page, Table) if table.columns[0] == "The same in every epoch")
    assert [row[0] for row in constants.rows] == ["Clip bound"]


def test_the_clip_bound_is_drawn_where_it_falls(tmp_path):
    folder = small_run(tmp_path / "run", clip_norm_schedule="time:s0=0.5,k=1", keep_noise=True, evaluate_every=None)
    charts = charts_of(run_page(folder))
    assert charts["clip-norm"].series[0].y == pytest.approx((0.5, 0.25, 0.5 / 3, 0.125))
    multipliers = charts["noise"].series[0].y
    assert multipliers[1] == pytest.approx(2 * multipliers[0])  # the noise stays while the bound halves


def test_a_run_looked_at_once_has_no_curve_and_says_how_to_get_one(leaky):
    page = run_page(leaky)
    assert "accuracy" not in charts_of(page)
    assert "--evaluate-every 1" in words_of(page)


def test_a_run_that_is_not_private_says_so_first(leaky):
    page, certificate = run_page(leaky), leaky.certificate()
    assert (page.status, page.tone) == ("NOT PRIVATE", "bad")
    assert page.headline.startswith("Not private")
    assert page.lead[:2] == (certificate["reason"], certificate["claimed_by_paper"]["text"])
    figures = {figure.label: figure for figure in page.figures.figures}
    assert (figures["Epsilon"].value, figures["Epsilon"].tone) == ("none", "bad")
    assert "not proved" in figures["Claimed epsilon"].note
    assert "Chance to detect a record" not in figures
    assert "accountants" not in charts_of(page)


def test_what_an_accountant_says_of_a_leaky_run_is_not_called_what_its_paper_claims(leaky):
    page = run_page(leaky)
    chart, claimed = charts_of(page)["spending"], leaky.certificate()["claimed_by_paper"]["epsilon"]
    assert chart.series[0].y[-1] != pytest.approx(claimed, rel=0.1)
    assert chart.title == "What pld would say of the charges: no guarantee"
    assert chart.y.label == "epsilon by pld at delta = 0.0001"
    assert chart.series[0].name == "pld, no guarantee"
    assert "No guarantee" in chart.caption
    assert "claim" not in json.dumps([chart.title, chart.y.label, chart.caption, chart.csv()]).lower()


def test_a_run_without_noise_has_a_page(tmp_path):
    folder = small_run(tmp_path / "run", noise_multiplier=0.0, allow_nonprivate=True, epochs=2, evaluate_every=None)
    page = run_page(folder)
    assert page.status == "NOT PRIVATE"
    assert set(charts_of(page)) == {"roc", "precision", "calibration"}
    assert render(page)


def test_a_run_that_has_not_finished_promises_nothing(finished, tmp_path):
    shutil.copytree(finished.path, tmp_path / "run")
    (tmp_path / "run" / "certificate.json").unlink()
    page = run_page(RunFolder.open(tmp_path / "run"))
    assert (page.status, page.tone) == ("NOT FINISHED", "warn")
    assert "spending" in charts_of(page)
    assert "adadp train --resume run" in [part.text for part in parts_of(page, Command)]
    assert "What this protects, and what it does not" not in [section.title for section in page.sections]


def test_a_certificate_of_another_format_has_no_page(finished, tmp_path):
    shutil.copytree(finished.path, tmp_path / "run")
    (tmp_path / "run" / "certificate.json").write_text(json.dumps({**finished.certificate(), "format": 1}))
    with pytest.raises(InputError, match="another AdaDP"):
        page_of(tmp_path / "run")


def test_a_run_that_has_only_begun_has_a_page(finished, tmp_path):
    RunFolder.create(tmp_path / "run", finished.config)
    assert render(page_of(tmp_path / "run"))


def test_the_matrix_is_that_of_the_folder(finished, tmp_path):
    counts = [[40, 2], [1, 70]]
    shutil.copytree(finished.path, tmp_path / "run")
    folder = replace(finished, path=tmp_path / "run")
    folder.confusion_path.write_text(json.dumps({"labels": ["ill", "<b>well</b>"], "counts": counts}))
    (matrix,) = parts_of(run_page(folder), Matrix)
    assert (matrix.labels, matrix.counts) == (("ill", "<b>well</b>"), ((40, 2), (1, 70)))
    assert "<b>well" not in render(run_page(folder))
    folder.confusion_path.write_text(json.dumps({"labels": ["ill"], "counts": counts}))
    with pytest.raises(RunError, match="no matrix"):
        run_page(folder)
    folder.confusion_path.unlink()
    assert not parts_of(run_page(folder), Matrix)


@pytest.fixture
def told(finished, tmp_path):
    """The page of the run, had its model these mistakes."""
    shutil.copytree(finished.path, tmp_path / "told")

    def page(counts, labels=("ill", "well")):
        folder = replace(finished, path=tmp_path / "told")
        folder.write_confusion(labels, counts)
        found = run_page(folder)
        section = next(each for each in found.sections if each.title == "Which classes are confused")
        return found, {figure.label: figure for figure in found.figures.figures}, section.text.replace("\u00a0", " ")

    return page


def test_the_page_says_what_the_accuracy_is_without_a_model_and_over_the_classes(told):
    page, figures, text = told([[40, 10], [5, 45 + 100]])
    assert figures["Balanced accuracy"].value == percent((40 / 50 + 145 / 150) / 2) == "88.33 %"
    assert figures["Test accuracy"].note.replace("\u00a0", " ").endswith("the most frequent class: 75.00 %")
    assert "88.33 %" in text
    assert "Always answering well, the most frequent class: 75.00 %" in text
    assert (figures["Test accuracy"].tone, figures["Balanced accuracy"].tone) == ("plain", "plain")
    assert "No better" not in " ".join(page.lead)
    assert "Never found" not in " ".join(page.lead)


def test_a_model_that_learned_nothing_is_called_so_below_the_headline(told):
    page, figures, _ = told([[0, 10], [0, 90]])
    assert page.lead[:2] == (
        "No better than always answering well, the most frequent class.",
        "Never found, with the number of records: ill (10).",
    )
    assert (figures["Test accuracy"].tone, figures["Balanced accuracy"].tone) == ("warn", "warn")
    assert figures["Balanced accuracy"].value == "50.00 %"


def test_a_run_that_is_not_private_says_it_after_the_reason(leaky, tmp_path):
    shutil.copytree(leaky.path, tmp_path / "run")
    folder = replace(leaky, path=tmp_path / "run")
    folder.write_confusion(["ill", "well"], [[0, 10], [0, 90]])
    lead, reason = run_page(folder).lead, leaky.certificate()["reason"]
    assert lead[0] == reason
    assert lead[-1].startswith("Never found")


def test_a_run_without_a_matrix_has_no_balanced_accuracy(finished, tmp_path):
    shutil.copytree(finished.path, tmp_path / "run")
    (tmp_path / "run" / "confusion.json").unlink()
    figures = {figure.label: figure for figure in run_page(RunFolder.open(tmp_path / "run")).figures.figures}
    assert figures["Test accuracy"].note == "on the test set"
    assert "Balanced accuracy" not in figures


def test_what_an_accuracy_hides():
    names = [f"c{place}" for place in range(9)]
    assert doubts(ClassCounts((50, 40), (45, 39)), names) == ()
    only = doubts(ClassCounts((0, 40), (0, 40)), names)
    assert only == ("All these records are of class c1, so the accuracy tells nothing about other classes.",)
    assert doubts(ClassCounts((50, 40), (30, 20)), names) == (
        "No better than always answering c0, the most frequent class.",
    )
    (missed,) = doubts(ClassCounts((5000, 1, 7, 2, 3, 4, 5, 1200, 0), (5000, 1, 0, 0, 0, 0, 0, 0, 0)), names)
    assert missed.endswith(": c7 (1,200), c2 (7), c6 (5), c5 (4), c4 (3), and 1 more.")


def test_the_commands_run_and_check_it(finished):
    commands = [part.text for part in parts_of(run_page(finished), Command)]
    assert commands == [f"{finished.config.as_command()} --out again", "adadp verify ."]


def test_the_command_of_a_run_on_own_data_runs_where_it_was_started(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rows = (f"{place % 100},{'low' if place % 100 < 50 else 'high'}\n" for place in range(300))
    Path("people.csv").write_text("age,income\n" + "".join(rows))
    Path("people.toml").write_text(
        '[target]\ncolumn = "income"\nclasses = ["low", "high"]\n[columns.age]\nkind = "number"\nbounds = "private"\n'
    )
    flags = "--data table:people.csv --schema people.toml --epsilon 2 --delta 1e-4 --steps 3"
    flags += " --batch-size 30 --out runs/people"
    runner = CliRunner()
    assert runner.invoke(main, ["train", *flags.split()]).exit_code == 0
    again = parts_of(run_page(RunFolder.open("runs/people")), Command)[0]
    assert "in the folder where this run was started. A second run on the same records spends" in again.caption
    found = runner.invoke(main, shlex.split(again.text)[1:])
    assert found.exit_code == 0, found.output
    assert RunFolder.open("again").config == RunFolder.open("runs/people").config


def test_a_last_line_without_an_accuracy_is_no_look(finished, tmp_path):
    shutil.copytree(finished.path, tmp_path / "run")
    lines = [{name: value for name, value in line.items() if name != "test_accuracy"} for line in finished.metrics()]
    (tmp_path / "run" / "metrics.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    assert lines[-1]["final"]
    charts = charts_of(run_page(RunFolder.open(tmp_path / "run")))
    assert not {"accuracy", "trade"} & set(charts)
    seen = [{"step": k, "epsilon": k / 2, "test_accuracy": 0.1 * k} for k in (1, 2)]
    trade = trade_chart([*seen, {"step": 2, "final": True, "score": 0.3}], 1.5)
    assert trade is not None
    assert trade.series[0].x == (0.5, 1.0)


def test_settings_are_shown_to_the_last_digit():
    given = {"epsilon": 2.00049, "delta": 1e-5, "lr": 1.234567, "clip_norm": 4.0, "steps": 1234567}
    table = settings(TrainConfig("cancer", **given), None).parts[0]
    assert isinstance(table, Table)
    shown = dict(table.rows)
    assert {name: float(shown[name]) for name in given} == given
    assert (shown["clip_norm"], shown["lr"], shown["delta"]) == ("4", "1.234567", "1e-05")


def test_a_page_is_written_whole_and_twice_the_same(finished, tmp_path):
    shutil.copytree(finished.path, tmp_path / "run")
    first = write_report(tmp_path / "run")
    content = first.read_bytes()
    assert first == tmp_path / "run" / "report.html"
    assert write_report(tmp_path / "run").read_bytes() == content
    assert str(tmp_path).encode() not in content
    assert write_report(tmp_path / "run", tmp_path / "other.html").read_bytes() == content
    with pytest.raises(InputError, match="no folder"):
        write_report(tmp_path / "run", tmp_path / "missing" / "page.html")


def test_a_folder_of_something_else_is_refused(tmp_path):
    with pytest.raises(InputError, match="nothing to report on"):
        write_report(tmp_path)
    (tmp_path / "results.json").write_text("{")
    with pytest.raises(InputError, match="cannot be read"):
        write_report(tmp_path)
    (tmp_path / "results.json").write_text('{"format": 99}')
    with pytest.raises(InputError, match="no results of a comparison"):
        write_report(tmp_path)


def test_a_run_held_by_a_filter_shows_the_share_of_its_budget():
    lines = [{"step": 10 * k, "epsilon": 3.0, "budget_used": 0.3 * k, "noise_multiplier": 4.0} for k in (1, 2, 3)]
    chart = spending_chart(lines, 1e-5, "rdp")
    assert chart is not None
    assert chart.y.percent
    assert chart.series[0].y == pytest.approx((0.3, 0.6, 0.9))
    assert trade_chart([{**line, "test_accuracy": 0.9} for line in lines], 3.0) is None  # epsilon is the budget


def test_accountants_near_each_other_are_bars_and_others_dots():
    def chart(*epsilons):
        checks = [{"accountant": name, "epsilon": each} for name, each in zip(("pld", "rdp"), epsilons, strict=True)]
        figures = {"epsilon_low": 1.0, "epsilon_high": 1.0, "delta": 1e-5, "private": True, "rehearsal": False}
        return accountants_chart({"cross_check": checks, "accountant": "rdp", **figures})

    assert (chart(1.0, 9.0).kind, chart(1.0, 9.0).y.scale) == ("bar", "linear")
    assert (chart(1.0, 11.0).kind, chart(1.0, 11.0).y.scale) == ("dots", "log")
    assert chart(0.0, 11.0).kind == "bar"  # a logarithmic axis has no 0
