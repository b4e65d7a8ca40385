"""The certificate of a run: what was released, what that costs, and everything a reader must know to believe it.

It is computed from the ledger, not from the plan: what was charged is what counts. ``verify_run`` computes it again.
"""

from __future__ import annotations

import math
import platform
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

import numpy as np
import torch
from torch import Tensor

from adadp import __version__
from adadp.accounting import ACCOUNTANTS, Answer, Status, accountant
from adadp.config import TrainConfig
from adadp.errors import AccountingError, AdaDPError
from adadp.events import Event, Neighbours, describe, to_json
from adadp.ledger import LedgerRecord, read_ledger
from adadp.plan import Plan
from adadp.runs import RunFolder, certificate_digest

FORMAT = 1

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
    record_unit: str | None = None,
    notes: Iterable[str] = (),
) -> dict[str, Any]:
    """The certificate of a run that ended with ``ledger`` and ``model``, as JSON."""
    assert plan.neighbours is not None
    event = ledger.event()
    delta = config.delta
    private = plan.noise is not None
    certificate: dict[str, Any] = {
        "format": FORMAT,
        "private": private,
        "method": config.method,
        "epsilon": None,
        "epsilon_low": None,
        "epsilon_high": None,
        "delta": delta,
        "neighbours": plan.neighbours.value,
        "protects": f"The model changes little by {MEANING[plan.neighbours]} of the training data.",
        "record": record_unit or "one entry of the training data, as it was given",
        "sampling": plan.sampling,
        "accountant": config.accountant,
        "cross_check": [],
        "plan": plan.describe(),
        "steps_done": steps_done,
        "charged": [
            {"count": count, "event": to_json(each), "text": describe(each)} for each, count in ledger.charges.items()
        ],
        "torn_charges": ledger.torn,
        "ledger": {"run": ledger.run, "head": ledger.head, "length": ledger.length},
        "randomness": randomness,
        "config_digest": config.digest(),
        "model_digest": tensors_digest(model),
        "versions": {
            "adadp": __version__,
            "python": platform.python_version(),
            "torch": str(torch.__version__),
            "numpy": np.__version__,
        },
        "disclosed": _disclosed(config, plan),
        "not_charged": _not_charged(config),
        "notes": list(notes),
    }
    if not private:
        return certificate | {"reason": "The run added no noise: nothing is protected."}
    assert delta is not None
    answer = accountant(config.accountant).epsilon(event, delta) if event is not None else None
    if answer is not None and answer.status is not Status.PROVED:
        return certificate | {
            "private": False,
            "reason": f"The accountant {answer.accountant} gives no bound ({answer.status.value}): {answer.note}",
            "claimed_epsilon": answer.epsilon,
        }
    certificate |= _figures(answer)
    certificate["cross_check"] = _cross_check(event, delta)
    return certificate


def tensors_digest(tensors: Mapping[str, Tensor]) -> str:
    """SHA-256 over names, dtypes, shapes and bytes of ``tensors``, in the order of their names."""
    digest = sha256()
    for name in sorted(tensors):
        value = tensors[name].detach().cpu().contiguous()
        digest.update(f"{name}\0{value.dtype}\0{tuple(value.shape)}\0".encode())
        digest.update(value.reshape(-1).view(torch.uint8).numpy().tobytes() if value.numel() else b"")
    return digest.hexdigest()


def plain_words(certificate: Mapping[str, Any]) -> str:
    """The certificate in a few lines for people."""
    if not certificate["private"]:
        return f"NOT PRIVATE. {certificate.get('reason', '')}"
    plan = certificate["plan"]
    checks = ", ".join(f"{each['accountant']} {each['epsilon']:.4g}" for each in certificate["cross_check"])
    lines = [
        f"({certificate['epsilon']:.4g}, {certificate['delta']:g})-differentially private, "
        f"for {certificate['neighbours']} neighbours.",
        f"{certificate['protects']}",
        f"One record is: {certificate['record']}",
        f"{certificate['steps_done']} of {plan['steps']} steps, {certificate['sampling']} lots of about "
        f"{plan['lot_size']} of {plan['records']} records, clip {plan['clip']}, noise {plan['noise']}.",
        f"By {certificate['accountant']}, between {certificate['epsilon_low']:.6g} and "
        f"{certificate['epsilon_high']:.6g}; other accountants: {checks}.",
        f"Randomness: {certificate['randomness']}.",
    ]
    lines += [f"Disclosed: {each}" for each in certificate["disclosed"]]
    lines += [f"Not charged: {each}" for each in certificate["not_charged"]]
    return "\n".join(lines)


@dataclass(frozen=True)
class Check:
    """One thing that was verified about a run."""

    name: str
    passed: bool
    detail: str


def verify_run(folder: RunFolder) -> list[Check]:
    """Everything about a finished run that can be checked again from its folder. Never raises for what it checks."""
    try:
        certificate = folder.certificate()
    except AdaDPError as error:
        return [Check("certificate", False, str(error))]
    if certificate is None:
        return [Check("certificate", False, "There is none: the run has not finished.")]
    results = [
        _compare("configuration", certificate.get("config_digest"), folder.config.digest(), "config.toml"),
        _verify_ledger(folder, certificate),
        _verify_model(folder, certificate),
    ]
    return results + _verify_figures(folder, certificate)


def _verify_ledger(folder: RunFolder, certificate: Mapping[str, Any]) -> Check:
    try:
        pinned = certificate["ledger"]
        record = read_ledger(folder.ledger_path, expected_head=pinned["head"])
        if record.length != pinned["length"] or record.run != pinned["run"]:
            return Check("ledger", False, "The certificate names another ledger.")
    except (AdaDPError, KeyError) as error:
        return Check("ledger", False, str(error))
    return Check("ledger", True, f"{record.length} lines, chain whole up to the certified head")


def _verify_model(folder: RunFolder, certificate: Mapping[str, Any]) -> Check:
    try:
        tensors, metadata = folder.load_model_tensors(), folder.model_metadata()
    except AdaDPError as error:
        return Check("model", False, str(error))
    if metadata.get("certificate_digest") != certificate_digest(certificate):
        return Check("model", False, "The model was saved with another certificate than certificate.json.")
    return _compare("model", certificate.get("model_digest"), tensors_digest(tensors), "the parameters")


def _verify_figures(folder: RunFolder, certificate: Mapping[str, Any]) -> list[Check]:
    """Epsilon computed again from the ledger, and the charges held against the plan."""
    try:
        record = read_ledger(folder.ledger_path)
        relation = record.neighbours.value if record.neighbours is not None else certificate["neighbours"]
        results = [_compare("neighbours", certificate["neighbours"], relation, "the ledger")]
        charged = [{"count": count, "event": to_json(each)} for each, count in record.charges.items()]
        certified = [{"count": each["count"], "event": each["event"]} for each in certificate["charged"]]
        results.append(Check("charges", charged == certified, f"{sum(record.charges.values())} in the ledger"))
        event = record.event()
        if not certificate["private"] or event is None:
            claims = certificate["epsilon"] is not None
            return [*results, Check("epsilon", not claims, "no guarantee is claimed" if not claims else "unfounded")]
        answer = accountant(folder.config.accountant).epsilon(event, certificate["delta"])
        right = (
            answer.status is Status.PROVED
            and certificate["delta"] == folder.config.delta
            and math.isclose(answer.epsilon, certificate["epsilon"], rel_tol=1e-6)
        )
        detail = f"{answer.epsilon:.6g} from the ledger, {certificate['epsilon']:.6g} certified"
        return [*results, Check("epsilon", right, detail)]
    except (AdaDPError, KeyError, TypeError) as error:
        return [Check("epsilon", False, str(error))]


def _compare(name: str, certified: object, found: object, what: str) -> Check:
    same = certified == found
    return Check(name, same, f"{what} as certified" if same else f"{what} does not match the certificate")


def _figures(answer: Answer | None) -> dict[str, float]:
    """Epsilon and its bracket; a run that charged nothing released nothing."""
    if answer is None:
        return {"epsilon": 0.0, "epsilon_low": 0.0, "epsilon_high": 0.0}
    return {"epsilon": answer.epsilon, "epsilon_low": answer.epsilon_low, "epsilon_high": answer.epsilon_high}


def _cross_check(event: Event | None, delta: float) -> list[dict[str, Any]]:
    """What every accountant with a proof says; those that have no theorem for the events are left out."""
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
    return found


def _disclosed(config: TrainConfig, plan: Plan) -> list[str]:
    disclosed = ["The configuration and the plan: every number in them."]
    if config.records is None:
        disclosed.append(f"The exact number of training records, {plan.records}, through the sampling rate.")
    if config.seed is not None:
        disclosed.append(
            f"The seed {config.seed}: who knows it and the other records can compute the noise. For publication, run "
            "without a seed."
        )
    if config.unsafe_diagnostics:
        disclosed.append(
            "metrics.jsonl holds sensitive diagnostics without noise: the guarantee covers the model only."
        )
    return disclosed


def _not_charged(config: TrainConfig) -> list[str]:
    not_charged = ["Looks at the test set, which must be public."]
    if config.searched:
        not_charged.append(f"{config.searched} settings tried outside of this run.")
    return not_charged
