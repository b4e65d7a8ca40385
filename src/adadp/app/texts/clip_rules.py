"""Clip rules as text: ``parse_clip_rule`` reads what ``str(rule)`` writes, exactly."""

from __future__ import annotations

from dataclasses import MISSING, fields

from adadp.app.clipping.fixed import Automatic, PerLayer, PerLayerJoint
from adadp.app.clipping.quantile import QuantileAdaptive
from adadp.app.texts.parts import find
from adadp.clipping import Flat
from adadp.clipping.base import ClipRule, bound_in_range
from adadp.errors import InputError, within
from adadp.registry import Registry


def _accept(found: object) -> type[ClipRule] | None:
    return found if isinstance(found, type) and issubclass(found, ClipRule) else None


RULES: Registry[type[ClipRule]] = Registry(
    "clip rule", {rule.name: rule for rule in (Flat, PerLayer, PerLayerJoint, Automatic, QuantileAdaptive)}, _accept
)
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
    if not is_name(name):
        if bound is not None:
            raise InputError(
                f"The rule {name!r} and the clip bound {bound} were both given.",
                why="Both say how much a record may contribute, and only one of them could be used.",
                fix="Give the name of a rule and a bound, or the rule in full text alone.",
            )
        return parse_clip_rule(name)
    kind, _ = _kind(name)
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
    kind, rest = _kind(text)
    plain: list[float] = []
    options: dict[str, float] = {}
    for item in rest.split(",") if rest else ():
        option, equals, number = (part.strip() for part in item.partition("="))
        if not equals:
            plain.append(_number(option, kind))
        elif option not in kind.options:
            raise InputError(f"The {kind.name} rule has no option {option!r}.", fix=_usage(kind))
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


def is_name(text: object) -> bool:
    """Whether ``text`` names a rule and leaves its bound to be given beside it."""
    return _kind(text)[1] is None


def clip_rule_text(rule: ClipRule) -> str:
    """What ``parse_clip_rule`` reads as ``rule``: by name if that is known, else by where its class is defined."""
    kind = type(rule)
    if kind.name in RULES and RULES[kind.name] is kind:
        return str(rule)
    return f"{kind.__module__}:{kind.__qualname__}:{str(rule).partition(':')[2]}"


def _kind(text: object) -> tuple[type[ClipRule], str | None]:
    """The rule that ``text`` names, and its numbers as text."""
    if not isinstance(text, str):
        raise InputError(
            f"A clip rule must be text, got {text!r} ({type(text).__name__}).", fix=f"Write it like {Flat.example}."
        )
    return find(RULES, text)


def _usage(kind: type[ClipRule]) -> str:
    """What ``kind`` takes, as the last sentence of an error."""
    known = f"Its options are {', '.join(kind.options)}" if kind.options else "It has no options"
    return f"{known}. Write it like {kind.example}."


def _number(text: str, kind: type[ClipRule]) -> float:
    try:
        return float(text)
    except ValueError:
        raise InputError(f"{text!r} in a clip rule is not a number.", fix=_usage(kind)) from None
