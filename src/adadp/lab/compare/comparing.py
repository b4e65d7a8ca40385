"""``compare``: check and plan everything, prepare the data once, make the runs, write what they came to.

a new or empty folder                       the comparison is made there
a folder of the same comparison             it goes on: finished runs are read, stopped ones resumed, failed retried
the same with another title or other marks  the same: they change no run
the same with more seeds, or to refine      on a public data set: the runs that are missing are made
a folder of another comparison, or of       ``InputError`` that names what differs
anything else
another process at work in the folder       ``InputError``
a run that fails                            it is listed under ``failed``; the others go on
refine on data of the user's own            ``InputError``: epsilons would follow results, which no sum covers
more than ``most_epsilon`` in all           ``InputError`` before the first run, or before those of a refinement: what
                                            was run until then is written, with its page
killed in the middle                        results.json has what was finished, and as total what was planned
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from adadp import checks
from adadp.app import start
from adadp.app.features import Progress as FeatureProgress
from adadp.app.features import Shape
from adadp.app.owndata import is_own
from adadp.app.report.html import write_report
from adadp.app.runs.atomic import cannot_write, clean, write_atomic
from adadp.app.runs.folder import has_finished
from adadp.app.spec import RunSpec
from adadp.app.sweeps.handing import Failure, Running, Task, run_tasks
from adadp.app.sweeps.processes import Processes, cores
from adadp.app.sweeps.shared import check_shared
from adadp.app.train.counting import check_events, event_of
from adadp.app.zoo.models import build_model
from adadp.errors import InputError, Interrupted
from adadp.lab.compare.measuring import Measured, measured_run
from adadp.lab.compare.planning import PlannedCase, is_public, plan_all, plan_further, same_folder
from adadp.lab.compare.privacy import ahead, charged, remember, removed, total_of
from adadp.lab.compare.results import Board, Results, write_results
from adadp.lab.compare.spec import Comparison
from adadp.lab.compare.statistics import between, smallest_epsilon

SPEC_NAME = "comparison.toml"
_LOCK_NAME = ".lock"
_MARKS_NAME = ".running"
_UNSAID = "What it said is not kept, as it may tell about records, and that it failed is not covered by the total. "
_KEEP = (
    "Leave its folder where it is: what it charged counts in the total. If the same command cannot go on with it, do "
    "without this run, or compare in another folder, which costs its own total."
)


@dataclass(frozen=True)
class UnderWay:
    """A run that is being made."""

    name: str
    epsilon: float | None
    seed: int
    step: int
    steps: int
    """0 as long as its length is not known."""


@dataclass(frozen=True)
class Ended:
    """A run that has just ended: with an accuracy, or with an error."""

    name: str
    epsilon: float | None
    seed: int
    accuracy: float | None
    error: str


@dataclass(frozen=True)
class Progress:
    """Where a comparison is, for whoever shows it."""

    results: Results
    done: int
    runs: int
    running: tuple[UnderWay, ...] = ()
    ended: Ended | None = None
    """Told once, when it happens."""
    seconds_left: float | None = None
    planned_total: dict[str, Any] | None = None
    """What all runs will cost together; told once, before the first."""


Watch = Callable[[Progress], None]


def compare(
    spec: Comparison,
    out: str | os.PathLike[str],
    *,
    workers: int | None = None,
    executor: Executor | None = None,
    command: str | None = None,
    most_epsilon: float | None = None,
    watch: Watch | None = None,
    features: FeatureProgress | None = None,
) -> Results:
    """Make the comparison ``spec`` in the folder ``out``, or go on with it, and return its results.

    ``workers`` runs are made at a time, each in a process of its own; without it as many as there are cores. An
    ``executor`` makes them instead, if its workers see ``out`` and what the runs read under the same paths: one of them
    is asked first.
    ``most_epsilon`` is the most that all runs may cost together. ``watch`` is told how far it is, ``features`` how far
    features are. ``command`` is what the results say how to run it again.
    """
    hands = executor or (cores() if workers is None else checks.count("workers", workers))
    if most_epsilon is not None:
        checks.positive("most_epsilon", most_epsilon)
    place = Path(out).absolute()
    _check_place(place, spec)
    planned = plan_all(spec)
    if spec.refine and not is_public(planned):
        raise InputError(
            "A refinement was asked for on data of your own.",
            why="Its epsilons are chosen by what earlier runs came to, and no composition theorem covers such a sum.",
            fix="Leave `refine` out, and give the epsilons to try beforehand.",
        )
    cost = _planned_cost(planned, spec, place, most_epsilon)
    _check_budget(planned, spec, place)
    with _occupied(place, spec):
        board = Board(spec, planned, command or f"adadp compare {SPEC_NAME} --out again")
        if executor is not None:
            check_shared(executor, place, [case.config for case in planned])
        work = _Work(board, place, hands, watch, cost)
        work.tell(planned_total=cost)
        if not all(has_finished(place / case.folder(seed)) for case in planned for seed in spec.seeds):
            prepare(planned, features)
        work.make(planned)
        try:
            work.refine(most_epsilon)
        except InputError:  # whatever is wrong with further runs, those that were made stand
            work.conclude()
            raise
        work.conclude()
        return work.results


def prepare(planned: Sequence[PlannedCase], features: FeatureProgress | None) -> None:
    """Fetch data and make features once, ahead of many processes that would all do it; try every network by name."""
    known: dict[tuple[str | None, ...], tuple[Shape, int]] = {}
    tried = set()
    for case in planned:
        config = case.config
        key = (config.data, config.target, config.schema, config.features)
        if key not in known:
            records = start.prepared(RunSpec.of(config), features)
            known[key] = records.shape, records.inputs.outputs
        if (key, config.model) not in tried:
            tried.add((key, config.model))
            assert config.model is not None
            shape, classes = known[key]
            build_model(config.model, input_shape=shape, classes=classes, seed=0)


class _Work:
    """A comparison at work: who is told, and when what is written."""

    def __init__(
        self, board: Board, place: Path, workers: int | Executor, watch: Watch | None, cost: Mapping[str, Any]
    ) -> None:
        self.board, self.place, self.workers, self.watch = board, place, workers, watch
        self.cost = cost
        """Of all runs planned so far: what is written as total until the end, as it takes seconds to compute."""
        self.results: Results = {}
        self.write(cost)
        self._asked: dict[str, tuple[PlannedCase, int]] = {}
        """By the name of its task, the case and seed of a run."""
        self._began, self._done_before = time.monotonic(), 0

    def make(self, cases: Sequence[PlannedCase]) -> None:
        """All runs of ``cases``, seed by seed, so that a stop leaves whole seeds.

        On a public data set cases share the seed, so that less than everything differs between them. On records of the
        user's own runs that share noise could be subtracted from each other, which no composition covers: they are
        made without a seed, and the number only tells them apart.
        """
        tasks, there = list[Task](), 0
        shared = is_public(self.board.planned)
        for seed in self.board.spec.seeds:
            for case in cases:
                config, folder = case.config.replace(seed=seed if shared else None), self.place / case.folder(seed)
                there += has_finished(folder)  # it is only read, and says nothing about the others
                self._asked[folder.name] = case, seed
                tasks.append(Task(folder.name, partial(measured_run, config, folder)))
        self._began = time.monotonic()
        self._done_before = len(self.board.measured) + len(self.board.failed) + there
        try:
            with self._hands(len(tasks)) as executor:
                marks = self.place / _MARKS_NAME
                run_tasks(tasks, executor, marks=marks, finished=self._finished, tick=self._tick)
        except (Interrupted, KeyboardInterrupt) as stopped:
            done, runs = self._counts()
            self.settle()
            saved = f"Everything is saved in {self.place}."
            if isinstance(stopped, KeyboardInterrupt):
                saved = f"The runs in {self.place} that were not waited for are as they were saved last."
            raise Interrupted(
                f"Stopped with {done} of {runs} runs done. {saved}", fix="The same command goes on."
            ) from None

    @contextmanager
    def _hands(self, most: int) -> Iterator[Executor]:
        """The executor that was given, or processes of our own, no more than there are runs."""
        if isinstance(self.workers, Executor):
            yield self.workers
            return
        with Processes(max(1, min(self.workers, most))) as processes:
            yield processes

    def refine(self, most_epsilon: float | None) -> None:
        """Further runs at epsilons that follow results, as often as was asked for."""
        board = self.board
        for _ in range(board.spec.refine):
            found = _refinements(board)
            if not found:
                return
            self.cost = _planned_cost([*board.planned, *found], board.spec, self.place, most_epsilon)
            board.planned += found
            self.make(found)

    def write(self, total: Mapping[str, Any]) -> None:
        """Write the results as they are."""
        self.results = self.board.results(total)
        write_results(self.results, self.place)

    def settle(self) -> None:
        """Write the results with what has really been charged."""
        board = self.board
        remember(board.planned, board.spec.seeds, self.place)
        spent = charged(board.planned, board.spec.seeds, self.place)
        for each in spent:
            if each.lost and each.folder and each.folder not in board.measured:
                board.failed.setdefault(each.folder, self._kept(Failure(each.lost)))
        self.write(total_of(spent, public=is_public(board.planned)))

    def conclude(self) -> None:
        """Write the results as they stay, and their page."""
        self.settle()
        write_report(self.place)

    def tell(self, running: Sequence[Running] = (), **more: Any) -> None:
        if self.watch is not None:
            done, runs = self._counts()
            asked = [(each, *self._asked[each.name]) for each in running]
            under_way = tuple(UnderWay(case.name, case.epsilon, seed, at.step, at.steps) for at, case, seed in asked)
            self.watch(Progress(self.results, done, runs, under_way, seconds_left=self._left(running), **more))

    def _counts(self) -> tuple[int, int]:
        board = self.board
        return len(board.measured) + len(board.failed), len(board.planned) * len(board.spec.seeds)

    def _tick(self, running: Sequence[Running]) -> None:
        remember(self.board.planned, self.board.spec.seeds, self.place)
        self.tell(running)

    def _finished(self, task: Task, measured: Measured | None, failure: Failure | None) -> None:
        case, seed = self._asked[task.name]
        if measured is not None:
            self.board.measured[case.folder(seed)] = {**measured, "seed": seed}
        elif failure is not None:
            self.board.failed[case.folder(seed)] = self._kept(failure)
        self.write(self.cost)
        accuracy = None if measured is None else float(measured["test_accuracy"])
        self.tell(ended=Ended(case.name, case.epsilon, seed, accuracy, "" if failure is None else str(failure)))

    def _kept(self, failure: Failure) -> str:
        """What the results say about a run that failed: on a user's own records nothing that may be about them."""
        if is_public(self.board.planned):
            return str(failure)
        return f"{failure.kind}. {_UNSAID}{_KEEP}" if failure.tells else f"{failure} {_KEEP}"

    def _left(self, running: Sequence[Running]) -> float | None:
        """By how long the runs of this call took so far; None before there is anything to go by."""
        done, runs = self._counts()
        parts = sum(each.step / each.steps for each in running if each.steps)
        made = done - self._done_before + parts
        if made <= 0:
            return None
        return (time.monotonic() - self._began) / made * (runs - done - parts)


def _refinements(board: Board) -> list[PlannedCase]:
    """The cases at further epsilons, each between one that reaches a mark and the one before."""
    found: list[PlannedCase] = []
    for case in board.spec.cases:
        means = board.means(case.name)
        there = [each.epsilon for each in board.planned if each.name == case.name]  # those with a failed run too
        wanted = sorted(filter(None, {between(smallest_epsilon(means, mark)) for mark in board.spec.marks}))
        new = [epsilon for epsilon in wanted if not any(same_folder(epsilon, each) for each in there)]
        found += [plan_further(board.spec, case, epsilon) for epsilon in new]
    return found


def _planned_cost(planned: Sequence[PlannedCase], spec: Comparison, place: Path, most: float | None) -> dict[str, Any]:
    """What all runs will cost together, with those that were removed from ``place``, if that is allowed."""
    runs = [*ahead(planned, len(spec.seeds)), *removed(planned, spec.seeds, place)]
    cost = total_of(runs, public=is_public(planned))
    if most is not None and (cost["epsilon"] is None or cost["epsilon"] > most):
        raise InputError(
            f"The comparison would cost more than epsilon {most:g} in all. {cost['text']}",
            fix="Compare fewer methods, epsilons or seeds, or allow more.",
        )
    return cost


def _check_budget(planned: Sequence[PlannedCase], spec: Comparison, place: Path) -> None:
    """Refuse a comparison of which not all runs fit into the budget of the data. Each reserves for itself, later."""
    budgets = {case.config.budget for case in planned}
    if budgets == {None}:
        return
    if len(budgets) > 1:
        raise InputError(
            "The cases name different budgets.",
            why="Their runs read the same records: what they cost adds up in one.",
            fix="Give one `budget` for all.",
        )
    if is_public(planned):
        raise InputError(
            "A `budget` was given, and the data set is public.",
            why="Runs of a comparison share their seeds there: they protect nothing, and no budget covers them.",
            fix="Leave `budget` out.",
        )
    new = [
        event_of(RunSpec.of(case.config), case.plan)
        for case in planned
        for seed in spec.seeds
        if not (place / case.folder(seed) / "config.toml").exists()
    ]
    check_events(planned[0].config, new)


def _check_place(place: Path, spec: Comparison) -> None:
    """Refuse a folder with anything in it but this very comparison."""
    there = place / SPEC_NAME
    if there.exists():
        known = Comparison.from_toml(there)
        changed = [name for name in spec.changed_since(known) if name not in _may_change(known, spec)]
        if changed:
            raise InputError(
                f"{place} has another comparison: {', '.join(changed)} differ{'s' if len(changed) == 1 else ''}.",
                why="Results of different settings must not stand together.",
                fix=f"Choose another folder, or go on with that one: adadp compare {there} --out {place}",
            )
    if not there.exists() and place.exists() and any(path.name != _LOCK_NAME for path in place.iterdir()):
        raise InputError(
            f"{place} is not empty, and it is no comparison.",
            why="Its files would stand among the results.",
            fix="Choose another folder.",
        )


def _may_change(known: Comparison, spec: Comparison) -> set[str]:
    """What may differ where a comparison goes on.

    On a user's own records how many runs are made must not follow from what earlier ones came to: no sum covers that.
    """
    free = {"title", "marks"}
    data = {str(each.get("data")) for each in (spec.base, *(case.settings for case in spec.cases)) if "data" in each}
    if any(map(is_own, data)):
        return free
    return free | {"refine"} | ({"seeds"} if set(known.seeds) <= set(spec.seeds) else set())


@contextmanager
def _occupied(place: Path, spec: Comparison) -> Iterator[None]:
    """Hold the folder, which is new or that of the same comparison."""
    lock = FileLock(place / _LOCK_NAME, timeout=0)
    try:
        place.mkdir(parents=True, exist_ok=True)
        lock.acquire()
    except Timeout:
        raise InputError(
            f"Another process is at work in {place}.", fix="Wait for it, or choose another folder."
        ) from None
    except OSError as error:
        raise cannot_write(place, error) from error
    try:
        clean(place)
        _check_place(place, spec)
        if not (place / SPEC_NAME).exists() or Comparison.from_toml(place / SPEC_NAME) != spec:
            write_atomic(place / SPEC_NAME, spec.to_toml().encode("utf-8"))
        yield
    finally:
        lock.release()
