"""The command that makes a search again, from what its search.json holds.

settings that are no grid (a list in a file)        no command: the file is not in the folder
noise that is a schedule given for all settings     no command: what was left open in it has been filled in
a default that differs between the candidates       no command: it follows from more than the file says
parts of a public number of records                 no command: only the size of a part was kept
a search.json that cannot be read so                no command; whether the file is sound ``adadp verify`` says
"""

from __future__ import annotations

import itertools
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from adadp.app.accounting.repetitions import PoissonRepetitions, law_from_json
from adadp.app.config import TrainConfig
from adadp.errors import InputError

_SET_ANEW = ("epsilon", "noise_multiplier", "noise_schedule", "records")
"""What a candidate has from the search, and not from what all settings share."""


def search_command(search: Mapping[str, Any], out: str) -> str | None:
    """The ``adadp tune`` command that makes ``search`` again, into the folder ``out``; None where it is not known."""
    try:
        names, grid = _grid(search["settings"])
        shared = _shared(search["candidates"], names)
        if not grid or shared is None or (search["by"] == "parts" and not search["exact"]):
            return None
        shared |= {"epsilon": search["epsilon"], "delta": search["delta"]}
        scoring = search["scoring"]
        if not search["exact"]:
            shared["records"] = search["records"] + (scoring["size"] or 0)
        base = TrainConfig.from_dict(shared).as_command().removeprefix("adadp train ")
        return f"adadp tune {base} {shlex.join([*grid, *_way(search), '--out', out])}"
    except (InputError, LookupError, TypeError):
        return None


def _grid(settings: Sequence[Mapping[str, Any]]) -> tuple[tuple[str, ...], list[str]]:
    """The fields that differ, and the options whose product the settings are; none where they are no product."""
    names = tuple(settings[0])
    values = [list(dict.fromkeys(each.get(name) for each in settings)) for name in names]
    product = [dict(zip(names, each, strict=True)) for each in itertools.product(*values)]
    texts = [[str(value) for value in each] for each in values]
    if not names or product != list(settings) or any("|" in text for each in texts for text in each):
        return names, []
    return names, [word for name, each in zip(names, texts, strict=True) for word in ("--grid", _values(name, each))]


def _values(name: str, texts: Sequence[str]) -> str:
    """One field of a grid; a bar separates values, and ends a single one, where one of them holds a comma or colon."""
    if any(set(",:") & set(text) for text in texts):
        return f"{name}={'|'.join(texts)}{'|' if len(texts) == 1 else ''}"
    return f"{name}={','.join(texts)}"


def _shared(candidates: Sequence[Mapping[str, Any]], names: Sequence[str]) -> dict[str, Any] | None:
    """What all candidates have in common beside their settings; None where they differ in more than these."""
    if "noise_schedule" not in names and any("noise_schedule" in each for each in candidates):
        return None
    kept = [{name: value for name, value in each.items() if name not in (*_SET_ANEW, *names)} for each in candidates]
    return kept[0] if all(each == kept[0] for each in kept) else None


def _way(search: Mapping[str, Any]) -> list[str]:
    """How the search chooses, as options."""
    if search["by"] == "parts":
        return ["--by", "parts", "--select-epsilon", str(search["select_epsilon"])]
    law, scoring = law_from_json(search["repetitions"]), search["scoring"]
    words = [] if isinstance(law, PoissonRepetitions) else ["--law", "tnb", "--eta", str(law.eta)]
    words += ["--runs", f"{law.mean:.12g}"]
    if scoring["file"] is not None:
        return [*words, "--validation-data", scoring["file"]]
    public = (
        ["--validation-public"]
        if scoring["noise_multiplier"] is None
        else ["--score-noise-multiplier", str(scoring["noise_multiplier"])]
    )
    return [*words, "--validation", str(scoring["size"]), *public]
