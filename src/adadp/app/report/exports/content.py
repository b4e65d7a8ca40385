"""What exports say: the certificate of a run that verifies.

a folder that does not verify       ``InputError`` with the check that failed: nothing is written
a run that has not finished         the same
a run with a seed, or not private   says so first; the registry of deployments takes neither (``InputError``)
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from adadp.app.report.wording import guarantee, sections, status
from adadp.app.verify import verify_run
from adadp.certificate.digests import json_digest
from adadp.errors import InputError
from adadp.ledger import read_ledger

Certificate = Mapping[str, Any]


@dataclass(frozen=True)
class Verified:
    """A certificate that was checked, and the day on which its run began (UTC)."""

    certificate: Certificate
    day: str

    @classmethod
    def read(cls, folder: Path) -> Verified:
        """The run in ``folder``, if it verifies."""
        failed = [check for check in verify_run(folder) if not check.passed]
        if failed:
            raise InputError(
                f"The run in {folder} does not verify: {failed[0].name}: {failed[0].detail}",
                why="An export would repeat what it says without the files that show it.",
                fix=f"See adadp verify {folder}.",
            )
        certificate = json.loads((folder / "certificate.json").read_bytes())
        return cls(certificate, read_ledger(folder / "ledger.jsonl").created[:10])

    @property
    def title(self) -> str:
        """What the model is called, as far as the certificate knows."""
        return f"A model trained by {self.certificate['method']} with AdaDP {self.certificate['versions']['adadp']}"

    @property
    def status(self) -> str:
        """The verdict in capitals."""
        return status(self.certificate)

    @property
    def guarantee(self) -> tuple[str, ...]:
        """What leads."""
        return guarantee(self.certificate)

    @property
    def sections(self) -> list[tuple[str, tuple[str, ...]]]:
        """What follows, and at the end how to check it."""
        checks = (
            f"SHA-256 of the certificate: {json_digest(dict(self.certificate))}",
            f"SHA-256 of the parameters: {self.certificate['model_digest']}",
            f"The run began on {self.day}. With its folder, adadp verify computes all figures again. Without the "
            "folder, this text is a claim.",
        )
        return [*sections(self.certificate), ("How to check this", checks)]
