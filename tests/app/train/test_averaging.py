"""The average of the weights: its formula, what is judged and saved, and that training does not notice it."""

from __future__ import annotations

import json

import pytest
import torch
from torch import nn

from adadp.app import zoo
from adadp.app.config import TrainConfig
from adadp.app.optimizers.adambc import AdamBC
from adadp.app.resolve import resolve
from adadp.app.runs import RunFolder
from adadp.app.start import start
from adadp.app.train import fit, verify_run
from adadp.app.train.averaging import WeightAverage
from adadp.errors import InputError, Interrupted
from adadp.noise import GaussianMechanism

pytestmark = pytest.mark.slow


TRAIN, TEST = zoo.load("cancer").train, zoo.load("cancer").test
BASE = {"noise_multiplier": 2.0, "delta": 1e-4, "steps": 24, "batch_size": 56, "lr": 0.5, "seed": 3}
QUICK = {"noise_multiplier": 0, "allow_nonprivate": True}
"""Without noise, where no accountant need be asked."""
FAST = "adadp:start=3,power=1"


def network() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(9, 8), nn.Tanh(), nn.Linear(8, 2))


def run(model: nn.Module | None = None, **settings):
    return fit(network() if model is None else model, TRAIN, **{**BASE, **settings})


def weights(model: nn.Module) -> list[torch.Tensor]:
    return [value.detach().clone() for value in model.state_dict().values()]


def same(left: list[torch.Tensor], right: list[torch.Tensor]) -> bool:
    return all(map(torch.equal, left, right))


# The average itself -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("decay", [0.05, 0.5, 0.999])
def test_it_is_its_formula_with_the_warm_up(decay):
    theta = nn.Linear(1, 1, bias=False).double()
    average = WeightAverage(theta, decay)
    wanted = theta.weight.item()
    for t in range(40):
        with torch.no_grad():
            theta.weight.copy_(torch.randn(1, 1, dtype=torch.float64))
        average.update()
        kept = min(decay, (1 + t) / (10 + t))
        wanted = kept * wanted + (1 - kept) * theta.weight.item()
        assert average.tensors()["weight"].item() == pytest.approx(wanted, rel=1e-12)


def test_frozen_parameters_and_buffers_stay_as_they_are():
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    model[0].requires_grad_(False)
    model.register_buffer("seen", torch.zeros(1))
    average = WeightAverage(model, 0.9)
    assert set(average.tensors()) == {"1.weight", "1.bias"}
    with torch.no_grad():
        for value in model.state_dict().values():
            value.add_(1)
    average.update()
    average.put_in()
    assert model.seen.item() == 1


def test_a_tied_parameter_is_averaged_once():
    model = nn.Sequential(nn.Linear(2, 2, bias=False), nn.Linear(2, 2, bias=False))
    model[1].weight = model[0].weight
    average = WeightAverage(model, 0.5)
    with torch.no_grad():
        model[0].weight.fill_(1.0)
    before = average.tensors()["0.weight"].clone()
    average.update()
    average.put_in()
    torch.testing.assert_close(model[1].weight.detach(), 0.1 * before + 0.9)


def test_half_precision_is_averaged_in_float32():
    """Steps of 2^-8 beside 1: in bfloat16 a thousandth of one is nothing."""
    model = nn.Linear(1, 1, bias=False).bfloat16()
    with torch.no_grad():
        model.weight.fill_(1.0)
    average = WeightAverage(model, 0.99)
    average.steps = 10_000
    with torch.no_grad():
        model.weight.add_(2**-7)
    for _ in range(20):
        average.update()
    kept = average.tensors()["weight"]
    assert kept.dtype == torch.float32
    assert kept.item() == pytest.approx(1 + 2**-7 * (1 - 0.99**20), rel=1e-6)
    average.put_in()
    assert model.weight.dtype == torch.bfloat16


def test_an_error_while_it_is_looked_at_brings_the_plain_weights_back():
    model = network()
    average = WeightAverage(model, 0.9)
    with torch.no_grad():
        for value in model.parameters():
            value.add_(torch.randn_like(value))
    average.update()
    before, seen = weights(model), []

    def look() -> None:
        with average.looked_at():
            seen.extend(weights(model))
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        look()
    assert not same(before, seen)
    assert same(before, weights(model))


# In a run ---------------------------------------------------------------------------------------------------------


def test_what_is_returned_is_the_average_of_what_was_trained_and_training_does_not_notice():
    trained: dict[str, list[list[torch.Tensor]]] = {"plain": [], "averaged": []}
    for kind, settings in (("plain", {}), ("averaged", {"ema": 0.8})):
        model = network()
        watch = lambda _, model=model, kind=kind: trained[kind].append(weights(model))  # noqa: E731
        result = run(model, watch=watch, **QUICK, **settings)
    assert all(map(same, trained["plain"], trained["averaged"]))
    again = network()
    average = WeightAverage(again, 0.8)
    for values in trained["plain"]:
        again.load_state_dict(dict(zip(again.state_dict(), values, strict=True)))
        average.update()
    average.put_in()
    assert same(weights(result.model), weights(again))
    assert not same(weights(result.model), trained["plain"][-1])


def test_it_costs_nothing_and_the_certificate_says_what_the_weights_are(tmp_path):
    plain, averaged = run(), run(ema=0.8, out=tmp_path / "run")
    assert averaged.epsilon_if_unseeded == plain.epsilon_if_unseeded > 0
    assert averaged.certificate["charged"] == plain.certificate["charged"]
    (note,) = (note for note in averaged.certificate["notes"] if "exponential average" in note)
    assert "ema 0.8" in note
    assert "24 steps" in note
    assert note in averaged.describe()
    assert not any("average" in note for note in plain.certificate["notes"])
    folder = RunFolder.open(tmp_path / "run")
    assert folder.config.ema == 0.8
    saved = folder.load_model_tensors()
    assert same(list(saved.values()), [averaged.model.state_dict()[name] for name in saved])
    assert all(check.passed for check in verify_run(folder))


def test_every_look_is_at_the_average(tmp_path):
    """Looks at the test set on the way and in the end."""
    looks: dict[str, list[list[torch.Tensor]]] = {"plain": [], "averaged": []}
    ends = []
    for kind, settings in (("plain", {}), ("averaged", {"ema": 0.9})):

        def evaluate(model, kind=kind):
            looks[kind].append(weights(model))
            return 0.5

        result = run(evaluate=evaluate, evaluate_every=1, out=tmp_path / kind, **QUICK, **settings)
        ends.append(weights(result.model))
    (first, *plain), (_, *averaged) = looks["plain"], looks["averaged"]
    assert same(first, weights(network()))
    assert len(plain) == len(averaged) == 3  # after epochs 1 and 2 of 10 steps, and in the end
    assert not any(map(same, plain, averaged))
    assert same(plain[-1], ends[0])
    assert same(averaged[-1], ends[1])


def test_the_looks_of_a_validation_schedule_are_at_the_average():
    seen = []

    class Watched(nn.Linear):
        def forward(self, values):
            if not self.training and len(values) == 37:
                seen.append(self.weight.detach().clone())
            return super().forward(values)

    trained = []
    torch.manual_seed(0)
    model = Watched(9, 2)
    started = model.weight.detach().clone()
    settings = {"noise_multiplier": None, "steps": None, "epochs": 4, "epsilon": 3.0, "ema": 0.9}
    settings |= {"noise_schedule": "validation:s0=5,k=0.7,every=1", "validation": (TEST[0][:37], TEST[1][:37])}
    run(model, watch=lambda _: trained.append(model.weight.detach().clone()), **settings)
    assert len(seen) == 3
    average, epoch, wanted = started, 0, []
    for t, value in enumerate(trained):
        kept = min(0.9, (1 + t) / (10 + t))
        average = kept * average + (1 - kept) * value
        if (t + 1) % (len(trained) // 4) == 0 and epoch < 3:
            epoch += 1
            wanted.append(average)
    for left, right in zip(seen, wanted, strict=True):
        torch.testing.assert_close(left, right)


@pytest.mark.parametrize(
    "variant",
    [{"optimizer": "sgd", "momentum": 0.9, "method": "dpsgd", **QUICK}, {"optimizer": "adambc", "method": FAST}],
    ids=["sgd", "adambc"],
)
def test_a_run_that_was_stopped_goes_on_bit_for_bit(tmp_path, variant):
    settings = {"lr": 0.01, "ema": 0.95, "checkpoint_every": 5, **variant}
    whole = run(out=tmp_path / "whole", **settings)
    calls = []

    def stop(status):
        calls.append(status.step)
        if status.step == 13:
            raise Interrupted("enough")

    with pytest.raises(Interrupted):
        run(out=tmp_path / "run", watch=stop, **settings)
    torch.manual_seed(99)
    other = nn.Sequential(nn.Linear(9, 8), nn.Tanh(), nn.Linear(8, 2))  # what it begins with no longer counts
    resumed = run(other, out=tmp_path / "run", resume=True, **settings)
    assert calls == list(range(1, 14))
    assert same(weights(whole.model), weights(resumed.model))
    assert resumed.certificate["notes"] == whole.certificate["notes"]
    assert all(check.passed for check in verify_run(RunFolder.open(tmp_path / "run")))


def test_a_run_killed_after_its_checkpoint_repeats_its_steps_bit_for_bit(tmp_path, monkeypatch):
    """The last checkpoint is that of step 10; steps 11 to 13 are repeated, average and all."""
    settings = {"optimizer": "adambc", "lr": 0.01, "ema": 0.95, "checkpoint_every": 5}
    whole = run(out=tmp_path / "whole", **settings)
    calls = []

    def die(status):
        calls.append(status.step)
        if status.step == 13:
            monkeypatch.setattr(RunFolder, "save_checkpoint", _killed)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(out=tmp_path / "run", watch=die, **settings)
    monkeypatch.undo()
    resumed = run(out=tmp_path / "run", resume=True, watch=lambda status: calls.append(status.step), **settings)
    assert calls == [*range(1, 14), *range(11, 25)]
    assert same(weights(whole.model), weights(resumed.model))


def _killed(*_arguments: object, **_options: object) -> None:
    raise AssertionError("nothing is saved by a process that was killed")


# Adam and its kin see what was released ---------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["sgd", "adam", "adamw", "adambc", "rms"])
def test_an_optimizer_sees_released_gradients_only(name, monkeypatch):
    """The runs of two data sets whose releases are made equal are equal: nothing else reaches the parameters."""
    fixed = torch.Generator()

    def equal(self, total, *, step, **_options):
        fixed.manual_seed(step)
        return {key: torch.randn(value.shape, generator=fixed, dtype=torch.float64) for key, value in total.items()}

    monkeypatch.setattr(GaussianMechanism, "release", equal)
    settings = {**BASE, "optimizer": name, "lr": 0.01, "ema": 0.9, "weight_decay": 0.01}
    settings |= {} if name == "adambc" else QUICK  # the noise it is told is public, so it must not matter either
    one = fit(network(), TRAIN, **settings)
    other = fit(network(), (TRAIN[0].flip(0) * 3 + 1, 1 - TRAIN[1]), **settings)
    assert same(weights(one.model), weights(other.model))
    assert not same(weights(one.model), weights(network()))


# By name ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["adadp-published", "adan"])
def test_adambc_is_refused_where_the_noise_is_not_known_and_leaves_nothing(tmp_path, method):
    settings = {"method": method, "allow_nonprivate": True, "optimizer": "adambc", "lr": 0.01}
    with pytest.raises(InputError, match="cannot say how large the noise") as caught:
        run(out=tmp_path / "run", **settings)
    assert "adadp or dpsgd" in caught.value.fix
    assert not (tmp_path / "run").exists()


def test_an_adambc_of_ones_own_is_told_the_noise_too():
    by_name = run(optimizer="adambc", lr=0.01)
    by_hand = run(optimizer=lambda parameters: AdamBC(parameters, 0.01), lr=None)
    other = run(optimizer=lambda parameters: AdamBC(parameters, 0.01, floor=1e-4), lr=None)
    assert same(weights(by_name.model), weights(by_hand.model))
    assert not same(weights(by_name.model), weights(other.model))


def test_from_a_configuration(tmp_path):
    config = TrainConfig(
        "cancer", noise_multiplier=2.0, delta=1e-4, steps=30, seed=0, optimizer="adambc", lr=0.01, ema=0.9, threads=1
    )
    assert resolve(config).config.ema == 0.9
    result = start(config, tmp_path / "run")
    certificate = json.loads((tmp_path / "run" / "certificate.json").read_text(encoding="utf-8"))
    assert certificate == result.certificate
    assert result.test_accuracy > 0.8
    with pytest.raises(InputError, match="optimizer adambc needs a learning rate"):
        resolve(config.replace(lr=None))


@pytest.mark.parametrize(
    ("ema", "message"),
    [
        (0, "ema must be greater than 0, got 0"),
        (1.0, "ema must be below 1, got 1"),
        (99, "ema must be below 1, got 99"),
        (-0.5, "ema must be greater than 0, got -0.5"),
        (float("nan"), "ema must be finite"),
        (True, "ema must be a number"),
    ],
)
def test_a_share_that_is_none_is_refused(ema, message):
    with pytest.raises(InputError, match=message):
        TrainConfig("cancer", noise_multiplier=1.0, delta=1e-4, ema=ema)
