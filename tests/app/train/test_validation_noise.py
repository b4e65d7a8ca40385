"""Noise that follows looks at validation records: held to its budget, resumed, verified; and schedules in real runs."""

from __future__ import annotations

import math
from collections import Counter
from pathlib import Path

import pytest
import torch
from validation_noise_cases import (
    BASE,
    ENDS,
    FALLING,
    FEATURES,
    INTERRUPTED,
    KINDS,
    LABELS,
    POISSON,
    PRIVATE,
    PUBLIC,
    SHUFFLED,
    Killed,
    charges,
    failed,
    looks_charged,
    network,
    run,
    same_models,
    whole,  # noqa: F401
)

from adadp.app import zoo
from adadp.app.accounting.zcdp import smallest_epsilon
from adadp.app.config import TrainConfig
from adadp.app.runs import RunFolder
from adadp.app.spec import RunSpec
from adadp.app.texts.schedules import parse_noise
from adadp.app.train import session
from adadp.app.train.planning import filter_of, plan_of
from adadp.app.train.validation_noise import Looks, hold_out
from adadp.errors import BudgetExceeded, InputError, Interrupted
from adadp.events import AdaptivelyChosen, GaussianRelease, Neighbours, PoissonSampled, ReshuffledEpoch
from adadp.noise import GaussianMechanism
from adadp.randomness import SeededSource

pytestmark = pytest.mark.slow


def epochs_by_sigma(folder: Path) -> dict[float, int]:
    """How many reshuffled epochs were charged with which noise."""
    found: dict[float, int] = {}
    for event, count in charges(folder).items():
        if isinstance(event, AdaptivelyChosen):
            assert isinstance(event.event, ReshuffledEpoch)
            (release,) = event.event.batches
            found[release.noise_multiplier] = count
    return found


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
    monkeypatch.setattr(session, "hold_out", lambda *given, **more: known.append(hold_out(*given, **more)) or known[-1])
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
