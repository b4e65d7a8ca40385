"""What is tried before the first charge, so that settings that leave the range of floating point cost nothing.

No record is read: the optimizer takes a few steps with gradients of the size of the noise, which are taken back.

found before the first charge                            what happens
=======================================================  ==============================================================
a learning rate of the schedule that becomes 0           ``InputError``
a clip bound of the schedule out of its range, or 0      ``InputError``
noise beyond what can be added exactly                   ``InputError``
a step that raises, or makes a parameter NaN, infinite   ``InputError``
or larger than ``LARGEST_PARAMETER``
a parameter that is so from the beginning                ``InputError``

During the run the parameters are looked at before every step and at the end (``refuse_broken``): they are released
values, so looking at them tells nothing.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterable

import torch
from torch import nn

from adadp.app.optimizers.adambc import AdamBC
from adadp.clipping.base import LARGEST, SMALLEST
from adadp.errors import InputError
from adadp.methods import GRADIENT
from adadp.plan import Plan
from adadp.schedules import Schedule
from adadp.sharding import own_part
from adadp.step import PrivateGradients

LARGEST_PARAMETER = 1e18
"""Larger parameters are no use: in float32 the product of two of them is infinite."""

LARGEST_NOISE = 1e10
"""Noise multiplier times the root of the number of parameters: a little less than what ``adadp.noise`` can add."""

_FAR = 6
"""Standard deviations that hardly any coordinate is away from 0."""

_STEPS = 100
"""Steps of the optimizer that are tried, at most: enough to find one that multiplies the parameters by 1.6 in each."""


def rehearse(
    private: PrivateGradients, optimizer: torch.optim.Optimizer, rate: Schedule | None, peak: float | None = None
) -> None:
    """Refuse settings with which the parameters would not stay finite. Reads no record and charges nothing.

    ``peak`` is the largest rate of a scheduler, in place of those of ``rate``. A run without noise spends nothing, and
    is not tried.
    """
    if private.plan.noise is None:
        return
    rates = _values(rate, private.plan)
    _try(private, optimizer, max(rates, default=None) if peak is None else peak, _size_of_gradients(private))


def refuse_broken(model: nn.Module, when: str, spent: str) -> None:
    """Refuse parameters that are NaN, infinite or larger than ``LARGEST_PARAMETER``."""
    if not _usable(model.parameters()):
        raise InputError(
            f"A parameter of the model is NaN, infinite or beyond {LARGEST_PARAMETER:g}, {when}.",
            why="No record has a gradient then, and every further step would spend budget on nothing.",
            fix=f"{spent} Begin again with a smaller learning rate, weight decay or clip bound, or other first "
            "parameters.",
        )


def _values(schedule: Schedule | None, plan: Plan) -> list[float]:
    """Every value ``schedule`` has in the run: one that it cannot have is found now."""
    if schedule is None:
        return []
    return schedule.values(plan.epochs if schedule.tick is None else -(-plan.steps // schedule.tick))


def _size_of_gradients(private: PrivateGradients) -> float:
    """How large a coordinate of a released gradient can be, about: the clip bound, and noise far out."""
    plan, query = private.plan, private.query
    factors = _values(plan.clip_norm_schedule, plan) or [1.0]
    unscaled = query.l2_bounds()[GRADIENT] / query.clip_factor
    if (
        plan.clip_norm_schedule is not None
        and not SMALLEST <= unscaled * min(factors) <= unscaled * max(factors) <= LARGEST
    ):
        raise InputError(
            f"The clip bound goes from {unscaled * min(factors):g} to {unscaled * max(factors):g}.",
            why=f"Beyond {SMALLEST:g} and {LARGEST:g} squares of norms leave the range of a float32.",
            fix="Pass a `clip_norm_schedule` that changes less.",
        )
    noise_multiplier = max(_values(plan.noise, plan), default=0.0) / (min(factors) if plan.keep_noise else 1.0)
    coordinates = sum(each.numel() for each in private.model.parameters() if each.requires_grad)
    if noise_multiplier * math.sqrt(coordinates) > LARGEST_NOISE:
        raise InputError(
            f"The noise multiplier {noise_multiplier:g} is too large for {coordinates} parameters.",
            why="The noise would leave the range in which additions are exact.",
            fix=f"Pass a `noise_multiplier` below {LARGEST_NOISE / math.sqrt(coordinates):.1g}, or a larger `epsilon`.",
        )
    batch_size = min(map(round, _values(plan.batch_size_schedule, plan) or [plan.batch_size]))
    return unscaled * max(factors) * (1 + _FAR * noise_multiplier / batch_size)


def _try(private: PrivateGradients, optimizer: torch.optim.Optimizer, rate: float | None, size: float) -> None:
    """A few steps of the optimizer with gradients of this ``size``, which are taken back."""
    trained = [each for each in private.model.parameters() if each.requires_grad]
    steps = min(_STEPS, private.plan.steps)
    kept = [(each, each.detach().clone(), each.grad) for each in trained]
    state = copy.deepcopy(optimizer.state_dict())
    try:
        for _ in range(steps):
            for each in trained:
                each.grad = torch.full_like(each, size)
            for group in optimizer.param_groups:
                group["lr"] = group["lr"] if rate is None else rate
            if isinstance(optimizer, AdamBC):
                optimizer.set_noise(0.0)
            optimizer.step()
        usable, reason = _usable(trained), ""
    except (RuntimeError, OverflowError, ValueError) as error:
        usable, reason = False, f": {error}"
    finally:
        with torch.no_grad():
            for each, value, gradient in kept:
                each.copy_(value)
                each.grad = gradient
        optimizer.load_state_dict(state)
    if not usable:
        raise InputError(
            f"The parameters do not stay finite in the first {steps} steps of the optimizer{reason}.",
            why="It was tried with gradients as large as the clip bound and the noise; nothing was spent.",
            fix="Use a smaller learning rate (`lr`), weight decay, clip bound or noise.",
        )


def _usable(parameters: Iterable[nn.Parameter]) -> bool:
    """Whether all are finite and small enough; a NaN is not."""
    own = [own_part(each.detach()) for each in parameters]
    floats = [each.aminmax() for each in own if each.is_floating_point() and each.numel()]
    return all(bool(low >= -LARGEST_PARAMETER) and bool(high <= LARGEST_PARAMETER) for low, high in floats)
