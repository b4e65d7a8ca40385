"""The certificate of a run: what its ledger proves, and everything a reader must know about how the run was made.

The figures and what follows from them come from ``adadp.certificate``; what states the configuration, the features and
the data is added here. ``adadp verify`` computes all of it again.
"""

from __future__ import annotations

import platform
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from adadp import __version__
from adadp.app.config import OWN_LOOP, TrainConfig
from adadp.app.features import statement
from adadp.app.one_run import statement as audit
from adadp.app.runs.tensors import tensors_digest
from adadp.app.spec import RunSpec
from adadp.app.specification import specification
from adadp.app.texts.schedules import parse_schedule
from adadp.certificate.digests import json_digest
from adadp.certificate.make import FORMAT, figures, releases_json
from adadp.certificate.wording import guarantee_of
from adadp.clipping import ClipRule
from adadp.events import Neighbours, flatten
from adadp.ledger import FixedBudget, LedgerRecord
from adadp.plan import Plan
from adadp.schedules import Schedule


def make_certificate(
    *,
    spec: RunSpec,
    plan: Plan,
    ledger: LedgerRecord,
    randomness: str,
    model: Mapping[str, Tensor],
    steps_done: int,
    steps_lost: int = 0,
    record_unit: str | None = None,
    notes: Iterable[str] = (),
    learned: Mapping[str, Tensor] | None = None,
    encoder: Mapping[str, Any] | None = None,
    budget: FixedBudget | None = None,
    search: Mapping[str, Any] | None = None,
    searched: Iterable[str] = (),
    measured: Mapping[str, str] | None = None,
    data_budget: Mapping[str, Any] | None = None,
    canaries: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """The certificate of a run that ended with ``ledger`` and ``model``, as JSON.

    ``steps_done`` steps are in the model; ``steps_lost`` were charged and are not, because the process was killed.
    ``learned`` is what the feature stages of the run have released; ``encoder`` how files became records. ``budget`` is
    the filter of a run whose noise was chosen during the run. ``search`` says among what the run was chosen, and
    ``searched`` what that discloses; the ledger is the search's. ``measured`` are the digests of the files with what
    was measured on public data; ``data_budget`` says in which budget of its data the run is counted. ``canaries`` are
    the coins and losses of canaries.
    """
    assert plan.neighbours is not None
    config = spec.config
    proved = figures(
        ledger,
        noisy=plan.noise is not None,
        neighbours=plan.neighbours,
        delta=config.delta,
        accountant_name=config.accountant,
        seed=config.seed,
        budget=budget,
        not_private=spec.method.not_private,
        paper=spec.method.paper,
    )
    certificate: dict[str, Any] = proved | {
        "format": FORMAT,
        "method": config.method,
        "record": record_unit or "one entry of the training data, as it was given",
        "sampling": plan.sampling,
        "arithmetic": config.arithmetic or "fast",
        "plan": plan_statement(plan, steps_done + steps_lost),
        "steps_done": steps_done,
        "steps_lost": steps_lost,
        "randomness": randomness,
        "config_digest": config.digest(),
        "model_digest": tensors_digest(model),
        "measured": dict(measured or {}),
        "versions": {
            "adadp": __version__,
            "python": platform.python_version(),
            "torch": str(torch.__version__),
            "numpy": np.__version__,
        },
        "notes": list(notes),
    }
    if encoder is not None:
        certificate["encoder_digest"] = json_digest(dict(encoder))
    if data_budget is not None:
        certificate["data_budget"] = dict(data_budget)
    if canaries is not None and config.delta is not None:
        claimed = guarantee_of(certificate)
        certificate["audit"] = audit(canaries, config.delta, None if claimed is None else claimed["epsilon"])
    return certificate | statements(spec, plan, learned, search, searched)


def statements(
    spec: RunSpec,
    plan: Plan,
    learned: Mapping[str, Tensor] | None,
    search: Mapping[str, Any] | None,
    searched: Iterable[str],
) -> dict[str, Any]:
    """What a certificate says about the parts of a run, its features and its data; arguments as above."""
    config, stages = spec.config, spec.stages
    found: dict[str, Any] = {
        "parts": {
            "method": specification(spec.method),
            "clip_rule": specification(plan.clip_rule),
            "features": [specification(stage) for stage in stages],
        },
        "disclosed": [*_disclosed(config, plan), *searched],
        "not_covered": _not_covered(config),
        "caveats": _caveats(spec, searched=search is not None),
    }
    features = statement(stages, tensors_digest(learned) if learned else None)
    if features is not None:
        found["features"] = features
    return found if search is None else {**found, "search": dict(search)}


def plan_statement(plan: Plan, steps: int) -> dict[str, Any]:
    """The numbers of a plan and its ``releases``: all of them, or those of ``steps`` steps whose noise was chosen."""
    if plan.adaptive:
        charges = [*plan.charges_before(), *(plan.charge_at(step) for step in range(steps))]
        planned = dict(Counter(each for each in charges if each is not None))
    else:
        planned = flatten(plan.event())
    return {**plan.describe(), "releases": releases_json(planned)}


def stated_plan(stated: Mapping[str, Any], clip_rule: ClipRule) -> Plan:
    """The plan that ``plan_statement`` was made of; ``clip_rule`` is given, because its class may be a stranger's."""

    def schedule(name: str) -> Schedule | None:
        return None if stated.get(name, "none") == "none" else parse_schedule(stated[name])

    return Plan(
        records=stated["records"],
        batch_size=stated["batch_size"],
        steps=stated["steps"],
        noise=schedule("noise"),
        clip_rule=clip_rule,
        sampling=stated["sampling"],
        neighbours=Neighbours.parse(stated["neighbours"]),
        before=tuple(stated.get("before", ())),
        replaced=tuple(stated.get("replaced", ())),
        batch_size_schedule=schedule("batch_size_schedule"),
        clip_norm_schedule=schedule("clip_factors"),
        keep_noise=stated.get("keep_noise", False),
        choice=stated.get("choice"),
        adaptive=stated.get("adaptive", False),
        held=stated.get("held"),
    )


def _disclosed(config: TrainConfig, plan: Plan) -> list[str]:
    disclosed = ["Every number in the configuration and in the plan."]
    if config.data == OWN_LOOP:
        disclosed.append(
            f"The number of records of the plan, {plan.records}: the exact one, unless a public one was planned with."
        )
    elif config.records is None:
        what = "training records" if config.unit is None else "units (ids) in the training data"
        disclosed.append(f"The exact number of {what}, {plan.records}, which follows from the sampling rate.")
    if config.validation is not None:
        disclosed.append(
            f"{config.validation} validation records, which were taken as public: they are not protected."
            if config.validation_public
            else f"That about {config.validation} records were held out. Looks at them have noise and are charged."
        )
    if config.holdout is not None:
        disclosed.append(
            f"That about {config.holdout} of the records were kept aside and not trained on. Figures of the model on "
            "them were released once, with noise, and are charged."
        )
    if config.audit_canaries is not None:
        disclosed.append(f"Which of {config.audit_canaries} public canaries were trained on, and their losses.")
    return disclosed


_ROUNDING = {
    "exact": "A processor that gives two different results for the same computation. One record of every batch was "
    "computed twice to check that this does not happen. If it does not, the bound on what one record can change is "
    "proved for the program that ran, rounding included (docs/arithmetic.md).",
    "fast": "Rounding, in part (docs/arithmetic.md). Gradients were computed to about 7 digits. For ordinary gradients "
    "the effect of rounding was measured, not proved, and the noise allows for it. Not covered is a gradient that "
    "depends on its last digit, such as that of a record made to lie exactly at the corner of a ReLU, or of one in "
    "which huge numbers cancel. One record can then change a sum by up to three times the amount that the noise is "
    "for, provided that the processor computes each row of a batch from that row alone, which was tested and not "
    "proved, and that the model takes the same path for every batch. Training with exact arithmetic leaves no such "
    "gap.",
}
"""What is not covered about rounding, by arithmetic."""
_ROUNDED_FEATURES = (
    "Rounding of features. They were computed in batches, so one record can change the last digits of the features of "
    "others. The noise allows for that where gradients are ordinary; where one depends on its last digit, the limit of "
    "three times does not hold."
)


_KEPT_APART = (
    "Code of the model that remembers records outside of PyTorch. That the gradient of each record was computed from "
    "that record alone was proved for the calls of PyTorch that the model made, and compared on the first step and on "
    "about one in fifty of the others, for two records each. Code that goes around both is not covered."
)
"""What fast arithmetic, which computes records together, leaves open; docs/models.md."""


_TIME = (
    "Time. How long the run took is published, rounded up to one digit. It depends slightly on how many records were "
    "drawn."
)


_OWN_LOOP = (
    "What the training loop did besides asking for private gradients. It was the user's own program. The certificate "
    "covers the gradients that were released to it, and every model that is computed from them and from public values "
    "alone. That the loop looked at the records in no other way is the responsibility of who wrote it."
)


_SEVERAL_ROWS = "Several records of one person together. Each of them is protected, all of them together less."
_SEVERAL_IDS = (
    "A person with several ids. All rows with one id are protected together, those with another id as somebody else's. "
    "Whether the ids tell people apart was taken on trust."
)


def _not_covered(config: TrainConfig) -> list[str]:
    """What the guarantee does not say, in words of who is affected."""
    found = [
        "What is true of many records alike. Learning that is the purpose of the model.",
        _SEVERAL_ROWS if config.unit is None else _SEVERAL_IDS,
        "Evaluations on the test set, which must be public.",
    ]
    if config.data == OWN_LOOP:
        found.append(_OWN_LOOP)
    if config.searched:
        found.append(f"The choice among {config.searched} settings that were tried outside of this run.")
    return found


def _caveats(spec: RunSpec, *, searched: bool) -> list[str]:
    """Where the computer that ran differs from the theorem."""
    arithmetic = spec.config.arithmetic or "fast"
    found = [_ROUNDING[arithmetic]]
    if arithmetic == "fast":
        found.append(_KEPT_APART)
        if spec.stages:
            found.append(_ROUNDED_FEATURES)
    return found if searched else [*found, _TIME]
