"""More tests of dpopt: dpopt attacks."""

from __future__ import annotations

import copy
import math
from dataclasses import replace

import pytest
import torch
from dpopt_cases import (
    METHOD,
    OPTIONS,
    PROJECTED,
    QUANTILE,
    RAW,
    SEED,
    flat,
    made,
    numbers,
    replay,
    started,
    steps_of,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from adadp.app.config import TrainConfig
from adadp.app.losses import cross_entropy
from adadp.app.methods.adadp import AdaDp
from adadp.app.methods.scaled import ScaledSum
from adadp.app.resolve import resolve
from adadp.app.texts.methods import parse_method
from adadp.clipping.base import SLACK
from adadp.errors import InputError
from adadp.gradients import loop_gradients
from adadp.lab.methods import clamped
from adadp.lab.methods.dpopt import DpOpt
from adadp.lab.methods.dpopt_scales import ShapedScales
from adadp.noise import GaussianMechanism
from adadp.randomness import SeededSource

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def without_compiler(monkeypatch):
    """Compiling takes seconds, and has tests of its own."""
    monkeypatch.setattr(clamped, "_compiled_kernel", lambda: None)


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
