"""A certificate in lines for people: first what is guaranteed, then what a record is, what attackers can reach, who is
trusted, what is not covered, and the technical caveats at the end. No torch: ``adadp verify`` prints them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from adadp.accounting import rounded_up
from adadp.app.report.attacks import attacks_in_words, attacks_on
from adadp.app.report.trust import how_settings_were_chosen, unit_in_words, who_could_see
from adadp.certificate.detection import rules_out_little
from adadp.certificate.wording import guarantee_of, small

Certificate = Mapping[str, Any]


def plain_words(certificate: Certificate) -> str:
    """The certificate in lines for people: what is guaranteed, what is not, and only then how the run was made."""
    lines = [*guarantee(certificate)]
    if not certificate["private"]:
        lines[0] = f"{status(certificate)}. {lines[0]}"
    for title, sentences in sections(certificate):
        lines += [title, *(f"  {each}" for each in sentences)]
    return "\n".join(lines)


def status(certificate: Certificate) -> str:
    """The verdict in capitals."""
    if certificate["rehearsal"]:
        return "REHEARSAL, NOT FOR RELEASE"
    if not certificate["private"]:
        return "NOT PRIVATE"
    return "PRIVATE, WEAKLY" if rules_out_little(certificate["epsilon"], certificate["delta"]) else "PRIVATE"


def guarantee(certificate: Certificate) -> tuple[str, ...]:
    """What is guaranteed, for one record of what kind, and what attackers can reach; or why nothing is."""
    proved, attacks = guarantee_of(certificate), attacks_on(certificate)
    if proved is None or attacks is None:
        claimed = certificate.get("claimed_by_paper")
        return (certificate.get("reason", ""), *([claimed["text"]] if claimed else []))
    pair = f"({rounded_up(proved['epsilon'])}, {small(certificate['delta'])})-differentially private"
    relation = f"for {certificate['neighbours']} neighbours"
    record, compared = unit_in_words(certificate)
    reached, mu = attacks_in_words(attacks)
    if certificate["rehearsal"]:
        same = f"Without a seed the same run would be {pair}, {relation}. {proved['protects']}"
        return (certificate["reason"], same, record, f"Without a seed: {reached}", f"Without a seed: {mu}", compared)
    return (proved["protects"], record, f"In technical terms: the model is {pair}, {relation}.", reached, mu, compared)


def sections(certificate: Certificate) -> list[tuple[str, tuple[str, ...]]]:
    """What a certificate says beside the guarantee, under titles; nothing of a run that has none."""
    proved = guarantee_of(certificate)
    if proved is None:
        return []
    found = [
        ("Who could see what", who_could_see(certificate)),
        ("How the settings were chosen", (how_settings_were_chosen(certificate),)),
        ("Not covered", tuple(certificate["not_covered"])),
        ("Disclosed", tuple(certificate["disclosed"])),
        ("How the model was made", tuple(_making(certificate, proved))),
        ("Technical caveats", tuple(certificate["caveats"])),
    ]
    return [(title, sentences) for title, sentences in found if sentences]


def bracket_in_words(proved: Mapping[str, Any]) -> str:
    """The bracket of epsilon to six digits; one number where its ends read alike."""
    low, high = f"{proved['epsilon_low']:.6g}", rounded_up(proved["epsilon_high"], 6)
    return f"between {low} and {high}, the upper end counts" if low != high else high


def _making(certificate: Certificate, proved: Mapping[str, Any]) -> list[str]:
    plan, features = certificate["plan"], certificate.get("features", {"stages": [], "released": [], "public": []})
    lost = f" ({certificate['steps_lost']} more were charged and lost)" if certificate["steps_lost"] else ""
    lines = [
        f"Training: {certificate['steps_done']} of {plan['steps']} steps of {certificate['method']}{lost}, on "
        f"{certificate['sampling']} batches of about {plan['batch_size']} of {plan['records']} records, with clip rule "
        f"{plan['clip_norm']} and noise multiplier {_noise(plan)}.",
        _accounting(certificate, proved),
        f"Randomness: {certificate['randomness']}. Arithmetic: {certificate['arithmetic']}.",
    ]
    if features["stages"]:
        lines.append(f"Features before the network: {', then '.join(features['stages'])}.")
    lines += [f"Released privately and charged: {each}." for each in features["released"]]
    lines += [f"Public: {each}" for each in features["public"]]
    if "data_budget" in certificate:
        lines.append(certificate["data_budget"]["text"])
    if "audit" in certificate:
        lines.append(certificate["audit"]["text"])
    return lines + [f"Note: {each}" for each in certificate["notes"]]


def _accounting(certificate: Certificate, proved: Mapping[str, Any]) -> str:
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
    """The noise of a plan; of noise that was chosen step by step, what it began and ended with."""
    text = str(plan["noise"])
    clips = f", kept while the clip bound is multiplied by {plan['clip_factors']}" if plan.get("keep_noise") else ""
    if not (text.startswith("piecewise:") and text.endswith(",tick=1")):
        return f"{text}{clips}"
    points = [float(point.partition("=")[2]) for point in text.removesuffix(",tick=1").split(",")]
    return f"chosen {len(points)} times during the run, {points[0]:.4g} at first and {points[-1]:.4g} at the end{clips}"
