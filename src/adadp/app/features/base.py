"""The contract of a feature stage: what happens to a record before the network, one record at a time.

A **fixed** stage is a function that is known before the data is: a wavelet transform, layers trained on public data. It
costs no privacy. A **released** stage is fitted on the private training records: what it learns from them is one noisy
release, charged before it is made, and everything it does afterwards is post-processing of that release.

Either way a stage maps every record by itself. A mean over the batch or over the data set would make the features of
one record depend on the others, and no clipping downstream could bound that.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import ClassVar

from torch import Tensor, nn

from adadp.errors import InputError

Shape = tuple[int, ...]


NO_OPPOSITES = math.sqrt(2.0)
"""How far replacing a record moves a sum, over the bound on one contribution, if no two contributions have a negative
inner product: |a - b|^2 = |a|^2 + |b|^2 - 2 a.b <= 2 bound^2."""


class Stage(ABC):
    """One stage. ``str(stage)`` is the text that makes it again, such as ``pca:dim=60,noise_multiplier=16``."""

    name: ClassVar[str]

    @abstractmethod
    def __str__(self) -> str: ...

    @abstractmethod
    def output_shape(self, shape: Shape) -> Shape:
        """The shape of one record after the stage; ``InputError`` if records of ``shape`` cannot be read."""


class FixedStage(Stage):
    """A stage that is known before the data is."""

    version: ClassVar[int] = 1
    """Raised when the same input gives other features, so that features cached by an older version are not used."""

    @property
    def public(self) -> tuple[str, ...]:
        """Public data or weights the stage was made from, each in a sentence for the certificate."""
        return ()

    @abstractmethod
    def module(self, shape: Shape) -> nn.Module:
        """What computes it, from (records, *shape) to (records, *output_shape): frozen, in evaluation mode."""


class ReleasedStage(Stage):
    """A stage whose tensors are one Gaussian release of the training records."""

    budget_share: ClassVar[float]
    """Without a noise of its own it gets the one at which it alone would cost this share of epsilon. Because privacy
    losses add up like variances, .3 then takes about a tenth of the budget, and .1 about a hundredth."""
    replaced: ClassVar[float] = 2.0
    """How far replacing one record moves ``query``, over ``l2_bound``; at most 2, and ``NO_OPPOSITES`` where that is
    proved in the module of the stage."""
    noise_multiplier: float | None

    @abstractmethod
    def with_noise(self, noise_multiplier: float) -> ReleasedStage:
        """The same stage with this noise multiplier."""

    @property
    def known_noise_multiplier(self) -> float:
        """Standard deviation of the noise over ``l2_bound``."""
        if self.noise_multiplier is None:
            raise InputError(
                f"The noise of {self.name} is not given.",
                why="Without a target epsilon nothing says how much of it is affordable.",
                fix=f"Give it noise_multiplier, as in {self.name}:noise_multiplier=16, or pass `epsilon`.",
            )
        return self.noise_multiplier

    @property
    @abstractmethod
    def l2_bound(self) -> float:
        """What one record can move ``query`` by, in l2 norm, rounding included."""

    @abstractmethod
    def query(self, records: Tensor) -> dict[str, Tensor]:
        """The sum over the records that is to be released, in double precision. Sensitive."""

    @abstractmethod
    def learned(self, released: Mapping[str, Tensor], shape: Shape) -> dict[str, Tensor]:
        """The tensors of the stage, from what was released. Public; saved with the run."""

    @abstractmethod
    def module(self, learned: Mapping[str, Tensor]) -> nn.Module:
        """What computes the stage with the tensors it has learned."""
