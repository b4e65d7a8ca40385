"""One private step: what crosses the trust line, what is charged for it, and neighbour replay of every release."""

from __future__ import annotations

import json
import traceback

import pytest
import torch
import torch.nn.functional as F
from clip_texts import rule_of
from torch import nn

from adadp import Ledger, Plan, PrivateGradients
from adadp.app.audit import neighbour_replay
from adadp.app.losses import cross_entropy
from adadp.app.zoo import load
from adadp.clipping import Flat
from adadp.errors import BudgetExceeded, InputError
from adadp.gradients import loop_gradients
from adadp.ledger import PlannedBudget, read_ledger
from adadp.noise import GaussianMechanism
from adadp.randomness import SeededSource

pytestmark = pytest.mark.slow


QUANTILE = "quantile:initial=0.5,quantile=0.5,lr=0.2,count_noise=10,floor=0.01,ceiling=100"
RULES = ["flat:0.5", "flat:100", "per-layer:0.3", "per-layer-joint:0.5", "automatic:0.5,gamma=0.01", QUANTILE]


@pytest.fixture(scope="module")
def cancer():
    return load("cancer").train


def network() -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(9, 10), nn.ReLU(inplace=True), nn.Linear(10, 20), nn.ReLU(), nn.Linear(20, 2))


class Convolutional(nn.Module):
    """Convolution, group normalisation, attention and a layer used twice, on nine numbers seen as a sequence."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(4)
        self.conv = nn.Conv1d(1, 8, 3, padding=1)
        self.norm = nn.GroupNorm(2, 8)
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
        self.twice = nn.Linear(8, 8)
        self.out = nn.Linear(8, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.norm(self.conv(x.unsqueeze(1))).transpose(1, 2)
        h = h + self.attention(h, h, h)[0]
        h = self.twice(torch.tanh(self.twice(h)))
        return self.out(h.mean(1))


class Recurrent(nn.Module):
    """An LSTM, whose gradients go the generic way."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(5)
        self.cell = nn.LSTM(1, 4, batch_first=True)
        self.out = nn.Linear(4, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(self.cell(x.unsqueeze(2))[0][:, -1])


def runner(build, data, plan, folder, *, seed=0, chunk_size="auto", lr=0.5):
    """A run on ``data`` that releases through whatever mechanism it is given."""

    def run(steps, mechanism):
        model = build()
        path = folder / f"{len(list(folder.iterdir()))}.jsonl"
        with Ledger.create(path, budget=PlannedBudget(plan.event())) as ledger:
            private = PrivateGradients(
                model, data, cross_entropy, plan, ledger, seed=seed, chunk_size=chunk_size, mechanism=mechanism
            )
            optimizer = torch.optim.SGD(model.parameters(), lr=lr)
            for _ in range(steps):
                private.release()
                optimizer.step()

    return run


def without_last(data):
    return tuple(each[:-1] for each in data)


def with_last(data, features, label):
    """``data`` whose last record is another one."""
    x, y = (each.clone() for each in data)
    x[-1], y[-1] = torch.as_tensor(features, dtype=x.dtype), label
    return x, y


EXTREME = {"large": torch.full((9,), 50.0), "nan": torch.full((9,), float("nan")), "huge": torch.full((9,), 1e30)}


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("record", EXTREME)
@pytest.mark.usefixtures("raw_records")
def test_removing_a_record_moves_no_release_by_more_than_its_bound(cancer, tmp_path, rule, record):
    """Add-remove neighbours; the coins of the other records are the same, so the batches differ in that record
    alone."""
    data = with_last(tuple(each[:200] for each in cancer), EXTREME[record], 1)
    plan = Plan.of_noise(noise=1.0, steps=12, records=200, batch_size=100, clip_norm=rule_of(rule))
    first, second = (runner(network, each, plan, tmp_path) for each in (data, without_last(data)))
    distances = neighbour_replay(first, second, 12)
    assert len(distances) == 12 * (2 if rule == QUANTILE else 1)
    assert max(each.share for each in distances) <= 1
    if record == "large":  # the record does take part: the test would notice a bound that is broken
        assert max(each.share for each in distances if each.purpose == "noise") > 0.5 or rule == "flat:100"


@pytest.mark.parametrize("sampling", ["fixed", "reshuffle"])
@pytest.mark.parametrize("rule", ["flat:0.5", "per-layer:0.3", QUANTILE])
def test_replacing_a_record_moves_no_release_by_more_than_twice_its_bound(cancer, tmp_path, sampling, rule):
    plan = Plan.of_noise(
        noise=1.0,
        steps=10,
        records=200,
        batch_size=50,
        clip_norm=rule_of(rule),
        sampling=sampling,
        neighbours="replace-one",
    )
    data = tuple(each[:200] for each in cancer)
    other = with_last(data, EXTREME["large"], 1 - int(data[1][-1]))
    distances = neighbour_replay(*(runner(network, each, plan, tmp_path) for each in (data, other)), 10)
    shares = [each.share for each in distances]
    assert 0.5 < max(shares) <= 2
    assert min(shares) == 0  # a batch without the record is the same batch


@pytest.mark.parametrize("build", [Convolutional, Recurrent])
@pytest.mark.filterwarnings("ignore:.*no closed form")
def test_other_layers_keep_the_bound_too(cancer, tmp_path, build):
    data = with_last(tuple(each[:60] for each in cancer), EXTREME["large"], 1)
    plan = Plan.of_noise(noise=1.0, steps=4, records=60, batch_size=60, clip_norm=0.1)
    first, second = (runner(build, each, plan, tmp_path) for each in (data, without_last(data)))
    distances = neighbour_replay(first, second, 4)
    assert all(0.5 < each.share <= 1 for each in distances)


class Leaky(Flat):
    """A broken twin: its weights are half as large again as its bound allows."""

    def weights(self, square_norms, state):
        return 1.5 * super().weights(square_norms, state)


def test_the_replay_notices_a_broken_bound(cancer, tmp_path):
    data = with_last(tuple(each[:100] for each in cancer), EXTREME["large"], 1)
    plan = Plan.of_noise(noise=1.0, steps=5, records=100, batch_size=100, clip_norm=Leaky(0.5))
    broken = neighbour_replay(*(runner(network, each, plan, tmp_path) for each in (data, without_last(data))), 5)
    assert max(each.share for each in broken) > 1.4


def steps_of(private, optimizer, count):
    for _ in range(count):
        private.release()
        optimizer.step()


def start(tmp_path, data, plan, *, name="l", model=None, **options):
    model = network() if model is None else model
    ledger = Ledger.create(tmp_path / f"{name}.jsonl", budget=PlannedBudget(plan.event()))
    return model, PrivateGradients(model, data, cross_entropy, plan, ledger, **options)


def test_the_released_gradient_is_the_clipped_sum_plus_the_stated_noise(cancer, tmp_path):
    """Against the loop oracle: clip by hand, sum, divide by the public batch size; the noise is the source's,
    scaled."""
    data = tuple(each[:40] for each in cancer)
    plan = Plan.of_noise(noise=1e-6, steps=1, records=40, batch_size=40, clip_norm=0.3)
    model, private = start(tmp_path, data, plan, seed=1)
    wanted = {name: torch.zeros_like(value) for name, value in model.named_parameters()}
    for grads in loop_gradients(model, cross_entropy, data, 40):
        norm = torch.sqrt(sum(each.square().sum() for each in grads.values()))
        for name, each in grads.items():
            wanted[name] += each * min(1.0, 0.3 / norm) / 40
    released = private.release()
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(released[name], wanted[name], rtol=1e-3, atol=1e-5)
        assert torch.equal(parameter.grad, released[name])


def test_the_noise_has_the_stated_scale(cancer, tmp_path):
    """Batches that are almost surely empty release noise alone: sigma C / L in every coordinate."""
    plan = Plan.of_noise(noise=2.0, steps=30, records=10**6, batch_size=1, clip_norm=0.5)
    _, private = start(tmp_path, tuple(each[:10] for each in cancer), plan, seed=2)
    drawn = torch.cat([each.reshape(-1) for _ in range(30) for each in private.release().values()])
    assert drawn.std().item() == pytest.approx(2.0 * 0.5, rel=0.02)
    assert abs(drawn.mean().item()) < 0.03
    assert read_ledger(tmp_path / "l.jsonl").charges == {plan.charge_at(0): 30}


def test_chunks_do_not_change_the_result(cancer, tmp_path):
    data = tuple(each[:90] for each in cancer)
    plan = Plan.of_noise(noise=1.0, steps=3, records=90, batch_size=60, clip_norm=rule_of(QUANTILE))
    results = []
    for chunk in (1, 7, 1000, "auto"):
        model, private = start(tmp_path, data, plan, name=str(chunk), seed=5, chunk_size=chunk)
        steps_of(private, torch.optim.SGD(model.parameters(), lr=0.1), 3)
        results.append((torch.cat([each.detach().reshape(-1) for each in model.parameters()]), private.clip_state))
    for parameters, state in results[1:]:
        torch.testing.assert_close(parameters, results[0][0], rtol=1e-4, atol=1e-5)
        assert state["bound"] == pytest.approx(results[0][1]["bound"], rel=1e-6)


def test_auto_chunks_follow_the_memory_limit(cancer, tmp_path):
    plan = Plan.of_noise(noise=1.0, steps=3, records=90, batch_size=60, clip_norm=1.0)
    sizes = []
    for limit in (1, 1 << 16, 1 << 30):
        data = tuple(each[:90] for each in cancer)
        _, private = start(tmp_path, data, plan, name=str(limit), memory_limit=limit)
        sizes.append(private.chunk_size)
    assert sizes[0] == 1 < sizes[1] < sizes[2] == 1024


def test_secure_runs_differ_and_seeded_runs_repeat(cancer, tmp_path):
    data = tuple(each[:50] for each in cancer)
    plan = Plan.of_noise(noise=1.0, steps=3, records=50, batch_size=20, clip_norm=1.0)
    drawn = {}
    for name, seed in (("a", None), ("b", None), ("c", 7), ("d", 7), ("e", 8)):
        _, private = start(tmp_path, data, plan, name=name, seed=seed)
        drawn[name] = private.release()["0.weight"]
    assert not torch.equal(drawn["a"], drawn["b"])
    assert torch.equal(drawn["c"], drawn["d"])
    assert not torch.equal(drawn["c"], drawn["e"])
    _, private = start(tmp_path, data, plan, name="f", seed=SeededSource(7))
    assert torch.equal(private.release()["0.weight"], drawn["c"])


def test_dropout_in_a_loop_of_your_own_cannot_be_foreseen(cancer, tmp_path):
    """Whatever torch.manual_seed was given: with known masks a record would move those of all behind it."""
    seen = []

    class Watched(nn.Dropout):
        def forward(self, value):
            out = super().forward(value)
            if value.shape[0] == 100:
                seen.append(out == 0)
            return out

    data = tuple(each[:100] for each in cancer)
    plan = Plan.of_noise(noise=1.0, steps=2, records=100, batch_size=100, clip_norm=1.0)

    def masks(name, seed):
        model = nn.Sequential(Watched(0.5), network())
        _, private = start(tmp_path, data, plan, name=name, model=model, seed=seed)
        seen.clear()
        for _ in range(2):
            torch.manual_seed(0)
            private.release()
        return torch.stack(seen)

    one, other = masks("a", None), masks("b", None)
    assert not torch.equal(one[0], one[1])
    assert not torch.equal(one, other)
    assert torch.equal(masks("c", 3), masks("d", 3))


class Watching(GaussianMechanism):
    """Reads the ledger from the disk at the moment of a release."""

    def __init__(self, path):
        self.path = path
        self.charged = []

    def release(self, total, **given):
        self.charged.append(sum(read_ledger(self.path).charges.values()))
        return super().release(total, **given)


@pytest.mark.parametrize(("sampling", "wanted"), [("poisson", [1, 2, 3, 4]), ("reshuffle", [1, 1, 2, 2])])
def test_the_charge_is_on_disk_before_the_release(cancer, tmp_path, sampling, wanted):
    plan = Plan.of_noise(noise=1.0, steps=4, records=50, batch_size=25, clip_norm=1.0, sampling=sampling)
    mechanism = Watching(tmp_path / "l.jsonl")
    data = tuple(each[:50] for each in cancer)
    _, private = start(tmp_path, data, plan, mechanism=mechanism)
    for _ in range(4):
        private.release()
    assert mechanism.charged == wanted


def test_a_secure_step_is_never_released_unpaid(cancer, tmp_path):
    plan = Plan.of_noise(noise=1.0, steps=2, records=50, batch_size=20, clip_norm=1.0)
    _, private = start(tmp_path, tuple(each[:50] for each in cancer), plan)
    with pytest.raises(InputError, match="without a charge"):
        private.release(paid=True)
    assert private.step == 0


def test_an_epoch_entered_again_in_its_middle_is_charged_again(cancer, tmp_path):
    """Its remaining batches may have been released before; the planned budget has no room for that and stops the
    run."""
    plan = Plan.of_noise(noise=1.0, steps=4, records=50, batch_size=25, clip_norm=1.0, sampling="reshuffle")
    data = tuple(each[:50] for each in cancer)
    _, private = start(tmp_path, data, plan)
    private.release()
    saved = private.state()
    private.release()
    private.release()  # the second epoch: all that was planned is charged
    private.restore(saved)
    with pytest.raises(BudgetExceeded):
        private.release()
    _, stopped = start(tmp_path, data, plan, name="stopped")
    stopped.release()
    stopped.restore(stopped.state(), nothing_since=True)
    stopped.release()
    assert sum(read_ledger(tmp_path / "stopped.jsonl").charges.values()) == 1


def test_a_model_that_goes_another_way_for_a_batch_is_computed_one_record_at_a_time(cancer, tmp_path):
    class Fickle(nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(1)
            self.layer = nn.Linear(9, 2)

        def forward(self, x):
            return self.layer(x) if len(x) < 5 else self.layer(torch.cat([x, x]))[: len(x)]

    plan = Plan.of_noise(noise=0.0, steps=2, records=57, batch_size=57, clip_norm=1.0)
    data = tuple(each[:57] for each in cancer)
    _, private = start(tmp_path, data, plan, model=Fickle())
    plain = Fickle().layer
    _, expected = start(tmp_path, data, plan, model=plain, name="plain.jsonl")
    got, want = private.release(), expected.release()
    for name, value in want.items():
        torch.testing.assert_close(got[f"layer.{name}"], value, rtol=1e-4, atol=1e-7)


def test_a_refusal_releases_nothing(cancer, tmp_path):
    data = tuple(each[:50] for each in cancer)
    plan = Plan.of_noise(noise=1.0, steps=2, records=50, batch_size=20, clip_norm=1.0)
    model, private = start(tmp_path, data, plan, seed=7)
    steps_of(private, torch.optim.SGD(model.parameters(), lr=0.1), 2)
    before = [each.clone() for each in model.parameters()]
    grads = [each.grad.clone() for each in model.parameters()]
    with pytest.raises(BudgetExceeded):
        private.release()
    assert private.step == 2
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))
    assert all(torch.equal(a, b.grad) for a, b in zip(grads, model.parameters(), strict=True))


def test_a_forward_pass_that_fails_charges_nothing(cancer, tmp_path):
    data = tuple(each[:50] for each in cancer)
    plan = Plan.of_noise(noise=1.0, steps=2, records=50, batch_size=20, clip_norm=1.0)
    failing = False

    def loss(model, x, y):
        if failing:
            raise ZeroDivisionError(f"the first label is {y[0]}, of {len(x)}")
        return cross_entropy(model, x, y)

    model = network()
    with Ledger.create(tmp_path / "l.jsonl", budget=PlannedBudget(plan.event())) as ledger:
        private = PrivateGradients(model, data, loss, plan, ledger, seed=0)
        failing = True
        with pytest.raises(InputError, match=r"ZeroDivisionError at test_step.py:\d+ in loss") as caught:
            private.release()
    assert "first label is" not in "".join(traceback.format_exception_only(caught.value))
    assert read_ledger(tmp_path / "l.jsonl").charges == {}


def test_state_goes_through_json_and_back(cancer, tmp_path):
    data = tuple(each[:50] for each in cancer)
    plan = Plan.of_noise(noise=1.0, steps=6, records=50, batch_size=20, clip_norm=rule_of(QUANTILE))
    model, private = start(tmp_path, data, plan, seed=7)
    steps_of(private, torch.optim.SGD(model.parameters(), lr=0.1), 3)
    saved = json.loads(json.dumps(private.state()))
    twin = network()
    twin.load_state_dict(model.state_dict())
    _, other = start(tmp_path, data, plan, name="twin", model=twin, seed=7)
    other.restore(saved)
    assert other.step == 3
    assert other.clip_state == private.clip_state
    assert all(torch.equal(a, b) for a, b in zip(private.release().values(), other.release().values(), strict=True))


def test_a_model_in_half_precision_gets_gradients_in_its_type(cancer, tmp_path):
    data = (cancer[0][:30].bfloat16(), cancer[1][:30])
    plan = Plan.of_noise(noise=1.0, steps=2, records=30, batch_size=20, clip_norm=1.0)
    model, private = start(tmp_path, data, plan, model=network().bfloat16(), seed=7)
    released = private.release()
    assert all(value.dtype == torch.float32 for value in released.values())
    assert all(value.grad.dtype == torch.bfloat16 for value in model.parameters())


def test_a_wrong_chunk_size_is_refused(cancer, tmp_path):
    plan = Plan.of_noise(noise=1.0, steps=2, records=30, batch_size=20, clip_norm=1.0)
    for index, wrong in enumerate(("all", 0, -1, 2.5)):
        with pytest.raises(InputError, match="chunk_size"):
            start(tmp_path, tuple(each[:30] for each in cancer), plan, name=str(index), chunk_size=wrong)


def test_rounding_of_the_sum_stays_inside_its_allowance(cancer, tmp_path):
    """The sum of 2,000 clipped gradients in float32, computed in two chunkings, moves by less than what is allowed."""
    x, y = (each.repeat(4, *[1] * (each.dim() - 1))[:2000] for each in cancer)
    plan = Plan.of_noise(noise=1.0, steps=1, records=2000, batch_size=2000, clip_norm=1.0)
    sums = []
    for chunk in (2000, 100):
        _, private = start(tmp_path, (x, y), plan, name=str(chunk), seed=1, chunk_size=chunk)
        parts = private._sum_of_batch(private._to_rows(private.batches.batch(0), 0), 0)["noise"]
        sums.append(torch.cat([each.double().reshape(-1) for each in parts.values()]))
    allowed = private._with_rounding(1.0) - 1.0
    assert 0 < (sums[0] - sums[1]).norm().item() < allowed


def test_a_loss_with_reduction_is_refused(cancer, tmp_path):
    plan = Plan.of_noise(noise=1.0, steps=2, records=30, batch_size=20, clip_norm=1.0)
    with (
        Ledger.create(tmp_path / "l.jsonl") as ledger,
        pytest.raises(InputError, match="one number per record"),
    ):
        PrivateGradients(
            network(),
            tuple(each[:30] for each in cancer),
            lambda model, x, y: F.cross_entropy(model(x), y),
            plan,
            ledger,
        )
