"""The crossing: nothing is released that the ledger does not hold, and the noise is that of the charged event."""

from __future__ import annotations

import pytest
import torch

from adadp.errors import BudgetExceeded, InputError
from adadp.events import AdaptivelyChosen, GaussianRelease, PoissonSampled, ReshuffledEpoch, Selection, compose
from adadp.ledger import Ledger, PlannedBudget
from adadp.randomness import SecureSource, SeededSource
from adadp.release import Crossing, GaussianMechanism

TOTAL = {"x": torch.zeros(3, dtype=torch.float64)}
STEP = {"step": 0, "purpose": "test"}


class Watched(GaussianMechanism):
    """Remembers the multipliers, and what the ledger held when the noise was drawn."""

    def __init__(self, ledger: Ledger) -> None:
        self.ledger, self.multipliers, self.charges = ledger, [], []

    def release(self, total, **options):
        self.multipliers.append(options["noise_multiplier"])
        self.charges.append(dict(self.ledger.charges))
        return super().release(total, **options)


@pytest.fixture
def crossing(tmp_path):
    with Ledger.create(tmp_path / "ledger") as ledger:
        yield Crossing(ledger, SeededSource(1), Watched(ledger))


@pytest.mark.parametrize(
    "wrap",
    [
        lambda release: release,
        lambda release: PoissonSampled(0.1, release),
        lambda release: AdaptivelyChosen(PoissonSampled(0.1, release)),
        lambda release: PoissonSampled(0.1, compose(release, GaussianRelease(9.0))),
    ],
)
def test_noise_is_that_of_the_charge_and_comes_after_it(crossing, wrap):
    release = GaussianRelease(2.5)
    charge = wrap(release)
    crossing.pay(release, charge).gaussian(TOTAL, 1.0, **STEP)
    assert crossing.mechanism.multipliers == [2.5]
    assert crossing.mechanism.charges == [{charge: 1}]


def test_parts_of_an_event_are_released_once_each_and_in_order(crossing):
    release = compose(GaussianRelease(2.0), GaussianRelease(7.0), Selection(0.5))
    permit = crossing.pay(release, PoissonSampled(0.1, release))
    assert permit.noise_multiplier == 2.0
    with pytest.raises(InputError, match="No Selection is left"):
        permit.choice(torch.zeros(2), 1.0, **STEP)
    for _ in range(2):
        permit.gaussian(TOTAL, 1.0, **STEP)
    assert crossing.mechanism.multipliers == [2.0, 7.0]
    with pytest.raises(InputError, match="No GaussianRelease is left"):
        permit.gaussian(TOTAL, 1.0, **STEP)
    assert permit.choice(torch.tensor([0.0, 1e6]), 1.0, **STEP) == 0
    with pytest.raises(InputError, match="No Selection is left"):
        permit.choice(torch.zeros(2), 1.0, **STEP)


def test_what_was_not_charged_is_not_released(crossing):
    with pytest.raises(InputError, match="was not charged"):
        crossing.pay(GaussianRelease(1.0), PoissonSampled(0.1, GaussianRelease(2.0)))
    with pytest.raises(InputError, match="was not charged"):
        crossing.pay(GaussianRelease(1.0), None)
    assert crossing.mechanism.multipliers == []


def test_an_epoch_charged_as_a_whole_covers_its_batches(crossing):
    few, many = (GaussianRelease(each, "zero-out") for each in (1.0, 2.0))
    crossing.pay(few, ReshuffledEpoch((few, many)))
    crossing.pay(many, None)
    with pytest.raises(InputError, match="was not charged"):
        crossing.pay(GaussianRelease(3.0, "zero-out"), None)


def test_a_seeded_run_repeats_what_is_paid_and_a_secure_one_does_not(crossing):
    release = GaussianRelease(2.0)
    first = crossing.pay(release, release).gaussian(TOTAL, 1.0, **STEP)
    again = crossing.pay(release, release, paid=True).gaussian(TOTAL, 1.0, **STEP)
    assert torch.equal(first["x"], again["x"])
    assert dict(crossing.ledger.charges) == {release: 1}
    with pytest.raises(InputError, match="without a charge"):
        Crossing(crossing.ledger, SecureSource()).pay(release, release, paid=True)


def test_a_refused_charge_releases_nothing(tmp_path):
    release = GaussianRelease(2.0)
    with Ledger.create(tmp_path / "ledger", budget=PlannedBudget(release)) as ledger:
        crossing = Crossing(ledger, SeededSource(1), Watched(ledger))
        crossing.pay(release, release)
        with pytest.raises(BudgetExceeded):
            crossing.pay(release, release)
        assert dict(ledger.charges) == {release: 1}


def test_without_noise_a_choice_takes_the_least(crossing):
    release = GaussianRelease(0.0)
    permit = crossing.pay(release, release)
    permit.gaussian(TOTAL, 1.0, **STEP)
    assert permit.choice(torch.tensor([3.0, 1.0, 2.0]), 1.0, **STEP) == 1
