"""What a certificate says of attacks follows from what was charged, and is said wherever the certificate is shown."""

from __future__ import annotations

import json
import math

import pytest
from certificate_cases import certificate_of, failed, original, rehearsal, run  # noqa: F401
from click.testing import CliRunner
from scipy.special import ndtr, ndtri

from adadp.app.cli import main
from adadp.app.report.attacks import attacks_in_words, attacks_on, share, stated_attacks
from adadp.app.report.html import run_page
from adadp.app.report.html.page import Table, Words
from adadp.app.report.wording import plain_words, status
from adadp.certificate.detection import detection
from adadp.errors import AdaDPError


def test_the_figures_follow_from_the_charges(tmp_path):
    certificate = certificate_of(tmp_path, charged=10)
    attacks = attacks_on(certificate)
    assert attacks is not None
    assert attacks.by_curve
    half = json.loads(json.dumps(certificate))
    half["charged"][0]["count"] = 5
    fewer = attacks_on(half)
    assert fewer is not None
    for rate in (1e-3, 1e-2, 5e-2):
        assert rate < fewer.detected(rate) < attacks.detected(rate)
        assert attacks.detected(rate) < detection(certificate["epsilon"], certificate["delta"], rate)
    assert attacks_on({**certificate, "private": False}) is None


def test_a_filter_bounds_attacks_by_its_epsilon_alone(tmp_path):
    certificate = certificate_of(tmp_path, charged=10)
    held = {**certificate, "plan": {**certificate["plan"], "adaptive": True}}
    attacks = attacks_on(held)
    assert attacks is not None
    assert not attacks.by_curve
    assert attacks.detected(0.01) == pytest.approx(detection(held["epsilon"], held["delta"], 0.01))
    assert "from epsilon and delta alone" in plain_words(held)
    assert "from epsilon and delta alone" not in plain_words(certificate)


def test_where_nothing_was_charged_attackers_guess(tmp_path):
    certificate = certificate_of(tmp_path)
    assert certificate["epsilon"] == 0
    assert stated_attacks(certificate)["trade_off"]["detected"] == {"0.001": 0.001, "0.01": 0.01, "0.05": 0.05}
    assert "0.1 % false alarms, 0.1 %" in plain_words(certificate)
    assert "mu = 0, " in plain_words(certificate)


def test_page_terminal_and_json_say_the_same(original):
    certificate = original.certificate()
    attacks = attacks_on(certificate)
    assert attacks is not None
    reached, mu = attacks_in_words(attacks)
    assert {reached, mu} <= set(plain_words(certificate).splitlines())
    page = run_page(original)
    section = next(each for each in page.sections if each.title == "What an attacker can reach")
    (table,) = [part for part in section.parts if isinstance(part, Table)]
    assert [row[1] for row in table.rows] == [share(attacks.detected(rate), up=True) for rate in (1e-3, 1e-2, 5e-2)]
    assert any(mu in part.lines for part in section.parts if isinstance(part, Words))
    curve, gaussian, guessing = next(chart for chart in page.charts() if chart.name == "attacks").series
    assert all(low < high for low, high in zip(guessing.y[:-1], curve.y[:-1], strict=True))
    assert all(low <= high for low, high in zip(curve.y, gaussian.y, strict=True))
    answer = CliRunner().invoke(main, ["verify", str(original.path), "--json"])
    told = json.loads(answer.output.splitlines()[-1])
    assert told["trade_off"] == attacks.stated()
    assert told["trade_off_if_unseeded"] is None
    assert told["trade_off"]["mu"] == pytest.approx(attacks.mu, rel=1e-5)
    assert told["trade_off"]["detected"]["0.01"] <= ndtr(ndtri(0.01) + told["trade_off"]["mu"])


def test_a_rehearsal_says_that_its_figures_are_those_without_a_seed(rehearsal, original):
    seeded, real = rehearsal.certificate(), original.certificate()
    assert stated_attacks(seeded) == {
        "trade_off": None,
        "trade_off_if_unseeded": stated_attacks(real)["trade_off"],
    }
    lines = plain_words(seeded).splitlines()
    assert sum(line.startswith("Without a seed: ") for line in lines) == 2
    assert not any(line.startswith(("An attacker", "As Gaussian")) for line in lines)
    assert any("can undo the noise" in line for line in lines)
    assert (status(seeded), status(real)) == ("REHEARSAL, NOT FOR RELEASE", "PRIVATE")
    assert any(section.title == "What an attacker can reach without a seed" for section in run_page(rehearsal).sections)


def test_figures_cannot_be_written_into_a_certificate_or_a_page(run):
    path = run.path / "report.html"
    text = path.read_text(encoding="utf-8")
    attacks = attacks_on(run.certificate())
    assert attacks is not None
    figure = share(attacks.detected(0.01), up=True).replace(" ", "\u00a0")
    shown = figure if figure in text else figure.replace("\u00a0", " ")
    path.write_text(text.replace(shown, "1.1 %"), encoding="utf-8")
    assert text != path.read_text(encoding="utf-8")
    assert failed(run) == {"page"}
    certificate = {**run.certificate(), "trade_off": {"mu": 0.01}}
    (run.path / "certificate.json").write_text(json.dumps(certificate))
    assert "statements" in failed(run)


@pytest.mark.parametrize(
    "edit",
    [{"charged": [{}]}, {"epsilon": "x"}, {"neighbours": "x"}, {"plan": []}, {"charged": [{"event": {}, "count": -1}]}],
)
def test_a_certificate_that_is_none_is_one_clear_error(run, edit):
    (run.path / "certificate.json").write_text(json.dumps({**run.certificate(), **edit}))
    with pytest.raises(AdaDPError):
        run_page(run)


def test_lay_readers_learn_whom_they_must_trust(original):
    words = plain_words(original.certificate())
    for part in (
        "\nWho could see what\n  Whoever made the model saw every record",
        "need not be trusted",
        "\nHow the settings were chosen\n  Epsilon covers this training alone.",
        "The guarantee compares a model made with one record with the model made without it.",
    ):
        assert part in words
    chosen = {**original.certificate(), "search": {"text": "One of 3 settings, chosen privately."}}
    assert "\nHow the settings were chosen\n  One of 3 settings, chosen privately.\n" in plain_words(chosen)


def test_shares_are_rounded_up_and_rates_are_not():
    assert share(0.001) == "0.1 %"
    assert share(0.0123401, up=True) == "1.235 %"
    assert math.isclose(float(share(0.3, up=True).removesuffix(" %")), 30)
