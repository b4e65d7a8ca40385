"""Test data that is training data is refused before anything is spent; what only looks alike is not."""

from __future__ import annotations

import csv
import shutil

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn
from torch.utils.data import Dataset, TensorDataset

from adadp.app import resolve, start, zoo
from adadp.app.config import TrainConfig
from adadp.app.selection import tune
from adadp.app.train import fit, refuse_training_records
from adadp.errors import InputError

REFUSED = "Many of the test records are training records"


def sample(size: int, seed: int = 0, features: int = 6):
    drawn = torch.Generator().manual_seed(seed)
    values = torch.randn(size, features, generator=drawn)
    return values, (values[:, 0] > 0).long()


def refuses(train, test) -> bool:
    try:
        refuse_training_records(train, test)
    except InputError as error:
        return REFUSED in str(error)
    return False


def mixed(train, copies: int, others: int):
    """``copies`` training records and ``others`` of the same population, in a random order."""
    new = sample(others, seed=1)
    order = torch.randperm(copies + others, generator=torch.Generator().manual_seed(2))
    return tuple(torch.cat([ours[:copies], theirs])[order] for ours, theirs in zip(train, new, strict=True))


# The rule ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("copies", "others", "refused"),
    [
        (400, 0, True),  # a reordered copy
        (200, 0, True),
        (100, 100, True),
        (30, 170, True),
        (20, 180, False),  # a tenth
        (8, 0, True),
        (5, 0, False),  # a few
        (400, 20_000, True),  # all the training records, in a large file
        (0, 200, False),
    ],
)
def test_copies_are_noticed_where_they_are_many(copies, others, refused):
    train = sample(400)
    assert refuses(train, mixed(train, copies, others)) == refused


def test_one_record_more_or_less_among_the_test_records_tells_nothing_of_a_record():
    """A file of one guess is no oracle of who was trained on."""
    values, labels = sample(400)
    for count in range(1, 6):
        assert not refuses((values, labels), (values[:count], labels[:count]))
        repeated = values[:1].repeat(50 * count, 1), labels[:1].repeat(50 * count)
        assert not refuses((values, labels), repeated)


def test_numbers_are_compared_and_not_how_they_are_kept():
    values, labels = sample(100)
    values[:, 1] = 0.0
    signed = values.clone()
    signed[:, 1] = -0.0
    assert refuses((values, labels), (signed.double(), labels.int()))
    assert not refuses((values, labels), (values + 1e-3, labels))
    assert not refuses((values, labels), (values, 1 - labels)), "another label is another record"


def tabled(size: int, seed: int, values: int, columns: int):
    drawn = torch.Generator().manual_seed(seed)
    cells = torch.randint(0, values, (size, columns + 1), generator=drawn)
    return cells[:, :-1].float(), cells[:, -1] % 2


@pytest.mark.parametrize("columns", [1, 2, 3, 4, 6])
@pytest.mark.parametrize(("size", "test"), [(60, 60), (2000, 500), (500, 4000)])
def test_rows_that_are_equal_by_chance_are_no_copies(columns, size, test):
    for seed in range(0, 40, 2):
        assert not refuses(tabled(size, seed, 4, columns), tabled(test, seed + 1, 4, columns))


@pytest.mark.parametrize("columns", [1, 3, 6])
def test_the_same_records_are_noticed_among_rows_that_are_equal_by_chance(columns):
    values, labels = tabled(500, 0, 4, columns)
    order = torch.randperm(500, generator=torch.Generator().manual_seed(0))
    assert refuses((values, labels), (values[order], labels[order]))


def test_a_table_without_its_twins_against_one_with_them():
    """Whoever removes duplicates from the training data has not put the test data into it."""
    values, labels = tabled(3000, 0, 4, 3)
    rows = torch.unique(torch.cat([values, labels[:, None].float()], dim=1), dim=0)
    assert not refuses((rows[:, :-1], rows[:, -1].long()), tabled(1000, 1, 4, 3))


def test_samples_of_rare_and_frequent_rows_are_no_copies():
    random = np.random.default_rng(0)
    for power in (1.2, 1.5, 2.0, 3.0):
        for _ in range(20):
            ours, theirs = (torch.from_numpy(random.zipf(power, size) % 10**6)[:, None] for size in (900, 400))
            labels = torch.zeros(900, dtype=torch.long)
            assert not refuses((ours, labels), (theirs, labels[:400]))


@pytest.mark.parametrize("name", ["cancer", "adult", "mnist"])
def test_public_data_sets_have_test_records_of_their_own(name):
    try:
        found = zoo.load(name)
    except Exception:
        pytest.skip(f"{name} is not here")
    assert not refuses(found.train, found.test)
    assert refuses(found.train, tuple(part[:500] for part in found.train))


# Where it is asked ------------------------------------------------------------------------------------------------

SETTINGS = {"noise_multiplier": 2.0, "delta": 1e-4, "steps": 2, "batch_size": 50, "seed": 0}


class Listed(Dataset):
    def __init__(self, values, labels):
        self.values, self.labels = values, labels

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, index):
        return self.values[index], self.labels[index]


@pytest.mark.parametrize(
    "form", [lambda *pair: pair, TensorDataset, Listed], ids=["tensors", "TensorDataset", "Dataset"]
)
def test_fit_refuses_before_anything_is_made(form, tmp_path):
    train = sample(400)
    with pytest.raises(InputError, match=REFUSED):
        fit(nn.Linear(6, 2), form(*train), test=mixed(train, 100, 20), out=tmp_path / "run", **SETTINGS)
    assert not (tmp_path / "run").exists()
    assert fit(nn.Linear(6, 2), form(*train), test=sample(120, seed=3), **SETTINGS).test_accuracy is not None


def test_fit_refuses_before_features_are_made_and_for_validation_records_too(tmp_path):
    train = sample(400)
    with pytest.raises(InputError, match=REFUSED):
        fit(
            nn.Linear(3, 2),
            train,
            test=train,
            features="pca:dim=3,noise_multiplier=9",
            out=tmp_path / "run",
            **SETTINGS,
        )
    noise = {
        **SETTINGS,
        "noise_multiplier": None,
        "rho": 1.0,
        "noise_schedule": "validation:s0=10,k=0.7",
        "sampling": "reshuffle",
    }
    with pytest.raises(InputError, match="Many of the validation records are training records"):
        fit(nn.Linear(6, 2), train, validation=train, out=tmp_path / "run", **noise)
    assert not (tmp_path / "run").exists()


def test_records_that_are_no_tensors_are_not_compared():
    values, labels = sample(60)
    refuse_training_records({"x": values, "y": labels}, (values, labels))
    refuse_training_records((values, labels), None)


@pytest.fixture
def table(tmp_path):
    values, labels = sample(400)
    with (tmp_path / "train.csv").open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["a", "b", "y"])
        rows.writerows(
            [f"{row[0]:.6f}", f"{row[1]:.6f}", int(label)] for row, label in zip(values, labels, strict=True)
        )
    bounds = "low = -9\nhigh = 9"
    (tmp_path / "schema.toml").write_text(
        f'[target]\ncolumn = "y"\nclasses = ["0", "1"]\n[columns.a]\nkind = "number"\n{bounds}\n'
        f'[columns.b]\nkind = "number"\n{bounds}\n'
    )
    return tmp_path


def asked(data: str, **fields) -> TrainConfig:
    return TrainConfig(data, **{"epsilon": 2.0, "delta": 1e-4, "steps": 2, "batch_size": 50, "threads": 1, **fields})


def test_a_copy_of_a_table(table):
    shutil.copy(table / "train.csv", table / "copy.csv")
    lines = (table / "train.csv").read_text().splitlines(keepends=True)
    (table / "part.csv").write_text("".join([lines[0], *lines[:150:-1]]))
    for name in ("copy.csv", "part.csv"):
        config = asked(f"table:{table / 'train.csv'}", schema=str(table / "schema.toml"))
        config = config.replace(test_data=f"table:{table / name}")
        with pytest.raises(InputError, match=REFUSED) as caught:
            start.start(config, table / "run")
        assert not any(figure in str(caught.value) for figure in ("400", "250", "249"))
        assert not (table / "run").exists()


def test_a_copy_as_public_validation_records(table):
    shutil.copy(table / "train.csv", table / "copy.csv")
    noise = {"noise_schedule": "validation:s0=10,k=0.7", "validation_data": f"table:{table / 'copy.csv'}"}
    config = asked(f"table:{table / 'train.csv'}", schema=str(table / "schema.toml"), steps=None, epochs=2, **noise)
    with pytest.raises(InputError, match="Many of the validation records are training records"):
        start.start(config, table / "run")
    assert not (table / "run").exists()


@pytest.mark.slow
def test_a_search_refuses_too(table):
    shutil.copy(table / "train.csv", table / "copy.csv")
    config = asked(f"table:{table / 'train.csv'}", schema=str(table / "schema.toml"))
    with pytest.raises(InputError, match="Many of the validation records are training records"):
        tune(config, [{"lr": 0.5}], out=table / "run", validation_data=f"table:{table / 'copy.csv'}")
    assert not (table / "run").exists()


def test_a_copy_of_arrays_in_one_file_or_two(tmp_path):
    values, labels = (part.numpy() for part in sample(400))
    np.savez(tmp_path / "one.npz", x=values, y=labels, classes=2, x_test=values[:50], y_test=labels[:50])
    np.savez(tmp_path / "train.npz", x=values, y=labels, classes=2)
    np.savez(tmp_path / "test.npz", x=values[::-1], y=labels[::-1])
    with pytest.raises(InputError, match=REFUSED):
        start.start(asked(f"npz:{tmp_path / 'one.npz'}"), tmp_path / "run")
    with pytest.raises(InputError, match=REFUSED):
        start.start(asked(f"npz:{tmp_path / 'train.npz'}", test_data=f"npz:{tmp_path / 'test.npz'}"), tmp_path / "run")


def test_a_copy_of_images(tmp_path):
    random = np.random.default_rng(0)
    for kind in ("cat", "dog"):
        (tmp_path / "pets" / "train" / kind).mkdir(parents=True)
        for number in range(30):
            pixels = random.integers(0, 256, (6, 6), dtype=np.uint8)
            Image.fromarray(pixels).save(tmp_path / "pets" / "train" / kind / f"{number}.png")
    shutil.copytree(tmp_path / "pets" / "train", tmp_path / "pets" / "test")
    with pytest.raises(InputError, match=REFUSED):
        start.start(asked(f"images:{tmp_path / 'pets'}", delta=1e-3, batch_size=10), tmp_path / "run")


def test_data_of_the_catalogue_is_not_asked(monkeypatch):
    def asks(*_):
        raise AssertionError("compared")

    monkeypatch.setattr(start, "refuse_training_records", asks)
    start.prepared(resolve.resolve(TrainConfig("cancer", epsilon=2.0)))
