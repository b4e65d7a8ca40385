"""Targets that are numbers: their declared range, what the model learns of them, and what its outputs say.

declared                        the model learns                     its output says
==============================  ===================================  =============================================
a number from low to high       the number, clipped to the range     the number it stands for, clipped to the range
(from the command line)         and mapped to [-1, 1]
a count from 0 to high          the count, clipped to the range      its exponential, clipped to the range
a number or a count (``fit``)   it as it is                          it, or its exponential; clipped to the range
                                                                     where one is declared
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from adadp.app.losses import LARGEST_LOG
from adadp.errors import InputError


@dataclass(frozen=True)
class Target:
    """One target that is a number, or a ``count``. ``scaled``: the model learns it mapped to [-1, 1]."""

    name: str
    low: float | None = None
    high: float | None = None
    count: bool = False
    scaled: bool = False

    def __post_init__(self) -> None:
        if (self.low is None) != (self.high is None):
            raise InputError(f"The range of {self.name} has one end.", fix="Declare low and high.")
        if self.low is not None and self.high is not None and not self.low < self.high:
            raise InputError(f"The range of {self.name} has its low not below its high.", fix="Declare low < high.")
        if self.count and self.low not in (None, 0):
            raise InputError(f"The count {self.name} does not begin with 0.", fix="Declare low = 0, or kind = number.")

    def learned(self, values: Tensor) -> Tensor:
        """What a model is trained on in place of ``values``."""
        values = self.within(values.double())
        if not self.scaled or self.count or self.low is None or self.high is None:
            return values.float()
        centre, half = self.low / 2 + self.high / 2, self.high / 2 - self.low / 2
        return ((values - centre) / half).clamp(-1, 1).float()

    def meant(self, outputs: Tensor) -> Tensor:
        """The values that outputs of the model stand for."""
        outputs = outputs.detach().cpu().double()
        if self.count:
            return self.within(outputs.clamp(max=LARGEST_LOG).exp())
        if self.scaled and self.low is not None and self.high is not None:
            centre, half = self.low / 2 + self.high / 2, self.high / 2 - self.low / 2
            outputs = centre + half * outputs
        return self.within(outputs)

    def within(self, values: Tensor) -> Tensor:
        """``values`` brought into the range; NaN becomes the middle of it."""
        if self.low is None or self.high is None:
            return values
        return torch.nan_to_num(values, nan=self.low / 2 + self.high / 2).clamp(self.low, self.high)

    def true(self, labels: Tensor) -> Tensor:
        """The values that labels of the training stand for, as ``meant`` does for outputs."""
        labels = labels.cpu().double()
        return self.within(labels) if self.count or not self.scaled else self.meant(labels)

    def as_json(self) -> dict[str, Any]:
        """The target as JSON."""
        return {"name": self.name, "low": self.low, "high": self.high, "count": self.count, "scaled": self.scaled}

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Target:
        """What ``as_json`` wrote."""
        return cls(values["name"], values["low"], values["high"], bool(values["count"]), bool(values["scaled"]))

    def describe(self) -> str:
        """The declaration in words, for the certificate."""
        what = "a count" if self.count else "a number"
        return f"{what}, clipped to [{self.low:g}, {self.high:g}]" if self.low is not None else what
