"""A certificate as a model card: Markdown with the YAML that the Hugging Face Hub reads at its head.

What a program cannot know, such as what the model is for, is marked TO DO. Text of the run is escaped: names of classes
and notes may be a stranger's.
"""

from __future__ import annotations

import re

from adadp.app.report.attacks import attacks_on, share
from adadp.app.report.exports.content import Verified

_HEAD = """\
---
library_name: adadp
tags:
- pytorch
- differential-privacy
- adadp
---
"""


def card(run: Verified) -> bytes:
    """The card of ``run``."""
    parts = [
        _HEAD,
        f"# {escaped(run.title)}",
        f"**{run.status}.** " + "\n\n".join(escaped(each) for each in run.guarantee),
        *_attacks(run),
        "## Uses\n\nTO DO: what the model is for, for whom, and what it must not be used for.",
        "## Data and its people\n\nTO DO: where the records come from, and what their people agreed to.",
    ]
    parts += [f"## {title}\n\n" + "\n".join(f"- {escaped(each)}" for each in said) for title, said in run.sections]
    return ("\n\n".join(part.strip("\n") for part in parts) + "\n").encode("utf-8")


def escaped(text: str) -> str:
    """``text`` as one line of Markdown that means nothing but itself."""
    plain = re.sub(r"([\\`*_{}\[\]<>#|~!])", r"\\\1", " ".join(text.split()))
    return plain.replace("&", "&amp;")


def _attacks(run: Verified) -> list[str]:
    """The table of what attackers can reach."""
    found = attacks_on(run.certificate)
    if found is None:
        return []
    figures = found.stated()
    reached = [f"| {share(float(rate))} | {share(most, up=True)} |" for rate, most in figures["detected"].items()]
    without = " (the same run without a seed)" if run.certificate["rehearsal"] else ""
    head = f"| False alarms | An attacker finds a record, at most{without} |\n|---|---|"
    return ["\n".join([head, *reached])]
