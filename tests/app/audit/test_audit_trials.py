"""The experiments: runs by the real step, from the same start each time, and scores that mean what they say."""

from __future__ import annotations

import math

import pytest
import torch
from clip_texts import rule_of
from scipy.stats import norm

from adadp import Ledger, Plan, PrivateGradients
from adadp.app.audit import Canary, Dirac, Experiment, Subject, optimizer_by_name, run_trials
from adadp.app.texts.methods import parse_method
from adadp.errors import InputError
from adadp.events import flatten
from adadp.ledger import PlannedBudget
from adadp.noise import GaussianMechanism
from adadp.randomness import SeededSource

pytestmark = pytest.mark.slow


QUANTILE = "quantile:initial=0.5,quantile=0.5,lr=0.2,count_noise=10,floor=0.01,ceiling=100"


def planned(*, noise=2.0, steps=5, records=20, batch_size=10, clip_norm=1.0, **more) -> Plan:
    shape = {"steps": steps, "records": records, "batch_size": batch_size, "clip_norm": clip_norm}
    return Plan.of_noise(noise=noise, **shape, **more)


class Weights(Canary):
    """Shows the first weights of the model as scores."""

    score_names = ("first", "second", "third")

    def scores(self, view):
        return tuple(next(view.model.parameters()).detach()[0, -3:].tolist())


@pytest.mark.parametrize("method", ["dpsgd", "adadp:start=2", "adadp-published", "adadp-published:clip=batch"])
@pytest.mark.parametrize("optimizer", ["sgd", "rms"])
def test_every_run_is_what_a_new_step_would_do(tmp_path, method, optimizer):
    """The step is built once for all runs; nothing of a run, its method or its optimizer may reach the next."""
    plan, make = planned(), optimizer_by_name(optimizer, 0.05)
    experiment = Weights()
    found = run_trials(experiment, Subject(plan, parse_method(method), optimizer=make), 3, seed=7)
    everybody = experiment.records(plan.records)
    for side, (data, scores) in enumerate(
        [(everybody, found.scores_with), (tuple(each[:-1] for each in everybody), found.scores_without)]
    ):
        model = experiment.model()
        with Ledger.create(tmp_path / f"{side}", budget=PlannedBudget(plan.event())) as ledger:
            source = SeededSource((7 * 2**32 + 2) * 2 + side)
            private = PrivateGradients(
                model,
                data,
                experiment.loss,
                plan,
                ledger,
                method=parse_method(method),
                seed=source,
                allow_nonprivate=True,
            )
            rule = make(list(model.parameters()))
            for _ in range(plan.steps):
                private.release()
                rule.step()
        assert scores[2] == pytest.approx(next(model.parameters()).detach()[0, -3:].tolist(), abs=0)


def test_a_clip_bound_that_is_learnt_starts_again_too():
    twice = run_trials(Weights(), Subject(planned(clip_norm=rule_of(QUANTILE))), 2)
    assert not (twice.scores_with[0] == twice.scores_with[1]).any()
    again = run_trials(Weights(), Subject(planned(clip_norm=rule_of(QUANTILE))), 3)
    assert (again.scores_with[:2] == twice.scores_with).all()


def test_runs_differ_and_a_seed_repeats_them():
    subject = Subject(planned())
    first, again, other = (run_trials(Weights(), subject, 4, seed=seed) for seed in (0, 0, 1))
    assert (first.scores_with == again.scores_with).all()
    drawn = torch.cat([torch.tensor(side) for side in (first.scores_with, first.scores_without, other.scores_with)])
    assert len(drawn[:, 0].unique()) == 12


def test_what_one_run_charges_is_the_plan():
    plan = planned(clip_norm=rule_of(QUANTILE))
    assert flatten(run_trials(Dirac(), Subject(plan), 2).charged) == flatten(plan.event())


class Silent(GaussianMechanism):
    """Adds no noise."""

    def release(self, total, *, noise_multiplier, **given):
        return super().release(total, noise_multiplier=0.0, **given)


@pytest.mark.parametrize("method", ["dpsgd", "adadp:start=1"])
def test_the_record_of_dirac_gives_its_whole_bound_and_the_others_nothing(method):
    """Without noise in a full batch, the score is the likelihood ratio at exactly C, or at exactly 0."""
    plan = planned(batch_size=20, clip_norm=0.5)
    subject = Subject(plan, parse_method(method), mechanism=Silent())
    found = run_trials(Dirac(4), subject, 2)
    each_step = 1 / (2 * 2.0**2)  # ln of exp((2 x C - C^2) / (2 sigma^2 C^2)) at x = C; its negative at x = 0
    assert found.scores_with[0][0] == pytest.approx(5 * each_step, rel=1e-4)
    assert found.scores_without[0][0] == pytest.approx(-5 * each_step, rel=1e-4)
    assert found.scores_with[0][2] == found.scores_without[0][2] == 0
    assert found.scores_with[0][1] > 0 == found.scores_without[0][1]


class Shown(Dirac):
    """Keeps the first run's view."""

    def __init__(self) -> None:
        super().__init__(4)
        object.__setattr__(self, "views", [])

    def scores(self, view):
        self.views.append(view)
        return super().scores(view)


def test_the_likelihood_is_that_of_the_sampled_gaussian():
    plan = planned(noise=0.7, batch_size=5, clip_norm=0.5)
    experiment = Shown()
    found = run_trials(experiment, Subject(plan), 2)
    q, c, s = 0.25, 0.5, 0.35
    wanted = 0.0
    for release in experiment.views[0].releases:
        x = float(release.released["layers.0.weight"][0, 0])
        wanted += math.log((1 - q) * norm.pdf(x, 0, s) + q * norm.pdf(x, c, s)) - math.log(norm.pdf(x, 0, s))
    assert found.scores_with[0][0] == pytest.approx(wanted, rel=1e-3)


def test_of_a_method_that_is_not_private_only_the_gradient_is_seen():
    experiment = Shown()
    found = run_trials(experiment, Subject(planned(), parse_method("adadp-published")), 2)
    assert not experiment.views[0].releases
    seen = sum(float(each["layers.0.weight"][0, 0]) for each in experiment.views[0].gradients)
    assert found.scores_with[0][0] == pytest.approx(seen)


def test_only_the_canary_moves_the_weights_of_its_flag():
    subject = Subject(planned(batch_size=20), mechanism=Silent())
    found = run_trials(Canary(), subject, 2)
    moved, along, silent = found.scores_with[0]
    assert 0 < along <= moved * (1 + 1e-6)
    assert along > 0.9 * moved  # near its start the network is driven where its first gradient points
    assert silent == 0
    assert found.scores_without[0].tolist() == [0, 0, 5]


def test_the_canary_is_the_last_of_the_records_and_the_only_one_with_a_flag():
    features, labels, weights = Canary().records(50)
    assert features.shape == (50, 10)
    assert labels.shape == (50,)
    assert weights.eq(1).all()
    assert not features[:-1, -1].any()
    assert features[-1, -1] > 0


def test_the_canary_is_clipped_at_the_start():
    """Nearly all of its gradient is in the flag's weights, and there is more of it than the bound lets through."""
    experiment = Canary()
    model = experiment.model()
    loss = experiment.loss(model, *(part[-1:] for part in experiment.records(3))).sum()
    gradients = torch.autograd.grad(loss, list(model.parameters()))
    length = torch.cat([each.flatten() for each in gradients]).norm()
    assert length > 1
    assert gradients[0][:, -1].norm() > 0.95 * length


def test_mnist_is_pooled_to_49_pixels(monkeypatch):
    class Loaded:
        train = (torch.rand(30, 1, 28, 28), torch.arange(30) % 10)

    monkeypatch.setattr("adadp.app.zoo.load", lambda name, source_dir: Loaded)
    features, _, _ = Canary("mnist").records(20)
    assert features.shape == (20, 50)
    assert features[3, 8] == pytest.approx(Loaded.train[0][3, 0, 4:8, 4:8].mean().item(), rel=1e-5)
    assert run_trials(Canary("mnist"), Subject(planned()), 2).scores_with.shape == (2, 3)


def test_progress_is_told():
    told = []
    run_trials(Dirac(2), Subject(planned(steps=1)), 2, watch=lambda done, total: told.append((done, total)))
    assert told == [(1, 4), (2, 4), (3, 4), (4, 4)]


@pytest.mark.parametrize(
    ("attempt", "words"),
    [
        (lambda: Subject(planned(sampling="reshuffle", neighbours="add-remove")), "add-remove"),
        (lambda: Subject(planned().for_choices(0.1)), "chosen on the way"),
        (lambda: run_trials(Dirac(), Subject(planned()), 1), "trials"),
        (lambda: run_trials(Dirac(), Subject(planned()), 2, seed=2**31), "seed"),
        (lambda: Dirac(1), "coordinates"),
        (lambda: Canary("adult"), "adult"),
        (lambda: Canary().records(562), "560"),
        (lambda: Canary().records(2), "records"),
        (lambda: optimizer_by_name("lion", 0.1), "lion"),
        (lambda: optimizer_by_name("sgd", 0), "lr"),
    ],
)
def test_what_is_refused(attempt, words):
    with pytest.raises(InputError, match=words):
        attempt()


def test_an_experiment_says_what_it_scores():
    for each in (Canary(), Dirac()):
        assert isinstance(each, Experiment)
        assert run_trials(each, Subject(planned(steps=1)), 2).scores_with.shape == (2, len(each.score_names))
