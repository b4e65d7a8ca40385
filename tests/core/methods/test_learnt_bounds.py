"""A clip bound that is learnt is the unit of the gradient, unless the steps are to follow it."""

from __future__ import annotations

import pytest
import torch
from clip_texts import rule_of
from torch import nn

from adadp import Ledger, Plan, PrivateGradients
from adadp.app.losses import cross_entropy
from adadp.app.texts.methods import parse_method
from adadp.ledger import PlannedBudget
from adadp.methods import GRADIENT
from adadp.noise import GaussianMechanism

RULE = "quantile:initial=0.5,quantile=0.5,lr=2,count_noise=0.1,floor=0.001,ceiling=100"


class Kept(GaussianMechanism):
    """Keeps what was released."""

    def __init__(self) -> None:
        self.released: list[dict[str, torch.Tensor]] = []

    def release(self, total, *, purpose="noise", **options):
        found = super().release(total, purpose=purpose, **options)
        if purpose == GRADIENT:
            self.released.append({name: value.clone() for name, value in found.items()})
        return found


@pytest.mark.parametrize("follow", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("method", ["dpsgd", "dpsgd-momentum:variant=momentum,c=0.5"])
def test_the_optimizer_gets_the_release_in_units_of_the_bound_it_was_made_with(tmp_path, method, follow):
    torch.manual_seed(1)
    data = torch.randn(300, 5), torch.zeros(300, dtype=torch.long)
    plan = Plan.of_noise(noise=0.5, records=300, batch_size=60, epochs=2, clip_norm=rule_of(f"{RULE},follow={follow}"))
    mechanism = Kept()
    with Ledger.create(tmp_path / "ledger.jsonl", budget=PlannedBudget(plan.event())) as ledger:
        private = PrivateGradients(
            nn.Linear(5, 3), data, cross_entropy, plan, ledger, method=parse_method(method), seed=3, mechanism=mechanism
        )
        velocity, bounds = torch.zeros(3, 5, dtype=torch.float64), []
        for step in range(plan.steps):
            bounds.append(private.clip_state["bound"])
            gradient = private.release()["weight"]
            plain = mechanism.released[step]["weight"] / 60 * (0.5 / bounds[-1]) ** (1 - follow)
            velocity = plain + (0.5 * velocity if "momentum" in method else 0)
            torch.testing.assert_close(gradient, velocity.float())
    assert max(bounds) > 1.5 * min(bounds), "the bound has moved"
