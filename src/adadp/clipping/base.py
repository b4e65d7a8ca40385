"""The contract of every clip rule, and the few functions of norms that rules share.

What a rule promises, for every record b with square norms n_b1^2, ..., n_bG^2 (float32 or float64):

    case                                        weights of the record
    ordinary norms                              sqrt(sum_g (w_bg n_bg)^2) < l2_bound, strictly, in float32 too
    a norm of 0                                 finite; the contribution is 0
    a norm whose square underflows (< 1.1e-19)  may be taken as 0; it contributes less than 2e-7 of the bound
    a norm between 1e12 and 1e15                less and less: ``fading`` falls smoothly from 1 to 0
    a norm from 1e15 on, inf                    the whole record weighs 0
    NaN, or a negative square norm              the whole record weighs 0
    no records (B = 0)                          an empty tensor of the same shape
    other records of the batch                    no influence
    another number of groups than the rule's    InputError
    half precision, integers                    InputError: their rounding is larger than the slack

Bounds are shrunk by ``SLACK`` before they meet a norm. Rounding inside a rule takes less than 1e-6 of it; the rest
covers a relative error of the given norms of up to 9e-6, that is 18e-6 of their squares. Norms that are further off
break the guarantee and no rule can notice.

A weight of 0 silences a non-finite gradient only if the sum *selects*: 0 times NaN is NaN.

**Why weights fade.** The last bits of a norm follow from the place of the record in its batch. Where a square
overflows, one of them would decide whether the record contributes C or nothing, and one record more, which moves
others, could move the sum by many times C. So the weight is 0 long before that, and on the way there a relative error r
of a norm moves the contribution by at most C r / 4 more than the C r by which it moves every clipped one (``fading``).
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import ClassVar, TypeAlias, final

import torch
from torch import Tensor

from adadp import checks
from adadp.errors import InputError

ClipState: TypeAlias = dict[str, float]
"""Public values a rule has learnt from releases; goes to JSON and back as it is. Empty for a fixed rule."""

SLACK = 1e-5
"""Relative distance kept from every bound, so that float32 rounding never passes it."""

SMALLEST, LARGEST = 1e-12, 1e12
"""Range of a bound. Within it neither a norm near the bound nor its square leaves the range of a float32."""

FADING = (1e12, 1e15)
"""The norms between which the weight of a record falls to 0. They begin where bounds end, so that every norm that is
not clipped counts in full; and they end where a square is 1e30, a hundred-millionth of the largest float32."""


@dataclass(frozen=True)
class ClipRule(ABC):
    """How much of each record's gradient enters the sum. Rules are frozen dataclasses; what changes is the state."""

    name: ClassVar[str]
    """What the rule is called in text."""

    example: ClassVar[str]
    """A complete text form, for errors and help."""

    options: ClassVar[dict[str, str]] = {}
    """Option in the text form -> field. The other field, if there is one, is written first and without a name."""

    @abstractmethod
    def groups(self, names: Sequence[str]) -> tuple[tuple[str, ...], ...]:
        """The parameters called ``names`` in groups, each clipped by its own norm: the columns of the square norms."""

    @abstractmethod
    def l2_bound(self, groups_count: int, state: ClipState) -> float:
        """The largest l2 norm, over all groups together, of what one record contributes in this state."""

    @abstractmethod
    def weights(self, square_norms: Tensor, state: ClipState) -> Tensor:
        """The weight of each record's gradient in each group, from its square norms; both are records x groups."""

    @final
    def weights_at(self, square_norms: Tensor, factor: float, state: ClipState) -> Tensor:
        """The weights where every bound of the rule is multiplied by ``factor``, a public number.

        A rule that bounds n / f by C bounds n by f C, so the factor goes into the norms and comes back in the bound.
        Where it shortens the norms, they fade out as they are: their squares overflow all the same.
        """
        weights = self.weights(square_norms / factor**2, state)
        return weights * fading(norms_of(square_norms)) if factor > 1 and self.needs_norms else weights

    @abstractmethod
    def describe(self) -> str:
        """The rule in a sentence for people."""

    @property
    def needs_norms(self) -> bool:
        """Whether the weights depend on the norms; where not, nobody has to compute them."""
        return True

    def initial_state(self) -> ClipState:
        """The state before anything was released."""
        return {}

    def update(self, state: ClipState, released: float) -> ClipState:  # noqa: ARG002
        """The state after a release. A fixed rule learns nothing from it."""
        return state

    def step_factor(self, state: ClipState) -> float:  # noqa: ARG002
        """What a gradient released in this state is multiplied by for the optimizer: a public number."""
        return 1.0

    def extra_multipliers(self) -> tuple[float, ...]:
        """Noise multipliers of the rule's own releases on every batch, beside the gradient. They share its batch."""
        return ()

    @final
    def __str__(self) -> str:
        plain = [field.name for field in fields(self) if field.name not in self.options.values()]
        parts = [_text(getattr(self, field)) for field in plain]
        parts += [f"{option}={_text(getattr(self, field))}" for option, field in self.options.items()]
        return f"{self.name}:" + ",".join(parts)


class AdaptiveClipRule(ClipRule):
    """A rule whose bound follows the data, through a noisy count that is released and charged on every batch.

    The noise multipliers of gradient and count are fixed in advance and only the *bound* moves with released values,
    so the releases compose as if everything had been fixed (noise std = multiplier * current bound).
    """

    count_bound: ClassVar[float]
    """What one record contributes to the count, at most."""

    count_steepness: ClassVar[float]
    """How much of ``count_bound`` a relative error of a norm can move what its record contributes, at most."""

    count_noise_multiplier: float
    """Standard deviation of the noise on the count, divided by ``count_bound``."""

    @abstractmethod
    def count_query(self, square_norms: Tensor, state: ClipState) -> Tensor:
        """The sum to release, a scalar tensor. Sensitive. Over a batch in chunks the chunks' sums add up."""

    @abstractmethod
    def update(self, state: ClipState, released: float) -> ClipState:
        """The state after ``released``: the count query plus noise, divided by the *expected* batch size."""

    @final
    def extra_multipliers(self) -> tuple[float, ...]:
        return (self.count_noise_multiplier,)


def norms_of(square_norms: Tensor, groups_count: int | None = None) -> Tensor:
    """The norms: NaN where a square is negative, inf where it is. Only shape and dtype are looked at."""
    if square_norms.dtype not in (torch.float32, torch.float64):
        raise InputError(
            f"Square norms must be float32 or float64, got {square_norms.dtype}.",
            why="Other types round by more than the slack that keeps a record within its bound.",
            fix="Compute the norms in float32, whatever the type of the model.",
        )
    columns = square_norms.shape[1] if square_norms.ndim == 2 else 0
    if columns == 0 or columns != (groups_count or columns):
        raise InputError(
            f"Square norms must be records x {groups_count or 'groups'}, got the shape {tuple(square_norms.shape)}.",
            why="The bound on a record holds for the groups the rule asked for.",
            fix="Give one column for each group of rule.groups(names).",
        )
    return square_norms.sqrt()


def fading(norms: Tensor) -> Tensor:
    """The factor that takes records with huge norms out smoothly, as a column: 1 up to 1e12, exactly 0 from 1e15 on.

    With u = log(n / 1e12) / log(1e15 / 1e12), for the longest of a record's norms n, it is 1 - u^2 (3 - 2u), whose
    derivative by log n is at most 1.5 / log(1e3) < 0.22. A record with a norm that is infinite or NaN has 0.
    """
    low, high = FADING
    longest = norms.amax(dim=1, keepdim=True)  # NaN wins
    u = (longest / low).clamp(min=1.0).log_().div_(math.log(high / low))
    falling = 1 - u.square() * (3 - 2 * u)
    return falling.where(u < 1, 0.0)  # NaN is not below 1


def clipped_weights(norms: Tensor, limits: Tensor | float) -> Tensor:
    """min(1, C / n) with C shrunk by the slack, times ``fading``. C / 0 is inf, its minimum 1."""
    weights = (limits * (1 - SLACK) / norms).clamp(max=1.0)
    fade = fading(norms)
    return (weights * fade).where(fade > 0, 0.0)


def bound_in_range(name: str, value: object) -> float:
    """A clip bound: positive, finite, and far enough from the ends of float32 for its square."""
    number = checks.positive(name, value, why="A record may contribute at most this l2 norm.")
    if not SMALLEST <= number <= LARGEST:
        raise InputError(
            f"{name} must lie between {SMALLEST:g} and {LARGEST:g}, got {number:g}.",
            why="Beyond, squares of norms leave the range of a float32 and records could pass the bound.",
            fix=f"Pass a {name} within the range, or scale the loss.",
        )
    return number


def unique_names(names: Sequence[str]) -> tuple[str, ...]:
    """``names``, which must be some, and each once: a parameter in two groups would contribute twice."""
    found = tuple(names)
    if not found or len(set(found)) != len(found):
        raise InputError(
            "There is no parameter to clip." if not found else "A parameter is named twice.",
            why="Groups are a partition of the trainable parameters.",
            fix="Pass the names of the trainable parameters, each once.",
        )
    return found


def single_group(groups_count: int) -> None:
    """Refuse any number of groups but one, for rules that look at the norm of the whole gradient."""
    if checks.count("groups_count", groups_count) != 1:
        raise InputError(
            f"This rule clips the whole gradient, got {groups_count} groups.",
            why="Its bound would not hold over several groups.",
            fix="Sum the square norms over all parameters, as rule.groups(names) says.",
        )


def _text(value: float | tuple[float, ...]) -> str:
    """The shortest usual spelling that reads back as exactly ``value``."""
    if isinstance(value, tuple):
        return ",".join(_text(number) for number in value)
    short = f"{value:g}"
    return short if float(short) == value else repr(value)
