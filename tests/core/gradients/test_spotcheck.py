"""The net below the proof: records of a real batch are computed alone and compared, before anything is charged."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from adadp.app.audit import neighbour_replay
from adadp.errors import MixedRecords
from adadp.gradients import GradientEngine
from adadp.ledger import Ledger, PlannedBudget, read_ledger
from adadp.plan import Plan
from adadp.step import PrivateGradients


class Turned(nn.Module):
    """Goes by a switch that somebody turns after the model was looked over: the same calls, other rows."""

    def __init__(self, dropout=0.0):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.norm, self.last = nn.Linear(4, 4), nn.LayerNorm(4), nn.Linear(4, 2)
        self.dropout = nn.Dropout(dropout)
        self.turned = 0

    def forward(self, x):
        shift = len(x) // 2 * self.turned
        rows = torch.arange(len(x)).roll(0)
        rows = torch.cat([rows[shift:], rows[:shift]])
        back = rows.argsort()
        return self.last(self.norm(self.dropout(torch.sin(self.first(x[rows])))[back]))


def loss(model, x, y):
    return F.cross_entropy(model(x), y, reduction="none")


def started(tmp_path, x, *, dropout=0.0, seed=None):
    plan = Plan.of_noise(noise=1.0, steps=40, records=len(x), batch_size=len(x) // 2, clip_norm=1.0)
    ledger = Ledger.create(tmp_path / "ledger.jsonl", budget=PlannedBudget(plan.event()))
    return PrivateGradients(Turned(dropout), (x, torch.arange(len(x)) % 2), loss, plan, ledger, seed=seed)


@pytest.mark.parametrize("dropout", [0.0, 0.5])
def test_a_model_that_moves_records_where_no_proof_sees_it_is_stopped(tmp_path, dropout):
    private = started(tmp_path, torch.randn(60, 4), dropout=dropout)
    private.model.turned = 1
    before = [value.clone() for value in private.model.parameters()]
    with pytest.raises(MixedRecords, match="Nothing was released") as caught:
        private.release()
    assert not any(character.isdigit() for character in str(caught.value))
    assert private.step == 0
    assert not read_ledger(tmp_path / "ledger.jsonl").charges
    assert all(parameter.grad is None for parameter in private.model.parameters())
    assert all(map(torch.equal, before, private.model.parameters()))


@pytest.mark.parametrize("dropout", [0.0, 0.5])
def test_the_same_model_as_it_was_proved_runs(tmp_path, dropout):
    private = started(tmp_path, torch.randn(60, 4), dropout=dropout)
    for _ in range(40):
        private.release()
    assert private.model.training
    assert private.model.dropout.training


def test_later_steps_are_checked_at_random(tmp_path, monkeypatch):
    """The model begins to move records after the first step: some later step finds it."""
    private = started(tmp_path, torch.randn(60, 4), seed=1)
    private.release()
    checked = [step for step in range(1, 2000) if private._checks(step)]
    assert 20 <= len(checked) <= 65
    assert private._checks(0)
    private.model.turned = 1
    monkeypatch.setattr(private, "_checks", lambda step: step == 3)
    private.release()
    private.release()
    with pytest.raises(MixedRecords):
        private.release()
    assert sum(read_ledger(tmp_path / "ledger.jsonl").charges.values()) == 3


@pytest.mark.usefixtures("raw_records")
def test_a_broken_record_does_not_stop_a_run(tmp_path):
    x = torch.randn(60, 4)
    x[::2] = torch.nan
    x[1::4] = -torch.inf
    private = started(tmp_path, x)
    private.release()
    assert all(value.grad.isfinite().all() for value in private.model.parameters())


class Branching(nn.Module):
    """Goes another way for every batch that holds a large number."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.last = nn.Linear(4, 8), nn.Linear(8, 2)

    def forward(self, x, _):
        hidden = torch.tanh(self.first(x))
        return self.last(hidden.flip(0).flip(0) if bool((x > 50).any()) else hidden)


class Sorting(Branching):
    """Sorts and unsorts, with a normalisation outside: one record moved the sum by 70 times the bound."""

    def forward(self, x, lengths):
        order = lengths.argsort(descending=True)
        return self.last(F.layer_norm(torch.tanh(self.first(x[order]))[order.argsort()], (8,)))


@pytest.mark.parametrize("kind", [Branching, Sorting])
@pytest.mark.filterwarnings("ignore:.*no closed form")
def test_one_record_does_not_move_a_release_beyond_its_bound_by_the_path_it_makes_its_batch_take(kind, tmp_path):
    x = torch.randn(80, 4, generator=torch.Generator().manual_seed(1))
    x[-1] = 90
    data = (x, torch.arange(80), torch.arange(80) % 2)
    plan = Plan.of_noise(noise=1.0, steps=6, records=80, batch_size=60, clip_norm=0.5)

    def runner(records, name):
        def run(steps, mechanism):
            with Ledger.create(tmp_path / name, budget=PlannedBudget(plan.event())) as ledger:
                private = PrivateGradients(
                    kind(), records, lambda m, *batch: F.cross_entropy(m(*batch[:2]), batch[2], reduction="none"),
                    plan, ledger, seed=3, mechanism=mechanism,
                )  # fmt: skip
                for _ in range(steps):
                    private.release()

        return run

    found = neighbour_replay(runner(data, "with"), runner(tuple(each[:-1] for each in data), "without"), 6)
    assert 0.9 < max(each.share for each in found) <= 1


class Corners(nn.Module):
    """Every unit is at the corner of its ReLU: rounding, which differs with the size of a batch, opens or shuts it."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.last = nn.Linear(64, 32, bias=False), nn.Linear(32, 2)

    def forward(self, x):
        whole = self.first(x)
        other = torch.stack([(x * row).sum(1) for row in self.first.weight.detach()], dim=1)
        return self.last(torch.relu(whole - other) + 0.1 * whole)


def test_a_network_at_the_corners_of_its_relus_is_not_taken_for_one_that_mixes():
    like = torch.randn(1, 64), torch.zeros(1, dtype=torch.long)
    assert GradientEngine(Corners(), loss, like).notes == ()
