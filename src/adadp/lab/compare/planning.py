"""All runs of a comparison before the first of them: resolved, calibrated, and refused if anything is wrong.

a case that cannot be calibrated, or is unknown            ``InputError`` with its name; nothing has been trained
a method that is not private without allow_nonprivate      ``InputError``
data of your own without public test records               ``InputError``: nothing to compare by
cases on other data than the first                         ``InputError``: accuracies would not be comparable
two cases that come to the same settings                   ``InputError``: one of them says nothing
epsilons that agree in their first 12 digits               ``InputError``: their runs would lie in one folder
names that would share a folder with another case          the later case gets a number, the same at every call
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import count

from adadp.accounting import Status, accountant
from adadp.app.config import TrainConfig
from adadp.app.inputs import load_inputs
from adadp.app.owndata import is_own, load_schema
from adadp.app.resolve import fitted, public_records, resolve, training_records
from adadp.app.spec import RunSpec
from adadp.app.train.planning import filter_of, plan_of
from adadp.app.zoo import find
from adadp.errors import InputError, within
from adadp.lab.compare.spec import Case, Comparison
from adadp.plan import Plan


@dataclass(frozen=True)
class PlannedCase:
    """A case at one budget: what its runs are, but for the seed."""

    name: str
    asked: TrainConfig
    config: TrainConfig
    """``asked`` with every default filled in."""
    plan: Plan
    slug: str
    not_private: str | None
    refined: bool = False
    """Whether its epsilon was chosen by looking at results."""

    @property
    def epsilon(self) -> float | None:
        """The budget that was asked for; None if it was given in another way."""
        return self.config.epsilon

    @property
    def budget(self) -> tuple[float | str | None, ...]:
        """What is equal in cases that may be compared."""
        config = self.config
        whole = (config.epsilon, config.rho, config.noise_multiplier, config.delta)
        return (*whole, config.noise_schedule if whole[:3] == (None, None, None) else None)

    @cached_property
    def promised(self) -> float:
        """The epsilon a run of it spends, at its delta, when it has been finished. Only for private cases."""
        assert self.config.delta is not None
        if self.plan.adaptive:
            return filter_of(self.config, self.plan).epsilon
        if self.config.epsilon is not None:
            return self.config.epsilon
        return self.plan.epsilon(self.config.delta, self.config.accountant).epsilon

    def folder(self, seed: int) -> str:
        """Where its run with ``seed`` is, in the folder of the comparison."""
        return f"runs/{_label(self.slug, self.epsilon)}-seed{seed}"


def plan_all(spec: Comparison) -> list[PlannedCase]:
    """Every case at every epsilon, in the order asked for. What is quick to check is checked for all of them first."""
    places = [(case, epsilon) for case in spec.cases for epsilon in spec.epsilons_of(case)]
    asked = [spec.config(case, epsilon) for case, epsilon in places]
    for (case, _), config in zip(places, asked, strict=True):
        if (config.data, config.test_data) != (asked[0].data, asked[0].test_data):
            raise InputError(
                f"{case.name} is on other data than {spec.cases[0].name}.",
                why="Their accuracies would not be comparable.",
                fix="Compare on one data set at a time.",
            )
    known: dict[str, str] = {}
    resolved = []
    for (case, epsilon), config in zip(places, asked, strict=True):
        with _named(case, epsilon):
            resolved.append(_resolved(config))
        same = known.setdefault(resolved[-1].config.digest(), case.name)
        if same != case.name:
            raise InputError(
                f"{same} and {case.name} come to the same settings.",
                why="The same runs would be made twice.",
                fix="Leave one of them out, or change its settings.",
            )
    slugs = _slugs(spec)
    return [
        _planned(case, epsilon, given, run, slugs[case.name])
        for (case, epsilon), given, run in zip(places, asked, resolved, strict=True)
    ]


def plan_further(spec: Comparison, case: Case, epsilon: float) -> PlannedCase:
    """``case`` at an epsilon that was chosen by looking at results."""
    asked = spec.config(case, epsilon)
    with _named(case, epsilon):
        run = _resolved(asked)
    return replace(_planned(case, epsilon, asked, run, _slugs(spec)[case.name]), refined=True)


def _planned(case: Case, epsilon: float | None, asked: TrainConfig, run: RunSpec, slug: str) -> PlannedCase:
    with _named(case, epsilon):
        plan = plan_of(run, _records(run.config))
    return PlannedCase(case.name, asked, run.config, plan, slug, _why_not_private(run))


def is_public(planned: Iterable[PlannedCase]) -> bool:
    """Whether the records are those of a public data set."""
    return not any(is_own(case.config.data) for case in planned)


def _named(case: Case, epsilon: float | None) -> AbstractContextManager[None]:
    """What is wrong is told with the case it is wrong in."""
    return within(case.name if epsilon is None else f"{case.name} at epsilon {epsilon:g}")


def _resolved(asked: TrainConfig) -> RunSpec:
    """``asked`` with every default, if it can stand in a comparison."""
    _check_test_records(asked)
    run = resolve(asked)
    if public_records(asked) is None:
        run = fitted(run, asked, _records_in_file(run.config))
    leak = run.method.not_private
    if leak is not None and not asked.allow_nonprivate:
        raise InputError(
            f"The method {run.config.method} is not private.",
            why=leak,
            fix="Leave it out, or pass `allow_nonprivate` to see it beside the others, marked.",
        )
    return run


def _why_not_private(run: RunSpec) -> str | None:
    """Why ``run`` has no guarantee; None if it has one."""
    config = run.config
    leak = "No noise is added." if config.noise_multiplier == 0 else run.method.not_private
    if leak is None and accountant(config.accountant).status is not Status.PROVED:
        return f"The accountant {config.accountant} proves nothing."
    return leak


def _check_test_records(config: TrainConfig) -> None:
    if config.schema is not None and load_schema(config.schema).targets:
        raise InputError(
            f"The targets of {config.data} are numbers.",
            why="The methods are compared by their accuracy. Nothing was spent.",
            fix="Train them one by one with adadp train, and compare their figures.",
        )
    lacking = config.test_data is None if is_own(config.data) else not find(config.data).test_records
    if lacking:
        raise InputError(
            f"There are no test records for {config.data}.",
            why="The methods are compared by their accuracy on public records.",
            fix="Pass `test_data`, a file with public records.",
        )


def _records(config: TrainConfig) -> int:
    """How many records are trained on. The files are read only where no public number is given."""
    if public_records(config) is None:
        config = config.replace(records=_records_in_file(config))
    return training_records(config)


def _records_in_file(config: TrainConfig) -> int:
    return load_inputs(config, own=True).size


def same_folder(one: float | None, other: float | None) -> bool:
    """Whether the runs of a case at these two epsilons would lie in one folder."""
    return _label("", one) == _label("", other)


def _label(slug: str, epsilon: float | None) -> str:
    """The name of a case at one budget, in folders."""
    return slug if epsilon is None else f"{slug}-{epsilon:.12g}"


@dataclass(frozen=True)
class _Names:
    """The names in folders that the runs of one case may have."""

    slug: str
    labels: tuple[str, ...]
    """Of the budgets that were asked for."""
    refined: bool
    """Whether there may be more, at any epsilon."""

    def meet(self, other: _Names) -> bool:
        """Whether a run of one case could lie in the folder of a run of the other."""
        if self.slug == other.slug or set(self.labels) & set(other.labels):
            return True
        return self._may_refine_to(other) or other._may_refine_to(self)

    def _may_refine_to(self, other: _Names) -> bool:
        """Whether an epsilon found later could lead to a name of ``other``; 1e-10 after a is 10 after a-1e."""
        number = rf"{re.escape(self.slug)}-[0-9.]+"
        return self.refined and (
            any(re.fullmatch(rf"{number}(e[-+]?[0-9]+)?", label) for label in other.labels)
            or (other.refined and re.fullmatch(f"{number}e", other.slug) is not None)
        )


def _slugs(spec: Comparison) -> dict[str, str]:
    """Name of a case -> its name in folders: short, plain, and such that no two runs share a folder.

    They follow from the comparison alone, not from what its runs came to: a call that goes on finds its folders again.
    """
    known: dict[str, _Names] = {}
    for case in spec.cases:
        plain = re.sub(r"[^a-z0-9.=]+", "-", case.name.lower()).strip("-.")[:60] or "case"
        asked = spec.epsilons_of(case)
        epsilons = [spec.config(case, epsilon).epsilon for epsilon in asked]
        if len({_label("", epsilon) for epsilon in epsilons}) < len(epsilons):
            raise InputError(
                "Two of the epsilons agree in their first 12 digits.",
                why="Their runs would lie in one folder.",
                fix="Leave one of them out.",
            )
        refined = bool(spec.refine) and asked != (None,)
        found = (_Names(slug, tuple(_label(slug, each) for each in epsilons), refined) for slug in _numbered(plain))
        known[case.name] = next(each for each in found if not any(each.meet(other) for other in known.values()))
    return {name: names.slug for name, names in known.items()}


def _numbered(plain: str) -> Iterator[str]:
    """``plain``, and what it may be called where that is taken: with a number, or with one no epsilon looks like."""
    yield plain
    yield from (f"{plain}-{number}" for number in range(2, 100))
    yield from (f"{plain}-case{number}" for number in count(2))
