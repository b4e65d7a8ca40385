"""The networks: their shapes as the papers give them, and weights that depend on the seed alone."""

from __future__ import annotations

import sys

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from adadp.app.zoo import DATA_SETS, find
from adadp.app.zoo.models import MODELS, build_model, small_transformer
from adadp.errors import InputError

MNIST_SHAPE = (1, 28, 28)


def layers(model, kind):
    return [module for module in model.modules() if isinstance(module, kind)]


def widths(model):
    return [(layer.in_features, layer.out_features) for layer in layers(model, nn.Linear)]


@pytest.mark.parametrize(
    ("name", "shape", "classes", "expected"),
    [
        ("linear", MNIST_SHAPE, 10, [(784, 10)]),
        ("linear", (9,), 2, [(9, 2)]),
        ("linear-no-bias", (9,), 2, [(9, 2)]),
        ("mlp", MNIST_SHAPE, 10, [(784, 1000), (1000, 10)]),
        ("mlp:1000", (60,), 10, [(60, 1000), (1000, 10)]),
        ("mlp:256,128", MNIST_SHAPE, 10, [(784, 256), (256, 128), (128, 10)]),
        ("mnist-convex", MNIST_SHAPE, 10, [(784, 10)]),
        ("mnist-mlp", (60,), 10, [(60, 1000), (1000, 10)]),
        ("mnist-cnn", MNIST_SHAPE, 10, [(320, 50), (50, 10)]),
        ("cancer", (9,), 2, [(9, 10), (10, 20), (20, 10), (10, 2)]),
        ("cancer-mlp", (9,), 2, [(9, 10), (10, 20), (20, 10), (10, 2)]),
        ("covertype-mlp", (54,), 7, [(54, 100), (100, 100), (100, 7)]),
        ("cifar-fc", (64, 6, 6), 10, [(2304, 384), (384, 384), (384, 10)]),
        ("feature-cnn", (81, 7, 7), 10, [(576, 10)]),
        ("feature-cnn:16,32", (243, 8, 8), 10, [(512, 10)]),
        ("cnn", MNIST_SHAPE, 10, [(512, 32), (32, 10)]),
        ("cnn-tanh", (3, 32, 32), 100, [(800, 32), (32, 100)]),
    ],
)
def test_networks_have_the_widths_the_papers_give(name, shape, classes, expected):
    model = build_model(name, input_shape=shape, classes=classes, seed=0)
    assert widths(model) == expected
    assert model(torch.zeros(3, *shape)).shape == (3, classes)
    other = nn.Tanh if name.split(":")[0] in ("cnn-tanh", "covertype-mlp", "feature-cnn") else nn.ReLU
    assert len(layers(model, other)) == len(layers(model, (nn.Linear, nn.Conv2d))) - 1
    assert len(layers(model, (nn.Tanh, nn.ReLU))) == len(layers(model, other))
    assert not isinstance(list(model.modules())[-1], (nn.ReLU, nn.Tanh)), "logits are not cut"


def test_the_convolutional_network_is_that_of_the_opacus_example():
    model = build_model("cnn", input_shape=MNIST_SHAPE, classes=10, seed=0)
    first, second = layers(model, nn.Conv2d)
    assert (first.in_channels, first.out_channels, first.kernel_size, first.stride, first.padding) == (
        *(1, 16, (8, 8), (2, 2), (3, 3)),
    )
    assert (second.in_channels, second.out_channels, second.kernel_size, second.stride, second.padding) == (
        *(16, 32, (4, 4), (2, 2), (0, 0)),
    )
    assert [(pool.kernel_size, pool.stride) for pool in layers(model, nn.MaxPool2d)] == [(2, 1), (2, 1)]
    assert sum(parameter.numel() for parameter in model.parameters()) == 26_010


@settings(deadline=None, max_examples=30)
@given(height=st.integers(14, 70), width=st.integers(14, 70))
def test_a_convolutional_network_fits_any_image_large_enough(height, width):
    model = build_model("cnn", input_shape=(2, height, width), classes=2, seed=0)
    assert model(torch.zeros(1, 2, height, width)).shape == (1, 2)


@pytest.mark.parametrize("shape", [(784,), (28, 28), (1, 13, 28), (1, 28, 13), (1, 1, 28, 28)])
def test_a_convolutional_network_refuses_what_it_cannot_read(shape):
    with pytest.raises(InputError, match="cnn cannot read"):
        build_model("cnn", input_shape=shape, classes=10, seed=0)


def build(name, seed):
    if name == "transformer":
        return small_transformer(50, 3, seed=seed)
    return build_model(name, input_shape=(64,) if name == "byte-decoder" else MNIST_SHAPE, classes=10, seed=seed)


@pytest.mark.parametrize("name", [*MODELS, "transformer"])
def test_weights_depend_on_the_seed_alone_and_leave_the_generator_alone(name):
    torch.manual_seed(1)
    before = torch.get_rng_state()
    first = build(name, 7)
    assert torch.equal(torch.get_rng_state(), before)
    torch.rand(5)
    second, third = build(name, 7), build(name, 8)
    pairs = list(zip(first.parameters(), second.parameters(), third.parameters(), strict=True))
    assert all(torch.equal(a, b) for a, b, _ in pairs)
    if name in ("linear", "linear-no-bias", "mnist-convex"):
        assert all(not a.any() for a, _, _ in pairs), "a convex model starts at zero"
    else:
        assert not all(torch.equal(a, c) for a, _, c in pairs)


@pytest.mark.parametrize("name", [*MODELS, "transformer"])
def test_no_network_mixes_records(name):
    model = build(name, 0)
    texts = name in ("transformer", "byte-decoder")
    records = torch.randint(50, (4, 64)) if texts else torch.rand(4, *MNIST_SHAPE)
    alone = torch.cat([model(record[None]) for record in records])
    torch.testing.assert_close(model(records), alone)


@pytest.mark.parametrize(("name", "blocks"), [("resnet:8", 3), ("resnet", 9)])
def test_the_residual_network_has_its_depth_and_no_batch_norm(name, blocks):
    model = build_model(name, input_shape=(3, 32, 32), classes=10, seed=0)
    in_paths = [each for key, each in model.named_modules() if isinstance(each, nn.Conv2d) and "shortcut" not in key]
    assert len(in_paths) + len(layers(model, nn.Linear)) == 2 + 2 * blocks
    assert model(torch.rand(2, 3, 32, 32)).shape == (2, 10)
    assert not layers(model, nn.modules.batchnorm._BatchNorm)


@pytest.mark.parametrize("name", ["resnet:9", "resnet:2"])
def test_a_depth_that_no_residual_network_has_is_refused(name):
    with pytest.raises(InputError, match="6n"):
        build_model(name, input_shape=(3, 32, 32), classes=10, seed=0)


class TestOfYourOwn:
    @pytest.fixture(autouse=True)
    def module(self, tmp_path, monkeypatch):
        (tmp_path / "nets_for_test.py").write_text(
            "import torch\n"
            "def small(input_shape, classes):\n"
            "    return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(input_shape[0], classes))\n"
            "def wrong(input_shape, classes):\n"
            "    return 3\n"
            "def more(input_shape, classes, *, width):\n"
            "    return 3\n"
            "def lacking(input_shape, classes):\n"
            "    return small(input_shape)\n"
            "number = 3\n"
        )
        monkeypatch.syspath_prepend(tmp_path)

    def test_a_function_is_called_with_shape_and_classes(self):
        build = [build_model("nets_for_test:small", input_shape=(4,), classes=3, seed=seed) for seed in (1, 1, 2)]
        assert widths(build[0]) == [(4, 3)]
        assert torch.equal(build[0][1].weight, build[1][1].weight)
        assert not torch.equal(build[0][1].weight, build[2][1].weight)

    @pytest.mark.parametrize(
        ("name", "message"),
        [
            ("no_such_module_here:f", "cannot be found.*no_such_module_here"),
            ("nets_for_test:absent", "cannot be found.*absent"),
            ("nets_for_test:number", "no function"),
            ("nets_for_test:wrong", "returned int"),
            (
                "nets_for_test:more",
                r"more\(input_shape, classes, \*, width\) cannot be called as .*more\(input_shape, cl",
            ),
            ("builtins:len", r"cannot be called as builtins:len\(input_shape, classes\)"),
            ("nets-for-test:small", "no model"),
        ],
    )
    def test_mistakes_are_told(self, name, message):
        with pytest.raises(InputError, match=f"(?s){message}"):
            build_model(name, input_shape=(4,), classes=3, seed=0)

    def test_a_mistake_inside_of_it_keeps_its_type_and_words(self):
        with pytest.raises(TypeError, match=r"small\(\) missing 1 required positional argument: 'classes'"):
            build_model("nets_for_test:lacking", input_shape=(4,), classes=3, seed=0)


def test_a_module_in_the_current_folder_is_found_and_the_path_stays_as_it_was(tmp_path, monkeypatch):
    code = "import torch\ndef make(input_shape, classes):\n    return torch.nn.Linear(input_shape[0], classes)\n"
    (tmp_path / "net_found_here.py").write_text(code)
    with pytest.raises(InputError, match="No module named 'net_found_here'"):
        build_model("net_found_here:make", input_shape=(4,), classes=3, seed=0)
    monkeypatch.chdir(tmp_path)
    before = list(sys.path)
    assert widths(build_model("net_found_here:make", input_shape=(4,), classes=3, seed=0)) == [(4, 3)]
    assert sys.path == before


def test_weights_are_built_on_the_cpu_whatever_the_default():
    with torch.device("meta"):
        model = build_model("cnn", input_shape=MNIST_SHAPE, classes=10, seed=0)
    assert {parameter.device.type for parameter in model.parameters()} == {"cpu"}


@pytest.mark.parametrize(
    "name",
    [
        "",
        "MLP",
        "vgg",
        "feature-cnn:3",
        "resnet:a",
        "mlp:",
        "mlp:0",
        "mlp:-5",
        "mlp:a",
        "mlp:10,,10",
        "mlp:1.5",
        "mlp:²",
        "cnn:3",
    ],
)
def test_unknown_names_list_the_known_ones(name):
    with pytest.raises(InputError, match=r"linear, linear-no-bias, mlp, mnist-mlp, .*cnn, cnn-tanh, .*module:function"):
        build_model(name, input_shape=(9,), classes=2, seed=0)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"classes": 1}, "classes"),
        ({"seed": -1}, "seed"),
        ({"seed": 2**64}, "seed"),
        ({"seed": 0.5}, "seed"),
        ({"input_shape": (0,)}, "input_shape"),
    ],
)
def test_numbers_are_checked(wrong, message):
    with pytest.raises(InputError, match=message):
        build_model("linear", **({"input_shape": (9,), "classes": 2, "seed": 0} | wrong))
    build_model("linear", input_shape=(9,), classes=2, seed=2**64 - 1)


@pytest.mark.parametrize("name", DATA_SETS)
def test_the_default_model_of_a_data_set_can_be_built_for_it(name):
    entry = find(name)
    build_model(entry.default_model, input_shape=entry.shape, classes=entry.classes, seed=0)


def test_the_default_models_are_those_of_the_papers():
    assert (find("cancer").default_model, find("mnist").default_model) == ("cancer-mlp", "mlp:1000")
    with pytest.raises(InputError, match="cancer, mnist"):
        find("weather")


def test_the_transformer_reads_tokens_in_order():
    model = small_transformer(1000, 5, seed=0)
    assert len(layers(model, nn.TransformerEncoderLayer)) == 4
    assert all(layer.p == 0 for layer in layers(model, nn.Dropout))
    tokens = torch.arange(2 * 64).reshape(2, 64)
    assert model(tokens).shape == (2, 5)
    assert model(tokens[:, :10]).shape == (2, 5), "shorter sequences are read too"
    assert not torch.allclose(model(tokens), model(tokens.flip(1))), "the order of the tokens matters"
    first, second = layers(model, nn.TransformerEncoderLayer)[:2]
    assert not torch.equal(first.linear1.weight, second.linear1.weight), "layers start with weights of their own"


@pytest.mark.parametrize("wrong", [{"width": 10, "heads": 3}, {"layers": 0}, {"classes": 1}, {"vocabulary": 0}])
def test_the_numbers_of_a_transformer_are_checked(wrong):
    with pytest.raises(InputError):
        small_transformer(**({"vocabulary": 10, "classes": 2, "seed": 0} | wrong))


@pytest.mark.parametrize(
    ("name", "shape", "classes"),
    [
        *[(f"mlp:{width}", (60,), 2) for width in ("999999999,999999999", "9" * 30, ",".join("1" * 101))],
        *[
            ("linear", (10**9,), 2),
            ("linear", (60,), 10**9),
            ("linear", (10**30,), 2),
            ("resnet:999998", (3, 32, 32), 2),
        ],
        ("byte-decoder:64,999999999", (60,), 256),
    ],
    ids=str,
)
def test_a_network_that_no_machine_holds_is_refused_before_it_is_built(name, shape, classes):
    with pytest.raises(InputError, match=r"parameters|too large|no depth|layers"):
        build_model(name, input_shape=shape, classes=classes, seed=0)
