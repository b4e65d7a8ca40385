"""The private ADADP in real runs: what it releases, that its scales see releases only, and neighbour replay."""

from __future__ import annotations

import pytest
import torch
from adadp_cases import (
    METHOD,
    MODELS,
    QUANTILE,
    SEED,
    flat,
    inverse_of,
    made,
    started,
    steps_of,
)

from adadp.app.losses import cross_entropy
from adadp.app.methods.adadp import AdaDp
from adadp.clipping.base import SLACK
from adadp.gradients import loop_gradients
from adadp.methods import DpSgd
from adadp.noise import GaussianMechanism
from adadp.randomness import SeededSource

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore:.*no closed form")]


# What is released -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("double", [False, True])
@pytest.mark.parametrize("name", MODELS)
def test_a_release_is_the_clipped_scaled_sum_plus_noise_scaled_back(tmp_path, name, double):
    """Against one backward pass per record: D (sum of clip(D g) + noise) / L, with D of the step at hand."""
    model, data = made(name)
    if double:
        model, data = model.double(), tuple(each.double() if each.is_floating_point() else each for each in data)
    private = started(tmp_path, model, data, rule="flat:0.1", batch_size=30, noise_multiplier=0.5)
    optimizer = torch.optim.SGD([each for each in model.parameters() if each.requires_grad], lr=0.1)
    moved = False
    for step in range(5):
        inverse = {name: each.double() for name, each in inverse_of(private).items()}
        moved = moved or any((each != 1).any() for each in inverse.values())
        drawn = tuple(each[private.batches.batch(step)] for each in data)
        total = {name: torch.zeros_like(dict(model.named_parameters())[name]).double() for name in inverse}
        for gradient in loop_gradients(model, cross_entropy, drawn, len(drawn[0])):
            scaled = {name: gradient[name].double() * inverse[name] for name in inverse}
            weight = min(1.0, 0.1 * (1 - SLACK) / float(flat(scaled).norm()))
            total = {name: value + weight * scaled[name] for name, value in total.items()}
        sizes = [value.numel() for value in total.values()]
        noise = SeededSource(SEED).normal(sum(sizes), purpose="noise", step=step).split(sizes)
        released = private.release()
        assert list(released) == [name for name, value in model.named_parameters() if value.requires_grad]
        for (name, value), each in zip(total.items(), noise, strict=True):
            wanted = inverse[name] * (value + 0.05 * each.view(value.shape)) / 30
            torch.testing.assert_close(released[name].double(), wanted, rtol=1e-4, atol=1e-6)
        optimizer.step()
    assert moved


@pytest.mark.parametrize(
    ("rule", "noise_multiplier"), [("flat:0.5", 1.0), ("flat:0.5", 0.0), ("per-layer:0.3", 1.0), (QUANTILE, 1.0)]
)
def test_power_zero_is_dpsgd_bit_for_bit(tmp_path, rule, noise_multiplier):
    runs = []
    for method in (AdaDp(power=0.0, start=2), DpSgd(), AdaDp(power=0.5, start=2)):
        private = started(tmp_path, *made("mlp"), method, rule=rule, noise_multiplier=noise_multiplier, batch_size=20)
        runs.append(steps_of(private, 6))
    assert all(torch.equal(a, b) for a, b in zip(runs[0], runs[1], strict=True))
    same = [torch.equal(a, b) for a, b in zip(runs[1], runs[2], strict=True)]
    assert same == [True, True, False, False, False, False]


def test_without_noise_it_is_the_limit_of_little_noise(tmp_path):
    runs = [
        steps_of(started(tmp_path, *made("mlp"), noise_multiplier=noise_multiplier, batch_size=20), 8)
        for noise_multiplier in (0.0, 1e-9)
    ]
    for a, b in zip(*runs, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("noise_multiplier", [1.0, 0.0])
def test_gradients_that_are_all_zero(tmp_path, noise_multiplier):
    """Released is noise alone, or nothing at all: scales stay finite and bounded, and are 1 in the second case."""
    model, data = made("mlp")
    private = started(tmp_path, model, data, batch_size=20, noise_multiplier=noise_multiplier)
    private.query.contribution = lambda capture: {
        "noise": {name: torch.zeros_like(each) for name, each in model.named_parameters()}
    }
    released = steps_of(private, 8)
    found = flat(inverse_of(private))
    assert all(each.isfinite().all() for each in released)
    assert found.isfinite().all()
    assert found.max() / found.min() <= (METHOD.highest / METHOD.lowest) ** 0.5 * (1 + 1e-6)
    if not noise_multiplier:
        assert not any(each.any() for each in released)
        assert (found == 1).all()


def test_a_dead_input_gets_less_noise(tmp_path):
    """A number that is 0 for every record: no signal, the smallest scale of its layer, and noise that is as small."""
    model, (x, y) = made("mlp", 200)
    private = started(tmp_path, model, (x[:-1], y[:-1]), batch_size=199, noise_multiplier=1.0, rule="flat:0.5")
    steps_of(private, 30, lr=0.5)
    inverse = inverse_of(private)["0.weight"][0]
    assert inverse.isfinite().all()
    assert inverse[8] == inverse.max()
    assert inverse[8] > 2 * inverse.min()


@pytest.mark.parametrize("method", [METHOD, DpSgd()], ids=str)
@pytest.mark.parametrize("rule", ["flat:0.5", QUANTILE])
def test_an_empty_batch_releases_noise_and_teaches_nothing_but_noise(tmp_path, method, rule):
    model, data = made("mlp")
    private = started(tmp_path, model, data, method, rule=rule, planned=10**9, batch_size=1)
    for step in range(5):
        assert len(private.batches.batch(step)) == 0
        assert all(value.isfinite().all() and value.any() for value in private.release().values())


class Watching(GaussianMechanism):
    """Keeps the types of what was released."""

    def __init__(self) -> None:
        self.types = []

    def release(self, total, **given):
        released = super().release(total, **given)
        self.types.append({each.dtype for each in released.values()})
        return released


@pytest.mark.parametrize("method", [METHOD, DpSgd()], ids=str)
def test_the_precision_of_a_release_does_not_tell_how_many_chunks_a_batch_had(tmp_path, method):
    """How finely a released number is rounded is public; the number of records that were drawn is not."""
    for planned, chunk in ((10**9, 40), (40, 40), (40, 39), (40, 1)):
        mechanism = Watching()
        batch = 1 if planned > 40 else 40
        steps_of(
            started(
                tmp_path, *made("mlp"), method, planned=planned, batch_size=batch, chunk_size=chunk, mechanism=mechanism
            ),
            2,
        )
        assert mechanism.types == [{torch.float32}] * 2


@pytest.mark.parametrize("name", ["mlp", "cnn", "words", "tied"])
def test_several_chunks_are_one_chunk_to_rounding(tmp_path, name):
    runs = []
    for chunk in (7, 40):
        private = started(tmp_path, *made(name), batch_size=30, chunk_size=chunk)
        runs.append((torch.cat(steps_of(private, 6)), flat(inverse_of(private))))
    for released, inverse in runs[1:]:
        torch.testing.assert_close(released, runs[0][0], rtol=1e-3, atol=1e-5)
        torch.testing.assert_close(inverse, runs[0][1], rtol=1e-3, atol=1e-5)
    assert (runs[0][1] != 1).any()


def test_frozen_parameters_have_no_scales_and_do_not_move(tmp_path):
    model, data = made("frozen")
    before = {name: value.clone() for name, value in model.state_dict().items()}
    private = started(tmp_path, model, data)
    steps_of(private, 5)
    trained = ["0.weight", "0.bias", "4.weight"]
    assert list(inverse_of(private)) == trained
    moved = [name for name, value in model.state_dict().items() if not torch.equal(value, before[name])]
    assert moved == trained


def test_a_tied_matrix_is_one_parameter_with_one_scale(tmp_path):
    """As a table it would have a scale per row, as a layer one per column: they disagree."""
    model, data = made("tied")
    private = started(tmp_path, model, data)
    steps_of(private, 5)
    shapes = {name: tuple(each.shape) for name, each in inverse_of(private).items()}
    assert shapes == {"table.weight": (1, 1), "twice.weight": (1, 4), "twice.bias": (1,)}
    assert model.out.weight is model.table.weight
