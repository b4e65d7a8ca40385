"""The charts of a run: accuracy and privacy by step, what each accountant says, and what changed over the epochs.

a run whose test set was looked at once only   no curve of the accuracy; the page says how to get one
an evaluation that is not an accuracy          its own name and range, and no percent
a run with a seed                              its epsilon is dashed: what the same run would spend without a seed
a run of one epoch                             no curve of epsilon: it would be a point
a run held by a filter                         the share of its budget that is used: its epsilon is fixed ahead
a method that is not private                   what its accountant makes of the charges, which is no guarantee
an accountant far above the others             dots on a logarithmic axis; bars would have no honest length there
settings that never change                     no chart: they stand in a table
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from adadp.app.config import TrainConfig
from adadp.app.report.certificate import stated_plan
from adadp.app.report.html.formatting import number
from adadp.app.report.html.page import Axis, Chart, Series
from adadp.app.report.wording import bracket_in_words
from adadp.app.runs import Evaluated
from adadp.app.texts.schedules import parse_open
from adadp.certificate.wording import guarantee_of, small
from adadp.clipping import Flat
from adadp.schedules import Schedule, Uniform

Line = Mapping[str, Any]
"""One line of the metrics of a run."""

STEPS = Axis("steps", whole=True, zero=True)
ACCURACY = Axis("test accuracy", percent=True)

_WIDE = 10
"""Bars of values that differ by more than this factor say little: the small ones vanish."""


def looks_of(lines: Sequence[Line]) -> list[tuple[Line, float | Evaluated]]:
    """Every look at the test data: its line, and the accuracy or what an evaluation of the user's own came to."""
    found: list[tuple[Line, float | Evaluated]] = []
    for line in lines:
        if line.get("test_accuracy") is not None:
            found.append((line, float(line["test_accuracy"])))
        elif line.get("evaluation") is not None:
            found.append((line, Evaluated(**line["evaluation"])))
    return found


def looks_chart(lines: Sequence[Line]) -> Chart | None:
    """Accuracy, or another evaluation, against steps; None where fewer than two looks gave a number."""
    points = [(float(line["step"]), value) for line, look in looks_of(lines) if (value := _value(look)) is not None]
    if len(points) < 2:
        return None
    name, axis = _name_and_axis(lines)
    title = f"{name[0].upper()}{name[1:]} during the run"
    called = "accuracy" if axis is ACCURACY else "evaluation"
    return Chart(called, title, "line", STEPS, axis, (_series(name, points),), "On test data, which must be public.")


def spending_chart(lines: Sequence[Line], delta: float | None, accountant: str) -> Chart | None:
    """Epsilon against steps, or the used share of a budget; None for a run of one epoch, or without noise."""
    if any("budget_used" in line for line in lines):
        used = _series("budget used", _known(lines, "budget_used"))
        caption = "The noise was chosen during the run; epsilon is the whole budget, whatever was used of it."
        return _over_steps("Budget used", Axis("budget used", percent=True, zero=True), used, caption)
    at = "" if delta is None else f" at delta = {small(delta)}"
    computed = _series(f"{accountant}, no guarantee", _known(lines, "claimed_epsilon"), dashed=True)
    if computed.x:
        caption = (
            f"What {accountant} makes of the charges, as if they were all that counts. No guarantee follows from it."
        )
        title = f"What {accountant} would say of the charges: no guarantee"
        return _over_steps(title, Axis(f"epsilon by {accountant}{at}", zero=True), computed, caption)
    spent = _series("epsilon", _known(lines, "epsilon"))
    caption = "What everything released so far costs, what features released before the first step included."
    title, without = "Privacy spent during the run", ""
    if not spent.x:
        spent, without = _series("epsilon", _known(lines, "epsilon_if_unseeded"), dashed=True), " without a seed"
        title = "Privacy the same run would spend without a seed"
    return _over_steps(title, Axis(f"epsilon{without}{at}", zero=True, bound=True), spent, caption)


def trade_chart(lines: Sequence[Line], final_epsilon: float | None) -> Chart | None:
    """Accuracy (or another evaluation) against epsilon; None where either stays the same or is known once only."""
    pairs = []
    for line, look in looks_of(lines):
        value, epsilon = _value(look), line.get("epsilon", line.get("epsilon_if_unseeded"))
        if line.get("final"):
            epsilon = final_epsilon
        if value is not None and epsilon is not None:
            pairs.append((epsilon, value))
    if len({epsilon for epsilon, _ in pairs}) < 2:
        return None
    rehearsal = any("epsilon_if_unseeded" in line for line in lines)
    title = "What privacy buys, as spent without a seed" if rehearsal else "What the spent privacy bought"
    spent = Axis(f"epsilon spent{' without a seed' if rehearsal else ''}", bound=True)
    name, axis = _name_and_axis(lines)
    caption = "Every look at the test data. The epsilon at a point is that of a run planned to end there."
    return Chart("trade", title, "line", spent, axis, (_series(name, pairs),), caption)


def accountants_chart(certificate: Mapping[str, Any]) -> Chart | None:
    """What every accountant with a proof says; the one that counts is a series of its own."""
    proved = guarantee_of(certificate)
    if proved is None or not proved["cross_check"]:
        return None
    checks = sorted(proved["cross_check"], key=lambda each: float(each["epsilon"]))
    names = tuple(str(each["accountant"]) for each in checks)
    values = [float(each["epsilon"]) for each in checks]
    chosen = certificate["accountant"]
    rehearsal = certificate["rehearsal"]
    certified_by = "Without a seed it would be certified by" if rehearsal else "Certified by"
    wide = min(values) > 0 and max(values) > _WIDE * min(values)
    caption = (
        f"All are proofs about the same releases; the smallest is the tightest. {certified_by} {chosen}: "
        f"{bracket_in_words(proved)}."
    )
    series = []
    for title, certified in (("would be certified" if rehearsal else "certified", True), ("cross-check", False)):
        found = tuple(x if (name == chosen) == certified else None for name, x in zip(names, values, strict=True))
        series += [Series(title, names, found)] if set(found) != {None} else []
    return Chart(
        "accountants",
        f"Epsilon by accountant{', without a seed' if rehearsal else ''}",
        "dots" if wide else "bar",
        Axis("accountant", "category"),
        Axis(f"epsilon at delta = {small(certificate['delta'])}", "log" if wide else "linear", bound=True),
        tuple(series),
        caption,
    )


def schedules(config: TrainConfig, certificate: Mapping[str, Any]) -> tuple[list[Chart], list[tuple[str, str]]]:
    """What changed over the epochs as charts, and what stayed the same as a table."""
    plan = stated_plan(certificate["plan"], Flat(1.0))  # for its schedules; the rule may be a stranger's
    rate = _rate(config)
    bound = _bound(certificate["plan"]["clip_norm"])
    by_step: list[tuple[str, str, str, Callable[[int], float]]] = [
        ("batch-size", "Batch size", "records in a batch, on average", plan.batch_size_at),
    ]
    if plan.noise is not None:
        by_step.insert(0, ("noise", "Noise multiplier", "noise multiplier", plan.noise_multiplier_at))
    if bound is None:
        by_step.append(("clip-norm", "Factor of the clip rule's bound", "factor", plan.clip_factor_at))
    else:
        by_step.append(("clip-norm", "Clip bound", "clip bound", lambda step: bound * plan.clip_factor_at(step)))
    if rate is not None:
        by_step.append(("rate", "Learning rate", "rate", lambda step: rate.value_of(step, plan.epoch_of(step))))
    done = certificate["steps_done"] + certificate["steps_lost"]
    epochs = range(plan.epoch_of(done - 1) + 1 if done else 0)
    starts = [plan.timetable.first_step(epoch) for epoch in epochs]
    charts, constants = [], []
    for name, title, unit, value_at in by_step:
        values = [value_at(step) for step in starts]
        if len(set(values)) > 1:
            series = Series(title.lower(), tuple(float(epoch + 1) for epoch in epochs), tuple(map(float, values)))
            charts.append(
                Chart(name, f"{title} by epoch", "step", Axis("epoch", whole=True), Axis(unit, zero=True), (series,))
            )
        elif values:
            constants.append((title, number(values[0])))
    return charts, constants


def _bound(rule: str) -> float | None:
    """The one bound that the text of a clip rule begins with, if it does; the rule itself may be a stranger's."""
    name, _, numbers = rule.partition(":")
    first = numbers.split(",")[0]
    return None if name == "per-layer" or "=" in first or not first else float(first)


def _rate(config: TrainConfig) -> Schedule | None:
    if config.lr_schedule is None:
        return None if config.lr is None else Uniform(config.lr)
    found = parse_open(config.lr_schedule)
    return found.known() if config.lr is None else found.closed(config.lr)


def _name_and_axis(lines: Sequence[Line]) -> tuple[str, Axis]:
    """What was looked at. Only an accuracy is in percent."""
    look = looks_of(lines)[-1][1]
    if not isinstance(look, Evaluated):
        return "test accuracy", ACCURACY
    return look.name, Axis(f"{look.name}, {look.span}" if look.span else look.name)


def _value(look: float | Evaluated) -> float | None:
    return look.value if isinstance(look, Evaluated) else look


def _known(lines: Sequence[Line], name: str) -> list[tuple[float, float]]:
    return [(float(line["step"]), line[name]) for line in lines if line.get(name) is not None]


def _over_steps(title: str, axis: Axis, series: Series, caption: str) -> Chart | None:
    return None if len(series.x) < 2 else Chart("spending", title, "line", STEPS, axis, (series,), caption)


def _series(name: str, points: Sequence[tuple[float, float]], *, dashed: bool = False) -> Series:
    return Series(name, tuple(x for x, _ in points), tuple(y for _, y in points), dashed=dashed)
