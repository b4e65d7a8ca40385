"""Features of whole data sets: the same with and without the cache, cached only for public data, never half-written."""

from __future__ import annotations

import json
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest
import torch
from torch import nn

from adadp.app.features import (
    STAGES,
    CacheKey,
    FixedStage,
    ReleasedStage,
    computed,
    extract,
    features_text,
    fixed_first,
    parse_features,
    released_stages,
    statement,
    whole_module,
)
from adadp.app.features.extraction import _AT_ONCE
from adadp.errors import InputError


class Doubled(FixedStage):
    """Counts how often it is computed."""

    name = "doubled"
    version = 1
    calls = 0

    def __str__(self) -> str:
        return "doubled"

    def output_shape(self, shape):
        return (2 * shape[0],)

    def module(self, shape):
        stage = self

        class Module(nn.Module):
            def forward(self, records):
                stage.calls += 1
                return torch.cat([records, records], dim=1)

        return Module()


@pytest.fixture
def records() -> torch.Tensor:
    return torch.randn(2 * _AT_ONCE + 3, 2, generator=torch.Generator().manual_seed(0))


def entries(folder: Path) -> list[Path]:
    return sorted((folder / "features").iterdir())


class TestTheCache:
    def key(self, folder: Path, checksum: str = "abc") -> CacheKey:
        return CacheKey(folder, "tiny", (checksum,))

    def test_features_are_computed_once_and_read_again_to_the_bit(self, tmp_path, records):
        stage = Doubled()
        first = extract((stage,), records, part="train", key=self.key(tmp_path))
        assert stage.calls == 3
        second = extract((stage,), records, part="train", key=self.key(tmp_path))
        assert stage.calls == 3
        assert torch.equal(first, second)
        assert torch.equal(first, torch.cat([records, records], dim=1))
        assert second.dtype == torch.float32

    def test_without_a_key_nothing_is_written(self, tmp_path, records, monkeypatch):
        monkeypatch.setenv("ADADP_CACHE", str(tmp_path))
        extract((Doubled(),), records, part="train")
        assert list(tmp_path.iterdir()) == []

    @pytest.mark.parametrize("change", ["data", "part", "records", "version"])
    def test_other_data_other_part_or_other_version_is_another_entry(self, tmp_path, records, change):
        stage = Doubled()
        extract((stage,), records, part="train", key=self.key(tmp_path))
        if change == "version":
            stage.version = 2
        extract(
            (stage,),
            records[:-1] if change == "records" else records,
            part="test" if change == "part" else "train",
            key=self.key(tmp_path, "xyz" if change == "data" else "abc"),
        )
        assert stage.calls == 6
        assert len(entries(tmp_path)) == 2

    def test_features_of_another_kind_of_device_are_another_entry(self, tmp_path, records, monkeypatch):
        """They differ in their last bits, and a run with a seed repeats to the bit."""
        stage, made = Doubled(), []

        def on_a_device(module, values, shape, *, device, **_):
            made.append(device)
            return torch.full((len(values), *shape), float(len(made)))

        monkeypatch.setattr("adadp.app.features.extraction.computed", on_a_device)
        found = {}
        for device in ("cuda:0", "cpu", "cuda:1", "cpu", torch.device("cpu")):
            features = extract((stage,), records, part="train", key=self.key(tmp_path), device=device)
            found.setdefault(str(device), set()).add(float(features[0, 0]))
        assert made == ["cuda:0", "cpu"]
        assert found == {"cuda:0": {1.0}, "cpu": {2.0}, "cuda:1": {1.0}}

    def test_what_was_kept_before_devices_were_told_apart_is_still_found(self, tmp_path):
        place = self.key(tmp_path).place(parse_features("scatter"), "train", 7)
        assert place.name == "tiny-train-scatter-1377fc1e44b68e2d"

    @pytest.mark.parametrize("damage", ["bits", "short", "about", "lost"])
    def test_a_damaged_entry_is_computed_again(self, tmp_path, records, damage):
        stage = Doubled()
        whole = extract((stage,), records, part="train", key=self.key(tmp_path))
        (entry,) = entries(tmp_path)
        content = bytearray((entry / "features.f32").read_bytes())
        if damage == "bits":
            content[5] ^= 1
            (entry / "features.f32").write_bytes(content)
        elif damage == "short":
            (entry / "features.f32").write_bytes(content[:-4])
        elif damage == "about":
            (entry / "about.json").write_text("{}")
        else:
            (entry / "features.f32").unlink()
        with pytest.warns(UserWarning, match="computed again"):
            again = extract((stage,), records, part="train", key=self.key(tmp_path))
        assert torch.equal(again, whole)
        assert torch.equal(extract((stage,), records, part="train", key=self.key(tmp_path)), whole)
        assert stage.calls == 6

    def test_an_entry_without_its_last_file_is_no_entry(self, tmp_path, records):
        stage = Doubled()
        extract((stage,), records, part="train", key=self.key(tmp_path))
        (entries(tmp_path)[0] / "about.json").unlink()
        extract((stage,), records, part="train", key=self.key(tmp_path))
        assert stage.calls == 6

    def test_a_cache_that_cannot_be_written_is_done_without(self, tmp_path, records):
        (tmp_path / "features").write_text("a file where a folder belongs")
        with pytest.warns(UserWarning, match="could not be kept"):
            found = extract((Doubled(),), records, part="train", key=self.key(tmp_path))
        assert found.shape == (len(records), 4)

    def test_progress_is_told_for_every_batch(self, records):
        told: list[tuple[str, int, int]] = []
        extract((Doubled(),), records, part="train", progress=lambda *each: told.append(each))
        assert [each[1] for each in told] == [_AT_ONCE, 2 * _AT_ONCE, 2 * _AT_ONCE + 3]
        assert {(each[0], each[2]) for each in told} == {("features of train", len(records))}

    @pytest.mark.parametrize("text", ["scatter", "conv-cifar100", "pca"])
    def test_a_record_has_the_same_features_whoever_else_is_there(self, text):
        images = torch.rand(300, 1, 28, 28, generator=torch.Generator().manual_seed(0))
        if text == "pca":
            stage = parse_features("pca:dim=7,noise_multiplier=1")[0]
            module, shape = stage.module({"components": torch.randn(784, 7)}), (7,)
        else:
            module, shape = whole_module(parse_features(text), (1, 28, 28), {})
        everybody = computed(module, images, shape)
        others = torch.cat([images[:100], images[101:]])  # every record after the one left out moves up
        without = computed(module, others, shape)
        moved = (torch.cat([everybody[:100], everybody[101:]]) - without).flatten(1).norm(dim=1)
        assert torch.equal(everybody[:100], without[:100])
        assert (moved / without.flatten(1).norm(dim=1)).max() < 2**-21  # half of what the step allows for rounding

    @pytest.mark.parametrize("text", ["scatter", "conv-cifar100"])
    def test_alone_a_record_has_the_same_features_bit_for_bit(self, text):
        """For exact arithmetic: neither the others nor the place of a record may change a bit."""
        images = torch.rand(12, 1, 28, 28, generator=torch.Generator().manual_seed(0))
        module, shape = whole_module(parse_features(text), (1, 28, 28), {})
        everybody = computed(module, images, shape, alone=True)
        assert torch.equal(everybody[5:], computed(module, images[5:], shape, alone=True))
        torch.testing.assert_close(everybody, computed(module, images, shape), rtol=1e-3, atol=1e-5)

    def test_features_of_records_alone_are_cached_apart(self, tmp_path):
        key = CacheKey(tmp_path, "d", ("c",))
        places = {key.place((Doubled(),), "train", 9, alone=alone) for alone in (False, True)}
        assert len(places) == 2

    def test_no_records_give_no_features(self):
        assert extract((Doubled(),), torch.zeros(0, 2), part="test").shape == (0, 4)


class TestText:
    @pytest.mark.parametrize(
        "text",
        [
            "scatter",
            "scatter:groups=0,unit=0",
            "scatter:J=3,angles=4,groups=0",
            "pca:dim=60",
            "pca:dim=60,noise_multiplier=16.0",
            "pca:dim=10,noise_multiplier=3.5,whiten=1,norm=9.0",
            "conv-cifar100",
            "conv-cifar100:norm=3.0",
            "efficientnet-lite0:size=64",
            "bounds:columns=3;7,noise_multiplier=20.0",
            "scatter+pca:dim=10,noise_multiplier=2.0",
        ],
    )
    def test_text_and_stages_say_the_same(self, text):
        stages = parse_features(text)
        assert features_text(stages) == text
        assert parse_features(features_text(stages)) == stages

    def test_spaces_do_not_matter(self):
        assert parse_features(" scatter + pca:dim=3 , noise_multiplier=2") == parse_features(
            "scatter+pca:dim=3,noise_multiplier=2"
        )

    def test_nothing_is_nothing(self):
        assert parse_features(None) == parse_features("none") == ()
        assert features_text(()) == "none"
        assert statement((), None) is None

    @pytest.mark.parametrize(
        ("text", "message"),
        [
            ("wavelet", "no features 'wavelet'.*scatter"),
            ("", "no features ''"),
            ("scatter+", "no features ''"),
            ("none+scatter", "no features 'none'"),
            ("pca:size=3", "pca has no option 'size'.*dim"),
            ("pca:dim", "dim= of pca cannot be read.*whole number"),
            ("pca:dim=1.5", "dim=1.5 of pca cannot be read"),
            ("pca:dim=3,dim=4", "dim twice"),
            ("pca:dim=3,noise_multiplier=much", "noise_multiplier=much.*a number"),
            ("pca:whiten=yes", "whiten=yes.*0 or 1"),
            ("pca:dim=3,noise_multiplier=nan", "noise_multiplier"),
            ("pca:dim=0", "dim must be at least 1"),
            ("wavelet:J=2", "Unknown feature 'wavelet'.*scatter"),
            ("bounds", "lacks an option"),
            ("bounds:columns=a", "columns=a.*semicolons"),
            ("efficientnet-lite0:size=0", "size"),
        ],
    )
    def test_mistakes_are_told(self, text, message):
        with pytest.raises(InputError, match=f"(?s){message}"):
            parse_features(text)

    def test_every_stage_is_of_one_kind(self):
        for name, kind in STAGES.items():
            assert issubclass(kind, FixedStage) != issubclass(kind, ReleasedStage)
            assert kind.name == name

    def test_what_comes_after_a_release_waits_for_it(self):
        stages = parse_features("scatter+pca:dim=3,noise_multiplier=2+pca:dim=2,noise_multiplier=2")
        fixed, rest = fixed_first(stages)
        assert (fixed, rest) == (stages[:1], stages[1:])
        assert released_stages(stages) == stages[1:]

    def test_the_certificate_names_public_data(self):
        said = statement(parse_features("conv-cifar100+pca:dim=3,noise_multiplier=2"), "digest")
        assert said["stages"] == ["conv-cifar100", "pca:dim=3,noise_multiplier=2.0"]
        assert said["released"] == ["pca:dim=3,noise_multiplier=2.0"]
        assert "CIFAR-100" in said["public"][0]
        assert json.loads(json.dumps(said)) == said


MINE = """
from dataclasses import dataclass
from torch import nn
from adadp.app.features import FixedStage

@dataclass(frozen=True)
class Scaled(FixedStage):
    factor: float
    name_of_scale: str = "plain"
    twice: bool = False
    hidden: object = None

    def output_shape(self, shape):
        return shape

    def module(self, shape):
        stage = self
        class Module(nn.Module):
            def forward(self, records):
                return records * stage.factor * (2 if stage.twice else 1)
        return Module()
"""


class TestStagesOfTheUser:
    @pytest.fixture
    def file(self, tmp_path) -> Path:
        path = tmp_path / "mine_features.py"
        path.write_text(MINE)
        return path

    def test_a_stage_in_a_file_works_as_ours_do(self, file, records):
        text = f"{file}:Scaled:factor=1.5,twice=1"
        (stage,) = parse_features(text)
        assert str(stage) == text
        assert parse_features(features_text((stage,))) == (stage,)
        module, shape = whole_module((stage,), (2,), {})
        assert shape == (2,)
        assert torch.equal(module(records), records * 3)
        assert statement((stage,), None)["stages"] == [text]

    def test_a_stage_in_a_module_works_beside_ours(self, file, monkeypatch):
        monkeypatch.syspath_prepend(file.parent)
        stages = parse_features("mine_features:Scaled:factor=2,name_of_scale=big + pca:dim=3,noise_multiplier=1")
        assert features_text(stages) == (
            "mine_features:Scaled:factor=2.0,name_of_scale=big+pca:dim=3,noise_multiplier=1.0"
        )

    def test_an_entry_point_gives_a_stage_its_name(self, file, monkeypatch):
        monkeypatch.syspath_prepend(file.parent)
        offered = EntryPoint("scaled", "mine_features:Scaled", "adadp.features")
        monkeypatch.setitem(STAGES.__dict__, "_offered", {"scaled": offered})
        assert features_text(parse_features("scaled:factor=0.5")) == "scaled:factor=0.5"

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            (":Scaled", "lacks an option.*factor"),
            (":Scaled:factor=big", "factor=big.*a number"),
            (":Scaled:factor=1,hidden=3", "no option 'hidden'.*factor, name_of_scale, twice"),
            (":dataclass", "is not a feature"),
            (":FixedStage", "is not a feature"),
            (":Missing", "cannot be loaded"),
        ],
    )
    def test_mistakes_are_told(self, file, options, message):
        with pytest.raises(InputError, match=f"(?s){message}"):
            parse_features(f"{file}{options}")

    def test_features_of_changed_code_are_not_taken_from_the_cache(self, file, tmp_path):
        key = CacheKey(tmp_path, "tiny", ("abc",))
        stages = parse_features(f"{file}:Scaled:factor=2")
        before = key.place(stages, "train", 9)
        assert key.place(stages, "train", 9) == before
        file.write_text(MINE + "# changed")
        assert key.place(stages, "train", 9) != before
