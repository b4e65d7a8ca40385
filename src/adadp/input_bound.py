"""The range every number of a record is brought into before a model sees it: public, and the same for all records.

A record with numbers as large as floating point has makes rounding errors as large as its gradient, which no clipping
bounds. Nobody may be told which records were brought inside: that would be a release. So it happens to all alike, in
silence, and the certificate says so.

=========================================  ==========================================================================
a value beyond ``low`` or ``high``,        becomes ``low`` or ``high``; in half precision the largest number there is,
infinities                                 if that is less
NaN                                        the middle of the range, 0 unless one is declared
whole numbers, booleans                    stay: they are indices, and a model refuses those it does not know
complex numbers                            real and imaginary part, each by itself
=========================================  ==========================================================================
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from adadp import checks


class InputBound(nn.Module):
    """Brings every floating-point number into [``low``, ``high``]; without them, the default range."""

    def __init__(self, low: float = -checks.LARGEST_INPUT, high: float = checks.LARGEST_INPUT) -> None:
        super().__init__()
        self.low, self.high = low, high

    @classmethod
    def of(cls, declared: object) -> InputBound:
        """The range that ``declared`` means, as ``checks.input_bound`` reads it; None is the default one."""
        return cls() if declared is None else cls(*checks.input_bound(declared))

    def forward(self, values: Any) -> Any:
        """``values`` within the range; what is no tensor of floating-point numbers, as it is."""
        number = isinstance(values, Tensor) and (values.is_floating_point() or values.is_complex())
        return self.bring_in(values.clone()) if number else values

    def bring_in(self, values: Any) -> Any:
        """The same in place, for a tensor that nobody else has."""
        if not isinstance(values, Tensor):
            return values
        if values.is_complex():
            self.bring_in(torch.view_as_real(values))
        elif values.is_floating_point():
            largest = torch.finfo(values.dtype).max
            low, high = (max(-largest, min(edge, largest)) for edge in (self.low, self.high))
            values.clamp_(low, high).nan_to_num_(nan=low / 2 + high / 2)
        return values

    @property
    def interval(self) -> str:
        """The range as people write it: 1e6, and not 1e+06."""
        return f"[{self.low:g}, {self.high:g}]".replace("e+0", "e")

    def describe(self) -> str:
        """What a certificate says about it."""
        middle = self.low / 2 + self.high / 2
        return (
            f"Every floating-point number of a record was brought into {self.interval} before the model saw it, and "
            f"NaN became {middle:g}."
        )
