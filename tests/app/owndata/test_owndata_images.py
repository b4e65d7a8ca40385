"""Images in a folder per class."""

import json

import numpy as np
import pytest
import torch
from PIL import Image

from adadp.app.owndata import encoder_from_json, load_own
from adadp.errors import InputError


def save(path, *, size=(4, 3), mode="RGB", value=51):
    """An image of one value; ``size`` is height and width."""
    path.parent.mkdir(parents=True, exist_ok=True)
    height, width = size
    Image.new(mode, (width, height), value if mode in ("L", "I;16", "I", "F") else (value,) * len(mode)).save(path)


@pytest.fixture
def pets(tmp_path):
    """Two cats and a dog."""
    folder = tmp_path / "pets"
    save(folder / "dog" / "1.png", value=255)
    save(folder / "cat" / "b.bmp", value=102)
    save(folder / "cat" / "a.png", value=51)
    return folder


def with_schema(folder, text):
    path = folder.parent / "schema.toml"
    path.write_text(text, encoding="utf-8")
    return load_own(f"images:{folder}", schema=path)


def test_images_become_features_and_labels(pets):
    data = load_own(f"images:{pets}")
    features, labels = data.train
    assert (features.dtype, features.shape, labels.dtype) == (torch.float32, (3, 3, 4, 3), torch.int64)
    assert [image.unique().tolist() for image in features] == [pytest.approx([x]) for x in (0.2, 0.4, 1.0)]
    assert labels.tolist() == [0, 0, 1]
    assert (data.class_names, data.test) == (("cat", "dog"), None)
    assert data.record == "one image of pets"
    assert [sentence.split(".")[0] for sentence in data.disclosed] == [
        "The classes are cat, dog",
        "Images are 4 x 3 (height x width)",
        "Images are of mode RGB",
    ]


def test_pixels_are_where_they_were(tmp_path):
    values = np.arange(24, dtype=np.uint8).reshape(4, 2, 3)
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        Image.fromarray(values).save(tmp_path / name / "1.png")
    features, _ = load_own(f"images:{tmp_path}").train
    assert torch.equal(features[0], torch.from_numpy(values).permute(2, 0, 1) / 255)


def test_what_a_schema_declares_is_not_disclosed(pets):
    save(pets / "dog" / "2.png", size=(9, 7), mode="L")
    save(pets / "dog" / "3.png", mode="RGBA")
    data = with_schema(pets, '[target]\nclasses = ["dog", "cat", "bird"]\n[images]\nsize = [8, 6]\nmode = "L"\n')
    assert data.train[0].shape == (5, 1, 8, 6)
    assert data.train[1].tolist() == [1, 1, 0, 0, 0]
    assert data.disclosed == ()
    assert len(data.class_names) == 3
    assert "Images are 8 x 6 (height x width). Declared." in data.public


@pytest.mark.parametrize(
    ("text", "size", "mode"),
    [
        ("", (5, 3), "RGB"),
        ("", (4, 3), "L"),
        ('[images]\nmode = "RGB"', (5, 3), "RGB"),
        ("[images]\nsize = [4, 3]", (4, 3), "L"),
    ],
)
def test_an_image_of_another_shape_is_named_unless_declared(pets, text, size, mode):
    save(pets / "dog" / "odd.png", size=size, mode=mode)
    with pytest.raises(InputError, match=r"dog.odd\.png is .* and the images are 4 x 3 of mode RGB.*\[images\]"):
        with_schema(pets, text)


@pytest.mark.parametrize("mode", ["I;16", "F"])
def test_more_than_eight_bits_are_refused(pets, mode):
    save(pets / "dog" / "deep.tif", mode=mode)
    with pytest.raises(InputError, match=r"deep\.tif has more than eight bits"):
        with_schema(pets, '[images]\nsize = [4, 3]\nmode = "L"')


def test_an_undeclared_mode_that_is_not_known(tmp_path):
    for name in ("a", "b"):
        save(tmp_path / name / "1.png", mode="RGBA")
    with pytest.raises(InputError, match=r"1\.png is of mode RGBA, not L or RGB.*\[images\]"):
        load_own(f"images:{tmp_path}")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("dog/broken.png", r"broken\.png cannot be read as an image"),
        ("dog/labels.txt", r"labels\.txt is not an image"),
        ("dog/puppies/1.png", "puppies is not an image"),
        ("stray.png", r"stray\.png is in no class"),
    ],
)
def test_what_is_no_image_is_named(pets, name, message):
    (pets / name).parent.mkdir(exist_ok=True)
    (pets / name).write_bytes(b"not an image")
    with pytest.raises(InputError, match=message):
        load_own(f"images:{pets}")


def test_a_truncated_image_is_named(pets):
    content = (pets / "cat" / "b.bmp").read_bytes()
    (pets / "cat" / "b.bmp").write_bytes(content[:-10])
    with pytest.raises(InputError, match=r"b\.bmp cannot be read"):
        load_own(f"images:{pets}")


def test_hidden_files_notes_and_empty_classes_are_no_harm(pets):
    (pets / "cat" / ".DS_Store").write_bytes(b"")
    (pets / ".cache").mkdir()
    (pets / "README.txt").write_text("pets", encoding="utf-8")
    (pets / "axolotl").mkdir()
    data = load_own(f"images:{pets}")
    assert data.class_names == ("axolotl", "cat", "dog")
    assert data.train[1].tolist() == [1, 1, 2]


def test_folders_that_hold_no_data(tmp_path):
    with pytest.raises(InputError, match="is not a folder"):
        load_own(f"images:{tmp_path / 'absent'}")
    with pytest.raises(InputError, match="has 0 folders"):
        load_own(f"images:{tmp_path}")
    (tmp_path / "cat").mkdir()
    with pytest.raises(InputError, match="has 1 folders"):
        load_own(f"images:{tmp_path}")
    (tmp_path / "dog").mkdir()
    with pytest.raises(InputError, match="no images"):
        load_own(f"images:{tmp_path}")
    with pytest.raises(InputError, match="no images"):
        with_schema(tmp_path, '[images]\nsize = [4, 3]\nmode = "L"')


def test_a_folder_that_is_no_class(pets):
    with pytest.raises(InputError, match="dog is none of the classes cat, bird"):
        with_schema(pets, '[target]\nclasses = ["cat", "bird"]')


def test_train_and_test_folders(pets, tmp_path):
    data = tmp_path / "data"
    data.mkdir()
    pets.rename(data / "train")
    assert load_own(f"images:{data}").test is None
    with pytest.raises(InputError, match="is the training data"):
        load_own(f"images:{data}", test_data=f"images:{data / 'train'}")
    save(data / "test" / "dog" / "x.png")
    loaded = load_own(f"images:{data}")
    assert (loaded.train[1].tolist(), loaded.test[1].tolist()) == ([0, 0, 1], [1])
    assert loaded.record == "one image of data"
    with pytest.raises(InputError, match="two test sets"):
        load_own(f"images:{data}", test_data=f"images:{data / 'train'}")
    save(data / "test" / "bird" / "x.png")
    with pytest.raises(InputError, match="bird is none of the classes"):
        load_own(f"images:{data}")


def test_test_data_apart(pets, tmp_path):
    save(tmp_path / "public" / "dog" / "x.png")
    assert load_own(f"images:{pets}", test_data=f"images:{tmp_path / 'public'}").test[1].tolist() == [1]
    with pytest.raises(InputError, match="is the training data"):
        load_own(f"images:{pets}", test_data=f"images:{pets / 'cat' / '..'}")


def test_prediction_from_a_plain_folder(pets, tmp_path):
    encoder = encoder_from_json(json.loads(json.dumps(load_own(f"images:{pets}").encoder.as_json())))
    assert encoder == load_own(f"images:{pets}").encoder
    assert encoder.shape == (3, 4, 3)
    save(tmp_path / "new" / "1.png", value=255)
    assert encoder.read(tmp_path / "new").tolist() == torch.ones(1, 3, 4, 3).tolist()
    assert torch.equal(encoder.read(pets), load_own(f"images:{pets}").train[0])
    with pytest.raises(InputError, match="no images"):
        encoder.read_labelled(tmp_path / "new")
    save(tmp_path / "new" / "2.png", size=(4, 4))
    with pytest.raises(InputError, match=r"2\.png is 4 x 4"):
        encoder.read(tmp_path / "new")
