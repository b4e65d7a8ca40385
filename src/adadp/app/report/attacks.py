"""What an attacker can reach at best, by a certificate: figures and sentences. No torch: ``adadp verify`` prints them.

The figures follow from what ``certificate.json`` states, so they are computed where they are shown and stand in no file
that could be edited. ``adadp verify`` checks what they are computed from.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from adadp.accounting import rounded_up
from adadp.app.accounting.tradeoff import FALSE_ALARMS, LEAST, TradeOff, trade_off
from adadp.certificate.wording import guarantee_of, small
from adadp.events import from_json
from adadp.ledger.reader import whole
from adadp.registry import installed_only

Certificate = Mapping[str, Any]


def attacks_on(certificate: Certificate) -> TradeOff | None:
    """What attacks on the run can reach; of a rehearsal, what they could without the seed; None: no guarantee.

    Where a filter held the run to its budget, the noise was chosen from earlier releases. Then the privacy curve of the
    charges is no bound, and only what follows from epsilon and delta is said.
    """
    proved = guarantee_of(certificate)
    if proved is None:
        return None
    adaptive = bool(certificate["plan"].get("adaptive"))
    charged = None if adaptive else json.dumps([(each["event"], each["count"]) for each in certificate["charged"]])
    return _computed(charged, float(proved["epsilon"]), float(certificate["delta"]))


@lru_cache(maxsize=64)
def _computed(charged: str | None, epsilon: float, delta: float) -> TradeOff:
    if epsilon == 0 and charged in (None, "[]"):
        return TradeOff.of_nothing()
    if charged is None:
        return trade_off(None, epsilon, delta)
    with installed_only():  # the folder may be a stranger's
        counts = {from_json(event): count for event, count in json.loads(charged)}
    return trade_off(whole(counts), epsilon, delta)


def stated_attacks(certificate: Certificate) -> dict[str, Any]:
    """For a program: the figures, or those of the same run without its seed."""
    found = attacks_on(certificate)
    figures = None if found is None else found.stated()
    without = figures if certificate["rehearsal"] else None
    return {"trade_off": None if certificate["rehearsal"] else figures, "trade_off_if_unseeded": without}


def attacks_in_words(found: TradeOff) -> tuple[str, str]:
    """What the curve means, and mu."""
    figures = found.stated()
    reached = [f"{share(rate)} false alarms, {share(found.detected(rate), up=True)}" for rate in FALSE_ALARMS]
    alone = "" if found.by_curve else " This follows from epsilon and delta alone."
    return (
        f"An attacker who looks for one record finds it at most this often: with {'; with '.join(reached)}. "
        f"Guessing finds it as often as it raises false alarms.{alone}",
        f"As Gaussian differential privacy: mu = {rounded_up(figures['mu'])}, for rates of false alarms and of misses "
        f"of {small(LEAST)} or more (regret {rounded_up(figures['regret'], 2)}).",
    )


def share(value: float, *, up: bool = False) -> str:
    """A rate as a percentage; a bound is rounded up."""
    return f"{rounded_up(100 * value) if up else f'{100 * value:g}'} %"
