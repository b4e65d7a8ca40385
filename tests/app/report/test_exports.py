"""A certificate as a page to print, a model card and an entry of a registry: whole, checked, never more than true."""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from certificate_cases import original, rehearsal, trained  # noqa: F401
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st
from registry_rules import RULES, breaches, slug
from scipy.special import ndtr, ndtri

from adadp.app.cli import main
from adadp.app.report.attacks import attacks_on
from adadp.app.report.exports import KINDS, write_export
from adadp.app.report.exports.card import escaped
from adadp.app.report.exports.content import Verified
from adadp.app.report.exports.pdf import HEIGHT, MARGIN, WIDTH, laid_out, pdf, wrapped
from adadp.app.report.exports.registry import entry, scalar
from adadp.app.runs import certificate_digest
from adadp.errors import InputError


@pytest.fixture(scope="module")
def verified(original) -> Verified:
    return Verified.read(original.path)


def pages(content: bytes) -> int:
    return len(re.findall(rb"/Type /Page\b", content))


def written(run: Verified, size: float = 8.0) -> str:
    """All words on the pages, in order."""
    sheet = laid_out(run, attacks_on(run.certificate), size)
    return " ".join(line.text for page in sheet.pages for line in page).replace("\u00a0", " ")


# A page to print --------------------------------------------------------------------------------------------------


def test_a_certificate_fits_a_page_of_a4(verified):
    content = pdf(verified)
    assert content.startswith(b"%PDF")
    assert pages(content) == 1
    assert b"/MediaBox [ 0 0 595.3 841.9 ]" in content
    assert content == pdf(verified)


def test_the_page_says_all_that_the_certificate_says(verified):
    words = written(verified)
    certificate = verified.certificate
    for said in (*verified.guarantee, *certificate["not_covered"], *certificate["caveats"], *certificate["disclosed"]):
        assert " ".join(said.split()) in words
    assert "PRIVATE: \u03b5 = 2, \u03b4 = 0.0001, \u03bc = " in words
    assert certificate_digest(certificate) in words
    sheet = laid_out(verified, attacks_on(certificate), 8.0)
    for line in sheet.pages[0]:
        assert MARGIN <= line.x < WIDTH - MARGIN
        assert MARGIN <= line.y <= HEIGHT - MARGIN


def test_what_does_not_fit_goes_on_to_further_pages(verified):
    record = " ".join(["A record of many words that somebody described at length, and a " + "w" * 300] * 40)
    long = replace(verified, certificate={**verified.certificate, "record": record})
    sheet = laid_out(long, attacks_on(long.certificate), 6.6)
    page, top = sheet.chart
    assert 0 < page < len(sheet.pages)
    assert top + 150 <= HEIGHT - MARGIN
    assert not [line for line in sheet.pages[page] if top + 10 < line.y < top + 150]
    assert all(MARGIN <= line.y <= HEIGHT - MARGIN for page in sheet.pages for line in page)
    assert written(long).replace(" ", "").count("w" * 300) == 40


def test_lines_are_as_wide_as_the_page_at_most(verified):
    text = " ".join(verified.certificate["caveats"])
    lines = list(wrapped(text, 300.0, 8.0))
    assert " ".join(lines).replace("\u00a0", " ") == text
    assert len(lines) > 10
    assert all(len(list(wrapped(line, 300.0, 8.0))) == 1 for line in lines)
    assert list(wrapped("", 300.0, 8.0)) == []


def test_formulas_stay_text_and_long_text_becomes_two_pages(verified):
    record = r"$\frac{a}$ and $x_{$ were given. " * 300
    assert pages(pdf(replace(verified, certificate={**verified.certificate, "record": record}))) == 2


# A model card -----------------------------------------------------------------------------------------------------


def test_the_card_has_a_head_for_the_hub_and_says_the_same(original, tmp_path):
    place = write_export(original.path, "model-card", tmp_path / "README.md")
    _, head, body = place.read_text(encoding="utf-8").split("---\n", 2)
    assert yaml.safe_load(head) == {"library_name": "adadp", "tags": ["pytorch", "differential-privacy", "adadp"]}
    assert "**PRIVATE.** Adding or removing one record" in body
    attacks = attacks_on(original.certificate())
    assert attacks is not None
    rows = re.findall(r"\| ([\d.]+) % \| ([\d.]+) % \|", body)
    assert [float(rate) for rate, _ in rows] == [0.1, 1.0, 5.0]
    for rate, most in rows:
        exact = attacks.detected(float(rate) / 100)
        assert exact <= float(most) / 100 < 1.001 * exact
    for title in ("Uses", "Who could see what", "Not covered", "Technical caveats", "How to check this"):
        assert f"\n## {title}\n" in body
    assert body.count("TO DO") == 2


@given(st.text())
def test_no_text_of_a_run_is_read_as_markdown(text):
    plain = escaped(text)
    assert "\n" not in plain
    assert not re.search(r"(?<!\\)(\\\\)*[`*_\[\]<>#|!]", plain)


# The registry -----------------------------------------------------------------------------------------------------


def test_the_entry_is_what_the_registry_accepts(verified):
    found = yaml.safe_load(entry(verified))
    assert list(breaches(found)) == []
    assert found["url_slug"] == slug(found)
    assert (found["status"], found["tier"]) == ("Draft", 3)
    deployment, certificate = found["deployment"], verified.certificate
    parameters = deployment["privacy_loss"]["privacy_parameters"]
    assert certificate["epsilon"] <= parameters["epsilon"] < certificate["epsilon"] * 1.00001
    assert parameters["delta"] == certificate["delta"]
    assert deployment["deployment_model"]["model_name"] == "Central"
    assert "mu = " in deployment["privacy_loss"]["privacy_parameters_details"]
    for said in certificate["not_covered"]:
        assert said in deployment["administrative"]["notes"]
    named = {rule.rstrip("!") for rule in RULES["deployment!"]}
    assert named == deployment.keys()
    for token in yaml.scan(entry(verified).decode("utf-8")):  # its checker refuses folded text
        assert getattr(token, "style", None) in (None, "|", '"', "'")


def test_the_rules_refuse_what_the_registry_refuses(verified):
    found = yaml.safe_load(entry(verified))
    found["tier"] = 0
    found["surprise"] = 1
    del found["status"]
    found["deployment"]["basic"]["publication_date"] = "1/1/2026"
    found["deployment"]["privacy_loss"]["privacy_parameters"]["epsilon"] = "2"
    assert len(list(breaches(found))) == 5


@given(st.text(st.characters(codec="utf-8")))
def test_every_text_comes_back_from_the_file(text):
    assert yaml.safe_load(scalar(text)) == text


@pytest.mark.parametrize("value", [2.0, 1e-5, 1e-300, 0.1, 123456.789, 5e-324])
def test_every_number_comes_back_from_the_file(value):
    assert yaml.safe_load(scalar(value)) == value


# What is refused, and what is said first --------------------------------------------------------------------------


def test_a_rehearsal_is_called_one_and_is_no_deployment(rehearsal, tmp_path):
    run = Verified.read(rehearsal.path)
    assert run.status == "REHEARSAL, NOT FOR RELEASE"
    words = written(run)
    assert "REHEARSAL, NOT FOR RELEASE The noise was computed from the seed 7" in words
    assert "\u03b5" not in words
    assert "whoever has the seed can compute the noise again" in words
    assert pages(pdf(run)) == 1
    card = write_export(rehearsal.path, "model-card", tmp_path / "card.md").read_text(encoding="utf-8")
    assert "**REHEARSAL, NOT FOR RELEASE.**" in card
    assert "(the same run without a seed)" in card
    with pytest.raises(InputError, match="this run is none"):
        write_export(rehearsal.path, "opendp", tmp_path / "entry.yaml")
    assert not (tmp_path / "entry.yaml").exists()


def test_a_run_that_is_not_private_says_so(tmp_path):
    folder = trained(tmp_path / "run", epsilon=None, noise_multiplier=0.0, allow_nonprivate=True)
    run = Verified.read(folder.path)
    assert "NOT PRIVATE The run added no noise: nothing is protected." in written(run)
    card = write_export(folder.path, "model-card").read_text(encoding="utf-8")
    assert "**NOT PRIVATE.** The run added no noise" in card
    assert "An attacker finds" not in card
    with pytest.raises(InputError, match="this run is none"):
        entry(run)


@pytest.mark.parametrize("kind", KINDS)
def test_a_folder_that_does_not_verify_is_refused(original, tmp_path, kind):
    folder = Path(shutil.copytree(original.path, tmp_path / "run"))
    certificate = json.loads((folder / "certificate.json").read_text())
    certificate["epsilon"] = 1.0
    (folder / "certificate.json").write_text(json.dumps(certificate))
    answer = CliRunner().invoke(main, ["report", str(folder), "--format", kind])
    assert answer.exit_code == 2
    assert "does not verify" in answer.output
    assert not (folder / KINDS[kind][0]).exists()


def test_the_command_writes_into_the_folder_or_where_it_is_told(original, tmp_path):
    folder = Path(shutil.copytree(original.path, tmp_path / "run"))
    answer = CliRunner().invoke(main, ["report", str(folder), "--format", "opendp"])
    assert answer.exit_code == 0, answer.output
    assert "TO DO" in answer.output
    assert list(breaches(yaml.safe_load((folder / "opendp_deployment.yaml").read_bytes()))) == []
    assert re.fullmatch(r"[a-z0-9_]+\.yaml", "opendp_deployment.yaml")  # a name that the registry takes
    both = CliRunner().invoke(main, ["report", str(folder), "--format", "pdf", "--export", str(tmp_path / "x")])
    assert both.exit_code == 2
    assert "--export" in both.output
    lost = CliRunner().invoke(main, ["report", str(folder), "--format", "pdf", "--out", str(tmp_path / "no" / "x")])
    assert lost.exit_code == 2
    assert "There is no folder" in lost.output


def test_the_figures_of_an_export_are_those_of_the_certificate(verified):
    attacks = attacks_on(verified.certificate)
    assert attacks is not None
    told = yaml.safe_load(entry(verified))["deployment"]["privacy_loss"]["privacy_parameters_details"]
    mu = float(re.search(r"mu = ([\d.]+)", told)[1])
    assert attacks.mu <= mu < 1.001 * attacks.mu
    reached = float(re.search(r"1 % false alarms, ([\d.]+) %", told.replace("0.1 %", ""))[1]) / 100
    assert attacks.detected(0.01) <= reached <= ndtr(ndtri(0.01) + mu)
