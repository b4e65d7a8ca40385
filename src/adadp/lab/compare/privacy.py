"""What all runs of a comparison cost together: they looked at the same records, so their costs add up.

    noise that is known ahead               what the ledgers count, composed, by the accountant pld
    noise that was chosen during the run        its whole budget: basic composition, epsilons and deltas added
    no theorem for what was composed        basic composition of all runs
    deltas that differ                      what is composed is taken at the largest
    a run that is not private               no epsilon covers the comparison
    different neighbours                    none either: an epsilon for one relation says nothing about another
    nothing released                        epsilon 0
    a run that has begun and is not         all it was planned to release: that it stopped may have followed from what
    finished                                it released, and then the charges so far are no bound
    a ledger that cannot be read, is not    the same; the run is told as failed
    the certified one, or is missing
    a folder that was removed after its     the same, beside the run that takes its place
    run had begun

Composition is for independent noise. On records of a user's own every run is therefore made without a seed; runs on a
public data set share their seeds, and with them batches and noise, and the sum is what independent ones would cost.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from adadp.accounting import accountant, rounded_up
from adadp.app.runs import RunFolder
from adadp.disk import force
from adadp.errors import AccountingError, AdaDPError
from adadp.events import Event, Repeated, compose
from adadp.lab.compare.planning import PlannedCase
from adadp.ledger import read_ledger

_ACCOUNTANT = "pld"
BEGUN_NAME = "begun.txt"
"""A line for every run that has begun in the folder of a comparison: where, and the id of its ledger."""


@dataclass(frozen=True)
class Spent:
    """What a run of ``case`` released, ``times`` over; None: nothing yet."""

    case: PlannedCase
    event: Event | None
    times: int = 1
    lost: str = ""
    """Why its ledger does not say what it released, so that ``event`` is what was planned."""
    folder: str = ""
    finished: bool = True


def ahead(planned: Iterable[PlannedCase], seeds: int) -> list[Spent]:
    """What the runs of all cases will release."""
    return [Spent(case, case.plan.event() if case.plan.noise is not None else None, seeds) for case in planned]


def charged(planned: Iterable[PlannedCase], seeds: Sequence[int], out: Path) -> list[Spent]:
    """What the runs in ``out`` cost, finished or not, and those whose folders are no longer there."""
    cases = list(planned)
    found = (_charged(case, case.folder(seed), out) for case in cases for seed in seeds)
    return [*(each for each in found if each is not None), *removed(cases, seeds, out)]


def removed(planned: Iterable[PlannedCase], seeds: Sequence[int], out: Path) -> list[Spent]:
    """The runs that had begun in ``out`` and are not there any more, each at what it was planned to release."""
    begun, found = _begun(out), []
    for case in planned:
        for name in map(case.folder, seeds):
            run = _ledger_id(out / name)
            # A run whose ledger cannot be read is one of those that were seen there, and is counted where it is.
            unknown = run is None and _has_begun(RunFolder(out / name, case.config))
            gone = len(begun.get(name, set()) - {run}) - unknown
            found += [replace(each, lost="Its folder was removed.", finished=False) for each in ahead([case], 1) * gone]
    return found


def remember(planned: Iterable[PlannedCase], seeds: Sequence[int], out: Path) -> None:
    """Keep which runs have begun in ``out``, so that one whose folder is removed still counts."""
    begun = _begun(out)
    names = [case.folder(seed) for case in planned for seed in seeds]
    found = {name: _ledger_id(out / name) for name in names}
    new = [f"{name} {run}\n" for name, run in found.items() if run is not None and run not in begun.get(name, set())]
    if new:
        with (out / BEGUN_NAME).open("a", encoding="utf-8") as file:
            file.writelines(new)
            file.flush()
            force(file.fileno())


def _begun(out: Path) -> dict[str, set[str]]:
    """Folder -> the ids of the runs that were seen in it."""
    begun: dict[str, set[str]] = {}
    with suppress(FileNotFoundError):
        for line in (out / BEGUN_NAME).read_text(encoding="utf-8").splitlines():
            name, _, run = line.rpartition(" ")
            begun.setdefault(name, set()).add(run)
    return begun


def _ledger_id(folder: Path) -> str | None:
    """The id of the run in ``folder``, from the first line of its ledger; None where there is none to read."""
    try:
        with (folder / "ledger.jsonl").open("rb") as file:
            return str(json.loads(file.readline())["run"])
    except (OSError, ValueError, LookupError, TypeError):
        return None


def _charged(case: PlannedCase, name: str, out: Path) -> Spent | None:
    """What the run in the folder ``name`` has charged; None if it has not begun."""
    folder = RunFolder(out / name, case.config)
    if not _has_begun(folder):
        return None
    (whole,) = ahead([case], 1)
    try:
        certificate = folder.certificate()
        head = None if certificate is None else certificate["ledger"]["head"]  # lines cut off its end go unseen else
        event = read_ledger(folder.ledger_path, expected_head=head).event()
        if folder.finished:
            return Spent(case, event, folder=name)
        return replace(whole, folder=name, finished=False)
    except AdaDPError as error:
        why = f"{type(error).__name__}: {error}"
    except (LookupError, TypeError, AttributeError):
        why = f"{folder.certificate_path} names no ledger."
    return replace(whole, lost=why, folder=name, finished=False)


def _has_begun(folder: RunFolder) -> bool:
    return any(path.exists() for path in (folder.ledger_path, folder.checkpoint_path, folder.certificate_path))


def total_of(spent: Sequence[Spent], *, public: bool) -> dict[str, Any]:
    """The entry ``total`` of the results: number of runs, epsilon, delta, and both in words."""
    runs = sum(each.times for each in spent)
    epsilon, delta, how = _composed(spent)
    planned = sum(each.times for each in spent if not each.finished)
    if planned and epsilon is not None:
        how += f"; {planned} of them as planned: not finished, or their ledger is gone or does not hold"
    return {"runs": runs, "epsilon": epsilon, "delta": delta, "text": _words(runs, epsilon, delta, how, public=public)}


def _composed(spent: Sequence[Spent]) -> tuple[float | None, float | None, str]:
    leaks = sorted({each.case.name for each in spent if each.case.not_private is not None})
    if leaks:
        return None, None, f"{', '.join(leaks)}: not private, so no epsilon covers all runs"
    if len({each.case.plan.neighbours for each in spent}) > 1:
        return None, None, "the cases protect against different changes of the data, so no one epsilon covers them"
    if not spent:
        return 0.0, 0.0, ""
    chosen = [each for each in spent if each.case.plan.adaptive]
    known = [each for each in spent if not each.case.plan.adaptive]
    if chosen and not known:
        return *_added(chosen), "budgets of noise chosen during the run, added up"
    delta = max(_delta(each) for each in known)
    events = [each.event if each.times == 1 else Repeated(each.event, each.times) for each in known if each.event]
    try:
        epsilon = accountant(_ACCOUNTANT).epsilon(compose(*events), delta).epsilon if events else 0.0
    except AccountingError:
        return *_added(spent), "basic composition: epsilons and deltas added up"
    if not chosen:
        return epsilon, delta, f"composed by {_ACCOUNTANT}"
    more, more_delta = _added(chosen)
    how = f"composed by {_ACCOUNTANT}; budgets of noise chosen during the run added"
    return epsilon + more, delta + more_delta, how


def _added(spent: Sequence[Spent]) -> tuple[float, float]:
    return (
        math.fsum(each.times * each.case.promised for each in spent),
        math.fsum(each.times * _delta(each) for each in spent),
    )


def _delta(spent: Spent) -> float:
    assert spent.case.config.delta is not None
    return spent.case.config.delta


def _words(runs: int, epsilon: float | None, delta: float | None, how: str, *, public: bool) -> str:
    if epsilon is None or delta is None:
        cost = f"There is no guarantee for all {runs} runs together: {how}."
    else:
        cost = f"All {runs} runs together are ({rounded_up(epsilon)}, {delta:g})-differentially private ({how})."
    if public:
        return (
            "The data set is public, so nobody's privacy was spent. On private records, with noise of its own in every "
            f"run, it would add up: {cost}"
        )
    text = f"All runs read the same records, so what they cost adds up. {cost}"
    if epsilon is None:
        return text
    return (
        f"{text} Every run draws secure noise of its own, and the test file is public: any of the models may be "
        "published within that. Where only the best is wanted adadp tune costs less."
    )
