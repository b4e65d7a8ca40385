"""The certificate of a run: what was released, what that costs, and everything a reader must know to believe it.

It is computed from the ledger, not from the plan: what was charged is what counts. ``adadp verify`` computes it again.
"""

from __future__ import annotations

import math
import platform
from collections.abc import Iterable, Mapping
from hashlib import sha256
from typing import Any

import numpy as np
import torch
from torch import Tensor

from adadp import __version__
from adadp.accounting import ACCOUNTANTS, Answer, Status, accountant, rounded_up
from adadp.app.accounting import Filter
from adadp.app.config import TrainConfig, json_digest
from adadp.app.features import parse_features, statement
from adadp.app.report.detection import rules_out_little
from adadp.app.runs import certificate_digest
from adadp.app.texts.methods import parse_method
from adadp.app.texts.schedules import parse_schedule
from adadp.errors import AccountingError
from adadp.events import Event, Neighbours, Repeated, compose, describe, to_json
from adadp.ledger import LedgerRecord
from adadp.plan import Plan
from adadp.schedules import Piecewise

FORMAT = 2

MEANING = {
    Neighbours.ADD_REMOVE: "adding or removing one record",
    Neighbours.REPLACE_ONE: "replacing one record by any other",
    Neighbours.ZERO_OUT: "blanking out one record",
}


def make_certificate(
    *,
    config: TrainConfig,
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
    budget: Filter | None = None,
    search: Mapping[str, Any] | None = None,
    searched: Iterable[str] = (),
    measured: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """The certificate of a run that ended with ``ledger`` and ``model``, as JSON.

    ``steps_done`` steps are in the model; ``steps_lost`` were charged and are not, because the process was killed.
    ``learned`` is what the feature stages of the run have released; ``encoder`` how files became records. ``budget`` is
    the filter of a run whose noise was chosen during the run: what was promised ahead is then what is certified.
    ``search`` says among what the run was chosen, and ``searched`` what that discloses; the ledger is the search's.
    ``measured`` are the digests of the files with what was measured on public data.

    A run with a seed is a rehearsal: ``private`` is false and ``epsilon`` None, since whoever has the seed can subtract
    the noise. What the same run without a seed would state is under ``if_unseeded``.
    """
    assert plan.neighbours is not None
    event = ledger.event()
    delta = config.delta
    private = plan.noise is not None
    certificate: dict[str, Any] = {
        "format": FORMAT,
        "private": private,
        "rehearsal": False,
        "method": config.method,
        "epsilon": None,
        "epsilon_low": None,
        "epsilon_high": None,
        "delta": delta,
        "neighbours": plan.neighbours.value,
        "protects": "Nothing.",
        "record": record_unit or "one entry of the training data, as it was given",
        "sampling": plan.sampling,
        "arithmetic": config.arithmetic or "fast",
        "accountant": config.accountant,
        "cross_check": [],
        "plan": plan.describe(),
        "steps_done": steps_done,
        "steps_lost": steps_lost,
        "charged": [
            {"count": count, "event": to_json(each), "text": describe(each)} for each, count in ledger.charges.items()
        ],
        "torn_charges": ledger.torn,
        "ledger": {"run": ledger.run, "head": ledger.head, "length": ledger.length},
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
        "disclosed": [*_disclosed(config, plan, searched=search is not None), *searched],
        "not_charged": _not_charged(config),
        "notes": list(notes),
    }
    features = statement(parse_features(config.features), tensors_digest(learned) if learned else None)
    if features is not None:
        certificate["features"] = features
    if search is not None:
        certificate["search"] = dict(search)
    if encoder is not None:
        certificate["encoder_digest"] = json_digest(dict(encoder))
    if not private:
        return certificate | {"reason": "The run added no noise: nothing is protected."}
    assert delta is not None
    method = parse_method(config.method)
    leak = method.not_private
    if leak is not None:
        return certificate | {
            "private": False,
            "reason": leak,
            "claimed_by_paper": _claimed(method.paper, plan, ledger, delta),
        }
    if budget is not None:
        certificate["accountant"] = budget.name
        proved = _guarantee(budget.answer() if event is not None else None, delta, plan.neighbours)
        return certificate | _for_release(proved, config.seed)
    answer = accountant(config.accountant).epsilon(event, delta) if event is not None else None
    if answer is not None and answer.status is not Status.PROVED:
        return certificate | {
            "private": False,
            "reason": f"The accountant {answer.accountant} gives no bound ({answer.status.value}): {answer.note}",
            "claimed_epsilon": answer.epsilon,
        }
    proved = _guarantee(answer, delta, plan.neighbours) | {"cross_check": _cross_check(event, delta)}
    return certificate | _for_release(proved, config.seed)


def guarantee_of(certificate: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Epsilon, its bracket and what they protect, as certified, or (of a rehearsal) as without the seed; None: none."""
    if certificate["rehearsal"]:
        without: Mapping[str, Any] = certificate["if_unseeded"]
        return without
    return certificate if certificate["private"] else None


def stated(certificate: Mapping[str, Any]) -> dict[str, Any]:
    """What a program needs to know first: whether the model may be released, and under which epsilon."""
    without = certificate["if_unseeded"]["epsilon"] if certificate["rehearsal"] else None
    found = {name: certificate[name] for name in ("private", "rehearsal", "epsilon")}
    return found | {"epsilon_if_unseeded": without}


def tensors_digest(tensors: Mapping[str, Tensor]) -> str:
    """SHA-256 over names, dtypes, shapes and bytes of ``tensors``, in the order of their names."""
    digest = sha256()
    for name in sorted(tensors):
        value = tensors[name].detach().cpu().contiguous()
        digest.update(f"{name}\0{value.dtype}\0{tuple(value.shape)}\0".encode())
        digest.update(value.reshape(-1).view(torch.uint8).numpy().tobytes() if value.numel() else b"")
    return digest.hexdigest()


def model_metadata(certificate: Mapping[str, Any]) -> dict[str, str]:
    """What a reader of the model file alone learns."""
    epsilon, delta = certificate["epsilon"], certificate["delta"]
    metadata = {
        "certificate_digest": certificate_digest(certificate),
        "private": str(certificate["private"]).lower(),
        "rehearsal": str(certificate["rehearsal"]).lower(),
        "epsilon": "none" if epsilon is None else repr(epsilon),
        "delta": "none" if delta is None else repr(delta),
        "neighbours": certificate["neighbours"],
    }
    if certificate["rehearsal"]:
        metadata["epsilon_if_unseeded"] = repr(certificate["if_unseeded"]["epsilon"])
    return metadata


def small(value: float) -> str:
    """A delta: 1e-5, and not 1e-05."""
    return f"{value:g}".replace("e-0", "e-")


def plain_words(certificate: Mapping[str, Any]) -> str:
    """The certificate in lines for people: what is guaranteed, what is not, and only then how the run was made."""
    proved = guarantee_of(certificate)
    if proved is None:
        claimed = certificate.get("claimed_by_paper")
        return f"NOT PRIVATE. {certificate.get('reason', '')}" + (f"\n{claimed['text']}" if claimed else "")
    plan = certificate["plan"]
    guarantee = (
        f"({rounded_up(proved['epsilon'])}, {small(certificate['delta'])})-differentially private, "
        f"for {certificate['neighbours']} neighbours."
    )
    lost = f" ({certificate['steps_lost']} more were charged and lost)" if certificate["steps_lost"] else ""
    if certificate["rehearsal"]:
        lines = [
            f"REHEARSAL, NOT FOR RELEASE. {certificate['reason']}",
            f"Without a seed the same run would be {guarantee}",
        ]
    else:
        lines = [f"The model is {guarantee}", certificate["protects"]]
    lines.append(record_in_words(certificate))
    if "search" in certificate:
        lines.append(certificate["search"]["text"])
    lines += [f"Not covered: {each}" for each in certificate["not_charged"]]
    lines += [f"Disclosed: {each}" for each in certificate["disclosed"]]
    lines += [
        f"Training: {certificate['steps_done']} of {plan['steps']} steps of {certificate['method']}{lost}, on "
        f"{certificate['sampling']} batches of about {plan['batch_size']} of {plan['records']} records, with clip rule "
        f"{plan['clip_norm']} and noise multiplier {_noise(plan)}.",
        _accounting(certificate, proved),
        f"Randomness: {certificate['randomness']}. Arithmetic: {certificate.get('arithmetic', 'fast')}.",
    ]
    features = certificate.get("features")
    if features is not None:
        lines.append(f"Features before the network: {', then '.join(features['stages'])}.")
        lines += [f"Released privately and charged: {each}." for each in features["released"]]
        lines += [f"Public: {each}" for each in features["public"]]
    lines += [f"Note: {each}" for each in certificate["notes"]]
    return "\n".join(lines)


def record_in_words(certificate: Mapping[str, Any]) -> str:
    """What one record is, as a sentence."""
    return f"One record is: {certificate['record'].removesuffix('.')}."


def bracket_in_words(proved: Mapping[str, Any]) -> str:
    """The bracket of epsilon to six digits; one number where its ends read alike."""
    low, high = f"{proved['epsilon_low']:.6g}", rounded_up(proved["epsilon_high"], 6)
    return f"between {low} and {high}, the upper end counts" if low != high else high


def _accounting(certificate: Mapping[str, Any], proved: Mapping[str, Any]) -> str:
    """Which accountant certifies, and what the others with a proof say."""
    name = certificate["accountant"]
    checks = {each["accountant"]: rounded_up(each["epsilon"]) for each in proved["cross_check"]}
    if proved["epsilon"] == 0:
        return "Accounting: nothing was released, so epsilon is 0."
    if not checks:
        return (
            f"Accounting: epsilon is the budget that was fixed in advance. The {name} held the run to it while the "
            "noise was chosen during the run."
        )
    others = ", ".join(f"{each} {epsilon}" for each, epsilon in checks.items() if each != name)
    return f"Accounting: epsilon by {name} is {bracket_in_words(proved)}." + (
        f" Other accountants with a proof: {others}." if others else ""
    )


def _noise(plan: Mapping[str, Any]) -> str:
    """The noise of a plan; of noise that changed from step to step, what it began and ended with."""
    noise = parse_schedule(plan["noise"])
    clips = f", kept while the clip bound is multiplied by {plan['clip_factors']}" if plan.get("keep_noise") else ""
    if not (isinstance(noise, Piecewise) and noise.tick == 1):
        return f"{noise}{clips}"
    (_, first), (_, last) = noise.points[0], noise.points[-1]
    return f"chosen {len(noise.points)} times during the run, {first:.4g} at first and {last:.4g} at the end{clips}"


def _for_release(proved: dict[str, Any], seed: int | None) -> dict[str, Any]:
    """What a certificate states of a run about whose releases ``proved`` is proved, if its noise stays unknown."""
    if seed is None:
        return proved
    reason = (
        f"The noise was computed from the seed {seed}, which is in the configuration: whoever has the seed can compute "
        "the noise again and subtract it. Nothing is protected. To release a model, train it without a seed."
    )
    return {"private": False, "rehearsal": True, "reason": reason, "if_unseeded": proved}


def _guarantee(answer: Answer | None, delta: float, neighbours: Neighbours) -> dict[str, Any]:
    """Epsilon, its bracket, and what that protects; a run that charged nothing released nothing."""
    epsilon = 0.0 if answer is None else answer.epsilon
    return {
        "cross_check": [],
        "epsilon": epsilon,
        "epsilon_low": 0.0 if answer is None else answer.epsilon_low,
        "epsilon_high": 0.0 if answer is None else answer.epsilon_high,
        "protects": _protects(epsilon, delta, neighbours),
    }


def _protects(epsilon: float, delta: float, neighbours: Neighbours) -> str:
    """The guarantee in a sentence. It must not promise what (epsilon, delta) alone does not give."""
    change = f"{MEANING[neighbours]} of the training data"
    if rules_out_little(epsilon, delta):
        return (
            f"At so large an epsilon the guarantee alone rules out very little: the model may change much by {change}."
        )
    factor = rounded_up(math.exp(epsilon))
    return (
        f"{change[0].upper()}{change[1:]} changes the probability of any outcome by at most a factor of {factor}, plus "
        f"at most {small(delta)}."
    )


_THEOREM1 = "Xu et al. 2020"


def _claimed(published: str | None, plan: Plan, ledger: LedgerRecord, delta: float) -> dict[str, Any]:
    """What Xu et al. 2020 would claim for a method that is not private, by their Theorem 1, of what was charged.

    They claim it for their own methods and for those they compare with. A method that others ``published`` may have
    another claim in its own paper, which is not computed. Theorem 1 does not cover what features release ahead of the
    steps; then it is that of the steps alone.
    """
    paper = accountant("theorem1")
    before = set(plan.charges_before())
    whole = [Repeated(each, count) for each, count in ledger.charges.items()]
    steps = [Repeated(each, count) for each, count in ledger.charges.items() if each not in before]
    epsilon, what = None, "nothing for what this run released"
    for events, words in ((whole, "for what was charged"), (steps, "for the steps alone, the features left out")):
        try:
            figure = paper.epsilon(compose(*events), delta).epsilon if events else 0.0
        except AccountingError:
            continue
        if math.isfinite(figure):
            epsilon, what = figure, f"epsilon {figure:.4g} at delta {small(delta)} {words}"
        break
    text = f"{_THEOREM1} would claim {what} (their Theorem 1, as printed). No guarantee follows from it."
    if published != _THEOREM1:
        text += f" The method was published by {published}; what that paper would claim was not computed."
    return {"accountant": paper.name, "epsilon": epsilon, "text": text}


def _cross_check(event: Event | None, delta: float) -> list[dict[str, Any]]:
    """What every accountant with a proof says, the tightest first; one without a theorem for the events is left out."""
    found: list[dict[str, Any]] = []
    for name, each in ACCOUNTANTS.items():
        if event is None or each.status is not Status.PROVED:
            continue
        try:
            epsilon = each.epsilon(event, delta).epsilon
        except AccountingError:
            continue
        if math.isfinite(epsilon):
            found.append({"accountant": name, "epsilon": epsilon})
    return sorted(found, key=lambda each: float(each["epsilon"]))


def _disclosed(config: TrainConfig, plan: Plan, *, searched: bool) -> list[str]:
    disclosed = ["Every number in the configuration and in the plan."]
    if not searched:
        disclosed.append(
            "How long the run took, rounded up to one digit. It depends slightly on how many records were drawn."
        )
    if config.records is None:
        disclosed.append(f"The exact number of training records, {plan.records}, which follows from the sampling rate.")
    if config.validation is not None:
        disclosed.append(
            f"{config.validation} validation records, which were taken as public: they are not protected."
            if config.validation_public
            else f"That about {config.validation} records were held out. Looks at them have noise and are charged."
        )
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


def _not_charged(config: TrainConfig) -> list[str]:
    arithmetic = config.arithmetic or "fast"
    not_charged = ["Evaluations on the test set, which must be public.", _ROUNDING[arithmetic]]
    if arithmetic == "fast":
        not_charged.append(_KEPT_APART)
        if parse_features(config.features):
            not_charged.append(_ROUNDED_FEATURES)
    if config.searched:
        not_charged.append(f"The choice among {config.searched} settings that were tried outside of this run.")
    return not_charged
