"""Clip rules as text: ``parse_clip_rule`` reads what ``str(rule)`` writes, exactly."""

from __future__ import annotations

from dataclasses import MISSING, fields

from adadp.clipping.base import ClipRule, bound_in_range
from adadp.clipping.fixed import Automatic, Flat, PerLayer, PerLayerJoint
from adadp.clipping.quantile import QuantileAdaptive
from adadp.errors import InputError, within

RULES: dict[str, type[ClipRule]] = {
    rule.name: rule for rule in (Flat, PerLayer, PerLayerJoint, Automatic, QuantileAdaptive)
}
"""Name in text -> rule."""

COUNT_NOISE = 10.0
"""Least noise multiplier of the count where only ``quantile`` and a bound are given; for larger batches it is L /
10."""

RANGE = 100.0
"""How far the bound of such a rule may move from where it starts, as a factor to both sides."""


def clip_rule(name: str, bound: float | None = None, *, batch_size: int | None = None) -> ClipRule:
    """The rule called ``name`` with the clip bound ``bound``, or a rule in full text (``flat:1``), without ``bound``.

    For ``per-layer`` the bound is that of each layer; for ``quantile`` it is where the bound starts, with a floor of a
    hundredth and a ceiling of a hundred times it, and on the count a noise multiplier of a tenth of ``batch_size``
    (Andrew et al. 2021), of 10 at least.
    """
    if isinstance(name, str) and ":" in name:
        if bound is not None:
            raise InputError(
                f"The rule {name!r} and the clip bound {bound} were both given.",
                why="Both say how much a record may contribute, and only one of them could be used.",
                fix="Give the name of a rule and a bound, or the rule in full text alone.",
            )
        return parse_clip_rule(name)
    kind = _kind(name)
    if bound is None:
        raise InputError(
            f"The clip rule {name!r} has no bound.",
            why="It says how much one record may contribute, and so how much noise there is.",
            fix=f"Give a clip bound beside the name, or the rule in full text, like {kind.example}.",
        )
    if kind is QuantileAdaptive:
        initial = bound_in_range("bound", bound)
        noise = max(COUNT_NOISE, (batch_size or 0) / 10)
        return QuantileAdaptive(
            initial=initial, count_noise_multiplier=noise, floor=initial / RANGE, ceiling=initial * RANGE
        )
    return _built(kind, name, [bound], {})


def parse_clip_rule(text: str) -> ClipRule:
    """The rule written as ``name:number,option=number``, for example ``automatic:1,gamma=0.01``."""
    name, _, rest = (part.strip() for part in _checked(text).partition(":"))
    kind = _kind(name)
    plain: list[float] = []
    options: dict[str, float] = {}
    for item in rest.split(",") if rest else ():
        option, equals, number = (part.strip() for part in item.partition("="))
        if not equals:
            plain.append(_number(option, kind))
        elif option not in kind.options:
            raise InputError(f"The {name} rule has no option {option!r}.", fix=_usage(kind))
        elif option in options:
            raise InputError(
                f"The clip rule {text!r} gives {option} twice.", why="Only one could count.", fix=_usage(kind)
            )
        else:
            options[option] = _number(number, kind)
    with within(text, own_names=True):
        return _built(kind, text, plain, options)


def _built(kind: type[ClipRule], text: str, plain: list[float], options: dict[str, float]) -> ClipRule:
    """The rule from the numbers without a name and the options, none of them missing or left over."""
    required = {field.name for field in fields(kind) if field.default is MISSING}
    missing = [option for option, field in kind.options.items() if field in required and option not in options]
    unnamed = bool(required - set(kind.options.values()))
    if missing or (unnamed and not plain):
        raise InputError(f"The clip rule {text!r} lacks {', '.join(missing) or 'its bound'}.", fix=_usage(kind))
    if len(plain) > unnamed and kind is not PerLayer:
        raise InputError(f"The clip rule {text!r} has too many numbers without a name.", fix=_usage(kind))
    named = {kind.options[option]: value for option, value in options.items()}
    bounds = (tuple(plain),) if kind is PerLayer else tuple(plain)
    return kind(*bounds, **named)


def _checked(text: object) -> str:
    if not isinstance(text, str):
        raise InputError(
            f"A clip rule must be text, got {text!r} ({type(text).__name__}).", fix=f"Write it like {Flat.example}."
        )
    return text


def _kind(name: object) -> type[ClipRule]:
    """The rule called ``name``."""
    kind = RULES.get(_checked(name))
    if kind is None:
        raise InputError(
            f"Unknown clip rule {name!r}.",
            fix="Use one of: " + ", ".join(kind.example for kind in RULES.values()) + ".",
        )
    return kind


def _usage(kind: type[ClipRule]) -> str:
    """What ``kind`` takes, as the last sentence of an error."""
    known = f"Its options are {', '.join(kind.options)}" if kind.options else "It has no options"
    return f"{known}. Write it like {kind.example}."


def _number(text: str, kind: type[ClipRule]) -> float:
    try:
        return float(text)
    except ValueError:
        raise InputError(f"{text!r} in a clip rule is not a number.", fix=_usage(kind)) from None
