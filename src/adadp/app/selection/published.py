"""The numbers of appendix D of Abadi et al. 2016: a search by Theorem 10.2 of Gupta et al. 2010, as published.

Let a run be epsilon-DP and reach a score of Q (a count of correct answers, which one record changes by 1) with
probability p. The theorem claims a mechanism that, but for a failure probability delta, finds a score of at least
Q - (4/epsilon') log(1/(epsilon' delta p)), calls the run (1/(epsilon' delta p))^2 log(1/(epsilon' delta p)) times, and
is (epsilon + 8 epsilon')-DP. Drawing one of K settings, p = 1/K. With a validation set of its own the two parts look at
different records, and the appendix claims max(epsilon, 8 epsilon').

Status: as published. The mechanism samples candidates and chooses among them with the exponential mechanism; the sum it
normalises by is over candidates whose law moves with the training records too, and we could not verify the claimed
epsilon + 8 epsilon' for it. These are the paper's numbers, for comparison; no certificate uses them. What AdaDP
charges for a search is in ``selection``.

===========================  ==============================================================
case                         result
===========================  ==============================================================
settings < 1                 InputError
epsilon' outside (0, 1/2]    InputError: the theorem's range
failure outside (0, 1)       InputError
===========================  ==============================================================
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from adadp import checks
from adadp.accounting import Status, accountant
from adadp.app.accounting.best_of import BestOf
from adadp.app.accounting.repetitions import Repetitions
from adadp.app.config import TrainConfig
from adadp.app.resolve import training_records
from adadp.app.selection.candidates import check_base, for_parts
from adadp.app.selection.settings import checked
from adadp.app.spec import RunSpec
from adadp.app.train import plan_of
from adadp.errors import InputError

FAILURE = 0.05
"""The chance of failure the numbers are given for."""


@dataclass(frozen=True)
class GuptaPlan:
    """What the theorem claims for drawing from ``settings`` settings, with a chance of ``failure``."""

    status: ClassVar[Status] = Status.AS_PUBLISHED

    settings: int
    epsilon_prime: float
    failure: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "settings", checks.count("settings", self.settings))
        object.__setattr__(self, "epsilon_prime", _epsilon_prime(self.epsilon_prime))
        object.__setattr__(self, "failure", checks.delta(self.failure))

    @property
    def _scale(self) -> float:
        """1 / (epsilon' delta p)."""
        return self.settings / (self.epsilon_prime * self.failure)

    @property
    def calls(self) -> int:
        """How many runs the mechanism makes."""
        return math.ceil(self._scale**2 * math.log(self._scale))

    @property
    def lost_answers(self) -> float:
        """How many correct answers on the validation set the chosen run may have less than a good one."""
        return 4 / self.epsilon_prime * math.log(self._scale)

    def claimed_epsilon(self, epsilon: float, *, own_validation: bool = False) -> float:
        """The epsilon claimed for a search over runs of ``epsilon``, scored on records of its own or on the same."""
        epsilon = checks.non_negative("epsilon", epsilon)
        search = 8 * self.epsilon_prime
        return max(epsilon, search) if own_validation else epsilon + search


def _epsilon_prime(value: float) -> float:
    number = checks.positive("epsilon_prime", value)
    if number > 0.5:
        raise InputError(
            f"epsilon_prime must be at most 1/2, got {number:g}.",
            why="The theorem is stated for epsilon' up to 1/2.",
            fix="Pass epsilon_prime in (0, 0.5].",
        )
    return number


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
