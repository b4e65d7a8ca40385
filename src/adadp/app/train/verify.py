"""What only the application can check about a finished run, after what its files tell (``adadp.certificate.verify``).

plan            what the configuration asks for, for the certified number of records
charges         none beyond that plan, and the noise that it states
statements      what the certificate says about configuration, features and data
measurements    the figures of held-out records follow from the released sums, those of test records from the same
                records as the confusion matrix, and the certificate says of both what they say
page            where report.html exists: it is what these files make
search          where search.json exists: the run is one of its candidates, and they cost what was charged
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from adadp.app.config import OWN_LOOP
from adadp.app.loop import loop_spec
from adadp.app.one_run import statement as audit
from adadp.app.report.certificate import plan_statement, stated_plan, statements
from adadp.app.report.html import render, run_page
from adadp.app.runs import RunFolder
from adadp.app.spec import RunSpec
from adadp.app.texts.clip_rules import parse_clip_rule
from adadp.app.texts.methods import parse_method
from adadp.app.texts.schedules import parse_schedule
from adadp.app.train.holdout import figures_of, note_on
from adadp.app.train.planning import measured_notes, notes_of, plan_of, planned_budget
from adadp.app.train.search_spec import Search
from adadp.certificate.verify import CLOSE
from adadp.certificate.verify import close as close_enough
from adadp.certificate.wording import guarantee_of
from adadp.errors import InputError
from adadp.events import describe
from adadp.ledger import LedgerRecord, PlannedBudget, budget_like, read_ledger
from adadp.plan import Plan


def application_checks(path: Path) -> dict[str, Callable[[], str]]:
    """The checks by name; each returns what it found, or raises what is wrong."""
    finished = _Finished(path)
    found = {
        "configuration": finished.configuration,
        "plan": finished.plan,
        "charges": finished.charges,
        "statements": finished.statements,
        "measurements": finished.measurements,
        "page": finished.page,
    }
    return found | ({"search": finished.search} if (path / "search.json").exists() else {})


@dataclass(frozen=True)
class _Finished:
    path: Path

    def configuration(self) -> str:
        if self._spec.config != self._folder.config:
            raise InputError("config.toml does not say what the certificate says of this training loop.")
        return "config.toml as certified"

    def plan(self) -> str:
        asked, stated = self._asked, self._stated
        close = math.isclose(asked.noise_multiplier_at(0), stated.noise_multiplier_at(0), rel_tol=CLOSE)
        if not asked.adaptive and asked.noise is not None and stated.noise is not None:
            steps = range(asked.steps)
            pairs = [(asked.noise_multiplier_at(step), stated.noise_multiplier_at(step)) for step in steps]
            close = all(math.isclose(*pair, rel_tol=CLOSE) for pair in pairs)
        known = self._certificate
        if not close or plan_statement(stated, known["steps_done"] + known["steps_lost"]) != known["plan"]:
            raise InputError(f"The certified plan is not what config.toml asks for, which is {asked.describe()}.")
        if not asked.adaptive:
            begun = planned_budget(self._spec.method, stated)
            if self._search is not None:
                begun = PlannedBudget(self._search.event())
            if self._record.budget != begun.describe():
                raise InputError("The ledger was begun with another plan than the certified one.")
        return f"noise multiplier {asked.noise_multiplier_at(0):.6g} and all else as config.toml asks for"

    def charges(self) -> str:
        plan, charges = self._stated, self._record.charges
        if self._search is not None:
            if charges != {self._search.event(): 1}:
                raise InputError("The ledger does not hold the search of search.json, once and nothing else.")
            if self._search.chosen is None and self._certificate["steps_done"]:
                raise InputError("Steps were done, and search.json says that no run was made.")
            return "the search as a whole, once"
        done, lost = self._certificate["steps_done"], self._certificate["steps_lost"]
        if plan.rounds_before(done + lost) > sum(charges.values()):
            raise InputError(f"{done} steps done and {lost} lost do not agree with {sum(charges.values())} charges.")
        if not plan.adaptive:
            budget = planned_budget(self._spec.method, plan)
            for event, count in charges.items():
                budget.admit(event, count)
        elif not lost:  # the noise of a lost epoch is not known
            rounds = Counter(each for each in map(plan.charge_at, range(done)) if each is not None)
            wrong = [each for each, count in rounds.items() if charges.get(each, 0) < count]
            if wrong:
                raise InputError(f"The ledger holds other noise than the certified plan: not {describe(wrong[0])}.")
        return f"{sum(charges.values())} in the ledger, none beyond the plan"

    def statements(self) -> str:
        certificate, search = self._certificate, self._search
        said = None if search is None else search.statement()
        searched = () if search is None else search.disclosed()
        again = statements(self._spec, self._stated, self._folder.load_features(), said, searched)
        parts, known = again.pop("parts"), certificate["parts"]
        wrong = [name for name in again if again[name] != certificate.get(name)]
        wrong += [name for name in ("features", "search") if name in certificate and name not in again]
        wrong += ["parts"] if _without_source(parts) != _without_source(known) else []
        trained = self._search is None or self._search.chosen is not None
        if trained and not set(notes_of(self._spec, self._stated)) <= set(certificate["notes"]):
            wrong.append("notes")
        if wrong:
            raise InputError(f"The certificate says something else than this run under: {', '.join(wrong)}.")
        return "as this run would state them again"

    def measurements(self) -> str:
        """The figures follow from what they were computed from, and the certificate says of them what they say."""
        folder, notes = self._folder, self._certificate["notes"]
        figures, released, counts = folder.figures(), folder.holdout(), folder.confusion()
        said = [*measured_notes(figures), *note_on(released)]
        if not set(said) <= set(notes) or any(_is_measured(note) and note not in said for note in notes):
            raise InputError("The certificate says something else of the figures than figures.json or holdout.json.")
        if figures is not None and figures["kind"] != "numbers" and counts is not None:
            right, total = (
                sum(row[place] for place, row in enumerate(counts["counts"])),
                sum(map(sum, counts["counts"])),
            )
            sizes = [sum(row) for row in counts["counts"]]
            if [each["records"] for each in figures["classes"]] != sizes or not math.isclose(
                figures["figures"]["accuracy"]["value"], right / total, rel_tol=CLOSE
            ):
                raise InputError("figures.json and confusion.json are not of the same test records.")
        if released is not None and released["sums"] is not None:
            again = figures_of(released)
            if released["noise_multiplier"] != self._stated.held or not close_enough(again, released["figures"]):
                raise InputError(
                    "The figures in holdout.json do not follow from its sums, or not with the charged noise."
                )
        canaries, delta = folder.canaries(), folder.config.delta
        audited = None
        if canaries is not None and folder.config.audit_canaries == len(canaries["included"]) and delta is not None:
            claimed = guarantee_of(self._certificate)
            audited = audit(canaries, delta, None if claimed is None else claimed["epsilon"])
            if claimed is not None and audited["epsilon_low"] > claimed["epsilon"]:
                raise InputError(f"The canaries of the run refute its epsilon. {audited['text']}")
        if not close_enough(audited, self._certificate.get("audit")) or (folder.config.audit_canaries and not audited):
            raise InputError("The certificate says something else of the canaries than canaries.json.")
        if released is not None and self._stated.held is None:
            raise InputError("holdout.json holds figures of records that no plan keeps aside.")
        return "figures as they follow from what was released and counted"

    def search(self) -> str:
        search, config = self._search, self._folder.config
        assert search is not None
        if search.configuration(config.seed) != config or (config.seed is None) != (search.candidates[0].seed is None):
            raise InputError("config.toml is not the configuration that search.json says was chosen.")
        return f"one of {len(search.candidates)} settings, within epsilon {search.epsilon:g}"

    def page(self) -> str:
        page = self.path / "report.html"
        if not page.exists():
            return "there is none"
        if page.read_bytes() != render(run_page(self._folder)).encode("utf-8"):
            raise InputError(
                "report.html is not the page of this run as this AdaDP makes it.",
                fix=f"Do not read it; make it again with: adadp report {self.path}",
            )
        return "report.html as these files make it"

    @cached_property
    def _folder(self) -> RunFolder:
        return RunFolder.open(self.path)

    @cached_property
    def _certificate(self) -> dict[str, Any]:
        found = self._folder.certificate()
        assert found is not None
        return found

    @cached_property
    def _record(self) -> LedgerRecord:
        return read_ledger(self._folder.ledger_path)

    @cached_property
    def _search(self) -> Search | None:
        """What the run was chosen among."""
        found = self._folder.search()
        return None if found is None else Search.from_json(found)

    @cached_property
    def _spec(self) -> RunSpec:
        config = self._folder.config
        if config.data != OWN_LOOP:
            return RunSpec.of(config)
        return loop_spec(
            self._asked,
            parse_method(config.method),
            delta=config.delta,
            accountant=config.accountant,
            seed=config.seed,
            exact=config.arithmetic == "exact",
            budget=budget_like(self._record.budget) if self._asked.adaptive else None,
            unit=config.unit,
            rows_per_unit=config.rows_per_unit,
        )

    @cached_property
    def _asked(self) -> Plan:
        """What config.toml asks for. That of a training loop of the user's own asks for what was certified."""
        config = self._folder.config
        if config.data == OWN_LOOP:
            return stated_plan(self._certificate["plan"], parse_clip_rule(config.clip_rule))
        return plan_of(self._spec, self._certificate["plan"]["records"])

    @cached_property
    def _stated(self) -> Plan:
        """The same with the noise as certified, to the last bit: a calibration elsewhere may end a little beside it."""
        noise, steps = self._certificate["plan"]["noise"], self._asked.steps
        if self._asked.adaptive:  # the filter is the guarantee; a length is only where the run ends at the latest
            steps = min(self._certificate["plan"]["steps"], steps)
        return replace(self._asked, noise=None if noise == "none" else parse_schedule(noise), steps=steps)


def _is_measured(note: str) -> bool:
    """Whether a note of a certificate tells a figure of the model."""
    return note.startswith(("Measured on ", "Measured with noise on "))


def _without_source(parts: dict[str, Any]) -> list[dict[str, Any]]:
    """What the parts were, whichever release of them is installed here."""
    found = [parts["method"], parts["clip_rule"], *parts["features"]]
    return [{name: each[name] for name in ("name", "import_path", "settings")} for each in found]
