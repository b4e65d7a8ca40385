"""Every number a model sees lies in a public range, whatever the format it came in and whatever a record holds."""

from __future__ import annotations

import csv

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from PIL import Image
from torch import nn
from torch.utils.data import Dataset, TensorDataset

from adadp import checks
from adadp.app import resolve, start
from adadp.app.config import TrainConfig
from adadp.app.losses import cross_entropy
from adadp.app.owndata import encoder_from_json, load_own
from adadp.app.predict import evaluation, load_model
from adadp.app.runs import RunFolder
from adadp.app.train import fit, verify_run
from adadp.errors import InputError
from adadp.input_bound import InputBound
from adadp.ledger import Ledger, PlannedBudget
from adadp.plan import Plan
from adadp.records import Records
from adadp.step import PrivateGradients

HUGE = [torch.nan, torch.inf, -torch.inf, 1e30, -3e38, 1e-40, 0.5]
CPU = torch.device("cpu")
SETTINGS = {"noise_multiplier": 2.0, "delta": 1e-4, "steps": 6, "batch_size": 20, "lr": 0.1, "seed": 0}


class Watched(nn.Module):
    """A linear model that remembers the extremes of what it was given."""

    def __init__(self, width: int = 4, seed: int = 0) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.linear = nn.Linear(width, 2)
        self.seen: list[float] = []

    def forward(self, values):
        inside = values.detach().float()
        self.seen += [float(inside.min()), float(inside.max())]
        return self.linear(values)


def wild(count: int = 100, width: int = 4, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """Records whose numbers are everything a float can be."""
    generator = torch.Generator().manual_seed(seed)
    values = torch.randn(count, width, generator=generator)
    for place, value in enumerate(HUGE):
        values[place::11, place % width] = value
    return values, torch.arange(count) % 2


# The range itself -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize(("low", "high"), [(-1e6, 1e6), (0.0, 255.0), (-3.0, 5.0)])
def test_every_number_is_brought_into_the_range(dtype, low, high):
    values = torch.tensor([*HUGE, -7.0, 0.0, 300.0], dtype=torch.float64).to(dtype)
    found = InputBound(low, high)(values)
    assert found.dtype == dtype
    assert found.isfinite().all()
    assert float(found.min()) >= low
    assert float(found.max()) <= high
    assert float(found[0]) == pytest.approx((low + high) / 2)
    inside = (values.double() >= low) & (values.double() <= high)
    assert torch.equal(found[inside], values[inside])


def test_whole_numbers_and_what_is_no_tensor_stay():
    bound = InputBound(0.0, 1.0)
    tokens = torch.tensor([5, -3, 10**9])
    assert bound(tokens) is tokens
    assert bound("name") == "name"
    found = bound(torch.tensor([complex(7, -7), complex(0.25, float("nan"))]))
    assert found.tolist() == [1 + 0j, 0.25 + 0.5j]


@pytest.mark.parametrize(
    ("given", "expected"),
    [(5, (-5, 5)), ((0, 255), (0, 255)), ([-1, 2.5], (-1, 2.5)), ("5", (-5, 5)), ("0, 255", (0, 255))],
)
def test_a_range_is_a_number_a_pair_or_text(given, expected):
    assert checks.input_bound(given) == expected


@pytest.mark.parametrize(
    "given", [0, -1, (2, 1), (1, 1), (1, 2, 3), (), "a", "1,b", float("nan"), 1e13, (0, float("inf")), True, {}, "nan"]
)
def test_no_other_range_is_taken(given):
    with pytest.raises(InputError, match="input_bound"):
        checks.input_bound(given)


# Tensors and data sets --------------------------------------------------------------------------------------------


class Listed(Dataset):
    def __init__(self, *columns) -> None:
        self.columns = columns

    def __len__(self) -> int:
        return len(self.columns[0])

    def __getitem__(self, index):
        return tuple(column[index] for column in self.columns)


FORMS = {
    "tensors": lambda x, y: (x, y),
    "a TensorDataset": TensorDataset,
    "a Dataset": Listed,
    "numpy": lambda x, y: Listed(x.numpy().astype(np.float64), y.numpy()),
}


@pytest.mark.parametrize("form", FORMS)
def test_the_data_itself_stays_as_it_is(form):
    values, labels = wild()
    before = values.clone()
    Records(FORMS[form](values, labels), CPU, torch.float32, InputBound(-2.0, 3.0)).batch(torch.arange(100))
    InputBound(-2.0, 3.0)(values)
    fit(nn.Linear(4, 2), (values, labels), test=wild(seed=1), input_bound=2, **SETTINGS)
    assert torch.equal(values.nan_to_num(7.0), before.nan_to_num(7.0))


@pytest.mark.parametrize("form", FORMS)
def test_batches_lie_in_the_range_in_every_form(form):
    records = Records(FORMS[form](*wild()), CPU, torch.float32, InputBound(-2.0, 3.0))
    values, labels = records.batch(torch.arange(100))
    assert values.dtype == torch.float32
    assert (float(values.min()), float(values.max())) == (-2.0, 3.0)
    assert labels.dtype == torch.long
    assert records.bound.describe().startswith("Every floating-point number of a record was brought into [-2, 3]")
    assert InputBound().interval == "[-1e6, 1e6]"


def test_without_a_range_it_is_a_million_and_labels_have_that_in_any_case():
    values, _ = wild()
    targets = torch.full((100,), 1e38)
    for bound in (None, InputBound(-1.0, 1.0)):
        found, labels = Records((values, targets), CPU, torch.float32, bound).batch(torch.arange(100))
        assert float(found.max()) == (1e6 if bound is None else 1.0)
        assert labels.tolist() == [1e6] * 100
    (alone,) = Records({"x": values}, CPU, torch.float32, InputBound(-1.0, 1.0)).batch(torch.arange(100))
    assert float(alone["x"].abs().max()) == 1.0


def test_a_training_loop_of_ones_own_has_the_range_too(tmp_path):
    model = Watched()
    plan = Plan.of_noise(noise=2.0, records=100, batch_size=50, steps=2)
    with Ledger.create(tmp_path / "ledger.jsonl", budget=PlannedBudget(plan.event())) as ledger:
        private = PrivateGradients(model, wild(), cross_entropy, plan, ledger, seed=0)
        model.seen.clear()
        private.release()
    assert (min(model.seen), max(model.seen)) == (-1e6, 1e6)


@pytest.mark.parametrize(("bound", "low", "high"), [(None, -1e6, 1e6), (2.0, -2, 2), ((0, 3), 0, 3)])
def test_fit_keeps_training_test_and_model_in_the_range(bound, low, high, tmp_path):
    model = Watched()

    def watch(status):
        if status.step == 1:  # before, the engine tries the model on made-up records
            model.seen.clear()

    result = fit(model, wild(), test=wild(seed=1), input_bound=bound, out=tmp_path / "run", watch=watch, **SETTINGS)
    assert (min(model.seen), max(model.seen)) == (low, high)
    assert any(f"brought into {InputBound(low, high).interval}" in note for note in result.certificate["notes"])
    assert all(check.passed for check in verify_run(RunFolder.open(tmp_path / "run")))
    model.seen.clear()
    with torch.no_grad():
        scores = result.model(wild(seed=1)[0])
    if bound is None:
        assert result.model is result.network is model
    else:
        assert (min(model.seen), max(model.seen)) == (low, high)
        assert result.test_accuracy == int((scores.argmax(1) == wild(seed=1)[1]).sum()) / 100


def test_another_range_is_another_run(tmp_path):
    fit(nn.Linear(4, 2), wild(), input_bound=2.0, out=tmp_path / "run", **SETTINGS)
    config = RunFolder.open(tmp_path / "run").config
    assert config.input_bound == "2"
    assert config.digest() != config.replace(input_bound=3).digest()
    assert config.replace(input_bound=[-1, 5]).input_bound == "-1,5"
    assert TrainConfig.from_toml(config.replace(input_bound=[-1, 5]).to_toml()).input_bound == "-1,5"


def test_numbers_come_into_their_range_before_the_features():
    values, labels = wild()
    tamed = InputBound(-2.0, 2.0)(values)
    others = wild(seed=1)
    settings = {**SETTINGS, "features": "pca:dim=3,noise_multiplier=5", "test": others}
    torch.manual_seed(0)
    model, twin = nn.Linear(3, 2), nn.Linear(3, 2)
    twin.load_state_dict(model.state_dict())
    found = fit(model, (values, labels), input_bound=2.0, **settings)
    expected = fit(twin, (tamed, labels), **settings | {"test": (InputBound(-2.0, 2.0)(others[0]), labels)})
    assert torch.equal(model.weight, twin.weight)
    assert found.test_accuracy == expected.test_accuracy
    with torch.no_grad():
        assert torch.equal(found.model(values), expected.model(tamed))


@pytest.mark.parametrize("size", [1e8, 1e12, 1e19, 3e38])
def test_no_squared_norm_leaves_the_range_of_a_float(size, tmp_path):
    """At the edge of that range whether a record counts would depend on its place in the batch; here each one
    counts."""

    def squared(model, x, y):
        return F.mse_loss(model(x).squeeze(1), y, reduction="none")

    torch.manual_seed(0)
    plan = Plan.of_noise(noise=0.0, records=65, batch_size=65, steps=1, clip_norm=1.0)
    data = (torch.full((65, 4), size), torch.full((65,), -size))
    with Ledger.create(tmp_path / "ledger.jsonl", budget=PlannedBudget(plan.event())) as ledger:
        released = PrivateGradients(nn.Linear(4, 1), data, squared, plan, ledger, seed=0).release()
    mean = torch.cat([value.flatten() for value in released.values()])
    assert 0.95 < float(mean.norm()) <= 1  # from norms of 1e12 on, a record counts a little less


# Files ------------------------------------------------------------------------------------------------------------


def arrays(path, **extra):
    values = np.asarray(wild()[0].nan_to_num(0.0, 9e9, -9e9), dtype=np.float64)
    np.savez(path, x=values, y=np.arange(100) % 2, classes=2, **extra)
    return values


@pytest.mark.parametrize(("bound", "low", "high"), [(None, -1e6, 1e6), ((0, 2), 0, 2)])
def test_arrays_lie_in_the_range_in_training_test_and_prediction(bound, low, high, tmp_path):
    values = arrays(tmp_path / "a.npz")
    values = np.concatenate([values, values])
    np.savez(tmp_path / "t.npz", x=values, y=np.arange(200) % 2)
    data = load_own(f"npz:{tmp_path / 'a.npz'}", test_data=f"npz:{tmp_path / 't.npz'}", input_bound=bound)
    new = encoder_from_json(data.encoder.as_json()).read(tmp_path / "t.npz")
    for found in (data.train[0], data.test[0], new):
        assert (float(found.min()), float(found.max())) == (low, high)
    assert any(f"brought into {InputBound(low, high).interval}" in sentence for sentence in data.public)


def test_a_run_on_arrays_has_the_range_it_was_given(tmp_path):
    values = arrays(
        tmp_path / "a.npz", x_test=wild(seed=1)[0].clamp(-9, 9).nan_to_num(0).numpy(), y_test=np.arange(100) % 2
    )
    config = TrainConfig(
        f"npz:{tmp_path / 'a.npz'}", noise_multiplier=2.0, delta=1e-4, steps=5, batch_size=20, lr=0.1, seed=0
    )
    result = start.start(config.replace(input_bound="0,2"), tmp_path / "run")
    trained = load_model(tmp_path / "run")
    assert evaluation(trained)["accuracy"] == result.test_accuracy
    raw = torch.from_numpy(values).float()
    with torch.no_grad():
        assert torch.equal(trained.model(raw), trained.network(raw.clamp(0, 2)))
        assert torch.equal(result.model(raw), result.network(raw.clamp(0, 2)))
    assert any("brought into [0, 2]" in note for note in result.certificate["notes"])


def places(records):
    """The first feature beside the constant, which is the last: both were divided by the length of the row."""
    return (records[:, 0] / records[:, -1]).tolist()


def test_tables_lie_between_minus_one_and_one(tmp_path):
    schema = '[target]\ncolumn = "y"\nclasses = ["0", "1"]\n[columns.x]\nkind = "number"\nlow = 0\nhigh = 100\n'
    (tmp_path / "s.toml").write_text(schema)
    with (tmp_path / "t.csv").open("w", newline="") as file:
        csv.writer(file).writerows([["x", "y"], ["1e300", "0"], ["-1e30", "1"], ["1e-320", "0"], ["50", "1"]])
    data = load_own(f"table:{tmp_path / 't.csv'}", schema=tmp_path / "s.toml")
    assert places(data.train[0]) == pytest.approx([1, -1, -1, 0])
    with pytest.raises(InputError, match=r"input_bound was given.*needs none"):
        load_own(f"table:{tmp_path / 't.csv'}", schema=tmp_path / "s.toml", input_bound=3)


def test_parquet_is_read_as_the_same_table(tmp_path):
    parquet = pytest.importorskip("pyarrow.parquet")
    arrow = pytest.importorskip("pyarrow")
    schema = '[target]\ncolumn = "y"\nclasses = ["0", "1"]\n[columns.x]\nkind = "number"\nlow = 0\nhigh = 100\n'
    (tmp_path / "s.toml").write_text(schema)
    parquet.write_table(arrow.table({"x": [1e300, -1e30, 5e-324, 50.0], "y": [0, 1, 0, 1]}), tmp_path / "t.parquet")
    data = load_own(f"table:{tmp_path / 't.parquet'}", schema=tmp_path / "s.toml")
    assert places(data.train[0]) == pytest.approx([1, -1, -1, 0])


def test_images_lie_between_zero_and_one(tmp_path):
    for name, value in (("cat", 0), ("dog", 255)):
        (tmp_path / "pets" / name).mkdir(parents=True)
        Image.new("L", (4, 4), value).save(tmp_path / "pets" / name / "1.png")
    data = load_own(f"images:{tmp_path / 'pets'}")
    assert (float(data.train[0].min()), float(data.train[0].max())) == (0, 1)
    with pytest.raises(InputError, match="input_bound was given"):
        load_own(f"images:{tmp_path / 'pets'}", input_bound=3)


def test_a_data_set_by_name_takes_no_range():
    with pytest.raises(InputError, match="input_bound was given, and cancer is a data set of the catalogue"):
        resolve.resolve(TrainConfig("cancer", epsilon=2.0, input_bound=3))


def test_private_bounds_of_a_table_take_values_of_any_size(tmp_path):
    schema = '[target]\ncolumn = "y"\nclasses = ["0", "1"]\n[columns.x]\nkind = "number"\nbounds = "private"\n'
    (tmp_path / "s.toml").write_text(schema)
    with (tmp_path / "t.csv").open("w", newline="") as file:
        csv.writer(file).writerows([["x", "y"], *([1e9 * (1 + row % 9), row % 2] for row in range(400))])
    config = TrainConfig(
        f"table:{tmp_path / 't.csv'}",
        schema=str(tmp_path / "s.toml"),
        epsilon=8.0,
        delta=1e-4,
        steps=5,
        batch_size=20,
        seed=0,
    )
    start.start(config, tmp_path / "run")
    trained = load_model(tmp_path / "run")
    rows = trained.encoder.read(tmp_path / "t.csv")
    assert float(rows.max()) == 9e9
    with torch.no_grad():
        assert len(trained.model(rows)[:, 0].unique()) >= 5  # not all brought to one value
