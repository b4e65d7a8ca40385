"""The real data: what the catalogue says of a data set is what loading it gives."""

from __future__ import annotations

import dataclasses
import gzip
import hashlib
import json
import re
import subprocess
import sys

import numpy as np
import pytest
import torch
from click.testing import CliRunner

from adadp.app.cli.data import data as command
from adadp.app.text_rows import row_texts
from adadp.app.zoo import DATA_SETS, FileState, fetch, find, inspect, load
from adadp.app.zoo.adult import CATEGORIES
from adadp.app.zoo.covertype import BOUNDS as COVERTYPE_BOUNDS
from adadp.app.zoo.idx import read_idx
from adadp.app.zoo.sources import DataFile
from adadp.errors import InputError

pytestmark = pytest.mark.slow


def is_mnist(train, test):
    (images, labels), (test_images, test_labels) = train, test
    assert labels[:10].tolist() == [5, 0, 4, 1, 9, 2, 1, 3, 1, 4]
    assert test_labels[:5].tolist() == [7, 2, 1, 0, 4]
    assert torch.bincount(labels).tolist() == [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]
    assert images[0, 0, 5, 12:16].mul(255).round().tolist() == [3, 18, 18, 18]
    assert (images.min(), images.max(), test_images.max()) == (0, 1, 1)
    assert images.double().mean().item() == pytest.approx(0.13066, abs=1e-5)


def is_fashion_mnist(train, test):
    (images, labels), (test_images, test_labels) = train, test
    assert labels[:10].tolist() == [9, 0, 0, 3, 0, 2, 7, 2, 5, 5]
    assert test_labels[:5].tolist() == [9, 2, 1, 1, 6]
    assert torch.bincount(labels).tolist() == [6000] * 10
    assert torch.bincount(test_labels).tolist() == [1000] * 10
    assert images.double().mean().item() == pytest.approx(0.28604, abs=1e-5)
    assert (images.min(), images.max(), test_images.max()) == (0, 1, 1)


def is_cifar10(train, test):
    """Labels, the first pixels of the frog that comes first, and the means everybody prints."""
    (images, labels), (_, test_labels) = train, test
    assert labels[:10].tolist() == [6, 9, 9, 4, 1, 1, 2, 7, 8, 3]
    assert test_labels[:5].tolist() == [3, 8, 8, 0, 6]
    assert torch.bincount(labels).tolist() == [5000] * 10
    assert torch.bincount(test_labels).tolist() == [1000] * 10
    assert images[0, :, 0, 0].mul(255).round().tolist() == [59, 62, 63]
    assert images[0, 0, 0, :4].mul(255).round().tolist() == [59, 43, 50, 68]
    means = images.mean(dim=(0, 2, 3))
    assert means.tolist() == pytest.approx([0.4914, 0.4822, 0.4465], abs=1e-4)


def is_cifar100(train, test):
    """500 images of each class, all but the one that the second form leaves out; and the means everybody prints."""
    images, labels = train
    counts = sorted(torch.bincount(labels).tolist())
    assert counts == [500] * 100 if len(test[1]) else [499] + [500] * 99
    means = images.mean(dim=(0, 2, 3))
    assert means.tolist() == pytest.approx([0.5071, 0.4865, 0.4409], abs=1e-4)


def is_covertype(train, test):
    """The counts its description prints, over both parts; every row has one wilderness area and one soil type."""
    (train, train_labels), (test, test_labels) = train, test
    counts = torch.bincount(train_labels) + torch.bincount(test_labels)
    assert counts.tolist() == [211_840, 283_301, 35_754, 2_747, 9_493, 17_367, 20_510]
    for features in (train, test):
        assert (features[:, 10:14].sum(dim=1) == 1).all()
        assert (features[:, 14:].sum(dim=1) == 1).all()
    numbers = torch.cat((train[:, :10], test[:, :10])).double()
    low, high = torch.tensor(list(COVERTYPE_BOUNDS.values()), dtype=torch.float64).T
    means = ((numbers.mean(dim=0) + 1) / 2 * (high - low) + low).tolist()
    printed = [2959.36, 155.65, 14.10, 269.43, 46.42, 2350.15, 212.15, 223.32, 142.53, 1980.29]
    assert means == pytest.approx(printed, abs=0.02), "the means its description prints: nothing was cut off"


def is_adult(train, test):
    """The shares of its description, and the first row of each file."""
    (train, train_labels), (test, test_labels) = train, test
    assert (train_labels.sum().item(), test_labels.sum().item()) == (7_841, 3_846)
    for features in (train, test):
        assert (features[:, 6:].sum(dim=1) == 8).all(), "one word of each category"
    names = [f"{name}={word}" for name, words in CATEGORIES.values() for word in words.split(", ")]
    words = [name for name, mark in zip(names, train[0, 6:], strict=True) if mark]
    assert words == [
        "workclass=State-gov",
        "education=Bachelors",
        "marital-status=Never-married",
        "occupation=Adm-clerical",
        "relationship=Not-in-family",
        "race=White",
        "sex=Male",
        "native-country=United-States",
    ]
    assert ((train[0, 0] + 1) * 50).item() == pytest.approx(39)
    assert ((test[0, 0] + 1) * 50).item() == pytest.approx(25)
    missing = train[:, [6 + place for place, name in enumerate(names) if name.endswith("=?")]]
    assert (missing.sum(dim=1) > 0).sum() == 2_399


def is_cancer(train, test):
    assert (train[1].sum(), test[1].sum()) == (200, 39)


def is_imdb(train, test):
    """Both classes in both parts, text and nothing after its end, and the first review of the file somewhere."""
    (rows, labels), (_, test_labels) = train, test
    assert int(labels.sum() + test_labels.sum()) == 12_500
    ended = (rows == 0).long().cumsum(1) > 0
    assert (rows[ended] == 0).all()
    assert any(text.startswith("I rented I AM CURIOUS-YELLOW") for text in row_texts(torch.cat([rows, test[0]])))


CHECKS = {
    "imdb": is_imdb,
    "cancer": is_cancer,
    "mnist": is_mnist,
    "fashion-mnist": is_fashion_mnist,
    "cifar10": is_cifar10,
    "cifar100": is_cifar100,
    "covertype": is_covertype,
    "adult": is_adult,
}


@pytest.mark.parametrize("name", DATA_SETS)
def test_loading_gives_what_the_catalogue_says_and_the_data_is_itself(name, here):
    """In one test, because loading takes seconds."""
    form, cache = here(name)
    loaded = load(form, cache=cache)
    assert loaded.description is form
    assert loaded.classes == form.classes
    for (features, labels), records in ((loaded.train, form.train_records), (loaded.test, form.test_records)):
        assert (features.dtype, labels.dtype) == (torch.uint8 if form.text else torch.float32, torch.int64)
        assert features.shape == (records, *form.shape)
        assert labels.shape == (records,)
        if records:
            assert labels.unique().tolist() == list(range(form.classes))
            assert form.text or -1 <= features.min() < features.max() <= 1
    CHECKS[name](loaded.train, loaded.test)


@pytest.mark.parametrize("name", DATA_SETS)
def test_the_published_md5_and_the_size_are_those_of_the_files(name, here):
    form, cache = here(name)
    contents = fetch(form, cache=cache).contents
    for file in form.files:
        content = contents[file.name]
        assert (hashlib.md5(content).hexdigest() if file.md5 else "", len(content)) == (file.md5, file.size)


@pytest.mark.parametrize("entry", [form for entry in DATA_SETS.values() for form in (entry, *entry.alternatives)])
def test_entries_say_everything(entry):
    texts = (entry.title, entry.citation, entry.licence, entry.record, entry.scaling, entry.split, entry.default_model)
    assert all(texts)
    assert entry.packaged != bool(entry.sources) or entry not in DATA_SETS.values()
    for file in entry.files:
        assert re.fullmatch("[0-9a-f]{64}", file.sha256)
        assert re.fullmatch("[0-9a-f]{32}|", file.md5)
    assert all(form.name == entry.name and form.shape == entry.shape for form in entry.alternatives)


def test_entries_are_frozen_and_unknown_names_list_the_known():
    with pytest.raises(dataclasses.FrozenInstanceError):
        find("cancer").classes = 3
    with pytest.raises(InputError, match=f"'weather'.*{', '.join(DATA_SETS)}"):
        load("weather")
    with pytest.raises(InputError, match=r"'mnits'\. Did you mean mnist\?"):
        load("mnits")


@pytest.mark.parametrize(
    ("name", "advice"),
    [
        ("people.csv", "named with its kind: table:people.csv."),
        ("gone/people.parquet", "named with its kind: table:gone/people.parquet."),
        ("csv:people.csv", "named with its kind: table:people.csv."),
        ("notes", "named with its kind: table:notes."),
        ("arrays.npz", "named with its kind: npz:arrays.npz."),
        ("pets", "named with its kind: images:pets."),
        ("mnits", "Did you mean mnist?"),
        ("table:people.csv", "Use one of: cancer, mnist"),
        ("nonsense:", "Use one of: cancer, mnist"),
    ],
)
def test_a_file_or_folder_is_told_how_it_is_named(name, advice, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pets").mkdir()
    (tmp_path / "notes").write_text("a,b")
    with pytest.raises(InputError, match=re.escape(advice)):
        find(name)


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
    assert f"The 699 samples come from {patients} distinct patients" in find("cancer").record
    assert f"{len(both)} patients are in both" in find("cancer").record


@pytest.mark.parametrize("file", [DataFile("no-such-file", 1, "", ""), find("cancer").files[0]])
def test_a_package_that_lost_or_changed_its_file_is_an_error(file):
    entry = dataclasses.replace(find("cancer"), files=(dataclasses.replace(file, sha256="0" * 64),))
    assert set(inspect(entry).values()) <= {FileState.MISSING, FileState.CORRUPT}
    with pytest.raises(InputError, match="Install AdaDP again"):
        load(entry)


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


def test_the_catalogue_imports_neither_torch_nor_a_decoder():
    code = "import sys, adadp.app.zoo\nadadp.app.zoo.find('cifar10')\nassert not {'torch', 'PIL'} & set(sys.modules)"
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
