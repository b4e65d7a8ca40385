"""Every registered method in two processes against one: what it makes of the sums of both."""

import pytest
import torch
from processes import Group
from torch import nn

from adadp.app.texts.methods import METHODS, parse_method
from adadp.ledger import Ledger
from adadp.plan import Plan
from adadp.step import PrivateGradients

pytestmark = pytest.mark.slow

STEPS = 4
TEXTS = {
    "adadp": "adadp:start=2",
    "adadp-published": "adadp-published",
    "dpopt": "dpopt:start=2",
}
FURTHER = ["adadp-published:clip=batch", "adadp-published:square=mean-of-squares", "dpopt:source=raw,start=2", "adan"]


def steps(rank: int, text: str, folder: str, seed: int | None = 5) -> list[list[float]]:
    generator = torch.Generator().manual_seed(3)
    values = torch.randn(90, 6, generator=generator)
    labels = (values[:, 0] > 0).long()
    model = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 2))
    generator.manual_seed(rank)
    with torch.no_grad():
        for each in model.parameters():
            each.normal_(generator=generator)
    method = parse_method(text)
    plan = Plan.of_noise(noise=0.5, steps=STEPS, records=90, batch_size=20)
    if method.choice is not None:
        plan = plan.for_choices(method.choice)

    def loss(model, values, labels):
        return nn.functional.cross_entropy(model(values), labels, reduction="none")

    ledger = f"{folder}/ledger.jsonl"
    given = {"method": method, "seed": seed, "allow_nonprivate": True}
    with PrivateGradients(model, (values, labels), loss, plan, lambda: Ledger.create(ledger), **given) as private:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
        found = []
        for _ in range(STEPS):
            released = private.release()
            found.append(torch.cat([each.reshape(-1) for each in released.values()]).tolist())
            optimizer.step()
        return found


@pytest.mark.parametrize("text", [*(TEXTS.get(name, name) for name in METHODS), *FURTHER])
def test_a_method_gets_the_sums_of_all_processes(two: Group, text, tmp_path):
    (tmp_path / "one").mkdir()
    (tmp_path / "two").mkdir()
    alone = torch.tensor(steps(0, text, str(tmp_path / "one")))
    for each in two.run(steps, text, str(tmp_path / "two")):
        torch.testing.assert_close(torch.tensor(each), alone, rtol=1e-3, atol=1e-5)


def test_a_private_choice_is_made_once_for_all(two: Group, tmp_path):
    first, second = two.run(steps, "agd", str(tmp_path), None)
    assert first == second
