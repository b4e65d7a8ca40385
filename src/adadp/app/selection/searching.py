"""A search that goes on: charged as a whole, run after run, and only one of them published.

    killed                                 on resume
    before the charge                      charged, and begun
    after the charge, before the first run begun: nothing was drawn yet, or what was drawn is forgotten
    in a run                               the run goes on from its checkpoint, or (where it cannot) begins anew
    after a run, before it is scored       scored
    while the chosen run is published      published again, the same one; see ``publishing``
    after that                             what is left is cleared away; refused: it has finished

A disk that is full, records or a schema that have changed, a device that is gone: the error is told, and the run stays
as it is.

With a seed everything repeats bit for bit: run i trains with a seed that follows from (seed, i). Without one, what was
drawn is kept in the secret folder until the end.
"""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from torch import Tensor

from adadp.app import start
from adadp.app.accounting.repetitions import draw_count
from adadp.app.config import TrainConfig
from adadp.app.runs import RunFolder
from adadp.app.selection.candidates import relation_of
from adadp.app.selection.disjoint import draw_choice, parts_of
from adadp.app.selection.publishing import SearchResult, check_replaceable, publish, put_in_place
from adadp.app.selection.score import kept_aside, right_answers, score_of
from adadp.app.selection.search_data import Material
from adadp.app.selection.search_state import Attempt, SecretFolder, State
from adadp.app.spec import RunSpec
from adadp.app.train.search_spec import PARTS, Search
from adadp.errors import InputError, Interrupted, LedgerCorrupt, RunError
from adadp.ledger import Ledger, PlannedBudget
from adadp.randomness import RandomSource, source_of
from adadp.release import Crossing

SECRET = "secret"
_COUNT, _SETTING, _TIE = "search/count", "search/setting", "search/tie"


def begin(
    search: Search, material: Material, out: str, checks_passed: Callable[[], None] | None = None
) -> SearchResult:
    """Search in a new folder; ``checks_passed`` is called when there is one."""
    check_replaceable(Path(out).absolute())
    folder = RunFolder.create(out, search.candidates[0])
    if checks_passed is not None:
        checks_passed()
    folder.write_search(search.as_json())
    return Searching(folder, search, material).run()


@dataclass(frozen=True)
class Searching:
    """One search in this process."""

    folder: RunFolder
    search: Search
    material: Material

    def run(self) -> SearchResult:
        """Charge, make the runs that are left, and publish."""
        search, event = self.search, self.search.event()
        with self._ledger(PlannedBudget(event)) as ledger:
            if event not in ledger.charges:
                ledger.charge(event)
            state, places = self.secret.read() or self._first()
            crossing = Crossing(ledger, self.source)
            while state.done < state.count:
                state = self._next(state, places, crossing)
            winner = self._winner(state, crossing)
            if search.by == PARTS and state.chosen is None and winner is not None:
                state = replace(state, chosen=winner.setting)
                self.secret.write(state)
            run = None if winner is None else RunFolder.open(self.secret.folder_of(winner))
            score = None if winner is None or search.by == PARTS else winner.value
            found = replace(search, chosen=None if winner is None else winner.setting, score=score)
            result = publish(self.folder.path, found, self.material, run)
        put_in_place(self.folder.path)
        return result

    @property
    def secret(self) -> SecretFolder:
        return SecretFolder(self.folder.path / SECRET)

    @property
    def source(self) -> RandomSource:
        return source_of(self._seed)

    def _ledger(self, budget: PlannedBudget) -> Ledger:
        if self.folder.ledger_path.exists():
            return Ledger.open(self.folder.ledger_path, budget=budget)
        if self.secret.exists:
            raise LedgerCorrupt(
                f"The ledger of the search in {self.folder.path} is missing.",
                why="What it may publish is no longer known.",
                fix="Put ledger.jsonl back. Do not go on without it.",
            )
        return Ledger.create(self.folder.ledger_path, budget=budget, seeded=self._seed is not None)

    def _first(self) -> tuple[State, Tensor]:
        """Draw how many runs there will be, and the part of every record."""
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
        state = State(count)
        self.secret.begin(state, places)
        return state, places

    def _next(self, state: State, places: Tensor, crossing: Crossing) -> State:
        """The state after one run more."""
        if len(places) != self.material.size:
            raise InputError("The data has changed since the search began.", fix="Put it back as it was.")
        if state.current is None:
            state = state.begun(self._setting(state.done))
            self.secret.write(state)
        attempt = state.current
        assert attempt is not None
        folder = self._trained(attempt, places)
        state = state.over(self._kept(state.kept, self._valued(attempt, folder, places, crossing)))
        self.secret.write(state)
        return state

    def _setting(self, run: int) -> int:
        """Which candidate a run is: each in turn by parts, else any with the same chance."""
        if self.search.by == PARTS:
            return run
        count = len(self.search.candidates)
        return min(int(float(self.source.uniform(1, purpose=_SETTING, step=run)) * count), count - 1)

    def _trained(self, attempt: Attempt, places: Tensor) -> RunFolder:
        """The finished run of ``attempt``: made, gone on with, or found."""
        place = self.secret.folder_of(attempt)
        config = self.search.candidates[attempt.setting].replace(seed=seed_of_run(self._seed, attempt.run))
        records = self.material.part(config, places == (attempt.setting if self.search.by == PARTS else 0))
        try:
            if place.exists() and not _is_over(place, config, records):
                shutil.rmtree(place)
            if not place.exists():
                start.run_on(records, RunSpec.of(config), place)
        except Interrupted:
            raise Interrupted(
                f"The search was stopped. Everything is saved in {self.folder.path}.",
                why="What is in its folder must stay secret until it has finished.",
                fix=f"Go on with: adadp tune --resume {self.folder.path}",
            ) from None
        return RunFolder.open(place)

    @property
    def _seed(self) -> int | None:
        return self.search.candidates[0].seed

    def _valued(self, attempt: Attempt, folder: RunFolder, places: Tensor, crossing: Crossing) -> Attempt:
        """``attempt`` with its score, or by parts with its errors on the last part."""
        config, search = self.search.candidates[attempt.setting], self.search
        last = len(search.candidates) if search.by == PARTS else 1
        values, labels = self.material.scored(config, places == last)
        right = right_answers(self.material.model(config, folder), values, labels, config.device)
        if search.by == PARTS:
            return replace(attempt, value=float(len(labels) - right))
        assert search.scoring is not None
        score = score_of(
            right,
            len(labels),
            search.scoring,
            neighbours=relation_of(config),
            crossing=crossing,
            run=attempt.run,
        )
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


def _is_over(place: Path, config: TrainConfig, records: start.Prepared) -> bool:
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
        start.run_on(records, RunSpec.of(config), place, resume=True)
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
