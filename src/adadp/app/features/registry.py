"""Features as text: ``scatter``, ``pca:dim=60,noise_multiplier=16``, stages joined by ``+``; ``none`` is no stage at
all.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from adadp.app.features.base import FixedStage, ReleasedStage, Stage
from adadp.app.features.conv_cifar100 import ConvCifar100
from adadp.app.features.efficientnet import EfficientNetLite0
from adadp.app.features.equalise import Equalise
from adadp.app.features.pca import Pca
from adadp.app.features.private_bounds import Bounds
from adadp.app.features.scattering import Scattering
from adadp.app.features.standardise import Standardise
from adadp.errors import InputError, within

NONE = "none"


def _flag(text: str) -> bool:
    return {"0": False, "1": True}[text]


def _positions(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(";"))


_Reader = Callable[[str], object]

_KINDS: dict[_Reader, str] = {
    int: "Give a whole number.",
    float: "Give a number.",
    _flag: "Give 0 or 1.",
    _positions: "Give whole numbers, joined by semicolons.",
}

STAGES: dict[str, tuple[Callable[..., Stage], Mapping[str, _Reader]]] = {
    Scattering.name: (Scattering, {"J": int, "angles": int, "groups": int, "unit": _flag, "centre": _flag}),
    Bounds.name: (Bounds, {"columns": _positions, "noise_multiplier": float}),
    ConvCifar100.name: (ConvCifar100, {"norm": float}),
    EfficientNetLite0.name: (EfficientNetLite0, {"size": int}),
    Equalise.name: (Equalise, {"noise_multiplier": float, "size": int}),
    Pca.name: (Pca, {"dim": int, "noise_multiplier": float, "whiten": _flag, "norm": float}),
    Standardise.name: (Standardise, {"noise_multiplier": float, "norm": float}),
}
"""Name of a stage -> how it is made, and how each of its options is read."""


def parse_features(text: str | None) -> tuple[Stage, ...]:
    """The stages ``text`` names, in order. ``str`` of each gives its part of the text again."""
    if text is None or text.strip() == NONE:
        return ()
    return tuple(_stage(part.strip()) for part in text.split("+"))


def features_text(stages: tuple[Stage, ...]) -> str:
    """What ``parse_features`` reads as ``stages``."""
    return "+".join(str(stage) for stage in stages) or NONE


def fixed_first(stages: tuple[Stage, ...]) -> tuple[tuple[FixedStage, ...], tuple[Stage, ...]]:
    """The stages known before the data, up to the first that must be released, and the rest."""
    fixed: list[FixedStage] = []
    for stage in stages:
        if not isinstance(stage, FixedStage):
            break
        fixed.append(stage)
    return tuple(fixed), stages[len(fixed) :]


def released_stages(stages: tuple[Stage, ...]) -> tuple[ReleasedStage, ...]:
    """Those that look at the training records, and are charged."""
    return tuple(stage for stage in stages if isinstance(stage, ReleasedStage))


def _stage(text: str) -> Stage:
    name, colon, rest = text.partition(":")
    if name not in STAGES:
        raise InputError(
            f"There are no features {name!r}.",
            fix=f"Use one of: {', '.join([NONE, *STAGES])}; several are joined by +, options follow a colon: "
            "pca:dim=60,noise_multiplier=16.",
        )
    make, readers = STAGES[name]
    options: dict[str, object] = {}
    for item in rest.split(",") if colon else ():
        option, _, value = (part.strip() for part in item.partition("="))
        if option not in readers:
            raise InputError(f"{name} has no option {option!r}.", fix=f"Its options are: {', '.join(readers)}.")
        if option in options:
            raise InputError(f"{text!r} gives {option} twice.", why="Only one could count.", fix="Leave one out.")
        try:
            options[option] = readers[option](value)
        except (ValueError, KeyError):
            raise InputError(f"{option}={value} of {name} cannot be read.", fix=_KINDS[readers[option]]) from None
    try:
        with within(text, own_names=True):
            return make(**options)
    except TypeError:
        raise InputError(f"{text!r} lacks an option.", fix=f"Its options are: {', '.join(readers)}.") from None
