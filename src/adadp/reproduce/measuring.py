"""Run an item: train what it asks for, or ask its commands. What has been measured already stays."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from adadp.compare.measuring import measured_run
from adadp.config import TrainConfig
from adadp.errors import InputError, RunError
from adadp.reproduce.items import COMMAND, Case
from adadp.reproduce.storing import Run, Store

Tell = Callable[[str], None]
_KEPT = (
    *("seed", "test_accuracy", "private", "epsilon", "claimed", "delta", "neighbours", "sampling"),
    *("sigma", "noise", "steps", "epochs", "seconds"),
)


def measure(store: Store, *, seeds: Iterable[int] | None = None, again: bool = False, tell: Tell = print) -> None:
    """Measure what is missing; with ``again`` everything. Results are written one by one, so a stop loses one."""
    item = store.item
    if item.kind == COMMAND:
        known = {} if again else store.answers()
        lacking = [case for case in item.cases if case.name not in known]
        if lacking:
            store.keep_answers(_asked(store, lacking, tell))
        _draw(store, again=again, tell=tell)
        return
    wanted = range(1 if store.quick else item.seeds) if seeds is None else seeds
    asked = item.runs(quick=store.quick)
    for seed in wanted:
        for name, config in asked.items():
            done = {int(run["seed"]) for run in store.runs().get(name, [])}
            if again or seed not in done:
                there = None if again else store.elsewhere(config, seed)
                run = there or _trained(config.replace(seed=seed))
                store.keep_run(name, config, run)
                how = f"in {run['seconds']:.0f} s" if there is None else "as in another item"
                tell(f"{item.path}: {name}, seed {seed}: {100 * run['test_accuracy']:.2f} % {how}")


def _draw(store: Store, *, again: bool, tell: Tell) -> None:
    """The pictures that commands of the item draw, where they are not there yet."""
    for drawing, target in zip(store.item.drawings, store.pictures, strict=True):
        if target.exists() and not again:
            continue
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory() as place:
            file = Path(place) / (drawing.take or "drawing.png")
            tell(f"adadp {drawing.run}")
            _command(drawing.run.format(file=shlex.quote(str(file)), out=shlex.quote(place)))
            if not file.is_file():
                raise InputError(f"`adadp {drawing.run}` of {store.item.path} left no {file.name}.")
            target.write_bytes(file.read_bytes())


def _trained(config: TrainConfig) -> Run:
    """One run, in a folder that is removed: the settings and the seed are all it takes to have it again."""
    with tempfile.TemporaryDirectory() as place:
        found = measured_run(config, Path(place) / "run")
    curve = [
        {name: point[name] for name in ("step", "epoch", "test_accuracy") if name in point}
        for point in found["curve"]
        if "test_accuracy" in point
    ]
    return {name: found[name] for name in _KEPT} | ({"curve": curve} if config.evaluate_every else {})


def _asked(store: Store, cases: Iterable[Case], tell: Tell) -> dict[str, float]:
    """What the commands of ``cases`` answer; one that several ask runs once."""
    answers: dict[str, Any] = {}
    values = {}
    for case in cases:
        command = store.item.command(case.name, quick=store.quick)
        assert case.read is not None
        if command not in answers:
            tell(f"adadp {command}")
            answers[command] = json.loads(_command(f"{command} --json"))
        values[case.name] = found_at(answers[command], case.read)
    return values


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
