"""What a certificate remembers of a part of a run, ours or anybody's: enough to know it again, without building it."""

from __future__ import annotations

import inspect
import math
from dataclasses import fields, is_dataclass
from hashlib import sha256
from importlib.metadata import PackageNotFoundError, packages_distributions, version
from pathlib import Path
from typing import Any


def specification(part: object) -> dict[str, Any]:
    """Name, import path, version of the distribution, settings, and SHA-256 of the source file of ``part``.

    ================================  ==================================================
    no dataclass                      no settings
    a setting that JSON has not       its text
    defined in no package, no file    ``version`` and ``source_digest`` are None
    ================================  ==================================================
    """
    kind = type(part)
    settings = {each.name: _plain(getattr(part, each.name)) for each in fields(part)} if is_dataclass(part) else {}
    return {
        "name": str(getattr(part, "name", kind.__name__)),
        "import_path": f"{kind.__module__}:{kind.__qualname__}",
        "version": _version(kind.__module__.partition(".")[0]),
        "settings": settings,
        "source_digest": _source_digest(kind),
    }


def _plain(value: object) -> Any:
    if isinstance(value, (tuple, list)):
        return [_plain(each) for each in value]
    kept = value is None or isinstance(value, (bool, int, str)) or (isinstance(value, float) and math.isfinite(value))
    return value if kept else str(value)


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        found = packages_distributions().get(package)
        return version(found[0]) if found else None


def _source_digest(kind: type) -> str | None:
    try:
        return sha256(Path(inspect.getfile(kind)).read_bytes()).hexdigest()
    except (OSError, TypeError):
        return None
