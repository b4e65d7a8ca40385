"""Settings that leave the range of floating point cost nothing, and a run whose parameters break stops."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from adadp.app.runs import RunFolder
from adadp.app.train import fit, verify_run
from adadp.errors import InputError
from adadp.ledger import Ledger, read_ledger

torch.manual_seed(0)
X = torch.randn(200, 5)
Y = (X[:, 0] > 0).long()
SETTINGS = {"noise_multiplier": 1.0, "delta": 1e-4, "steps": 20, "batch_size": 20, "lr": 0.1, "seed": 0}


def small() -> nn.Module:
    torch.manual_seed(0)
    return nn.Linear(5, 2)


def run(model=None, **settings):
    return fit(small() if model is None else model, (X, Y), **{**SETTINGS, **settings})


def broken() -> nn.Module:
    model = small()
    model.bias.data[0] = torch.nan
    return model


def own(**options):
    return {"optimizer": lambda parameters: torch.optim.SGD(parameters, **options), "lr": None}


REFUSED = {
    "rate": ({"lr": 1e308}, "lr must lie between"),
    "late rate": ({"lr": "piecewise:0=0.1,1=1e308"}, "lr_schedule must lie between"),
    "rate from a function": ({"lr": lambda epoch: 10.0 ** (200 * epoch), "epochs": 2, "steps": None}, "lr_schedule"),
    "rate that vanishes": ({"lr": "exp:s0=0.1,k=800"}, "gives 0 at epoch 1"),
    "decay": ({"weight_decay": 1e308}, "weight_decay must be at most"),
    "decay that multiplies": ({"weight_decay": 1e3}, "times weight_decay is 100, above 1"),
    "rate of an own optimizer": (own(lr=1e308), "do not stay finite.*lr"),
    "large rate of an own optimizer": (own(lr=1e30), "do not stay finite"),
    "decay of an own optimizer": (own(lr=0.1, weight_decay=1e5), "do not stay finite"),
    "slow growth with an own optimizer": ({**own(lr=1, weight_decay=3), "steps": 200}, "do not stay finite"),
    "rate given to an own optimizer": ({**own(lr=0.1), "lr": 1e7}, "lr must lie between"),
    "late clip bound": ({"clip_norm_schedule": "piecewise:0=1,1=1e200"}, "clip bound goes from 1 to 1e\\+200"),
    "late small clip bound": ({"clip_norm_schedule": "exp:k=100"}, "clip bound goes from 3.7.* to 1"),
    "noise": ({"noise_multiplier": 1e12}, "noise multiplier 1e\\+12 is too large for 12 parameters"),
    "parameters": ({"model": broken()}, "NaN, infinite or beyond 1e\\+18, before the first step"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_settings_that_break_the_parameters_are_refused_before_the_first_charge(case, tmp_path, monkeypatch):
    settings, message = REFUSED[case]
    monkeypatch.setattr(Ledger, "charge", lambda *_: pytest.fail("charged"))
    with pytest.raises(InputError, match=f"(?s){message}"):
        run(**settings, out=tmp_path / "run")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.Adam, torch.optim.RMSprop])
def test_what_was_tried_leaves_no_trace(kind, monkeypatch):
    def make(parameters):
        return kind(parameters, lr=0.05)

    tried = run(optimizer=make, lr=None).model
    monkeypatch.setattr("adadp.app.train.run.rehearse", lambda *_: None)
    assert all(map(torch.equal, tried.parameters(), run(optimizer=make, lr=None).model.parameters()))


@pytest.mark.slow
@pytest.mark.parametrize("optimizer", ["sgd", "adam", "adamw", "adambc", "rms"])
def test_every_named_optimizer_begins_as_it_was_made(optimizer, monkeypatch):
    tried = run(optimizer=optimizer).model
    monkeypatch.setattr("adadp.app.train.run.rehearse", lambda *_: None)
    assert all(map(torch.equal, tried.parameters(), run(optimizer=optimizer).model.parameters()))


class Breaking(torch.optim.SGD):
    """Well-behaved while it is tried, and in the first steps; then it makes a NaN."""

    left = 25

    def step(self, closure=None):
        super().step(closure)
        self.left -= 1
        if not self.left:
            self.param_groups[0]["params"][0].data[0, 0] = torch.nan


def test_a_run_whose_parameters_break_stops_charging_and_says_what_was_spent(tmp_path):
    settings = {"optimizer": lambda parameters: Breaking(parameters, lr=0.1), "lr": None, "out": tmp_path / "run"}
    with pytest.raises(InputError, match=r"NaN, infinite.*after 5 of 20 steps.*ledger.jsonl holds what was spent"):
        run(**settings)
    ledger = tmp_path / "run" / "ledger.jsonl"
    assert sum(read_ledger(ledger).charges.values()) == 5
    with pytest.raises(InputError, match="NaN, infinite"):
        run(**settings, resume=True)
    assert sum(read_ledger(ledger).charges.values()) == 5


def test_a_run_that_breaks_in_its_last_step_is_not_certified(tmp_path):
    class Late(Breaking):
        left = 10

    with pytest.raises(InputError, match="after 5 of 5 steps"):
        run(optimizer=lambda parameters: Late(parameters, lr=0.1), lr=None, steps=5, out=tmp_path / "run")
    assert not any(check.passed for check in verify_run(RunFolder.open(tmp_path / "run")))
