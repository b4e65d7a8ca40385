"""Canaries in a real run: the plan and its charges stay, the attack finds what leaks, the certificate says it."""

from __future__ import annotations

import json
import math
import re
import shutil
from pathlib import Path

import pytest
import torch
from torch import nn

from adadp.app.config import TrainConfig
from adadp.app.report.html import render, run_page
from adadp.app.report.wording import plain_words
from adadp.app.runs import RunFolder
from adadp.app.train import fit, verify_run
from adadp.app.train.canaries import Canaries
from adadp.app.units import Units
from adadp.errors import InputError, Interrupted, RunError
from adadp.ranks import joined

pytestmark = pytest.mark.slow

SETTINGS = {"method": "dpsgd", "noise_multiplier": 3.0, "delta": 1e-4, "steps": 8, "batch_size": 40, "lr": 0.5}
LEAKS = {"noise_multiplier": 0, "allow_nonprivate": True, "steps": 30}


def records(size: int = 80) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(2)
    values = torch.randn(size, 300, generator=generator)
    return values, (values[:, 0] > 0).long()


def run(out: Path | None = None, data=None, **changes):
    torch.manual_seed(0)
    settings = {"audit_canaries": 60, "seed": 4, **SETTINGS, **changes}
    return fit(nn.Linear(300, 2), records() if data is None else data, out=out, **settings)


def failed(folder: Path) -> list[str]:
    return [check.name for check in verify_run(folder) if not check.passed]


@pytest.fixture(scope="module")
def audited(tmp_path_factory):
    folder = tmp_path_factory.mktemp("audited") / "run"
    return run(folder), folder


def test_the_plan_and_every_charge_are_those_of_the_run_without_canaries(audited):
    result, _ = audited
    plain = run(audit_canaries=None)
    for name in ("plan", "charged", "if_unseeded"):
        assert result.certificate[name] == plain.certificate[name]
    assert result.plan.records == 80
    assert not torch.equal(result.network.weight, plain.network.weight)


def test_the_certificate_says_what_was_shown_and_verifies(audited):
    result, folder = audited
    found = result.certificate["audit"]
    assert found["canaries"] == 60
    assert 0 <= found["epsilon_low"] < result.certificate["if_unseeded"]["epsilon"]
    assert "no guarantee" in found["text"]
    assert found["text"] in plain_words(result.certificate)
    assert any("60 public canaries" in each for each in result.certificate["disclosed"])
    assert failed(folder) == []


def test_the_page_shows_the_bound_and_the_rates_on_logarithmic_axes(audited):
    _, folder = audited
    page = run_page(RunFolder.open(folder))
    (chart,) = (part for section in page.sections for part in section.parts if getattr(part, "name", "") == "canaries")
    assert (chart.x.scale, chart.y.scale) == ("log", "log")
    assert [each.name for each in chart.series] == ["this attack", "guessing", "the most that epsilon allows"]
    assert all(x > 0 and y > 0 for each in chart.series for x, y in zip(each.x, each.y, strict=True))
    assert "Epsilon shown by an attack" in render(page)


def test_a_run_that_memorises_is_caught_and_its_canaries_are_what_it_was_trained_on():
    found = run(**LEAKS).certificate["audit"]
    assert found["right"] > 0.9 * found["guesses"] > 18
    assert found["epsilon_low"] > 1


def test_a_bound_above_the_epsilon_fails_verification(tmp_path):
    """Of this run every coin is told, which its ledger says cannot be: as if the noise had not been added."""
    folder = tmp_path / "run"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("adadp.release.GaussianMechanism.release", _without_noise)
        result = run(folder, noise_multiplier=30.0, steps=30)
    assert result.certificate["if_unseeded"]["epsilon"] < result.certificate["audit"]["epsilon_low"]
    assert "something is wrong" in result.certificate["audit"]["text"]
    assert failed(folder) == ["measurements"]


def _without_noise(self, total, **given):
    return {name: value.float() for name, value in total.items()}


@pytest.mark.parametrize("part", ["right", "text", "gone", "coins"])
def test_what_is_said_of_canaries_follows_from_their_file(audited, tmp_path, part):
    folder = tmp_path / "run"
    shutil.copytree(audited[1], folder)
    path = folder / ("canaries.json" if part == "coins" else "certificate.json")
    content = json.loads(path.read_text())
    if part == "gone":
        del content["audit"]
    elif part == "coins":
        content["included"] = [1 - each for each in content["included"]]
    else:
        content["audit"][part] = {"right": 1000, "text": "Nothing was shown."}[part]
    path.write_text(json.dumps(content))
    assert "measurements" in failed(folder)


_ODD = (
    {},
    {"included": [], "start": [], "end": []},
    {"included": [1], "start": None, "end": [1.0]},
    {"included": [1] * 30, "start": [10**400] * 30, "end": [0.0] * 30},
    {"included": "yes", "start": ["a"], "end": {}},
    {"included": [[1] * 30], "start": [math.nan] * 30, "end": [0.0] * 30},
)


def test_a_page_of_a_broken_file_is_one_clear_error(audited, tmp_path):
    folder = tmp_path / "run"
    shutil.copytree(audited[1], folder)
    for content in (
        {},
        {"included": [], "start": [], "end": []},
        {"included": [1], "start": None, "end": [1.0]},
        *_ODD,
    ):
        (folder / "canaries.json").write_text(json.dumps(content))
        with pytest.raises(RunError, match="canaries"):
            run_page(RunFolder.open(folder))


def stop_at(step):
    def watch(status):
        if status.step == step:
            raise Interrupted("stopped")

    return watch


def test_a_run_that_goes_on_trains_on_the_same_canaries(audited, tmp_path):
    whole, folder = audited
    with pytest.raises(Interrupted):
        run(tmp_path / "run", watch=stop_at(4), checkpoint_every=2)
    torch.manual_seed(1)  # another start than that of the run: what the losses fell from is kept
    resumed = fit(
        nn.Linear(300, 2),
        records(),
        out=tmp_path / "run",
        resume=True,
        **{"audit_canaries": 60, "seed": 4, **SETTINGS, "checkpoint_every": 2},
    )
    assert resumed.certificate["model_digest"] == whole.certificate["model_digest"]
    assert (tmp_path / "run" / "canaries.json").read_bytes() == (folder / "canaries.json").read_bytes()


def test_a_run_does_not_go_on_without_its_coins(tmp_path):
    with pytest.raises(Interrupted):
        run(tmp_path / "run", seed=None, watch=stop_at(2), checkpoint_every=2)
    for content in (None, {"included": [1], "start": [0.5]}):
        (tmp_path / "run" / "canaries.json").unlink(missing_ok=True)
        if content is not None:
            (tmp_path / "run" / "canaries.json").write_text(json.dumps(content))
        with pytest.raises(RunError, match=re.escape("canaries.json")):
            run(tmp_path / "run", seed=None, resume=True, checkpoint_every=2)


def test_coins_of_secure_runs_differ_and_are_fair():
    drawn = [Canaries.of(_config(seed), records(), None, joined()).included for seed in (None, None, 3, 3)]
    assert not torch.equal(drawn[0], drawn[1])
    assert torch.equal(drawn[2], drawn[3])
    assert 400 < int(drawn[0].sum()) < 600


def _config(seed):
    given = {"data": "python", "model": "python", "optimizer": "sgd", "noise_multiplier": 1.0, "delta": 1e-5}
    return TrainConfig(**given, method="dpsgd", batch_size=10, steps=1, clip_norm=1.0, seed=seed, audit_canaries=1000)


def test_each_canary_is_a_unit_and_released_features_are_made_for_all_of_them():
    units = torch.arange(80) // 2
    found = run(units=units, features="standardise:noise_multiplier=8", batch_size=20, audit_canaries=30).certificate
    assert found["plan"]["records"] == 40
    assert found["audit"]["canaries"] == 30
    canaries = Canaries.of(_config(0), records(), None, joined())
    _, more = canaries.added_to(records(), Units(units))
    assert more is not None
    assert len(more) == 40 + canaries.added


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"audit_canaries": 19}, "20"),
        ({"audit_canaries": 10**9}, "100000"),
        ({"audit_canaries": 81}, "more than the records"),
        ({"sampling": "fixed"}, "Poisson"),
        ({"neighbours": "replace-one"}, "Poisson"),
        ({**LEAKS, "delta": None}, "delta"),
        ({"data": (torch.zeros(40, 3, dtype=torch.long), torch.zeros(40, dtype=torch.long))}, "two tensors"),
        ({"data": torch.zeros(40, 3)}, "two tensors"),
    ],
)
def test_what_is_refused(changes, words):
    with pytest.raises(InputError, match=words):
        run(**changes)
