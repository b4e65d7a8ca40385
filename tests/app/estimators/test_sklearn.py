"""PrivateClassifier and PrivateRegressor: what is declared, what is refused, what is charged and what is kept."""

from __future__ import annotations

import json
import pickle
import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer

from adadp import load_model
from adadp.app.owndata.frames import FrameTable
from adadp.app.owndata.schema import parse_schema
from adadp.app.owndata.tabular import TableEncoder
from adadp.app.runs import RunFolder
from adadp.app.train import verify_run
from adadp.errors import InputError
from adadp.sklearn import PrivateClassifier, PrivateRegressor

pytestmark = pytest.mark.slow

PAGE = Path(__file__).resolve().parents[3] / "docs" / "sklearn.md"
COLUMNS = {"age": (0, 100), "job": ["clerk", "cook", "nurse"], "wealth": (-50_000, 50_000)}
SMALL = {"epsilon": 4, "delta": 1e-5, "epochs": 2, "batch_size": 100}


def people(rows: int = 400, seed: int = 0) -> tuple[pd.DataFrame, pd.Series]:
    rng = np.random.default_rng(seed)
    frame = pd.DataFrame(
        {
            "age": rng.integers(18, 90, rows),
            "job": rng.choice(["clerk", "cook", "nurse"], rows),
            "wealth": rng.normal(0, 1e4, rows).round(2),
        }
    )
    return frame, pd.Series(np.where(frame.age + 20 * (frame.job == "cook") > 60, "late", "early"), name="arrival")


def classifier(**settings: object) -> PrivateClassifier:
    return PrivateClassifier(**{**SMALL, "columns": COLUMNS, "classes": ["late", "early"], **settings})


def visits() -> tuple[pd.DataFrame, pd.Series]:
    """Two rows of each person."""
    frame, arrival = people()
    return frame.assign(who=np.arange(400) % 200), arrival


class TestUnits:
    def test_all_rows_of_a_person_are_one_record(self, tmp_path):
        X, y = visits()
        model = classifier(unit="who", out=tmp_path / "run").fit(X, y)
        assert model.certificate_["record"] == "all rows of X with one who, together"
        assert model.certificate_["plan"]["records"] == 200
        assert [check.name for check in verify_run(tmp_path / "run") if not check.passed] == []
        moved = model.predict_proba(X.assign(who=7))
        assert (moved == model.predict_proba(X)).all()  # an id is no feature

    def test_what_a_schema_says_of_units_and_budgets_is_not_ignored(self, tmp_path):
        X, y = visits()
        schema = tmp_path / "people.toml"
        columns = '[columns]\nage = {kind = "number", low = 0, high = 100}\n'
        schema.write_text(f'[unit]\ncolumn = "who"\n{columns}')
        found = classifier(columns=schema).fit(X[["age", "who"]], y)
        assert found.certificate_["plan"]["records"] == 200
        with pytest.raises(InputError, match="X has no column 'who', the unit"):
            classifier(columns=schema).fit(X[["age"]], y)
        with pytest.raises(InputError, match="the schema says 'who'"):
            classifier(columns=schema, unit="age").fit(X[["age", "who"]], y)
        schema.write_text(f'budget = "people.budget"\n{columns}')
        with pytest.raises(InputError, match=r"There is no budget at .*people\.budget"):
            classifier(columns=schema).fit(X[["age"]], y)


def encoder(**columns: dict[str, object]) -> TableEncoder:
    return TableEncoder(parse_schema({"columns": columns}).columns, "y", ("a", "b"))


class TestRowsInMemory:
    def test_a_frame_is_what_a_file_of_it_is(self, tmp_path):
        frame = people()[0].assign(left=[True, False] * 200, size=pd.array([1, None] * 200, dtype="Int64"))
        frame.loc[::7, "wealth"] = np.nan
        frame.loc[::5, "job"] = None
        found = encoder(
            age={"kind": "number", "low": 0, "high": 100},
            job={"kind": "category", "values": ["cook", "nurse"]},
            wealth={"kind": "number", "low": -1e4, "high": 1e4, "missing": True},
            left={"kind": "category", "values": ["true", "false"]},
            size={"kind": "category", "values": [1, 2]},
        )
        frame.to_csv(tmp_path / "rows.csv", index=False)
        frame.to_parquet(tmp_path / "rows.parquet", index=False)
        records = found.read(FrameTable(frame, "X"))
        assert torch.equal(records, found.read(tmp_path / "rows.parquet"))
        texts = pd.read_csv(tmp_path / "rows.csv", dtype=str, keep_default_na=False)
        texts["left"] = texts["left"].str.lower()  # pandas writes True
        texts.to_csv(tmp_path / "rows.csv", index=False)
        assert torch.equal(records, found.read(tmp_path / "rows.csv"))

    def test_an_array_of_numbers_or_objects_is_what_a_frame_of_it_is(self):
        frame = people()[0]
        names = dict(zip(("x0", "x1", "x2"), COLUMNS.values(), strict=True))
        numbers = {"kind": "number", "low": 0, "high": 100}
        found = encoder(x0=numbers, x1={"kind": "category", "values": list(names["x1"])}, x2=numbers)
        records = found.read(FrameTable(frame.to_numpy(dtype=object), "X"))
        assert torch.equal(records, found.read(FrameTable(frame.set_axis(["x0", "x1", "x2"], axis=1), "X")))

    def test_a_bad_cell_is_placed_and_columns_are_those_of_the_frame(self):
        found = encoder(age={"kind": "number", "low": 0, "high": 100})
        with pytest.raises(InputError, match=r"row 1030, counting from 0, column 'age'"):
            found.read(FrameTable(pd.DataFrame({"age": [1.0] * 1030 + [np.nan]}), "X"))
        with pytest.raises(InputError, match="no column 'age'"):
            found.read(FrameTable(pd.DataFrame({"Age": [1.0]}), "X"))


class TestNothingIsReadOffTheRows:
    @pytest.mark.parametrize(
        ("settings", "said"),
        [
            ({"columns": None}, "columns is not given.*known from private rows alone"),
            ({"classes": None}, "classes is not given.*known from private rows alone"),
            ({"classes": "auto"}, "classes is 'auto'"),
            ({"classes": ["late", "late"]}, "twice"),
            ({"classes": ["late"]}, "1 class only"),
            ({"classes": ["early", "no"]}, "a label that is none of the classes"),
            ({"columns": {**COLUMNS, "age": [0, 100]}}, "could mean two things"),
            ({"columns": {**COLUMNS, "age": "public"}}, "is declared as 'public'"),
            ({"columns": [(0, 1), (0, 1)]}, "declares 2 columns, and X has 3"),
            ({"columns": {"age": (0, 100)}}, "which the schema does not declare"),
            ({"columns": {**COLUMNS, "age": (100, 0)}}, "low must be less than high"),
            ({"epsilon": None}, "epsilon"),
            ({"delta": None}, "delta"),
            ({"delta": 0.1}, "delta"),
        ],
    )
    def test_what_is_missing_is_said_before_there_is_a_folder(self, tmp_path, settings, said):
        with pytest.raises(InputError, match=said):
            classifier(out=tmp_path / "run", **settings).fit(*people())
        assert not (tmp_path / "run").exists()

    def test_the_range_of_the_target_is_declared(self):
        frame, _ = people()
        with pytest.raises(InputError, match="target_range is not given"):
            PrivateRegressor(**SMALL, columns=COLUMNS).fit(frame, frame.age)

    def test_ranges_and_values_are_those_declared_whatever_the_rows_hold(self):
        frame, y = people()
        odd = frame.assign(wealth=1e30, age=-5, job=pd.Categorical(["spy"] * len(frame), ["spy", "cook", "king"]))
        plain, other = classifier().fit(frame, y), classifier().fit(odd, y)
        assert plain.encoder_ == other.encoder_
        age = dict(plain.encoder_.columns)["age"].as_dict()
        assert (age["low"], age["high"]) == (0, 100)

    @pytest.mark.parametrize(
        ("X", "y", "said"),
        [
            (np.arange(31337.0), [0, 1], "Reshape your data"),
            (np.array([[31337 + 1j]] * 4), [0, 1, 0, 1], "Complex data not supported"),
            ([["secret31337"], ["b"]], [0, 1], "x0"),
            ([[1.0], [2.0, 3.0]], [0, 1], "unequal length"),
            ([[1.0], [2.0], [3.0]], [0, 1], "X and y have unequal lengths"),
            ([[1.0], [2.0]], [[0, 1], [1, 0]], "1d array"),
            ([[1.0], [2.0]], [0, 31337], "none of the classes"),
            ([[1.0], [np.nan]], [0, 1], "NaN"),
        ],
    )
    def test_errors_show_no_value(self, X, y, said):
        with pytest.raises(ValueError, match=said) as error:
            PrivateClassifier(**SMALL, columns=(0, 1), classes=2).fit(X, y)
        if said != "x0":  # what a bad cell says is a matter of tables
            assert "31337" not in str(error.value)

    def test_boolean_labels_have_two_classes(self):
        frame, y = people()
        found = classifier(classes=None).fit(frame, y == "late")
        assert found.classes_.tolist() == [False, True]
        assert "The classes are declared: false, true." in found.certificate_["notes"]

    def test_classes_are_called_what_a_file_calls_them(self):
        frame, y = people()
        found = classifier(classes=np.int64(2), epochs=np.int64(2), epsilon=np.float64(4)).fit(
            frame, 1.0 * (y == "late")
        )
        assert (found.classes_.tolist(), found.encoder_.class_names) == ([0, 1], ("0", "1"))

    def test_classes_that_are_disclosed_are_on_the_certificate(self):
        found = classifier(classes="disclosed").fit(*people())
        assert found.classes_.tolist() == ["early", "late"]
        assert "The classes are early, late. Taken from y, not declared." in found.certificate_["notes"]
        assert not any("Taken from y" in note for note in classifier().fit(*people()).certificate_["notes"])


@pytest.fixture(scope="module")
def fitted(tmp_path_factory) -> PrivateClassifier:
    out = tmp_path_factory.mktemp("runs") / "run"
    columns = {**COLUMNS, "wealth": "private"}
    return classifier(out=out, columns=columns, epochs=10).fit(*people(2000))


class TestTheRun:
    def test_it_is_certified_within_its_budget_and_verifies(self, fitted):
        assert 3.9 < fitted.epsilon_ <= 4
        assert fitted.certificate_["private"] is True
        assert fitted.certificate_["record"] == "one row of X"
        assert any("computed from them before" in note for note in fitted.certificate_["notes"])
        assert [check.name for check in verify_run(RunFolder.open(fitted.out)) if not check.passed] == []

    def test_private_bounds_are_charged(self, fitted):
        assert len(fitted.certificate_["charged"]) == 2
        assert fitted.certificate_["features"]["released"][0].startswith("bounds:")
        assert len(classifier().fit(*people()).certificate_["charged"]) == 1

    def test_it_learns_and_its_probabilities_are_those_of_its_folder(self, fitted, tmp_path):
        frame, y = people(1000, seed=1)
        assert fitted.score(frame, y) > 0.85
        assert fitted.classes_.tolist() == ["early", "late"]
        probabilities = fitted.predict_proba(frame)
        assert np.array_equal(fitted.predict(frame), fitted.classes_[probabilities.argmax(1)])
        assert np.array_equal(fitted.decision_function(frame) > 0, probabilities[:, 1] > 0.5)
        frame.to_csv(tmp_path / "new.csv", index=False)
        loaded = load_model(fitted.out)
        assert loaded.class_names == ("early", "late")
        assert np.allclose(loaded.probabilities(loaded.read(tmp_path / "new.csv")), probabilities, atol=1e-5)

    def test_its_columns_are_those_it_was_trained_on(self, fitted):
        frame, _ = people()
        assert fitted.feature_names_in_.tolist() == list(COLUMNS)
        assert fitted.n_features_in_ == 3
        with pytest.raises(ValueError, match="feature names"):
            fitted.predict(frame[["job", "age", "wealth"]])

    def test_a_second_fit_does_not_take_its_folder(self, fitted):
        with pytest.raises(InputError, match="not a new or empty folder"):
            clone(fitted).fit(*people())

    def test_what_is_pickled_holds_no_rows(self):
        frame, y = people(391)
        values = frame[["age", "wealth"]].to_numpy()
        found = PrivateClassifier(**SMALL, columns=(0, 100), classes=["late", "early"], records=1000).fit(values, y)
        content = pickle.dumps(found)
        assert values[:4].tobytes() not in content
        assert torch.from_numpy(values[:4, 0]).float().numpy().tobytes() not in content
        assert np.array_equal(pickle.loads(content).predict_proba(values), found.predict_proba(values))
        assert "391" not in json.dumps(found.certificate_["plan"]) + json.dumps(found.certificate_["disclosed"])

    def test_a_seed_makes_a_rehearsal_that_can_be_repeated(self):
        frame, y = people()
        one, other = (classifier(random_state=3).fit(frame, y) for _ in range(2))
        assert one.epsilon_ is None
        assert (one.certificate_["private"], one.certificate_["rehearsal"]) == (False, True)
        assert one.result_.epsilon_if_unseeded <= 4
        assert np.array_equal(one.predict_proba(frame), other.predict_proba(frame))
        drawn = classifier(random_state=np.random.RandomState(3)).fit(frame, y)
        assert drawn.epsilon_ is None
        free = [classifier().fit(frame, y).predict_proba(frame) for _ in range(2)]
        assert not np.array_equal(*free)

    def test_other_networks_by_name(self):
        found = classifier(model="mlp:4", lr=0.01, random_state=0).fit(*people())
        assert sum(value.dim() == 2 for value in found.result_.network.parameters()) == 2


class TestWithScikitLearn:
    def test_a_pipeline_of_fixed_steps(self):
        frame, y = people()
        whole = make_pipeline(FunctionTransformer(lambda rows: rows.assign(age=rows.age / 2)), classifier())
        assert set(whole.fit(frame, y).predict(frame)) <= {"early", "late"}

    def test_a_grid_search_stops_where_there_is_a_folder(self, tmp_path):
        search = GridSearchCV(classifier(out=tmp_path / "run"), {"lr": [0.1, 0.2]}, cv=2, error_score="raise")
        with pytest.raises(InputError, match="not a new or empty folder"):
            search.fit(*people())


class TestNumbers:
    def test_a_regression_is_within_its_range_and_verifies(self, tmp_path):
        frame, _ = people(2000)
        found = PrivateRegressor(
            **{**SMALL, "epochs": 20}, columns=COLUMNS, target_range=(30, 60), out=tmp_path / "run"
        ).fit(frame, frame.age)
        predicted = found.predict(frame)
        assert (predicted.min() >= 30) & (predicted.max() <= 60)
        assert np.corrcoef(predicted, frame.age.clip(30, 60))[0, 1] > 0.9
        assert 3.9 < found.epsilon_ <= 4
        assert any("[30, 60]" in note for note in found.certificate_["notes"])
        assert [check.name for check in verify_run(RunFolder.open(tmp_path / "run")) if not check.passed] == []
        frame.to_csv(tmp_path / "new.csv", index=False)
        trained = load_model(tmp_path / "run")
        again = trained.numbers(trained.read(tmp_path / "new.csv"))[:, 0]
        assert again.tolist() == pytest.approx(predicted.tolist(), rel=1e-5)

    def test_targets_outside_weigh_no_more_than_the_end_of_the_range(self):
        frame, _ = people()
        y = frame.age.to_numpy(float)
        far = np.where(y > 60, 1e12, y)
        one, other = (
            PrivateRegressor(**SMALL, columns=COLUMNS, target_range=(0, 60), random_state=0).fit(frame, each)
            for each in (y, far)
        )
        assert np.array_equal(one.predict(frame), other.predict(frame))

    @pytest.mark.parametrize("y", [["31337"] * 3 + ["a"], [np.nan] * 4, [np.inf] * 4])
    def test_what_is_no_number_is_refused(self, y):
        with pytest.raises(ValueError, match=r"numbers|NaN|infinity") as error:
            PrivateRegressor(**SMALL, columns=(0, 1), target_range=(0, 1)).fit([[1], [2], [3], [4]], y)
        assert "31337" not in str(error.value)


def test_the_examples_of_the_page_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code = "\n".join(re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL))
    exec(compile(code, "docs/sklearn.md", "exec"), {"__name__": "example"})
    assert [check.name for check in verify_run(tmp_path / "runs" / "visits") if not check.passed] == []
