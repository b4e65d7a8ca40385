"""What a page says of the guarantee: what is protected, what attackers can reach, whom the reader must trust.

no guarantee        why, and what follows
a run with a seed   says so first; the figures are those of the same run without one
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from adadp.accounting import rounded_up
from adadp.app.accounting.tradeoff import FALSE_ALARMS, TradeOff, gaussian
from adadp.app.report.attacks import attacks_in_words, share
from adadp.app.report.html.formatting import meaning
from adadp.app.report.html.page import Axis, Chart, Part, Section, Series, Table, Tone, Words
from adadp.app.report.trust import how_settings_were_chosen, unit_in_words, who_could_see
from adadp.certificate import detection
from adadp.certificate.wording import guarantee_of, small

Certificate = Mapping[str, Any]

_TITLE = "What this protects, and what it does not"
_RATES = tuple(10 ** (-4 + place / 4) for place in range(17))
"""False alarms from 0.01 % to all, evenly on a logarithmic axis."""


def protection(certificate: Certificate, attacks: TradeOff | None) -> list[Section]:
    """What the certificate states, in the words of who is affected, and what ``attacks`` on it can reach."""
    proved = guarantee_of(certificate)
    if proved is None or attacks is None:
        why = (certificate.get("reason", ""), certificate.get("claimed_by_paper", {}).get("text", ""))
        parts: list[Part] = [
            Words(tuple(each for each in why if each), "Nothing is protected", "bad"),
            Words(("Do not publish this model if its records must stay private.",), "What follows", "warn"),
        ]
        return [Section(_TITLE, tuple(parts))]
    features = certificate.get("features", {})
    protects = [
        proved["protects"],
        *unit_in_words(certificate),
        *(f"Released privately before the training, and charged: {each}" for each in features.get("released", ())),
        *(f"Public from the start, so nothing to protect: {each}" for each in features.get("public", ())),
    ]
    limits = [
        *certificate["not_covered"],
        *(f"Disclosed: {each}" for each in certificate["disclosed"]),
    ]
    epsilon, delta = proved["epsilon"], certificate["delta"]
    weak = detection.rules_out_little(epsilon, delta)
    tone: Tone = "warn" if weak else "good"
    heading = "Protected, weakly" if weak else "Protected"
    means = "means"
    shown: list[Part] = []
    if certificate["rehearsal"]:
        shown.append(Words((certificate["reason"],), "Nothing is protected: this is a rehearsal", "bad"))
        heading, tone = f"What the same run without a seed would protect{', weakly' if weak else ''}", "plain"
        means = "would mean without a seed"
    detected = attacks.detected(detection.FALSE_ALARMS)
    shown += [
        Words(tuple(protects), heading, tone, listed=True),
        Words(tuple(limits), "Not protected either way" if certificate["rehearsal"] else "Not protected", "warn", True),
        Words(
            meaning(epsilon, delta, certificate["neighbours"], detected), f"What epsilon {rounded_up(epsilon)} {means}"
        ),
        Words(who_could_see(certificate), "Who could see what", listed=True),
        Words((how_settings_were_chosen(certificate),), "How the settings were chosen"),
    ]
    notes = (
        f"Randomness: {certificate['randomness']}. Arithmetic: {certificate['arithmetic']}.",
        *([] if "data_budget" not in certificate else [certificate["data_budget"]["text"]]),
        *certificate["notes"],
    )
    shown.append(Words(notes, "Notes", listed=True))
    shown.append(Words(tuple(certificate["caveats"]), "Technical caveats", listed=True))
    return [Section(_TITLE, tuple(shown)), _reached(certificate, attacks, epsilon, delta)]


def _reached(certificate: Certificate, attacks: TradeOff, epsilon: float, delta: float) -> Section:
    """The trade-off of attacks, as a table, a chart and mu."""
    without = " without a seed" if certificate["rehearsal"] else ""
    columns = ("False alarms", "Found, at most", "By epsilon alone")
    rows = tuple(
        (share(rate), share(attacks.detected(rate), up=True), share(detection.detection(epsilon, delta, rate), up=True))
        for rate in FALSE_ALARMS
    )
    caption = (
        f"How often any attack finds its record{without}. Guessing finds it as often as it raises false alarms. The "
        f"last column follows from epsilon {rounded_up(epsilon)} and delta {small(delta)} alone."
    )
    mu = attacks.mu
    curves = [
        _curve(f"this run{without}", attacks, 0),
        _curve(f"mu = {rounded_up(mu)}", gaussian(mu), 1, dashed=True),
        Series("guessing", _RATES, _RATES, dashed=True, style=6),
    ]
    chart = Chart(
        "attacks",
        f"What attacks can reach{without}",
        "line",
        Axis("false alarms", "log", percent=True),
        Axis("records found", "log", percent=True, bound=True),
        tuple(curves),
        "No attack is above the first line, whatever it knows and however it works.",
        wide=True,
    )
    explained = (
        attacks_in_words(attacks)[1],
        "Mu sums up the curve in one number, which, unlike epsilon, can be compared between runs with different delta. "
        "A Gaussian mechanism of that mu allows attacks at least as good, up to 1e-6 in either rate. The regret says "
        "by how much, in either rate, the two curves differ at most: below 0.01 is a close fit.",
    )
    return Section(
        f"What an attacker can reach{without}", (Table(columns, rows, caption), Words(explained, "Mu"), chart)
    )


def _curve(name: str, attacks: TradeOff, style: int, *, dashed: bool = False) -> Series:
    return Series(name, _RATES, tuple(map(attacks.detected, _RATES)), dashed=dashed, style=style)
