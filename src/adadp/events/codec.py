"""Events as text: JSON for programs (exact, versioned, refused where it is not understood) and one line for people."""

from __future__ import annotations

from collections.abc import Callable, Mapping
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
    kind = event.kind if isinstance(event, OtherEvent) else _KIND_OF[type(event)]
    body: dict[str, Any] = {"kind": kind, "neighbours": event.neighbours.value}
    if isinstance(event, GaussianRelease):
        body["noise_multiplier"] = event.noise_multiplier
        if event.replaced != 2:
            body["replaced"] = event.replaced
    elif isinstance(event, ZcdpCost):
        body["rho"] = event.rho
    elif isinstance(event, Selection):
        body |= {"epsilon": event.epsilon, "mechanism": event.mechanism.value}
    elif isinstance(event, PoissonSampled):
        body |= {"sampling_probability": event.sampling_probability, "event": _encode(event.event)}
    elif isinstance(event, FixedSizeSampled):
        body |= {"sampling_fraction": event.sampling_fraction, "event": _encode(event.event)}
    elif isinstance(event, ReshuffledEpoch):
        body |= {
            "batches": [_encode(batch) for batch in event.batches],
            "independent_assignment": event.independent_assignment,
        }
    elif isinstance(event, AdaptivelyChosen):
        body["event"] = _encode(event.event)
    elif isinstance(event, Composed):
        body["events"] = [_encode(part) for part in event.events]
    elif isinstance(event, OtherEvent):
        body |= event.fields(_encode)
    elif isinstance(event, Disjoint):
        body["parts"] = [_encode(part) for part in event.parts]
    else:
        body |= {"event": _encode(event.event), "count": event.count}
    return body


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
    decoder = (_DECODER_OF.get(kind) or _other(kind)) if isinstance(kind, str) else None
    if decoder is None:
        raise EventError(
            f"Unknown event kind {kind!r}.", fix="Known kinds: " + ", ".join((*_DECODER_OF, *_OFFERED.names)) + "."
        )
    try:
        stated = Neighbours.parse(body.pop("neighbours"))
        event = decoder(body, stated)
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


def _other(kind: str) -> _Decoder | None:
    """The decoder of an event that a package defines."""
    found = _OFFERED[kind].load() if kind in _OFFERED.names else None
    if isinstance(found, type) and issubclass(found, OtherEvent):
        return lambda body, _: found.of(body, _decode)
    return None


def _list(data: object) -> tuple[Event, ...]:
    if not isinstance(data, list):
        raise EventError(f"A list of events was expected, got {type(data).__name__}.")
    return tuple(_decode(item) for item in data)


_Decoder = Callable[[dict[str, Any], Neighbours], Event]
_DECODERS: dict[type, tuple[str, _Decoder]] = {
    GaussianRelease: (
        "gaussian",
        lambda body, near: GaussianRelease(body.pop("noise_multiplier"), near, body.pop("replaced", 2.0)),
    ),
    ZcdpCost: ("zcdp", lambda body, near: ZcdpCost(body.pop("rho"), near)),
    Selection: ("selection", lambda body, near: Selection(body.pop("epsilon"), body.pop("mechanism"), near)),
    PoissonSampled: (
        "poisson-sampled",
        lambda body, _: PoissonSampled(body.pop("sampling_probability"), _decode(body.pop("event"))),
    ),
    FixedSizeSampled: (
        "fixed-size-sampled",
        lambda body, _: FixedSizeSampled(body.pop("sampling_fraction"), _decode(body.pop("event"))),
    ),
    ReshuffledEpoch: (
        "reshuffled-epoch",
        lambda body, _: ReshuffledEpoch(_list(body.pop("batches")), body.pop("independent_assignment")),
    ),
    AdaptivelyChosen: ("adaptively-chosen", lambda body, _: AdaptivelyChosen(_decode(body.pop("event")))),
    Composed: ("composed", lambda body, _: Composed(_list(body.pop("events")))),
    Disjoint: ("disjoint", lambda body, _: Disjoint(_list(body.pop("parts")))),
    Repeated: ("repeated", lambda body, _: Repeated(_decode(body.pop("event")), body.pop("count"))),
}
_KIND_OF = {event_type: kind for event_type, (kind, _) in _DECODERS.items()}
_DECODER_OF = dict(_DECODERS.values())
_OFFERED = entry_points(group="adadp.events")


def describe(event: Event) -> str:
    """One line for people, for example ``10000 x Poisson(q=0.01) of Gaussian(sigma=4)``."""
    if isinstance(event, GaussianRelease):
        moved = "" if event.replaced == 2 else f", replaced={event.replaced:.4g}"
        return f"Gaussian(sigma={event.noise_multiplier:g}{moved})"
    if isinstance(event, ZcdpCost):
        return f"zCDP(rho={event.rho:g})"
    if isinstance(event, Selection):
        return f"Selection(epsilon={event.epsilon:g}, {event.mechanism.value})"
    if isinstance(event, PoissonSampled):
        return f"Poisson(q={event.sampling_probability:g}) of {describe(event.event)}"
    if isinstance(event, FixedSizeSampled):
        return f"Fixed-size(q={event.sampling_fraction:g}) of {describe(event.event)}"
    if isinstance(event, ReshuffledEpoch):
        return f"Reshuffled epoch of {' | '.join(describe(batch) for batch in event.batches)}"
    if isinstance(event, AdaptivelyChosen):
        return f"Adaptively chosen {describe(event.event)}"
    if isinstance(event, Composed):
        return "(" + " + ".join(describe(part) for part in event.events) + ")"
    if isinstance(event, OtherEvent):
        return event.describe()
    if isinstance(event, Disjoint):
        return f"Disjoint parts [{' | '.join(describe(part) for part in event.parts)}]"
    return f"{event.count} x {describe(event.event)}"
