"""``adadp verify``: what the files of a run tell (``adadp.certificate``), and what the application can check besides.

torch cannot be imported here              the files alone are checked, and the last line says what was not
a part of the run is the user's own code   the same, without ``trust_code``: nothing of it is imported
its method is not installed here           the same
"""

# The checks of the application need torch, which may not be there.
# ruff: noqa: PLC0415

from __future__ import annotations

import os
import re
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from adadp.certificate.verify import Check, checked, verify
from adadp.files import contents, json_of, read_toml
from adadp.ledger import read_ledger
from adadp.registry import installed_only

if TYPE_CHECKING:
    from adadp.app.runs import RunFolder

_PLACE = re.compile(r"[^:]+:[A-Za-z_][\w.<>]*(:|$)")
"""A part named by where it is defined, ``module:Name``; options have an equals sign or are numbers."""
_PARTS = ("method", "clip_rule", "features")
"""Settings that name a part of a run, several of them joined by + and &."""


def verify_run(
    folder: str | os.PathLike[str] | RunFolder,
    budget: str | os.PathLike[str] | None = None,
    *,
    trust_code: bool = False,
) -> list[Check]:
    """Check everything that can be checked about the finished run in ``folder``. Reads it and writes nothing.

    ``trust_code``: import code of the user's own that config.toml names, for the checks that need it.

    With ``budget``, the file of a budget, also that the run is counted there, and with all that its ledger has charged.
    """
    path = Path(folder if isinstance(folder, (str, os.PathLike)) else folder.path)
    checks = verify(path)
    if [check.name for check in checks] == ["certificate"]:
        return checks
    config = _config(path)
    checks += _of_budget(path, config, budget)
    try:
        from adadp.app.features.registry import STAGES
        from adadp.app.texts.methods import METHODS
        from adadp.app.train.verify import application_checks
    except ImportError as error:
        return [*checks, _not_checked(f"{error.name or error}, which cannot be imported here")]
    known = {*METHODS, *STAGES}  # which may be followed by a name too, such as synthetic:leaves
    own = [part for part in _parts(config) if _PLACE.match(part) and part.partition(":")[0] not in known]
    if own and not trust_code:
        return [*checks, _not_checked(f"{', '.join(own)}, which is the user's own code: pass trust_code to run it")]
    method = str(config.get("method", "adadp")).partition(":")[0]
    if method not in METHODS and not own:
        return [*checks, _not_checked(f"the method {method}, which is not installed here")]
    found = {check.name: check for check in checks}
    with installed_only(trust_code=trust_code):  # also for parts that only search.json names
        for name, check in application_checks(path).items():
            if name not in found or found[name].passed:
                found[name] = checked(name, check)
    return list(found.values())


def _of_budget(path: Path, config: dict[str, Any], budget: str | os.PathLike[str] | None) -> list[Check]:
    """What the certificate states of the budget of the data, where there is any of it."""
    certificate = json_of(contents(path / "certificate.json"))
    named = config.get("budget")
    if named is None and "data_budget" not in certificate and budget is None:
        return []
    from adadp.app.budgets.statement import check_against, check_statement

    checks = [checked("budget", lambda: check_statement(certificate, named))]
    if budget is not None:
        found = partial(check_against, certificate, budget=Path(budget))
        checks.append(checked("budget file", lambda: found(ledger=read_ledger(path / "ledger.jsonl"))))
    return checks


def _config(path: Path) -> dict[str, Any]:
    """The settings in config.toml; none of a file that cannot be read, which is a failed check already."""
    try:
        return read_toml(path / "config.toml")
    except (OSError, ValueError):
        return {}


def _parts(config: dict[str, Any]) -> list[str]:
    return [part.strip() for name in _PARTS for part in re.split("[+&]", str(config.get(name, "")))]


def _not_checked(why: str) -> Check:
    what = "that config.toml asks for this plan, what is said about features, data and canaries, report.html"
    return Check("application", True, f"not checked: {what}. It needs {why}.")
