"""Short names for what was measured: keys of JSON that a dotted path such as ``cases.mnist.ms.adadp`` can read."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

from adadp.errors import InputError


def keyed(asked: Iterable[str], known: Mapping[str, str]) -> dict[str, str]:
    """Key -> text of everything ``asked`` for; ``known`` has keys of its own, and may be asked for by key or by text.

    a known key, or its text        the known key and its text
    any other text                  the text with a dash for all that is no letter or digit: ``mlp:7,7`` is mlp-7-7
    asked for twice                 there once
    two texts of one key            ``InputError``
    """
    by_text = {text: key for key, text in known.items()}
    found: dict[str, str] = {}
    for each in asked:
        text = known.get(each, each)
        key = by_text.get(text) or re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")
        if found.setdefault(key, text) != text:
            raise InputError(
                f"{found[key]!r} and {text!r} would both be called {key}.",
                why="Their numbers are told apart by that name.",
                fix="Ask for one at a time.",
            )
    return found


def pair_text(pair: Sequence[float]) -> str:
    """``pair`` as tables and figures show it."""
    return f"({pair[0]:g}, {pair[1]:g})"
