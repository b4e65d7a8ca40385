"""Batch and length by rule: what the rule promises, and where its numbers come from."""

from __future__ import annotations

import pytest

from adadp.app.accounting.plans import plan_for
from adadp.app.auto_size import ENOUGH, EPOCHS, FEWEST, STEPS, auto_batch_size, auto_steps
from adadp.app.config import TrainConfig
from adadp.app.resolve import resolve
from adadp.errors import InputError


def noise_per_record(batch_size: int, records: int, steps: int, epsilon: float) -> float:
    plan = plan_for(epsilon=epsilon, delta=1e-5, records=records, batch_size=batch_size, steps=steps)
    return plan.noise_multiplier_at(0) / batch_size


@pytest.mark.parametrize(("epsilon", "records", "steps"), [(0.5, 50_000, 300), (8.0, 20_000, 800)])
def test_the_batch_has_nearly_the_noise_of_the_whole_data_set_and_no_smaller_one_has(epsilon, records, steps):
    batch = auto_batch_size(epsilon=epsilon, delta=1e-5, records=records, steps=steps)
    wanted = ENOUGH * noise_per_record(records, records, steps, epsilon)
    most, least = min(records, EPOCHS * records // steps), max(records // 50, 64)
    assert min(least, most) <= batch <= max(least, most)
    if batch < most:
        assert noise_per_record(batch, records, steps, epsilon) <= wanted
    if batch > 1.3 * least:
        assert noise_per_record(int(batch / 1.3), records, steps, epsilon) > wanted


@pytest.mark.slow
def test_batches_grow_with_epsilon_and_lengths_do_not_shrink():
    batches = [auto_batch_size(epsilon=epsilon, delta=1e-5, records=60_000, steps=800) for epsilon in (0.1, 8.0)]
    assert batches == sorted(batches)
    assert batches[0] == 1200
    assert batches[1] > 4 * batches[0]
    lengths = [auto_steps(epsilon) for epsilon in (0.001, 0.05, 0.2, 0.5, 8.0)]
    assert lengths == sorted(lengths)
    assert (lengths[0], lengths[-1]) == (FEWEST, STEPS)


@pytest.mark.slow
def test_a_release_before_the_steps_is_counted():
    alone = auto_batch_size(epsilon=1.0, delta=1e-5, records=60_000, steps=800)
    assert auto_batch_size(epsilon=1.0, delta=1e-5, records=60_000, steps=800, before=(10.0,)) <= alone


def test_a_tiny_data_set_is_used_whole():
    assert auto_batch_size(epsilon=1.0, delta=1e-3, records=50, steps=20) == 50


def test_auto_is_replaced_by_numbers_that_stay():
    config = resolve(TrainConfig(data="mnist", epsilon=1.0, batch_size="auto", steps="auto", features="none")).config
    assert isinstance(config.batch_size, int)
    assert config.steps == auto_steps(1.0)
    assert resolve(config).config == config


@pytest.mark.parametrize(
    ("fields", "match"),
    [
        ({"noise_multiplier": 1.0, "batch_size": "auto", "steps": 100}, "nothing to choose it from"),
        ({"epsilon": 1.0, "batch_size": "auto", "epochs": 3}, "steps is not given"),
        ({"epsilon": 1.0, "batch_size": "many"}, "batch_size"),
        ({"epsilon": 1.0, "epochs": "auto"}, "epochs"),
    ],
)
def test_auto_where_it_cannot_be(fields, match):
    with pytest.raises(InputError, match=match):
        resolve(TrainConfig(data="mnist", delta=1e-5, features="none", **fields))


def test_own_data_needs_a_public_number():
    with pytest.raises(InputError, match="nothing to choose it from"):
        resolve(TrainConfig(data="npz:mine.npz", epsilon=1.0, delta=1e-5, batch_size="auto", steps="auto"))
    config = TrainConfig(data="npz:mine.npz", epsilon=1.0, delta=1e-5, batch_size="auto", steps=50, records=5000)
    assert isinstance(resolve(config).config.batch_size, int)
