"""A finished run checked against itself: everything its certificate says is computed again from the other files.

    configuration   config.toml is the one that was certified
    ledger          its chain holds, up to the line the certificate names; its noise had a seed if config.toml has one
    model           its parameters are those certified, and it was saved with this very certificate
    plan            what the configuration asks for, for the certified number of records; what the ledger began with
    charges         those certified, and none beyond the plan
    epsilon         from the ledger, at the configured delta
    statements      everything else in the certificate
    measurements    metrics.jsonl and confusion.json are those certified
    page            where report.html exists: it is what these files make
    search          where search.json exists: the run is one of its candidates, and within what was asked for

What a search charged is computed from its candidates in search.json, once for all its runs.

The digests find accidents and edits of some of the files. Whoever can write the folder can write all of it anew, a
seeded run as one with secret noise too: nothing in a folder tells a consistent forgery from a run. Keep the digest of
a certificate elsewhere to pin it. What only the run itself knew is taken from the certificate as it is: the steps done
and lost, what one record is, and notes beyond those that follow from the configuration.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from adadp.app.accounting import Filter
from adadp.app.report.certificate import guarantee_of, make_certificate, tensors_digest
from adadp.app.report.html import render, run_page
from adadp.app.runs import RunFolder, certificate_digest
from adadp.app.spec import RunSpec
from adadp.app.texts.schedules import parse_schedule
from adadp.app.train.planning import filter_of, notes_of, plan_of, planned_budget
from adadp.app.train.search_spec import Search
from adadp.errors import AdaDPError, InputError
from adadp.events import describe
from adadp.ledger import BudgetRule, LedgerRecord, PlannedBudget, budget_like, read_ledger
from adadp.plan import Plan
from adadp.randomness import source_of

_CLOSE = 1e-6
"""What two computers may differ by, relatively: the precision of a calibration is 1e-7."""

_FIGURES = (
    "private",
    "rehearsal",
    "epsilon",
    "epsilon_low",
    "epsilon_high",
    "if_unseeded",
    "delta",
    "cross_check",
    "reason",
    "claimed_epsilon",
    "claimed_by_paper",
)
_ELSEWHERE = {*_FIGURES, "measured", "plan", "charged", "ledger", "config_digest", "model_digest", "versions"}
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
        "measurements": finished.measurements,
        "page": finished.page,
    }
    if folder.search_path.exists():
        checks["search"] = finished.search
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
        if record.seeded is not (self.folder.config.seed is not None):
            says = {True: "had a seed", False: "had no seed", None: "is not described"}[record.seeded]
            raise InputError(f"By the ledger the noise {says}, and config.toml says otherwise.")
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
        if asked.adaptive:
            self._check_choices()
        elif asked.noise is not None and stated.noise is not None:
            steps = range(asked.steps)
            pairs = [(asked.noise_multiplier_at(step), stated.noise_multiplier_at(step)) for step in steps]
            close = all(math.isclose(*pair, rel_tol=_CLOSE) for pair in pairs)
        if not close or stated.describe() != self.certificate["plan"]:
            raise InputError(f"The certified plan is not what config.toml asks for, which is {asked.describe()}.")
        begun = self._budget()  # a filter is checked as it is read
        if not asked.adaptive and self._record.budget != begun.describe():
            raise InputError("The ledger was begun with another plan than the certified one.")
        return f"noise multiplier {noise:.6g} and all else as config.toml asks for"

    def _check_choices(self) -> None:
        """Noise that was chosen on the way is what it began with times k, again and again, and never rises."""
        decay, stated = self._spec.decay, self._stated.noise
        assert stated is not None
        if decay is None:  # a method's choices are held by the filter alone, which admits every charge
            return
        sigmas = stated.values(self._stated.epochs)
        for before, after in zip([decay.s0, *sigmas], sigmas, strict=False):
            if not any(math.isclose(after, before * factor, rel_tol=_CLOSE) for factor in (1.0, decay.k)):
                raise InputError(f"The noise {stated} is none that {decay} can choose.")

    def _budget(self) -> BudgetRule:
        """A fresh copy of what the ledger must have been begun with."""
        if self._search is not None:
            return PlannedBudget(self._search.event())
        if self._stated.adaptive:
            return self._filter()
        return planned_budget(self._spec.method, self._stated)

    def _filter(self) -> Filter:
        """The filter the ledger began with, fresh. Its numbers are its own: an earlier conversion of the same budget
        gave another rho or order, which is as valid as long as it allows no more than config.toml asks for.
        """
        begun, asked = budget_like(self._record.budget), filter_of(self.folder.config, self._asked)
        if type(begun) is not type(asked) or begun.delta != asked.delta or not begun.within(asked):
            raise InputError("The ledger was begun with another plan than the certified one.")
        return begun

    def charges(self) -> str:
        if self._again["charged"] != self.certificate["charged"]:
            raise InputError("The ledger holds other charges than the certificate.")
        if self._search is not None:
            return self._one_charge(self._search)
        plan, charges = self._stated, self._record.charges
        due = Counter(plan.charges_before())
        unpaid = [each for each, count in due.items() if charges.get(each, 0) < count]
        if unpaid and self.folder.load_features():
            raise InputError(f"What the features released was not charged: {describe(unpaid[0])}.")
        budget = self._budget()
        for event, count in charges.items():
            budget.admit(event, count)
            budget.commit(event, count)
        done, lost, charged = self.certificate["steps_done"], self.certificate["steps_lost"], sum(charges.values())
        if min(done, lost) < 0 or done + lost > plan.steps or plan.rounds_before(done + lost) > charged:
            raise InputError(f"{done} steps done and {lost} lost do not agree with {charged} charges.")
        if plan.adaptive and not lost:  # the noise of a lost epoch is not known
            rounds = Counter(each for each in map(plan.charge_at, range(done)) if each is not None)
            wrong = [each for each, count in rounds.items() if charges.get(each, 0) < count]
            if wrong:
                raise InputError(f"The ledger holds other noise than the certified plan: not {describe(wrong[0])}.")
        return f"{charged} in the ledger, none beyond the plan"

    def _one_charge(self, search: Search) -> str:
        """A search is charged once, as a whole."""
        if self._record.charges != {search.event(): 1}:
            raise InputError("The ledger does not hold the search of search.json, once and nothing else.")
        done, lost = self.certificate["steps_done"], self.certificate["steps_lost"]
        if min(done, lost) < 0 or done + lost > self._stated.steps or (search.chosen is None and done):
            raise InputError(f"{done} steps done and {lost} lost are not those of one run of the search.")
        return "the search as a whole, once"

    def search(self) -> str:
        search, config = self._search, self.folder.config
        assert search is not None
        chosen = search.configuration(config.seed)
        if chosen != config or (config.seed is None) != (search.candidates[0].seed is None):
            raise InputError("config.toml is not the configuration that search.json says was chosen.")
        if search.records != self.certificate["plan"]["records"]:
            raise InputError("search.json names another number of records than the certificate.")
        proved = guarantee_of(self._again)
        assert proved is not None  # a search takes neither methods nor accountants without a proof
        cost = proved["epsilon"]
        if search.delta != config.delta or not cost <= search.epsilon * (1 + _CLOSE):
            raise InputError(
                f"The search costs {cost:.6g} at delta {search.delta:g}, and {search.epsilon:g} was asked."
            )
        return f"one of {len(search.candidates)} settings, within epsilon {search.epsilon:g}"

    def epsilon(self) -> str:
        for name in _FIGURES:
            found, certified = self._again.get(name), self.certificate.get(name)
            if not _close(found, certified):
                raise InputError(f"{name} is {found!r} by the ledger, and {certified!r} is certified.")
        proved = guarantee_of(self._again)
        if proved is None:
            return "no guarantee is claimed"
        if self._again["rehearsal"]:
            return f"none, this is a rehearsal; {proved['epsilon']:.6g} from the ledger for a run without a seed"
        return f"{proved['epsilon']:.6g} from the ledger, as certified"

    def statements(self) -> str:
        again, certificate = self._again, self.certificate
        names = sorted({*again, *certificate} - _ELSEWHERE)
        wrong = [name for name in names if again.get(name, _NOTHING) != certificate.get(name, _NOTHING)]
        trained = self._search is None or self._search.chosen is not None
        if trained and not set(notes_of(self._spec, self._stated)) <= set(certificate["notes"]):
            wrong.append("notes")
        if wrong:
            raise InputError(f"The certificate says something else than this run under: {', '.join(wrong)}.")
        return "as this run would state them again"

    def measurements(self) -> str:
        if self.certificate["measured"] != self.folder.measured_digests():
            raise InputError("metrics.jsonl or confusion.json is not the one that was certified.")
        return "metrics.jsonl and confusion.json as certified"

    def page(self) -> str:
        page = self.folder.path / "report.html"
        if not page.exists():
            return "there is none"
        if page.read_bytes() != render(run_page(self.folder)).encode("utf-8"):
            raise InputError(
                "report.html is not the page of this run as this AdaDP makes it.",
                fix=f"Do not read it; make it again with: adadp report {self.folder.path}",
            )
        return "report.html as these files make it"

    @cached_property
    def _record(self) -> LedgerRecord:
        return read_ledger(self.folder.ledger_path)

    @cached_property
    def _search(self) -> Search | None:
        """What the run was chosen among."""
        found = self.folder.search()
        return None if found is None else Search.from_json(found)

    @cached_property
    def _spec(self) -> RunSpec:
        return RunSpec.of(self.folder.config)

    @cached_property
    def _asked(self) -> Plan:
        """What config.toml asks for."""
        return plan_of(self._spec, self.certificate["plan"]["records"])

    @cached_property
    def _stated(self) -> Plan:
        """The same with the noise as certified, to the last bit: a calibration elsewhere may end a little beside it."""
        noise, steps = self.certificate["plan"]["noise"], self._asked.steps
        if self._asked.adaptive:  # the filter is the guarantee; a length is only where the run ends at the latest
            steps = min(self.certificate["plan"]["steps"], steps)
        return replace(self._asked, noise=None if noise == "none" else parse_schedule(noise), steps=steps)

    @cached_property
    def _again(self) -> dict[str, Any]:
        """The certificate as it would be written now; what only the run itself knew is taken over."""
        known = self.certificate
        return make_certificate(
            config=self.folder.config,
            plan=self._stated,
            ledger=self._record,
            randomness=source_of(self.folder.config.seed).describe(),
            model={},
            steps_done=known["steps_done"],
            steps_lost=known["steps_lost"],
            record_unit=known["record"],
            notes=known["notes"],
            learned=self.folder.load_features(),
            encoder=self.folder.encoder(),
            budget=self._filter() if self._stated.adaptive else None,
            search=None if self._search is None else self._search.statement(),
            searched=() if self._search is None else self._search.disclosed(),
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
