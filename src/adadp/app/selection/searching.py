"""A search: it is charged as a whole, makes its runs, and publishes one of them.

How many runs there are, and their settings, is drawn before the first is made. They are made one after another, or on
an executor, some at a time. Each is made whatever becomes of the others, and they are valued in the order they were
drawn in: what is published has the same distribution, and with a seed is the same, whoever made them and in what order.

    killed                                 on resume
    before the charge                      charged, and begun
    after the charge, before the first run begun: nothing was drawn yet, or what was drawn is forgotten
    in a run                               the run resumes from its checkpoint, or (where it cannot) begins anew
    after a run, before it is scored       scored
    while the chosen run is published      published again, the same one; see ``publishing``
    after that                             what is left is cleared away; refused: it has finished

    a worker of the executor, in a run     another worker does what is done on resume; where a second one dies, the
                                           search stops and stays as it is. No run is left out: that would choose among
                                           runs, which nobody has paid for

A disk that is full, records or a schema that have changed, a device that is gone: the error is told, and the run stays
as it is.

With a seed everything repeats bit for bit: run i trains with a seed that follows from (seed, i). Without one, what was
drawn is kept in the secret folder until the end.
"""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Callable
from concurrent.futures import Executor
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from torch import Tensor

from adadp.app import start
from adadp.app.accounting.repetitions import draw_count
from adadp.app.config import TrainConfig
from adadp.app.owndata import own_path
from adadp.app.runs import RunFolder
from adadp.app.runs.anchor import going_on
from adadp.app.selection.candidates import relation_of
from adadp.app.selection.disjoint import draw_choice, parts_of
from adadp.app.selection.publishing import SearchResult, check_replaceable, publish, put_in_place
from adadp.app.selection.score import kept_aside, right_answers, score_of
from adadp.app.selection.search_data import Material, part_of
from adadp.app.selection.search_state import Attempt, SecretFolder, State
from adadp.app.spec import RunSpec
from adadp.app.sweeps.handing import Failure, Task, run_tasks
from adadp.app.sweeps.shared import check_shared
from adadp.app.train import Status
from adadp.app.train.counting import Counted, budget_of, check_events
from adadp.app.train.search_spec import PARTS, Search
from adadp.errors import Interrupted, LedgerCorrupt, RunError
from adadp.ledger import Ledger, PlannedBudget
from adadp.randomness import RandomSource, source_of
from adadp.release import Crossing

SECRET = "secret"
_COUNT, _SETTING, _TIE = "search/count", "search/setting", "search/tie"


def begin(
    search: Search,
    material: Material,
    out: str,
    checks_passed: Callable[[], None] | None = None,
    executor: Executor | None = None,
) -> SearchResult:
    """Search in a new folder; ``checks_passed`` is called when there is one."""
    check_replaceable(Path(out).absolute())
    if executor is not None:
        check_workers(executor, search, Path(out).absolute())
    if search.candidates[0].budget is not None:
        check_events(search.candidates[0], [search.event()])
    folder = RunFolder.create(out, search.candidates[0])
    if checks_passed is not None:
        checks_passed()
    folder.write_search(search.as_json())
    return Searching(folder, search, material, executor).run()


def check_workers(executor: Executor, search: Search, out: Path) -> None:
    """Refuse an ``executor`` whose workers do not see the folder of the search, which is perhaps not there yet."""
    scored = None if search.scoring is None else search.scoring.file
    more = [] if scored is None else [str(own_path(scored, search.candidates[0].data.partition(":")[0]))]
    check_shared(executor, out.parent, search.candidates, more)


@dataclass(frozen=True)
class Searching:
    """One search in this process."""

    folder: RunFolder
    search: Search
    material: Material
    executor: Executor | None = None
    """Who makes the runs; None: this process, one after another."""

    def run(self) -> SearchResult:
        """Charge, make the runs that are left, and publish."""
        search, event = self.search, self.search.event()
        with self._ledger(PlannedBudget(event)) as ledger, self._alone(ledger.run):
            if event not in ledger.charges:
                ledger.charge(event)
            state, places = self.secret.read() or self._first()
            crossing = Crossing(ledger, self.source)
            if self.executor is not None and state.waiting:
                state = self._made_by(self.executor, state, places, crossing)
            while state.waiting:
                self._make(state.waiting[0], places)
                state = self._next(state, places, crossing)
            winner = self._winner(state, crossing)
            if search.by == PARTS and state.chosen is None and winner is not None:
                state = replace(state, chosen=winner.setting)
                self.secret.write(state)
            run = None if winner is None else RunFolder.open(self.secret.folder_of(winner))
            score = None if winner is None or search.by == PARTS else winner.value
            found = replace(search, chosen=None if winner is None else winner.setting, score=score)
            counted = self._counted(ledger.run)
            stated = None if counted is None else counted.statement()
            result = publish(self.folder.path, found, self.material, run, name=ledger.run, data_budget=stated)
        put_in_place(self.folder.path)
        if counted is not None:
            counted.settle(self.folder.ledger_path)
        return result

    def _alone(self, run: str) -> AbstractContextManager[object]:
        """While the search goes on, no copy of its folder does. Nothing else is noted: how long it takes is secret."""
        return nullcontext() if self._seed is not None else going_on(run, self.folder.path)

    def _counted(self, run: str) -> Counted | None:
        """The search in the budget of its data, if there is one: as a whole, with the id of its ledger."""
        config = self.search.candidates[0]
        return None if config.budget is None else Counted(budget_of(config), run, None)

    @property
    def secret(self) -> SecretFolder:
        return SecretFolder(self.folder.path / SECRET)

    @property
    def source(self) -> RandomSource:
        return source_of(self._seed)

    def _ledger(self, budget: PlannedBudget) -> Ledger:
        config = self.search.candidates[0]
        if self.folder.ledger_path.exists():
            ledger = Ledger.open(self.folder.ledger_path, budget=budget)
            if config.budget is not None:
                try:
                    Counted.resume(config, ledger.run, None)
                except BaseException:
                    ledger.close()
                    raise
            return ledger
        if self.secret.exists:
            raise LedgerCorrupt(
                f"The ledger of the search in {self.folder.path} is missing.",
                why="What it may publish is no longer known.",
                fix="Put ledger.jsonl back. Do not resume without it.",
            )
        run = None if config.budget is None else Counted.reserve(config, self.search.event(), timed=False).run
        return Ledger.create(self.folder.ledger_path, budget=budget, run=run, seeded=self._seed is not None)

    def _first(self) -> tuple[State, Tensor]:
        """Draw how many runs there will be and their settings, and the part of every record."""
        search, source = self.search, self.source
        relation = relation_of(search.candidates[0])
        if search.by == PARTS:
            count = len(search.candidates)
            places = parts_of(self.material.size, count, size=search.records, neighbours=relation, source=source)
        else:
            assert search.repetitions is not None
            assert search.scoring is not None
            count = draw_count(search.repetitions, float(source.uniform(1, purpose=_COUNT, step=0)))
            public = search.records + (search.scoring.size or 0)
            held = kept_aside(self.material.size, search.scoring, public=public, neighbours=relation, source=source)
            places = held.long()
        state = State.drawn(self._setting(run) for run in range(count))
        self.secret.begin(state, places)
        return state, places

    def _make(self, attempt: Attempt, places: Tensor) -> None:
        records = self.material.prepared(self.search.candidates[attempt.setting])
        try:
            make_run(self.search, self.secret, attempt, records, places)
        except Interrupted:
            raise self._stopped() from None

    def _made_by(self, executor: Executor, state: State, places: Tensor, crossing: Crossing) -> State:
        """Make all runs that are left on ``executor``, and value each when those before it have been."""
        failures, made = dict[str, Failure](), set[str]()

        def finished(task: Task, _: object, failure: Failure | None) -> None:
            nonlocal state
            if failure is not None:
                failures[task.name] = failure
            made.add(task.name)
            while state.waiting and state.waiting[0].folder in made - failures.keys():
                state = self._next(state, places, crossing)

        # The name of a task and what it is given tell neither its setting nor its number: the worker reads them.
        tasks = [Task(each.folder, partial(made_elsewhere, self.folder.path, each.folder)) for each in state.waiting]
        try:
            run_tasks(tasks, executor, marks=self.secret.marks, finished=finished, deaths=1)
        except Interrupted:  # it tells how many runs there are
            raise self._stopped() from None
        for each in tasks:
            if each.name in failures:
                raise RunError(
                    f"A run of the search failed. {failures[each.name]}",
                    why="A search publishes nothing before all its runs are made.",
                    fix=f"Mend it, and resume with: adadp tune --resume {self.folder.path}",
                )
        return state

    def _stopped(self) -> Interrupted:
        return Interrupted(
            f"The search was stopped. Everything is saved in {self.folder.path}.",
            why="What is in its folder must stay secret until it has finished.",
            fix=f"Resume it with: adadp tune --resume {self.folder.path}",
        )

    def _next(self, state: State, places: Tensor, crossing: Crossing) -> State:
        """Value the first of the runs that wait, which is made."""
        attempt = state.waiting[0]
        folder = RunFolder.open(self.secret.folder_of(attempt))
        state = state.over(self._kept(state.kept, self._valued(attempt, folder, places, crossing)))
        self.secret.write(state)
        return state

    def _setting(self, run: int) -> int:
        """Which candidate a run is: each in turn by parts, else any with the same chance."""
        if self.search.by == PARTS:
            return run
        count = len(self.search.candidates)
        return min(int(float(self.source.uniform(1, purpose=_SETTING, step=run)) * count), count - 1)

    @property
    def _seed(self) -> int | None:
        return self.search.candidates[0].seed

    def _valued(self, attempt: Attempt, folder: RunFolder, places: Tensor, crossing: Crossing) -> Attempt:
        config, search = self.search.candidates[attempt.setting], self.search
        last = len(search.candidates) if search.by == PARTS else 1
        values, labels = self.material.scored(config, places == last)
        right = right_answers(self.material.model(config, folder), values, labels, config.device)
        if search.by == PARTS:
            return replace(attempt, value=float(len(labels) - right))
        assert search.scoring is not None
        neighbours = relation_of(config)
        score = score_of(right, len(labels), search.scoring, neighbours=neighbours, crossing=crossing, run=attempt.run)
        tie = float(self.source.uniform(1, purpose=_TIE, step=attempt.run))
        return replace(attempt, value=score, tie=tie)

    def _kept(self, kept: tuple[Attempt, ...], new: Attempt) -> tuple[Attempt, ...]:
        """What may still be published: by parts every run, else the best."""
        if self.search.by == PARTS:
            return (*kept, new)
        return (max((*kept, new), key=lambda each: (each.value, each.tie)),)

    def _winner(self, state: State, crossing: Crossing) -> Attempt | None:
        """The run that is published; None where none was made."""
        if self.search.by != PARTS:
            return state.kept[0] if state.kept else None
        assert self.search.select_epsilon is not None
        if state.chosen is None:
            errors = [int(each.value or 0) for each in state.kept]
            relation = relation_of(self.search.candidates[0])
            return state.kept[draw_choice(errors, self.search.select_epsilon, relation, crossing)]
        return state.kept[state.chosen]


def made_elsewhere(out: Path, name: str, *, watch: Callable[[Status], None]) -> None:
    """In a worker: make the run in the folder ``name`` of the search in ``out``, from files alone."""
    found, secret = RunFolder.open(out).search(), SecretFolder(out / SECRET)
    assert found is not None
    search = Search.from_json(found)
    (attempt,) = (each for each in secret.state().waiting if each.folder == name)
    records = start.prepared(RunSpec.of(search.candidates[attempt.setting]))
    make_run(search, secret, attempt, records, secret.places(), watch)


def make_run(  # noqa: PLR0917
    search: Search,
    secret: SecretFolder,
    attempt: Attempt,
    records: start.Prepared,
    places: Tensor,
    watch: Callable[[Status], None] | None = None,
) -> None:
    """Make the run of ``attempt`` in its folder, or go on with it; ``records`` are all there are."""
    place = secret.folder_of(attempt)
    config = search.candidates[attempt.setting]
    config = config.replace(seed=seed_of_run(config.seed, attempt.run))
    part = part_of(records, places == (attempt.setting if search.by == PARTS else 0))
    if place.exists() and not _is_over(place, config, part, watch):
        shutil.rmtree(place)
    if not place.exists():
        start.run_on(part, RunSpec.of(config), place, anchored=False, watch=watch)  # how many runs there are is secret


def _is_over(place: Path, config: TrainConfig, records: start.Prepared, watch: Callable[[Status], None] | None) -> bool:
    """Whether the run that was begun in ``place`` is there as a whole, perhaps after it went on. False: it cannot.

    A kill can leave a run without a checkpoint, which has released nothing, and one whose features were paid for and
    not saved; a disk can damage its files. Such a run begins anew, with new noise, and no charge is due for that: the
    ledger of the search holds the runs its law draws, each for what is kept of it. Of a run that is given up nothing
    is kept and nothing was seen, and whether it is given up depends on the kill and the disk, not on its records: the
    run in its place has the distribution that was charged. For the same reason no other error begins a run anew: one
    that the records cause would choose among runs, which nobody has paid for.
    """
    folder = RunFolder(place, config)
    if folder.finished:
        return True
    if not (folder.config_path.exists() and folder.checkpoint_path.exists()):
        return False
    try:
        start.run_on(records, RunSpec.of(config), place, resume=True, anchored=False, watch=watch)
    except (RunError, LedgerCorrupt) as error:
        if isinstance(error.__cause__, OSError):  # the disk is full, or does not answer
            raise
        return False
    return True


def seed_of_run(seed: int | None, run: int) -> int | None:
    """The seed of one run of a seeded search, another for every run; None where there is none."""
    if seed is None:
        return None
    return int.from_bytes(hashlib.blake2b(f"{seed}:search/run:{run}".encode(), digest_size=8).digest(), "little") >> 1
