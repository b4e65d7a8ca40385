"""Appendix D of Abadi et al. 2016 beside what AdaDP charges: numbers only, for no certificate."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from adadp.accounting import accountant
from adadp.app.accounting.best_of import BestOf
from adadp.app.accounting.repetitions import Repetitions
from adadp.app.config import TrainConfig
from adadp.app.resolve import training_records
from adadp.app.selection.candidates import check_base, for_parts
from adadp.app.selection.gupta import GuptaPlan
from adadp.app.selection.settings import checked
from adadp.app.spec import RunSpec
from adadp.app.train import plan_of

FAILURE = 0.05
"""The chance of failure the numbers are given for."""


def gupta_numbers(
    base: TrainConfig, settings: Iterable[Mapping[str, Any]], law: Repetitions, *, epsilon_prime: float = 0.5
) -> dict[str, Any]:
    """What the paper claims for a search over runs of ``base.epsilon`` each; what ``repeat`` costs. Reads no data."""
    check_base(base)
    chosen = checked(settings)
    records = training_records(base)
    candidates = for_parts(base, chosen, records)
    delta = candidates[0].delta
    assert base.epsilon is not None
    assert delta is not None
    paper = GuptaPlan(len(chosen), epsilon_prime, FAILURE)
    search = BestOf(tuple(plan_of(RunSpec.of(candidate), records).event() for candidate in candidates), law)
    return {
        "settings": len(chosen),
        "epsilon_of_a_run": base.epsilon,
        "delta": delta,
        "epsilon_prime": epsilon_prime,
        "failure": FAILURE,
        "runs": paper.calls,
        "lost_answers": paper.lost_answers,
        "claimed_epsilon": paper.claimed_epsilon(base.epsilon),
        "claimed_epsilon_own_validation": paper.claimed_epsilon(base.epsilon, own_validation=True),
        "status": paper.status.value,
        "repeat_mean_runs": law.mean,
        "repeat_epsilon": accountant("rdp").epsilon(search, delta).epsilon,
    }
