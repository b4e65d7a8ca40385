"""The scales of the private ADADP: against a slow transcription of their definition, their laws and their edges."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from adadp.app.methods.adadp import AdaDp
from adadp.app.methods.scales import ColumnScales, ScaleSettings
from adadp.errors import InputError

LAYERS = {
    "linear.weight": ((4, 3), (1, 3)),
    "linear.bias": ((4,), (1,)),
    "conv.weight": ((2, 3, 2, 2), (1, 3, 2, 2)),
    "table": ((5, 2), (5, 1)),
    "one column": ((6, 1), (1, 1)),
    "every number": ((3,), (3,)),
    "scalar": ((), ()),
}
"""Name -> shape of the parameter, shape of its scales: 1 along the dimensions that share one."""


def scales_of(options: ScaleSettings, layers=LAYERS, dtype=torch.float32) -> ColumnScales:
    like = {name: torch.zeros(shape, dtype=dtype) for name, (shape, _) in layers.items()}
    return ColumnScales(options, {name: shape for name, (_, shape) in layers.items()}, like)


def drawn(seed: int, layers=LAYERS, *, spread: float = 0.0, noise: float = 1.0) -> dict[str, torch.Tensor]:
    """Normal numbers in every coordinate; with ``spread``, each column has a size of its own beside the noise."""
    fixed, fresh = torch.Generator().manual_seed(0), torch.Generator().manual_seed(seed)
    found = {}
    for name, (shape, columns) in layers.items():
        sizes = torch.exp(spread * torch.randn(columns, generator=fixed)) if spread else torch.zeros(columns)
        signal, rest = (torch.randn(shape, generator=fresh) for _ in range(2))
        found[name] = sizes * signal + noise * rest
    return found


def mean_inverse_square(scales: ColumnScales, layers=LAYERS) -> float:
    parts = [scales.inverse[name].double().expand(shape).reshape(-1) for name, (shape, _) in layers.items()]
    return float(torch.cat(parts).square().mean())


def all_of(scales: ColumnScales) -> torch.Tensor:
    return torch.cat([value.double().reshape(-1) for value in scales.inverse.values()])


class Transcription:
    """The docstring of ``ColumnScales``, one coordinate after another, in Python's doubles."""

    def __init__(self, options: ScaleSettings, layers=LAYERS) -> None:
        self.options, self.layers, self.steps = options, layers, 0
        self.column_of = {
            (name, at): (name, tuple(min(i, size - 1) for i, size in zip(at, columns, strict=True)))
            for name, (shape, columns) in layers.items()
            for at in itertools.product(*(range(size) for size in shape))
        }
        self.v = dict.fromkeys(self.column_of.values(), 0.0)
        self.k = dict.fromkeys(self.v, 1.0)

    def over_coordinates(self, of_column) -> float:
        return math.fsum(of_column[column] for column in self.column_of.values()) / len(self.column_of)

    def learn(self, released, deviation):
        """The gradient of every coordinate; V and k become those of the next step."""
        options = self.options
        values = {(name, at): float(released[name][at]) for name, at in self.column_of}
        gradients = {place: value / self.k[self.column_of[place]] for place, value in values.items()}
        for column in self.v:
            squares = [values[place] ** 2 for place, owner in self.column_of.items() if owner == column]
            seen = (sum(squares) / len(squares) - deviation**2) * self.k[column] ** 2
            self.v[column] = options.memory * self.v[column] + (1 - options.memory) * seen
        self.steps += 1
        if self.steps >= options.start:
            self.k = self.scales()
        return gradients

    def scales(self):
        options, whole = self.options, self.over_coordinates(self.v)
        if whole <= 0:
            return dict.fromkeys(self.v, 1.0)
        b = {}
        for column, v in self.v.items():
            ratio = math.sqrt(max(v, 0.0) / whole)
            b[column] = min(max(ratio, options.lowest), options.highest) ** options.power
        root = math.sqrt(self.over_coordinates({column: each**-2 for column, each in b.items()}))
        return {column: each * root for column, each in b.items()}


@pytest.mark.parametrize(
    "options",
    [
        ScaleSettings(start=3, power=0.5),
        ScaleSettings(start=1, power=1.0, memory=0.0),
        ScaleSettings(start=2, power=0.3, memory=0.5, lowest=0.7, highest=1.3),
        ScaleSettings(start=4, power=2.0, memory=0.9, lowest=0.01, highest=2.0),
    ],
    ids=lambda options: f"{options.power:g}",
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("deviation", [0.0, 0.7])
def test_scales_are_what_their_definition_says(options, dtype, deviation):
    scales, slow = scales_of(options, dtype=dtype), Transcription(options)
    moved = False
    for step in range(8):
        released = {name: each.to(dtype) for name, each in drawn(step, spread=1.0, noise=deviation).items()}
        wanted, gradients = slow.learn(released, deviation), scales.learn(released, deviation)
        for (name, at), value in wanted.items():
            assert float(gradients[name][at]) == pytest.approx(value, rel=1e-5)
        for name, at in slow.column_of.values():
            assert float(scales.inverse[name][at]) == pytest.approx(1 / slow.k[name, at], rel=1e-5)
            moved = moved or abs(slow.k[name, at] - 1) > 0.1
        assert all(each.dtype == dtype for each in gradients.values())
    assert moved


OPTIONS = st.builds(
    ScaleSettings,
    power=st.floats(0, 2),
    memory=st.floats(0, 0.999),
    start=st.integers(1, 4),
    lowest=st.floats(0.05, 0.95),
    highest=st.floats(1.05, 20),
)


@given(options=OPTIONS, spread=st.floats(0, 3), deviation=st.floats(0, 3), seed=st.integers(0, 1000))
@settings(max_examples=60, deadline=None)
def test_the_mean_of_inverse_squares_is_one_and_ratios_are_bounded(options, spread, deviation, seed):
    scales = scales_of(options)
    for step in range(5):
        scales.learn(drawn(seed + step, spread=spread, noise=deviation), deviation)
        found = all_of(scales)
        assert found.isfinite().all()
        assert (found > 0).all()
        assert mean_inverse_square(scales) == pytest.approx(1, rel=1e-6)
        assert found.max() / found.min() <= (options.highest / options.lowest) ** options.power * (1 + 1e-6)
        if step + 1 < options.start:
            assert (found == 1).all()


def test_scales_begin_after_as_many_steps_as_start_says():
    scales = scales_of(ScaleSettings(start=3))
    varied = []
    for step in range(4):
        scales.learn(drawn(step, spread=1.0, noise=0.0), 0.0)
        varied.append(bool((all_of(scales) != 1).any()))
    assert varied == [False, False, True, True]


@pytest.mark.parametrize("power", [0.5, 1.0])
def test_both_bounds_are_hit_and_not_passed(power):
    """Two columns: the ratio of their scales is (highest/lowest)^power, however far apart what was seen is."""
    layers = {"weight": ((10, 12), (1, 12))}
    options = ScaleSettings(start=1, lowest=0.5, highest=2.0, power=power)
    scales = scales_of(options, layers)
    released = torch.full((10, 12), 1e-6)
    released[:, 0] = 1e6
    scales.learn({"weight": released}, 0.0)
    found = scales.inverse["weight"][0].double()
    assert float(found[1] / found[0]) == pytest.approx(4.0**power, rel=1e-6)
    assert (found[1:] == found[1]).all()


def test_a_column_that_never_moves_gets_the_smallest_scale_and_stays_finite():
    """Noise of the stated deviation everywhere, and beside it a signal in all columns but the first."""
    layers = {"weight": ((50, 6), (1, 6)), "bias": ((50,), (1,))}
    scales = scales_of(ScaleSettings(start=2, power=0.5), layers)
    for step in range(40):
        signal = {name: 3 * value for name, value in drawn(step, layers).items()}
        signal["weight"][:, 0] = 0
        noise = drawn(1000 + step, layers)
        scales.learn({name: value + noise[name] for name, value in scales.apply(signal).items()}, 1.0)
    inverse = scales.inverse["weight"][0]
    assert inverse.isfinite().all()
    assert (inverse[0] > 2 * inverse[1:]).all()


def test_a_column_of_zeros_without_noise_has_the_lowest_ratio():
    layers = {"weight": ((4, 5), (1, 5))}
    options = ScaleSettings(start=1, power=1.0)
    scales = scales_of(options, layers)
    for step in range(5):
        released = drawn(step, layers)["weight"]
        released[:, 2] = 0
        scales.learn({"weight": released}, 0.0)
        inverse = scales.inverse["weight"][0].double()
        ratio = scales.tensors()["moment/weight"][0].sqrt() / scales.tensors()["moment/weight"].mean().sqrt()
        assert inverse.argmax() == 2
        assert float(inverse[2] / inverse[0]) == pytest.approx(float(ratio[0]) / options.lowest, rel=1e-6)


@pytest.mark.parametrize("deviation", [0.0, 1.0])
def test_nothing_at_all_leaves_scales_of_one(deviation):
    """Zeros, with and without a noise to subtract: the mean of V is 0 or negative, never positive."""
    scales = scales_of(ScaleSettings(start=1))
    for _ in range(5):
        gradients = scales.learn({name: torch.zeros(shape) for name, (shape, _) in LAYERS.items()}, deviation)
        assert (all_of(scales) == 1).all()
        assert not any(value.any() for value in gradients.values())


def test_noise_alone_is_subtracted():
    """V is 0 on average, and whenever its mean is not positive all scales are 1."""
    layers = {"weight": ((300, 40), (1, 40))}
    scales = scales_of(ScaleSettings(start=1, memory=0.9, lowest=0.9, highest=1.1), layers)
    means = []
    for step in range(60):
        scales.learn(drawn(step, layers, noise=2.0), 2.0)
        means.append(float(scales.tensors()["moment/weight"].mean()))
        assert bool((all_of(scales) == 1).all()) is (means[-1] <= 0)
    spread = 4.0 * math.sqrt(2 / 12_000 * 0.1 / 1.9)  # of the mean of V, from noise of variance 4
    assert -5 * spread < min(means) < 0 < max(means) < 5 * spread


def test_less_than_noise_gives_ones_and_signal_brings_scales_back():
    scales = scales_of(ScaleSettings(start=1, memory=0.5))
    seen = []
    for deviation in (0.0, 100.0, 0.0):
        for step in range(3 if deviation else 25):
            scales.learn(drawn(step, spread=1.0, noise=0.0), deviation)
        seen.append(bool((all_of(scales) == 1).all()))
    assert seen == [False, True, False]


@pytest.mark.parametrize("shape", [(1, 1), (7, 1), (1,), ()])
def test_a_model_with_one_scale_keeps_it_at_one(shape):
    """There is nothing to be larger or smaller than."""
    layers = {"only": (shape, (1,) * len(shape))}
    scales = scales_of(ScaleSettings(start=1), layers)
    for step in range(4):
        scales.learn(drawn(step, layers), 0.1)
        assert float(scales.inverse["only"]) == pytest.approx(1, rel=1e-6)


@pytest.mark.parametrize("empty", [((3, 0), (1, 0)), ((2, 0), (1, 1)), ((0,), (1,))])
def test_a_parameter_without_numbers_changes_nothing(empty):
    layers = {"weight": LAYERS["linear.weight"]}
    alone, beside = scales_of(ScaleSettings(start=1), layers), scales_of(ScaleSettings(start=1), layers | {"no": empty})
    for step in range(3):
        released = drawn(step, layers, spread=1.0, noise=0.0)
        alone.learn({name: value.clone() for name, value in released.items()}, 0.0)
        gradients = beside.learn(released | {"no": torch.zeros(empty[0])}, 0.0)
        assert torch.equal(alone.inverse["weight"], beside.inverse["weight"])
        assert gradients["no"].shape == empty[0]
    assert (alone.inverse["weight"] != 1).any()


def test_power_zero_is_exactly_one_everywhere():
    scales = scales_of(ScaleSettings(start=1, power=0.0))
    for step in range(5):
        scales.learn(drawn(step, spread=2.0), 1.0)
        assert (all_of(scales) == 1).all()


def test_the_unit_of_the_gradient_does_not_matter():
    """Releases and deviation times 1024: the same scales, so a larger clip bound alone changes none."""
    one, other = scales_of(ScaleSettings(start=1)), scales_of(ScaleSettings(start=1))
    for step in range(5):
        released = drawn(step, spread=1.0)
        other.learn({name: 1024 * value for name, value in released.items()}, 1024.0)
        one.learn(released, 1.0)
    torch.testing.assert_close(all_of(one), all_of(other), rtol=1e-6, atol=0)
    assert (all_of(one) != 1).any()


def test_what_a_checkpoint_keeps_does_not_move_on():
    """Taken once, restored later and twice: every time the same scales follow."""
    scales = scales_of(ScaleSettings(start=2))
    for step in range(3):
        scales.learn(drawn(step, spread=1.0), 1.0)
    kept, ends = scales.tensors(), []
    for _ in range(2):
        for step in range(3, 6):
            scales.learn(drawn(step, spread=1.0), 1.0)
        ends.append(all_of(scales))
        scales.restore(kept)
    fresh = scales_of(ScaleSettings(start=2))
    fresh.restore(kept)
    assert torch.equal(all_of(fresh), all_of(scales))
    for step in range(3, 6):
        fresh.learn(drawn(step, spread=1.0), 1.0)
    assert torch.equal(ends[0], ends[1])
    assert torch.equal(ends[0], all_of(fresh))


@pytest.mark.parametrize("power", [0, 1e-3, 1.0, 3.0])
def test_the_widest_scales_that_are_allowed_stay_finite(power):
    wide = 300.0 if power < 0.01 else 3 / power
    options = ScaleSettings(start=1, power=power, lowest=10**-wide, highest=10**wide)
    scales = scales_of(options)
    for step in range(6):
        released = drawn(step, spread=20.0, noise=0.0)
        gradients = scales.learn({name: value * scales.inverse[name] for name, value in released.items()}, 0.0)
        assert all(value.isfinite().all() for value in gradients.values())
        assert (all_of(scales) > 0).all()
        assert all_of(scales).isfinite().all()


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"power": -0.1}, "power must not be negative"),
        ({"power": math.nan}, "power must be finite"),
        ({"power": 3.1}, "lie too far apart"),
        ({"power": 400}, "lie too far apart"),
        ({"lowest": 1e-300, "power": 1.0}, "lie too far apart"),
        ({"memory": 1.0}, "memory must be below 1"),
        ({"memory": -0.5}, "memory must not be negative"),
        ({"start": 0}, "start must be at least 1"),
        ({"start": 2.5}, "start must be a whole number"),
        ({"lowest": 0.0}, "lowest must be greater than 0"),
        ({"lowest": 1.0}, "both sides of 1"),
        ({"highest": 1.0}, "both sides of 1"),
        ({"highest": math.inf}, "highest must be finite"),
        ({"highest": True}, "highest must be a number"),
    ],
    ids=str,
)
@pytest.mark.parametrize("kind", [ScaleSettings, AdaDp])
def test_wrong_settings_are_refused(kind, wrong, message):
    with pytest.raises(InputError, match=message):
        kind(**wrong)
