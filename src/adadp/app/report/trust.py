"""Whom a certificate asks its reader to trust, and how its settings were chosen, in words for lay readers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Certificate = Mapping[str, Any]

_UNIT = {
    "add-remove": "The guarantee compares a model made with one record with the model made without it.",
    "replace-one": "The guarantee compares a model made with one record with the model made with any other instead.",
    "zero-out": "The guarantee compares a model made with one record with the model made with it blanked out.",
}


def unit_in_words(certificate: Certificate) -> tuple[str, str]:
    """What one record is, and which data sets are compared."""
    return f"One record is: {certificate['record'].removesuffix('.')}.", _UNIT[certificate["neighbours"]]


def who_could_see(certificate: Certificate) -> tuple[str, ...]:
    """The trust model, which is the central one: who must be trusted, who need not be, and who is not spoken of."""
    everybody = (
        "Whoever has the model, its answers or the published files of the run need not be trusted. They may know every "
        "other record, and put together all that they see."
    )
    if certificate["rehearsal"]:
        everybody = (
            "Whoever has the model and the seed, or guesses the seed, can undo the noise: nobody is kept from anything."
        )
    return (
        "Whoever made the model saw every record: the people who ran the training, and the computers it ran on. They "
        "are trusted. Nothing on this certificate protects against them, or against a theft of the data from them.",
        everybody,
        "Whoever could watch the computer during the training, its memory or its use of time, is not covered.",
    )


def how_settings_were_chosen(certificate: Certificate) -> str:
    """Whether the choice of settings is in epsilon."""
    if "search" in certificate:
        return str(certificate["search"]["text"])
    return (
        "Epsilon covers this training alone. If other settings were tried on the same records before, and these were "
        "chosen by the result, then what the choice discloses is not in epsilon."
    )
