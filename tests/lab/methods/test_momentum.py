"""DP-SGD with momentum and a falling clip bound: the four variants, what is charged for them, and the noise in them."""

from __future__ import annotations

import math
import statistics

import pytest
import torch
from clip_texts import rule_of
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from adadp import Ledger, Plan, PrivateGradients
from adadp.accounting import accountant
from adadp.app.config import TrainConfig
from adadp.app.losses import cross_entropy
from adadp.app.runs import RunFolder
from adadp.app.spec import RunSpec
from adadp.app.texts.methods import parse_method
from adadp.app.texts.schedules import parse_schedule
from adadp.app.train import fit, verify_run
from adadp.app.train.planning import plan_of
from adadp.app.zoo import load
from adadp.errors import InputError, Interrupted
from adadp.events import Composed, GaussianRelease, Neighbours, PoissonSampled
from adadp.lab.methods.momentum import DpSgdMomentum, variance_factor
from adadp.ledger import PlannedBudget, read_ledger

pytestmark = pytest.mark.slow


DATA = load("cancer").train
SETTINGS = {"delta": 1e-4, "batch_size": 56, "clip_norm": 1.0, "lr": 0.2}


def network() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(9, 6), nn.Tanh(), nn.Linear(6, 2))


def weights(model: nn.Module) -> torch.Tensor:
    return torch.cat([value.detach().flatten() for value in model.parameters()])


# Momentum ---------------------------------------------------------------------------------------------------------


def test_momentum_is_that_of_the_optimizer():
    ours = fit(
        network(), DATA, noise_multiplier=1.0, epochs=3, seed=0, method="dpsgd-momentum:variant=momentum", **SETTINGS
    )
    torchs = fit(network(), DATA, noise_multiplier=1.0, epochs=3, seed=0, method="dpsgd", momentum=0.6, **SETTINGS)
    torch.testing.assert_close(weights(ours.model), weights(torchs.model), rtol=1e-5, atol=1e-6)
    assert ours.epsilon_if_unseeded == torchs.epsilon_if_unseeded > 0


def test_variants_leave_out_what_they_say():
    found = {}
    for variant in ("neither", "momentum", "clip", "both"):
        method = f"dpsgd-momentum:variant={variant}"
        found[variant] = fit(network(), DATA, noise_multiplier=1.0, epochs=3, seed=0, method=method, **SETTINGS)
    plain = fit(network(), DATA, noise_multiplier=1.0, epochs=3, seed=0, method="dpsgd", **SETTINGS)
    assert torch.equal(weights(found["neither"].model), weights(plain.model))
    epsilons = {variant: each.epsilon_if_unseeded for variant, each in found.items()}
    assert epsilons["neither"] == epsilons["momentum"] == plain.epsilon_if_unseeded
    assert epsilons["clip"] == epsilons["both"] < plain.epsilon_if_unseeded
    assert len({tuple(weights(each.model).tolist()) for each in found.values()}) == 4


@pytest.mark.parametrize(("c", "steps", "factor"), [(0.9, None, 5.2632), (0.6, None, 1.5625), (0.6, 1, 1), (0, 9, 1)])
def test_the_variance_factor_of_the_paper(c, steps, factor):
    assert variance_factor(c, steps) == pytest.approx(factor, abs=1e-4)


@given(st.floats(0, 0.99), st.integers(1, 200))
def test_the_variance_factor_is_the_sum_of_squares(c, steps):
    assert variance_factor(c, steps) == pytest.approx(math.fsum(c ** (2 * k) for k in range(steps)), rel=1e-9)
    assert variance_factor(c, steps) <= variance_factor(c)


def test_the_noise_in_the_velocity_is_as_stated(tmp_path):
    """Records without a gradient: what comes out is noise alone, over many coordinates."""
    model = nn.Linear(400, 50, bias=False)
    data = (torch.zeros(20, 400), torch.zeros(20, dtype=torch.long))
    clips = parse_schedule("piecewise:0=1,2=0.5")
    plan = Plan.of_noise(
        noise=2.0, steps=6, records=20, batch_size=20, clip_norm=rule_of("flat:3"), clip_norm_schedule=clips
    )
    with Ledger.create(tmp_path / "ledger.jsonl", budget=PlannedBudget(plan.event())) as ledger:
        private = PrivateGradients(model, data, cross_entropy, plan, ledger, method=DpSgdMomentum("momentum"), seed=0)
        variance = 0.0
        for step in range(6):
            noise = private.release()["weight"].flatten().tolist()
            variance = 0.36 * variance + (2.0 * 3 * (0.5 if step >= 2 else 1) / 20) ** 2
            stated = private.gradient_deviations["weight"]
            assert stated == pytest.approx(math.sqrt(variance), rel=1e-3)  # the mechanism's grid and rounding add a bit
            assert statistics.pstdev(noise) == pytest.approx(stated, rel=0.03)


@pytest.mark.parametrize("text", ["c=1", "c=-0.1", "c=nan", "variant=all"])
def test_wrong_options_are_refused(text):
    with pytest.raises(InputError):
        parse_method(f"dpsgd-momentum:{text}")


# The clip bound and its noise -------------------------------------------------------------------------------------


def config(method: str = "dpsgd-momentum", **changes) -> TrainConfig:
    base = TrainConfig(
        "cancer",
        model="linear",
        method=method,
        noise_multiplier=1.5,
        delta=1e-5,
        epochs=4,
        batch_size=60,
        clip_norm=12.0,
    )
    return base.replace(**changes)


def test_the_printed_bound_with_the_noise_kept():
    plan = plan_of(RunSpec.of(config()), 600)
    steps = range(plan.steps)
    bounds = [12 * plan.clip_factor_at(step) for step in steps]
    assert bounds == pytest.approx([12 / min(2, 1 + (step // 10) / 4) for step in steps])
    deviations = [plan.noise_multiplier_at(step) * bound for step, bound in zip(steps, bounds, strict=True)]
    assert deviations == pytest.approx([1.5 * 12] * plan.steps)


def test_noise_kept_and_multiplier_kept_are_other_events_and_both_are_what_is_charged():
    kept, scaled = plan_of(RunSpec.of(config()), 600), plan_of(RunSpec.of(config(keep_noise=False)), 600)
    epochs = [[PoissonSampled(0.1, GaussianRelease(1.5 * (1 + e / 4)))] * 10 for e in range(4)]
    by_hand = Composed(tuple(event for epoch in epochs for event in epoch))
    assert kept.epsilon(1e-5).epsilon == pytest.approx(accountant("pld").epsilon(by_hand, 1e-5).epsilon, rel=1e-6)
    plain = Composed((PoissonSampled(0.1, GaussianRelease(1.5)),) * 40)
    assert scaled.epsilon(1e-5).epsilon == pytest.approx(accountant("pld").epsilon(plain, 1e-5).epsilon, rel=1e-6)
    assert kept.clip_norm_schedule == scaled.clip_norm_schedule
    assert kept.charge_at(0) != kept.charge_at(39)
    assert scaled.charge_at(0) == scaled.charge_at(39)


@pytest.mark.parametrize("neighbours", ["add-remove", "replace-one"])
@pytest.mark.parametrize("keep", [True, False])
def test_a_budget_is_met_and_the_ledger_holds_every_multiplier(tmp_path, neighbours, keep):
    out = tmp_path / "run"
    settings = {**SETTINGS, "epsilon": 3.0, "epochs": 3, "neighbours": neighbours, "keep_noise": keep}
    result = fit(network(), DATA, method="dpsgd-momentum", seed=0, out=out, **settings)
    assert 2.99 < result.epsilon_if_unseeded <= 3
    charges = read_ledger(out / "ledger.jsonl").charges
    noise_multiplier = result.plan.noise_multiplier_at(0)
    expected = [noise_multiplier * (1 + e / 3) for e in range(3)] if keep else [noise_multiplier]
    assert [event.event.noise_multiplier for event in charges] == pytest.approx(expected)
    assert {event.neighbours for event in charges} == {Neighbours.parse(neighbours)}
    assert sum(charges.values()) == 30
    assert all(check.passed for check in verify_run(RunFolder.open(out)))


def test_a_schedule_of_ones_own_by_the_step():
    plan = plan_of(RunSpec.of(config(clip_norm_schedule="poly:k=1,s_end=0.5,period=10,tick=2")), 600)
    assert [plan.clip_factor_at(step) for step in (0, 1, 2, 3, 19, 20, 39)] == pytest.approx(
        [1, 1, 0.95, 0.95, 0.55, 0.5, 0.5]
    )
    assert plan.keep_noise
    assert plan.noise_multiplier_at(39) == pytest.approx(3.0)


def test_what_cannot_be_is_refused_ahead():
    with pytest.raises(InputError, match="length is not known"):
        plan_of(
            RunSpec.of(config(noise_multiplier=None, epochs="auto", epsilon=1.0, noise_schedule="uniform:s0=3")), 600
        )
    with pytest.raises(InputError, match="keep_noise is given, and the clip bound does not change"):
        plan_of(RunSpec.of(config("dpsgd", keep_noise=True)), 600)
    with pytest.raises(InputError, match="quantile was given together with a schedule"):
        plan_of(RunSpec.of(config(clip_rule="quantile")), 600)
    with pytest.raises(InputError, match="counts steps"):
        plan_of(RunSpec.of(config(batch_size=None, batch_size_schedule="piecewise:0=60,3=30,tick=5")), 600)


def test_the_command_says_what_is_kept():
    assert config(keep_noise=True).as_command().endswith("--keep-noise")
    assert "--no-keep-noise" in config(keep_noise=False).as_command()


def test_a_run_that_was_stopped_goes_on_bit_for_bit(tmp_path):
    settings = {**SETTINGS, "epsilon": 3.0, "epochs": 3, "seed": 0, "method": "dpsgd-momentum"}
    whole = fit(network(), DATA, **settings)

    def stop(status) -> None:
        if status.step == 14:
            raise KeyboardInterrupt

    with pytest.raises((KeyboardInterrupt, Interrupted)):
        fit(network(), DATA, out=tmp_path / "run", watch=stop, checkpoint_every=4, **settings)
    again = fit(network(), DATA, out=tmp_path / "run", resume=True, checkpoint_every=4, **settings)
    assert torch.equal(weights(whole.model), weights(again.model))
    assert all(check.passed for check in verify_run(RunFolder.open(tmp_path / "run")))
