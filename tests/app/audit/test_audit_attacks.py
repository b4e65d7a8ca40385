"""Attacks on the real step: what is private withstands them, what is broken in one place does not."""

from __future__ import annotations

import json

import numpy as np
import pytest
from broken_twins import TWINS, HalfTheNoise, NoNoise
from scipy.stats import ks_2samp

from adadp import Plan
from adadp.accounting import accountant
from adadp.app.audit import Canary, Dirac, FinalLoss, Subject, audit_method, lower_bound, run_trials
from adadp.app.texts.methods import parse_method
from adadp.errors import InputError
from adadp.methods import DpSgd

pytestmark = pytest.mark.slow


NETWORK = {"records": 40, "batch_size": 20, "steps": 4}
"""Small enough for hundreds of runs."""

TRIALS = 250


def attacked(experiment, plan, delta, *, trials, method=None, **broken):
    """The lower bound, and what the run's own ledger says it cost."""
    subject = Subject(plan, method or DpSgd(), **broken)
    found = run_trials(experiment, subject, trials)
    claimed = accountant("pld").epsilon(found.charged, delta).epsilon
    return lower_bound(found.scores_with, found.scores_without, delta), claimed


# ------------------------------------------------------------------------------------------------ what is private


def ideal_scores(rng, trials, q, noise, steps):
    """Likelihood ratios of the pair the accountant computes with, drawn without any of the code under attack."""
    sides = []
    for chance in (q, 0.0):
        x = (rng.random((trials, steps)) < chance) + rng.normal(0, noise, (trials, steps))
        ratios = np.exp((2 * x - 1) / (2 * noise**2))
        sides.append(np.log(1 - q + q * ratios).sum(1))
    return sides


@pytest.mark.parametrize(
    ("method", "noise", "batch_size", "steps"),
    [("dpsgd", 0.5, 20, 1), ("dpsgd", 0.5, 10, 2), ("adadp:start=1", 0.7, 20, 2)],
    ids=["full batches", "sampled batches", "scaled"],
)
def test_the_strongest_record_proves_what_an_ideal_attack_would_and_no_more_than_is_certified(
    method, noise, batch_size, steps
):
    """An ideal attack with as many runs proves less than the floor in one of 200 audits."""
    plan = Plan.of_noise(noise=noise, records=20, batch_size=batch_size, steps=steps)
    found = run_trials(Dirac(), Subject(plan, parse_method(method)), TRIALS)
    bound = lower_bound(found.scores_with, found.scores_without, 0.1)
    rng = np.random.default_rng(1)
    ideal = [
        lower_bound(*ideal_scores(rng, TRIALS, batch_size / 20, noise, steps), 0.1).epsilon_low for _ in range(200)
    ]
    floor = np.quantile(ideal, 0.005)
    assert 0 < floor <= bound.epsilon_low < accountant("pld").epsilon(found.charged, 0.1).epsilon
    assert Dirac.score_names[bound.score] == "likelihood"
    scores = zip(
        (found.scores_with, found.scores_without), ideal_scores(rng, 20_000, batch_size / 20, noise, steps), strict=True
    )
    assert all(ks_2samp(real[:, 0], drawn).pvalue > 1e-3 for real, drawn in scores)


@pytest.mark.parametrize("method", ["dpsgd", "adadp:start=1"])
def test_a_canary_does_not_refute_a_private_method(method):
    plan = Plan.of_noise(noise=0.7, clip_norm=1.0, records=40, batch_size=40, steps=2)
    bound, claimed = attacked(Canary(), plan, 0.1, trials=80, method=parse_method(method))
    assert 0 < bound.epsilon_low < claimed


# -------------------------------------------------------------------------------------------------- what is broken


def test_half_the_noise_is_noticed_in_the_weights_of_a_network():
    plan = Plan.of_noise(noise=0.8, clip_norm=1.0, records=40, batch_size=40, steps=1)
    bound, claimed = attacked(Canary(), plan, 0.45, trials=250, mechanism=HalfTheNoise())
    assert bound.epsilon_low > claimed


def test_no_noise_is_noticed_by_the_canary():
    plan = Plan.of_noise(noise=4.0, clip_norm=1.0, records=40, batch_size=20, steps=4)
    bound, claimed = attacked(Canary(), plan, 1e-2, trials=30, mechanism=NoNoise())
    assert bound.epsilon_low > claimed


def test_no_noise_is_noticed_in_the_loss_of_the_final_model():
    plan = Plan.of_noise(noise=4.0, clip_norm=1.0, records=40, batch_size=40, steps=2)
    bound, claimed = attacked(FinalLoss(), plan, 1e-2, trials=30, mechanism=NoNoise())
    assert bound.epsilon_low > claimed


def test_a_divisor_that_counts_the_batch_is_noticed_in_the_spread_of_the_noise():
    """With 9 records instead of 8 the noise of thousands of idle coordinates is smaller by a ninth."""
    (twin,) = [each for each in TWINS if each.name == "realised batch as divisor"]
    found = twin.run()
    assert Dirac.score_names[lower_bound(found.scores_with, found.scores_without, twin.delta).score] == "spread"


READINGS = ["adadp-published", "adadp-published:clip=batch", "adadp-published:square=square-of-mean", "adan"]


@pytest.mark.parametrize(
    ("experiment", "method"),
    [*((Canary(), each) for each in READINGS), (Dirac(), READINGS[0]), (Dirac(), READINGS[1])],
    ids=str,
)
def test_what_was_published_is_refuted(experiment, method):
    known = parse_method(method)
    plan = Plan.of_noise(noise=16.0, clip_norm=1.0, **NETWORK)
    bound, claimed = attacked(experiment, plan, 1e-5, trials=40, method=known)
    assert bound.epsilon_low > claimed
    assert known.not_private


# ------------------------------------------------------------------------------------------------ the whole audit


def test_an_audit_says_what_is_claimed_what_is_proved_and_what_that_means(tmp_path):
    found = audit_method("dpsgd", trials=40, epsilon=1, delta=1e-2, **NETWORK)
    assert found.claimed.epsilon == pytest.approx(1, abs=1e-3)
    assert [each.name for each in found.attacks] == ["canary", "dirac"]
    assert not found.refuted
    assert found.verdict().startswith("Not refuted")
    assert "no proof" in found.verdict()
    assert [each.bound.confidence for each in found.attacks] == pytest.approx([0.975, 0.975])
    summary, picture = found.write(tmp_path / "new" / "folder")
    assert picture.read_bytes().startswith(b"\x89PNG")
    written = json.loads(summary.read_text())
    assert written["epsilon_low"] == found.epsilon_low == max(each["epsilon_low"] for each in written["attacks"])
    for attack, row in zip(found.attacks, written["attacks"], strict=True):
        kept = written["scores"][attack.name]
        sides = [np.stack([kept[name][side] for name in attack.score_names], axis=1) for side in ("with", "without")]
        again = lower_bound(*sides, written["delta"], row["confidence"])
        assert again == attack.bound


def test_an_audit_of_what_is_not_private_is_refuted_in_words():
    found = audit_method("adadp-published:clip=batch", attack="canary", trials=50, noise_multiplier=8, **NETWORK)
    assert found.refuted
    assert found.verdict().startswith("REFUTED")
    assert found.summary()["certified"] is False
    assert "Line 23" in found.summary()["not_private"]
    assert found.plan.noise_multiplier_at(0) == 8


def test_too_few_runs_for_a_verdict_are_said_to_be_too_few():
    found = audit_method(attack="dirac", trials=10, epsilon=4, **NETWORK)
    assert "No verdict" in found.verdict()
    assert "more trials" in found.verdict()


def test_progress_goes_on_over_the_attacks():
    told = []
    audit_method(
        trials=2, noise_multiplier=1, watch=lambda done, total: told.append((done, total)), **(NETWORK | {"steps": 1})
    )
    assert told == [(each, 8) for each in range(1, 9)]


def test_optimizer_and_rate_are_those_of_the_method_unless_given():
    def moved(**options):
        found = audit_method(attack="canary", trials=2, noise_multiplier=1, **(NETWORK | {"steps": 1}), **options)
        return found.attacks[0].trials.scores_with[0, 0]

    assert moved(method="adal") == moved(optimizer="rms", lr=0.001)
    assert moved(method="dpsgd") == moved(optimizer="sgd", lr=0.05)
    assert moved(method="adal", optimizer="sgd") == moved(method="dpsgd")
    assert moved(lr=0.1) == pytest.approx(2 * moved(), rel=1e-4)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"epsilon": 1, "noise_multiplier": 1}, "Both"),
        ({"noise_multiplier": 0}, "noise_multiplier"),
        ({"method": "sgd"}, "Unknown method"),
        ({"attack": "guess"}, "Unknown attack"),
        ({"records": 1000}, "560"),
        ({"batch_size": 101}, "batch_size"),
        ({"delta": 0}, "delta"),
        ({"confidence": 1}, "confidence"),
        ({"confidence": 2}, "confidence"),
        ({"optimizer": "lion"}, "lion"),
        ({"lr": 0}, "lr"),
    ],
)
def test_what_is_refused(options, words):
    with pytest.raises(InputError, match=words):
        audit_method(**({"trials": 2, "steps": 1} | options))


def test_a_folder_that_cannot_be_written_is_told(tmp_path):
    found = audit_method(attack="dirac", trials=2, noise_multiplier=1, steps=1)
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="Cannot write"):
        found.write(tmp_path / "file")
