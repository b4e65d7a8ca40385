"""What a training method must offer: how a lot becomes a bounded vector, and what becomes of the released one.

A ``Method`` is public settings. A ``Query`` is the method at work in one run. ``step.py`` draws the lot, calls ``ask``
for each chunk of it, adds up, calls ``settle``, charges, adds noise in proportion to ``l2_bounds``, and gives what was
released to ``learn``. A method therefore cannot forget to charge or to add noise; what it can get wrong is a bound, and
for that there is the neighbour replay.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import ClassVar, final

from torch import Tensor

from adadp.clipping import ClipRule, ClipState
from adadp.gradients import Capture, GradientEngine

Tensors = dict[str, Tensor]
Parts = dict[str, Tensors]
"""Purpose of a release to the tensors it is made of. ``GRADIENT`` comes first and is always there."""

GRADIENT, COUNT = "noise", "count"
"""The names the noise of the two releases is drawn under."""


class Query(ABC):
    """One method in one run. What it keeps between steps is made of released values only, if the method is private.

    ``lot_size`` is the public number a sum is divided by, ``clip_factor`` what the bound of the clip rule is multiplied
    by: public numbers of the step at hand, set by ``step.py`` before ``ask``.
    """

    def __init__(self, lot_size: int) -> None:
        self.lot_size = lot_size
        self.clip_factor = 1.0

    @property
    @abstractmethod
    def clip_state(self) -> ClipState:
        """What the clip rule has learnt."""

    @abstractmethod
    def ask(self, capture: Capture) -> Parts:
        """What the records of a chunk contribute: sensitive. Contributions of the chunks of a lot are added."""

    @abstractmethod
    def settle(self, total: Parts | None) -> Parts:
        """The whole lot's contribution in the coordinates the noise is added in: sensitive. None: an empty lot."""

    @abstractmethod
    def l2_bounds(self) -> dict[str, float]:
        """What one record can move each part of ``settle`` by, in l2."""

    @abstractmethod
    def learn(self, released: Parts, deviation: float) -> Tensors:
        """The gradient for the optimizer. ``deviation`` is that of the noise in each coordinate of ``GRADIENT``."""

    @abstractmethod
    def tensors(self) -> Tensors:
        """What a checkpoint must keep beside ``clip_state``."""

    @abstractmethod
    def restore(self, clip_state: ClipState, tensors: Mapping[str, Tensor]) -> None:
        """Go on from what ``clip_state`` and ``tensors`` were."""


@dataclass(frozen=True)
class MethodDefaults:
    """What the paper of a method trains with where the user says nothing; None: what suits the data."""

    optimizer: str | None = None
    lr: float | None = None
    clip: float | None = None


@dataclass(frozen=True)
class Method(ABC):
    """The settings of a method. ``str`` writes what ``parse_method`` reads."""

    name: ClassVar[str]
    defaults: ClassVar[MethodDefaults] = MethodDefaults()

    @abstractmethod
    def query(self, engine: GradientEngine, rule: ClipRule, lot_size: int) -> Query:
        """The method at work on the parameters of ``engine``, clipping by ``rule``, on lots of about ``lot_size``."""

    @property
    def not_private(self) -> str | None:
        """Why no epsilon holds for it; None for a method with a guarantee."""
        return None

    @final
    def __str__(self) -> str:
        changed = [
            f"{field.name}={getattr(self, field.name)}"
            for field in fields(self)
            if getattr(self, field.name) != field.default
        ]
        return ":".join([self.name, *([",".join(changed)] if changed else [])])
