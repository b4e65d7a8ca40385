"""The unit as the record: what is sampled and clipped, what is refused, and whole runs by column, array and file."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import adadp
from adadp import Plan, PrivateGradients
from adadp.app import start
from adadp.app.accounting.repetitions import PoissonRepetitions
from adadp.app.audit import neighbour_replay
from adadp.app.config import TrainConfig
from adadp.app.features.pca import Pca
from adadp.app.owndata import check_table
from adadp.app.predict import load_model
from adadp.app.resolve import resolve
from adadp.app.selection import tune
from adadp.app.units import NOT_COMPARED, ByUnit, Units, codes_of, loss_by_unit, records_by_unit
from adadp.app.verify import verify_run
from adadp.errors import InputError
from adadp.gradients import GradientEngine
from adadp.records import Records

pandas = pytest.importorskip("pandas")

GENERATOR = torch.Generator().manual_seed(8)
ROWS = torch.tensor([1, 1, 2, 3, 5, 7, 1, 4, 30, 2] * 4)
"""How many rows each of 40 units has."""
IDS = torch.repeat_interleave(torch.arange(40), ROWS)[torch.randperm(int(ROWS.sum()), generator=GENERATOR)]
X = torch.randn(len(IDS), 3, generator=GENERATOR)
Y = (X[:, 0] + 0.3 * torch.randn(len(IDS), generator=GENERATOR) > 0).long()
SETTINGS = {"noise_multiplier": 1.0, "delta": 1e-3, "steps": 3, "batch_size": 20, "lr": 0.5, "seed": 0}


def linear() -> nn.Module:
    torch.manual_seed(0)
    return nn.Linear(3, 2)


def per_row(model, *batch):
    return F.cross_entropy(model(batch[0]), batch[1], reduction="none")


def trained(data=(X, Y), units=IDS, **settings):
    result = adadp.fit(linear(), data, units=units, **{**SETTINGS, **settings})
    return torch.cat([value.flatten() for value in result.network.parameters()]), result


def by_unit(most=16):
    return ByUnit(Records((X, Y)), Units(IDS, most))


def test_a_unit_is_a_mask_and_its_own_rows_in_the_least_length_that_holds_them():
    units = by_unit()
    assert units.groups == 3  # 1, 4, 16
    expected = [int(np.searchsorted([1, 4, 16], min(int(count), 16))) for count in ROWS]
    assert units.groups_of(range(40)) == expected
    for unit in range(40):
        group = expected[unit]
        mask, x, y = units.gathered(torch.tensor([unit]), group)
        own = X[unit == IDS]
        assert mask.shape == (1, [1, 4, 16][group])
        assert int(mask.sum()) == min(len(own), 16)
        assert all((row == own).all(1).any() for row in x[0])  # those that fill up are of the same unit too
        assert len(torch.unique(x[0][mask[0]], dim=0)) == int(mask.sum())
        assert y.shape == mask.shape


def test_rows_of_a_large_unit_are_evenly_spread_and_always_the_same():
    units = ByUnit(Records((torch.arange(102.0).unsqueeze(1),)), Units(torch.tensor([0, 1] + [0] * 99 + [1]), 4))
    _, rows = units.gathered(torch.tensor([0]), 1)
    assert rows.flatten().tolist() == [0, 26, 51, 76]


def test_the_gradient_of_a_unit_is_that_of_the_mean_over_its_rows():
    """Every unit alone and in a batch, against plain autograd of the mean loss over the rows that are used."""
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
    records = records_by_unit(Records((X, Y)), Units(IDS, 16), "cpu")
    loss = loss_by_unit(per_row, Units(IDS, 16))
    names = [name for name, _ in model.named_parameters()]
    for group in range(3):
        engine = GradientEngine(model, loss, records.example(group))
        assert engine.notes == ()
        indices = torch.arange(40)[records.groups_of(torch.arange(40)) == group]
        capture = engine.capture(records.batch(indices, group))
        norms = capture.square_norms([names]).sqrt().squeeze(1)
        for place, unit in enumerate(indices):
            own = unit == IDS
            chosen = torch.arange(min(int(own.sum()), 16)) * int(own.sum()) // min(int(own.sum()), 16)
            mean = per_row(model, X[own][chosen], Y[own][chosen]).mean()
            alone = torch.cat([each.flatten() for each in torch.autograd.grad(mean, list(model.parameters()))])
            assert norms[place] == pytest.approx(float(alone.norm()), rel=1e-4)


@pytest.mark.filterwarnings("ignore:.*no closed form")
@pytest.mark.slow
def test_layers_without_a_closed_form_for_several_rows_are_right_too():
    """A convolution: unit by unit, as a note says."""
    model = nn.Sequential(nn.Unflatten(1, (1, 3)), nn.Conv1d(1, 2, 2), nn.Tanh(), nn.Flatten(), nn.Linear(4, 2))
    units = Units(IDS, 4)
    records, loss = records_by_unit(Records((X, Y)), units, "cpu"), loss_by_unit(per_row, units)
    engine = GradientEngine(model, loss, records.example(1))
    assert "no closed form" in engine.notes[0]
    batch = records.batch(torch.arange(20), 1)
    names = [name for name, _ in model.named_parameters()]
    norms = engine.capture(batch).square_norms([names]).sqrt().squeeze(1)
    losses = loss(model, *batch)
    for unit in range(20):
        alone = torch.autograd.grad(losses[unit], list(model.parameters()), retain_graph=True)
        assert norms[unit] == pytest.approx(float(torch.cat([each.flatten() for each in alone]).norm()), rel=1e-4)


class Mixing(nn.Module):
    """Looks at the row before, which may be another unit's."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(3, 2)

    def forward(self, x):
        return self.inner(x + x.roll(1, 0))


def test_a_model_that_mixes_rows_of_units_is_refused():
    with pytest.raises(InputError, match="changes with the other records"):
        adadp.fit(Mixing(), (X, Y), units=IDS, **SETTINGS)


def runner(x, y, ids, tmp_path, name, loss=per_row, clip=1.0, **more):
    """A training loop on units; the coins of units are those of a plan for 40 of them."""
    plan = Plan.of_noise(noise=1.0, steps=6, records=40, batch_size=30, clip_norm=clip)

    def run(steps, mechanism):
        model = linear()
        path = tmp_path / f"{name}.jsonl"
        with PrivateGradients(
            model, (x, y), loss, plan, path, units=ids, seed=3, mechanism=mechanism, **more
        ) as private:
            optimizer = torch.optim.SGD(model.parameters(), 0.5)
            for _ in range(steps):
                private.release()
                optimizer.step()

    return run


EXTREME = {"large": 50.0, "nan": float("nan"), "ordinary": 1.0}


@pytest.mark.parametrize("value", EXTREME)
def test_removing_a_unit_moves_no_release_by_more_than_its_bound(tmp_path, value):
    """The last unit has 30 rows, all of them alike and far out: together they still count as one record."""
    codes = codes_of(IDS, "units")[0]
    last = codes.max()
    x = torch.cat([X, torch.full((30, 3), EXTREME[value])])
    y, ids = torch.cat([Y, torch.zeros(30, dtype=torch.long)]), torch.cat([codes, torch.full((30,), last + 1)])
    kept = ids <= last
    first, second = runner(x, y, ids, tmp_path, "all"), runner(x[kept], y[kept], ids[kept], tmp_path, "less")
    shares = [each.share for each in neighbour_replay(first, second, 6)]
    assert max(shares) <= 1
    assert max(shares) > (0.9 if value == "large" else 0.0)  # the unit does take part


def test_a_broken_twin_that_clips_every_row_is_found(tmp_path):
    """Rows as records: a person with 30 rows moves a sum by 30 times the bound."""
    codes = codes_of(IDS, "units")[0]
    x = torch.cat([X, torch.full((30, 3), 50.0)])
    y = torch.cat([Y, torch.zeros(30, dtype=torch.long)])
    rows = torch.arange(len(x))
    first = runner(x, y, rows, tmp_path, "all")
    second = runner(X, Y, rows[: len(codes)], tmp_path, "less")
    assert max(each.share for each in neighbour_replay(first, second, 6)) > 10


def test_units_by_array_column_and_other_names_give_the_same_run():
    expected, result = trained()
    assert result.plan.records == 40
    frame = pandas.DataFrame(X.numpy(), columns=["a", "b", "c"]).assign(who=IDS.numpy())
    named = frame.assign(who=[f"p{each}" for each in IDS.tolist()])
    ways = [
        trained(units=IDS.numpy()),
        trained(units=[str(each) for each in IDS.tolist()]),
        trained((frame, Y), units="who"),
        trained((named, Y), units="who"),
        trained((X, Y), units=pandas.Series(IDS.numpy()) + 100),
    ]
    assert all(torch.equal(expected, found) for found, _ in ways)
    assert not torch.equal(expected, trained(rows_per_unit=1)[0])
    assert ways[2][1].certificate["record"] == "all rows of the training data with one who, together"
    assert result.certificate["record"] == "all rows of the training data with one id of `units`, together"


@pytest.mark.parametrize("kind", ["dict", "arrow", "hugging face"])
def test_a_column_of_ids_is_taken_out_of_any_table(kind):
    columns = {"x": X.tolist(), "label": Y.tolist(), "who": [f"p{each}" for each in IDS.tolist()]}
    if kind == "dict":
        data = {"x": X, "label": Y, "who": columns["who"]}
    elif kind == "arrow":
        data = pytest.importorskip("pyarrow").table(columns)
    else:
        data = pytest.importorskip("datasets").Dataset.from_dict(columns)

    def loss(model, batch):
        return F.cross_entropy(model(batch["x"]), batch["label"], reduction="none")

    expected, _ = trained()
    assert torch.allclose(expected, trained(data, "who", loss=loss)[0], atol=1e-5)


def test_rows_on_disk_have_units_too(tmp_path):
    np.save(tmp_path / "x.npy", X.numpy())
    np.save(tmp_path / "y.npy", Y.numpy())
    expected, _ = trained()
    assert torch.equal(expected, trained((tmp_path / "x.npy", tmp_path / "y.npy"))[0])


def test_a_unit_for_every_row_is_the_run_on_rows():
    plain = adadp.fit(linear(), (X, Y), **{**SETTINGS, "noise_multiplier": 0, "allow_nonprivate": True})
    one_each, _ = trained(units=torch.arange(len(X)), rows_per_unit=1, noise_multiplier=0, allow_nonprivate=True)
    expected = torch.cat([value.flatten() for value in plain.network.parameters()])
    assert torch.allclose(expected, one_each, atol=1e-6)


@pytest.mark.parametrize(
    ("units", "message"),
    [
        ("nobody", "The data has no column 'nobody', which units names"),
        (torch.zeros(len(X)), "All rows belong to one unit"),
        (np.where(np.arange(len(X)) == 5, np.nan, IDS.numpy().astype(float)), "The argument units has missing ids"),
        ([None if each == 3 else str(each) for each in IDS.tolist()], "The argument units has missing ids"),
        ([" " if each == 3 else str(each) for each in IDS.tolist()], "The argument units has missing ids"),
        (pandas.Series(IDS.numpy(), dtype="Int64").where(IDS.numpy() != 3), "The argument units has missing ids"),
        (IDS[:-1], "units and the data have different lengths"),
        (IDS.unsqueeze(1), "The argument units has 2 dimensions"),
        ([[each] for each in range(3)] + [0] * (len(X) - 3), "The argument units holds values that are no ids"),
    ],
)
def test_bad_units_are_refused_in_words_without_values(units, message, tmp_path):
    if isinstance(units, list) and isinstance(units[0], list):
        units = np.array([*units, None], dtype=object)[:-1]
    with pytest.raises(InputError) as caught:
        trained(units=units, out=tmp_path / "run")
    assert str(caught.value).startswith(message)
    assert str(len(X)) not in str(caught.value)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"rows_per_unit": 0}, "rows_per_unit must be"),
        ({"rows_per_unit": 5000}, "at most 4096 rows of a unit"),
        ({"rows_per_unit": 2.5}, "rows_per_unit must be"),
        ({"units": None, "rows_per_unit": 3}, "nothing says which rows belong together"),
        ({"units": None, "test_units": IDS}, "test_units is given, and no unit is protected"),
        ({"test_units": IDS}, "test_units is given, and there is no test data"),
        (
            {
                "validation": 10,
                "noise_schedule": "validation:s0=5,k=0.7,look=20",
                "epsilon": 1,
                "noise_multiplier": None,
            },
            "validation keeps rows aside",
        ),
    ],
)
def test_bad_settings_are_refused(settings, message):
    units = settings.pop("units", IDS)
    with pytest.raises(InputError, match=message):
        trained(units=units, **settings)


def test_units_in_training_and_test_data_are_refused():
    frame = pandas.DataFrame(X.numpy(), columns=["a", "b", "c"]).assign(who=IDS.numpy())
    kept = IDS < 35
    training, others = (frame[kept.numpy()], Y[kept]), (frame[~kept.numpy()], Y[~kept])
    result = trained(training, "who", test=others)[1]
    assert result.test_accuracy is not None
    assert NOT_COMPARED not in result.certificate["notes"]
    shared = (frame[(IDS > 33).numpy()], Y[IDS > 33])
    with pytest.raises(InputError, match="Units of the test data are in the training data too") as caught:
        trained(training, "who", test=shared)
    assert "34" not in str(caught.value)
    with pytest.raises(InputError, match="Units of the test data"):
        trained((X[kept], Y[kept]), IDS[kept], test=(X[IDS > 33], Y[IDS > 33]), test_units=IDS[IDS > 33])
    result = trained((X[kept], Y[kept]), IDS[kept], test=(X[~kept], Y[~kept]))[1]
    assert NOT_COMPARED in result.certificate["notes"]


def test_an_id_is_its_text_in_every_file_and_type():
    """Else a person who is trained on is not found in the test data, or is two units."""
    large = 10**17
    for ids in (
        [7, large],
        ["7", " 100000000000000000 "],
        [7.0, 1e17],
        ["7.0", f"{large}.00"],
        [b"7", np.float64(1e17)],
    ):
        assert codes_of(np.array(ids, dtype=object), "who")[1] == {"7": 0, str(large): 1}
    assert codes_of(np.array([large, 7]), "who")[1] == {str(large): 0, "7": 1}
    assert codes_of(np.array([7, "7", 7.0, "7.5", "007", "1.0.0", "a.0", ".0"], dtype=object), "who")[0].tolist() == [
        *(0, 0, 0),
        *(1, 2, 3, 4, 5),
    ]


def test_a_record_of_several_lengths_has_no_units():
    padded = adadp.Padded([(torch.ones(3), torch.tensor([1]))] * 4, lengths=(4, 8))
    with pytest.raises(InputError, match="together with records of several lengths"):
        ByUnit(Records(padded), Units(torch.tensor([0, 0, 1, 1])))


def test_inputs_are_brought_into_their_range_and_labels_are_not():
    """The mask comes first, so that the last part is still the label."""
    records = records_by_unit(Records((X * 100, Y.float() * 9)), Units(IDS), "cpu")
    _, x, y = records.batch(torch.arange(40), 2)
    assert x.abs().max() > 50
    assert y.max() == 9


def test_a_released_feature_sees_one_row_of_each_unit(monkeypatch):
    """So what one unit can move it by is what one record can."""
    seen = []
    before = Pca.query
    monkeypatch.setattr(Pca, "query", lambda self, records: seen.append(records) or before(self, records))
    trained(features="pca:dim=3,noise_multiplier=5")
    (records,) = seen
    assert len(records) == 40
    owners = [IDS[(row == X).all(1)].item() for row in records]
    assert sorted(owners) == list(range(40))


def test_one_row_more_of_a_unit_moves_a_released_feature_within_its_bound():
    units = Units(torch.tensor([0, 0, 1, 1, 1]))
    assert units.one_row_each().tolist() == [False, True, False, True, False]


TABLE = """
[target]
column = "ill"
classes = ["no", "yes"]
[columns.a]
kind = "number"
low = -3
high = 3
[columns.b]
kind = "number"
low = -3
high = 3
"""


@pytest.fixture
def files(tmp_path):
    """A table of visits with its schema, and a test table of other patients."""
    (tmp_path / "schema.toml").write_text(TABLE)

    def write(name, rows, ids=IDS):
        lines = [f"{ids[row]},{X[row, 0]:.3f},{X[row, 1]:.3f},{['no', 'yes'][int(Y[row])]}" for row in rows]
        (tmp_path / name).write_text("patient,a,b,ill\n" + "\n".join(lines) + "\n")

    write("visits.csv", [row for row in range(len(X)) if IDS[row] < 35])
    write("test.csv", [row for row in range(len(X)) if IDS[row] >= 35])
    write("shared.csv", [row for row in range(len(X)) if IDS[row] >= 34])
    write("lacking.csv", range(len(X)), ["" if each == 4 else str(int(each)) for each in IDS])
    return tmp_path


def config_for(files, **settings):
    given = {"data": f"table:{files / 'visits.csv'}", "schema": str(files / "schema.toml"), "unit": "patient"}
    given |= {"epsilon": 2.0, "delta": 1e-3, "batch_size": 15, "epochs": 3, "model": "linear", **settings}
    return TrainConfig(**{name: value for name, value in given.items() if value is not None})


@pytest.mark.parametrize("named", ["flag", "schema"])
def test_a_table_of_visits_is_certified_for_its_patients(files, named):
    if named == "schema":
        (files / "schema.toml").write_text(TABLE + '[unit]\ncolumn = "patient"\n')
    config = config_for(files, test_data=f"table:{files / 'test.csv'}", unit="patient" if named == "flag" else None)
    result = start.start(config, files / "run")
    assert [each for each in verify_run(files / "run") if not each.passed] == []
    certificate = result.certificate
    assert certificate["plan"]["records"] == 35
    assert certificate["record"] == "all rows of visits.csv with one patient, together"
    assert "The exact number of units (ids) in the training data, 35" in certificate["disclosed"][1]
    assert any(each.startswith("A person with several ids") for each in certificate["not_covered"])
    stored = TrainConfig.from_toml(files / "run" / "config.toml")
    assert (stored.unit, stored.rows_per_unit) == ("patient", 16)
    page = (files / "run" / "report.html").read_text()
    assert "all rows of visits.csv with one patient, together" in page
    trained_model = load_model(files / "run")
    assert len(trained_model.predict(trained_model.read(files / "test.csv"))) == int((IDS >= 35).sum())


def test_a_certificate_that_claims_units_for_a_run_on_rows_does_not_verify(files):
    (files / "schema.toml").write_text(TABLE + '[columns.patient]\nkind = "ignore"\n')
    start.start(config_for(files, unit=None), files / "run")
    path = files / "run" / "certificate.json"
    certificate = json.loads(path.read_text())
    lines = certificate["not_covered"]
    lines[1] = "A person with several ids."
    path.write_text(json.dumps(certificate))
    assert not all(each.passed for each in verify_run(files / "run"))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"unit": "person"}, "has a column 'patient', which the schema does not declare"),
        ({"unit": "a"}, "'a' is the unit and one of the features"),
        ({"unit": "ill"}, "'ill' is the unit and a target"),
        ({"data": "lacking.csv"}, "The column 'patient' has missing ids"),
        ({"test_data": "shared.csv"}, "Units of the test data are in the training data too"),
        ({"unit": None, "rows_per_unit": 4}, "neither unit nor the schema says"),
        ({"rows_per_unit": 0}, "rows_per_unit"),
    ],
)
def test_bad_units_of_a_table_are_refused_before_a_folder_is_made(files, settings, message):
    for name in ("data", "test_data"):
        if name in settings:
            settings[name] = f"table:{files / settings[name]}"
    with pytest.raises(InputError, match=message) as caught:
        start.start(config_for(files, **settings), files / "run")
    assert "34" not in str(caught.value).replace(str(files), "")
    assert not (files / "run").exists()


def test_what_is_wrong_with_the_units_of_a_table_is_checked_too(files):
    schema = files / "schema.toml"
    schema.write_text(TABLE.replace("high = 3", "high = -4", 1) + '[unit]\ncolumn = "patient"\n')
    with pytest.raises(InputError, match="low must be less than high"):
        check_table(files / "lacking.csv", schema)
    schema.write_text(TABLE + '[unit]\ncolumn = "patient"\n')
    check_table(files / "visits.csv", schema)
    with pytest.raises(InputError, match="The column 'patient' has missing ids"):
        check_table(files / "lacking.csv", schema)
    check_table(files / "lacking.csv", schema, labelled=False)  # to predict from
    schema.write_text(TABLE + '[unit]\ncolumn = "person"\n')
    with pytest.raises(InputError, match=r"(?s)does not declare.*has no column 'person', which unit names"):
        check_table(files / "visits.csv", schema)


def test_a_unit_that_no_column_holds_is_named(files):
    (files / "schema.toml").write_text(TABLE + '[columns.patient]\nkind = "ignore"\n')
    with pytest.raises(InputError, match=r"visits\.csv has no column 'person', which unit names"):
        start.start(config_for(files, unit="person"), files / "run")
    assert start.start(config_for(files), files / "run").certificate["private"]  # ignored, and the unit: no feature


def test_two_names_of_the_unit_are_refused(files):
    (files / "schema.toml").write_text(TABLE + '[unit]\ncolumn = "a"\n')
    with pytest.raises(InputError, match="unit is 'patient', and the schema says 'a'"):
        start.start(config_for(files), files / "run")


def test_a_data_set_of_the_catalogue_has_no_units():
    with pytest.raises(InputError, match="unit was given, and cancer is a data set of the catalogue"):
        resolve(TrainConfig(data="cancer", epsilon=1.0, delta=1e-4, unit="patient"))


def test_arrays_have_units_too(files):
    arrays = {"x": X.numpy(), "y": Y.numpy(), "classes": 2, "who": IDS.numpy()}
    np.savez(files / "a.npz", **arrays)
    config = config_for(files, data=f"npz:{files / 'a.npz'}", schema=None, unit="who")
    result = start.start(config, files / "run")
    assert result.certificate["plan"]["records"] == 40
    np.savez(files / "b.npz", **arrays, x_test=X[:9].numpy() + 1, y_test=Y[:9].numpy(), who_test=IDS[:9].numpy())
    with pytest.raises(InputError, match="Units of the test data"):
        start.start(config.replace(data=f"npz:{files / 'b.npz'}"), files / "other")
    np.savez(files / "c.npz", **{**arrays, "who": IDS[:-1].numpy()})
    with pytest.raises(InputError, match="different lengths"):
        start.start(config.replace(data=f"npz:{files / 'c.npz'}"), files / "other")


@pytest.mark.slow
def test_a_search_scores_public_records_only(files):
    base = config_for(files, epochs=1, epsilon=3.0, batch_size=5)
    settings = [{"lr": 0.1}, {"lr": 1.0}]
    for options in ({"validation": 5}, {"by": "parts"}):
        with pytest.raises(InputError, match="A search keeps rows aside"):
            tune(base, settings, out=files / "search", **options)
    public = f"table:{files / 'test.csv'}"
    found = tune(base, settings, out=files / "search", validation_data=public, law=PoissonRepetitions(2.0))
    assert [each for each in verify_run(found.out) if not each.passed] == []
    assert json.loads((found.out / "certificate.json").read_text())["plan"]["records"] == 35


@pytest.mark.slow
def test_public_looks_go_with_units(files):
    config = config_for(
        files,
        validation_data=f"table:{files / 'test.csv'}",
        noise_schedule="validation:s0=10,k=0.7,every=1",
        lr=0.5,
        optimizer="sgd",
    )
    start.start(config, files / "run")
    assert [each for each in verify_run(files / "run") if not each.passed] == []


def test_exact_arithmetic_takes_a_unit_as_one_record():
    fast, _ = trained(noise_multiplier=1e-6, batch_size=40, steps=2)
    exact, _ = trained(noise_multiplier=1e-6, batch_size=40, steps=2, arithmetic="exact")
    assert torch.allclose(fast, exact, atol=1e-3)


@pytest.mark.slow
def test_a_run_on_units_resumes_to_the_same_model(tmp_path):
    expected, _ = trained(out=tmp_path / "whole", steps=6, checkpoint_every=2)

    def stop(status):
        if status.step == 3:
            raise RuntimeError("stopped")

    with pytest.raises(RuntimeError, match="stopped"):
        trained(out=tmp_path / "run", steps=6, checkpoint_every=2, watch=stop)
    again, _ = trained(out=tmp_path / "run", steps=6, checkpoint_every=2, resume=True)
    assert torch.equal(expected, again)


@pytest.mark.slow
@pytest.mark.parametrize("changed", [{"units": IDS.flip(0)}, {"data": (X.flip(1), Y)}])
def test_a_run_on_units_does_not_go_on_with_others(tmp_path, changed):
    def stop(status):
        if status.step == 2:
            raise RuntimeError("stopped")

    with pytest.raises(RuntimeError, match="stopped"):
        trained(out=tmp_path / "run", seed=None, watch=stop)
    with pytest.raises(InputError, match="The records are not those the run was begun with"):
        trained(out=tmp_path / "run", seed=None, resume=True, **changed)
    trained(out=tmp_path / "run", seed=None, resume=True)


def test_a_loop_of_ones_own_is_certified_for_units(tmp_path):
    plan = Plan.of_noise(noise=1.0, steps=2, records=40, batch_size=20, clip_norm=1.0)
    frame = {"x": X, "label": Y, "who": IDS}

    def loss(model, batch):
        return F.cross_entropy(model(batch["x"]), batch["label"], reduction="none")

    with PrivateGradients(linear(), frame, loss, plan, tmp_path / "l.jsonl", units="who", rows_per_unit=8) as private:
        private.release()
        private.release()
        private.save(tmp_path / "run", delta=1e-3)
    assert [each for each in verify_run(tmp_path / "run") if not each.passed] == []
    certificate = json.loads((tmp_path / "run" / "certificate.json").read_text())
    assert certificate["record"] == "all rows of the training data with one who, together"


def two_runs(rank, settings):
    del rank
    parameters, result = trained(steps=4, **settings)
    figures = None if result.holdout is None else result.holdout["classes"]
    return parameters.tolist(), result.certificate["plan"]["records"], figures


KEPT_ASIDE = {"features": "pca:dim=3,noise_multiplier=5", "holdout": "20%", "holdout_noise": 1.0}


@pytest.mark.slow
@pytest.mark.parametrize(("settings", "trained_on"), [({}, 40), (KEPT_ASIDE, 32)])
def test_two_processes_share_the_units(two, settings, trained_on):
    expected, _, figures = two_runs(0, settings)
    two.start(two_runs, settings)
    for parameters, *others in two.answers().values():
        assert others == [trained_on, figures]
        assert parameters == pytest.approx(expected, abs=1e-5)


def other_ids(rank):
    return trained(units=IDS if rank == 0 else IDS.flip(0))[0].tolist()


@pytest.mark.slow
def test_processes_with_other_ids_are_refused(two):
    assert {name for name, _ in two.failures(other_ids)} == {"InputError"}
