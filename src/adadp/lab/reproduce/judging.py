"""What was measured beside what was printed: rows, whether claims hold, and the state of an item.

A figure is met if it is within its tolerance of the printed one. A claim that one case is better than another holds if
the mean gain, seed by seed, is above 0 by two standard errors; a reverse one by as much is refuted, anything else is
"not shown".

    nothing measured                         not run
    not every case with all its seeds        in part
    all that was printed is met              reproduced
    something printed is not met             differs
    nothing printed that could be met        measured
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum

from adadp.accounting import accountant
from adadp.app.accounting.run_shape import RunShape
from adadp.app.config import TrainConfig
from adadp.app.resolve import public_records
from adadp.lab.compare.statistics import smallest_epsilon
from adadp.lab.reproduce.items import COMMAND, SMALLEST, TRAIN, Case, Claim, Item
from adadp.lab.reproduce.storing import Run, Store

_POINTS = 0.01
"""How far an accuracy may be from the printed one where the file does not say: one point."""
_SHARE = 0.02
"""How far any other figure may be, relative to the printed one: what rounding to two or three digits hides."""


class Verdict(Enum):
    """Whether what was printed was found."""

    MET = "yes"
    MISSED = "no"
    NOT_SHOWN = "not shown"
    NOTHING_PRINTED = ""


class State(Enum):
    """How far an item is."""

    NOT_RUN = "not run"
    IN_PART = "in part"
    REPRODUCED = "reproduced"
    DIFFERS = "differs"
    MEASURED = "measured"


@dataclass(frozen=True)
class Row:
    """One figure of ours beside the printed one. Accuracies are in percent."""

    case: Case
    ours: str
    printed: str = ""
    gap: str = ""
    verdict: Verdict = Verdict.NOTHING_PRINTED
    gain: str = ""
    """Over another case, seed by seed."""
    length: str = ""
    epsilon: str = ""
    seeds: int = 0
    private: bool = True
    mark: float | None = None
    """The accuracy whose epsilon this is."""

    @property
    def name(self) -> str:
        """The case, and the accuracy where there are several figures of it."""
        return self.case.name if self.mark is None else f"{self.case.name}: {self.mark:g}"


@dataclass(frozen=True)
class Judged:
    """A claim and what was found."""

    claim: Claim
    verdict: Verdict
    found: str


@dataclass(frozen=True)
class Findings:
    """Everything about an item that was measured."""

    rows: tuple[Row, ...]
    claims: tuple[Judged, ...]
    state: State
    met: int
    printed: int


def judged(store: Store) -> Findings:
    """What ``store`` has, beside what its item expects."""
    item = store.item
    if item.kind == COMMAND:
        rows, whole = _answered(store), len(store.answers()) == len(item.cases)
    else:
        rows = _smallest(store) if item.kind == SMALLEST else _trained(store)
        runs, seeds = store.runs(), 1 if store.quick else item.seeds
        whole = all(len(runs.get(name, [])) >= seeds for name in item.runs(quick=store.quick))
    claims = tuple(judge(claim, item, store.runs()) for claim in item.claims) if item.kind == TRAIN else ()
    verdicts: list[Verdict] = [row.verdict for row in rows if row.verdict is not Verdict.NOTHING_PRINTED]
    verdicts += [each.verdict for each in claims if not each.claim.ours]
    met = sum(verdict is Verdict.MET for verdict in verdicts)
    if not rows:
        drawn = not item.cases and store.current_pictures() == store.pictures
        state = State.MEASURED if drawn else State.NOT_RUN
    elif not whole:
        state = State.IN_PART
    elif not verdicts:
        state = State.MEASURED
    else:
        state = State.REPRODUCED if met == len(verdicts) else State.DIFFERS
    return Findings(tuple(rows), claims, state, met, 0 if state is State.NOT_RUN else len(verdicts))


def _answered(store: Store) -> list[Row]:
    answers = store.answers()
    cases = [case for case in store.item.cases if case.name in answers]
    return [_compared(case, answers[case.name], case.printed[0] if case.printed else None) for case in cases]


def _compared(case: Case, ours: float, printed: float | None) -> Row:
    if printed is None:
        return Row(case, f"{ours:.4g}")
    tolerance = _SHARE * abs(printed) if case.tolerance is None else case.tolerance
    verdict = Verdict.MET if abs(ours - printed) <= tolerance + 1e-12 else Verdict.MISSED
    return Row(case, f"{ours:.4g}", f"{printed:g}", f"{ours - printed:+.3g}", verdict)


def _trained(store: Store) -> list[Row]:
    item, found = store.item, store.runs()
    rows = []
    for case in item.cases:
        runs = found.get(case.name)
        if not runs:
            continue
        accuracies = [100 * float(run["test_accuracy"]) for run in runs]
        mean = statistics.mean(accuracies)
        printed, gap, verdict = "", "", Verdict.NOTHING_PRINTED
        if case.printed:
            tolerance = _POINTS if case.tolerance is None else case.tolerance
            difference = mean - 100 * case.printed[0]
            printed, gap = f"{100 * case.printed[0]:.1f}", f"{difference:+.2f}"
            verdict = Verdict.MET if abs(difference) <= 100 * tolerance + 1e-9 else Verdict.MISSED
        other = case.beside or item.cases[0].name
        rows.append(
            Row(
                case,
                with_spread(accuracies),
                printed,
                gap,
                verdict,
                "" if other == case.name else gain_text(runs, found.get(other, [])),
                _length(case, runs),
                epsilon_text(runs[0]),
                len(runs),
                bool(runs[0]["private"]),
            )
        )
    return rows


def with_spread(accuracies: Sequence[float]) -> str:
    """Mean and, of several, their standard deviation."""
    spread = f" ± {statistics.stdev(accuracies):.2f}" if len(accuracies) > 1 else ""
    return f"{statistics.mean(accuracies):.2f}{spread}"


def epsilon_text(run: Run) -> str:
    """What is certified; of a method that is not private, that nothing is, and what its paper would say."""
    if run["private"]:
        return "none" if run["epsilon"] is None else _digits(float(run["epsilon"]))
    return "none" if run["claimed"] is None else f"none ({float(run['claimed']):.3g} claimed)"


def _digits(epsilon: float) -> str:
    """Three of them: behind the point, or where that would be fewer, all in all."""
    return f"{epsilon:.3f}" if epsilon >= 0.1 else f"{epsilon:.3g}"


def _length(case: Case, runs: Sequence[Run]) -> str:
    epochs = sorted({int(run["epochs"]) for run in runs})
    length = f"{epochs[0]}" if len(epochs) == 1 else f"{epochs[0]} to {epochs[-1]}"
    return length + (f" (printed {case.printed_epochs})" if case.printed_epochs is not None else "")


def gains(runs: Sequence[Run], others: Sequence[Run]) -> list[float]:
    """How much better than another case, seed by seed, in points."""
    theirs = {run["seed"]: float(run["test_accuracy"]) for run in others}
    return [100 * (float(run["test_accuracy"]) - theirs[run["seed"]]) for run in runs if run["seed"] in theirs]


def gain_text(runs: Sequence[Run], others: Sequence[Run]) -> str:
    """The mean gain and its standard error."""
    found = gains(runs, others)
    return f"{statistics.mean(found):+.2f} ± {_error(found):.2f}" if len(found) > 1 else ""


def _error(values: Sequence[float]) -> float:
    return statistics.stdev(values) / math.sqrt(len(values))


def judge(claim: Claim, item: Item, found: Mapping[str, Sequence[Run]]) -> Judged:
    """Whether ``claim`` holds for what was measured."""
    if claim.of is not None and claim.over is not None:
        return _judged_gain(claim, gains(found.get(claim.of, []), found.get(claim.over, [])))
    means = {
        case.name: statistics.mean(float(run["test_accuracy"]) for run in found[case.name])
        for case in item.cases
        if found.get(case.name)
    }
    if len(means) < len(item.cases):
        return Judged(claim, Verdict.NOT_SHOWN, "not all measured")
    if claim.best:
        best = max(means, key=lambda name: means[name])
        return Judged(claim, Verdict.MET if best in claim.best else Verdict.MISSED, f"best: {best}")
    assert claim.above is not None
    least = min(means, key=lambda name: means[name])
    verdict = Verdict.MET if means[least] >= claim.above else Verdict.MISSED
    return Judged(claim, verdict, f"least: {100 * means[least]:.2f} % ({least})")


def _judged_gain(claim: Claim, found: list[float]) -> Judged:
    if not found:
        return Judged(claim, Verdict.NOT_SHOWN, "not measured")
    mean = statistics.mean(found)
    if claim.printed is not None:
        tolerance = _POINTS if claim.tolerance is None else claim.tolerance
        verdict = Verdict.MET if abs(mean - 100 * claim.printed) <= 100 * tolerance + 1e-9 else Verdict.MISSED
        return Judged(claim, verdict, f"{mean:+.2f} points (printed {100 * claim.printed:+.1f})")
    if len(found) < 2:
        return Judged(claim, Verdict.NOT_SHOWN, f"{mean:+.2f} points, one seed")
    error = _error(found)
    verdict = Verdict.MET if mean > 2 * error else Verdict.MISSED if mean < -2 * error else Verdict.NOT_SHOWN
    return Judged(claim, verdict, f"{mean:+.2f} ± {error:.2f} points")


def _smallest(store: Store) -> list[Row]:
    """A row for every case and mark: the epsilon at which the mean over the seeds reaches it."""
    item, found = store.item, store.runs()
    rows = []
    for case in item.cases:
        for place, mark in enumerate(item.marks):
            if case.along is None:
                means = {
                    epsilon: statistics.mean(float(run["test_accuracy"]) for run in runs)
                    for epsilon in case.grid(quick=store.quick)
                    if (runs := found.get(f"{case.name} at {epsilon:g}"))
                }
                if len(means) < len(case.grid(quick=store.quick)):
                    continue
                answer = smallest_epsilon(means, mark)
                value, text = answer.epsilon, answer.text
                runs = found[f"{case.name} at {case.epsilons[0]:g}"]
            else:
                name = case.same_as or case.name
                runs = found.get(name, [])
                if not runs:
                    continue
                value = epsilon_along(item.runs(quick=store.quick)[name], runs, mark, case.along)
                text = "not reached" if value is None else f"{value:.3g}"
            printed = case.printed[place] if case.printed else None
            row = Row(case, text)
            if printed is not None and value is None:
                row = Row(case, text, f"{printed:g}", verdict=Verdict.MISSED)
            elif value is not None:
                row = replace(_compared(case, value, printed), ours=text)
            rows.append(replace(row, private=bool(runs[0]["private"]), seeds=len(runs), mark=mark))
    return rows


def epsilon_along(config: TrainConfig, runs: Sequence[Run], mark: float, name: str) -> float | None:
    """The epsilon by the accountant ``name`` of the steps up to the first epoch whose mean accuracy reaches ``mark``.

    Of the steps alone, as the papers count that train until an accuracy is reached; None if it is never reached.
    """
    assert config.noise_multiplier is not None
    assert config.delta is not None
    assert isinstance(config.batch_size, int)
    for points in zip(*(run["curve"] for run in runs), strict=False):
        if statistics.mean(float(point["test_accuracy"]) for point in points) >= mark:
            records = public_records(config)
            assert records is not None
            event = RunShape(q=config.batch_size / records).run(config.noise_multiplier, steps=int(points[0]["step"]))
            return accountant(name).epsilon(event, config.delta).epsilon
    return None
