"""The noise of a gradient is what its method says it is: measured, for all methods, and after scales have moved."""

from __future__ import annotations

import math

import pytest
import torch
from clip_texts import rule_of
from torch import nn

from adadp import Ledger, Plan, PrivateGradients
from adadp.app.losses import cross_entropy
from adadp.app.texts.methods import METHODS, parse_method
from adadp.app.texts.schedules import parse_schedule
from adadp.ledger import PlannedBudget
from adadp.methods import GRADIENT, Method, Query
from adadp.noise import GaussianMechanism

QUANTILE = "quantile:initial=0.5,quantile=0.5,lr=0.5,count_noise=5,floor=0.01,ceiling=100"
FAST = "adadp:start=2,power=1,memory=0.8"


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(12, 40), nn.Tanh(), nn.Linear(40, 10))


def records() -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(1)
    sizes = torch.logspace(-2, 1, 12)  # columns of very different length, so that scales move
    return torch.randn(200, 12).abs() * sizes, torch.zeros(200, dtype=torch.long)


class Clean(GaussianMechanism):
    """Keeps what the noise was added to."""

    def __init__(self) -> None:
        self.totals: dict[str, dict[str, torch.Tensor]] = {}

    def release(self, total, *, purpose="noise", **options):
        self.totals[purpose] = {name: value.clone() for name, value in total.items()}
        return super().release(total, purpose=purpose, **options)


def gradients_at_work(tmp_path, method: Method, plan: Plan, loss=cross_entropy, mechanism=None) -> PrivateGradients:
    return PrivateGradients(
        network(),
        records(),
        loss,
        plan,
        lambda: Ledger.create(tmp_path / "ledger.jsonl", budget=PlannedBudget(plan.event())),
        method=method,
        seed=7,
        mechanism=mechanism,
        allow_nonprivate=True,
    )


def spread(private: PrivateGradients, gradients: dict[str, torch.Tensor]) -> torch.Tensor:
    """Every coordinate of ``gradients`` in units of what is said about its noise."""
    said = private.gradient_deviations
    assert said is not None
    assert set(said) == set(gradients)
    return torch.cat([(value / said[name]).double().reshape(-1) for name, value in gradients.items()])


def without_noise(private: PrivateGradients, query: Query, clip_state, kept, mechanism: Clean) -> dict:
    """The gradient that ``query``, made for this, returns from the same state for sums without noise."""
    query.restore(clip_state, kept)
    query.batch_size, query.clip_factor = private.query.batch_size, private.query.clip_factor
    return query.to_gradient(mechanism.totals, 0.0)


@pytest.mark.parametrize(
    ("method", "settings"),
    [
        ("dpsgd", {}),
        (FAST, {}),
        (FAST, {"clip_norm": "per-layer:0.7"}),
        ("dpopt:start=2", {}),
        (FAST, {"clip_norm": QUANTILE}),
        ("dpsgd", {"clip_norm": f"{QUANTILE},follow=1"}),
        (FAST, {"clip_norm_schedule": "exp:s0=1,k=0.4", "batch_size_schedule": "piecewise:0=40,2=80,4=20"}),
        (FAST, {"noise": "exp:s0=2,k=0.5", "clip_norm_schedule": "piecewise:0=1,3=0.25"}),
    ],
    ids=str,
)
def test_it_is_the_deviation_of_what_was_released_from_what_it_would_be_without_noise(tmp_path, method, settings):
    schedules = {
        name: parse_schedule(settings[name])
        for name in ("clip_norm_schedule", "batch_size_schedule")
        if name in settings
    }
    noise = parse_schedule(settings["noise"]) if "noise" in settings else 0.3
    length = {
        "noise": noise,
        "records": 200,
        "batch_size": 40,
        "epochs": 6,
        "clip_norm": rule_of(settings.get("clip_norm", 1.0)),
    }
    plan = Plan.of_noise(**length, **schedules)
    mechanism, known = Clean(), parse_method(method)
    with_scales = gradients_at_work(tmp_path, known, plan, mechanism=mechanism)
    twin = known.query(with_scales._engine, plan.clip_rule, plan.batch_size)
    assert with_scales.gradient_deviations is None
    found, sizes = [], set()
    for _ in range(plan.steps):
        before = dict(with_scales.clip_state), with_scales.query.tensors()
        released = with_scales.release()
        clean = without_noise(with_scales, twin, *before, mechanism)
        errors = {name: value - clean[name] for name, value in released.items()}
        found.append(spread(with_scales, errors))
        sizes |= {
            round(float(each), 9) for value in with_scales.gradient_deviations.values() for each in _numbers(value)
        }
    together = torch.cat(found)
    tolerance = 5 * math.sqrt(2 / len(together))
    assert together.square().mean().item() == pytest.approx(1, abs=tolerance)
    for step in (found[0], found[-1]):  # the scales, the bound and the batch of that very step
        assert step.square().mean().item() == pytest.approx(1, abs=5 * math.sqrt(2 / len(step)))
    assert (len(sizes) > 1) is (method != "dpsgd" or bool(settings))
    if method == FAST:
        columns = with_scales.gradient_deviations["0.weight"].reshape(-1)
        assert columns.max() > 3 * columns.min()
        error = errors["0.weight"] / columns  # column by column: not only on average
        assert error.square().mean(0).double().tolist() == pytest.approx([1] * 12, abs=5 * math.sqrt(2 / 40))


@pytest.mark.filterwarnings("ignore:.*torch.func")
@pytest.mark.parametrize("method", [*METHODS, "adan:source=released", "dpopt:start=2", FAST])
def test_noise_alone_is_as_large_as_every_method_says(tmp_path, method):
    """A loss without a gradient: all that a method returns is noise, that of earlier steps included."""
    plan = Plan.of_noise(noise=1.5, records=200, batch_size=40, steps=12, clip_norm=0.5)

    def nothing(model, values, labels):
        return 0.0 * cross_entropy(model, values, labels)

    settings = parse_method(method)
    if settings.choice is not None:
        plan = plan.for_choices(settings.choice)
    private = gradients_at_work(tmp_path, settings, plan, nothing)
    if private.query.gradient_deviations(1.0) is None:  # so that an optimizer can be refused before the first release
        assert method in ("adadp-published", "adan", "agd")
        return
    found = [spread(private, private.release()) for _ in range(plan.steps)]
    for step in (torch.cat(found), found[-1]):
        assert step.square().mean().item() == pytest.approx(1, abs=5 * math.sqrt(2 / len(step)))


@pytest.mark.parametrize("follow", [0, 1])
def test_the_noise_in_a_momentum_has_the_unit_of_a_learnt_bound(tmp_path, follow):
    plan = Plan.of_noise(
        noise=1.5, records=200, batch_size=40, steps=12, clip_norm=rule_of(f"{QUANTILE},follow={follow}")
    )

    def nothing(model, values, labels):
        return 0.0 * cross_entropy(model, values, labels)

    private = gradients_at_work(tmp_path, parse_method("dpsgd-momentum:variant=momentum"), plan, nothing)
    found = [spread(private, private.release()) for _ in range(plan.steps)]
    assert private.clip_state["bound"] < 0.4
    assert found[-1].square().mean().item() == pytest.approx(1, abs=5 * math.sqrt(2 / len(found[-1])))


@pytest.mark.parametrize("method", ["adadp-published", "adan"])
def test_where_the_noise_follows_what_was_not_released_nothing_is_said(tmp_path, method):
    plan = Plan.of_noise(noise=1.5, records=200, batch_size=40, steps=2)
    private = gradients_at_work(tmp_path, parse_method(method), plan)
    private.release()
    assert private.gradient_deviations is None


def test_without_noise_it_is_zero(tmp_path):
    plan = Plan.of_noise(noise=0.0, records=200, batch_size=40, steps=2, clip_norm=rule_of("flat:inf"))
    private = gradients_at_work(tmp_path, parse_method("dpsgd"), plan)
    private.release()
    assert set(private.gradient_deviations.values()) == {0.0}


def test_what_was_said_of_one_step_does_not_change_with_the_next(tmp_path):
    plan = Plan.of_noise(noise=1.0, records=200, batch_size=40, steps=8)
    private = gradients_at_work(tmp_path, parse_method(FAST), plan)
    for _ in range(7):
        private.release()
    said = private.gradient_deviations
    kept = {name: value.clone() for name, value in said.items()}
    private.release()
    assert all(torch.equal(said[name], kept[name]) for name in kept)
    assert not torch.equal(private.gradient_deviations["0.weight"], kept["0.weight"])


def test_the_restored_gradients_have_said_nothing_yet(tmp_path):
    plan = Plan.of_noise(noise=1.0, records=200, batch_size=40, steps=3)
    private = gradients_at_work(tmp_path, parse_method(FAST), plan)
    private.release()
    (tmp_path / "again").mkdir()
    again = gradients_at_work(tmp_path / "again", parse_method(FAST), plan)
    again.restore(private.state())
    assert again.gradient_deviations is None
    assert set(private.query.gradient_deviations(2.0)) == set(again.query.gradient_deviations(2.0))


def test_the_noise_is_that_of_the_gradient_and_not_of_the_count(tmp_path):
    plan = Plan.of_noise(noise=1.0, records=200, batch_size=40, steps=3, clip_norm=rule_of(QUANTILE))
    mechanism = Clean()
    private = gradients_at_work(tmp_path, parse_method("dpsgd"), plan, mechanism=mechanism)
    private.release()
    assert set(mechanism.totals) == {GRADIENT, "count"}
    (said,) = set(private.gradient_deviations.values())
    assert said == pytest.approx(0.5 / 40, rel=1e-3)


def _numbers(value: torch.Tensor | float) -> list[float]:
    return value.reshape(-1).tolist() if isinstance(value, torch.Tensor) else [value]
