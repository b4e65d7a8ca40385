"""Arrays in .npz files."""

import json

import numpy as np
import pytest
import torch

from adadp.app.owndata import encoder_from_json, load_own
from adadp.errors import InputError

X = np.array([[0.5, -2.0], [3.0, 4.0], [5.0, 6.0]])
Y = np.array([0, 1, 1])


@pytest.fixture
def arrays(tmp_path):
    """A function that saves arrays and loads them as the user's own data."""

    def load(schema=None, test_data=None, target=None, **saved):
        saved = {"x": X, "y": Y, "classes": 3} | saved
        np.savez(tmp_path / "data.npz", **{name: each for name, each in saved.items() if each is not None})
        if schema is not None:
            (tmp_path / "data.toml").write_text(schema, encoding="utf-8")
        path = tmp_path / "data.toml" if schema is not None else None
        return load_own(f"npz:{tmp_path / 'data.npz'}", schema=path, test_data=test_data, target=target)

    return load


def test_arrays_become_features_and_labels(arrays):
    data = arrays()
    features, labels = data.train
    assert (features.dtype, labels.dtype) == (torch.float32, torch.int64)
    assert (features.tolist(), labels.tolist()) == (X.tolist(), Y.tolist())
    assert (data.class_names, data.test) == (("0", "1", "2"), None)
    assert data.record == "one entry of the array x of data.npz"
    assert data.disclosed == ("The shape (2,) and the type float64 of a record of data.npz.",)


def test_bytes_are_divided_by_255(arrays):
    data = arrays(x=np.full((3, 1, 2, 2), 51, np.uint8))
    assert data.train[0].shape == (3, 1, 2, 2)
    assert data.train[0].unique().tolist() == pytest.approx([0.2])
    assert "Bytes are divided by 255." in data.public


@pytest.mark.parametrize("type_", [np.int64, np.int8, np.float16, bool, np.uint16])
def test_other_numbers_are_kept(arrays, type_):
    values = np.array([[0, 1], [1, 0], [1, 1]], dtype=type_)
    assert arrays(x=values).train[0].tolist() == values.astype(float).tolist()


def test_classes_may_be_declared_by_name_or_in_a_schema(arrays):
    assert arrays(classes=np.array(["cat", "dog"])).class_names == ("cat", "dog")
    assert arrays(classes=None, schema='[target]\nclasses = ["cat", "dog"]').class_names == ("cat", "dog")


NAN, INF = X.copy(), X.copy()
NAN[1, 1], INF[2, 0] = np.nan, 1e300


@pytest.mark.parametrize(
    ("saved", "message"),
    [
        ({"x": None}, "has no array x; it has y, classes"),
        ({"y": None}, "has no array y.*savez"),
        ({"classes": None}, "does not say how many classes.*depends on the data"),
        ({"classes": None, "y": np.array([0, 1, 2])}, "does not say how many classes"),
        ({"schema": "[target]\nclasses = 2"}, "Both the schema and the array classes"),
        ({"schema": "[images]\nsize = [2, 2]"}, "npz data has no use for"),
        ({"classes": 1}, "at least 2"),
        ({"target": "income"}, "has no columns"),
        ({"x": NAN}, r"x of .* is not finite in record 1 \(counting from 0\)"),
        ({"x": INF}, "is not finite in record 2"),
        ({"x": X[:, 0]}, "must hold numbers"),
        ({"x": X[:0], "y": Y[:0]}, "must hold numbers"),
        ({"x": X.astype(complex)}, "must hold numbers"),
        ({"x": np.array([["a"], ["b"]])}, "must hold numbers"),
        ({"x": np.array([[None], [1], [2]], dtype=object)}, "plain arrays.*Python objects"),
        ({"y": Y[:2]}, "must hold 3 whole numbers.*shape"),
        ({"y": Y[:, None]}, "must hold 3 whole numbers"),
        ({"y": Y.astype(float)}, "must hold 3 whole numbers.*float64"),
        ({"y": np.array([0, 1, 3])}, r"y of .* is 3 in record 2 \(counting from 0\), and there are 3 classes"),
        ({"y": np.array([0, -1, 1])}, "is -1 in record 1"),
        ({"x_test": X}, "has x_test alone"),
        ({"x_test": X[:, :1], "y_test": Y}, r"x_test of .* records of shape \(1,\)"),
        ({"x_test": X.astype(np.uint8), "y_test": Y}, "type uint8, and the training records .* not bytes"),
        ({"x_test": NAN, "y_test": Y}, "x_test of .* not finite in record 1"),
        ({"x_test": X, "y_test": np.array([0, 9, 0])}, "y_test of .* is 9 in record 1"),
    ],
)
def test_what_is_wrong_with_arrays_is_named(arrays, saved, message):
    with pytest.raises(InputError, match=message):
        arrays(**saved)


def test_another_kind_of_file_is_named_and_nothing_unsafe_advised(arrays, tmp_path):
    (tmp_path / "people.csv").write_text("age,income\n30,low\n")
    with pytest.raises(InputError, match=r"people\.csv is no \.npz file") as caught:
        arrays(test_data=f"npz:{tmp_path / 'people.csv'}")
    assert "pickle" not in str(caught.value)


def test_the_test_set_is_inside_or_apart_and_never_both(arrays, tmp_path):
    assert torch.equal(arrays(x_test=X[:2], y_test=Y[:2]).test[0], torch.tensor(X[:2]).float())
    np.savez(tmp_path / "public.npz", x=X[1:], y=Y[1:])
    public = f"npz:{tmp_path / 'public.npz'}"
    features, labels = arrays(test_data=public).test
    assert (features.tolist(), labels.tolist()) == (X[1:].tolist(), [1, 1])
    with pytest.raises(InputError, match="two test sets"):
        arrays(test_data=public, x_test=X, y_test=Y)
    with pytest.raises(InputError, match="is the training data"):
        arrays(test_data=f"npz:{tmp_path / 'data.npz'}")


def test_prediction_needs_no_labels(arrays, tmp_path):
    encoder = encoder_from_json(json.loads(json.dumps(arrays().encoder.as_json())))
    assert encoder == arrays().encoder
    assert encoder.shape == (2,)
    path = tmp_path / "new.npz"
    np.savez(path, x=X)
    assert encoder.read(path).tolist() == X.tolist()
    np.savez(path, x=X[:, :1])
    with pytest.raises(InputError, match="not trained on"):
        encoder.read(path)


def test_files_that_are_no_archives(tmp_path):
    path = tmp_path / "data.npz"
    with pytest.raises(InputError, match="does not exist"):
        load_own(f"npz:{path}")
    path.write_bytes(b"x,y\n1,2\n")
    with pytest.raises(InputError, match=r"is no \.npz file"):
        load_own(f"npz:{path}")
    path.write_bytes(b"")
    with pytest.raises(InputError, match=r"is no \.npz file"):
        load_own(f"npz:{path}")
    np.save(tmp_path / "data.npy", X)
    with pytest.raises(InputError, match="a single array"):
        load_own(f"npz:{tmp_path / 'data.npy'}")


def test_a_damaged_archive_is_refused(arrays, tmp_path):
    arrays()
    path = tmp_path / "data.npz"
    content = bytearray(path.read_bytes())
    content[content.index(np.float64(0.5).tobytes())] ^= 1
    path.write_bytes(content)
    with pytest.raises(InputError, match=r"cannot be read as a \.npz file"):
        load_own(f"npz:{path}")
