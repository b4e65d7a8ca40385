"""Audits of every kind of run: samplings, neighbours, clip rules, people, choices among runs, features, processes."""

from __future__ import annotations

import math
from functools import partial

import numpy as np
import pytest
import torch
from broken_twins import NoNoise

from adadp import Plan
from adadp.accounting import Status, accountant
from adadp.app.accounting import RdpFilter
from adadp.app.accounting.best_of import BestOf
from adadp.app.accounting.repetitions import PoissonRepetitions
from adadp.app.audit import Canary, Dirac, FinalLoss, Released, Subject, audit_method, lower_bound, run_trials
from adadp.app.features import parse_features
from adadp.errors import InputError
from adadp.events import Neighbours, flatten

pytestmark = pytest.mark.slow

SMALL = {"trials": 2, "steps": 2, "records": 12, "batch_size": 6, "noise_multiplier": 1.0, "attack": "dirac"}
SIGMA = 2.0


def planned(**changes) -> Plan:
    return Plan.of_noise(**({"noise": SIGMA, "steps": 4, "records": 12, "batch_size": 12, "clip_norm": 0.5} | changes))


def silent(plan, experiment=None, **more):
    """Scores of runs without noise, which follow from the records alone."""
    return run_trials(experiment or Dirac(4), Subject(plan, mechanism=NoNoise(), **more), 2)


@pytest.mark.parametrize(
    "kind",
    [
        {"method": "dpsgd-momentum"},
        {"method": "adadp:start=1"},
        {"method": "dpopt:start=1"},
        {"sampling": "fixed"},
        {"sampling": "fixed", "neighbours": "zero-out"},
        {"sampling": "reshuffle"},
        {"neighbours": "replace-one", "attack": "all"},
        {"neighbours": "zero-out", "attack": "all"},
        {"clip_rule": "per-layer"},
        {"clip_rule": "quantile"},
        {"clip_rule": "automatic:0.5,gamma=0.01"},
        {"rows": 3, "attack": "all"},
        {"best_of": 2.0},
    ],
    ids=str,
)
def test_every_kind_of_run_can_be_attacked_and_claims_what_it_charged(kind):
    found = audit_method(**(SMALL | kind))
    stated = found.plan.neighbours.value
    assert stated == {"fixed": "replace-one", "reshuffle": "zero-out"}.get(
        kind.get("sampling"), "add-remove"
    ) or stated == kind.get("neighbours")
    if "best_of" not in kind:
        assert found.claimed.epsilon == accountant("pld").epsilon(found.plan.event(), 1e-5).epsilon
    assert not found.refuted


@pytest.mark.parametrize("neighbours", list(Neighbours))
def test_the_likelihood_of_full_batches_by_neighbours(neighbours):
    """Without noise x is C, and 0 or -C without the record: the ratio of two Gaussians at exactly these."""
    found = silent(planned(neighbours=neighbours))
    near = 4 * 2 / SIGMA**2 if neighbours is Neighbours.REPLACE_ONE else 4 / (2 * SIGMA**2)
    assert found.scores_with[0][0] == pytest.approx(near, rel=1e-4)
    assert found.scores_without[0][0] == pytest.approx(-near, rel=1e-4)


def test_of_reshuffled_batches_one_of_an_epoch_has_the_record():
    found = silent(planned(sampling="reshuffle", batch_size=3, steps=6))
    here, away = math.exp(1 / (2 * SIGMA**2)), math.exp(-1 / (2 * SIGMA**2))
    whole = math.log((here + 3 * away) / 4)
    second = {math.log((each + away + 2) / 4) for each in (here, away)}  # two of its four batches are drawn
    assert {round(each, 5) for each in found.scores_with[:, 0]} <= {round(whole + each, 5) for each in second}
    assert found.scores_without[0][0] == pytest.approx(math.log(away) + math.log((2 * away + 2) / 4), rel=1e-4)


def test_of_batches_of_fixed_size_the_ratio_is_that_of_two_mixtures():
    found = silent(planned(sampling="fixed", batch_size=3, steps=1))
    ratio = {0.0: 0.0}
    up, down = math.exp((2 - 1) / (2 * SIGMA**2)), math.exp((-2 - 1) / (2 * SIGMA**2))
    ratio[0.5] = math.log((0.75 + 0.25 * up) / (0.75 + 0.25 * down))
    assert all(min(abs(each - known) for known in ratio.values()) < 1e-4 for each in found.scores_with[:, 0])


@pytest.mark.parametrize("more", [{"rows": 3}, {"experiment": Dirac(4, layers=5)}], ids=["person", "layers"])
def test_a_person_and_a_record_in_several_layers_give_one_bound(more):
    plain, found = silent(planned()), silent(planned(), **more)
    assert found.scores_with[0][0] == pytest.approx(plain.scores_with[0][0], rel=1e-4)
    assert found.scores_without[0][0] == pytest.approx(plain.scores_without[0][0], rel=1e-4)


@pytest.mark.parametrize("neighbours", list(Neighbours))
def test_the_canary_moves_its_flag_and_is_replaced_or_blanked_out(neighbours):
    found = silent(planned(neighbours=neighbours, clip_norm=1.0), Canary())
    assert found.scores_with[0][1] > 0
    along = found.scores_without[0][1]
    assert along < -0.1 * found.scores_with[0][1] if neighbours is Neighbours.REPLACE_ONE else along == 0


def test_the_loss_of_the_final_model_is_lower_with_the_canary():
    found = silent(planned(clip_norm=1.0), FinalLoss())
    assert found.scores_with[0][0] < found.scores_without[0][0]


def test_the_best_of_several_runs_is_the_one_with_the_highest_score_and_charged_as_such():
    plan, law = planned(noise=1.0, steps=1), PoissonRepetitions(2.0)
    found, one = (run_trials(Dirac(4), Subject(plan, law=each), 20) for each in (law, None))
    assert found.charged == BestOf((one.charged,), law)
    assert flatten(one.charged) == flatten(plan.event())
    assert np.median(found.scores_without[:, 0]) > np.median(one.scores_without[:, 0]) + 0.3
    assert (found.scores_without == 0).all(1).any()  # no run was drawn


def test_noise_for_the_best_of_several_runs_follows_from_epsilon():
    found = audit_method(**(SMALL | {"noise_multiplier": None, "epsilon": 2.0, "delta": 1e-3, "best_of": 2.0}))
    assert found.claimed.epsilon == pytest.approx(2.0, rel=1e-3)
    assert found.claimed.accountant == "rdp"
    assert found.plan.epsilon(1e-3).epsilon < 1.5


def test_a_method_that_chooses_its_noise_is_held_by_its_filter():
    found = audit_method("agd", **(SMALL | {"noise_multiplier": None, "epsilon": 1.0, "steps": 3, "delta": 1e-3}))
    assert (found.claimed.epsilon, found.claimed.accountant, found.claimed.status) == (1.0, "rdp-filter", Status.PROVED)
    assert found.plan.adaptive
    assert not found.refuted


def test_each_run_of_such_a_method_has_the_whole_budget():
    """A budget for two steps lets every run make two, the second run too."""
    shown = []

    class Counted(Dirac):
        def scores(self, view):
            shown.append(len(view.gradients))
            return super().scores(view)

    whole = audit_method("agd", **(SMALL | {"noise_multiplier": None, "epsilon": 1.0, "delta": 1e-3})).plan
    longer = Plan.of_noise(noise=whole.noise_multiplier_at(0), records=12, batch_size=6, steps=9).for_choices(0.1)
    from adadp.lab.methods.agd import Agd

    budget = partial(RdpFilter, epsilon=1.0, delta=1e-3, expected=whole.event())
    run_trials(Counted(4), Subject(longer, Agd(), budget=budget), 2)
    assert set(shown) <= {1, 2}
    assert len(shown) == 4


@pytest.mark.parametrize("stage", ["pca:dim=2", "standardise", "equalise"])
def test_a_feature_stage_without_noise_is_noticed_and_one_with_noise_is_not(stage):
    (known,) = parse_features(f"{stage}{',' if ':' in stage else ':'}noise_multiplier=4")
    found = audit_method(known, trials=40, records=12, delta=0.1)
    assert [each.name for each in found.attacks] == ["features"]
    assert not found.refuted
    subject = Subject(found.plan, stages=(known,), mechanism=NoNoise())
    broken = run_trials(Released(known, Neighbours.ADD_REMOVE), subject, 20)
    assert lower_bound(broken.scores_with, broken.scores_without, 0.1).epsilon_low > found.claimed.epsilon


def test_the_release_of_a_stage_moves_by_what_the_record_adds():
    (known,) = parse_features("pca:dim=2,noise_multiplier=4")
    plan = planned(before=(4.0,), replaced=(known.replaced,))
    found = silent(plan, Released(known, Neighbours.ADD_REMOVE), stages=(known,))
    assert found.scores_with[0][0] - found.scores_without[0][0] == pytest.approx(1.0, rel=1e-4)


def audited_together(rank):
    torch.set_num_threads(1)
    found = run_trials(Dirac(4), Subject(planned(batch_size=6)), 3)
    return found.scores_with.tolist(), found.scores_without.tolist(), str(found.charged)


def test_several_processes_make_the_runs_that_one_makes(two):
    answers = two.run(audited_together)
    alone = audited_together(0)
    for each in answers:
        assert np.allclose(each[0], alone[0], rtol=1e-3)
        assert np.allclose(each[1], alone[1], rtol=1e-3)
        assert each[2] == alone[2]


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ({"method": "scatter"}, "not released"),
        ({"method": "agd"}, "chooses its noise"),
        ({"method": "agd", "noise_multiplier": None, "best_of": 2.0}, "chooses its noise"),
        ({"sampling": "fixed", "neighbours": "add-remove"}, "neighbours"),
        ({"sampling": "reshuffle", "neighbours": "add-remove"}, "add-remove"),
        ({"rows": 0}, "rows"),
        ({"best_of": 0.5}, "at least 1"),
        ({"clip_rule": "flat:1", "clip_norm": 2.0}, "both"),
    ],
    ids=str,
)
def test_what_is_refused(asked, words):
    with pytest.raises(InputError, match=words):
        audit_method(**(SMALL | asked))
