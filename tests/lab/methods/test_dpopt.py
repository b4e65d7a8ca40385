"""DPOPT: private from released gradients (scales, neighbour replay, broken twins), and as published, which is not."""

from __future__ import annotations

import copy
import itertools
import math
from dataclasses import replace

import pytest
import torch
from clip_texts import rule_of
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from adadp import Ledger, Plan, PrivateGradients
from adadp.app.audit import neighbour_replay
from adadp.app.config import TrainConfig
from adadp.app.losses import cross_entropy
from adadp.app.methods.adadp import AdaDp
from adadp.app.methods.scaled import ScaledSum
from adadp.app.resolve import resolve
from adadp.app.texts.methods import parse_method
from adadp.clipping.base import SLACK
from adadp.errors import InputError
from adadp.gradients import Capture, loop_gradients
from adadp.lab.methods import clamped
from adadp.lab.methods.dpopt import DpOpt
from adadp.lab.methods.dpopt_scales import ShapedScales
from adadp.ledger import PlannedBudget
from adadp.methods import DpSgd
from adadp.noise import GaussianMechanism
from adadp.randomness import SeededSource

METHOD = DpOpt(start=3, memory=0.8, lowest=0.1, highest=10.0)
RAW = replace(METHOD, source="raw")
PROJECTED = replace(METHOD, solver="projected")
QUANTILE = "quantile:initial=0.5,quantile=0.5,lr=0.2,count_noise=10,floor=0.01,ceiling=100"
SEED = 11


@pytest.fixture(autouse=True)
def without_compiler(monkeypatch):
    """Compiling takes seconds, and has tests of its own."""
    monkeypatch.setattr(clamped, "_compiled_kernel", lambda: None)


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(9, 8), nn.ReLU(), nn.Linear(8, 2))


def cnn() -> nn.Module:
    return nn.Sequential(nn.Unflatten(1, (1, 3, 3)), nn.Conv2d(1, 4, 2), nn.Tanh(), nn.Flatten(), nn.Linear(16, 2))


BUILD = {"mlp": mlp, "cnn": cnn}


def made(name: str = "mlp") -> nn.Module:
    torch.manual_seed(3)
    return BUILD[name]()


def numbers(records: int = 40) -> tuple[torch.Tensor, torch.Tensor]:
    """Columns of very different sizes. The last number is 0 for all records but the last, which has only that."""
    generator = torch.Generator().manual_seed(4)
    x = torch.randn(records, 9, generator=generator) * 10 ** torch.linspace(-2, 1, 9)
    y = (x[:, :8].sum(1) > 0).long()
    x[:, 8], x[-1] = 0, 0
    x[-1, 8] = 5
    return x, y


def started(
    folder, model, data, method=METHOD, *, rule="flat:0.5", batch_size=None, planned=None, noise_multiplier=1.0, **more
):
    records = len(data[0]) if planned is None else planned
    plan = Plan.of_noise(
        noise=noise_multiplier, steps=50, records=records, batch_size=batch_size or records, clip_norm=rule_of(rule)
    )
    path = folder / f"{len(list(folder.iterdir()))}.jsonl"
    ledger = Ledger.create(path, budget=PlannedBudget(plan.event()))
    more = {"allow_nonprivate": method.not_private is not None} | more
    return PrivateGradients(model, data, cross_entropy, plan, ledger, method=method, seed=SEED, **more)


def flat(tensors) -> torch.Tensor:
    return torch.cat([each.detach().double().reshape(-1) for each in tensors.values()])


def steps_of(private: PrivateGradients, count: int, lr: float = 0.1) -> list[torch.Tensor]:
    optimizer = torch.optim.SGD(private.model.parameters(), lr=lr)
    released = []
    for _ in range(count):
        released.append(flat(private.release()))
        optimizer.step()
    return released


def inverse_of(private: PrivateGradients) -> dict[str, torch.Tensor]:
    kept = private.query.tensors().items()
    return {name.removeprefix("inverse/"): value.clone() for name, value in kept if name.startswith("inverse/")}


# Scales -----------------------------------------------------------------------------------------------------------

LAYERS = {
    "weight": ((4, 3), (1, 3)),
    "bias": ((4,), (1,)),
    "conv": ((2, 2, 2, 2), (1, 2, 2, 2)),
    "table": ((5, 2), (5, 1)),
    "scalar": ((), ()),
}
"""Name -> shape of the parameter, shape of its scales."""


def scales_of(options: DpOpt, layers=LAYERS) -> ShapedScales:
    like = {name: torch.zeros(shape, dtype=torch.float64) for name, (shape, _) in layers.items()}
    return ShapedScales(options, {name: shape for name, (_, shape) in layers.items()}, like)


def drawn(seed: int, layers=LAYERS, *, steady: float = 1.0, noise: float = 0.0) -> dict[str, torch.Tensor]:
    """In every column something that stays, something that changes, each of a size of its own, and noise."""
    fixed, fresh = torch.Generator().manual_seed(0), torch.Generator().manual_seed(seed + 1)
    found = {}
    for name, (shape, columns) in layers.items():
        sizes = [torch.exp(torch.randn(columns, generator=fixed)) for _ in range(2)]
        stays, changes, rest = (torch.randn(shape, generator=each) for each in (fixed, fresh, fresh))
        found[name] = (steady * sizes[0] * stays + sizes[1] * changes + noise * rest).double()
    return found


def all_of(scales: ShapedScales) -> torch.Tensor:
    return flat(scales.inverse)


class Transcription:
    """The docstring of ``ShapedScales``, one coordinate after another, in Python's doubles."""

    def __init__(self, options: DpOpt) -> None:
        self.options, self.steps = options, 0
        self.column_of = {
            (name, at): (name, tuple(min(i, size - 1) for i, size in zip(at, columns, strict=True)))
            for name, (shape, columns) in LAYERS.items()
            for at in itertools.product(*(range(size) for size in shape))
        }
        self.m = dict.fromkeys(self.column_of, 0.0)
        self.v = dict.fromkeys(self.column_of.values(), 0.0)
        self.u, self.k = dict.fromkeys(self.v, 0.0), dict.fromkeys(self.v, 1.0)

    def owned(self, column):
        return [place for place, owner in self.column_of.items() if owner == column]

    def mean(self, of_column) -> float:
        return math.fsum(of_column[column] for column in self.column_of.values()) / len(self.column_of)

    def learn(self, released, deviation):
        keep, values = self.options.memory, {(name, at): float(released[name][at]) for name, at in self.column_of}
        gradients = {place: value * self.k[self.column_of[place]] for place, value in values.items()}
        for place in self.m:
            self.m[place] = keep * self.m[place] + (1 - keep) * gradients[place]
        for column in self.v:
            squares = [values[place] ** 2 for place in self.owned(column)]
            seen = (sum(squares) / len(squares) - deviation**2) * self.k[column] ** 2
            self.v[column] = keep * self.v[column] + (1 - keep) * seen
            self.u[column] = keep**2 * self.u[column] + (1 - keep) ** 2 * deviation**2 * self.k[column] ** 2
        self.steps += 1
        if self.steps >= self.options.start:
            self.k = self.scales()
        return gradients

    def scales(self):
        squares = {}
        for column in self.v:
            own = self.owned(column)
            squares[column] = sum(self.m[place] ** 2 for place in own) / len(own) - self.u[column]
        wholes = self.mean(self.v), self.mean(squares)
        if min(wholes) <= 0:
            return dict.fromkeys(self.v, 1.0)
        b = {}
        for column in self.v:
            ratios = [max(each[column], 0) / mean for each, mean in zip((self.v, squares), wholes, strict=True)]
            s, w = (min(max(math.sqrt(each), self.options.lowest), self.options.highest) for each in ratios)
            b[column] = math.sqrt(s / w)
        root = math.sqrt(self.mean({column: each**-2 for column, each in b.items()}))
        return {column: each * root for column, each in b.items()}


@pytest.mark.parametrize("solver", ["closed", "projected"])
@pytest.mark.parametrize("deviation", [0.0, 0.5])
@pytest.mark.parametrize("bounds", [(0.1, 10.0), (0.7, 1.3)])
def test_scales_are_what_their_definition_says(solver, deviation, bounds):
    options = DpOpt(start=2, memory=0.7, solver=solver, lowest=bounds[0], highest=bounds[1])
    scales, slow, moved = scales_of(options), Transcription(options), False
    for step in range(8):
        released = drawn(step, noise=deviation)
        gradients, wanted = scales.learn(released, deviation), slow.learn(released, deviation)
        for (name, at), value in wanted.items():
            assert float(gradients[name][at]) == pytest.approx(value, rel=1e-5)
        for name, at in slow.column_of.values():
            assert float(scales.inverse[name][at]) == pytest.approx(1 / slow.k[name, at], rel=1e-5)
            moved = moved or abs(slow.k[name, at] - 1) > 0.1
    assert moved


OPTIONS = st.builds(
    DpOpt,
    memory=st.floats(0, 0.999),
    start=st.integers(1, 4),
    lowest=st.floats(0.05, 0.95),
    highest=st.floats(1.05, 20),
    solver=st.sampled_from(["closed", "projected"]),
)


@given(options=OPTIONS, steady=st.floats(0, 10), deviation=st.floats(0, 3), seed=st.integers(0, 1000))
@settings(max_examples=40, deadline=None)
def test_the_mean_of_inverse_squares_is_one_and_ratios_are_bounded(options, steady, deviation, seed):
    scales = scales_of(options)
    for step in range(5):
        scales.learn(drawn(seed + step, steady=steady, noise=deviation), deviation)
        found = all_of(scales)
        assert found.isfinite().all()
        parts = {name: value.expand(LAYERS[name][0]) for name, value in scales.inverse.items()}
        assert float(flat(parts).square().mean()) == pytest.approx(1, rel=1e-6)
        assert found.max() / found.min() <= options.highest / options.lowest * (1 + 1e-6)
        if step + 1 < options.start:
            assert (found == 1).all()


def test_a_column_with_a_steady_gradient_gets_less_noise_than_one_that_goes_to_and_fro():
    """Both move as much in every step; the loss follows the first one only."""
    layers = {"weight": ((200, 2), (1, 2))}
    scales = scales_of(replace(METHOD, start=5, memory=0.9), layers)
    noise = torch.Generator().manual_seed(1)
    for step in range(40):
        gradient = torch.ones(200, 2, dtype=torch.float64)
        gradient[:, 1] *= (-1) ** step
        rest = torch.randn(200, 2, dtype=torch.float64, generator=noise)
        scales.learn({"weight": scales.apply({"weight": gradient})["weight"] + rest}, 1.0)
    first, second = scales.factors()["weight"][0].tolist()
    assert second > 2 * first


def test_the_noise_in_the_average_is_subtracted_though_the_scales_have_changed():
    """One column is steady, one goes to and fro; the others are noise alone, and their scales move all the same.

    What is left of their average is noise, of the variance that is subtracted, which is not that of the last scale.
    """
    layers = {"weight": ((4000, 5), (1, 5))}
    scales = scales_of(replace(METHOD, start=20, memory=0.95), layers)
    noise = torch.Generator().manual_seed(2)
    for step in range(26):
        gradient = torch.zeros(4000, 5, dtype=torch.float64)
        gradient[:, 0], gradient[:, 1] = 5, 30 * (-1) ** step
        rest = torch.randn(4000, 5, dtype=torch.float64, generator=noise)
        scales.learn({"weight": scales.apply({"weight": gradient})["weight"] + rest}, 1.0)
    kept = scales.tensors()
    raw, variance = kept["average/weight"].square().mean(0)[2:], kept["variance/weight"][0, 2:]
    torch.testing.assert_close(raw, variance, rtol=5 * math.sqrt(2 / 4000), atol=0)
    settled = scales.factors()["weight"][0, 2:].double().square() * 0.05 / 1.95
    for other in (settled, torch.full_like(settled, 0.05 / 1.95)):
        assert (raw / other - 1).abs().min() > 0.2


@pytest.mark.parametrize("deviation", [0.0, 1.0])
def test_nothing_at_all_leaves_scales_of_one(deviation):
    scales = scales_of(DpOpt(start=1))
    for _ in range(4):
        zeros = {name: torch.zeros(shape, dtype=torch.float64) for name, (shape, _) in LAYERS.items()}
        gradients = scales.learn(zeros, deviation)
        assert (all_of(scales) == 1).all()
        assert not flat(gradients).any()


@pytest.mark.parametrize("empty", [((3, 0), (1, 0)), ((2, 0), (1, 1)), ((0,), (1,))])
def test_a_parameter_without_numbers_changes_nothing(empty):
    layers = {"weight": LAYERS["weight"]}
    alone, beside = scales_of(DpOpt(start=1), layers), scales_of(DpOpt(start=1), layers | {"no": empty})
    for step in range(3):
        released = drawn(step, layers)
        alone.learn(released, 0.0)
        beside.learn(released | {"no": torch.zeros(empty[0], dtype=torch.float64)}, 0.0)
        assert torch.equal(alone.inverse["weight"], beside.inverse["weight"])
        assert beside.inverse["no"].isfinite().all()
    assert (alone.inverse["weight"] != 1).any()


# What is released -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", BUILD)
@pytest.mark.parametrize("method", [METHOD, PROJECTED], ids=str)
def test_a_release_is_the_clipped_scaled_sum_plus_noise_times_the_scale(tmp_path, name, method):
    """A plain noisy gradient: k times what was released, not divided by it as the matched preconditioner would."""
    model, data = made(name), numbers()
    private = started(tmp_path, model, data, method, rule="flat:0.1", batch_size=30, noise_multiplier=0.5)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    moved = False
    for step in range(6):
        inverse = {key: each.double() for key, each in inverse_of(private).items()}
        moved = moved or any((each != 1).any() for each in inverse.values())
        drawn = tuple(each[private.batches.batch(step)] for each in data)
        total = {key: torch.zeros_like(value).double() for key, value in model.named_parameters()}
        for gradient in loop_gradients(model, cross_entropy, drawn, len(drawn[0])):
            scaled = {key: gradient[key].double() * inverse[key] for key in inverse}
            weight = min(1.0, 0.1 * (1 - SLACK) / float(flat(scaled).norm()))
            total = {key: value + weight * scaled[key] for key, value in total.items()}
        sizes = [value.numel() for value in total.values()]
        noise = SeededSource(SEED).normal(sum(sizes), purpose="noise", step=step).split(sizes)
        released = private.release()
        for (key, value), each in zip(total.items(), noise, strict=True):
            wanted = (value + 0.05 * each.view(value.shape)) / inverse[key] / 30
            torch.testing.assert_close(released[key].double(), wanted, rtol=1e-4, atol=1e-6)
            deviation = torch.as_tensor(private.gradient_deviations[key]).double().expand(value.shape)
            torch.testing.assert_close(deviation, (0.05 / inverse[key] / 30).expand(value.shape), rtol=1e-4, atol=0)
        optimizer.step()
    assert moved


@pytest.mark.parametrize("rule", ["flat:0.5", "per-layer:0.3", QUANTILE])
def test_before_it_starts_it_is_dpsgd_bit_for_bit(tmp_path, rule):
    runs = [steps_of(started(tmp_path, made(), numbers(), method, rule=rule), 6) for method in (METHOD, DpSgd())]
    assert [torch.equal(a, b) for a, b in zip(*runs, strict=True)] == [True, True, True, False, False, False]


@pytest.mark.parametrize("method", [METHOD, RAW], ids=str)
def test_an_empty_batch_releases_noise_alone(tmp_path, method):
    private = started(tmp_path, made(), numbers(), method, planned=10**9, batch_size=1)
    for step in range(5):
        assert len(private.batches.batch(step)) == 0
        assert all(value.isfinite().all() and value.any() for value in private.release().values())


@pytest.mark.parametrize("noise_multiplier", [0.0, 1.0])
def test_gradients_that_are_all_zero(tmp_path, noise_multiplier):
    private = started(tmp_path, made(), numbers(), noise_multiplier=noise_multiplier)
    private.query.contribution = lambda capture: {
        "noise": {name: torch.zeros_like(each) for name, each in private.model.named_parameters()}
    }
    released, found = steps_of(private, 8), flat(inverse_of(private))
    assert all(each.isfinite().all() for each in (*released, found))
    if not noise_multiplier:
        assert not any(each.any() for each in released)
        assert (found == 1).all()


# Privacy ----------------------------------------------------------------------------------------------------------


def replay(folder, name="mlp", *, rule="flat:0.5", method=METHOD, records=60, lr=0.1, noise_multiplier=5.0, kept=None):
    """All records in every batch, with and without the last one, which is alone with what it has.

    The others have one label, so that their gradients add up.
    """

    def runner(cut):
        def run(count, mechanism):
            data = numbers(records)[0][:cut], (torch.arange(records) < records - 1).long()[:cut]
            options = {
                "rule": rule,
                "planned": records,
                "batch_size": records,
                "noise_multiplier": noise_multiplier,
                "mechanism": mechanism,
            }
            private = started(folder, made(name), data, method, **options)
            for _ in range(count):
                steps_of(private, 1, lr)
                if kept is not None:
                    kept.append(private.query.tensors())

        return run

    return neighbour_replay(runner(records), runner(records - 1), 10)


@pytest.mark.parametrize("rule", ["flat:0.5", "per-layer:0.3", "automatic:0.5,gamma=0.01", QUANTILE])
@pytest.mark.parametrize("name", BUILD)
def test_a_record_moves_no_release_by_more_than_the_bound(tmp_path, name, rule):
    kept = []
    distances = replay(tmp_path, name, rule=rule, kept=kept)
    assert max(each.share for each in distances) <= 1
    late = [each.share for each in distances if each.purpose == "noise" and each.step >= 4]
    assert max(late) > 0.5
    assert all(torch.equal(flat(a), flat(b)) for a, b in zip(kept[:10], kept[10:], strict=True))
    inverse = flat({name: value for name, value in kept[9].items() if name.startswith("inverse/")})
    assert inverse.max() > 2 * inverse.min()


def test_the_replay_notices_norms_that_are_taken_unscaled(tmp_path, monkeypatch):
    """A broken twin: each gradient is clipped as it is, and only then divided by k, which may enlarge it.

    The bound holds for all scales, so here they are given: the odd record's column has a small one.
    """

    def solved(self, s, w, counts=None):
        return torch.ones_like(s).index_fill(0, torch.tensor([8]), 0.2)

    monkeypatch.setattr(DpOpt, "solve", solved)
    assert max(each.share for each in replay(tmp_path)) <= 1
    honest = Capture.square_norms
    monkeypatch.setattr(Capture, "square_norms", lambda self, groups, inverse=None: honest(self, groups))
    distances = replay(tmp_path)
    assert max(each.share for each in distances[:3]) <= 1
    assert max(each.share for each in distances[3:]) > 1.15


class FromRawSums(ScaledSum):
    """A broken twin: its scales learn from the sum as it was before the noise."""

    def finalize(self, total):
        settled = super().finalize(total)
        self.raw = settled["noise"]
        return settled

    def to_gradient(self, released, deviation):
        gradients = {
            name: value * self._scales.factors()[name] / self.batch_size for name, value in released["noise"].items()
        }
        self._scales.learn(self.raw, 0.0)
        return gradients


class Twin(DpOpt):
    """DPOPT with that query."""

    def query(self, engine, rule, batch_size):
        return FromRawSums(engine, rule, batch_size, ShapedScales(self, engine.scale_shapes, engine.zeros()))


def test_scales_learnt_from_the_raw_sum_are_caught(tmp_path):
    """The two runs see the same releases and have other scales all the same, so the bound is broken too."""
    kept = []
    distances = replay(
        tmp_path, method=Twin(start=3, memory=0.8, lowest=0.1, highest=10.0), lr=3.0, noise_multiplier=1.0, kept=kept
    )
    assert max(each.share for each in distances[:3]) <= 1
    assert max(each.share for each in distances[3:]) > 1.03
    assert not any(torch.equal(flat(a), flat(b)) for a, b in zip(kept[:10], kept[10:], strict=True))


class Scripted(GaussianMechanism):
    """Releases what the step and the shapes say, whatever the data."""

    def release(self, total, *, step, **given):
        generator = torch.Generator().manual_seed(step)
        return {
            name: (index + 1) * torch.randn(each.shape, generator=generator, dtype=torch.float64)
            for index, (name, each) in enumerate(total.items())
        }


@pytest.mark.parametrize(
    ("method", "same"), [(METHOD, True), (Twin(start=3, memory=0.8, lowest=0.1, highest=10.0), False), (RAW, False)]
)
def test_other_data_with_the_same_releases_has_the_same_state(tmp_path, method, same):
    seen = []
    for records, chunk in ((40, 9), (25, 30)):
        data = tuple(each.flip(0)[:records] for each in numbers())
        private = started(
            tmp_path, made(), data, method, planned=40, batch_size=30, chunk_size=chunk, mechanism=Scripted()
        )
        steps_of(private, 6)
        seen.append(flat(private.query.tensors()))
    assert torch.equal(*seen) is same


# Checkpoints ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stop", [2, 3, 5])
@pytest.mark.parametrize("method", [METHOD, PROJECTED, RAW], ids=str)
def test_a_run_goes_on_bit_for_bit_from_its_state(tmp_path, method, stop):
    """Before the scales begin, when they begin and after. The state is taken once and not copied."""
    private = started(tmp_path, made(), numbers(), method, batch_size=20)
    steps_of(private, stop)
    state, parameters = private.state(), copy.deepcopy(private.model.state_dict())
    wanted, end = steps_of(private, 5), flat(private.query.tensors())
    other = started(tmp_path, made(), numbers(), method, batch_size=20)
    for again in (other, private):
        again.model.load_state_dict(parameters)
        again.restore(state)
        assert all(torch.equal(a, b) for a, b in zip(steps_of(again, 5), wanted, strict=True))
        assert torch.equal(flat(again.query.tensors()), end)


# As published -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("solver", ["closed", "projected"])
def test_the_published_method_is_its_definition_record_by_record(tmp_path, solver):
    """Boxes, noise and averages against a transcription in double precision."""
    method = replace(RAW, start=2, memory=0.6, solver=solver)
    model, data = made().double(), tuple(each.double() if each.is_floating_point() else each for each in numbers())
    private = started(tmp_path, model, data, method, rule="flat:0.3", batch_size=25, noise_multiplier=0.5, chunk_size=7)
    size = sum(value.numel() for value in model.parameters())
    e, m = torch.zeros(size).double(), torch.zeros(size).double()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(6):
        drawn = tuple(each[private.batches.batch(step)] for each in data)
        gradients = [flat(each) for each in loop_gradients(model, cross_entropy, drawn, len(drawn[0]))]
        if step < 2:
            total = sum(each * min(1.0, 0.3 * (1 - SLACK) / float(each.norm())) for each in gradients)
            deviations = torch.full((size,), 0.15).double()
        else:
            s = 0.3 * (e / e.sum()).sqrt()
            w = (m.abs() / m.square().mean().sqrt()).clamp(0.1, 10)
            total = sum(torch.minimum(torch.maximum(each, -s), s) for each in gradients)
            deviations = 0.5 * (s / w * (s * w).sum()).sqrt()
            used = (s / deviations).square().nan_to_num()
            assert float(used.sum()) == pytest.approx(1 / 0.5**2, rel=1e-9)
        noise = SeededSource(SEED).normal(size, purpose="noise", step=step)
        wanted = (total + deviations * noise) / 25
        found = flat(private.release())
        assert ((found - wanted).abs() <= 2e-4 * (deviations / 25 + wanted.abs())).all()
        e = 0.6 * e + 0.4 * sum(each.square() for each in gradients) / 25
        m = 0.6 * m + 0.4 * sum(gradients) / 25
        optimizer.step()


def test_the_box_follows_a_schedule_of_the_clip_bound(tmp_path):
    private = started(tmp_path, made(), numbers(), RAW)
    steps_of(private, 3)
    query = private.query
    assert query.l2_bounds() == {"noise": 0.5}
    query.clip_factor = 0.2
    assert query.l2_bounds() == {"noise": pytest.approx(0.1)}


def test_one_look_at_a_published_release_tells_whether_a_record_is_there(tmp_path):
    """The counter-example: without the record its number is released as exactly 0, and with it with noise."""
    released = {}
    for name, cut in (("with", 40), ("without", 39)):
        data = tuple(each[:cut] for each in numbers())
        private = started(tmp_path, made(), data, RAW, planned=40, batch_size=40)
        steps_of(private, 4)
        released[name] = private.release()["0.weight"]
    assert (released["without"][:, 8] == 0).all()
    assert (released["with"][:, 8] != 0).any()
    assert (released["without"][:, :8] != 0).any(0).all()


def test_the_private_method_passes_the_same_look(tmp_path):
    private = started(tmp_path, made(), tuple(each[:39] for each in numbers()), planned=40, batch_size=40)
    steps_of(private, 4)
    assert (private.release()["0.weight"][:, 8] != 0).all()


@pytest.mark.usefixtures("raw_records")
def test_a_record_that_is_not_finite_contributes_nothing_to_what_was_published(tmp_path):
    data, found = numbers(), []
    data[0][-1] = math.nan
    for cut in (40, 39):
        private = started(tmp_path, made(), tuple(each[:cut] for each in data), RAW, planned=40, batch_size=40)
        found.append(torch.cat([*steps_of(private, 5), flat(private.query.tensors())]))
    torch.testing.assert_close(*found, rtol=1e-4, atol=1e-6)
    assert found[0].isfinite().all()


def test_the_published_method_is_refused_without_permission(tmp_path):
    with pytest.raises(InputError, match=r"The method dpopt:source=raw.* is not private") as caught:
        started(tmp_path, made(), numbers(), RAW, allow_nonprivate=False)
    assert "never released" in caught.value.why
    assert METHOD.not_private is None


def test_the_published_method_has_no_clip_bound_that_is_learnt(tmp_path):
    with pytest.raises(InputError, match=r"dpopt:source=raw.* does not go with a clip bound that is learnt \(quantile"):
        started(tmp_path, made(), numbers(), RAW, rule=QUANTILE)


# Options ----------------------------------------------------------------------------------------------------------


@given(OPTIONS, st.sampled_from(["raw", "released"]), st.integers(1, 10**6))
@settings(deadline=None)
def test_text_goes_both_ways(options, source, steps):
    method = DpOpt(source, options.solver, steps, options.memory, options.start, options.lowest, options.highest)
    assert parse_method(str(method)) == method
    assert str(DpOpt()) == "dpopt"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("dpopt:source=noisy", "source must be one of released, raw"),
        ("dpopt:solver=newton", "solver must be one of closed, projected"),
        ("dpopt:steps=0", "steps must be at least 1"),
        ("dpopt:steps=1.5", "steps=1.5 of dpopt cannot be read"),
        ("dpopt:memory=1", "memory must be below 1"),
        ("dpopt:start=0", "start must be at least 1"),
        ("dpopt:lowest=2", "both sides of 1"),
        ("dpopt:lowest=1e-4,highest=1e4", "lie too far apart"),
        ("dpopt:power=1", "no option 'power'"),
        ("dpopt:defaults=1", "no option 'defaults'"),
    ],
)
def test_wrong_options_are_refused(text, message):
    with pytest.raises(InputError, match=message):
        parse_method(text)


def test_only_the_published_method_brings_the_settings_of_the_paper():
    def whole(method):
        return resolve(
            TrainConfig(
                "mnist", noise_multiplier=8.0, delta=1e-5, method=method, features="pca:dim=60,noise_multiplier=16"
            )
        ).config

    published, private, plain = whole("dpopt:source=raw"), whole("dpopt"), whole("dpsgd")
    assert (published.optimizer, published.lr, published.lr_schedule, published.clip_norm) == ("sgd", 0.1, None, 4.0)
    assert private.replace(method="dpsgd") == plain
    assert AdaDp.defaults == DpOpt.defaults == DpOpt().defaults
