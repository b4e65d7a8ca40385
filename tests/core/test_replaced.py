"""What replacing one record moves: the sums of the feature stages, the events that say so, and what is charged."""

from __future__ import annotations

import itertools
import json
import math

import pytest
import torch

from adadp.accounting import accountant
from adadp.accounting.contour import gaussian_delta
from adadp.app.config import TrainConfig
from adadp.app.features.equalise import Equalise
from adadp.app.features.pca import Pca
from adadp.app.features.private_bounds import Bounds
from adadp.app.features.standardise import Standardise
from adadp.app.spec import RunSpec
from adadp.app.train.planning import plan_of
from adadp.errors import EventError, InputError
from adadp.events import (
    Composed,
    GaussianRelease,
    Neighbours,
    PoissonSampled,
    Repeated,
    ReshuffledEpoch,
    describe,
    from_json,
    to_json,
)
from adadp.plan import Plan

REPLACE = Neighbours.REPLACE_ONE
ROOT = math.sqrt(2.0)
OTHERS = torch.randn(5, 2, 3, generator=torch.Generator().manual_seed(3))


def axis(place: int, size: float = 1.0) -> torch.Tensor:
    record = torch.zeros(6)
    record[place] = size
    return record.reshape(2, 3)


def adversarial() -> list[torch.Tensor]:
    """Records that are opposite, orthogonal, parallel, empty, huge, tiny, not finite, or random."""
    generator = torch.Generator().manual_seed(1)
    random = [torch.randn(2, 3, generator=generator) * 10.0**k for k in (-30, -3, 0, 3, 18)]
    constant = [torch.full((2, 3), value) for value in (1.0, -1.0, 0.0, math.nan, math.inf, 1e38, 1e-45)]
    return [axis(0), axis(0, -1.0), axis(1), axis(5, -3.0), *constant, *random]


def moved(stage, one: torch.Tensor, other: torch.Tensor) -> float:
    """How far the query moves, in l2, when ``other`` stands in the place of ``one``."""
    sums = [stage.query(torch.cat([OTHERS, record[None]])) for record in (one, other)]
    return math.sqrt(sum(float((sums[0][name] - sums[1][name]).square().sum()) for name in sums[0]))


@pytest.mark.parametrize(
    "stage",
    [Pca(dim=2, noise_multiplier=4.0), Equalise(noise_multiplier=4.0), Standardise(noise_multiplier=4.0)],
    ids=str,
)
def test_replacing_a_record_moves_a_stage_by_what_it_says(stage):
    assert stage.replaced == ROOT
    furthest = max(moved(stage, *pair) for pair in itertools.combinations(adversarial(), 2))
    assert 1.1 * stage.l2_bound < furthest <= stage.replaced * stage.l2_bound


def test_replacing_a_record_moves_histograms_by_what_they_say():
    stage = Bounds((0, 1), noise_multiplier=4.0)
    rows = [
        torch.tensor([0.0, 0.0, a, b]) for a, b in itertools.product((-1e300, -2.0, 0.0, 1e-9, 7.0, math.nan), repeat=2)
    ]
    sums = [stage.query(row[None].double())["histograms"] for row in rows]
    furthest = max(float((one - other).norm()) for one, other in itertools.combinations(sums, 2))
    assert furthest == pytest.approx(stage.replaced * stage.l2_bound)
    assert furthest <= stage.replaced * stage.l2_bound


def test_random_records_never_move_a_stage_further():
    generator = torch.Generator().manual_seed(2)
    for stage in (Pca(dim=2, noise_multiplier=4.0), Equalise(noise_multiplier=4.0), Standardise(noise_multiplier=4.0)):
        for _ in range(300):
            one, other = torch.randn(2, 2, 3, generator=generator)
            sign = -one + 0.1 * other  # nearly opposite
            for each in (other, sign):
                assert moved(stage, one, each) <= stage.replaced * stage.l2_bound


# --- The event ---


def test_an_event_says_how_far_replacing_moves_it():
    event = GaussianRelease(4.0, REPLACE, ROOT)
    text = to_json(event)
    assert text["replaced"] == ROOT
    assert from_json(json.loads(json.dumps(text))) == event
    assert "replaced" not in to_json(GaussianRelease(4.0, REPLACE))
    assert describe(event) == "Gaussian(sigma=4, replaced=1.414)"
    assert GaussianRelease(4.0, REPLACE) != event


@pytest.mark.parametrize("relation", [Neighbours.ADD_REMOVE, Neighbours.ZERO_OUT])
def test_for_other_neighbours_it_says_nothing(relation):
    assert GaussianRelease(4.0, relation, ROOT) == GaussianRelease(4.0, relation)


@pytest.mark.parametrize("moved_by", [0.0, -1.0, 2.1, math.nan, math.inf])
def test_what_no_replacement_can_do_is_refused(moved_by):
    with pytest.raises((EventError, InputError)):
        GaussianRelease(4.0, REPLACE, moved_by)


# --- What it costs ---


def test_every_accountant_charges_a_release_what_it_moves():
    event = GaussianRelease(4.0, REPLACE, ROOT)
    epsilon = accountant("pld").epsilon(event, 1e-5).epsilon
    assert gaussian_delta(ROOT / 4.0, epsilon) == pytest.approx(1e-5, rel=1e-6)
    assert accountant("zcdp").rho({event: 3}) == pytest.approx(3 * 2 / 16 / 2)
    for name in ("pld", "rdp", "moments", "zcdp", "strong"):
        asked = accountant(name)
        same = asked.epsilon(GaussianRelease(4.0 / ROOT), 1e-5).epsilon  # moved by 1, with as much less noise
        assert asked.epsilon(event, 1e-5).epsilon == pytest.approx(same, rel=1e-9)
        assert asked.epsilon(GaussianRelease(4.0, REPLACE), 1e-5).epsilon > 1.2 * same


@pytest.mark.parametrize("name", ["pld", "rdp", "strong"])
def test_on_a_sampled_or_reshuffled_batch_nothing_less_than_2_is_proved(name):
    for batch in (lambda event: PoissonSampled(0.1, event), lambda event: ReshuffledEpoch((event,))):
        less, full = (
            accountant(name).epsilon(Repeated(batch(event), 10), 1e-5).epsilon
            for event in (GaussianRelease(4.0, REPLACE, ROOT), GaussianRelease(4.0, REPLACE))
        )
        assert less == pytest.approx(full, rel=1e-9)


def test_a_plan_charges_its_features_what_they_move():
    settings = {
        "noise": 2.0,
        "records": 1000,
        "batch_size": 100,
        "steps": 10,
        "sampling": "fixed",
        "before": (16.0, 9.0),
    }
    plan = Plan.of_noise(**settings, replaced=(ROOT, 2.0))
    assert plan.charges_before() == (GaussianRelease(16.0, REPLACE, ROOT), GaussianRelease(9.0, REPLACE))
    assert plan.describe()["replaced"] == [ROOT, 2.0]
    assert "replaced" not in Plan.of_noise(**settings).describe()
    with pytest.raises(InputError, match="replaced has 1 numbers"):
        Plan.of_noise(**settings, replaced=(ROOT,))


def test_a_configuration_charges_its_features_what_they_move():
    common = {
        "data": "python",
        "batch_size": 100,
        "steps": 10,
        "noise_multiplier": 2.0,
        "delta": 1e-5,
        "clip_norm": 1.0,
    }
    config = TrainConfig(**common, features="pca:dim=4,noise_multiplier=16.0", sampling="fixed")
    plan = plan_of(RunSpec.of(config), 1000)
    assert plan.charges_before() == (GaussianRelease(16.0, REPLACE, ROOT),)
    assert Composed((*plan.charges_before(), plan.sampler.amplify(plan.release_at(0))))
    assert plan_of(RunSpec.of(config.replace(sampling="poisson")), 1000).charges_before() == (GaussianRelease(16.0),)
