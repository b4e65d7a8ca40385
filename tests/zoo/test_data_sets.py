"""The real data: what the catalogue says of a data set is what loading it gives."""

from __future__ import annotations

import dataclasses
import gzip
import hashlib
import json
import subprocess
import sys

import numpy as np
import pytest
import torch
from click.testing import CliRunner

from adadp.cli.data import data as command
from adadp.errors import InputError
from adadp.zoo import DATA_SETS, FileState, fetch, find, inspect, load
from adadp.zoo.idx import read_idx
from adadp.zoo.sources import DataFile


@pytest.fixture(params=DATA_SETS)
def loaded(request):
    cache = request.getfixturevalue("mnist_cache") if request.param == "mnist" else None
    return load(request.param, cache=cache)


def test_loading_gives_what_the_catalogue_says(loaded):
    entry = loaded.description
    assert loaded.classes == entry.classes
    for (features, labels), records in ((loaded.train, entry.train_records), (loaded.test, entry.test_records)):
        assert (features.dtype, labels.dtype) == (torch.float32, torch.int64)
        assert features.shape == (records, *entry.shape)
        assert labels.shape == (records,)
        assert labels.unique().tolist() == list(range(entry.classes))
        assert -1 <= features.min() < features.max() <= 1


@pytest.mark.parametrize("name", DATA_SETS)
def test_the_published_md5_and_the_size_are_those_of_the_files(name, request):
    entry = find(name)
    cache = None if entry.packaged else request.getfixturevalue(f"{name}_cache")
    for file in entry.files:
        content = fetch(entry, cache=cache).contents[file.name]
        assert (hashlib.md5(content).hexdigest(), len(content)) == (file.md5, file.size)


def test_entries_are_frozen_and_unknown_names_list_the_known():
    with pytest.raises(dataclasses.FrozenInstanceError):
        find("cancer").classes = 3
    with pytest.raises(InputError, match=r"'mnits'.*cancer, mnist"):
        load("mnits")


CANCER_LINES = fetch(find("cancer")).contents["breast-cancer-wisconsin.data"].decode().splitlines()


def test_cancer_keeps_every_row_without_a_missing_mark_once():
    whole = [line.split(",") for line in CANCER_LINES if "?" not in line]
    assert (len(CANCER_LINES), len(whole)) == (699, 683)
    wanted = sorted((*((int(mark) - 5.5) / 4.5 for mark in row[1:10]), int(row[10]) // 4) for row in whole)
    got = load("cancer")
    rows = [
        (*(float(mark) for mark in marks), int(label))
        for marks, label in zip(
            torch.cat((got.train[0], got.test[0])), torch.cat((got.train[1], got.test[1])), strict=True
        )
    ]
    np.testing.assert_allclose(sorted(rows), wanted, atol=1e-6)


def test_the_split_of_cancer_never_changes():
    """The first training rows, by hand from rows 317, 403 and 364 of those without a missing mark."""
    whole = [line.split(",") for line in CANCER_LINES if "?" not in line]
    features, labels = load("cancer").train
    marks = (features[:3] * 4.5 + 5.5).round().int().tolist()
    assert marks == [[int(mark) for mark in whole[row][1:10]] for row in (317, 403, 364)]
    assert (labels.sum().item(), load("cancer").test[1].sum().item()) == (200, 39)


def test_the_split_of_cancer_looks_at_no_value():
    """Other values, in the same number of rows, are cut at the same places."""
    entry = find("cancer")
    rows = [f"{row},{','.join(str(1 + row // 10**place % 10) for place in range(9))},2" for row in range(683)]
    (train, _), (test, _) = entry.read({entry.files[0].name: "\n".join(rows).encode()})
    number = ((np.concatenate([train, test]) * 4.5 + 4.5).round() @ 10.0 ** np.arange(9)).astype(int)
    assert number[:3].tolist() == [317, 403, 364]
    assert sorted(number) == list(range(683))


def test_cancer_says_that_a_record_is_not_a_patient():
    whole = [line.split(",")[0] for line in CANCER_LINES if "?" not in line]
    order = np.random.RandomState(2019).permutation(683)
    both = {whole[row] for row in order[:560]} & {whole[row] for row in order[560:]}
    patients = len({line.split(",")[0] for line in CANCER_LINES})
    assert f"{patients} distinct patients stand behind the 699 rows" in find("cancer").record
    assert f"{len(both)} patients are in both" in find("cancer").record


@pytest.mark.parametrize("file", [DataFile("no-such-file", 1, "", ""), find("cancer").files[0]])
def test_a_package_that_lost_or_changed_its_file_is_an_error(file):
    entry = dataclasses.replace(find("cancer"), files=(dataclasses.replace(file, sha256="0" * 64),))
    assert set(inspect(entry).values()) <= {FileState.MISSING, FileState.CORRUPT}
    with pytest.raises(InputError, match="Install AdaDP again"):
        load(entry)


def test_mnist_is_mnist(mnist_cache):
    (images, labels), (test_images, test_labels) = (part := load("mnist", cache=mnist_cache)).train, part.test
    assert labels[:10].tolist() == [5, 0, 4, 1, 9, 2, 1, 3, 1, 4]
    assert test_labels[:5].tolist() == [7, 2, 1, 0, 4]
    assert torch.bincount(labels).tolist() == [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]
    assert images[0, 0, 5, 12:16].mul(255).round().tolist() == [3, 18, 18, 18]
    assert (images.min(), images.max(), test_images.max()) == (0, 1, 1)
    assert images.double().mean().item() == pytest.approx(0.13066, abs=1e-5)


def test_a_changed_pixel_of_mnist_is_noticed(mnist_cache, tmp_path):
    """And the file is had from a folder instead, gzipped as the publishers give it."""
    folder, cache = tmp_path / "folder", tmp_path / "cache" / "mnist"
    folder.mkdir()
    cache.mkdir(parents=True)
    for path in (mnist_cache / "mnist").glob("t*"):
        (folder / f"{path.name}.gz").write_bytes(gzip.compress(path.read_bytes(), 1))
        (cache / path.name).write_bytes(path.read_bytes())
    with (cache / "t10k-images-idx3-ubyte").open("r+b") as images:
        images.seek(5_000_000)
        images.write(b"\x7f")
    assert inspect(find("mnist"), cache=cache.parent)["t10k-images-idx3-ubyte"] is FileState.CORRUPT
    result = CliRunner().invoke(
        command, ["fetch", "mnist", "--from", str(folder), "--json"], env={"ADADP_CACHE": str(cache.parent)}
    )
    assert result.exit_code == 0, result.output
    assert {file["origin"] for file in json.loads(result.stdout)["files"]} == {f"folder {folder}"}
    assert set(inspect(find("mnist"), cache=cache.parent).values()) == {FileState.VERIFIED}


def test_the_catalogue_does_not_import_torch():
    code = "import sys, adadp.zoo\nadadp.zoo.find('cancer')\nassert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "not an IDX file"),
        (b"\0\0\x08", "not an IDX file"),
        (b"\0\0\x08\0", "not an IDX file"),
        (b"\0\0\x0d\1\0\0\0\1\0\0\0\0", "not an IDX file"),
        (b"\x1f\x8b\x08\x08aaaaaaaa", "not an IDX file"),
        (b"\0\0\x08\2\0\0\0\1", "not an IDX file"),
        (b"\0\0\x08\2\0\0\0\2\0\0\0\3abcde", r"shape \(2, 3\) holds 5 values"),
        (b"\0\0\x08\3" + b"\xff" * 12 + b"a", "holds 1 values"),
    ],
)
def test_what_is_no_idx_file_is_refused(content, message):
    with pytest.raises(InputError, match=message):
        read_idx(content)


def test_an_idx_file_is_an_array():
    assert read_idx(b"\0\0\x08\2\0\0\0\2\0\0\0\3abcdef").tolist() == [[97, 98, 99], [100, 101, 102]]
    assert read_idx(b"\0\0\x08\1\0\0\0\0").shape == (0,)
