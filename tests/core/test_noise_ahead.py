"""Noise that a thread draws while the sums are computed: the same bits, each used once, and nothing left behind."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from adadp import Ledger, Plan, PrivateGradients
from adadp.app.losses import cross_entropy
from adadp.errors import BudgetExceeded
from adadp.events import GaussianRelease
from adadp.ledger import PlannedBudget
from adadp.noise import NormalsAhead, ahead
from adadp.randomness import SecureSource, SeededSource
from adadp.release import Crossing

WIDE = ahead.FEWEST


class Counting(NormalsAhead):
    """Counts which normals were waiting when they were asked for."""

    found: list[bool]

    def normal(self, purpose, step, count):
        self.found.append((purpose, step, count) in self._drawn)
        return super().normal(purpose, step, count)


def crossing(tmp_path, source, *releases, drawn_ahead=True) -> Crossing:
    event = releases[0] if len(releases) == 1 else None
    ledger = Ledger.create(tmp_path / f"{source} {drawn_ahead}", budget=PlannedBudget(event) if event else None)
    made = Crossing(ledger, source)
    made._ahead = made.mechanism.ahead = Counting(source)
    made._ahead.found = []
    return made


def released(made: Crossing, counts: dict[str, int], size: int) -> torch.Tensor:
    with made.drawing_ahead(counts, 0):
        permit = made.pay(GaussianRelease(2.0), GaussianRelease(2.0))
        return permit.gaussian({"x": torch.zeros(size)}, 1.0, step=0, purpose="gradient")["x"]


@pytest.mark.parametrize("size", [WIDE, ahead.MOST + WIDE])
def test_a_seeded_release_has_the_same_bits(tmp_path, size):
    drawn_ahead = crossing(tmp_path, SeededSource(1))
    now = crossing(tmp_path, SeededSource(1), drawn_ahead=False)
    assert torch.equal(released(drawn_ahead, {"gradient": size}, size), released(now, {}, size))
    waited = sum(drawn_ahead._ahead.found)
    assert waited == min(-(-size // (1 << 20)), ahead.MOST >> 20)
    assert not any(now._ahead.found)


def test_a_release_of_another_size_than_was_expected(tmp_path):
    made = crossing(tmp_path, SecureSource())
    values = released(made, {"gradient": 2 * WIDE}, WIDE)
    assert made._ahead.found == [False]
    assert 0.9 < float(values.std()) / 2 < 1.1


def test_normals_are_used_once_and_forgotten_with_their_step(tmp_path):
    made = crossing(tmp_path, SecureSource())
    first, second = released(made, {"gradient": WIDE}, WIDE), released(made, {"gradient": WIDE}, WIDE)
    assert made._ahead.found == [True, True]
    assert not torch.equal(first, second)
    refused = crossing(tmp_path, SecureSource(), GaussianRelease(2.0), drawn_ahead=False)
    released(refused, {"gradient": WIDE}, WIDE)
    with pytest.raises(BudgetExceeded):
        released(refused, {"gradient": WIDE}, WIDE)
    assert not refused._ahead._drawn


def test_few_normals_are_drawn_now_and_many_only_in_part():
    drawn = NormalsAhead(SecureSource())
    drawn.begin("few", 0, ahead.FEWEST - 1)
    assert not drawn._drawn
    for block in range(9):
        drawn.begin(f"block {block}", 0, 1 << 20)
    assert sum(count for _, _, count in drawn._drawn) == ahead.MOST
    drawn.forget()


def test_training_uses_them_from_the_second_step_on(tmp_path):
    plan = Plan.of_noise(noise=1.0, records=60, batch_size=20, steps=3, clip_norm=1.0)
    data = torch.randn(60, 300), torch.randint(0, 2, (60,))
    with PrivateGradients(
        nn.Sequential(nn.Linear(300, 300), nn.Linear(300, 2)), data, cross_entropy, plan, tmp_path / "ledger"
    ) as private:
        counting = private.crossing._ahead = private.crossing.mechanism.ahead = Counting(private.source)
        counting.found = []
        for _ in range(3):
            private.release()
    assert counting.found == [False, True, True]
