"""What a run will do and cost, told ahead: every figure is that of the plan, cut where the epoch ends."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from adadp.accounting import Status, accountant
from adadp.app import resolve
from adadp.app.accounting.plans import plan_for
from adadp.app.accounting.zcdp import ZcdpAccountant
from adadp.app.config import TrainConfig
from adadp.app.report.plots import plot_outlooks
from adadp.app.report.preview import FEW, Outlook, Solved, outlook, rho_by_epoch, spread, until, with_schedule
from adadp.app.schedules import ExponentialDecay
from adadp.app.spec import RunSpec
from adadp.app.train.planning import filter_of, plan_of
from adadp.clipping import Flat
from adadp.errors import InputError, UnreachableTarget
from adadp.events import flatten
from adadp.plan import Plan
from adadp.schedules import Uniform

pytestmark = pytest.mark.slow


OPACUS_DECAY = 0.10536
"""A factor of .9 after every epoch."""

TABLE_II = {
    "uniform:s0=8": 100,
    "time:s0=10,k=0.05": 38,
    "step:s0=10,k=0.6,period=10": 31,
    "exp:s0=10,k=0.01": 71,
    "poly:s0=10,k=3,s_end=2,period=100": 44,
}


def ahead(data: str = "mnist", *, every: bool = False, **fields) -> Outlook:
    defaults = {"features": "none", "method": "dpsgd", "batch_size": 600, "accountant": "rdp"}
    if "batch_size_schedule" in fields:
        del defaults["batch_size"]
    config = resolve.resolve(TrainConfig(data, **{**defaults, **fields})).config
    plan = plan_of(RunSpec.of(config), resolve.training_records(config))
    spec = RunSpec.of(config)
    budget = None if spec.decay is None else filter_of(config, plan)
    return outlook(spec, plan, budget=budget, every=every)


# Solved for the budget --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("schedule", "epochs"), TABLE_II.items())
def test_the_epochs_of_table_2_of_yu_2019(schedule, epochs):
    run = ahead(rho=0.78125, sampling="reshuffle", noise_schedule=schedule, accountant="zcdp")
    assert run.solved == Solved("epochs", epochs)
    assert (run.plan.epochs, run.rows[-1].epoch, run.rows[-1].steps) == (epochs, epochs, 100 * epochs)
    assert run.rho <= 0.78125 < run.rho + 0.5 / run.plan.noise.value_at(epochs) ** 2
    assert f"{epochs} epochs, {100 * epochs} steps (as long as the budget lasts)" in run.head()


def test_a_decaying_schedule_lands_on_its_target_where_calibrating_without_it_would_not():
    """The noise of a constant schedule, used as the beginning of one that decays, spends a hundred times the target."""
    schedule = f"exp:k={OPACUS_DECAY}"
    run = ahead(epsilon=3.0, epochs=20, noise_schedule=schedule, accountant="pld")
    assert 2.99 < run.epsilon <= 3
    assert run.solved == Solved("sigma_0", run.plan.noise.s0)
    assert run.rows[-1].noise_multiplier == pytest.approx(run.plan.noise.s0 * 0.9**19, rel=1e-4)
    constant = plan_for(epsilon=3.0, delta=1e-5, records=60000, batch_size=600, epochs=20)
    assert isinstance(constant.noise, Uniform)
    decayed = constant.with_noise(ExponentialDecay(constant.noise.s0, OPACUS_DECAY))
    assert decayed.epsilon(1e-5).epsilon > 300


@pytest.mark.parametrize(
    ("schedule", "fields"),
    [
        ("exp:s0=4", {"epochs": 5, "accountant": "rdp"}),
        ("time:s0=12", {"epochs": 20, "accountant": "zcdp", "sampling": "reshuffle"}),
        ("step:s0=12,period=5", {"epochs": 20, "accountant": "zcdp", "sampling": "reshuffle"}),
        ("poly:s0=12,s_end=2,period=20", {"epochs": 20, "accountant": "zcdp", "sampling": "reshuffle"}),
    ],
)
def test_a_solved_k_is_the_fastest_within_the_budget(schedule, fields):
    run = ahead(epsilon=3.0, noise_schedule=schedule, **fields)
    assert run.solved is not None
    assert (run.solved.name, run.solved.value) == ("k", run.plan.noise.k)
    assert 2.99 < run.epsilon <= 3
    assert f"k = {run.plan.noise.k:.4g} (solved for {fields['epochs']} epochs)" in run.head()


def test_what_is_given_is_not_called_solved():
    assert ahead(noise_multiplier=2.0, epochs=3).solved is None
    assert ahead(noise_schedule="exp:s0=3,k=0.1", epochs=3).solved is None
    assert ahead(noise_multiplier=0.0, allow_nonprivate=True, epochs=3).solved is None


def test_another_schedule_keeps_all_but_what_only_looks_need():
    looks = TrainConfig(
        "mnist", epsilon=2.0, noise_schedule="validation:s0=10,k=0.7", validation=5000, validation_public=True
    )
    assert with_schedule(looks, "exp:k=0.1") == TrainConfig("mnist", epsilon=2.0, noise_schedule="exp:k=0.1")
    other = with_schedule(looks, "validation:s0=5,k=0.7")
    assert other == looks.replace(noise_schedule="validation:s0=5,k=0.7")
    given = TrainConfig("mnist", noise_multiplier=2.0, epochs=3)
    assert with_schedule(given, "exp:k=0.1").noise_multiplier == 2
    assert with_schedule(given, "exp:s0=3,k=0.1").noise_multiplier is None


def test_a_target_out_of_reach_is_refused_ahead():
    with pytest.raises(UnreachableTarget, match="Even without any decay"):
        ahead(epsilon=0.1, epochs=100, noise_schedule="exp:s0=1")


# Rows -------------------------------------------------------------------------------------------------------------


@given(epochs=st.integers(1, 5000), most=st.integers(2, 40))
def test_shown_epochs_are_few_rise_and_hold_both_ends(epochs, most):
    shown = spread(epochs, most)
    assert (shown[0], shown[-1], len(shown)) == (1, epochs, min(epochs, most))
    gaps = {after - before for before, after in itertools.pairwise(shown)}
    assert all(gap >= 1 for gap in gaps)
    assert len(gaps) <= 2


@settings(max_examples=8, deadline=None)
@given(
    sampling=st.sampled_from(["poisson", "fixed", "reshuffle"]),
    schedule=st.sampled_from(["exp:s0=3,k=0.2", "time:s0=3,k=0.1", "piecewise:0=2,2=4,3=1.5"]),
    steps=st.integers(1, 120),
)
def test_privacy_spent_rises_to_that_of_the_whole_run(sampling, schedule, steps):
    run = ahead(
        "cancer",
        batch_size=56,
        noise_multiplier=None,
        noise_schedule=schedule,
        steps=steps,
        sampling=sampling,
        every=True,
    )
    spent = [row.epsilon for row in run.rows]
    assert all(before < after for before, after in itertools.pairwise(spent))
    assert run.epsilon == spent[-1] == accountant("rdp").epsilon(run.plan.event(), 1e-4).epsilon
    assert [row.epoch for row in run.rows] == list(range(1, math.ceil(steps / 10) + 1))
    assert run.rows[-1].steps == steps
    if sampling == "reshuffle":
        assert run.rho == run.rows[-1].rho == pytest.approx(ZcdpAccountant().rho(flatten(run.plan.event())))
    else:
        assert {row.rho for row in run.rows} == {None}


def test_a_row_costs_what_a_run_of_that_length_costs():
    run = ahead(noise_schedule="exp:s0=4,k=0.1", epochs=6, accountant="pld")
    shorter = ahead(noise_schedule="exp:s0=4,k=0.1", epochs=3, accountant="pld")
    assert run.rows[2].epsilon == shorter.epsilon
    assert until(run.plan, 3) == shorter.plan
    assert [row.noise_multiplier for row in run.rows] == run.plan.noise.values(6)


def test_few_rows_or_all_of_them():
    fields = {"noise_multiplier": 8.0, "epochs": 50, "sampling": "reshuffle", "accountant": "zcdp"}
    few, every = ahead(**fields), ahead(**fields, every=True)
    assert (len(few.rows), len(every.rows)) == (FEW, 50)
    assert set(few.rows) < set(every.rows)
    assert (few.epsilon, few.rho) == (every.epsilon, every.rho)


def test_batches_clip_bounds_and_rates_that_change_are_in_the_rows():
    run = ahead(
        noise_multiplier=2.0,
        epochs=4,
        batch_size_schedule="piecewise:0=600,2=1200",
        clip_norm_schedule="poly:s0=2,k=1,s_end=1,period=2",
        lr_schedule="exp:s0=1,k=0.5",
    )
    assert [row.batch_size for row in run.rows] == [600, 600, 1200, 1200]
    assert [row.steps for row in run.rows] == [100, 200, 250, 300]
    assert [row.clip_norm for row in run.rows] == [2.0, 1.5, 1.0, 1.0]
    assert [row.lr for row in run.rows] == [math.exp(-0.5 * epoch) for epoch in range(4)]


@pytest.mark.parametrize(
    ("fields", "bounds"),
    [
        ({"clip_norm": 4.0}, [4.0, 4.0]),
        ({"clip_norm": 4.0, "clip_norm_schedule": "step:k=0.5,period=1"}, [4.0, 2.0]),
        ({"clip_rule": "automatic:3,gamma=0.01", "clip_norm_schedule": "step:k=0.5,period=1"}, [1.0, 0.5]),
    ],
)
def test_the_clip_bound_begins_with_clip_and_is_a_factor_for_a_rule_with_its_own(fields, bounds):
    assert [row.clip_norm for row in ahead(noise_multiplier=2.0, epochs=2, **fields).rows] == bounds


def test_a_whole_batch_has_a_rho_and_a_sampled_one_has_not():
    whole = ahead("cancer", noise_multiplier=20.0, batch_size=560, steps=3)
    assert whole.rho == pytest.approx(3 / 800)
    assert "rho 0.00375" in whole.head()[-1]
    assert ahead("cancer", noise_multiplier=20.0, batch_size=559, steps=3).rho is None


# What has no epsilon, or none that is known ahead ----------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"noise_multiplier": 0.0}, "No noise is added"),
        ({"noise_multiplier": 2.0, "method": "adadp-published"}, "Line 23 of Algorithm 1"),
    ],
)
def test_what_is_not_private_has_no_epsilon(fields, why):
    run = ahead("cancer", epochs=2, allow_nonprivate=True, sampling="reshuffle", **{"batch_size": 56, **fields})
    assert (run.epsilon, run.rho, run.epsilon_before) == (None, None, None)
    assert {(row.epsilon, row.rho) for row in run.rows} == {(None, None)}
    assert run.head()[-1].startswith(f"NOT private, there is no epsilon. {why}")
    assert not run.as_json()["private"]


def test_an_estimate_is_not_called_private():
    run = ahead(noise_multiplier=2.0, epochs=2, accountant="zcdp-sampled")
    assert run.status is Status.ESTIMATE
    assert "NOT a guarantee" in run.head()[-1]
    assert not run.as_json()["private"]


@pytest.mark.parametrize(("sampling", "rule"), [("poisson", "rdp-filter"), ("reshuffle", "zcdp-filter")])
def test_noise_that_follows_looks_has_a_budget_and_no_rows(sampling, rule):
    run = ahead(
        epsilon=2.0,
        sampling=sampling,
        noise_schedule="validation:s0=10,k=0.7",
        validation=5000,
        validation_public=True,
    )
    assert (run.rows, run.epsilon, run.solved) == ((), 2.0, None)
    assert run.plan.records == 55000
    assert run.schedule == "validation:s0=10,k=0.7"
    text = " ".join(run.head())
    assert "noise multiplier begins with 10 and will be chosen during the run" in text
    assert f"at most {run.plan.epochs} epochs" in text
    assert (
        f"at most epsilon 2 at delta 1e-05{f', rho {run.rho:.4g}' if run.rho else ''}: the budget of the {rule}" in text
    )
    longer = run.plan.with_noise(Uniform(10.0), steps=run.plan.steps_of(run.plan.epochs + 1))
    name = "rdp" if sampling == "poisson" else "zcdp"
    assert replace(longer, adaptive=False).epsilon(1e-5, name).epsilon > 2


def test_looks_at_private_records_are_said_to_cost():
    private = ahead(
        "cancer", epsilon=2.0, batch_size=56, noise_schedule="validation:s0=5,k=0.7,look=20", validation=100
    )
    public = ahead(
        "cancer",
        epsilon=2.0,
        batch_size=56,
        noise_schedule="validation:s0=5,k=0.7",
        validation=100,
        validation_public=True,
    )
    assert private.head()[1] == public.head()[1] + ", also by looks"


def test_features_that_are_released_are_named_and_counted():
    run = ahead(features="pca:dim=60,noise_multiplier=16", epsilon=2.0, epochs=2)
    assert run.before == ("pca:dim=60,noise_multiplier=16.0",)
    assert 0 < run.epsilon_before < run.rows[0].epsilon < run.epsilon <= 2
    assert any(
        line.startswith("released before the first step: pca:dim=60,noise_multiplier=16.0, epsilon")
        for line in run.head()
    )
    assert run.plan.before == (16.0,)


def test_features_that_are_released_are_part_of_rho():
    fields = {"sampling": "reshuffle", "noise_multiplier": 8.0, "epochs": 2, "accountant": "zcdp"}
    run = ahead(features="pca:dim=60,noise_multiplier=16", **fields)
    assert rho_by_epoch(run.plan) == pytest.approx([1 / 512, 1 / 512 + 1 / 128, 1 / 512 + 2 / 128])
    assert [row.rho for row in run.rows] == rho_by_epoch(run.plan)[1:]
    assert run.rho == pytest.approx(ZcdpAccountant().rho(flatten(run.plan.event())))
    leaking = ahead(
        features="pca:dim=60,noise_multiplier=16", allow_nonprivate=True, **{**fields, "method": "adadp-published"}
    )
    assert (leaking.before, leaking.epsilon_before) == (run.before, None)


# Numbers of records, and pictures --------------------------------------------------------------------------------


def test_the_number_of_records_is_public_or_an_error():
    assert resolve.training_records(TrainConfig("mnist", epsilon=1.0)) == 60000
    assert resolve.training_records(TrainConfig("table:x.csv", epsilon=1.0, records=500)) == 500
    assert resolve.public_records(TrainConfig("table:x.csv", epsilon=1.0)) is None
    with pytest.raises(InputError, match=r"number of records in table:x\.csv is not given"):
        resolve.training_records(TrainConfig("table:x.csv", epsilon=1.0))
    looks = {"noise_schedule": "validation:s0=10,k=0.7", "validation_public": True}
    assert resolve.training_records(TrainConfig("mnist", epsilon=1.0, validation=5000, **looks)) == 55000
    with pytest.raises(InputError, match="60000 validation records"):
        resolve.training_records(TrainConfig("mnist", epsilon=1.0, validation=60000, **looks))


@pytest.mark.parametrize("ending", ["png", "svg", "pdf"])
def test_runs_are_drawn_beside_one_another(tmp_path, ending):
    runs = [
        ahead(noise_multiplier=noise_multiplier, epochs=3, sampling="reshuffle", accountant="zcdp")
        for noise_multiplier in (4.0, 8.0)
    ]
    path = plot_outlooks(tmp_path / f"runs.{ending}", runs)
    assert path.stat().st_size > 1000


def test_the_axes_are_in_rho_only_where_every_run_has_one(tmp_path):
    shuffled = ahead(noise_multiplier=4.0, epochs=3, sampling="reshuffle", accountant="zcdp")
    sampled = ahead(noise_multiplier=4.0, epochs=3)
    for runs, expected in (([shuffled], "rho spent"), ([shuffled, sampled], "epsilon spent at delta = 1e-05")):
        text = plot_outlooks(tmp_path / "runs.svg", runs).read_text()
        assert f"<!-- {expected} -->" in text


def test_a_run_that_cannot_be_drawn_says_why(tmp_path):
    looks = {"noise_schedule": "validation:s0=10,k=0.7", "validation": 10, "validation_public": True}
    with pytest.raises(InputError) as chosen:
        plot_outlooks(tmp_path / "a.png", [ahead("cancer", epsilon=2.0, batch_size=56, **looks)])
    assert "chosen during the run" in chosen.value.why
    with pytest.raises(InputError) as open_:
        plot_outlooks(
            tmp_path / "a.png", [ahead("cancer", noise_multiplier=0.0, batch_size=56, epochs=1, allow_nonprivate=True)]
        )
    assert "it has none" in open_.value.why
    assert not (tmp_path / "a.png").exists()


def test_a_plan_made_in_python_has_an_outlook_too():
    plan = Plan.of_noise(noise=2.0, records=1000, batch_size=100, epochs=2, clip_norm=Flat(1.0))
    config = TrainConfig("python", noise_multiplier=2.0, delta=1e-5, epochs=2, clip_norm=1.0)
    assert outlook(RunSpec.of(config), plan).epsilon == plan.epsilon(1e-5).epsilon
