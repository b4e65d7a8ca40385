"""Noise that follows looks at validation records: held to its budget, resumed, verified; and schedules in real runs."""

from __future__ import annotations

import json
import math
import os
import signal
from collections import Counter
from pathlib import Path

import pytest
import torch
from torch import nn

from adadp.app import zoo
from adadp.app.accounting import filters
from adadp.app.accounting.zcdp import largest_rho, rho_to_epsilon, smallest_epsilon
from adadp.app.config import TrainConfig
from adadp.app.runs import RunFolder
from adadp.app.spec import RunSpec
from adadp.app.texts.schedules import parse_noise
from adadp.app.train import fit, session, verify_run
from adadp.app.train.checkpoints import Paid
from adadp.app.train.planning import filter_of, plan_of
from adadp.app.train.validation_noise import Looks, hold_out
from adadp.certificate.wording import guarantee_of
from adadp.errors import BudgetExceeded, InputError, Interrupted
from adadp.events import AdaptivelyChosen, GaussianRelease, Neighbours, PoissonSampled, ReshuffledEpoch
from adadp.ledger import read_ledger
from adadp.noise import GaussianMechanism
from adadp.plan import Plan
from adadp.randomness import SeededSource

FEATURES, LABELS = zoo.load("cancer").train
BASE = {"delta": 1e-4, "method": "dpsgd", "lr": 0.5, "batch_size": 100, "validation": 60}
SHUFFLED = {**BASE, "sampling": "reshuffle", "rho": 0.25}
"""Epochs of 5 steps on 500 records."""
PUBLIC = {**SHUFFLED, "validation_public": True, "noise_schedule": "validation:s0=6,k=0.7,m=2,delta=0.02,period=2"}
PRIVATE = {**SHUFFLED, "noise_schedule": "validation:s0=6,k=0.8,m=1,delta=0.02,period=1,look=20"}
POISSON = {
    **BASE,
    "epsilon": 3.0,
    "epochs": 8,
    "noise_schedule": "validation:s0=3,k=0.8,m=1,delta=0.5,period=1,every=2,look=20",
}
FIXED = {**POISSON, "sampling": "fixed", "epsilon": 6.0}
FALLING = "validation:s0=6,k=0.8,m=1,delta=999,period=1"
"""No look rises by as much, with noise or without: the noise falls at every look, whatever is seen."""
KINDS = {"public reshuffled": PUBLIC, "private reshuffled": PRIVATE, "private poisson": POISSON, "private fixed": FIXED}


class Killed(BaseException):
    """The end of a process: nothing is saved after it."""


def network(width: int = 9) -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(width, 6), nn.Tanh(), nn.Linear(6, 2))


def run(out: Path | None, *, data=(FEATURES, LABELS), model: nn.Module | None = None, **settings):
    return fit(network() if model is None else model, data, out=out, **settings)


def kill_at(step: int):
    def watch(status) -> None:
        if status.step == step:
            raise Killed

    return watch


def stop_at(step: int):
    return lambda status: os.kill(os.getpid(), signal.SIGINT) if status.step == step else None


def charges(folder: Path) -> dict:
    return read_ledger(folder / "ledger.jsonl").charges


def epochs_by_sigma(folder: Path) -> dict[float, int]:
    """How many reshuffled epochs were charged with which noise."""
    found: dict[float, int] = {}
    for event, count in charges(folder).items():
        if isinstance(event, AdaptivelyChosen):
            assert isinstance(event.event, ReshuffledEpoch)
            (release,) = event.event.batches
            found[release.noise_multiplier] = count
    return found


def looks_charged(folder: Path) -> int:
    return sum(count for event, count in charges(folder).items() if isinstance(event, GaussianRelease))


def failed(folder: Path) -> set[str]:
    return {check.name for check in verify_run(RunFolder.open(folder)) if not check.passed}


def same_models(one: Path, other: Path) -> bool:
    first, second = (RunFolder.open(each).load_model_tensors() for each in (one, other))
    return first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)


def edited(folder: Path, **plan) -> None:
    """Change the certified plan."""
    path = RunFolder.open(folder).certificate_path
    certificate = json.loads(path.read_text())
    certificate["plan"] |= plan
    path.write_text(json.dumps(certificate))


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """Runs that nobody interrupted, by kind, each made once."""
    folder, made = tmp_path_factory.mktemp("whole"), {}

    def get(kind: str) -> Path:
        if kind not in made:
            made[kind] = folder / kind.replace(" ", "-")
            run(made[kind], seed=5, **KINDS[kind])
        return made[kind]

    return get


# The noise and the budget -----------------------------------------------------------------------------------------


def test_with_public_looks_the_noise_falls_as_the_schedule_says_and_the_run_stops_before_the_budget(whole):
    folder = whole("public reshuffled")
    decay = parse_noise(PUBLIC["noise_schedule"])
    lines = [line for line in RunFolder.open(folder).metrics() if "noise_multiplier" in line]
    looks = [line["validation_accuracy"] for line in lines]
    sigmas = [decay.sigma_after(looks[:epoch]) for epoch in range(len(lines))]
    assert [line["noise_multiplier"] for line in lines] == sigmas
    assert len(set(sigmas)) > 2
    assert all(0 <= look <= 1 and (look * 60) % 1 == pytest.approx(0, abs=1e-9) for look in looks)
    assert epochs_by_sigma(folder) == Counter(sigmas)
    assert looks_charged(folder) == 0
    spent = math.fsum(1 / (2 * noise_multiplier**2) for noise_multiplier in sigmas)
    following = decay.sigma_after(looks)
    assert spent <= 0.25 < spent + 1 / (2 * following**2)
    assert lines[-1]["budget_used"] == pytest.approx(spent / 0.25)

    certificate = RunFolder.open(folder).certificate()
    assert certificate["if_unseeded"]["epsilon"] == pytest.approx(smallest_epsilon(0.25, 1e-4))
    assert certificate["accountant"] == "zcdp-filter"
    assert certificate["steps_done"] == 5 * len(sigmas) < certificate["plan"]["steps"]
    assert certificate["plan"]["adaptive"] is True
    assert any("60 validation records, which were taken as public" in each for each in certificate["disclosed"])
    assert failed(folder) == set()


def test_private_looks_are_charged_one_by_one_and_have_noise(whole):
    folder = whole("private reshuffled")
    lines = [line for line in RunFolder.open(folder).metrics() if "noise_multiplier" in line]
    looks = [line["validation_accuracy"] for line in lines if "validation_accuracy" in line]
    assert charges(folder)[GaussianRelease(20.0, Neighbours.ZERO_OUT)] == len(looks) == looks_charged(folder)
    assert all((look * 60) % 1 > 1e-6 for look in looks)  # not a number of right answers
    decay = parse_noise(PRIVATE["noise_schedule"])
    assert [line["noise_multiplier"] for line in lines] == [
        decay.sigma_after(looks[:epoch]) for epoch in range(len(lines))
    ]
    spent = math.fsum(count / (2 * noise_multiplier**2) for noise_multiplier, count in epochs_by_sigma(folder).items())
    assert spent + len(looks) / (2 * 20.0**2) <= 0.25
    certificate = RunFolder.open(folder).certificate()
    assert any("60 records were held out" in each for each in certificate["disclosed"])
    assert failed(folder) == set()


def test_a_look_that_the_budget_has_no_room_for_ends_the_run(tmp_path):
    settings = {**PRIVATE, "rho": 0.0145, "noise_schedule": "validation:s0=6,k=0.8,m=1,period=1,look=20"}
    result = run(tmp_path / "run", seed=5, **settings)  # an epoch is 0.01389, a look 0.00125
    assert result.certificate["steps_done"] == 5
    assert looks_charged(tmp_path / "run") == 0
    assert failed(tmp_path / "run") == set()


@pytest.mark.parametrize("kind", ["private poisson", "private fixed"])
def test_sampled_batches_are_held_to_the_budget_by_an_rdp_filter(whole, kind):
    folder, settings = whole(kind), KINDS[kind]
    found = RunFolder.open(folder)
    certificate, config = found.certificate(), found.config
    assert certificate["accountant"] == "rdp-filter"
    assert certificate["if_unseeded"]["epsilon"] == settings["epsilon"]
    budget = filter_of(config, plan_of(RunSpec.of(config), 500))
    for event, count in charges(folder).items():
        budget.admit(event, count)
        budget.commit(event, count)
    assert budget.used <= 1
    sigmas = [line["noise_multiplier"] for line in found.metrics() if "noise_multiplier" in line]
    assert len(set(sigmas)) > 1
    steps = sum(count for event, count in charges(folder).items() if isinstance(event, AdaptivelyChosen))
    assert steps == certificate["steps_done"]
    assert looks_charged(folder) == sum("validation_accuracy" in line for line in found.metrics())
    assert 0 < looks_charged(folder) <= len(sigmas) / 2  # every other epoch
    assert failed(folder) == set()


def test_a_poisson_run_stops_at_its_budget(tmp_path):
    settings = {**POISSON, "epsilon": 1.0, "epochs": 40, "noise_schedule": FALLING.replace("s0=6", "s0=3"),
                "validation_public": True}  # fmt: skip
    result = run(tmp_path / "run", seed=5, **settings)
    assert 5 <= result.certificate["steps_done"] < 200
    config = RunFolder.open(tmp_path / "run").config
    budget = filter_of(config, plan_of(RunSpec.of(config), 500))
    for event, count in charges(tmp_path / "run").items():
        assert isinstance(event.event, PoissonSampled)
        budget.admit(event, count)
        budget.commit(event, count)
    with pytest.raises(BudgetExceeded):
        budget.admit(min(charges(tmp_path / "run"), key=lambda each: each.event.event.noise_multiplier))
    assert failed(tmp_path / "run") == set()


def test_private_looks_without_noise_are_refused():
    with pytest.raises(InputError, match="60 private records are to be looked at without noise"):
        run(None, **{**PRIVATE, "noise_schedule": FALLING})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"validation": None}, "and there are none"),
        ({"validation": None, "validation_public": None, "noise_schedule": "validation:s0=6,k=0.7,look=20"}, "none"),
        ({"validation": 560}, "560 validation records are to be kept aside, and there are 560"),
        ({"validation": 9999}, "9999 validation records are to be kept aside"),
    ],
)
def test_there_must_be_records_to_look_at_and_to_train_on(change, message):
    with pytest.raises(InputError, match=message):
        run(None, **{**PUBLIC, **change})


def test_public_tensors_are_for_looks_without_noise_and_for_nothing_else():
    pair = zoo.load("cancer").test
    with pytest.raises(InputError, match="together with noise for looks at private ones"):
        run(None, **{**PRIVATE, "validation": pair})
    with pytest.raises(InputError, match="the noise does not follow them"):
        run(None, **{**SHUFFLED, "validation": pair, "epochs": 2})


# Which records are looked at --------------------------------------------------------------------------------------


def held_by(neighbours: Neighbours, seed: int = 5, **settings):
    sampling = "poisson" if neighbours is Neighbours.ADD_REMOVE else "reshuffle"
    look = {} if settings.get("validation_public") else {"noise_schedule": FALLING + ",look=20"}
    config = TrainConfig(
        "python",
        rho=0.25,
        delta=1e-4,
        sampling=sampling,
        **{"noise_schedule": FALLING, "validation": 60, **look, **settings},
    )
    return hold_out((FEATURES, LABELS), config, neighbours, SeededSource(seed))


@pytest.mark.parametrize("neighbours", list(Neighbours))
@pytest.mark.parametrize("public", [True, None])
def test_every_record_is_either_trained_on_or_looked_at(neighbours, public):
    found = held_by(neighbours, validation_public=public)
    for part, whole_part in zip((found.train, found.validation), (~found.held, found.held), strict=True):
        assert torch.equal(part[0], FEATURES[whole_part])
        assert torch.equal(part[1], LABELS[whole_part])
    assert found.records == 500
    if public:
        assert found.held.nonzero().flatten().tolist() == list(range(500, 560))
    elif neighbours is not Neighbours.ADD_REMOVE:
        assert int(found.held.sum()) == 60
        assert max(int(found.held[-60:].sum()), int(found.held[:60].sum())) < 30  # at random
        assert not torch.equal(found.held, held_by(neighbours, seed=6).held)


def test_each_record_has_its_own_coin_for_add_remove_neighbours():
    sizes = {int(held_by(Neighbours.ADD_REMOVE, seed).held.sum()) for seed in range(20)}
    assert len(sizes) > 5
    assert 50 < sum(int(held_by(Neighbours.ADD_REMOVE, seed).held.sum()) for seed in range(20)) / 20 < 70
    one_less = hold_out(
        (FEATURES[:-1], LABELS[:-1]),
        TrainConfig("python", epsilon=1.0, noise_schedule=FALLING + ",look=20", validation=60, records=560),
        Neighbours.ADD_REMOVE,
        SeededSource(5),
    )
    assert torch.equal(one_less.held, held_by(Neighbours.ADD_REMOVE).held[:-1])
    assert one_less.records == 500


@pytest.mark.parametrize(
    "settings",
    [
        {**SHUFFLED, "validation_public": True, "noise_schedule": FALLING},
        {**SHUFFLED, "noise_schedule": FALLING + ",look=1000"},
        {**BASE, "epsilon": 2.0, "epochs": 3, "noise_schedule": FALLING + ",look=1000"},
    ],
    ids=["public", "private", "private poisson"],
)
def test_records_that_are_looked_at_are_never_trained_on(monkeypatch, settings):
    """The noise falls at every look, so changed validation records must change nothing at all."""
    known = []
    monkeypatch.setattr(session, "hold_out", lambda *arguments: known.append(hold_out(*arguments)) or known[-1])
    first = run(None, seed=5, **settings)
    held = known[0].held
    assert 0 < int(held.sum()) < 560

    def with_changed(which: int):
        changed = FEATURES.clone()
        changed[which] += 3
        return run(None, seed=5, data=(changed, LABELS), **settings).model.state_dict().values()

    before = first.model.state_dict().values()
    assert all(map(torch.equal, before, with_changed(held.nonzero().flatten())))
    assert not all(map(torch.equal, before, with_changed((~held).nonzero().flatten()[:50])))


def test_no_record_kept_aside_is_no_reason_to_fail(tmp_path):
    """With coins that happens, and how many there are is secret."""
    settings = {**POISSON, "validation": 1, "epochs": 4}
    seed = next(seed for seed in range(99) if not held_by(Neighbours.ADD_REMOVE, seed, validation=1).held.any())
    run(tmp_path / "run", seed=seed, **settings)
    assert looks_charged(tmp_path / "run") == 1
    assert failed(tmp_path / "run") == set()


def test_a_public_number_of_records_hides_how_many_there_are(tmp_path):
    result = run(tmp_path / "run", seed=5, **{**POISSON, "records": 600, "epochs": 2})
    assert result.plan.records == 540
    assert result.certificate["plan"]["sampling_probability"] == 100 / 540
    assert failed(tmp_path / "run") == set()


def test_features_that_are_released_are_paid_from_the_same_budget(tmp_path):
    settings = {**PRIVATE, "features": "pca:dim=3,noise_multiplier=20", "rho": 0.1}
    result = run(tmp_path / "run", seed=5, model=network(3), test=zoo.load("cancer").test, **settings)
    paid = charges(tmp_path / "run")
    looks = len([line for line in RunFolder.open(tmp_path / "run").metrics() if "validation_accuracy" in line])
    assert paid[GaussianRelease(20.0, Neighbours.ZERO_OUT)] == looks + 1  # the covariance has the noise of a look here
    assert result.test_accuracy is not None
    assert failed(tmp_path / "run") == set()


# Resume -----------------------------------------------------------------------------------------------------------


ENDS = {
    "within an epoch": [(kill_at, 7), (stop_at, 12)],
    "just after a look": [(kill_at, 10), (stop_at, 15)],
    "killed twice": [(stop_at, 10), (kill_at, 11), (kill_at, 14)],
    "around a look": [(stop_at, 9), (stop_at, 10), (stop_at, 11)],
}
INTERRUPTED = [
    *((kind, ends) for kind in ("public reshuffled", "private reshuffled") for ends in ENDS),
    ("private poisson", "killed twice"),
    ("private poisson", "around a look"),
    ("private fixed", "just after a look"),
]


@pytest.mark.parametrize(("kind", "ends"), INTERRUPTED)
def test_a_seeded_run_that_was_interrupted_ends_bit_for_bit_as_if_nothing_had_happened(whole, tmp_path, kind, ends):
    settings = {**KINDS[kind], "seed": 5, "checkpoint_every": 4}
    for number, (how, step) in enumerate(ENDS[ends]):
        with pytest.raises((Killed, Interrupted)):
            run(tmp_path / "run", resume=number > 0, watch=how(step), **settings)
    run(tmp_path / "run", resume=True, **settings)
    assert same_models(whole(kind), tmp_path / "run")
    one, other = (RunFolder.open(each).certificate() for each in (whole(kind), tmp_path / "run"))
    for name in ("epsilon", "plan", "steps_done", "steps_lost"):
        assert one[name] == other[name]
    assert charges(whole(kind)) == charges(tmp_path / "run")
    public = {"step", "epoch", "noise_multiplier", "validation_accuracy"}
    lines = [
        [{key: value for key, value in line.items() if key in public} for line in RunFolder.open(each).metrics()]
        for each in (whole(kind), tmp_path / "run")
    ]
    assert lines[0] == lines[1]
    assert failed(tmp_path / "run") == set()


@pytest.mark.parametrize("when", ["before the charge", "after the charge", "killed after the charge"])
def test_a_look_that_failed_is_made_up_for(whole, tmp_path, monkeypatch, when):
    """The checkpoint then stands between the end of an epoch and its look."""
    settings = {**PRIVATE, "seed": 5, "checkpoint_every": 4}
    error = Killed if "killed" in when else OSError
    with monkeypatch.context() as patch:
        if when == "before the charge":
            look = Looks._look

            def failing(self, *arguments):
                if len(self.values) == 1:
                    raise error
                return look(self, *arguments)

            patch.setattr(Looks, "_look", failing)
        else:
            release = GaussianMechanism.release

            def failing(self, total, **options):
                if options["purpose"] == "validation" and options["step"] == 1:
                    raise error
                return release(self, total, **options)

            patch.setattr(GaussianMechanism, "release", failing)
        with pytest.raises(error):
            run(tmp_path / "run", **settings)
    run(tmp_path / "run", resume=True, **settings)
    assert same_models(whole("private reshuffled"), tmp_path / "run")
    assert charges(whole("private reshuffled")) == charges(tmp_path / "run")
    assert failed(tmp_path / "run") == set()


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
    monkeypatch.setattr(session, "hold_out", lambda *arguments: known.append(hold_out(*arguments)) or known[-1])
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
