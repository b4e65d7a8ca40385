"""How numbers are written on a page, and what epsilon means to somebody who never heard of it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from decimal import ROUND_CEILING, Decimal

from adadp.accounting import rounded_up
from adadp.app.runs import ClassCounts
from adadp.certificate.detection import FALSE_ALARMS, rules_out_little
from adadp.certificate.wording import small

REHEARSALS = (
    "These runs are rehearsals: their noise is computed from seeds, and whoever has a seed can compute the noise again "
    "and subtract it. None of the models is private; every epsilon is that of the same run without a seed."
)
"""What a comparison of runs with seeds says first."""

_NAMED = 5
"""So many classes are called by name; the others are counted."""


def percent(share: float) -> str:
    """A share as a percentage with two digits."""
    return f"{100 * share:.2f} %"


def percent_up(share: float) -> str:
    """A bound on a share, rounded up, so that what is written still holds."""
    return f"{(100 * Decimal(repr(share))).quantize(Decimal('0.01'), ROUND_CEILING)} %"


def unbroken(text: str) -> str:
    """``text`` with no line broken between a number and its percent sign."""
    return text.replace(" %", "\u00a0%")


def points(share: float) -> str:
    """A difference of shares in percentage points, with its sign; what rounds to nothing has none."""
    return f"{100 * share:+.2f}" if round(100 * share, 2) else "0.00"


def number(value: float | None) -> str:
    """Four digits are enough to read; a dash where there is none."""
    return "-" if value is None else f"{value:.4g}"


def whole(value: int) -> str:
    """A count with its thousands set apart."""
    return f"{value:,}"


def duration(seconds: float) -> str:
    """Seconds, or minutes and hours where there are many, rounded up: times are said as what was not passed."""
    if seconds < 100:
        return f"{math.ceil(seconds)} s"
    minutes = math.ceil(seconds / 60)
    return f"{minutes} min" if minutes < 100 else f"{minutes // 60} h {minutes % 60} min"


def doubts(counts: ClassCounts, names: Sequence[str]) -> tuple[str, ...]:
    """What a good accuracy would hide, of the classes called ``names``.

    records of one class only        no accuracy on them tells a model from a constant
    no better than a constant        said, with the class
    classes of which none is found   named, the most frequent first; beyond ``_NAMED`` of them counted
    none of these                    nothing
    """
    lines, largest = [], names[counts.largest]
    if counts.occurring == 1:
        lines.append(f"All these records are of class {largest}, so the accuracy tells nothing about other classes.")
    elif not counts.beats_largest:
        lines.append(f"No better than always answering {largest}, the most frequent class.")
    missed = sorted(counts.never_right, key=lambda place: -counts.records[place])
    if missed:
        named = ", ".join(f"{names[place]} ({whole(counts.records[place])})" for place in missed[:_NAMED])
        more = f", and {len(missed) - _NAMED} more" if len(missed) > _NAMED else ""
        lines.append(f"Never found, with the number of records: {named}{more}.")
    return tuple(lines)


_QUESTION = {
    "add-remove": "whether one given record was among the training data",
    "replace-one": "which of two given records was among the training data",
    "zero-out": "whether one given record was blanked out of the training data",
}


def meaning(epsilon: float, delta: float, neighbours: str, detected: float) -> tuple[str, ...]:
    """The guarantee in words for somebody who decides, and not computes; ``detected`` at so many ``FALSE_ALARMS``."""
    alarms = f"{100 * FALSE_ALARMS:.0f} %"
    lines = [
        f"Somebody who sees the model, and may know every other record, wants to find out {_QUESTION[neighbours]}. "
        f"Any test of theirs that raises a false alarm in {alarms} of all cases detects it in at most "
        f"{percent_up(detected)}; guessing without the model detects it in {alarms}.",
        f"Epsilon {rounded_up(epsilon)} bounds how much more likely one record can make any outcome: at most by the "
        f"factor {_factor(epsilon)}, up to a probability of delta = {small(delta)}. The smaller both are, the stronger "
        "is the guarantee. It holds for every attack, known or not, and nothing that becomes known later weakens it.",
    ]
    if rules_out_little(epsilon, delta):
        lines.append("At so large an epsilon the guarantee alone rules out very little.")
    return tuple(lines)


def _factor(epsilon: float) -> str:
    return rounded_up(math.exp(epsilon)) if epsilon < 700 else "infinity, for all practical purposes"
