"""Events as text: JSON for programs (exact, versioned, refused where it is not understood) and one line for people."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from enum import Enum
from importlib.metadata import entry_points
from typing import Any

from adadp.errors import EventError
from adadp.events.kinds import (
    AdaptivelyChosen,
    Composed,
    Disjoint,
    Event,
    FixedSizeSampled,
    GaussianRelease,
    Neighbours,
    OtherEvent,
    PoissonSampled,
    Repeated,
    ReshuffledEpoch,
    Selection,
    ZcdpCost,
    check_event,
)

SCHEMA_VERSION = 1
"""Version written into every serialised event; a reader refuses versions it does not know."""


def to_json(event: Event) -> dict[str, Any]:
    """``event`` as a JSON object with its kind, its neighbouring relation and the schema version."""
    return {"version": SCHEMA_VERSION, **_encode(event)}


def _encode(event: Event) -> dict[str, Any]:
    check_event(event, "event")
    if isinstance(event, OtherEvent):
        return {"kind": event.kind, "neighbours": event.neighbours.value, **event.fields(_encode)}
    body = {"kind": _KINDS[type(event)][0], "neighbours": event.neighbours.value}
    for field in fields(event):
        value = getattr(event, field.name)
        if field.name != "neighbours" and _USUAL.get(field.name) != value:
            body[field.name] = _plain(value)
    return body


def _plain(value: object) -> Any:
    if isinstance(value, Event):
        return _encode(value)
    if isinstance(value, tuple):
        return [_encode(part) for part in value]
    return value.value if isinstance(value, Enum) else value


def from_json(data: object) -> Event:
    """The event written by :func:`to_json`. Anything else (kind, field, version, relation) is an error, not a guess."""
    body = _object(data)
    version = body.pop("version", None)
    if isinstance(version, bool) or version != SCHEMA_VERSION:
        raise EventError(
            f"The event has schema version {version!r}; this AdaDP reads version {SCHEMA_VERSION}.",
            why="An event read with another meaning would be accounted wrongly.",
            fix="Use the AdaDP release that wrote it.",
        )
    return _decode(body)


def _object(data: object) -> dict[str, Any]:
    if not isinstance(data, Mapping):
        raise EventError(f"An event must be a JSON object, got {type(data).__name__}.")
    return dict(data)


def _decode(data: object) -> Event:
    body = _object(data)
    kind = body.pop("kind", None)
    found = (_TYPES.get(kind) or _other(kind)) if isinstance(kind, str) else None
    if found is None:
        raise EventError(
            f"Unknown event kind {kind!r}.", fix="Known kinds: " + ", ".join((*_TYPES, *_OFFERED.names)) + "."
        )
    try:
        stated = Neighbours.parse(body.pop("neighbours"))
        event = found.of(body, _decode) if issubclass(found, OtherEvent) else _made(found, body, stated)
    except KeyError as missing:
        raise EventError(f"The {kind} event has no field {missing}.") from None
    if body:
        raise EventError(
            f"The {kind} event has unknown fields: " + ", ".join(sorted(map(str, body))) + ".",
            why="A field that is ignored could change what was released.",
        )
    if event.neighbours is not stated:
        raise EventError(
            f"The {kind} event says {stated.value} but holds events for {event.neighbours.value} neighbours."
        )
    return event


def _other(kind: str) -> type[OtherEvent] | None:
    """The event of that kind that a package defines."""
    found = _OFFERED[kind].load() if kind in _OFFERED.names else None
    return found if isinstance(found, type) and issubclass(found, OtherEvent) else None


def _made(kind: type[Event], body: dict[str, Any], stated: Neighbours) -> Event:
    """The event with the fields in ``body``, which are taken out of it."""
    given: dict[str, Any] = {}
    for field in fields(kind):
        name = field.name
        if name == "neighbours":
            given[name] = stated
        elif name == "event":
            given[name] = _decode(body.pop(name))
        elif name in ("events", "batches", "parts"):
            given[name] = _list(body.pop(name))
        else:
            given[name] = body.pop(name, _USUAL[name]) if name in _USUAL else body.pop(name)
    return kind(**given)


def _list(data: object) -> tuple[Event, ...]:
    if not isinstance(data, list):
        raise EventError(f"A list of events was expected, got {type(data).__name__}.")
    return tuple(_decode(item) for item in data)


_KINDS: dict[type[Event], tuple[str, str]] = {
    GaussianRelease: ("gaussian", "Gaussian(sigma={0.noise_multiplier:g}{1})"),
    ZcdpCost: ("zcdp", "zCDP(rho={0.rho:g})"),
    Selection: ("selection", "Selection(epsilon={0.epsilon:g}, {0.mechanism.value})"),
    PoissonSampled: ("poisson-sampled", "Poisson(q={0.sampling_probability:g}) of {1}"),
    FixedSizeSampled: ("fixed-size-sampled", "Fixed-size(q={0.sampling_fraction:g}) of {1}"),
    ReshuffledEpoch: ("reshuffled-epoch", "Reshuffled epoch of {1}"),
    AdaptivelyChosen: ("adaptively-chosen", "Adaptively chosen {1}"),
    Composed: ("composed", "({1})"),
    Disjoint: ("disjoint", "Disjoint parts [{1}]"),
    Repeated: ("repeated", "{0.count} x {1}"),
}
"""The name of each kind in JSON, and its line for people: {0} is the event, {1} what it holds."""
_TYPES = {kind: event_type for event_type, (kind, _) in _KINDS.items()}
_USUAL: dict[str, object] = {"replaced": 2.0, "held_out": False}
"""Fields, with their values, that are written only where they say something."""
_OFFERED = entry_points(group="adadp.events")


def describe(event: Event) -> str:
    """One line for people, for example ``10000 x Poisson(q=0.01) of Gaussian(sigma=4)``."""
    if isinstance(event, OtherEvent):
        return event.describe()
    if isinstance(event, GaussianRelease):
        held = "" if event.replaced == 2 else f", replaced={event.replaced:.4g}"
        held += ", held-out records" if event.held_out else ""
    else:
        held = (" + " if isinstance(event, Composed) else " | ").join(map(describe, event.inner))
    return _KINDS[type(event)][1].format(event, held)
