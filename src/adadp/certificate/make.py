"""What is certified about a run, computed from its ledger: what was charged counts, not what was planned."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

from adadp.accounting import ACCOUNTANTS, Answer, Status, accountant
from adadp.certificate import wording
from adadp.certificate.digests import json_digest
from adadp.errors import AccountingError
from adadp.events import Event, GaussianRelease, Neighbours, describe, to_json
from adadp.ledger import FixedBudget, LedgerRecord
from adadp.ledger.reader import whole

FORMAT = 3
"""Version of the certificate's fields; a reader refuses others."""

_NO_NOISE = "The run added no noise: nothing is protected."
_THEOREM1 = "theorem1"


def figures(
    ledger: LedgerRecord,
    *,
    noisy: bool,
    neighbours: Neighbours,
    delta: float | None,
    accountant_name: str,
    seed: int | None,
    budget: FixedBudget | None = None,
    not_private: str | None = None,
    paper: str | None = None,
    compared: Iterable[str] = ACCOUNTANTS,
) -> dict[str, Any]:
    """What the charges of ``ledger`` come to, with what follows from that alone.

    ==========================================  ==================================================================
    a run without noise, a method that is not   ``private`` is false and ``epsilon`` None; ``reason`` says why
    private, an accountant without a proof
    a run with a seed                           the same; what it would state without the seed is ``if_unseeded``
    noise chosen during the run                 ``budget``: the filter that the ledger began with
    nothing was charged                         epsilon 0
    ==========================================  ==================================================================

    ``not_private`` says why no epsilon holds for the method, ``paper`` who published it. ``compared`` are the
    accountants to ask besides; those without a proof, or without a theorem for these events, are left out.
    """
    event = ledger.event()
    stated: dict[str, Any] = {
        "private": noisy,
        "rehearsal": False,
        "epsilon": None,
        "epsilon_low": None,
        "epsilon_high": None,
        "delta": delta,
        "neighbours": neighbours.value,
        "protects": wording.NOTHING,
        "accountant": accountant_name,
        "cross_check": [],
        "charged": [
            {**entry, "text": describe(each)}
            for entry, each in zip(releases_json(ledger.charges), ledger.charges, strict=True)
        ],
        "torn_charges": ledger.torn,
        "ledger": {"run": ledger.run, "head": ledger.head, "length": ledger.length},
    }
    if not noisy:
        return stated | {"reason": _NO_NOISE}
    assert delta is not None
    if not_private is not None:
        claim = _claimed(paper, ledger.charges, delta)
        return stated | {"private": False, "reason": not_private, "claimed_by_paper": claim}
    if budget is not None:
        stated["accountant"] = name = str(budget.describe()["rule"])
        # Whatever the filter admitted is (epsilon, delta)-DP: what was used of it certifies nothing smaller.
        top, allowed = budget.epsilon, budget.delta
        held = Answer(top, top, top, allowed, allowed, allowed, name, Status.PROVED, neighbours)
        answer = held if event is not None else None
    else:
        answer = accountant(accountant_name).epsilon(event, delta) if event is not None else None
    if answer is not None and answer.status is not Status.PROVED:
        reason = f"The accountant {answer.accountant} gives no bound ({answer.status.value}): {answer.note}"
        return stated | {"private": False, "reason": reason, "claimed_epsilon": answer.epsilon}
    proved = _guarantee(answer, delta, neighbours)
    if event is not None and budget is None:
        proved["cross_check"] = _cross_check(event, delta, compared)
    if seed is None:
        return stated | proved
    return stated | {"private": False, "rehearsal": True, "reason": wording.seeded(seed), "if_unseeded": proved}


def releases_json(counts: Mapping[Event, int]) -> list[dict[str, Any]]:
    """Events and how often each, as the header of a ledger lists them."""
    return [{"count": count, "event": to_json(event)} for event, count in counts.items()]


def model_metadata(certificate: Mapping[str, Any]) -> dict[str, str]:
    """What a reader of the model file alone learns."""
    epsilon, delta = certificate["epsilon"], certificate["delta"]
    metadata = {
        "certificate_digest": json_digest(certificate),
        "private": str(certificate["private"]).lower(),
        "rehearsal": str(certificate["rehearsal"]).lower(),
        "epsilon": "none" if epsilon is None else repr(epsilon),
        "delta": "none" if delta is None else repr(delta),
        "neighbours": certificate["neighbours"],
    }
    if certificate["rehearsal"]:
        metadata["epsilon_if_unseeded"] = repr(certificate["if_unseeded"]["epsilon"])
    return metadata


def _guarantee(answer: Answer | None, delta: float, neighbours: Neighbours) -> dict[str, Any]:
    """Epsilon, its bracket, and what that protects; a run that charged nothing released nothing."""
    epsilon = 0.0 if answer is None else answer.epsilon
    return {
        "cross_check": [],
        "epsilon": epsilon,
        "epsilon_low": 0.0 if answer is None else answer.epsilon_low,
        "epsilon_high": 0.0 if answer is None else answer.epsilon_high,
        "protects": wording.protects(epsilon, delta, neighbours),
    }


def _cross_check(event: Event, delta: float, compared: Iterable[str]) -> list[dict[str, Any]]:
    """What every accountant with a proof says, the tightest first."""
    found: list[dict[str, Any]] = []
    for name in compared:
        if ACCOUNTANTS[name].status is not Status.PROVED:
            continue
        try:
            epsilon = ACCOUNTANTS[name].epsilon(event, delta).epsilon
        except AccountingError:
            continue
        if math.isfinite(epsilon):
            found.append({"accountant": name, "epsilon": epsilon})
    return sorted(found, key=lambda each: float(each["epsilon"]))


def _claimed(paper: str | None, charges: Mapping[Event, int], delta: float) -> dict[str, Any]:
    """What Xu et al. 2020 would claim for a method that is not private, by their Theorem 1, of what was charged.

    They claim it for their own methods and for those they compare with. A method of another ``paper`` may have another
    claim there, which is not computed. Theorem 1 does not cover what features release ahead of the steps, unsampled;
    then it is that of the steps alone.
    """
    steps: Mapping[Event, int] = {
        each: count for each, count in charges.items() if not isinstance(each, GaussianRelease)
    }
    epsilon, covers = None, None
    for counts, words in ((charges, "what was charged"), (steps, "the steps alone, the features left out")):
        event = whole(counts)
        try:
            figure = accountant(_THEOREM1).epsilon(event, delta).epsilon if event is not None else 0.0
        except AccountingError:
            continue
        if math.isfinite(figure):
            epsilon, covers = figure, words
        break
    text = wording.claim(epsilon, covers, delta, paper)
    return {"accountant": _THEOREM1, "epsilon": epsilon, "paper": paper, "text": text}
