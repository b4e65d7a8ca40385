"""More tests of published: published runs."""

from __future__ import annotations

import copy
import math
from dataclasses import fields

import pytest
import torch
from published_cases import CLIP, READINGS, SIGMA, flat, linear, mlp, only_one_record_has_it, pictures, started
from torch import nn

from adadp import Ledger, Plan
from adadp.accounting import accountant
from adadp.app.config import TrainConfig
from adadp.app.report.certificate import make_certificate
from adadp.app.report.wording import plain_words
from adadp.app.spec import RunSpec
from adadp.app.texts.methods import METHODS, parse_method
from adadp.errors import InputError
from adadp.lab.methods import clamped
from adadp.lab.methods.published import AdadpPublished, Adal
from adadp.ledger import PlannedBudget, read_ledger

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def without_compiler(monkeypatch):
    """Compiling takes seconds, and has tests of its own."""
    monkeypatch.setattr(clamped, "_compiled_kernel", lambda: None)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("adadp-published:clip=record", "clip must be one of example, batch, got 'record'"),
        ("adadp-published:square=", "square must be one of mean-of-squares, square-of-mean, got ''"),
        ("adadp-published:size=network", "size must be one of model, layer"),
        ("adadp-published:gate=Sqrt", "gate must be one of sqrt, moment"),
        ("adadp-published:beta=0", "beta must be greater than 0"),
        ("adadp-published:beta=inf", "beta must be finite"),
        ("adadp-published:threshold=-1", "threshold must not be negative"),
        ("adadp-published:keep=1", "keep must be below 1"),
        ("adadp-published:keep=-0.1", "keep must not be negative"),
        ("adadp-published:gamma=0.1", "no option 'gamma'"),
        ("adan:source=noisy", "source must be one of raw, released"),
        ("adal:rate=1", "It has no options"),
    ],
)
def test_wrong_options_are_refused(text, message):
    with pytest.raises(InputError, match=message):
        parse_method(text)


def test_text_goes_both_ways():
    texts = [
        "adadp-published",
        "adadp-published:clip=batch,gate=moment,beta=1.5",
        "adal",
        "adan",
        "adan:source=released",
    ]
    assert [str(parse_method(text)) for text in texts] == texts
    for reading in READINGS:
        assert parse_method(str(AdadpPublished(**reading))) == AdadpPublished(**reading)


@pytest.mark.parametrize("clip", ["example", "batch"])
def test_an_empty_batch_releases_noise_alone(tmp_path, clip):
    """The gate closed: sigma C / L everywhere. Open: sigma_i / L, nothing where E' is 0, and E' falls by ``keep``."""
    data = tuple(each[:2] for each in pictures())
    model = nn.Sequential(nn.Flatten(), nn.Linear(36, 300)).double()
    private = started(tmp_path, model, data, AdadpPublished(clip=clip), planned=10**9, batch_size=1)
    assert len(private.batches.batch(0)) == 0
    closed = flat(private.release().values())
    assert closed.std().item() == pytest.approx(SIGMA * CLIP, rel=0.03)
    assert not any(value.any() for value in private.query.tensors().values())
    moments = {name: torch.zeros_like(value) for name, value in private.query.tensors().items()}
    moments["1.weight"][:150] = 0.04
    private.restore(private.state() | {"method": copy.deepcopy(moments)})
    weight = private.release()["1.weight"]
    coordinates = 36 * 300 + 300
    assert weight[:150].std().item() == pytest.approx(1.2 * SIGMA * math.sqrt(coordinates * 0.04), rel=0.03)
    assert not weight[150:].any()
    torch.testing.assert_close(private.query.tensors()["1.weight"], 0.9 * moments["1.weight"])


@pytest.mark.parametrize("square", ["mean-of-squares", "square-of-mean"])
@pytest.mark.usefixtures("raw_records")
def test_a_record_that_is_not_finite_contributes_nothing(tmp_path, square):
    data = only_one_record_has_it()
    data[0][-1] = math.nan
    found = []
    for each in (data, tuple(part[:-1] for part in data)):
        private = started(tmp_path, linear(), each, AdadpPublished(square=square), batch_size=39, planned=39)
        released = [flat(private.release().values()) for _ in range(3)]
        found.append(torch.cat([*released, flat(private.query.tensors().values())]))
    torch.testing.assert_close(found[0], found[1], rtol=1e-4, atol=1e-6)
    assert found[0].isfinite().all()


@pytest.mark.usefixtures("raw_records")
def test_squares_beyond_the_largest_number_stay_finite(tmp_path):
    """Each record's squared norm fits a float32, and the sum of their squares does not."""
    x = torch.full((80, 9), 4e18)
    private = started(tmp_path, linear(), (x, torch.arange(80) % 2), AdadpPublished(), batch_size=80)
    for _ in range(3):
        assert all(value.isfinite().all() for value in private.release().values())
    assert max(float(value.max()) for value in private.query.tensors().values()) == torch.finfo(torch.float32).max


def test_a_bound_that_is_learnt_is_refused(tmp_path):
    rule = "quantile:initial=0.5,quantile=0.5,lr=0.2,count_noise=10,floor=0.01,ceiling=100"
    with pytest.raises(InputError, match="adadp-published does not go with a clip bound that is learnt"):
        started(tmp_path, mlp(), pictures(), AdadpPublished(), rule=rule)
    started(tmp_path, mlp(), pictures(), Adal(), rule=rule).release()


def test_without_noise_it_is_the_same_algorithm(tmp_path):
    """A noise of 0 goes through the same coordinates and back."""
    private = started(
        tmp_path, linear(), only_one_record_has_it(), AdadpPublished(), batch_size=40, noise_multiplier=0.0
    )
    almost = started(
        tmp_path, linear(), only_one_record_has_it(), AdadpPublished(), batch_size=40, noise_multiplier=1e-9
    )
    for _ in range(3):
        torch.testing.assert_close(
            flat(private.release().values()), flat(almost.release().values()), rtol=1e-3, atol=1e-5
        )


# Certificate ------------------------------------------------------------------------------------------------------


def certificate_of(tmp_path, method, *, charged=10, before=(), sampling="poisson", noise_multiplier=2.0) -> dict:
    plan = Plan.of_noise(noise=noise_multiplier, records=560, batch_size=56, steps=10, before=before, sampling=sampling)
    with Ledger.create(tmp_path / "ledger.jsonl", budget=PlannedBudget(plan.event())) as ledger:
        charges = [*plan.charges_before(), *(plan.charge_at(step) for step in range(10))] if charged else []
        for charge in charges:
            if charge is not None:
                ledger.charge(charge)
    config = TrainConfig(
        "python", method=method, noise_multiplier=noise_multiplier, delta=1e-4, clip_norm=1.0, allow_nonprivate=True
    )
    record = read_ledger(tmp_path / "ledger.jsonl")
    return make_certificate(
        spec=RunSpec.of(config), plan=plan, ledger=record, randomness="secure", model={}, steps_done=charged
    )


STEPS = Plan.of_noise(noise=2.0, records=560, batch_size=56, steps=10)


def test_no_epsilon_is_certified_and_the_paper_s_claim_stands_apart(tmp_path):
    certificate = certificate_of(tmp_path, "adadp-published:clip=batch")
    assert certificate["private"] is False
    assert [certificate[name] for name in ("epsilon", "epsilon_low", "epsilon_high")] == [None] * 3
    assert certificate["cross_check"] == []
    assert certificate["reason"] == AdadpPublished(clip="batch").not_private
    assert certificate["protects"] == "Nothing."
    claimed = certificate["claimed_by_paper"]
    assert claimed["accountant"] == "theorem1"
    assert claimed["epsilon"] == accountant("theorem1").epsilon(STEPS.event(), 1e-4).epsilon
    assert f"{claimed['epsilon']:.4g} at delta 0.0001 for what was charged" in claimed["text"]
    words = plain_words(certificate)
    assert words.startswith("NOT PRIVATE. Line 23")
    assert "Xu et al. 2020 would claim epsilon" in words
    assert "No guarantee" in words


PAPERS = {
    "adadp-published": "Xu et al. 2020",
    "adadp-published:clip=batch": "Xu et al. 2020",
    "adan": "Xu et al. 2020",
    "dpopt:source=raw": "Xiang et al. 2019",
}


def test_every_method_that_is_not_private_cites_its_own_paper(tmp_path):
    kinds = [METHODS[name] for name in METHODS]
    raw = [kind(source="raw") if "source" in {each.name for each in fields(kind)} else kind() for kind in kinds]
    assert {each.name for each in raw if each.not_private} == {name.partition(":")[0] for name in PAPERS}
    for method, paper in PAPERS.items():
        certificate = certificate_of(tmp_path, method)
        (tmp_path / "ledger.jsonl").unlink()
        claimed = certificate["claimed_by_paper"]
        assert claimed["paper"] == parse_method(method).paper == paper
        assert (f"published by {paper};" in claimed["text"]) == (paper != "Xu et al. 2020")
        assert certificate["reason"] == parse_method(method).not_private


def test_the_claim_names_who_published_the_method(tmp_path):
    own = certificate_of(tmp_path, "adan")["claimed_by_paper"]["text"]
    assert own.startswith("Xu et al. 2020 would claim epsilon")
    assert "published by" not in own
    (tmp_path / "ledger.jsonl").unlink()
    other = certificate_of(tmp_path, "dpopt:source=raw")["claimed_by_paper"]["text"]
    assert "The method was published by Xiang et al. 2019; what that paper would claim was not computed." in other


@pytest.mark.parametrize(
    ("settings", "epsilon", "words"),
    [
        ({"before": (16.0,)}, accountant("theorem1").epsilon(STEPS.event(), 1e-4).epsilon, "the steps alone"),
        ({"sampling": "reshuffle"}, None, "would claim nothing"),
        ({"charged": 0}, 0.0, "epsilon 0 at delta 0.0001"),
    ],
)
def test_what_theorem_1_has_no_words_for(tmp_path, settings, epsilon, words):
    claimed = certificate_of(tmp_path, "adadp-published", **settings)["claimed_by_paper"]
    assert claimed["epsilon"] == epsilon
    assert words in claimed["text"]


def test_a_run_without_noise_says_that(tmp_path):
    certificate = certificate_of(tmp_path, "adadp-published", charged=0, noise_multiplier=0.0)
    assert "no noise" in certificate["reason"]
    assert "claimed_by_paper" not in certificate


@pytest.mark.parametrize("method", ["adal", "adan:source=released", "adadp", "dpsgd"])
def test_private_methods_get_ordinary_certificates(tmp_path, method):
    certificate = certificate_of(tmp_path, method)
    assert certificate["private"] is True
    assert certificate["epsilon"] == STEPS.epsilon(1e-4).epsilon
    assert "claimed_by_paper" not in certificate
