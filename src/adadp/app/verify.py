"""``adadp verify``: what the files of a run tell (``adadp.certificate``), and what the application can check besides.

torch cannot be imported here              the files alone are checked, and the last line says what was not
a part of the run is the user's own code   the same: nothing of it is imported
its method is not installed here           the same
"""

# The checks of the application need torch, which may not be there.
# ruff: noqa: PLC0415

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from adadp.certificate.verify import Check, checked, verify
from adadp.registry import installed_only

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

if TYPE_CHECKING:
    from adadp.app.runs import RunFolder

_PLACE = re.compile(r"[^:]+:[A-Za-z_][\w.<>]*(:|$)")
"""A part named by where it is defined, ``module:Name``; options have an equals sign or are numbers."""
_PARTS = ("method", "clip_rule", "features")
"""Settings that name a part of a run, several of them joined by +."""


def verify_run(folder: str | os.PathLike[str] | RunFolder) -> list[Check]:
    """Check everything that can be checked about the finished run in ``folder``. Reads it and writes nothing."""
    path = Path(folder if isinstance(folder, (str, os.PathLike)) else folder.path)
    checks = verify(path)
    if [check.name for check in checks] == ["certificate"]:
        return checks
    config = _config(path)
    own = [part for part in _parts(config) if _PLACE.match(part)]
    if own:
        return [*checks, _not_checked(f"{', '.join(own)}, which is the user's own code")]
    try:
        from adadp.app.texts.methods import METHODS
        from adadp.app.train.verify import application_checks
    except ImportError as error:
        return [*checks, _not_checked(f"{error.name or error}, which cannot be imported here")]
    method = str(config.get("method", "adadp")).partition(":")[0]
    if method not in METHODS:
        return [*checks, _not_checked(f"the method {method}, which is not installed here")]
    found = {check.name: check for check in checks}
    with installed_only():  # also for parts that only search.json names
        for name, check in application_checks(path).items():
            if name not in found or found[name].passed:
                found[name] = checked(name, check)
    return list(found.values())


def _config(path: Path) -> dict[str, Any]:
    """The settings in config.toml; none of a file that cannot be read, which is a failed check already."""
    try:
        return tomllib.loads((path / "config.toml").read_text(encoding="utf-8-sig"))
    except ValueError:
        return {}


def _parts(config: dict[str, Any]) -> list[str]:
    return [part.strip() for name in _PARTS for part in str(config.get(name, "")).split("+")]


def _not_checked(why: str) -> Check:
    what = "that config.toml asks for this plan, what is said about features and data, report.html"
    return Check("application", True, f"not checked: {what}. It needs {why}.")
