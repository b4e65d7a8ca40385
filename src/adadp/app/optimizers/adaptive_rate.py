"""The adaptive rate of Xu et al. 2020 (ADADP, ADAL) as an optimizer. It sees released gradients only."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
from torch import Tensor, nn

from adadp import checks
from adadp.errors import InputError


class AdaptiveRate(torch.optim.Optimizer):
    """Lines 22, 25 and 26 of Algorithm 1, for a released gradient g~ that is already divided by the batch size:

        E <- (1 - gamma) E + gamma g~^2          theta <- theta - lr g~ / sqrt(E + smoothing)

    It is RMSprop, but for where the smoothing term stands: ``torch.optim.RMSprop`` adds it to the root. E starts at 0
    and is not corrected for that, so that the first step has length lr / sqrt(gamma) in every coordinate. The paper
    prints gamma = 0.1 and no smoothing term. ``weight_decay`` adds weight_decay * theta to g~, as RMSprop does.

    ============================================  ====================================================================
    a coordinate whose g~ was always 0            does not move
    a parameter without a gradient                does not move, and its E stays as it is
    half precision                                E is float32: squares would vanish, and the smoothing term with them
    gamma not in (0, 1], smoothing not above 0    ``InputError``
    ============================================  ====================================================================
    """

    def __init__(
        self,
        params: Iterable[nn.Parameter],
        lr: float,
        *,
        gamma: float = 0.1,
        smoothing: float = 1e-8,
        weight_decay: float = 0.0,
    ) -> None:
        share = checks.positive("gamma", gamma, why="Nothing would be learnt about the gradient.")
        if share > 1:
            raise InputError(
                f"gamma must be at most 1, got {share:g}.", why="It is a share of an average.", fix="Pass 0.1."
            )
        options = {
            "lr": checks.non_negative("lr", lr),
            "gamma": share,
            "smoothing": checks.positive("smoothing", smoothing, why="It keeps the divisor away from 0."),
            "weight_decay": checks.non_negative("weight_decay", weight_decay),
        }
        super().__init__(params, options)

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """Move every parameter that has a gradient."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._move(parameter, parameter.grad, group)
        return loss

    def _move(self, parameter: nn.Parameter, gradient: Tensor, group: dict[str, float]) -> None:
        state = self.state[parameter]
        wide = torch.float64 if parameter.dtype is torch.float64 else torch.float32
        if not state:
            state["squares"] = torch.zeros_like(parameter, dtype=wide)
        squares: Tensor = state["squares"]
        gradient = gradient.to(wide)
        if group["weight_decay"]:
            gradient = gradient.add(parameter, alpha=group["weight_decay"])
        squares.mul_(1 - group["gamma"]).addcmul_(gradient, gradient, value=group["gamma"])
        parameter.addcdiv_(gradient, squares.add(group["smoothing"]).sqrt_(), value=-group["lr"])
