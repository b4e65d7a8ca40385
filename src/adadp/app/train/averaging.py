"""The exponential average of the weights: what is judged, certified and saved in place of the last step's."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn


class WeightAverage:
    """a <- d a + (1 - d) theta after every step, over the parameters theta that are trained; a begins as they do.

    In step t (counted from 0) d is min(``decay``, (1 + t) / (10 + t)), so that the first weights, which are random,
    are soon forgotten; De et al. 2022 average the weights of DP-SGD this way. Every theta is made of released
    gradients, and a of them: post-processing, which costs no privacy. Training goes on from the plain weights.

    ==========================================  ======================================================================
    frozen parameters, buffers                  stay as the model has them
    a parameter under two names                 is averaged once
    half precision                              a is float32: with decay .999 the last bits of a step would be lost
    steps that are lost, paid and not done      are no steps here
    what looks at the average raises            the plain weights are back, bit for bit
    ==========================================  ======================================================================
    """

    def __init__(self, model: nn.Module, decay: float) -> None:
        self.decay, self.steps = decay, 0
        self._parameters = {name: each for name, each in model.named_parameters() if each.requires_grad}
        self._averages = {name: each.detach().to(_wide(each), copy=True) for name, each in self._parameters.items()}

    @property
    def note(self) -> str:
        """What a certificate says about it."""
        return (
            f"The weights are an exponential average (ema {self.decay:g}) of those after {self.steps} steps: computed "
            "from what was released, at no cost."
        )

    @torch.no_grad()
    def update(self) -> None:
        """A step of the optimizer is done."""
        decay = min(self.decay, (1 + self.steps) / (10 + self.steps))
        for name, average in self._averages.items():
            average.lerp_(self._parameters[name].to(average.dtype), 1 - decay)
        self.steps += 1

    @torch.no_grad()
    def put_in(self) -> None:
        """The model has the averages from now on."""
        for name, parameter in self._parameters.items():
            parameter.copy_(self._averages[name])

    @contextmanager
    def looked_at(self) -> Iterator[None]:
        """The model has the averages meanwhile, and then again what it had."""
        plain = {name: parameter.detach().clone() for name, parameter in self._parameters.items()}
        self.put_in()
        try:
            yield
        finally:
            with torch.no_grad():
                for name, parameter in self._parameters.items():
                    parameter.copy_(plain[name])

    def tensors(self) -> dict[str, Tensor]:
        """What a checkpoint keeps beside ``steps``: the averages themselves, so save them before the next step."""
        return dict(self._averages)

    def restore(self, tensors: Mapping[str, Tensor], steps: int) -> None:
        """Go on from what ``tensors`` and ``steps`` were."""
        self.steps = steps
        for name, average in self._averages.items():
            average.copy_(tensors[name])


def _wide(parameter: Tensor) -> torch.dtype:
    return torch.float64 if parameter.dtype is torch.float64 else torch.float32
