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
from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar, TypeVar

from torch import Tensor, nn

from adadp import checks
from adadp.errors import InputError

Released = TypeVar("Released", bound="ReleasedStage")

Shape = tuple[int, ...]


NO_OPPOSITES = math.sqrt(2.0)
"""How far replacing a record moves a sum, over the bound on one contribution, if no two contributions have a negative
inner product: |a - b|^2 = |a|^2 + |b|^2 - 2 a.b <= 2 bound^2."""


@dataclass(frozen=True)
class Stage(ABC):
    """One stage, a frozen dataclass. ``str(stage)`` is the text that makes it again: its name, and the fields that
    differ from their defaults, as in ``pca:dim=60,noise_multiplier=16``.
    """

    name: ClassVar[str]
    """What features call the stage; ``parse_features`` sets it to the name or the place it has found the stage by."""
    always_written: ClassVar[tuple[str, ...]] = ()
    """Fields that the text has at their defaults too."""
    unnamed: ClassVar[str | None] = None
    """The field whose value the text has first and without its name, as in ``hf:NAME``."""

    def __str__(self) -> str:
        values = {each.name: getattr(self, each.name) for each in fields(self)}
        defaults = {each.name: each.default for each in fields(self) if each.name not in self.always_written}
        first = [] if self.unnamed is None else [str(values.pop(self.unnamed))]
        given = [f"{name}={_text(value)}" for name, value in values.items() if (name, value) not in defaults.items()]
        given = first + given
        return f"{self.name}:{','.join(given)}" if given else self.name

    def _set(self, **values: object) -> None:
        """Put what the checks of ``__post_init__`` made of the fields in their places."""
        for name, value in values.items():
            object.__setattr__(self, name, value)

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
    """None: not chosen yet. A run chooses it from its target epsilon."""

    def __post_init__(self) -> None:
        if self.noise_multiplier is not None:
            why = f"Without noise {self.name} would release what it learns from the records as it is."
            self._set(noise_multiplier=checks.positive("noise_multiplier", self.noise_multiplier, why=why))

    def with_noise(self: Released, noise_multiplier: float) -> Released:
        """The same stage with this noise multiplier."""
        changed: dict[str, Any] = {"noise_multiplier": noise_multiplier}  # a field of the subclasses
        return replace(self, **changed)

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
    def apply(self, records: Tensor, learned: Mapping[str, Tensor]) -> Tensor:
        """The features of ``records``, each of that record alone, with the tensors the stage has learned."""

    def module(self, learned: Mapping[str, Tensor]) -> nn.Module:
        """What computes the stage with the tensors it has learned."""
        return _Applied(self, learned)


class _Applied(nn.Module):
    """A released stage; what it has learned are buffers."""

    def __init__(self, stage: ReleasedStage, learned: Mapping[str, Tensor]) -> None:
        super().__init__()
        self.stage = stage
        for name, value in learned.items():
            self.register_buffer(name, value)

    def forward(self, records: Tensor) -> Tensor:
        return self.stage.apply(records, dict(self.named_buffers()))


def _text(value: Any) -> str:
    """A field as ``parse_features`` reads it."""
    if isinstance(value, tuple):
        return ";".join(map(str, value))
    return str(int(value) if isinstance(value, bool) else value)
