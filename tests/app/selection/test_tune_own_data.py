"""Searches over a table of one's own: what is released of its columns, and public records in a file."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import torch

from adadp.app.accounting.repetitions import PoissonRepetitions, TruncatedNegativeBinomial
from adadp.app.config import TrainConfig
from adadp.app.predict import evaluation, load_model
from adadp.app.runs import RunFolder
from adadp.app.selection import planned, resume, searching, tune
from adadp.app.train import verify_run
from adadp.errors import InputError

SCHEMA = """
[target]
column = "income"
classes = ["low", "high"]

[columns]
age = {kind = "number", bounds = "private"}
hours = {kind = "number", low = 0, high = 60}
"""
LAW = TruncatedNegativeBinomial(1.0, 0.4)


@pytest.fixture(scope="module")
def table(tmp_path_factory) -> Path:
    place = tmp_path_factory.mktemp("own")
    chance = random.Random(1)
    for name, rows in {"train": 400, "test": 60, "validation": 60}.items():
        with (place / f"{name}.csv").open("w") as file:
            file.write("age,hours,income\n")
            for _ in range(rows):
                age, hours = chance.uniform(20, 70), chance.uniform(0, 60)
                file.write(f"{age:.1f},{hours:.1f},{'high' if age + hours > 75 else 'low'}\n")
    (place / "schema.toml").write_text(SCHEMA)
    return place


def base(table: Path, **more) -> TrainConfig:
    return TrainConfig(
        f"table:{table / 'train.csv'}",
        schema=str(table / "schema.toml"),
        test_data=f"table:{table / 'test.csv'}",
        epsilon=4.0,
        delta=1e-4,
        steps=4,
        batch_size=400,
        model="linear",
        threads=1,
        **more,
    )


@pytest.fixture(autouse=True)
def threads_stay_as_they_were():
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def test_a_search_with_public_records_of_a_file(table, tmp_path):
    settings = [{"lr": 0.5}, {"lr": 2.0, "features": "pca:dim=2"}]
    result = tune(
        base(table, seed=1),
        settings,
        out=tmp_path / "run",
        law=LAW,
        validation_data=f"table:{table / 'validation.csv'}",
    )
    assert [check.name for check in verify_run(RunFolder.open(result.out)) if not check.passed] == []
    assert 0.97 * 4 < result.certificate["if_unseeded"]["epsilon"] <= 4
    assert all("bounds:" in candidate.features for candidate in result.search.candidates)
    assert round(result.search.score * 60) == pytest.approx(result.search.score * 60)
    trained = load_model(result.out)
    assert evaluation(trained)["accuracy"] == result.test_accuracy
    assert len(trained.predict(trained.read(table / "test.csv"))) == 60
    assert "The exact number of training records, 400" in result.describe()


def test_a_hidden_number_of_records_and_features_that_cannot_be_released_twice(table, tmp_path, monkeypatch):
    """A secure run that was killed after paying for its features begins anew: nobody has seen anything of it."""
    out, broken = tmp_path / "run", []
    run_on = searching.start.run_on

    def killed(records, spec, place, **options):
        if not broken:
            broken.append(place)
            RunFolder.create(place, spec.config).ledger_path.write_text("half a line")
            raise KeyboardInterrupt
        return run_on(records, spec, place, **options)

    monkeypatch.setattr(searching.start, "run_on", killed)
    monkeypatch.setattr(searching, "draw_count", lambda *_: 1)
    options = {"law": PoissonRepetitions(2.0), "validation": 50, "out": out}
    with pytest.raises(KeyboardInterrupt):
        tune(base(table, records=450), [{"lr": 0.5}], **options)
    assert broken[0].exists()
    result = resume(out)
    assert not broken[0].exists()
    assert result.search.records == 400
    assert [check.name for check in verify_run(RunFolder.open(out)) if not check.passed] == []
    assert "exact number" not in result.describe()


@pytest.mark.slow
@pytest.mark.parametrize("by", ["repeat", "parts"])
def test_without_test_records_a_search_ends_like_any_other(table, tmp_path, by):
    scored = {"law": LAW, "validation": 60} if by == "repeat" else {}
    asked = base(table, seed=1).replace(test_data=None, batch_size=80, features="none")
    result = tune(asked, [{"lr": 0.5}, {"lr": 2.0}], out=tmp_path / "run", by=by, **scored)
    assert result.test_accuracy is None
    assert not (result.out / "secret").exists()
    assert (result.out / "report.html").exists()
    assert [check.name for check in verify_run(RunFolder.open(result.out)) if not check.passed] == []


def test_a_page_that_cannot_be_made_leaves_nothing_secret(table, tmp_path, monkeypatch):
    """The search has been charged, and what it found is published."""

    def broken(*_):
        raise KeyError("a page")

    asked, out = base(table, seed=1).replace(features="none"), tmp_path / "run"
    with monkeypatch.context() as patch:
        patch.setattr("adadp.app.selection.publishing.write_report", broken)
        with pytest.raises(KeyError):
            tune(asked, [{"lr": 0.5}], out=out, law=LAW, validation_data=f"table:{table / 'validation.csv'}")
    assert RunFolder.open(out).finished
    assert not (out / "secret").exists()
    with pytest.raises(InputError, match="has finished"):
        resume(out)
    assert (out / "report.html").exists(), "made up for"


@pytest.mark.slow
def test_few_records_get_a_batch_that_fits_them(table):
    asked = base(table).replace(batch_size=None)
    search = planned(asked, [{"lr": 0.5}], validation_data=f"table:{table / 'validation.csv'}", records=400)
    assert search.candidates[0].batch_size == 40
    (given,) = planned(
        asked, [{"lr": 0.5, "batch_size": 300}], validation_data=f"table:{table / 'validation.csv'}", records=400
    ).candidates
    assert given.batch_size == 300


def test_records_that_choose_a_setting_do_not_test_it(table):
    asked = base(table)
    with pytest.raises(InputError, match="same file was given as validation_data and as test_data"):
        planned(asked, [{"lr": 0.5}], validation_data=asked.test_data, records=400)
