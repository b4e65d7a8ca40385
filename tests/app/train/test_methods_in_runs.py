"""Methods in whole runs: what is refused, what the certificate says, which defaults a method brings."""

from __future__ import annotations

import json

import pytest
import torch
from torch import nn

from adadp import Plan, PrivateGradients
from adadp.app.config import TrainConfig
from adadp.app.features import parse_features
from adadp.app.losses import cross_entropy
from adadp.app.report.wording import plain_words
from adadp.app.resolve import resolve
from adadp.app.runs import RunFolder
from adadp.app.start import start
from adadp.app.texts.methods import parse_method
from adadp.app.train import verify_run
from adadp.errors import InputError
from adadp.ledger import read_ledger

pytestmark = pytest.mark.slow


SHORT = TrainConfig("cancer", noise_multiplier=2.0, delta=1e-4, steps=25, seed=0, threads=1)
NOT_PRIVATE = ("adadp-published", "adadp-published:clip=batch", "adan", "dpopt:source=raw")


@pytest.mark.parametrize("method", NOT_PRIVATE)
def test_a_method_that_is_not_private_is_refused_before_anything_is_made(tmp_path, method):
    with pytest.raises(InputError, match="is not private") as caught:
        start(SHORT.replace(method=method), tmp_path / "run")
    assert "never released" in str(caught.value.why)
    assert "allow_nonprivate" in str(caught.value.fix)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("method", NOT_PRIVATE)
def test_with_permission_it_runs_and_nothing_calls_it_private(tmp_path, method):
    shown = []
    watch = lambda status: shown.append(status.epsilon_so_far())  # noqa: E731
    result = start(SHORT.replace(method=method, allow_nonprivate=True), tmp_path / "run", watch=watch)
    certificate = result.certificate
    assert certificate["private"] is False
    assert (certificate["epsilon"], certificate["epsilon_low"], certificate["epsilon_high"]) == (None, None, None)
    assert "never released" in certificate["reason"]
    assert certificate["claimed_by_paper"]["accountant"] == "theorem1"
    assert certificate["claimed_by_paper"]["epsilon"] > 0
    assert plain_words(certificate).startswith("NOT PRIVATE")
    folder = RunFolder.open(tmp_path / "run")
    assert set(shown) == {None}
    assert read_ledger(folder.ledger_path).not_private == parse_method(method).not_private
    assert not any("epsilon" in record for record in folder.metrics())
    assert b'"private":"false"' in folder.model_path.read_bytes()[:4096].replace(b" ", b"")
    assert all(check.passed for check in verify_run(folder))
    assert json.loads(folder.certificate_path.read_text(encoding="utf-8")) == certificate


@pytest.mark.parametrize(
    "method",
    [
        "adadp",
        "dpsgd",
        "adal",
        "adan:source=released",
        "adadp:power=0.5,start=5",
        "dpopt",
        "dpopt:solver=projected,start=2",
        "dpsgd-momentum:variant=momentum",
    ],
)
def test_private_methods_have_the_certificate_of_their_releases(tmp_path, method):
    result = start(SHORT.replace(method=method, seed=None), tmp_path / "run")
    assert result.certificate["private"] is True
    assert result.certificate["method"] == method
    plain = start(SHORT.replace(method="dpsgd", seed=None))
    assert result.epsilon == plain.epsilon  # the same releases: a method changes what is released, not how often
    assert "claimed_by_paper" not in result.certificate
    assert all(check.passed for check in verify_run(RunFolder.open(tmp_path / "run")))


@pytest.mark.parametrize(
    ("method", "optimizer", "lr"),
    [
        ("adadp-published", "rms", 0.002),
        ("adal", "rms", 0.001),
        ("adan", "sgd", 0.1),
        ("dpopt:source=raw", "sgd", 0.1),
    ],
)
def test_a_published_method_brings_its_step_rule_rate_and_clip(method, optimizer, lr):
    whole = resolve(
        TrainConfig("mnist", noise_multiplier=8.0, delta=1e-5, method=method, features="pca:dim=60,noise_multiplier=16")
    ).config
    assert (whole.optimizer, whole.lr, whole.lr_schedule, whole.clip_norm) == (optimizer, lr, None, 4.0)
    other = resolve(
        TrainConfig("mnist", noise_multiplier=8.0, delta=1e-5, method=method, features="none", lr=0.5, clip_norm=2.0)
    ).config
    assert (other.lr, other.clip_norm) == (0.5, 2.0)


def test_adadp_equalises_the_default_features_and_no_others():
    def stages(**fields: object) -> list[str]:
        whole = resolve(TrainConfig("mnist", **{"epsilon": 1.0, "steps": 10, "batch_size": 100} | fields)).config
        return [stage.name for stage in parse_features(whole.features)]

    assert stages() == ["scatter", "equalise"]
    assert stages(method="dpsgd") == ["scatter"]
    assert stages(features="scatter") == ["scatter"]
    assert stages(model="mlp:1000") == []
    assert stages(epsilon=None, noise_multiplier=1.0) == ["scatter"]


def test_the_method_is_kept_as_it_is_written():
    assert resolve(SHORT.replace(method="adadp:start=20,power=0.25")).config.method == "adadp"
    with pytest.raises(InputError, match="no option 'powr'"):
        resolve(SHORT.replace(method="adadp:powr=1"))


def test_a_loop_of_ones_own_is_told_too_before_a_ledger_is_opened():
    opened = []
    plan = Plan.of_noise(noise=2.0, records=30, batch_size=10, steps=2)
    model, data = nn.Linear(4, 2), (torch.randn(30, 4), torch.randint(0, 2, (30,)))
    with pytest.raises(InputError, match="is not private"):
        PrivateGradients(model, data, cross_entropy, plan, lambda: opened.append(1), method=parse_method("adan"))
    assert not opened
