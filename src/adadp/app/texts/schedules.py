"""Schedules as text, ``exp:s0=10,k=0.01``: ``parse_schedule`` reads what ``str`` writes, exactly.

A text may leave one number open, which something else settles: ``s0`` a plain setting beside it (``--lr 0.1`` with
``exp:k=0.05``) or a privacy budget, ``k`` a privacy budget. ``OpenSchedule`` is such a text.
"""

from __future__ import annotations

from dataclasses import MISSING, dataclass, fields
from functools import cache
from typing import Any

from adadp import checks
from adadp.app.schedules import ExponentialDecay, PolynomialDecay, StepDecay, TimeDecay, ValidationDecay
from adadp.errors import InputError
from adadp.schedules import Piecewise, Schedule, Uniform, number_text

SHAPES: dict[str, type[Schedule]] = {
    kind.shape: kind for kind in (Uniform, TimeDecay, ExponentialDecay, StepDecay, PolynomialDecay, Piecewise)
}
OPEN = ("s0", "k")
"""Parameters a text may leave open, one of them at a time."""
TICK = "tick"


@dataclass(frozen=True)
class OpenSchedule:
    """A schedule of which at most one number is not known yet."""

    kind: type[Schedule]
    values: tuple[tuple[str, float], ...]
    unknown: str | None
    """``s0``, ``k``, or None: everything is known."""

    @property
    def relative(self) -> bool:
        """Whether its numbers may be taken as relative to one that a budget settles: no ``s0``, or pieces."""
        return self.unknown == "s0" or self.kind is Piecewise

    def closed(self, value: float) -> Schedule:
        """The schedule with the open number filled in.

        Where ``s0`` is open the others in its unit (``s_end``) are relative to it, and so are the values of pieces.
        """
        if self.relative:
            return self._made(s0=1.0).scaled(value)
        return self._made(**({} if self.unknown is None else {self.unknown: value}))

    def known(self) -> Schedule:
        """The schedule, if nothing is open."""
        if self.unknown is not None:
            raise InputError(
                f"The schedule {self} leaves {self.unknown} open.", fix=f"Give {self.unknown} in the schedule."
            )
        return self._made()

    def __str__(self) -> str:
        if self.unknown is None:
            return str(self._made())
        return f"{self.kind.shape}:" + ",".join(f"{name}={number_text(value)}" for name, value in self.values)

    def _made(self, **more: float) -> Schedule:
        given: dict[str, Any] = dict(self.values)
        if self.kind is Piecewise:
            tick = given.pop(TICK, None)
            return Piecewise(tuple((int(epoch), value) for epoch, value in given.items()), tick=tick)
        return self.kind(**(given if self.unknown is None else given | more))


def parse_schedule(text: str) -> Schedule:
    """The schedule written as ``shape:name=number,name=number``, for example ``step:s0=10,k=0.6,period=10``."""
    name, values = _split(text)
    kind = _kind(name, SHAPES)
    if kind is not Piecewise:
        _refuse_missing(kind, text, values, may_lack=())
    return _opened(kind, values).known()


def parse_open(text: str) -> OpenSchedule:
    """The schedule written in ``text``, of which ``s0`` or ``k`` may be left out."""
    if not isinstance(text, str):
        _split(text)  # refuses it
    return _open_schedule(text)


@cache  # a configuration is checked, resolved and planned from one reading
def _open_schedule(text: str) -> OpenSchedule:
    name, values = _split(text)
    kind = _kind(name, SHAPES)
    if kind is not Piecewise:
        _refuse_missing(kind, text, values, may_lack=OPEN)
    found = _opened(kind, values)
    found.closed(0.5)  # wrong numbers are refused now; any value below 1 is a possible s0 and k
    return found


def parse_noise(text: str) -> OpenSchedule | ValidationDecay:
    """A schedule of the noise: one of the shapes, or ``validation``, which follows looks at validation records."""
    name, values = _split(text)
    if name != ValidationDecay.shape:
        _kind(name, {**SHAPES, ValidationDecay.shape: ValidationDecay})
        return parse_open(text)
    _refuse_missing(ValidationDecay, text, values, may_lack=())
    return ValidationDecay(**values)  # type: ignore[arg-type]  # the names were checked, the values are


def _opened(kind: type[Schedule], values: dict[str, float]) -> OpenSchedule:
    if kind is Piecewise:
        return OpenSchedule(kind, tuple(values.items()), None)
    lacking = [name for name in OPEN if name in _parameters(kind) and name not in values]
    # In one order and without what goes without saying, so that equal texts have one spelling.
    given = tuple(
        (each.name, values[each.name]) for each in fields(kind) if values.get(each.name, each.default) != each.default
    )
    return OpenSchedule(kind, given, lacking[0] if lacking else None)


def _split(text: object) -> tuple[str, dict[str, float]]:
    """The name of the shape and the numbers by name."""
    if not isinstance(text, str):
        raise InputError(
            f"A schedule must be text, got {text!r} ({type(text).__name__}).", fix="Write it like exp:s0=10,k=0.01."
        )
    name, _, rest = (part.strip() for part in text.partition(":"))
    values: dict[str, float] = {}
    for item in rest.split(",") if rest else ():
        key, equals, number = (part.strip() for part in item.partition("="))
        if not equals:
            raise InputError(f"{item!r} in the schedule {text!r} is not name=number.", fix=_usage_of(name))
        if key in values:
            raise InputError(
                f"The schedule {text!r} gives {key} twice.",
                why="Only one of the two could be used.",
                fix=_usage_of(name),
            )
        values[key] = _number(key, number)
    if name == Piecewise.shape:
        for key in values:
            if not key.isdecimal() and key != TICK:
                raise InputError(f"{key!r} in the schedule {text!r} is not an epoch.", fix=_usage_of(name))
    return name, values


def _kind(name: str, known: dict[str, Any]) -> Any:
    kind = known.get(name)
    if kind is None:
        raise InputError(
            f"Unknown schedule shape {name!r}.",
            fix=f"{checks.one_of(name, known)} A schedule looks like exp:s0=10,k=0.01.",
        )
    return kind


def _parameters(kind: type[Schedule] | type[ValidationDecay]) -> dict[str, bool]:
    """Name of a parameter -> whether it must be given."""
    ordered = sorted(fields(kind), key=lambda each: each.kw_only is True)  # the window last
    return {each.name: each.default is MISSING for each in ordered}


def _refuse_missing(
    kind: type[Schedule] | type[ValidationDecay], text: str, values: dict[str, float], *, may_lack: tuple[str, ...]
) -> None:
    parameters = _parameters(kind)
    for key in values:
        if key not in parameters:
            raise InputError(f"The {kind.shape} schedule has no parameter {key!r}.", fix=_usage(kind))
    missing = [key for key, required in parameters.items() if required and key not in values]
    allowed = [key for key in missing if key in may_lack][:1]
    if missing != allowed:
        raise InputError(f"The {kind.shape} schedule {text!r} lacks {', '.join(missing)}.", fix=_usage(kind))


def _usage_of(name: str) -> str:
    known: dict[str, Any] = {**SHAPES, ValidationDecay.shape: ValidationDecay}
    return _usage(known[name]) if name in known else "A schedule looks like exp:s0=10,k=0.01."


def _usage(kind: type[Schedule] | type[ValidationDecay]) -> str:
    """Which parameters ``kind`` takes, as the last sentence of an error."""
    if kind is Piecewise:
        return "It takes epoch=value, the first epoch being 0, like piecewise:0=10,20=5, and tick, a number of steps."
    names = [name if required else f"[{name}]" for name, required in _parameters(kind).items()]
    return f"It takes {', '.join(names)} (those in brackets may be left out), each once, as name=number."


def _number(name: str, text: str) -> float:
    """``text`` as an int where it is one, so that a long period keeps every digit, and as a float otherwise."""
    for read in (int, float):
        try:
            return read(text)
        except ValueError:
            continue
    raise InputError(f"{name} must be a number, got {text!r}.", fix=f"Write {name} like 10 or 0.01.")
