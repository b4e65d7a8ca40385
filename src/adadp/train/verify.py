"""A finished run checked against itself: everything its certificate says is computed again from the other files.

    configuration   config.toml is the one that was certified
    ledger          its chain holds, up to the line the certificate names
    model           its parameters are those certified, and it was saved with this very certificate
    plan            what the configuration asks for, for the certified number of records; what the ledger began with
    charges         those certified, and none beyond the plan
    epsilon         from the ledger, at the configured delta
    statements      everything else in the certificate

The digests find accidents and single edits. Who can write the folder can write all of it anew: keep the digest of a
certificate elsewhere to pin it.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from adadp.errors import AdaDPError, InputError
from adadp.events import describe
from adadp.ledger import LedgerRecord, PlannedBudget, read_ledger
from adadp.plan import Plan
from adadp.report.certificate import make_certificate, tensors_digest
from adadp.runs import RunFolder, certificate_digest
from adadp.schedules import parse_schedule
from adadp.train.planning import plan_of

_CLOSE = 1e-6
"""What two computers may differ by, relatively: the precision of a calibration is 1e-7."""

_FIGURES = (
    "private",
    "epsilon",
    "epsilon_low",
    "epsilon_high",
    "delta",
    "cross_check",
    "reason",
    "claimed_epsilon",
    "claimed_by_paper",
)
_ELSEWHERE = {*_FIGURES, "plan", "charged", "ledger", "config_digest", "model_digest", "versions"}
_NOTHING = object()


@dataclass(frozen=True)
class Check:
    """One thing that was verified about a run."""

    name: str
    passed: bool
    detail: str


def verify_run(folder: RunFolder) -> list[Check]:
    """Check everything that can be checked about a finished run. Reads the folder and writes nothing."""
    try:
        certificate = folder.certificate()
    except AdaDPError as error:
        return [Check("certificate", False, str(error))]
    if certificate is None:
        return [Check("certificate", False, "There is none: the run has not finished.")]
    if not isinstance(certificate, dict):
        return [Check("certificate", False, "It is not a JSON object.")]
    finished = _Finished(folder, certificate)
    checks = {
        "configuration": finished.configuration,
        "ledger": finished.ledger,
        "model": finished.model,
        "plan": finished.plan,
        "charges": finished.charges,
        "epsilon": finished.epsilon,
        "statements": finished.statements,
    }
    return [_checked(name, check) for name, check in checks.items()]


def _checked(name: str, check: Callable[[], str]) -> Check:
    try:
        return Check(name, True, check())
    except AdaDPError as error:
        return Check(name, False, str(error))
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        return Check(name, False, f"The certificate is not complete: {type(error).__name__} {error}.")


@dataclass(frozen=True)
class _Finished:
    """A run with its certificate. Every check returns what it found, or raises what is wrong."""

    folder: RunFolder
    certificate: dict[str, Any]

    def configuration(self) -> str:
        if self.certificate["config_digest"] != self.folder.config.digest():
            raise InputError("config.toml is not the one that was certified.")
        return "config.toml as certified"

    def ledger(self) -> str:
        pinned = self.certificate["ledger"]
        record = read_ledger(self.folder.ledger_path, expected_head=pinned["head"])
        if (record.run, record.length) != (pinned["run"], pinned["length"]):
            raise InputError("The certificate names another ledger.")
        return f"{record.length} lines, chain whole up to the certified head"

    def model(self) -> str:
        tensors = self.folder.load_model_tensors()
        if self.folder.model_metadata().get("certificate_digest") != certificate_digest(self.certificate):
            raise InputError("The model was saved with another certificate than certificate.json.")
        if self.certificate["model_digest"] != tensors_digest(tensors):
            raise InputError("The parameters are not the certified ones.")
        return "parameters as certified, saved with this certificate"

    def plan(self) -> str:
        asked, stated = self._asked, self._stated
        noise = asked.noise_multiplier_at(0)
        close = math.isclose(noise, stated.noise_multiplier_at(0), rel_tol=_CLOSE)
        if not close or stated.describe() != self.certificate["plan"]:
            raise InputError(f"The certified plan is not what config.toml asks for, which is {asked.describe()}.")
        if self._record.budget != PlannedBudget(stated.event()).describe():
            raise InputError("The ledger was begun with another plan than the certified one.")
        return f"noise multiplier {noise:.6g} and all else as config.toml asks for"

    def charges(self) -> str:
        if self._again["charged"] != self.certificate["charged"]:
            raise InputError("The ledger holds other charges than the certificate.")
        plan, charges = self._stated, self._record.charges
        due = Counter(plan.charges_before())
        unpaid = [each for each, count in due.items() if charges.get(each, 0) < count]
        if unpaid and self.folder.load_features():
            raise InputError(f"What the features released was not charged: {describe(unpaid[0])}.")
        budget = PlannedBudget(plan.event())
        for event, count in charges.items():
            budget.admit(event, count)
            budget.commit(event, count)
        done, lost, charged = self.certificate["steps_done"], self.certificate["steps_lost"], sum(charges.values())
        if min(done, lost) < 0 or done + lost > plan.steps or plan.rounds_before(done + lost) > charged:
            raise InputError(f"{done} steps done and {lost} lost do not agree with {charged} charges.")
        return f"{charged} in the ledger, none beyond the plan"

    def epsilon(self) -> str:
        for name in _FIGURES:
            found, certified = self._again.get(name), self.certificate.get(name)
            if not _close(found, certified):
                raise InputError(f"{name} is {found!r} by the ledger, and {certified!r} is certified.")
        epsilon = self._again["epsilon"]
        return "no guarantee is claimed" if epsilon is None else f"{epsilon:.6g} from the ledger, as certified"

    def statements(self) -> str:
        again, certificate = self._again, self.certificate
        names = sorted({*again, *certificate} - _ELSEWHERE)
        wrong = [name for name in names if again.get(name, _NOTHING) != certificate.get(name, _NOTHING)]
        seed = self.folder.config.seed
        if not certificate["randomness"].startswith("secure" if seed is None else f"seed {seed}:"):
            wrong.append("randomness")
        if wrong:
            raise InputError(f"The certificate says something else than this run under: {', '.join(wrong)}.")
        return "as this run would state them again"

    @cached_property
    def _record(self) -> LedgerRecord:
        return read_ledger(self.folder.ledger_path)

    @cached_property
    def _asked(self) -> Plan:
        """What config.toml asks for."""
        return plan_of(self.folder.config, self.certificate["plan"]["records"])

    @cached_property
    def _stated(self) -> Plan:
        """The same with the noise as certified, to the last bit: a calibration elsewhere may end a little beside it."""
        noise = self.certificate["plan"]["noise"]
        return replace(self._asked, noise=None if noise == "none" else parse_schedule(noise))

    @cached_property
    def _again(self) -> dict[str, Any]:
        """The certificate as it would be written now; what only the run itself knew is taken over."""
        known = self.certificate
        return make_certificate(
            config=self.folder.config,
            plan=self._stated,
            ledger=self._record,
            randomness=known["randomness"],
            model={},
            steps_done=known["steps_done"],
            steps_lost=known["steps_lost"],
            record_unit=known["record"],
            notes=known["notes"],
            learned=self.folder.load_features(),
            encoder=self.folder.encoder(),
        )


def _close(again: object, certified: object) -> bool:
    """Equal, where numbers may differ by the precision of a calibration."""
    if isinstance(again, float) and isinstance(certified, (int, float)):
        return math.isclose(again, certified, rel_tol=_CLOSE)
    if isinstance(again, list) and isinstance(certified, list):
        return len(again) == len(certified) and all(map(_close, again, certified))
    if isinstance(again, dict) and isinstance(certified, dict):
        return again.keys() == certified.keys() and all(_close(value, certified[key]) for key, value in again.items())
    return again == certified
