"""An entry of the OpenDP deployments registry (github.com/opendp/deployments-registry-data).

It has the fields of the registry's schema of 15 July 2026 (commit 3e9c812), all of tiers 1 to 3 but the sector, which
a program cannot choose. What it cannot know is marked TO DO, and the status is Draft, the registry's word for a record
that its author has still to complete. The slug follows from name, curator and year, so it changes with them.

The file is YAML of quoted strings, literal blocks, lists and numbers. The registry's checker refuses folded text, and
YAML 1.1 reads ``1e-05`` as text.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from adadp.accounting import rounded_up
from adadp.app.report.attacks import attacks_in_words, attacks_on
from adadp.app.report.exports.content import Verified
from adadp.app.report.trust import how_settings_were_chosen, unit_in_words, who_could_see
from adadp.errors import InputError

_TO_DO = "TO DO: "
_HEAD = """\
# Made by AdaDP from a certificate that verifies. Complete what is marked TO DO. Add data_product_sector under basic if
# one of the registry's fits. Then let scripts/update_slug.py of the registry renew url_slug.
"""
_UNPRINTABLE = re.compile("[^\t\n\r\x20-\x7e\xa0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]|[\u2028\u2029\ufeff]")


def entry(run: Verified) -> bytes:
    """The entry of ``run``; one that protects nothing is refused."""
    certificate = run.certificate
    attacks = attacks_on(certificate)
    if not certificate["private"] or attacks is None:
        raise InputError(
            "The registry lists deployments of differential privacy, and this run is none.",
            why=certificate.get("reason", ""),
            fix="Train the model without a seed, by a private method." if certificate["rehearsal"] else "",
        )
    name, curator = f"{_TO_DO}name of the model", f"{_TO_DO}who publishes it"
    said = dict(run.sections)
    record, compared = unit_in_words(certificate)
    fields: dict[str, Any] = {
        "url_slug": _slug(name, curator, run.day[:4]),
        "status": "Draft",
        "tier": 3,
        "deployment": {
            "basic": {
                "name": name,
                "data_curators": [curator],
                "intended_use": f"{_TO_DO}what the model is for",
                "data_product_type": "Machine learning model",
                "data_product_region": f"{_TO_DO}which region the data describes, or whose laws apply",
                "description": f"{run.title}. {_TO_DO}what it predicts, from what.",
                "publication_date": run.day,
            },
            "dp_variant": {
                "variant_name": "Approximate DP",
                "data_domain": f"Sets of records. {record}",
                "unprotected_quantities": _list(said["Disclosed"]),
            },
            "privacy_loss": {
                "privacy_unit": record,
                "privacy_unit_details": f"{certificate['neighbours']} neighbours. {compared}",
                "privacy_parameters": {
                    "epsilon": float(rounded_up(certificate["epsilon"], 6)),
                    "delta": certificate["delta"],
                },
                "privacy_parameters_details": " ".join(attacks_in_words(attacks)),
            },
            "deployment_model": {
                "model_name": "Central",
                "model_name_details": "Noise is added by who trains the model, inside the training.",
                "actors": _list(who_could_see(certificate)),
                "release_type": "One release",
                "release_type_details": f"{_TO_DO}whether more will be released from the same records."
                + (f" {certificate['data_budget']['text']}" if "data_budget" in certificate else ""),
                "data_source_type": "Static",
                "data_source_type_details": "The records were fixed before the training.",
                "access_type": "Non-interactive",
                "access_type_details": "The model is published as it is.",
            },
            "accounting": {
                "post_processing": "Whatever was computed from released gradients: steps of the optimizer, averages.",
                "composition": " ".join(each for each in said["How the model was made"] if "Accounting:" in each),
            },
            "implementation": {
                "preprocessing_and_hyperparameter_tuning": _list(_before(certificate)),
                "mechanisms": _list((*said["How the model was made"], *said["Technical caveats"])),
                "justification": f"{_TO_DO}why epsilon, delta and the unit were chosen.",
            },
            "administrative": {
                "sources": _list((f"{_TO_DO}links to the model and to its description.", *said["How to check this"])),
                "notes": _list(tuple(f"Not covered: {each}" for each in said["Not covered"])),
                "registry_authors": [f"{_TO_DO}who completes this entry"],
            },
        },
    }
    return (_HEAD + "\n".join(_yaml(fields)) + "\n").encode("utf-8")


def _before(certificate: Mapping[str, Any]) -> tuple[str, ...]:
    """What was done with the records ahead of the training, and how settings were chosen."""
    features = certificate.get("features", {"released": [], "public": []})
    return (
        how_settings_were_chosen(certificate),
        *(f"Released privately and charged: {each}." for each in features["released"]),
        *(f"Public: {each}" for each in features["public"]),
    )


def _list(sentences: tuple[str, ...]) -> str:
    """Sentences as a list of Markdown, which the registry renders."""
    return "\n".join(f"- {' '.join(each.split())}" for each in sentences)


def _slug(name: str, curator: str, year: str) -> str:
    """As the registry makes it."""
    return "_".join(re.sub(r"\W+", "_", part.lower()) for part in (name, curator, year)).replace("_", "-")


def _yaml(fields: Mapping[str, Any], indent: str = "") -> Iterator[str]:
    for name, value in fields.items():
        if isinstance(value, dict):
            yield f"{indent}{name}:"
            yield from _yaml(value, f"{indent}  ")
        elif isinstance(value, list):
            yield f"{indent}{name}:"
            yield from (f"{indent}  - {scalar(each)}" for each in value)
        elif isinstance(value, str) and "\n" in value and not _UNPRINTABLE.search(value):
            yield f"{indent}{name}: |"
            yield from (f"{indent}  {line}" for line in value.split("\n"))
        else:
            yield f"{indent}{name}: {scalar(value)}"


def scalar(value: str | float) -> str:
    """A text or a number in YAML."""
    if isinstance(value, str):
        text = json.dumps(value, ensure_ascii=False)
        return _UNPRINTABLE.sub(lambda found: f"\\u{ord(found[0]):04x}", text)
    text = repr(value)
    return text.replace("e", ".0e") if "e" in text and "." not in text else text
