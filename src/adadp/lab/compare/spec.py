"""What is compared: settings all cases share, what each case changes, and at which epsilons and seeds.

given                                          becomes
=============================================  =================================================================
no case, no seed, a name or number twice       an error: nothing is run twice under one name
``seeds`` in a file as a number n              the seeds 0 to n - 1; as a list, those
a case that sets its own budget                it keeps its own budget and is run at that alone
no ``epsilons``                                the budget of the base, or of each case
a seed among the settings                      an error: the seeds are those of the comparison
``epsilons``, and rho or noise for all cases   an error: both say how private they are
marks without ``epsilons``                     an error: there is nothing to search among
``refine`` without marks or two epsilons       an error: there is nothing to search between
an unknown key in a file                       an error that names it
methods ``a,b:x=1,y=2``                        ``a`` and ``b:x=1,y=2``: options stay with their method
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tomli_w

from adadp import checks
from adadp.app.config import TrainConfig
from adadp.app.texts.schedules import parse_noise
from adadp.errors import InputError, within
from adadp.files import read_toml, toml_of

_BUDGETS = ("epsilon", "rho", "noise_multiplier")
_KEYS = ("title", "seeds", "epsilons", "marks", "refine", "base", "case")
_CASE_KEYS = ("name", "set")
_FOR_PAGES = ("picture", "log", "beside", "printed", "printed_epochs", "x")
"""What files of experiments say about their page or plot; it changes no run."""


@dataclass(frozen=True)
class Case:
    """One way to train: a name, and the settings of ``adadp train`` in which it differs from the base."""

    name: str
    settings: Mapping[str, Any]

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name.strip() or not self.name.isprintable():
            raise InputError(f"The name of a case must be printable text, got {self.name!r}.", fix="Name every case.")
        _refuse_seed(self.settings, f"the case {self.name}")

    @property
    def has_budget(self) -> bool:
        """Whether it says itself how private it is, so that the epsilons of the comparison are not for it."""
        return any(name in self.settings for name in _BUDGETS)


@dataclass(frozen=True)
class Comparison:
    """Cases at equal budgets over seeds; see the table above."""

    title: str
    base: Mapping[str, Any]
    """Settings of ``adadp train`` that hold for every case that does not change them."""
    cases: tuple[Case, ...]
    seeds: tuple[int, ...]
    epsilons: tuple[float, ...] = ()
    marks: tuple[float, ...] = ()
    """Accuracies (shares) of which the smallest epsilon that reaches them is looked for."""
    refine: int = 0
    """How often the gap before that epsilon is halved by further runs."""

    def __post_init__(self) -> None:
        _distinct("cases", [case.name for case in self.cases])
        seeds = tuple(checks.count("a seed", seed, minimum=0) for seed in self.seeds)
        epsilons = tuple(checks.positive("epsilon", value) for value in self.epsilons)
        marks = tuple(sorted(checks.probability("an accuracy", mark) for mark in self.marks))
        object.__setattr__(self, "seeds", _distinct("seeds", seeds))
        object.__setattr__(self, "epsilons", _distinct("epsilons", epsilons) if epsilons else ())
        object.__setattr__(self, "marks", _distinct("accuracies", marks) if marks else ())
        object.__setattr__(self, "refine", checks.count("refine", self.refine, minimum=0))
        _refuse_seed(self.base, "the settings of all cases")
        other = [name for name in ("rho", "noise_multiplier") if self.base.get(name) is not None]
        if epsilons and other:
            raise InputError(
                f"Epsilons were given together with `{other[0]}`.",
                why="Each says how private the runs are, and only one of them could count.",
                fix=f"Leave `{other[0]}` out, or the epsilons.",
            )
        if marks and not epsilons:
            raise InputError(
                "Accuracies to reach were given, and no epsilons.",
                why="The smallest epsilon that reaches one is looked for among those that are tried.",
                fix="Give epsilons, or leave the accuracies out.",
            )
        if self.refine and (not marks or len(epsilons) < 2):
            raise InputError(
                "refine is given without accuracies, or without two epsilons.",
                why="It searches between the epsilon that reaches an accuracy and the one before it.",
                fix="Give accuracies to reach and at least two epsilons.",
            )

    def epsilons_of(self, case: Case) -> tuple[float | None, ...]:
        """The epsilons ``case`` is run at; None: its settings say how private it is."""
        return (None,) if case.has_budget or not self.epsilons else self.epsilons

    def config(self, case: Case, epsilon: float | None) -> TrainConfig:
        """The configuration of ``case``, without a seed. What it sets replaces what the base has in its place."""
        own = dict(case.settings) | ({} if epsilon is None else {"epsilon": epsilon})
        with within(case.name):
            return TrainConfig.from_toml(tomli_w.dumps(dict(self.base)), **own)

    def changed_since(self, other: Comparison) -> list[str]:
        """What is not as in ``other``, by name; settings of all cases by their own names."""
        fields = ("title", "seeds", "epsilons", "marks", "refine", "cases")
        names = [name for name in fields if getattr(self, name) != getattr(other, name)]
        settings = sorted(self.base.keys() | other.base.keys())
        return names + [name for name in settings if self.base.get(name) != other.base.get(name)]

    def to_toml(self) -> str:
        """The comparison as TOML that ``from_toml`` reads back as an equal one."""
        content: dict[str, Any] = {"title": self.title, "seeds": list(self.seeds)}
        optional = {"epsilons": list(self.epsilons), "marks": list(self.marks), "refine": self.refine}
        content |= {name: value for name, value in optional.items() if value}
        cases = [{"name": case.name, "set": dict(case.settings)} for case in self.cases]
        return tomli_w.dumps(content | {"base": dict(self.base), "case": cases})

    @classmethod
    def from_toml(cls, source: str | os.PathLike[str]) -> Comparison:
        """The comparison written in ``source``: TOML text, or (a ``Path``) the file that holds it."""
        where = "the text" if isinstance(source, str) else str(source)
        try:
            content = toml_of(source) if isinstance(source, str) else read_toml(Path(source))
        except OSError as error:
            raise InputError(
                f"The comparison {where} cannot be read: {error.strerror or error}.", fix="Check the path."
            ) from error
        except ValueError as error:
            raise InputError(
                f"The comparison in {where} is not TOML: {error}.", fix="Mend the file, or pass its path as a Path."
            ) from error
        _known(content, _KEYS, where)
        cases = content.get("case", [])
        base = content.get("base", {})
        if not isinstance(cases, list) or not all(isinstance(each, dict) for each in [base, *cases]):
            raise InputError(f"{where} is no comparison.", fix="Write one [base] and a [[case]] for each case.")
        return cls(
            title=str(content.get("title", "Comparison")),
            base=base,
            cases=tuple(_case(each, where) for each in cases),
            seeds=tuple(seeds_of(content.get("seeds", 3))),
            epsilons=_list(content, "epsilons"),
            marks=_list(content, "marks"),
            refine=content.get("refine", 0),
        )

    def replace(self, **changes: Any) -> Comparison:
        """The comparison with other fields."""
        return dataclasses.replace(self, **changes)


def seeds_of(given: object) -> Sequence[int]:
    """The seeds of a list, or of how many there are."""
    return given if isinstance(given, (list, tuple)) else range(checks.count("seeds", given))


def split_methods(text: str) -> list[str]:
    """The methods in ``a,b:x=1,y=2``: a piece such as ``y=2`` is an option of the method before it."""
    methods: list[str] = []
    for piece in (part.strip() for part in text.split(",")):
        if methods and "=" in piece and ":" not in piece.partition("=")[0]:
            methods[-1] += f",{piece}"
        else:
            methods.append(piece)
    if not all(methods):
        raise InputError(f"The list of methods {text!r} has an empty place.", fix="Write them like dpsgd,adadp.")
    return methods


def crossed(methods: Iterable[str], schedules: Sequence[str]) -> tuple[Case, ...]:
    """A case for each method or, where there are several noise schedules, for each method with each of them."""
    for schedule in schedules:
        parse_noise(schedule)
    if len(schedules) < 2:
        shared = {"noise_schedule": schedules[0]} if schedules else {}
        return tuple(Case(method, {"method": method} | shared) for method in methods)
    return tuple(
        Case(f"{method}, {schedule}", {"method": method, "noise_schedule": schedule})
        for method in methods
        for schedule in schedules
    )


def _case(content: dict[str, Any], where: str) -> Case:
    _known(content, _CASE_KEYS, f"a case of {where}")
    settings = content.get("set", {})
    if "name" not in content or not isinstance(settings, dict):
        raise InputError(
            f"A case of {where} has no name, or no table of settings.", fix='Write name = "..." and set = {}.'
        )
    return Case(content["name"], settings)


def _list(content: Mapping[str, Any], key: str) -> tuple[float, ...]:
    found = content.get(key, [])
    if not isinstance(found, list):
        raise InputError(f"{key} must be a list, got {found!r}.", fix=f"Write {key} = [0.5, 2.0], say.")
    return tuple(found)


def _known(content: Mapping[str, Any], known: Sequence[str], where: str) -> None:
    unknown = [key for key in content if key not in (*known, *_FOR_PAGES)]
    if unknown:
        raise InputError(f"Unknown key {unknown[0]!r} in {where}.", fix="Use one of: " + ", ".join(known) + ".")


def _distinct(what: str, values: Sequence[Any]) -> tuple[Any, ...]:
    if not values:
        raise InputError(
            f"There are no {what}.", why="There is nothing to compare.", fix=f"Give at least one of the {what}."
        )
    twice = [value for value in values if list(values).count(value) > 1]
    if twice:
        raise InputError(
            f"The {what} have {twice[0]} twice.", why="The same runs would be made twice.", fix="Leave one of them out."
        )
    return tuple(values)


def _refuse_seed(settings: Mapping[str, Any], where: str) -> None:
    if "seed" in settings:
        raise InputError(
            f"A seed is set in {where}.",
            why="The runs of all cases have the same seeds, so that they can be compared pair by pair.",
            fix="Give seeds for the whole comparison.",
        )
