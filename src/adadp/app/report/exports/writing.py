"""From a folder to the file of an export."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path

from adadp.app.report.exports.card import card
from adadp.app.report.exports.content import Verified
from adadp.app.report.exports.pdf import pdf
from adadp.app.report.exports.registry import entry
from adadp.app.runs.atomic import write_atomic
from adadp.errors import InputError

KINDS: Mapping[str, tuple[str, Callable[[Verified], bytes]]] = {
    "pdf": ("certificate.pdf", pdf),
    "model-card": ("model-card.md", card),
    "opendp": ("opendp_deployment.yaml", entry),
}
"""What a certificate can be written as: the name of the file in the folder of the run, and what makes it."""


def write_export(folder: str | os.PathLike[str], kind: str, out: str | os.PathLike[str] | None = None) -> Path:
    """Write the certificate of the run in ``folder`` as ``kind``, one of ``KINDS``, to ``out`` or into the folder."""
    name, make = KINDS[kind]
    target = Path(folder) / name if out is None else Path(out)
    if not target.parent.is_dir():
        raise InputError(f"There is no folder {target.parent}.", fix="Make it first, or choose another file.")
    write_atomic(target, make(Verified.read(Path(folder))))
    return target
