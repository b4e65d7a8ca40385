"""Stages fitted to synthetic images: what is drawn, what the stages compute, and that each record is mapped alone."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

import adadp
from adadp.app.features import features_text, parse_features, statement, whole_module
from adadp.app.features.synthetic import LogScattering, Patches, Reference, SyntheticImages, SyntheticPca, deep_patches
from adadp.app.features.synthetic import patches as patches_module
from adadp.app.features.synthetic.processes import leaves
from adadp.errors import InputError

SHAPE = (3, 16, 16)
SOURCE = "synthetic:leaves,images=120"
BLOCKS = ("log-scatter", "patches:filters=8", "deep-patches:filters=4")
WHOLE = f"{SOURCE}+{'&'.join(BLOCKS)}+synthetic-pca:dim=40,flatten=10"


@pytest.fixture(scope="module", autouse=True)
def cache(tmp_path_factory):
    """Fits of these tests are kept apart from those of whoever runs them; a small first layer is fitted in no time."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(deep_patches, "_FIRST", 8)
        patch.setattr(deep_patches, "_PATCHES", 4000)
        folder = tmp_path_factory.mktemp("cache")
        patch.setenv("ADADP_CACHE", str(folder))
        yield folder / "synthetic"


@pytest.fixture(scope="module")
def images() -> torch.Tensor:
    """Images that no stage was fitted to."""
    return leaves(20, SHAPE, seed=9)


def module_of(text: str):
    return whole_module(parse_features(text), SHAPE, {})[0]


def test_leaves_are_the_images_of_their_seed():
    drawn = leaves(260, (3, 8, 8), seed=0)
    assert drawn.shape == (260, 3, 8, 8)
    assert 0 <= drawn.min() < drawn.max() <= 1
    assert torch.equal(drawn[:250], leaves(250, (3, 8, 8), seed=0)), "more images begin with the same ones"
    assert not torch.allclose(drawn[:250], leaves(250, (3, 8, 8), seed=1))
    assert leaves(2, (1, 8, 12), seed=0).shape == (2, 1, 8, 12)
    golden = [0.36382, 0.32302, 0.35195]  # of this program; other numbers need a new version of every stage
    assert drawn[0, :, 4, 4].tolist() == pytest.approx(golden, abs=1e-4)


def test_leaves_have_edges_colours_and_scales_as_photographs_do(images):
    """Spectra of natural images fall as about 1 / frequency^2 in power (Field 1987): white noise has a slope of 0."""
    drawn = leaves(250, (1, 32, 32), seed=2)[:, 0]
    power = torch.fft.fft2(drawn - drawn.mean((1, 2), keepdim=True)).abs().square().mean(0)
    frequency = torch.hypot(torch.fft.fftfreq(32)[:, None], torch.fft.fftfreq(32))
    low, high = (power[(frequency > f / 1.2) & (frequency < f * 1.2)].mean() for f in (1 / 16, 1 / 4))
    slope = float((low / high).log() / torch.tensor(4.0).log())
    assert 1.5 < slope < 3
    grey = images.mean(1, keepdim=True)
    assert 0.02 < (images - grey).std() < grey.std(), "colours vary less than luminance"


@pytest.mark.parametrize("block", BLOCKS)
def test_features_of_the_synthetic_images_are_centred_rows_of_norm_one(block):
    stages = parse_features(f"{SOURCE}+{block}")
    features = module_of(f"{SOURCE}+{block}")(stages[0].drawn(SHAPE))
    assert features.shape[1:] == stages[1].output_shape(SHAPE)
    rows = features.flatten(1)
    torch.testing.assert_close(rows.norm(dim=1), torch.ones(120))
    assert rows.mean(0).norm() < 0.15


@pytest.mark.parametrize(("block", "tolerance"), list(zip(BLOCKS, (0.1, 1e-4, 1e-4), strict=True)))
def test_an_image_and_its_mirror_image_have_the_same_features(images, block, tolerance):
    module = module_of(f"{SOURCE}+{block}")
    features, mirrored, turned = module(images), module(images.flip(-1)), module(images.flip(-2))
    assert (features - mirrored).norm() < tolerance * features.norm()
    assert (features - turned).norm() > 0.3 * features.norm(), "upside down is another image"


@pytest.mark.parametrize("text", [WHOLE, *(f"{SOURCE}+{block}" for block in BLOCKS)])
def test_every_record_is_mapped_by_itself(images, text):
    module = module_of(text)
    features = module(images)
    torch.testing.assert_close(module(images[3:4])[0], features[3], atol=1e-5, rtol=0)
    strange = images.clone()
    strange[5] = torch.nan
    found = module(strange)
    assert found[5].isnan().any()
    keep = torch.arange(20) != 5
    torch.testing.assert_close(found[keep], features[keep], atol=1e-5, rtol=0)
    assert module(torch.zeros(2, *SHAPE)).isfinite().all(), "a constant image has features"
    assert module(images[:0]).shape == (0, *features.shape[1:])


def test_features_are_those_that_were_measured(images):
    """Numbers of this program: where they change, versions must rise, since models were trained on the old ones."""
    found = {text: module_of(f"{SOURCE}+{text}")(images[:1]).flatten() for text in BLOCKS}
    golden = {
        "log-scatter": (-0.00597, 0.00475, 0.04077),
        "patches:filters=8": (0.01381, 0.0325, -0.0793),
        "deep-patches:filters=4": (0.13343, -0.06713, -0.04933),
    }
    for text, expected in golden.items():
        assert found[text][[0, 17, 40]].tolist() == pytest.approx(expected, abs=2e-4), text


def test_log_scattering_standardises_logarithms_of_the_scattering(images):
    """An independent way: both transforms are computed, and logarithms, means and spreads taken by hand."""
    grey = images.mean(1, keepdim=True)
    stage = LogScattering()
    scattering = stage.scattering.module((1, 16, 16))
    tensors = stage.fit(grey)
    plain = scattering(grey)[:, 1:]
    floors = 0.5 * plain.mean((0, 2, 3), keepdim=True)
    torch.testing.assert_close(tensors["floors"][1:], floors.flatten())
    opposite = torch.tensor([6, 5, 4, 3, 2, 1, 0, 7])  # angle number a is (3 - a) pi / 8
    order = torch.cat([opposite, 8 + opposite, 16 + (opposite[:, None] * 8 + opposite).flatten()])
    logarithms = (plain + floors).log()
    both = (logarithms + logarithms.flip(-1)[:, order])[..., :2]
    torch.testing.assert_close(tensors["mean"][1:], both.mean((0, 2, 3)))
    torch.testing.assert_close(1 / tensors["scale"][1:], both.std((0, 2, 3)))


def test_colours_are_turned_and_not_stretched(images):
    """Grey images have no differences of colours: their channels of them are constant."""
    grey = images.mean(1, keepdim=True).expand(-1, 3, -1, -1)
    module = module_of(f"{SOURCE}+log-scatter")
    colours = module.get_submodule("1").plain.colours
    torch.testing.assert_close(colours @ colours.T, torch.eye(3), atol=1e-6, rtol=0)
    plain = module.get_submodule("1").plain(grey)
    assert plain[:, 81:].abs().max() < 1e-5 < plain[:, :81].abs().max()


def test_responses_are_those_of_each_patch(images):
    generator = torch.Generator().manual_seed(0)
    filters = patches_module.pixel_filters(images, 4, 6, 0.1, generator)
    assert torch.equal(filters[4:], filters[:4].flip(-1))
    found = patches_module.pixel_responses(images, filters, 2)
    patch = images[7, :, 4:10, 6:12].flatten()
    alone = (patch - patch.mean()) / (patch.var(unbiased=False) + 0.03**2).sqrt()
    torch.testing.assert_close(found[7, :, 2, 3], filters.flatten(1) @ alone, atol=1e-4, rtol=1e-4)


def test_patches_are_cut_from_their_places():
    maps = torch.arange(2 * 3 * 5 * 7.0).view(2, 3, 5, 7)
    cut = patches_module.cut(maps, 2, 50, torch.Generator().manual_seed(0))
    for patch in cut:
        start = int(patch[0, 0, 0])
        which, place = start // 105, start % 105
        assert place < 35, "the first value is of the first channel"
        assert torch.equal(patch, maps[which, :, place // 7 : place // 7 + 2, place % 7 : place % 7 + 2])
    assert {int(patch[0, 0, 0]) for patch in cut} > {0, 105}, "both maps, and their corners"


def test_whitening_makes_the_second_moment_of_long_directions_one():
    generator = torch.Generator().manual_seed(0)
    rows = torch.randn(5000, 6, generator=generator) * torch.tensor([9.0, 5, 4, 3, 2, 0.001])
    white = rows @ patches_module.whitening_of(rows, 1e-4)
    expected = torch.eye(6)
    expected[5, 5] = 0  # far below the ridge
    torch.testing.assert_close(white.T @ white / 5000, expected, atol=0.02, rtol=0)


def test_of_two_rows_the_longer_one_is_a_filter():
    rows = torch.tensor([[3.0, 4.0], [1.0, 0.0], [0.0, 1.0], [0.0, -2.0]])
    torch.testing.assert_close(patches_module.longer(rows), torch.tensor([[0.6, 0.8], [0.0, -1.0]]))


def test_components_are_those_of_the_synthetic_rows_and_the_longest_are_flattened():
    rows = torch.randn(200, 30, generator=torch.Generator().manual_seed(0)) * torch.linspace(3, 0.5, 30)
    unit = functional.normalize(rows)
    expected = torch.linalg.eigvalsh((unit.T @ unit).double()).flip(0)
    plain = SyntheticPca(dim=12, flatten=0).fit(rows)["components"]
    torch.testing.assert_close(plain @ plain.T, torch.eye(12), atol=1e-4, rtol=0)
    moment = (unit @ plain.T).T @ (unit @ plain.T)
    torch.testing.assert_close(moment.diag().double(), expected[:12], atol=1e-3, rtol=1e-4)
    flat = SyntheticPca(dim=12, flatten=5).fit(rows)["components"]
    sizes = (unit @ flat.T).square().sum(0).double()
    torch.testing.assert_close(sizes[:6], expected[5].expand(6), atol=1e-3, rtol=1e-4)
    torch.testing.assert_close(flat[5:], plain[5:])
    assert (plain.gather(1, plain.abs().argmax(1, keepdim=True)) > 0).all(), "signs are fixed"
    module = SyntheticPca(dim=12, flatten=5).fitted((30,), {"components": flat})
    torch.testing.assert_close(module(rows).norm(dim=1), torch.ones(200))
    assert not module(torch.zeros(1, 30)).any()


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("log-scatter", "no synthetic images"),
        ("patches&scatter", "no synthetic images"),
        ("synthetic:waves", "no random process"),
        ("synthetic:leaves,images=5", "images"),
        ("scatter+synthetic:leaves", "one or three channels"),
        (f"{SOURCE}+centre+synthetic-pca", "after a stage that is released"),
        (f"{SOURCE}+centre+patches&scatter", "after a stage that is released"),
        (f"{SOURCE}+patches&centre", "joined with other features"),
        (f"{SOURCE}+patches:size=40", "at least 40 x 40"),
        (f"{SOURCE}+patches:filters=0", "filters"),
        (f"{SOURCE}+log-scatter:floor=0", "floor"),
        (f"{SOURCE}+synthetic-pca:dim=10", "flatten is 200"),
        (f"{SOURCE}+synthetic-pca:dim=130,flatten=0", "120 synthetic images"),
        (f"{SOURCE}+synthetic-pca:dim=800", "768 values"),
    ],
)
def test_what_cannot_be_computed_is_refused(text, part):
    with pytest.raises(InputError, match=part):
        module_of(text)


def test_a_fit_is_kept_under_all_it_follows_from_and_read_again(cache, monkeypatch):
    module_of(f"{SOURCE}+patches:filters=3")
    place = max(cache.glob("patches-*"), key=lambda path: path.stat().st_mtime)
    whole = place.read_bytes()
    monkeypatch.setattr(Patches, "fit", lambda *_: pytest.fail("it is in the cache"))
    module_of(f"{SOURCE}+patches:filters=3")
    monkeypatch.undo()
    place.write_bytes(whole[:-4] + b"1234")
    module_of(f"{SOURCE}+patches:filters=3")
    assert place.read_bytes() == whole, "a damaged file is replaced"
    stage = Patches(filters=3)
    source = SyntheticImages("leaves", images=120)
    others = [
        Reference(source, (1, 16, 16)),
        Reference(SyntheticImages("leaves", images=120, seed=1), SHAPE),
        Reference(SyntheticImages("leaves", images=121), SHAPE),
        Reference(source, SHAPE).after(LogScattering(), torch.nn.Identity()),
    ]
    assert Reference(source, SHAPE).place(stage) == place
    assert len({each.place(stage) for each in others} | {place}) == 5


def test_the_certificate_says_that_no_real_image_was_used():
    said = statement(parse_features(f"{WHOLE}+centre:noise_multiplier=30"), None)
    assert said["public"] == ["120 synthetic images drawn by a random process (dead leaves): no real image is in them."]
    assert said["released"] == ["centre:noise_multiplier=30.0"]


def test_a_run_trains_on_them_and_its_model_takes_images(images):
    torch.manual_seed(0)
    records = leaves(60, SHAPE, seed=4)
    labels = (records.mean((1, 2, 3)) > records.mean()).long()
    result = adadp.fit(
        torch.nn.Linear(40, 2, bias=False),
        (records, labels),
        features=f"{WHOLE}+centre",
        **{"epsilon": 8.0, "delta": 1e-3, "epochs": 2, "batch_size": 20, "seed": 0, "clip_norm": 0.1, "lr": 1.0},
    )
    stages = result.certificate["features"]["stages"]
    assert stages[-1].startswith("centre:noise_multiplier=")
    assert result.model(images).shape == (20, 2)
    features = module_of(WHOLE)(images)
    assert not torch.allclose(result.network(features), result.model(images)), "the released mean is subtracted"


def test_the_text_of_the_whole_chain_reads_back():
    stages = parse_features(WHOLE.replace("&", " & ").replace("+", " + "))
    assert features_text(stages) == WHOLE
    assert parse_features(features_text(stages)) == stages
