"""Data on disk gives the runs that the same records in memory give, is fetched ahead, and is never read as a whole."""

from __future__ import annotations

import threading
from collections import Counter
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import adadp
from adadp.app.losses import cross_entropy
from adadp.app.samplers import ReshuffledSampler
from adadp.app.sources import read
from adadp.app.stored import Arrays, Without, of_batches, opened
from adadp.app.train.evaluation import refuse_training_records
from adadp.errors import InputError
from adadp.randomness import SecureSource
from adadp.records import Records, Stored
from adadp.sampling import Batches, PoissonSampler

pyarrow = pytest.importorskip("pyarrow")
dataset, feather, parquet = (pytest.importorskip(f"pyarrow.{name}") for name in ("dataset", "feather", "parquet"))

GENERATOR = torch.Generator().manual_seed(5)
FEATURES, LABELS = torch.randn(600, 3, generator=GENERATOR), torch.randint(0, 2, (600,), generator=GENERATOR)
SETTINGS = {"noise_multiplier": 1.0, "delta": 1e-4, "steps": 5, "batch_size": 50, "lr": 0.5, "seed": 0}
CUT = [0, 250, 251, 600]


def linear() -> nn.Module:
    torch.manual_seed(0)
    return nn.Linear(3, 2)


def trained(data, model=None, **settings) -> torch.Tensor:
    result = adadp.fit(model or linear(), data, **{**SETTINGS, **settings})
    return torch.cat([value.flatten() for value in result.network.parameters()])


@pytest.fixture(scope="module")
def expected() -> torch.Tensor:
    return trained((FEATURES, LABELS))


@pytest.fixture
def arrays(tmp_path) -> tuple[Path, Path]:
    """A file of labels, and a folder of three shards of features."""
    np.save(tmp_path / "labels.npy", LABELS.numpy().astype(np.uint16))
    (tmp_path / "features").mkdir()
    for first, end in pairwise(CUT):
        np.save(tmp_path / "features" / f"{first:03}.npy", FEATURES[first:end].numpy())
    return tmp_path / "features", tmp_path / "labels.npy"


def table(*, matrix: bool = True):
    values = pyarrow.array(FEATURES.flatten().numpy())
    features = {"features": pyarrow.FixedSizeListArray.from_arrays(values, 3)} if matrix else {}
    columns = {} if matrix else {name: FEATURES[:, place].numpy() for place, name in enumerate("abc")}
    return pyarrow.table({**features, **columns, "labels": LABELS.numpy()})


class ByName(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = linear()

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        return self.inner(features)


@pytest.mark.slow
def test_arrays_by_path_and_shards_give_the_same_run(arrays, expected):
    features, labels = arrays
    assert torch.equal(trained((features, str(labels))), expected)
    mapped = np.load(labels, mmap_mode="r")
    assert torch.equal(trained((features, mapped)), expected)
    assert torch.equal(trained((FEATURES, labels)), expected)
    assert torch.equal(trained((features, labels), chunk_size=16), trained((FEATURES, LABELS), chunk_size=16))


@pytest.mark.parametrize("sampling", ["fixed", "reshuffle"])
def test_other_samplers_too(arrays, sampling):
    assert torch.equal(
        trained(arrays, sampling=sampling, steps=15), trained((FEATURES, LABELS), sampling=sampling, steps=15)
    )


@pytest.mark.parametrize("kind", ["arrow", "feather", "parquet", "folder", "dataset", "table"])
def test_tables_give_the_same_run(kind, tmp_path, expected):
    rows, place = table(), tmp_path / f"data.{kind}"
    data = place
    if kind == "arrow":
        with pyarrow.ipc.new_file(place, rows.schema) as writer:
            writer.write_table(rows, max_chunksize=70)
    elif kind == "feather":
        feather.write_feather(rows, place, compression="uncompressed")
    elif kind == "parquet":
        parquet.write_table(rows, place, row_group_size=70)
    elif kind == "table":
        data = pyarrow.concat_tables([rows.slice(0, 300), rows.slice(300)])
    else:
        place.mkdir()
        for first, end in pairwise(CUT):
            parquet.write_table(rows.slice(first, end - first), place / f"{first:03}.parquet")
        data = dataset.dataset(place) if kind == "dataset" else place
    assert Records(data).stored
    assert torch.equal(trained(data, ByName()), expected)


def test_what_is_read_is_what_is_there():
    batches = table(matrix=False).to_batches(max_chunksize=7)
    stored = of_batches(batches)
    wanted = torch.tensor([599, 0, 7, 7, 6, 300])
    rows = stored.rows(wanted)
    assert torch.equal(rows["labels"], LABELS[wanted])
    assert all(torch.equal(rows[name], FEATURES[wanted, place]) for place, name in enumerate("abc"))
    assert {name: value.shape for name, value in stored.rows(wanted[:0]).items()} == dict.fromkeys(
        ["a", "b", "c", "labels"], (0,)
    )
    with pytest.raises(IndexError):
        stored.rows(torch.tensor([600]))


def test_files_larger_than_memory_are_read_by_page_and_by_several_threads(arrays, tmp_path, monkeypatch, expected):
    monkeypatch.setattr("adadp.app.stored._memory", lambda: 100.0)
    names = set()
    original = Arrays._rows
    monkeypatch.setattr(
        Arrays, "_rows", lambda self, i: names.add(threading.current_thread().name) or original(self, i)
    )
    assert torch.equal(trained(arrays), expected)
    assert len(names) > 2
    feather.write_feather(table(), tmp_path / "x.arrow", compression="uncompressed")
    assert torch.equal(trained(tmp_path / "x.arrow", ByName()), expected)


def test_row_groups_without_a_record_of_the_batch_are_not_read(tmp_path, monkeypatch):
    parquet.write_table(table(), tmp_path / "x.parquet", row_group_size=100)
    read_groups = []
    original = parquet.ParquetFile.read_row_group
    monkeypatch.setattr(
        parquet.ParquetFile,
        "read_row_group",
        lambda self, i, **more: read_groups.append(i) or original(self, i, **more),
    )
    stored = opened(tmp_path / "x.parquet")
    assert not read_groups
    stored.rows(torch.tensor([250, 5, 299]))
    assert read_groups == [0, 2]


def test_types_do_not_depend_on_the_batch(tmp_path):
    """Whole numbers with an empty cell anywhere are floats everywhere; unsigned ones become signed."""
    rows = pyarrow.table({"x": pyarrow.array([1, 2, None, 4]), "y": pyarrow.array([1, 2, 3, 4], pyarrow.uint32())})
    parquet.write_table(rows, tmp_path / "x.parquet", row_group_size=2)
    for stored in (opened(tmp_path / "x.parquet"), of_batches(rows.to_batches(max_chunksize=2))):
        first = stored.rows(torch.tensor([0, 1]))
        assert first["x"].tolist() == [1.0, 2.0]
        assert (first["x"].dtype, first["y"].dtype) == (torch.float64, torch.int64)
        assert stored.rows(torch.tensor([2]))["x"].isnan().all()


def test_a_filter_is_kept(tmp_path):
    parquet.write_table(pyarrow.table({"x": np.arange(10)}), tmp_path / "x.parquet")
    data = dataset.dataset(tmp_path).filter(dataset.field("x") > 6)
    (batch,) = Records(data).batch(torch.arange(3))
    assert batch["x"].tolist() == [7, 8, 9]


# Fetched ahead


class Watched(Stored):
    """Remembers by which thread which rows were asked for."""

    def __init__(self, values: torch.Tensor) -> None:
        self.values, self.asked = values, []

    def __len__(self) -> int:
        return len(self.values)

    def rows(self, indices: torch.Tensor) -> torch.Tensor:
        self.asked.append((threading.current_thread().name.startswith("adadp-records"), indices.tolist()))
        return self.values[indices]


def test_the_next_chunk_and_the_next_batch_are_fetched_by_a_thread(expected):
    data = Watched(FEATURES)
    assert torch.equal(trained((data, LABELS)), expected)
    by_thread = [rows for ahead, rows in data.asked if ahead]
    assert len(by_thread) == SETTINGS["steps"] - 1
    assert sum(rows in by_thread for _, rows in data.asked) == len(by_thread), "fetched twice"
    data.asked.clear()
    trained((data, LABELS), chunk_size=16)
    assert sum(not ahead for ahead, rows in data.asked if len(rows) > 2) <= 1


def test_no_batch_is_drawn_for_a_step_behind_the_last(monkeypatch):
    steps = []
    original = Batches.batch
    monkeypatch.setattr(Batches, "batch", lambda self, step: steps.append(step) or original(self, step))
    trained((Watched(FEATURES), LABELS), seed=None)
    assert steps == list(range(SETTINGS["steps"]))


def test_a_batch_drawn_ahead_is_not_used_for_another_step(tmp_path, monkeypatch):
    steps = []
    original = Batches.batch
    monkeypatch.setattr(Batches, "batch", lambda self, step: steps.append(step) or original(self, step))
    plan = adadp.Plan.of_noise(noise=1.0, steps=9, records=600, batch_size=50, clip_norm=1.0)
    data = (Watched(FEATURES), LABELS)
    with adadp.PrivateGradients(linear(), data, cross_entropy, plan, tmp_path / "ledger", seed=3) as private:
        private.release()
        private.step = 5
        private.release()
    assert steps == [0, 1, 5, 6]


def test_a_secure_epoch_is_not_entered_early():
    run = Batches(ReshuffledSampler(40, 10), SecureSource())
    assert not run.at_hand(0)
    run.batch(0)
    assert run.at_hand(3)
    assert not run.at_hand(4)
    assert Batches(PoissonSampler(40, 0.25), SecureSource()).at_hand(5)


def test_a_run_stopped_and_resumed_goes_on_with_the_same_batches(tmp_path, expected):
    class Stop(Exception):
        pass

    def stop(status):
        if status.step == 2:
            raise Stop

    with pytest.raises(Stop):
        trained((Watched(FEATURES), LABELS), out=tmp_path / "run", watch=stop)
    assert torch.equal(trained((Watched(FEATURES), LABELS), out=tmp_path / "run", resume=True), expected)


class Secret(Watched):
    def rows(self, indices):
        if len(indices) > 2:
            raise OSError("patient 4711 cannot be read")
        return super().rows(indices)


def test_errors_tell_nothing_of_records():
    with pytest.raises(InputError, match="cannot be read: OSError") as caught:
        trained((Secret(FEATURES), LABELS))
    assert "4711" not in str(caught.value)
    records = Records((Secret(FEATURES), LABELS))
    wanted = torch.arange(5)
    records.fetch_ahead(wanted)
    with pytest.raises(InputError, match="cannot be read: OSError") as caught:
        records.batch(wanted)
    assert "4711" not in str(caught.value)


# With the rest of a run


def test_test_records_that_are_training_records_are_found(arrays):
    with pytest.raises(InputError, match="test records are training records"):
        adadp.fit(linear(), arrays, **SETTINGS, test=arrays)
    test = (FEATURES[:100] + 1, LABELS[:100])
    assert 0 <= adadp.fit(linear(), arrays, **SETTINGS, test=test).test_accuracy <= 1


def test_they_are_found_by_a_sample_of_digests(monkeypatch):
    """Memory for 64 of 600 digests: twins are still told from copies."""
    monkeypatch.setattr("adadp.app.train.evaluation._KEPT", 64)
    data = FEATURES, LABELS
    new = torch.randn(300, 3, generator=GENERATOR), LABELS[:300]
    refuse_training_records(data, new)
    twins = torch.randint(0, 3, (600, 3), generator=GENERATOR).float(), LABELS
    refuse_training_records(twins, (torch.randint(0, 3, (300, 3), generator=GENERATOR).float(), LABELS[:300]))
    with pytest.raises(InputError, match="training records"):
        refuse_training_records(data, (FEATURES[:300], LABELS[:300]))


def test_digests_that_are_kept_do_not_grow_with_the_data(monkeypatch):
    sizes = []

    class Watching(Counter):
        def update(self, *found):
            sizes.append(len(self))
            super().update(*found)

    monkeypatch.setattr("adadp.app.train.evaluation._KEPT", 64)
    monkeypatch.setattr("adadp.app.train.evaluation.Counter", Watching)
    refuse_training_records((torch.randn(9000, 3), torch.zeros(9000)), (FEATURES, LABELS))
    assert 30 < max(sizes) <= 64


def test_labels_that_are_no_classes_are_refused_before_anything_is_spent(arrays, tmp_path):
    np.save(tmp_path / "wrong.npy", np.where(np.arange(600) == 400, 2, LABELS.numpy()))
    with pytest.raises(InputError, match="labels must lie between 0 and 1"):
        trained((arrays[0], tmp_path / "wrong.npy"))


@pytest.mark.slow
def test_features_read_it_into_memory(arrays):
    settings = {"features": "standardise", "epsilon": 4.0, "noise_multiplier": None}
    assert torch.equal(trained(arrays, **settings), trained((FEATURES, LABELS), **settings))


@pytest.mark.slow
def test_hold_outs_leave_it_on_disk(arrays):
    settings = {"noise_schedule": "validation:s0=4,k=0.7,look=20", "epsilon": 8.0, "noise_multiplier": None}
    settings |= {"validation": 60, "steps": None, "epochs": 2}
    assert torch.equal(trained(arrays, **settings), trained((FEATURES, LABELS), **settings))


@pytest.mark.parametrize("left_out", [[], [0], [599], [0, 1, 2], [3, 4, 250, 251, 598, 599], list(range(1, 600))])
def test_what_is_left_out_is_skipped(left_out):
    kept = [place for place in range(600) if place not in left_out]
    stored = Without(Watched(FEATURES), torch.tensor(left_out, dtype=torch.long))
    assert len(stored) == len(kept)
    assert torch.equal(stored.rows(torch.arange(len(kept))), FEATURES[kept])


def test_a_collate_fn_sees_records_of_it(arrays, expected):
    collate = lambda records: tuple(torch.stack(part) for part in zip(*records, strict=True))  # noqa: E731
    assert torch.equal(trained(arrays, collate_fn=collate), expected)


# What is refused


@pytest.mark.parametrize("name", ["nothing.npy", "empty", "mixed", "x.txt"])
def test_places_that_are_no_data(name, tmp_path):
    (tmp_path / "empty").mkdir()
    (tmp_path / "mixed").mkdir()
    np.save(tmp_path / "mixed" / "a.npy", FEATURES.numpy())
    parquet.write_table(table(), tmp_path / "mixed" / "b.parquet")
    (tmp_path / "x.txt").write_text("1")
    with pytest.raises(InputError, match="no data that is read by index"):
        read(tmp_path / name)


def test_a_compressed_file_is_refused(tmp_path):
    feather.write_feather(pyarrow.table({"x": np.zeros(10_000)}), tmp_path / "x.feather", compression="zstd")
    with pytest.raises(InputError, match="compressed"):
        opened(tmp_path / "x.feather")


def test_a_damaged_file_is_refused(tmp_path):
    for name in ("x.npy", "x.arrow", "x.parquet"):
        (tmp_path / name).write_bytes(b"nothing of the kind")
        with pytest.raises(InputError, match="cannot be read"):
            opened(tmp_path / name)


def test_columns_without_numbers_are_refused(tmp_path):
    parquet.write_table(pyarrow.table({"x": [1, 2], "city": ["Rome", "Oslo"]}), tmp_path / "x.parquet")
    with pytest.raises(InputError, match="column city of the data holds no numbers"):
        opened(tmp_path / "x.parquet")


def test_shards_that_do_not_fit_are_refused():
    for other in (np.zeros((2, 4)), np.zeros((2, 3), dtype=np.float32)):
        with pytest.raises(InputError, match="do not fit together"):
            Arrays([np.zeros((2, 3)), other])
