"""Optimizers and schedulers that the caller makes: which rates they give, and that a resumed run has the same."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.optim import SGD, AdamW
from torch.optim.lr_scheduler import (
    CosineAnnealingLR,
    LambdaLR,
    MultiStepLR,
    OneCycleLR,
    ReduceLROnPlateau,
    SequentialLR,
)

from adadp.app.train import fit
from adadp.errors import InputError, Interrupted

X = torch.randn(80, 4, generator=torch.Generator().manual_seed(0))
Y = (X[:, 0] > 0).long()
SETTINGS = {"noise_multiplier": 1.0, "delta": 1e-3, "steps": 12, "batch_size": 20, "seed": 0}


def linear() -> nn.Module:
    torch.manual_seed(0)
    return nn.Linear(4, 2)


def run(model=None, **settings):
    result = fit(linear() if model is None else model, (X, Y), **{**SETTINGS, **settings})
    return torch.cat([value.flatten() for value in result.network.parameters()]), result


MAKERS = {
    "one cycle": lambda optimizer, steps: OneCycleLR(optimizer, 0.1, total_steps=steps + 1),
    "cosine": CosineAnnealingLR,
    "steps": lambda optimizer, steps: MultiStepLR(optimizer, [3, 3, steps // 2]),
    "lambda": lambda optimizer, steps: LambdaLR(optimizer, lambda step: 1 - step / (steps + 1)),
    "sequential": lambda optimizer, steps: SequentialLR(
        optimizer, [LambdaLR(optimizer, lambda step: 0.1), CosineAnnealingLR(optimizer, steps)], milestones=[4]
    ),
}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:The epoch parameter")
@pytest.mark.parametrize("name", MAKERS)
def test_a_resumed_run_has_the_same_rates_bit_for_bit(name, tmp_path):
    def stop(status):
        if status.step == 5:
            raise Interrupted("enough")

    settings = {"scheduler": MAKERS[name], "optimizer": lambda parameters: AdamW(parameters, lr=0.05)}
    whole, result = run(**settings)
    with pytest.raises(Interrupted):
        run(**settings, out=tmp_path / "run", watch=stop)
    resumed, _ = run(**settings, out=tmp_path / "run", resume=True)
    assert torch.equal(resumed, whole)
    assert not torch.equal(whole, run(optimizer=settings["optimizer"])[0])
    assert any("followed a scheduler" in note for note in result.certificate["notes"])


def test_the_rates_are_those_of_torch_one_per_step():
    seen = []

    class Spy(SGD):
        def step(self, closure=None):
            seen.append(self.param_groups[0]["lr"])
            return super().step(closure)

    model = linear()
    optimizer = Spy(model.parameters(), lr=0.4)
    run(model, optimizer=optimizer, scheduler=CosineAnnealingLR(optimizer, 12))
    own = SGD(linear().parameters(), lr=0.4)
    scheduler, wanted = CosineAnnealingLR(own, 12), []
    for _ in range(12):
        wanted.append(own.param_groups[0]["lr"])
        own.step()
        scheduler.step()
    assert seen[-12:] == wanted  # before them the settings were tried, with the largest rate
    assert {*seen[:-12]} == {0.4}


def test_an_optimizer_is_taken_as_it_is():
    model = linear()
    mine, _ = run(model, optimizer=AdamW(model.parameters(), lr=0.05))
    made, _ = run(optimizer=lambda parameters: AdamW(parameters, lr=0.05))
    assert torch.equal(mine, made)


def test_a_named_optimizer_begins_with_its_rate():
    half = lambda optimizer, steps: LambdaLR(optimizer, lambda step: 0.5)  # noqa: E731
    assert torch.equal(run(lr=0.2, scheduler=half)[0], run(lr=0.1)[0])


def test_what_cannot_work_is_refused_before_anything_is_spent():
    model = linear()
    other, own = SGD(linear().parameters(), lr=0.1), SGD(model.parameters(), lr=0.1)
    cases = [
        ({"optimizer": other}, "not the trained ones"),
        ({"optimizer": own, "scheduler": CosineAnnealingLR(other, 3)}, "another optimizer"),
        ({"scheduler": lambda optimizer, steps: OneCycleLR(optimizer, 0.1, total_steps=5)}, "does not last"),
        ({"scheduler": lambda optimizer, steps: ReduceLROnPlateau(optimizer)}, "is ReduceLROnPlateau"),
        ({"scheduler": lambda optimizer, steps: LambdaLR(optimizer, lambda step: 1e30 * (step == 9))}, "stay finite"),
        ({"optimizer": own, "lr": 0.1, "scheduler": CosineAnnealingLR(own, 3)}, "overwrite"),
        ({"lr": "exp:s0=0.1,k=0.1", "scheduler": CosineAnnealingLR}, "overwrite"),
    ]
    for settings, message in cases:
        with pytest.raises(InputError, match=message):
            run(model, **settings)


def test_a_run_is_not_resumed_with_another_scheduler(tmp_path):
    def stop(status):
        raise Interrupted("enough")

    with pytest.raises(Interrupted):
        run(scheduler=MAKERS["steps"], out=tmp_path / "run", watch=stop, checkpoint_every=1)
    with pytest.raises(InputError, match="another scheduler than CosineAnnealingLR"):
        run(scheduler=CosineAnnealingLR, out=tmp_path / "run", resume=True, checkpoint_every=1)
