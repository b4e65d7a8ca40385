"""Whatever a crash leaves of a command that charges: no release that was made is lost, and the work can go on.

Every write, sync and rename of a short run is such a point, five ways each (``crashes``). What the ledger says is
checked at all of them. Going on takes longer: it is tried at some of them, spread evenly, and at all by ``make fuzz``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from crashes import HOW, Trace, crashes, put, record
from hypothesis import settings

from adadp.app import start, state
from adadp.app.accounting.repetitions import PoissonRepetitions
from adadp.app.budgets import BudgetFile
from adadp.app.config import TrainConfig
from adadp.app.runs.folder import has_finished
from adadp.app.selection import grid, resume, tune
from adadp.app.train import verify_run
from adadp.errors import AdaDPError, LedgerError
from adadp.ledger import read_ledger
from adadp.noise import GaussianMechanism

pytestmark = pytest.mark.slow

ALL = settings.get_current_profile_name() == "fuzz"
TRIED = 3
"""Points of each kind of crash from which a command goes on, unless all are tried."""
CONFIG = TrainConfig(
    "cancer",
    noise_multiplier=8.0,
    delta=1e-4,
    steps=3,
    batch_size=100,
    model="linear",
    lr=0.1,
    accountant="zcdp",
    checkpoint_every=1,
    threads=1,
)
RELEASING = CONFIG.replace(features="standardise:noise_multiplier=20", holdout="10%", holdout_noise=20.0)
"""A run that also releases features and figures of records it keeps aside."""


@dataclass(frozen=True)
class Command:
    """What charges in the folder ``run``, and how it goes on there after a crash."""

    work: Callable[[Path], object]
    go_on: Callable[[Path], object]
    databases: tuple[str, ...] = ()


def trained(root: Path, config: TrainConfig = RELEASING) -> None:
    start.start(config, root / "run")


def went_on(root: Path, config: TrainConfig = RELEASING) -> None:
    """As the error says: begin where nothing has begun, and say that no other copy went on where notes were lost."""
    if not (root / "run" / "config.toml").exists():
        trained(root, config)
        return
    try:
        start.resume(root / "run")
    except LedgerError as error:
        if "--moved" not in error.fix:
            raise
        start.resume(root / "run", moved=True)


def counted(root: Path) -> TrainConfig:
    return CONFIG.replace(budget=str(root / "people.budget"))


def budgeted(root: Path) -> None:
    BudgetFile.create(root / "people.budget", epsilon=50, delta=1e-3, unit="patient", order=7.0)
    trained(root, counted(root))


def searched(root: Path) -> None:
    torch.set_num_threads(1)
    base = TrainConfig("cancer", epsilon=3.0, delta=1e-4, steps=2, batch_size=460, threads=1, seed=16)
    tune(base, grid({"lr": [0.05, 1.0]}), out=root / "run", law=PoissonRepetitions(1.5), validation=100)


def searched_on(root: Path) -> None:
    begun = any(root.glob("*/config.toml"))  # while the folder is replaced it has another name
    resume(root / "run") if begun else searched(root)


COMMANDS = {
    "train": Command(trained, went_on),
    "train in a budget": Command(budgeted, lambda root: went_on(root, counted(root)), ("people.budget",)),
    "tune": Command(searched, searched_on),
}


@pytest.fixture(scope="module", params=COMMANDS)
def recorded(request, tmp_path_factory) -> tuple[Command, Trace]:
    """A command that was done once, with all it asked of the system."""
    root = tmp_path_factory.mktemp("world") / "root"
    root.mkdir()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(state.FOLDER, str(root / "state"))
        yield (command := COMMANDS[request.param]), record(root, lambda: command.work(root), command.databases)


def charged(root: Path) -> int:
    """How many charges the ledgers hold; none where there is no ledger, or one that says that nothing was charged."""
    found = 0
    for path in root.glob("*/ledger.jsonl"):
        try:
            found += sum(read_ledger(path).charges.values())
        except LedgerError as error:
            if path.stat().st_size and "Nothing was charged" not in error.why:
                raise
    return found


def expected(command: Command, releases: int) -> int:
    """The charges that so many releases need; a search is charged as a whole, before its first release."""
    return min(releases, 1) if command is COMMANDS["tune"] else releases


def test_no_crash_loses_a_charge(recorded):
    command, trace = recorded
    seen = dict.fromkeys(HOW, 0)
    for how, releases, left in crashes(trace):
        put(trace.root, {name: left[name] for name in left if "ledger.jsonl" in name})
        seen[how] += 1
        assert charged(trace.root) >= expected(command, releases)
    assert min(seen.values()) > 3
    assert releases > 1


@pytest.mark.parametrize("how", HOW)
def test_after_a_crash_it_goes_on(recorded, how, monkeypatch):
    command, trace = recorded
    points = [(releases, left) for kind, releases, left in crashes(trace) if kind == how]
    release, made = GaussianMechanism.release, []
    monkeypatch.setattr(
        GaussianMechanism,
        "release",
        lambda self, total, **options: made.append(options) or release(self, total, **options),
    )
    refused = []
    tried = points if ALL else points[:: len(points) // TRIED + 1]
    for releases, left in tried:
        put(trace.root, left)
        made.clear()
        try:
            command.go_on(trace.root)
        except AdaDPError as error:
            refused.append(str(error))
        after = sum(options.get("purpose") != "count" for options in made)
        assert charged(trace.root) >= expected(command, releases + after)
        if has_finished(trace.root / "run"):
            assert (trace.root / "run" / "report.html").exists()
            torn = read_ledger(trace.root / "run" / "ledger.jsonl").torn
            failed = {check.name for check in verify_run(trace.root / "run") if not check.passed}
            assert failed <= ({"charges"} if torn else set())  # what may have been released counts, beyond the plan
    if how == "killed":
        known = (
            "has finished",
            "was paid, and the process was killed",
            "killed before it began",
            "Nothing was charged",
        )
        assert [each for each in refused if not any(words in each for words in known)] == []
    assert len(refused) <= len(tried) / 2
