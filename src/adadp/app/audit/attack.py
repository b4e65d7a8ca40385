"""The whole audit of a method: plan a run, attack it, and hold what the attack proves against what the run claims."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from adadp import checks
from adadp.accounting import Answer
from adadp.app.audit.canary import Canary, FinalLoss
from adadp.app.audit.dirac import Dirac
from adadp.app.audit.epsilon_bounds import LowerBound, lower_bound
from adadp.app.audit.released import Released
from adadp.app.audit.subjects import claim_of, subject_of
from adadp.app.audit.trials import Experiment, Subject, Trials, Watch, run_trials
from adadp.app.features import STAGES, ReleasedStage, parse_features
from adadp.app.texts.methods import parse_method
from adadp.errors import InputError
from adadp.events import Neighbours
from adadp.methods import Method
from adadp.plan import Plan

ATTACKS = ("canary", "dirac", "loss")
"""By name; ``both`` are the first two, ``all`` is all of them."""

_MOST_RECORDS = 10**7
_LAYERS = 4
"""Layers of the strongest record where the clip rule has a bound for each."""


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
    """From what the first run charged to its ledger; ``subjects`` says by which accountant."""
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
    method: str | Method | ReleasedStage = "dpsgd",
    *,
    attack: str = "both",
    trials: int = 1000,
    epsilon: float | None = None,
    noise_multiplier: float | None = None,
    delta: float = 1e-5,
    steps: int = 25,
    records: int = 100,
    batch_size: int = 50,
    clip_norm: float | None = None,
    clip_rule: str = "flat",
    sampling: str = "poisson",
    neighbours: str | None = None,
    best_of: float | None = None,
    rows: int = 1,
    optimizer: str | None = None,
    lr: float | None = None,
    data: str = "cancer",
    source_dir: str | None = None,
    confidence: float = 0.95,
    seed: int = 0,
    watch: Watch | None = None,
) -> Audit:
    """Attack ``method`` with ``trials`` runs with, and as many without, a record made to be found.

    ``method`` may be a released feature stage too: then its release is attacked. Give ``epsilon`` (1 if neither is
    given), from which the noise follows, or ``noise_multiplier``. ``best_of`` is the mean of a Poisson number of runs,
    of which the best is seen; ``rows`` how many rows the person has who is looked for. Optimizer and
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
    if checks.count("records", records) > _MOST_RECORDS:
        raise InputError(f"`records` must be at most {_MOST_RECORDS:,}.", fix="Pass a smaller number.")
    known = _parsed(method) if isinstance(method, str) else method
    subject = subject_of(
        known,
        epsilon=epsilon,
        noise_multiplier=noise_multiplier,
        delta=delta,
        clip_norm=clip_norm,
        clip_rule_name=clip_rule,
        optimizer=optimizer,
        lr=lr,
        best_of=best_of,
        rows=rows,
        records=records,
        batch_size=batch_size,
        steps=steps,
        sampling=sampling,
        neighbours=None if neighbours is None else Neighbours.parse(neighbours),
    )
    experiments = _experiments(attack, subject, data, source_dir)
    share = 1 - (1 - checks.probability("confidence", confidence)) / len(experiments)
    done = []
    for number, experiment in enumerate(experiments):

        def told(done: int, total: int, before: int = number) -> None:
            if watch is not None:
                watch(before * total + done, len(experiments) * total)

        runs = run_trials(experiment, subject, trials, seed=seed, watch=told)
        bound = lower_bound(runs.scores_with, runs.scores_without, delta, share)
        done.append(Attack(experiment.name, experiment.score_names, bound, runs))
    claimed = claim_of(subject, done[0].trials.charged, delta)
    not_private = None if isinstance(known, ReleasedStage) else known.not_private
    return Audit(str(known), not_private, claimed, subject.plan, confidence, tuple(done))


def _parsed(text: str) -> Method | ReleasedStage:
    """The method, or the released feature stage, that ``text`` names."""
    if text.partition(":")[0] not in STAGES:
        return parse_method(text)
    (stage,) = parse_features(text)
    if not isinstance(stage, ReleasedStage):
        raise InputError(
            f"The feature stage {text} is not released from the records.",
            why="It is known before the data is, so there is nothing to attack.",
            fix="Name a method, or a stage such as pca:dim=4 or standardise.",
        )
    return stage


def _experiments(attack: str, subject: Subject, data: str, source_dir: str | None) -> list[Experiment]:
    if attack not in (*ATTACKS, "both", "all"):
        raise InputError(f"Unknown attack {attack!r}.", fix=f"Use one of: {', '.join(ATTACKS)}, both, all.")
    if subject.stages:
        (stage,) = subject.stages
        assert isinstance(stage, ReleasedStage)
        return [Released(stage, subject.plan.sampler.neighbours)]
    layered = len(subject.plan.clip_rule.groups(("0.weight", "1.weight"))) > 1
    made: dict[str, Callable[[], Experiment]] = {
        "canary": lambda: Canary(data, source_dir),
        "dirac": lambda: Dirac(layers=_LAYERS if layered else 1),
        "loss": lambda: FinalLoss(data, source_dir),
    }
    return [made[name]() for name in {"both": ATTACKS[:2], "all": ATTACKS}.get(attack, (attack,))]


def _scores(attack: Attack) -> dict[str, Any]:
    sides = {"with": attack.trials.scores_with, "without": attack.trials.scores_without}
    return {
        name: {side: table[:, column].tolist() for side, table in sides.items()}
        for column, name in enumerate(attack.score_names)
    }
