"""What a training method must offer: how a batch becomes a bounded vector, and what becomes of the released one.

A ``Method`` is public settings. A ``Query`` is the method at work in one run. ``step.py`` draws the batch, asks for
the ``contribution`` of each chunk of it, adds up, calls ``finalize``, charges, adds noise in proportion to
``l2_bounds``, and gives what was released to ``to_gradient``. A method therefore cannot forget to charge or to add
noise; what it can get wrong is a bound, and for that there is the neighbour replay.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import ClassVar, Protocol, final

from torch import Tensor

from adadp.clipping import ClipRule, ClipState
from adadp.gradients import Capture, GradientEngine
from adadp.schedules import Schedule

Tensors = dict[str, Tensor]
Deviations = Mapping[str, Tensor | float]
"""Parameter to the standard deviation of the noise in its coordinates: one number, or a tensor that spreads over it."""
Parts = dict[str, Tensors]
"""Purpose of a release to the tensors it is made of. ``GRADIENT`` comes first and is always there."""

GRADIENT, COUNT = "noise", "count"
"""The names the noise of the two releases is drawn under."""

Contribution = Callable[[Tensor], Tensor]
"""What the records of a chunk contribute to the score of each length, from their losses, lengths x records."""


class Choose(Protocol):
    """One of several lengths along a public direction, by the losses of the batch there: the exponential mechanism."""

    def __call__(
        self, direction: Tensors, lengths: Sequence[float], scores: Contribution, *, bound: float, steepness: float
    ) -> int:
        """The number of a length; the lower its score, the likelier.

        Every record contributes between 0 and ``bound`` to each score, and contributions of chunks are added.
        ``steepness`` is what rounding of losses does to a score, in units of what is allowed for in a gradient.
        """
        ...


class Query(ABC):
    """One method in one run. What it keeps between steps is made of released values only, if the method is private.

    ``batch_size`` is the public number a sum is divided by, ``clip_factor`` what the bound of the clip rule is
    multiplied by: public numbers of the step at hand, set by ``step.py`` before ``contribution``.
    """

    additive: ClassVar[bool] = True
    """Whether ``finalize`` of two sums together is what it is of each, added: several processes finalize the sum of
    their own records. Where it is not, all of them get the sum of all."""

    by_coordinate: bool = False
    """Whether ``finalize`` and ``to_gradient`` take tensors that are split over processes. Each class speaks for itself
    alone."""

    def __init_subclass__(cls) -> None:
        cls.by_coordinate = cls.__dict__.get("by_coordinate", False)

    def __init__(self, batch_size: int) -> None:
        self.batch_size = batch_size
        self.clip_factor = 1.0

    @property
    @abstractmethod
    def clip_state(self) -> ClipState:
        """What the clip rule has learnt."""

    @abstractmethod
    def contribution(self, capture: Capture) -> Parts:
        """What the records of a chunk contribute: sensitive. Contributions of the chunks of a batch are added."""

    @abstractmethod
    def finalize(self, total: Parts | None) -> Parts:
        """The whole batch's contribution in the coordinates the noise is added in: sensitive. None: an empty batch.

        ``total`` is float64 where chunks were added, and may be overwritten.
        """

    @abstractmethod
    def l2_bounds(self) -> dict[str, float]:
        """What one record can move each part of ``finalize`` by, in l2."""

    def steepness(self, purpose: str) -> float:  # noqa: ARG002
        """How many times a rounding of the gradients is in a part, both taken relative to their bounds."""
        return 1.0

    @abstractmethod
    def to_gradient(self, released: Parts, deviation: float) -> Tensors:
        """The gradient for the optimizer. ``deviation`` is that of the noise in each coordinate of ``GRADIENT``.

        ``released`` is float32 there, and may be overwritten.
        """

    def search(self, gradients: Tensors, choose: Choose) -> Tensors:  # noqa: ARG002
        """The gradient for the optimizer, after a private choice of how far to go along it, if the method makes one.

        ``choose`` may be called once, by a method whose ``Method.choice`` is not None.
        """
        return gradients

    @property
    def noise_factor(self) -> float | None:
        """The noise multiplier of the next step over that of the first; None: as planned."""
        return None

    def gradient_deviations(self, deviation: float) -> Deviations | None:  # noqa: ARG002
        """The standard deviation of the noise in every coordinate of what ``to_gradient`` is about to return.

        Public numbers, for the step at hand only: ``to_gradient`` may change what they follow from. If noise of earlier
        steps is in the gradient, so it is in them. None: the method cannot say, at no step.
        """
        return None

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
    clip_norm: float | None = None


@dataclass(frozen=True)
class Method(ABC):
    """The settings of a method. ``str`` writes what ``parse_method`` reads."""

    name: ClassVar[str]
    defaults: ClassVar[MethodDefaults] = MethodDefaults()
    paper: ClassVar[str | None] = None
    """Who published it, by author and year: cited on the certificate where no epsilon holds for the method."""

    def note(self, steps: int) -> str | None:  # noqa: ARG002
        """What is worth knowing about a run of so many steps, if anything."""
        return None

    @abstractmethod
    def query(self, engine: GradientEngine, rule: ClipRule, batch_size: int) -> Query:
        """The method at work on the parameters of ``engine``, clipping by ``rule``, on batches of ``batch_size``."""

    def clip_shape(self, epochs: int) -> Schedule | None:  # noqa: ARG002
        """What the clip bound is multiplied by over a run of so many epochs, if it has no schedule; None: it stays."""
        return None

    @property
    def keeps_noise(self) -> bool:
        """Whether the noise keeps its deviation while the clip bound changes, unless the run says otherwise."""
        return False

    @property
    def choice(self) -> float | None:
        """For a method that chooses from every batch, and its noise by that: a choice's zCDP over the first gradient's.

        None: the method makes no choice.
        """
        return None

    @property
    def first_noise(self) -> float:
        """For a method that chooses its noise: the first over that which would last for the whole run."""
        return 1.0

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
