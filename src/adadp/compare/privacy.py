"""What all runs of a comparison cost together: they looked at the same records, so their costs add up.

    noise that is known ahead               what the ledgers count, composed, by the accountant pld
    noise that was chosen on the way        its whole budget: basic composition, epsilons and deltas added
    no theorem for what was composed        basic composition of all runs
    deltas that differ                      what is composed is taken at the largest
    a run that is not private               no epsilon covers the comparison
    different neighbours                    none either: an epsilon for one relation says nothing about another
    nothing released                        epsilon 0
    a ledger that cannot be read, is not    all its run was planned to release, which is the most it can have; the run
    the certified one, or is missing        is told as failed

What a run that was stopped or failed has charged counts too.

Composition is for independent noise. On records of a user's own every run is therefore made without a seed; runs on a
public data set share their seeds, and with them lots and noise, and the sum is what independent ones would cost.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from adadp.accounting import accountant, rounded_up
from adadp.compare.planning import PlannedCase
from adadp.errors import AccountingError, AdaDPError
from adadp.events import Event, Repeated, compose
from adadp.ledger import read_ledger
from adadp.runs import RunFolder

_ACCOUNTANT = "pld"


@dataclass(frozen=True)
class Spent:
    """What a run of ``case`` released, ``times`` over; None: nothing yet."""

    case: PlannedCase
    event: Event | None
    times: int = 1
    lost: str = ""
    """Why its ledger does not say what it released, so that ``event`` is what was planned."""
    folder: str = ""


def ahead(planned: Iterable[PlannedCase], seeds: int) -> list[Spent]:
    """What the runs of all cases will release."""
    return [Spent(case, case.plan.event() if case.plan.noise is not None else None, seeds) for case in planned]


def charged(planned: Iterable[PlannedCase], seeds: Sequence[int], out: Path) -> list[Spent]:
    """What the ledgers of the runs in ``out`` count, finished or not."""
    found = (_charged(case, case.folder(seed), out) for case in planned for seed in seeds)
    return [each for each in found if each is not None]


def _charged(case: PlannedCase, name: str, out: Path) -> Spent | None:
    """What the run in the folder ``name`` has charged; None if it has not begun."""
    folder = RunFolder(out / name, case.config)
    begun = any(path.exists() for path in (folder.ledger_path, folder.checkpoint_path, folder.certificate_path))
    if not begun:
        return None
    try:
        certificate = folder.certificate()
        head = None if certificate is None else certificate["ledger"]["head"]  # lines cut off its end go unseen else
        return Spent(case, read_ledger(folder.ledger_path, expected_head=head).event(), folder=name)
    except AdaDPError as error:
        why = f"{type(error).__name__}: {error}"
    except (LookupError, TypeError, AttributeError):
        why = f"{folder.certificate_path} names no ledger."
    (whole,) = ahead([case], 1)
    return replace(whole, lost=why, folder=name)


def total_of(spent: Sequence[Spent], *, public: bool) -> dict[str, Any]:
    """The entry ``total`` of the results: number of runs, epsilon, delta, and both in words."""
    runs = sum(each.times for each in spent)
    epsilon, delta, how = _composed(spent)
    lost = sum(each.times for each in spent if each.lost)
    if lost and epsilon is not None:
        how += f"; {lost} of them as planned, because the ledger does not hold"
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
        return *_added(chosen), "budgets of noise chosen on the way, added up"
    delta = max(_delta(each) for each in known)
    events = [each.event if each.times == 1 else Repeated(each.event, each.times) for each in known if each.event]
    try:
        epsilon = accountant(_ACCOUNTANT).epsilon(compose(*events), delta).epsilon if events else 0.0
    except AccountingError:
        return *_added(spent), "basic composition: epsilons and deltas added up"
    if not chosen:
        return epsilon, delta, f"composed by {_ACCOUNTANT}"
    more, more_delta = _added(chosen)
    return epsilon + more, delta + more_delta, f"composed by {_ACCOUNTANT}; budgets of noise chosen on the way added"


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
