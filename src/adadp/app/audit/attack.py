"""The whole audit of a method: plan a run, attack it, and hold what the attack proves against what the run claims."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from adadp import checks
from adadp.accounting import Answer, accountant
from adadp.app.accounting.plans import plan_for
from adadp.app.audit.canary import Canary
from adadp.app.audit.dirac import Dirac
from adadp.app.audit.epsilon_bounds import LowerBound, lower_bound
from adadp.app.audit.trials import Experiment, MakeOptimizer, Subject, Trials, Watch, optimizer_by_name, run_trials
from adadp.app.texts.clip_rules import clip_rule
from adadp.app.texts.methods import parse_method
from adadp.errors import InputError
from adadp.methods import Method
from adadp.plan import Plan

ATTACKS = ("canary", "dirac")
"""By name; ``both`` is all of them."""

_RATE = 0.05


@dataclass(frozen=True)
class Attack:
    """One attack on one run: how its runs scored, and what follows."""

    name: str
    score_names: tuple[str, ...]
    bound: LowerBound
    trials: Trials

    @property
    def score(self) -> str:
        """The kind of score that was chosen."""
        return self.score_names[self.bound.score]


@dataclass(frozen=True)
class Audit:
    """What a run claims, and what attacks on it prove. All bounds hold together with probability ``confidence``."""

    method: str
    not_private: str | None
    """Why the claim is no guarantee; None for a method that has one."""
    claimed: Answer
    """By the PLD accountant, from what the first run charged to its ledger."""
    plan: Plan
    confidence: float
    attacks: tuple[Attack, ...]

    @property
    def epsilon_low(self) -> float:
        """The largest of the lower bounds."""
        return max(each.bound.epsilon_low for each in self.attacks)

    @property
    def refuted(self) -> bool:
        """Whether the claim is wrong, as far as ``confidence`` goes."""
        return self.epsilon_low > self.claimed.epsilon

    def verdict(self) -> str:
        """In words: what was claimed, what was shown, and what that does not mean."""
        claim = f"epsilon {self.claimed.epsilon:.4g} at delta {self.claimed.delta:g}"
        shown = f"epsilon of at least {self.epsilon_low:.4g} (confidence {self.confidence:.0%})"
        largest = max(each.bound.largest_possible for each in self.attacks)
        if self.refuted:
            return f"REFUTED: {claim} is claimed, the attack proves an {shown}."
        if largest < self.claimed.epsilon:
            return (
                f"No verdict: {claim} is claimed, and so few runs cannot prove more than {largest:.4g}, however good "
                f"the attack. It proved an {shown}. Use more trials, or attack at a smaller epsilon."
            )
        return f"Not refuted: {claim} is claimed, the attack proves an {shown}. That is no proof of the claim."

    def summary(self) -> dict[str, Any]:
        """The result as JSON, without the scores of the single runs."""
        return {
            "method": self.method,
            "claimed_epsilon": self.claimed.epsilon,
            "certified": self.not_private is None,
            "not_private": self.not_private,
            "epsilon_low": self.epsilon_low,
            "refuted": self.refuted,
            "verdict": self.verdict(),
            "delta": self.claimed.delta,
            "confidence": self.confidence,
            "plan": self.plan.describe(),
            "attacks": [
                {"attack": each.name, "score": each.score, "trials": len(each.trials.scores_with)} | asdict(each.bound)
                for each in self.attacks
            ],
        }

    def write(self, folder: str | Path) -> tuple[Path, Path]:
        """``audit.json`` (with every score, so that the bounds can be computed again) and ``audit.png``."""
        from adadp.app.audit.picture import draw  # noqa: PLC0415  # matplotlib takes a second, and not every audit draws

        target = Path(folder)
        document = self.summary() | {"scores": {each.name: _scores(each) for each in self.attacks}}
        try:
            target.mkdir(parents=True, exist_ok=True)
            (target / "audit.json").write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
            draw(self, target / "audit.png")
        except OSError as error:
            raise InputError(f"Cannot write to {target}: {error.strerror}.", fix="Choose another folder.") from error
        return target / "audit.json", target / "audit.png"


def audit_method(
    method: str | Method = "dpsgd",
    *,
    attack: str = "both",
    trials: int = 1000,
    epsilon: float | None = None,
    noise_multiplier: float | None = None,
    delta: float = 1e-5,
    steps: int = 25,
    records: int = 100,
    batch_size: int = 50,
    clip_norm: str | float = 1.0,
    optimizer: str | None = None,
    lr: float | None = None,
    data: str = "cancer",
    source_dir: str | None = None,
    confidence: float = 0.95,
    seed: int = 0,
    watch: Watch | None = None,
) -> Audit:
    """Attack ``method`` with ``trials`` runs with, and as many without, a record made to be found.

    Give ``epsilon`` (1 if neither is given), from which the noise follows, or ``noise_multiplier``. Optimizer and
    learning rate are those of the method's paper, or else sgd with a small rate, which keeps the network near its known
    start. With several attacks the error 1 - ``confidence`` is split evenly among them, so that one false alarm
    among all of them is as rare as stated.

    =================================  ===============================================================================
    both epsilon and noise_multiplier  ``InputError``: one follows from the other
    noise_multiplier = 0               ``InputError``: without noise nothing is claimed
    an unknown method or attack        ``InputError`` before anything is run
    records beyond the data set        ``InputError``
    =================================  ===============================================================================
    """
    known = parse_method(method) if isinstance(method, str) else method
    if known.choice is not None:
        raise InputError(
            f"The method {known} cannot be attacked here.",
            why="Its noise is found on the way, and the attacks know runs with planned noise only.",
            fix="Attack dpsgd, whose gradients it releases.",
        )
    rule = clip_rule(clip_norm) if isinstance(clip_norm, str) else clip_norm
    plan = _plan(epsilon, noise_multiplier, delta, records=records, batch_size=batch_size, steps=steps, clip_norm=rule)
    subject = Subject(plan, known, optimizer=_optimizer(known, optimizer, lr))
    experiments = _experiments(attack, data, source_dir)
    share = 1 - (1 - checks.probability("confidence", confidence)) / len(experiments)
    done = []
    for number, experiment in enumerate(experiments):
        told = None if watch is None else _told(watch, number, len(experiments))
        runs = run_trials(experiment, subject, trials, seed=seed, watch=told)
        bound = lower_bound(runs.scores_with, runs.scores_without, delta, share)
        done.append(Attack(experiment.name, experiment.score_names, bound, runs))
    claimed = accountant("pld").epsilon(done[0].trials.charged, delta)
    return Audit(str(known), known.not_private, claimed, plan, confidence, tuple(done))


def _experiments(attack: str, data: str, source_dir: str | None) -> list[Experiment]:
    if attack not in (*ATTACKS, "both"):
        raise InputError(f"Unknown attack {attack!r}.", fix=f"Use one of: {', '.join(ATTACKS)}, both.")
    wanted = ATTACKS if attack == "both" else (attack,)
    return [Canary(data, source_dir) if name == "canary" else Dirac() for name in wanted]


def _plan(epsilon: float | None, noise_multiplier: float | None, delta: float, **shape: Any) -> Plan:
    checks.delta(delta)
    if noise_multiplier is None:
        return plan_for(epsilon=1.0 if epsilon is None else epsilon, delta=delta, **shape)
    if epsilon is not None:
        raise InputError(
            "Both `epsilon` and `noise_multiplier` were given.", why="One follows from the other.", fix="Give one."
        )
    return Plan.of_noise(
        noise=checks.positive("noise_multiplier", noise_multiplier, why="Without noise nothing is claimed."), **shape
    )


def _optimizer(method: Method, name: str | None, lr: float | None) -> MakeOptimizer:
    """The optimizer as given; what is not given as the method's paper has it."""
    usual = method.defaults
    if lr is None:
        lr = usual.lr if usual.lr is not None and name in (None, usual.optimizer) else _RATE
    return optimizer_by_name(name or usual.optimizer or "sgd", lr)


def _told(watch: Watch, number: int, experiments: int) -> Watch:
    """Progress of one attack as progress of all."""
    return lambda done, total: watch(number * total + done, experiments * total)


def _scores(attack: Attack) -> dict[str, Any]:
    sides = {"with": attack.trials.scores_with, "without": attack.trials.scores_without}
    return {
        name: {side: table[:, column].tolist() for side, table in sides.items()}
        for column, name in enumerate(attack.score_names)
    }
