"""A clip bound and a batch size that change over the epochs: no release passes its bound, and a broken twin is
caught."""

from __future__ import annotations

import pytest
import torch
from clip_texts import rule_of
from torch import nn

from adadp import Ledger, Plan, PrivateGradients
from adadp.app.audit import neighbour_replay
from adadp.app.losses import cross_entropy
from adadp.app.methods.adadp import AdaDp
from adadp.app.texts.schedules import parse_schedule
from adadp.app.train import fit
from adadp.app.zoo import load
from adadp.errors import InputError
from adadp.ledger import PlannedBudget
from adadp.methods import DpSgd
from adadp.methods.clipped import ClippedSum
from adadp.noise import GaussianMechanism

pytestmark = pytest.mark.slow


RULES = ["flat:0.5", "per-layer:0.3", "per-layer-joint:0.5", "automatic:0.5,gamma=0.01"]
QUANTILE = "quantile:initial=0.5,quantile=0.5,lr=0.2,count_noise=10,floor=0.01,ceiling=100"
METHODS = {"dpsgd": DpSgd(), "adadp": AdaDp(power=0.5, start=3)}
CLIPS = "piecewise:0=1,1=0.2,2=3,4=0.05"
BATCHES = "piecewise:0=60,1=30,3=60"
SIZE, STEPS = 60, 8
"""Epochs of 1, 2, 2, 1, 1 and 1 steps."""


def network() -> nn.Module:
    torch.manual_seed(2)
    return nn.Sequential(nn.Linear(9, 8), nn.Tanh(), nn.Linear(8, 2))


def records(size: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Cancer records, the last of which is far out and has the other label."""
    x, y = (each[:SIZE].clone() for each in load("cancer").train)
    x[-1], y[-1], y[:-1] = 50.0, 1, 0
    return x[:size], y[:size]


def plan_of(rule: str, sampling: str = "poisson", clips: str = CLIPS, batches: str | None = BATCHES) -> Plan:
    return Plan.of_noise(
        noise=1.0,
        steps=STEPS,
        records=SIZE,
        batch_size=SIZE,
        clip_norm=rule_of(rule),
        sampling=sampling,
        neighbours="replace-one" if sampling == "fixed" else "add-remove",
        clip_norm_schedule=parse_schedule(clips),
        batch_size_schedule=None if batches is None else parse_schedule(batches),
    )


def runner(folder, plan, method, data, chunk_size="auto"):
    def run(steps, mechanism):
        model = network()
        path = folder / f"{len(list(folder.iterdir()))}.jsonl"
        with Ledger.create(path, budget=PlannedBudget(plan.event())) as ledger:
            private = PrivateGradients(
                model,
                data,
                cross_entropy,
                plan,
                ledger,
                method=METHODS[method],
                seed=3,
                mechanism=mechanism,
                chunk_size=chunk_size,
            )
            optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
            for _ in range(steps):
                private.release()
                optimizer.step()

    return run


def replay(folder, rule, method, chunk_size="auto"):
    plan = plan_of(rule)
    runs = (runner(folder, plan, method, records(size), chunk_size) for size in (SIZE, SIZE - 1))
    return plan, neighbour_replay(*runs, STEPS)


@pytest.mark.parametrize(
    ("rule", "method", "chunk_size"),
    [*((rule, method, "auto") for rule in RULES for method in METHODS), ("flat:0.5", "dpsgd", 7)],
)
def test_no_record_moves_a_release_by_more_than_the_bound_of_its_step(tmp_path, rule, method, chunk_size):
    plan, distances = replay(tmp_path, rule, method, chunk_size)
    assert [each.step for each in distances] == list(range(STEPS))
    factors = [plan.clip_factor_at(step) for step in range(STEPS)]
    assert factors == [1, 0.2, 0.2, 3, 3, 3, 0.05, 0.05]
    groups = 2 if "layer" in rule else 1
    bound = plan.clip_rule.l2_bound(groups, {})
    allowed = [bound * factor * (1 + plan.batch_size_at(step) * 2.0**-20) for step, factor in enumerate(factors)]
    assert [each.l2_bound for each in distances] == pytest.approx(allowed, rel=1e-12)
    assert max(each.share for each in distances) <= 1
    # The record does take part, at large and at small factors: a bound that is broken would be seen.
    shares = {factor: [each.share for each in distances if factors[each.step] == factor] for factor in set(factors)}
    assert all(max(each) > 0.5 for each in shares.values())


def without_factor_in_weights(self, capture):
    factor, self.clip_factor = self.clip_factor, 1.0
    try:
        return whole_contribution(self, capture)
    finally:
        self.clip_factor = factor


def without_factor_in_bounds(self):
    factor, self.clip_factor = self.clip_factor, 1.0
    try:
        return whole_bounds(self)
    finally:
        self.clip_factor = factor


def with_factor_not_squared(self, capture):
    factor, self.clip_factor = self.clip_factor, self.clip_factor**0.5
    try:
        return whole_contribution(self, capture)
    finally:
        self.clip_factor = factor


whole_contribution, whole_bounds = ClippedSum.contribution, ClippedSum.l2_bounds
TWINS = {
    "weights without the factor": ("contribution", without_factor_in_weights),
    "weights with its root": ("contribution", with_factor_not_squared),
    "a bound without the factor": ("l2_bounds", without_factor_in_bounds),
}


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("twin", TWINS)
def test_a_broken_twin_is_caught(tmp_path, monkeypatch, rule, method, twin):
    monkeypatch.setattr(ClippedSum, *TWINS[twin])
    _, distances = replay(tmp_path, rule, method)
    assert max(each.share for each in distances) > 1.5


@pytest.mark.parametrize("sampling", ["fixed", "reshuffle"])
@pytest.mark.usefixtures("raw_records")
def test_other_samplings_keep_the_bound_too(tmp_path, sampling):
    plan = plan_of("flat:0.5", sampling)
    data = records(SIZE)
    other = (data[0].clone(), data[1].clone())
    if sampling == "fixed":  # another record in its place: twice the bound
        other[0][-1], other[1][-1] = -50.0, 0
    else:
        other = records(SIZE)
        other[0][-1] = float("nan")  # contributes nothing
    distances = neighbour_replay(*(runner(tmp_path, plan, "dpsgd", each) for each in (data, other)), STEPS)
    assert 0.5 < max(each.share for each in distances) <= (2 if sampling == "fixed" else 1)


class Sums(GaussianMechanism):
    """Lets everything through without noise, and remembers the standard deviation it should have had."""

    def __init__(self) -> None:
        self.deviations: list[float] = []

    def release(self, total, *, l2_bound, noise_multiplier, source, step, purpose="noise", dtype=None, ranks=None):
        self.deviations.append(l2_bound * noise_multiplier)
        return {name: value.double() for name, value in total.items()}


@pytest.mark.parametrize("rule", RULES)
def test_a_factor_is_the_rule_with_another_bound(tmp_path, rule):
    """Where gamma does not matter, C times f is the same as a factor f beside C."""
    rule = rule.replace("gamma=0.01", "gamma=1e-9")
    name, _, numbers = rule.partition(":")
    bound, *options = numbers.split(",")
    scaled = ",".join([f"{name}:{float(bound) * 0.2!r}", *options])
    grads, deviations = [], []
    for clip, clips in ((rule, "uniform:s0=0.2"), (scaled, "uniform:s0=1")):
        mechanism, model = Sums(), network()
        plan = plan_of(clip, clips=clips, batches=None)
        with Ledger.create(tmp_path / f"{len(grads)}.jsonl", budget=PlannedBudget(plan.event())) as ledger:
            private = PrivateGradients(model, records(SIZE), cross_entropy, plan, ledger, seed=1, mechanism=mechanism)
            grads.append(torch.cat([each.flatten() for each in private.release().values()]))
        deviations.append(mechanism.deviations[0])
    assert torch.allclose(grads[0], grads[1], rtol=1e-4, atol=1e-8)
    assert deviations[0] == pytest.approx(deviations[1], rel=1e-12)


def test_the_sum_is_divided_by_the_batch_size_of_its_step(tmp_path):
    """Without clipping and noise, a batch of all records gives the sum of their gradients over the public size."""
    plan = Plan.of_noise(
        noise=0.0,
        steps=3,
        records=SIZE,
        batch_size=60,
        clip_norm=rule_of("flat:1e9"),
        batch_size_schedule=parse_schedule("piecewise:0=60,1=30"),
    )
    x, y = records(SIZE)
    model = network()
    with Ledger.create(tmp_path / "l.jsonl", budget=PlannedBudget(plan.event())) as ledger:
        private = PrivateGradients(model, (x, y), cross_entropy, plan, ledger, seed=1)
        for step, size in ((0, 60), (1, 30)):
            batch = private.batches.batch(step)
            found = private.release()
            model.zero_grad()
            nn.functional.cross_entropy(model(x[batch]), y[batch], reduction="sum").backward()
            for name, value in model.named_parameters():
                assert torch.allclose(found[name], value.grad / size, rtol=1e-4, atol=1e-5)


def test_a_rule_that_finds_its_bound_has_no_schedule_of_it():
    with pytest.raises(InputError, match="quantile was given together with a schedule of the clip bound"):
        plan_of(QUANTILE)
    with pytest.raises(InputError, match="quantile was given together"):
        fit(
            network(), records(SIZE), noise_multiplier=2.0, delta=1e-4, steps=2, batch_size=20, clip_norm=QUANTILE,
            clip_norm_schedule="exp:k=0.1",
        )  # fmt: skip
