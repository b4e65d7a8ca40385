"""Adam without the noise in its second moment (Tang, Shpilevskiy and Lecuyer 2024, DP-AdamBC)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from adadp import checks
from adadp.errors import InputError

_NOT_BELOW_ONE = "It is the share of an average that a step keeps; from 1 on nothing would be learnt."


class AdamBC(torch.optim.Optimizer):
    """Adam's step, where the average of squares is that of the gradient alone. For a released gradient g~ = g + noise,
    whose noise has the standard deviation d in a coordinate,

        m   <- beta1 m + (1 - beta1) g~          m^   = m / (1 - beta1^t)
        v   <- beta2 v + (1 - beta2) g~^2        v^   = v / (1 - beta2^t)
        Phi <- beta2 Phi + (1 - beta2) d^2       Phi^ = Phi / (1 - beta2^t)
        theta <- (1 - lr weight_decay) theta - lr m^ / sqrt(max(v^ - Phi^, floor))

    The noise is independent of g and has mean 0, so that E v = (average of E g^2) + Phi: without the subtraction the
    divisor is nearly that of the noise, the same for every coordinate, and Adam is SGD with momentum. With the same
    noise in every step Phi^ is d^2, (sigma C / L)^2 for DP-SGD: the algorithm of the paper. Averaged like v, Phi is
    right as well where the noise follows a schedule, a learnt clip bound or the scales of the method adadp. All of it
    is computed from released gradients and public numbers, and costs nothing.

    ``floor`` (gamma' in the paper, which tunes it together with lr) bounds the divisor from below: where the gradient
    is lost in the noise, v^ - Phi^ is around 0 and as often below it, and the step is lr m^ / sqrt(floor). 1e-8 is the
    default of the authors' code. ``weight_decay`` is decoupled, as in AdamW: inside the gradient it would be divided by
    a divisor that is about the gradient, and Phi would no longer be all that is to be subtracted.

    ``set_noise`` comes before every ``step``.

    ================================================  ================================================================
    ``step`` without ``set_noise`` since the last     ``InputError``; nothing has moved
    noise of 0                                        Adam with the divisor sqrt(max(v^, floor)), not sqrt(v^) + eps
    v^ below Phi^                                     the divisor is sqrt(floor)
    a parameter without a gradient                    does not move, and its averages stay as they are
    half precision                                    the averages are float32: squares would vanish
    noise that is negative or not finite, of a shape  ``InputError``; the noise that was set stays
    that does not spread over the parameter, or not
    given for every parameter
    betas not in [0, 1), floor not above 0            ``InputError``
    ================================================  ================================================================
    """

    _noise: dict[nn.Parameter, Tensor | float] | None = None

    def __init__(
        self,
        params: Iterable[nn.Parameter],
        lr: float,
        *,
        betas: tuple[float, float] = (0.9, 0.999),
        floor: float = 1e-8,
        weight_decay: float = 0.0,
    ) -> None:
        options = {
            "lr": checks.non_negative("lr", lr),
            "betas": tuple(_share(f"beta{index}", beta) for index, beta in enumerate(betas, start=1)),
            "floor": checks.positive("floor", floor, why="It keeps the divisor away from 0."),
            "weight_decay": checks.non_negative("weight_decay", weight_decay),
        }
        super().__init__(params, options)

    def set_noise(self, deviations: float | Mapping[nn.Parameter, Tensor | float]) -> None:
        """The standard deviation of the noise in the gradient at hand.

        One number for all coordinates, or for every parameter a number or a tensor that spreads over it.
        """
        parameters = [parameter for group in self.param_groups for parameter in group["params"]]
        if not isinstance(deviations, Mapping):
            deviations = dict.fromkeys(parameters, deviations)
        missing = sum(parameter not in deviations for parameter in parameters)
        if missing:
            raise InputError(
                f"The noise of {missing} of {len(parameters)} parameters is not given.",
                why="Nothing would be subtracted from their squares.",
                fix="Give a number or a tensor for every parameter of the optimizer.",
            )
        self._noise = {parameter: _checked(deviations[parameter], parameter) for parameter in parameters}

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """Move every parameter that has a gradient; the noise must be set anew afterwards."""
        noise, self._noise = self._noise, None
        if noise is None:
            raise InputError(
                "The noise of this step is not set.",
                why="What it adds to the average of squares could not be subtracted.",
                fix="Call set_noise with the standard deviations of the gradient's noise before every step; "
                "PrivateGradients has them as gradient_deviations after a release.",
            )
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._move(parameter, parameter.grad, noise[parameter], group)
        return loss

    def _move(
        self, parameter: nn.Parameter, gradient: Tensor, deviation: Tensor | float, group: dict[str, Any]
    ) -> None:
        state = self.state[parameter]
        wide = torch.float64 if parameter.dtype is torch.float64 else torch.float32
        if not state:
            state["step"] = 0
            state["mean"], state["squares"] = (torch.zeros_like(parameter, dtype=wide) for _ in range(2))
            state["noise"] = parameter.new_zeros((), dtype=wide)
        state["step"] += 1
        gradient = gradient.to(wide)
        beta1, beta2 = group["betas"]
        mean: Tensor = state["mean"].mul_(beta1).add_(gradient, alpha=1 - beta1)
        squares: Tensor = state["squares"].mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
        variance = torch.as_tensor(deviation, dtype=wide, device=parameter.device).square()
        noise: Tensor = state["noise"].mul(beta2).add(variance, alpha=1 - beta2)  # as large as the deviations are
        state["noise"] = noise
        corrected = squares.sub(noise).div_(1 - beta2 ** state["step"]).clamp_(min=group["floor"])
        parameter.mul_(1 - group["lr"] * group["weight_decay"])
        parameter.addcdiv_(mean, corrected.sqrt_(), value=-group["lr"] / (1 - beta1 ** state["step"]))


def _share(name: str, value: object) -> float:
    number = checks.non_negative(name, value, why=_NOT_BELOW_ONE)
    if not number < 1:
        raise InputError(f"{name} must be below 1, got {number:g}.", why=_NOT_BELOW_ONE, fix="Pass (0.9, 0.999).")
    return number


def _checked(deviation: Tensor | float, parameter: nn.Parameter) -> Tensor | float:
    """``deviation``, which must be a standard deviation for every coordinate of ``parameter``."""
    if not isinstance(deviation, Tensor):
        return checks.non_negative("noise", deviation, why="It is a standard deviation.")
    pairs = zip(reversed(deviation.shape), reversed(parameter.shape), strict=False)
    if deviation.dim() > parameter.dim() or any(own not in (1, wanted) for own, wanted in pairs):
        raise InputError(
            f"Noise of the shape {tuple(deviation.shape)} is given for a parameter of the shape "
            f"{tuple(parameter.shape)}.",
            why="It must spread over the coordinates of the parameter.",
            fix="Pass a number, or a tensor that broadcasts to the parameter.",
        )
    if not bool((deviation.isfinite() & (deviation >= 0)).all()):
        raise InputError("The noise is negative or not finite.", why="It is a standard deviation.")
    return deviation
