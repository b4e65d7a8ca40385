"""Features as text: ``scatter``, ``pca:dim=60,noise_multiplier=16``, stages one after another joined by ``+``, stages
side by side joined by ``&``, which binds more tightly; ``none`` is no stage.

A stage of your own is named as ours are if a package offers it by an entry point in the group ``adadp.features``, and
else by its place: ``package.module:Name:option=value`` or ``file.py:Name:option=value``. Its options are the fields of
its dataclass, read by their annotations:

    bool                    0 or 1
    int, float, str         a number or a text, without a comma and without +
    tuple[int, ...]         whole numbers joined by semicolons
    float | None            a number; None cannot be written, it is what is left out
    another annotation      not an option
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import MISSING, fields
from inspect import isabstract
from itertools import takewhile
from typing import get_type_hints

from adadp.app.features.base import FixedStage, ReleasedStage, Stage
from adadp.app.features.centre import Centre
from adadp.app.features.conv_cifar100 import ConvCifar100
from adadp.app.features.efficientnet import EfficientNetLite0, EfficientNetLite1, EfficientNetLite2
from adadp.app.features.equalise import Equalise
from adadp.app.features.hub import HubText, HubTokens, TimmImages
from adadp.app.features.joined import Joined
from adadp.app.features.lite0_cifar100 import Lite0Cifar100
from adadp.app.features.pca import Pca
from adadp.app.features.private_bounds import Bounds
from adadp.app.features.scattering import Scattering
from adadp.app.features.standardise import Standardise
from adadp.app.features.synthetic import (
    DeepPatches,
    LogScattering,
    Patches,
    SyntheticImages,
    SyntheticPca,
    SyntheticStage,
)
from adadp.app.features.text import Bytes, WordLlama
from adadp.app.texts.parts import find
from adadp.errors import InputError, within
from adadp.registry import Registry

NONE = "none"

_BUILT_IN = (
    *(Scattering, SyntheticImages, LogScattering, Patches, DeepPatches, SyntheticPca, Centre),
    *(Bounds, ConvCifar100, Equalise, Pca, Standardise),
    *(EfficientNetLite0, EfficientNetLite1, EfficientNetLite2, Lite0Cifar100),
    *(Bytes, WordLlama, HubText, HubTokens, TimmImages),
)


def _accept(found: object) -> type[Stage] | None:
    if isinstance(found, type) and issubclass(found, FixedStage | ReleasedStage) and not isabstract(found):
        return found
    return None


STAGES: Registry[type[Stage]] = Registry("feature", {kind.name: kind for kind in _BUILT_IN}, _accept)
"""The stages by name."""

_READERS: dict[object, tuple[Callable[[str], object], str]] = {
    bool: ({"0": False, "1": True}.__getitem__, "Give 0 or 1."),
    int: (int, "Give a whole number."),
    float: (float, "Give a number."),
    str: (str, "Give a text."),
    tuple[int, ...]: (
        lambda text: tuple(map(int, text.split(";"))),
        "Give whole numbers, joined by semicolons.",
    ),
}
"""Annotation of a field -> how an option is read, and what to give."""
_READERS |= {kind | None: _READERS[kind] for kind in (bool, int, float, str)}


def parse_features(text: str | None) -> tuple[Stage, ...]:
    """The stages ``text`` names, in order. ``str`` of each gives its part of the text again."""
    if text is None or text.strip() == NONE:
        return ()
    stages = tuple(_side_by_side(part) for part in text.split("+"))
    _, rest = fixed_first(stages)
    for stage in rest:
        if any(isinstance(each, SyntheticStage) for each in (stage.blocks if isinstance(stage, Joined) else (stage,))):
            raise InputError(
                f"{stage} comes after a stage that is released.",
                why="It is fitted to synthetic images, which only stages known before the data can map.",
                fix="Put the released stages last.",
            )
    return stages


def features_text(stages: tuple[Stage, ...]) -> str:
    """What ``parse_features`` reads as ``stages``."""
    return "+".join(str(stage) for stage in stages) or NONE


def fixed_first(stages: tuple[Stage, ...]) -> tuple[tuple[FixedStage, ...], tuple[Stage, ...]]:
    """The stages known before the data, up to the first that must be released, and the rest."""
    known = takewhile(lambda stage: isinstance(stage, FixedStage), stages)
    fixed = tuple(stage for stage in known if isinstance(stage, FixedStage))
    return fixed, stages[len(fixed) :]


def released_stages(stages: tuple[Stage, ...]) -> tuple[ReleasedStage, ...]:
    """Those that look at the training records, and are charged."""
    return tuple(stage for stage in stages if isinstance(stage, ReleasedStage))


def _side_by_side(text: str) -> Stage:
    """The stage ``text`` names, or several joined by ``&``."""
    stages = [_stage(part.strip()) for part in text.split("&")]
    return stages[0] if len(stages) == 1 else Joined.of(stages)


def _stage(text: str) -> Stage:
    if ":" not in text and text not in STAGES:
        raise InputError(
            f"There are no features {text!r}.",
            fix=f"Use one of: {', '.join([NONE, *STAGES])}; several are joined by +, options follow a colon: "
            "pca:dim=60,noise_multiplier=16. One of your own is named by its place, package.module:Name.",
        )
    kind, rest = find(STAGES, text)
    kind.name = text.removesuffix(rest or "").rstrip(": ")  # a stage is written as it was named: by its place, perhaps
    hints = get_type_hints(kind)
    readers = {each.name: _READERS[hints[each.name]] for each in fields(kind) if hints[each.name] in _READERS}
    usage = f"Its options are: {', '.join(readers)}." if readers else "It has no options."
    options: dict[str, object] = {}
    for place, item in enumerate(rest.split(",") if rest else ()):
        option, _, value = (part.strip() for part in item.partition("="))
        if place == 0 and kind.unnamed is not None and option not in readers:
            option, value = kind.unnamed, item.strip()
        if option not in readers:
            raise InputError(f"{kind.name} has no option {option!r}.", fix=usage)
        if option in options:
            raise InputError(f"{text!r} gives {option} twice.", why="Only one could count.", fix="Leave one out.")
        read, expected = readers[option]
        try:
            options[option] = read(value)
        except (ValueError, KeyError):
            raise InputError(f"{option}={value} of {kind.name} cannot be read.", fix=expected) from None
    required = [each.name for each in fields(kind) if each.default is MISSING and each.default_factory is MISSING]
    if not options.keys() >= set(required):
        raise InputError(f"{text!r} lacks an option.", fix=usage)
    with within(text, own_names=True):
        return kind(**options)
