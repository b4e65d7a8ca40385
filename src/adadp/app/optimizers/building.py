"""The optimizer of a run: one known by name, or one the caller makes. It sees released gradients only."""

from __future__ import annotations

import inspect
from collections.abc import Callable

import torch
from torch import nn

from adadp.app.config import TrainConfig
from adadp.app.optimizers.adambc import AdamBC
from adadp.app.optimizers.adaptive_rate import AdaptiveRate
from adadp.errors import InputError
from adadp.schedules import Schedule
from adadp.sharding import divide
from adadp.step import PrivateGradients

MakeOptimizer = Callable[[list[nn.Parameter]], torch.optim.Optimizer] | torch.optim.Optimizer
"""From the trained parameters to an optimizer over them; or that optimizer."""


def make_optimizer(
    model: nn.Module, config: TrainConfig, rate: Schedule | None, make: MakeOptimizer | None = None
) -> torch.optim.Optimizer:
    """The optimizer ``config`` names, over the trained parameters; if that is "python", the one ``make`` is or makes.

    ================================================  ================================================================
    the name "python" and no function, or both a      ``InputError``
    function and another name; nothing to train
    a function that makes no optimizer, one of other  ``InputError``
    parameters, or one that wants a closure
    ================================================  ================================================================
    """
    divide(model)  # an optimizer has the parameters as they are between the steps
    parameters = [value for value in model.parameters() if value.requires_grad]
    if not parameters:
        raise InputError("The model has no trained parameter.", fix="Set requires_grad=True on what should be trained.")
    if (config.optimizer == "python") != (make is not None):
        raise InputError(
            f"The optimizer is {config.optimizer or 'sgd'!r}, and {'a' if make else 'no'} function makes it.",
            fix="Pass fit(optimizer=...) the function the run was begun with, or a name: sgd, adam, adamw, adambc or "
            "rms.",
        )
    if make is not None:
        return _checked(make if isinstance(make, torch.optim.Optimizer) else make(parameters), parameters)
    if rate is None:
        raise InputError("No learning rate is given.", fix="Pass `lr` or `lr_schedule`.")
    lr = rate.value_at(0)
    if config.optimizer in (None, "sgd"):
        return torch.optim.SGD(parameters, lr=lr, momentum=config.momentum, weight_decay=config.weight_decay)
    if config.optimizer == "rms":
        return AdaptiveRate(parameters, lr, weight_decay=config.weight_decay)
    if config.optimizer == "adambc":
        return AdamBC(parameters, lr, weight_decay=config.weight_decay)
    kind = torch.optim.Adam if config.optimizer == "adam" else torch.optim.AdamW
    return kind(parameters, lr=lr, weight_decay=config.weight_decay)


def check_noise(optimizer: torch.optim.Optimizer, private: PrivateGradients) -> None:
    """Refuse an optimizer that subtracts the noise where the method cannot say how large it is. Nothing is released."""
    if isinstance(optimizer, AdamBC) and private.split:
        raise InputError(
            "The optimizer adambc does not work on a model that is split over processes.",
            why="It is told the noise of whole parameters.",
            fix="Use adam.",
        )
    if isinstance(optimizer, AdamBC) and private.query.gradient_deviations(1.0) is None:
        raise InputError(
            "The method cannot say how large the noise of its gradients is, and the optimizer adambc subtracts it.",
            why="It follows from values that were not released, or a gradient is not what was released.",
            fix="Use the method adadp or dpsgd, or another optimizer, such as adam.",
        )


def tell_noise(optimizer: torch.optim.Optimizer, private: PrivateGradients) -> None:
    """Tell an optimizer that subtracts the noise how large that of the last release was."""
    if isinstance(optimizer, AdamBC):
        deviations = private.gradient_deviations
        assert deviations is not None  # see ``check_noise``
        parameters = dict(private.model.named_parameters())
        optimizer.set_noise({parameters[name]: deviation for name, deviation in deviations.items()})


def _checked(optimizer: object, parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise InputError(
            f"The function given as optimizer made {type(optimizer).__name__}, not a torch.optim.Optimizer.",
            fix="Pass for example lambda parameters: torch.optim.RMSprop(parameters, lr=0.01).",
        )
    trained = {id(value) for value in parameters}
    if any(id(value) not in trained for group in optimizer.param_groups for value in group["params"]):
        raise InputError(
            "The optimizer holds parameters that are not the trained ones of this model.",
            why="Only those get a private gradient; a stale gradient of another would be used as it is.",
            fix="Make it from those parameters of the model that have requires_grad.",
        )
    closure = inspect.signature(optimizer.step).parameters.get("closure")
    if closure is not None and closure.default is inspect.Parameter.empty:
        raise InputError(
            f"{type(optimizer).__name__} evaluates the loss as often as it likes.",
            why="Every evaluation is a release, which the plan does not hold.",
            fix="Use an optimizer whose step() needs no closure.",
        )
    return optimizer
