"""The scales of DPOPT made private: noise shaped from what was released."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from adadp.app.methods.scales import LearntScales, mean_over
from adadp.lab.methods.dpopt_problem import Shaping, flattened, shaped_like
from adadp.methods.base import Tensors


class ShapedScales(LearntScales):
    """Scales k_j that solve the problem of ``shaping``; the gradient is k times what was released.

    With G = k s the released sum in the coordinates of the parameters, V the second moments of ``LearntScales``, and
    d the deviation of the noise in s, after every step and for every column

        M   <- memory M + (1 - memory) G                        the average of the gradients, by coordinate
        u_j <- memory^2 u_j + (1 - memory)^2 d^2 k_j^2          the variance of its noise: k_j was not always the same
        W_j  = mean of M^2 over the column - u_j
        s_j  = sqrt(max(V_j, 0) / mean of V),   w_j = sqrt(max(W_j, 0) / mean of W),    within [lowest, highest]
        k_j ~ sqrt(s_j / w_j)                                   the solution, with n_j coordinates in column j

    Whenever the mean of V or of W is not positive (nothing but noise was seen), all scales are 1.
    """

    def __init__(self, settings: Shaping, shapes: Mapping[str, tuple[int, ...]], like: Mapping[str, Tensor]) -> None:
        super().__init__(settings, shapes, like)
        self._settings = settings
        self._averages = {name: torch.zeros_like(value) for name, value in like.items()}
        self._variances = {name: torch.zeros_like(value) for name, value in self._moments.items()}

    def factors(self) -> Tensors:
        return {name: value.reciprocal() for name, value in self.inverse.items()}

    def see(self, released: Mapping[str, Tensor], deviation: float) -> None:
        super().see(released, deviation)
        memory = self._settings.memory
        for name, factor in self.factors().items():
            self._averages[name].mul_(memory).add_(released[name] * factor, alpha=1 - memory)
            variance = (deviation * factor.double()).square()
            self._variances[name].mul_(memory**2).add_(variance, alpha=(1 - memory) ** 2)

    def next_scales(self) -> Tensors | None:
        names = [name for name, size in self._sizes.items() if size]
        squares = {name: self._square_average(name) for name in names}
        s, w = self.relative({name: self._moments[name] for name in names}), self.relative(squares)
        if s is None or w is None:
            return None
        counts = torch.cat([torch.full_like(s[name], self._sizes[name]).flatten() for name in names])
        found = self._settings.solve(flattened(s), flattened(w), counts)
        return {name: torch.ones_like(value) for name, value in self._moments.items()} | shaped_like(s, found)

    def _square_average(self, name: str) -> Tensor:
        """W of a parameter's columns."""
        average, variance = self._averages[name].double(), self._variances[name]
        return mean_over(average.square(), variance.shape) - variance

    def tensors(self) -> Tensors:
        kept = {f"average/{name}": value.clone() for name, value in self._averages.items()}
        kept |= {f"variance/{name}": value.clone() for name, value in self._variances.items()}
        return super().tensors() | kept

    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        super().restore(tensors)
        for name, average in self._averages.items():
            average.copy_(tensors[f"average/{name}"])
            self._variances[name].copy_(tensors[f"variance/{name}"])
