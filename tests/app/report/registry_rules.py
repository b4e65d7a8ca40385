"""What the OpenDP deployments registry accepts, as rules: its schema of 15 July 2026 (commit 3e9c812), for tests.

A text is ``str``, a number ``float``, anything ``object``; a list has one element, the rule of its own; a set lists the
texts that are allowed. Names that end with an exclamation mark are required. Further names are refused.
"""

from __future__ import annotations

import datetime
import re
from collections.abc import Iterator
from typing import Any

RULES: dict[str, Any] = {
    "url_slug!": str,
    "status!": {
        *("Converted", "Draft", "Pending", "Changes Required"),
        *("Approved", "Approved (Update Requested)", "Approved (Pending)"),
    },
    "tier!": {1, 2, 3},
    "deployment!": {
        "basic!": {
            "name!": str,
            "data_curators!": [str],
            "intended_use!": str,
            "data_product_type!": {
                *("Summary statistics", "Machine learning model", "Dataset"),
                *("Synthetic data", "Interactive API", "SQL queries"),
            },
            "data_product_region!": str,
            "description!": str,
            "publication_date!": datetime.date,
            "data_product_sector": {"Technology", "Healthcare", "Education", "Government", "Energy", "Finance"},
        },
        "dp_variant": {
            "variant_name": {"Pure DP", "Approximate DP", "Zero-concentrated DP", "Renyi DP", "Custom"},
            "data_domain": str,
            "unprotected_quantities": str,
        },
        "privacy_loss": {
            "privacy_unit": str,
            "privacy_unit_details": str,
            "privacy_parameters": {"epsilon": float, "delta": float, "rho": float},
            "privacy_parameters_details": object,
        },
        "deployment_model": {
            "model_name": {"Local", "Central", "Shuffle", "Federated", "Varies"},
            "model_name_details": str,
            "actors": str,
            "release_type": {"One release", "Many releases"},
            "release_type_details": str,
            "data_source_type": {"Static", "Dynamic"},
            "data_source_type_details": object,
            "access_type": {"Interactive", "Non-interactive"},
            "access_type_details": str,
        },
        "accounting": {"post_processing": str, "composition": str},
        "implementation": {"preprocessing_and_hyperparameter_tuning": str, "mechanisms": str, "justification": str},
        "administrative": {"sources": str, "notes": str, "registry_authors!": [str]},
    },
}


def breaches(found: Any, rule: Any = None, place: str = "") -> Iterator[str]:
    """Where ``found`` is not what ``rule`` asks for."""
    rule = RULES if rule is None else rule
    if isinstance(rule, dict):
        names = {name.rstrip("!") for name in rule}
        if not isinstance(found, dict):
            yield f"{place} is no object"
            return
        yield from (f"{place}.{name} is unknown" for name in found.keys() - names)
        for name, inner in rule.items():
            plain = name.rstrip("!")
            if plain in found:
                yield from breaches(found[plain], inner, f"{place}.{plain}")
            elif plain != name:
                yield f"{place}.{plain} is missing"
    elif isinstance(rule, list):
        if not isinstance(found, list) or not found:
            yield f"{place} is no list of at least one"
        else:
            for each in found:
                yield from breaches(each, rule[0], place)
    elif isinstance(rule, set):
        if isinstance(found, bool) or found not in rule:
            yield f"{place} is {found!r}"
    elif rule is datetime.date:
        if not isinstance(found, str) or not re.fullmatch(r"\d{4}-\d\d-\d\d", found):
            yield f"{place} is no day"
        else:
            datetime.date.fromisoformat(found)
    elif rule is float:
        if isinstance(found, bool) or not isinstance(found, (int, float)):
            yield f"{place} is no number"
    elif rule is str and not isinstance(found, str):
        yield f"{place} is no text"


def slug(entry: dict[str, Any]) -> str:
    """The slug that the registry gives an entry."""
    basic = entry["deployment"]["basic"]
    parts = (basic["name"], "-".join(basic["data_curators"]), basic["publication_date"][:4])
    return "-".join(re.sub(r"[\W_]+", "-", part.lower()) for part in parts)
