"""More tests of validation noise: validation runs."""

from __future__ import annotations

import json
import math
from collections import Counter
from pathlib import Path

import pytest
import torch
from validation_noise_cases import (
    FALLING,
    KINDS,
    PRIVATE,
    PUBLIC,
    SHUFFLED,
    Killed,
    charges,
    failed,
    kill_at,
    looks_charged,
    run,
    same_models,
    stop_at,
    whole,  # noqa: F401
)

from adadp.app import zoo
from adadp.app.accounting import filters
from adadp.app.accounting.zcdp import largest_rho, rho_to_epsilon
from adadp.app.runs import RunFolder
from adadp.app.spec import RunSpec
from adadp.app.train import session
from adadp.app.train.checkpoints import Paid
from adadp.app.train.planning import filter_of, plan_of
from adadp.app.train.validation_noise import hold_out
from adadp.certificate.wording import guarantee_of
from adadp.errors import InputError, Interrupted
from adadp.events import AdaptivelyChosen, GaussianRelease
from adadp.noise import GaussianMechanism
from adadp.plan import Plan

pytestmark = pytest.mark.slow


def edited(folder: Path, **plan) -> None:
    """Change the certified plan."""
    path = RunFolder.open(folder).certificate_path
    certificate = json.loads(path.read_text())
    certificate["plan"] |= plan
    path.write_text(json.dumps(certificate))


def test_a_run_that_ended_with_a_refused_look_and_was_killed_before_its_certificate_does_not_go_on(
    tmp_path, monkeypatch
):
    settings = {**PRIVATE, "rho": 0.0145, "noise_schedule": "validation:s0=40,k=0.8,m=1,period=1,every=30,look=6"}
    settings |= {"batch_size": 250, "seed": 5}  # 30 epochs are 0.0094, a look 0.0139
    expected = run(tmp_path / "whole", **settings).certificate
    assert expected["steps_done"] == 60
    with monkeypatch.context() as patch:
        patch.setattr("adadp.app.train.run.make_certificate", lambda **_: (_ for _ in ()).throw(Killed()))
        with pytest.raises(Killed):
            run(tmp_path / "run", **settings)
    assert run(tmp_path / "run", resume=True, **settings).certificate["steps_done"] == 60
    assert same_models(tmp_path / "whole", tmp_path / "run")


def releases_of(monkeypatch) -> list[int]:
    """The steps of the gradients that are released from now on."""
    noted: list[int] = []
    release = GaussianMechanism.release

    def noting(self, total, **options):
        if options["purpose"] != "validation":
            noted.append(options["step"])
        return release(self, total, **options)

    monkeypatch.setattr(GaussianMechanism, "release", noting)
    return noted


@pytest.mark.parametrize("kind", ["public reshuffled", "private reshuffled", "private poisson"])
def test_a_secure_run_goes_on_and_never_spends_more_than_its_budget(tmp_path, monkeypatch, kind):
    settings = {**KINDS[kind], "checkpoint_every": 4}
    if kind != "public reshuffled":  # falls at every look, so that no chance decides how long the run is
        settings["noise_schedule"] = (
            settings["noise_schedule"].replace("delta=0.02", "delta=999").replace("delta=0.5", "delta=999")
        )
    released, known = releases_of(monkeypatch), []
    monkeypatch.setattr(
        session, "hold_out", lambda *arguments, **how: known.append(hold_out(*arguments, **how)) or known[-1]
    )
    for number, (how, step) in enumerate([(kill_at, 6), (stop_at, 12), (kill_at, 17)]):
        with pytest.raises((Killed, Interrupted)):
            run(tmp_path / "run", resume=number > 0, watch=how(step), **settings)
    run(tmp_path / "run", resume=True, **settings)
    assert len(known) == 4
    assert all(torch.equal(each.held, known[0].held) for each in known)
    assert len(released) == len(set(released))  # no batch twice
    certificate = RunFolder.open(tmp_path / "run").certificate()
    assert certificate["steps_lost"] > 0
    config = RunFolder.open(tmp_path / "run").config
    budget = filter_of(config, plan_of(RunSpec.of(config), 500))
    for event, count in charges(tmp_path / "run").items():
        budget.admit(event, count)
        budget.commit(event, count)
    paid = sum(count for event, count in charges(tmp_path / "run").items() if isinstance(event, AdaptivelyChosen))
    assert len(released) <= paid * (5 if "reshuffled" in kind else 1)
    assert failed(tmp_path / "run") == set()


@pytest.mark.parametrize(("sampling", "look"), [("reshuffle", ""), ("reshuffle", ",look=30"), ("fixed", ",look=30")])
def test_epochs_whose_noise_was_lost_do_not_keep_a_secure_run_from_going_on(tmp_path, look, sampling):
    """Their charges have a noise that no checkpoint knows of."""
    settings = {**SHUFFLED, "sampling": sampling, "validation_public": None if look else True, "checkpoint_every": 1000}
    settings |= {"noise_schedule": FALLING + look}
    if sampling == "fixed":
        settings |= {"rho": None, "epsilon": 4.0, "epochs": 8}
    out = tmp_path / "run"
    with pytest.raises(Killed):
        run(out, watch=kill_at(12), **settings)
    assert len([each for each in charges(out) if isinstance(each, AdaptivelyChosen)]) == 3
    with pytest.raises(Interrupted):
        run(out, resume=True, watch=stop_at(18), **settings)
    with pytest.raises(Interrupted):
        run(out, resume=True, watch=stop_at(22), **settings)
    result = run(out, resume=True, **settings)
    assert result.certificate["steps_lost"] == (12 if sampling == "fixed" else 15)
    first = 3 if sampling == "fixed" else 4  # the lost epochs have the noise that was last known
    assert result.certificate["plan"]["noise"].startswith(f"piecewise:0=6,{first}=4.8,{first + 1}=3.84")
    assert failed(out) == set()


def test_charges_that_are_missing_are_noticed_where_the_noise_was_chosen_on_the_way():
    plan = Plan.of_noise(noise=4.0, steps=40, records=100, batch_size=10).realised([4.0, 2.0])
    four, two = plan.charge_at(0), plan.charge_at(10)
    assert not Paid(plan, {four: 10, two: 5}, 15)
    assert not Paid(plan, {four: 8, two: 7}, 15)  # noise that was lost: any charge of a round will do
    with pytest.raises(Exception, match="fewer charges than the checkpoint has steps"):
        Paid(plan, {four: 10, two: 4}, 15)
    look = GaussianRelease(20.0)
    with pytest.raises(Exception, match="fewer charges than the checkpoint has steps"):
        Paid(plan, {four: 10, two: 4, look: 1}, 15)  # a look is not a round
    with pytest.raises(Exception, match="fewer charges than the checkpoint has steps"):
        Paid(plan, {four: 10, two: 5}, 15, [look])


# Verify -----------------------------------------------------------------------------------------------------------


def test_a_certificate_with_other_noise_than_was_realised_is_caught(tmp_path):
    settings = {**SHUFFLED, "validation_public": True, "noise_schedule": FALLING}
    certificate = run(tmp_path / "run", seed=5, **settings).certificate
    assert certificate["plan"]["noise"].startswith("piecewise:0=6,1=4.8,2=3.84")
    assert failed(tmp_path / "run") == set()
    edited(tmp_path / "run", noise="piecewise:0=6,1=5")
    assert failed(tmp_path / "run") >= {"plan", "model"}  # no schedule chooses that
    edited(tmp_path / "run", noise="piecewise:0=6")
    assert failed(tmp_path / "run") >= {"charges", "model"}  # it may be chosen, but was not
    edited(tmp_path / "run", noise="piecewise:0=6,1=4.8,2=3.84,3=4.8")
    assert "plan" in failed(tmp_path / "run")  # noise never rises
    edited(tmp_path / "run", noise="piecewise:0=4.8,1=3.84")
    assert "charges" in failed(tmp_path / "run")
    edited(tmp_path / "run", noise=certificate["plan"]["noise"], adaptive=False)
    assert "plan" in failed(tmp_path / "run")


# Schedules in real runs -------------------------------------------------------------------------------------------

ALL = {
    "delta": 1e-4,
    "method": "adadp",
    "noise_schedule": "exp:k=0.2",
    "batch_size": "piecewise:0=100,1=200,3=100",
    "clip_norm": 0.5,
    "clip_norm_schedule": "poly:k=1,s_end=0.4,period=3",
    "lr": "exp:s0=0.5,k=0.1,start=1",
    "epochs": 4,
}


WAYS = {
    "poisson": {"epsilon": 2.0, "accountant": "rdp"},
    "fixed": {"noise_multiplier": 6.0, "accountant": "rdp"},
    "reshuffle": {"rho": 0.5},
}


@pytest.mark.parametrize(
    ("sampling", "seed"), [("poisson", 5), ("fixed", 5), ("fixed", None), ("reshuffle", 5), ("reshuffle", None)]
)
def test_all_schedules_together_train_verify_and_resume(tmp_path, sampling, seed):
    settings = {**ALL, **WAYS[sampling], "sampling": sampling, "seed": seed, "checkpoint_every": 4}
    steps = 6 + 3 + 3 + 6
    for number, (how, at) in enumerate([(kill_at, 7), (stop_at, 10), (stop_at, 12)]):
        with pytest.raises((Killed, Interrupted)):
            run(tmp_path / "run", resume=number > 0, watch=how(at), **settings)
    result = run(tmp_path / "run", resume=True, **settings)
    certificate = result.certificate
    assert certificate["plan"]["steps"] == certificate["steps_done"] + certificate["steps_lost"] == steps
    assert (certificate["steps_lost"] == 0) == (seed is not None)
    assert certificate["plan"]["batch_size_schedule"] == "piecewise:0=100,1=200,3=100"
    assert certificate["plan"]["clip_factors"] == "poly:s0=1,k=1,s_end=0.4,period=3"
    paid = Counter(filter(None, map(result.plan.charge_at, range(steps))))
    assert charges(tmp_path / "run") == paid
    assert failed(tmp_path / "run") == set()
    if "epsilon" in settings:
        assert guarantee_of(certificate)["epsilon"] <= settings["epsilon"]
    if seed is not None:
        run(tmp_path / "whole", **settings)
        assert same_models(tmp_path / "whole", tmp_path / "run")
    if sampling == "reshuffle":
        edited(tmp_path / "run", noise=f"uniform:s0={result.plan.noise.value_at(0)!r}")
        assert "plan" in failed(tmp_path / "run")
        edited(tmp_path / "run", noise=str(result.plan.noise), batch_size_schedule="piecewise:0=100,1=200")
        assert "plan" in failed(tmp_path / "run")


def test_schedules_reach_the_step_and_the_optimizer(monkeypatch):
    seen, optimizers = [], []
    release = GaussianMechanism.release

    def noting(self, total, **options):
        seen.append((options["step"], options["l2_bound"], options["noise_multiplier"]))
        return release(self, total, **options)

    monkeypatch.setattr(GaussianMechanism, "release", noting)
    rates = []

    def make(parameters):
        optimizers.append(torch.optim.SGD(parameters, lr=1.0))
        return optimizers[-1]

    settings = {**ALL, "sampling": "reshuffle", "rho": 0.5, "method": "dpsgd", "seed": 5}
    result = run(None, optimizer=make, watch=lambda _: rates.append(optimizers[-1].param_groups[0]["lr"]), **settings)
    epochs = [0] * 6 + [1] * 3 + [2] * 3 + [3] * 6
    assert [step for step, _, _ in seen] == list(range(18))
    bounds, batches = [0.5, 0.4, 0.3, 0.2], [100, 200, 200, 100]
    expected = [bounds[epoch] * (1 + batches[epoch] * 2.0**-20) for epoch in epochs]
    assert [bound for _, bound, _ in seen] == pytest.approx(expected, rel=1e-9)
    noise = result.plan.noise.value_at(0)
    assert [each for _, _, each in seen] == pytest.approx([noise * math.exp(-0.2 * epoch) for epoch in epochs])
    assert math.fsum(1 / (2 * (noise * math.exp(-0.2 * epoch)) ** 2) for epoch in range(4)) == pytest.approx(0.5)
    assert rates == pytest.approx([0.5 * math.exp(-0.1 * max(epoch - 1, 0)) for epoch in epochs])


def test_functions_of_the_epoch(tmp_path):
    functions = {
        "noise_schedule": lambda epoch: 1.5 - 0.5 * epoch,
        "batch_size": lambda epoch: 100 * (epoch + 1),
        "clip_norm_schedule": lambda epoch: 0.5**epoch,
        "lr": lambda epoch: 0.5 / (epoch + 1),
    }
    settings = {"rho": 0.5, "delta": 1e-4, "epochs": 2, "clip_norm": 0.8, "sampling": "reshuffle", "seed": 5}
    result = run(tmp_path / "run", **functions, **settings)
    config = RunFolder.open(tmp_path / "run").config
    assert config.noise_schedule == "piecewise:0=1.5,1=1"
    assert config.batch_size_schedule == "piecewise:0=100,1=200"
    assert config.lr_schedule == "piecewise:0=0.5,1=0.25"
    plan = result.plan
    assert plan.steps == 6 + 3
    assert (plan.clip_rule.l2_bound(1, {}), plan.clip_factor_at(0), plan.clip_factor_at(8)) == (0.8, 1.0, 0.5)
    assert plan.noise.value_at(0) / plan.noise.value_at(1) == pytest.approx(1.5)
    assert failed(tmp_path / "run") == set()
    texts = {
        "noise_schedule": "piecewise:0=1.5,1=1",
        "batch_size": "piecewise:0=100,1=200",
        "clip_norm_schedule": "step:k=0.5,period=1",
        "lr": "piecewise:0=0.5,1=0.25",
    }
    run(tmp_path / "texts", **texts, **settings)
    assert same_models(tmp_path / "run", tmp_path / "texts")


@pytest.mark.parametrize("name", ["noise_schedule", "batch_size", "clip_norm_schedule", "lr"])
def test_a_function_of_the_epoch_needs_a_number_of_epochs(name):
    settings = {"rho": 0.5, "delta": 1e-4, "batch_size": 100, "sampling": "reshuffle"}
    with pytest.raises(InputError, match=f"{name} is a function of the epoch, and the number of epochs is not given"):
        run(None, **{**settings, name: lambda _: 1.0}, steps=5)
    with pytest.raises(InputError, match=rf"{name} is \[1\]"):
        run(None, **{**settings, name: [1]}, epochs=5)


def test_public_tensors_to_look_at(tmp_path):
    pair = zoo.load("cancer").test
    settings = {**PUBLIC, "validation": pair, "validation_public": None, "noise_schedule": FALLING, "rho": 0.1}
    result = run(tmp_path / "run", seed=5, **settings)
    assert result.plan.records == 560
    assert looks_charged(tmp_path / "run") == 0
    looks = [
        line["validation_accuracy"]
        for line in RunFolder.open(tmp_path / "run").metrics()
        if "validation_accuracy" in line
    ]
    assert looks
    assert all((look * len(pair[1])) % 1 == pytest.approx(0, abs=1e-9) for look in looks)
    assert failed(tmp_path / "run") == set()
    with pytest.raises(Killed):
        run(tmp_path / "again", seed=5, watch=kill_at(8), **settings)
    run(tmp_path / "again", seed=5, resume=True, **settings)
    assert same_models(tmp_path / "run", tmp_path / "again")


# Runs from before the optimal conversion ----------------------------------------------------------------------------


def classic_filter(monkeypatch) -> None:
    """Make filters as they were: rho converted by rho + 2 sqrt(rho log(1/delta)), and described without epsilon."""

    def classic_rho(epsilon: float, delta: float) -> float:
        log = math.log(1 / delta)
        return (math.sqrt(log + epsilon) - math.sqrt(log)) ** 2

    monkeypatch.setattr(filters, "largest_rho", classic_rho)
    monkeypatch.setattr(filters, "smallest_epsilon", rho_to_epsilon)
    monkeypatch.setattr(
        filters.ZcdpFilter, "describe", lambda rule: {"rule": rule.name, "rho": rule.rho, "delta": rule.delta}
    )


@pytest.mark.parametrize("budget", [{"rho": 0.25}, {"rho": None, "epsilon": 3.0}], ids=["rho", "epsilon"])
def test_what_the_classic_conversion_certified_is_verified_as_it_was(tmp_path, monkeypatch, budget):
    with monkeypatch.context() as before:
        classic_filter(before)
        run(tmp_path / "old", seed=5, **{**PUBLIC, **budget})
    certificate = RunFolder.open(tmp_path / "old").certificate()
    assert certificate["if_unseeded"]["epsilon"] == budget.get("epsilon", rho_to_epsilon(0.25, 1e-4))
    assert failed(tmp_path / "old") == set()


def test_a_ledger_begun_with_a_larger_budget_is_found(tmp_path, monkeypatch):
    with monkeypatch.context() as before:
        before.setattr(filters, "largest_rho", lambda epsilon, delta: 1.01 * largest_rho(epsilon, delta))
        run(tmp_path / "more", seed=5, **{**PUBLIC, "rho": None, "epsilon": 3.0})
    assert {"plan", "charges"} <= failed(tmp_path / "more")
