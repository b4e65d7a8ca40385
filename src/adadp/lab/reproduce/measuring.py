"""Run an item: train what it asks for, or ask its commands. What has been measured already stays."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from adadp.app.config import TrainConfig
from adadp.app.sweeps.handing import Failure, Task, run_tasks
from adadp.app.sweeps.shared import check_shared
from adadp.app.train import Status
from adadp.errors import InputError, RunError
from adadp.lab.compare.measuring import measured_run
from adadp.lab.reproduce.items import COMMAND, Case, Drawing
from adadp.lab.reproduce.storing import Run, Store

Tell = Callable[[str], None]
_KEPT = (
    *("seed", "test_accuracy", "private", "epsilon", "claimed", "delta", "neighbours", "sampling"),
    *("noise_multiplier", "noise", "steps", "epochs", "seconds"),
)


def measure(
    store: Store,
    *,
    seeds: Iterable[int] | None = None,
    again: bool = False,
    executor: Executor | None = None,
    tell: Tell = print,
) -> None:
    """Measure what is missing; with ``again`` everything. Results are written one by one, so a stop loses one.

    An ``executor`` makes the training runs, if its workers see ``store.out``; commands are always run here. A run that
    fails there is told, the others are made, and then it is an error.
    """
    item = store.item
    if item.kind == COMMAND:
        _ask(store, again=again, tell=tell)
        return
    wanted = range(1 if store.quick else item.seeds) if seeds is None else seeds
    asked = item.runs(quick=store.quick)
    missing = list[_Asked]()
    for seed in wanted:
        for name, config in asked.items():
            each = _Asked(name, config, seed)
            done = {int(run["seed"]) for run in store.runs().get(name, [])}
            if not again and seed in done:
                continue
            there = None if again else store.elsewhere(config, seed)
            if there is None and executor is not None:
                missing.append(each)
            else:
                _keep(store, each, there or _trained(config.replace(seed=seed)), tell, elsewhere=there is not None)
    if executor is not None and missing:
        _measure_on(executor, store, missing, tell)


@dataclass(frozen=True)
class _Asked:
    """A run that is missing."""

    name: str
    config: TrainConfig
    seed: int


def _keep(store: Store, asked: _Asked, run: Run, tell: Tell, *, elsewhere: bool = False) -> None:
    store.keep_run(asked.name, asked.config, run)
    how = "as in another item" if elsewhere else f"in {run['seconds']:.0f} s"
    tell(f"{store.item.path}: {asked.name}, seed {asked.seed}: {100 * run['test_accuracy']:.2f} % {how}")


def _measure_on(executor: Executor, store: Store, missing: Sequence[_Asked], tell: Tell) -> None:
    asked = {f"run{number}": each for number, each in enumerate(missing)}
    tasks = [Task(name, partial(_trained, each.config.replace(seed=each.seed))) for name, each in asked.items()]
    failed = list[str]()

    def finished(task: Task, run: Run, failure: Failure | None) -> None:
        each = asked[task.name]
        if failure is None:
            _keep(store, each, run, tell)
        else:
            failed.append(f"{each.name}, seed {each.seed}")
            tell(f"{store.item.path}: {failed[-1]}: FAILED: {failure}")

    check_shared(executor, store.out, [])
    marks = store.out / f".running-{store.item.paper}-{store.item.name}"
    run_tasks(tasks, executor, marks=marks, finished=finished)
    if failed:
        raise RunError(
            f"Of {store.item.path} these runs failed: {'; '.join(failed)}.",
            why="The others are kept.",
            fix="The same command makes what is missing.",
        )


def _ask(store: Store, *, again: bool, tell: Tell) -> None:
    """Every command of which an answer or a picture is missing, once, and one that gives both once for both."""
    known, current = ({}, []) if again else (store.answers(), store.current_pictures())
    asking: dict[str, list[Case]] = {}
    for case in store.item.cases:
        if case.name not in known:
            asking.setdefault(store.item.command(case.name, quick=store.quick), []).append(case)
    drawings = [(drawing, target) for drawing, target in store.drawings() if target not in current]
    for command, cases in asking.items():
        both = next((each for each in drawings if each[0].asks == command), None)
        if both is None:
            tell(f"adadp {command}")
            _answered(store, cases, command)
        else:
            drawings.remove(both)
            _drawn(store, *both, cases, tell)
    for drawing, target in drawings:
        _drawn(store, drawing, target, [], tell)


def _drawn(store: Store, drawing: Drawing, target: Path, cases: Iterable[Case], tell: Tell) -> None:
    """Run a command that draws, and keep its picture and what it answers to ``cases``."""
    with tempfile.TemporaryDirectory() as place:
        file = Path(place) / (drawing.take or "drawing.png")
        tell(f"adadp {drawing.asks}")
        _answered(store, cases, drawing.run.format(file=shlex.quote(str(file)), out=shlex.quote(place)))
        if not file.is_file():
            raise InputError(f"`adadp {drawing.run}` of {store.item.path} left no {file.name}.")
        store.keep_picture(drawing, target, file.read_bytes())


def _answered(store: Store, cases: Iterable[Case], command: str) -> None:
    """Run ``command`` and keep what it answers to ``cases``; it is asked for an answer only if there are any."""
    reads = {case.name: case.read for case in cases if case.read is not None}
    answer = _command(f"{command} --json" if reads else command)
    if reads:
        content = json.loads(answer)
        store.keep_answers({name: found_at(content, path) for name, path in reads.items()})


def _trained(config: TrainConfig, watch: Callable[[Status], None] | None = None) -> Run:
    """One run, in a folder that is removed: the settings and the seed are all it takes to have it again."""
    with tempfile.TemporaryDirectory() as place:
        found = measured_run(config, Path(place) / "run", watch=watch)
    curve = [
        {name: point[name] for name in ("step", "epoch", "test_accuracy") if name in point}
        for point in found["curve"]
        if "test_accuracy" in point
    ]
    if found["rehearsal"]:  # as every run with a seed is: what is kept is the epsilon of the same run without one
        found |= {"private": True, "epsilon": found["epsilon_if_unseeded"]}
    return {name: found[name] for name in _KEPT} | ({"curve": curve} if config.evaluate_every else {})


def found_at(content: Any, path: str) -> float:
    """The number at ``path`` in JSON: names and places with dots between, ``rows.0.epsilon``."""
    here = content
    for part in path.split("."):
        try:
            here = here[int(part)] if isinstance(here, list) else here[part]
        except (KeyError, IndexError, ValueError, TypeError) as error:
            names = (
                list(here) if isinstance(here, dict) else f"a list of {len(here)}" if isinstance(here, list) else here
            )
            raise InputError(f"The answer has no {path}.", why=f"At {part!r} there is {names}.") from error
    return float(here)


def _command(text: str) -> str:
    """What `adadp <text>` prints, in a process of its own as a user would run it."""
    done = subprocess.run(
        [sys.executable, "-m", "adadp", *shlex.split(text)], capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise RunError(f"`adadp {text}` failed.", why=done.stderr.strip())
    return done.stdout.strip()
