"""A finished run checked against itself, from the files of its folder: neither torch nor the code that ran is needed.

    configuration   config.toml is the one that was certified
    ledger          its chain holds, up to the line the certificate names; its noise had a seed if config.toml has one
    model           its parameters are those certified, and it was saved with this very certificate
    plan            its numbers are those of the planned releases; the ledger began with these, or with a filter; they
                    keep the target of config.toml
    charges         those certified, and none beyond the plan
    epsilon         from the ledger, at the delta and by the accountant of config.toml
    statements      every other sentence that follows from these files
    measurements    metrics.jsonl, confusion.json, figures.json, holdout.json and canaries.json are those certified
    search          where search.json exists: what was charged is a search of which this run is one, within its target

The digests find accidents and edits of some of the files. Whoever can write the folder can write all of it anew, a
seeded run as one with secret noise too: nothing in a folder tells a consistent forgery from a run. Keep the digest of
a certificate elsewhere to pin it. What only the run itself knew is taken from the certificate as it is: the steps done
and lost, what one record is, what its parts were, and notes.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from typing import Any

from adadp.accounting import ACCOUNTANTS, accountant
from adadp.certificate.digests import json_digest, read_stored, stored_digest
from adadp.certificate.make import FORMAT, figures, model_metadata, releases_json
from adadp.certificate.wording import guarantee_of, randomness
from adadp.errors import AdaDPError, InputError, RunError
from adadp.events import (
    AdaptivelyChosen,
    Composed,
    Disjoint,
    Event,
    FixedSizeSampled,
    GaussianRelease,
    Neighbours,
    PoissonSampled,
    ReshuffledEpoch,
    describe,
    flatten,
    from_json,
)
from adadp.files import contents, json_of, read_toml
from adadp.ledger import FixedBudget, LedgerRecord, budget_like, read_ledger
from adadp.ledger.reader import whole
from adadp.registry import installed_only

CLOSE = 1e-6
"""What two computers may differ by, relatively: the precision of a calibration is 1e-7."""

_FIGURES = (
    "private", "rehearsal", "epsilon", "epsilon_low", "epsilon_high", "if_unseeded", "delta", "cross_check", "reason",
    "claimed_epsilon", "claimed_by_paper",
)  # fmt: skip
_KNOWN = {
    *_FIGURES, "format", "method", "parts", "neighbours", "protects", "record", "sampling", "arithmetic", "accountant",
    "plan", "steps_done", "steps_lost", "charged", "torn_charges", "ledger", "randomness", "config_digest",
    "model_digest", "measured", "versions", "disclosed", "not_covered", "caveats", "notes", "features", "search",
    "encoder_digest", "data_budget", "audit",
}  # fmt: skip
"""Everything a certificate may state."""
_OF_SEARCH = ("by", "settings", "chosen", "score")
_MEASURED = ("metrics.jsonl", "confusion.json", "figures.json", "holdout.json", "canaries.json")
_ANOTHER_PLAN = "The ledger was begun with another plan than the certified one."


@dataclass(frozen=True)
class Check:
    """One thing that was verified about a run."""

    name: str
    passed: bool
    detail: str


def verify(folder: str | os.PathLike[str]) -> list[Check]:
    """Check everything that the files in ``folder`` tell about a finished run. Reads them and writes nothing."""
    path = Path(folder)
    if not (path / "config.toml").is_file():
        raise InputError(f"There is no run in {path}.", why="It has no config.toml.", fix="Check the path.")
    try:
        certificate = _json(path / "certificate.json")
    except AdaDPError as error:
        return [Check("certificate", False, str(error))]
    if certificate is None:
        return [Check("certificate", False, "There is none: the run has not finished.")]
    if not isinstance(certificate, dict):
        return [Check("certificate", False, "It is not a JSON object.")]
    run = _Finished(path, certificate)
    names = ["configuration", "ledger", "model", "plan", "charges", "epsilon", "statements", "measurements"]
    names += ["search"] if (path / "search.json").exists() else []
    with installed_only():
        return [checked(name, getattr(run, name)) for name in names]


def checked(name: str, check: Callable[[], str]) -> Check:
    """Run ``check``, which returns what it found or raises what is wrong."""
    try:
        return Check(name, True, check())
    except AdaDPError as error:
        return Check(name, False, str(error))
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError, RecursionError, OSError) as error:
        return Check(name, False, f"The certificate is not complete: {type(error).__name__} {error}.")


def close(again: object, certified: object) -> bool:
    """Equal, where numbers may differ by the precision of a calibration."""
    if isinstance(again, float) and isinstance(certified, (int, float)):
        return math.isclose(again, certified, rel_tol=CLOSE)
    if isinstance(again, list) and isinstance(certified, list):
        return len(again) == len(certified) and all(map(close, again, certified))
    if isinstance(again, dict) and isinstance(certified, dict):
        return again.keys() == certified.keys() and all(close(value, certified[key]) for key, value in again.items())
    return again == certified


@dataclass(frozen=True)
class _Finished:
    """A run with its certificate. Every check returns what it found, or raises what is wrong."""

    path: Path
    certificate: dict[str, Any]

    def configuration(self) -> str:
        if self.certificate["config_digest"] != json_digest(self._config):
            raise InputError("config.toml is not the one that was certified.")
        return "config.toml as certified"

    def ledger(self) -> str:
        pinned = self.certificate["ledger"]
        record = read_ledger(self.path / "ledger.jsonl", expected_head=pinned["head"])
        if (record.run, record.length) != (pinned["run"], pinned["length"]):
            raise InputError("The certificate names another ledger.")
        if record.seeded is not (self._seed is not None):
            says = {True: "had a seed", False: "had no seed", None: "is not described"}[record.seeded]
            raise InputError(f"By the ledger the noise {says}, and config.toml says otherwise.")
        return f"{record.length} lines, chain whole up to the certified head"

    def model(self) -> str:
        if not (self.path / "model.safetensors").exists():
            raise RunError(f"There is no model in {self.path} yet.", fix="Finish the run, or resume its checkpoint.")
        tensors, text = read_stored(self.path / "model.safetensors")
        if self.certificate["model_digest"] != stored_digest(tensors):
            raise InputError("The parameters are not the certified ones.")
        if text != model_metadata(self.certificate):
            raise InputError("The model was saved with another certificate than certificate.json.")
        return "parameters as certified, saved with this certificate"

    def plan(self) -> str:
        budget = self._record.budget or {}
        if self._adaptive:
            self._filter()  # is checked as it is read
        elif self._search is None:
            about = {name: value for name, value in budget.items() if name != "not_private"}
            if about != {"rule": "planned", "events": releases_json(self._planned)}:
                raise InputError(_ANOTHER_PLAN)
            self._keep_target()
        elif self._candidates[self._search["chosen"] or 0] != self._planned:
            raise InputError("The certified plan is not that of the candidate which search.json says was chosen.")
        return f"{sum(self._planned.values())} releases with the certified numbers, as the ledger began"

    def charges(self) -> str:
        charges, planned = self._record.charges, self._planned
        if self._again["charged"] != self.certificate["charged"]:
            raise InputError("The ledger holds other charges than the certificate.")
        done, lost, charged = self.certificate["steps_done"], self.certificate["steps_lost"], sum(charges.values())
        if self._search is None:
            self._all_admitted(lost)
        elif list(charges.values()) != [1] or releases_json(charges) != (self._record.budget or {}).get("events"):
            raise InputError("The ledger does not hold one search, as it was begun, once and nothing else.")
        due = 0 if self._search is not None else _rounds(self.certificate["plan"], done + lost)
        if min(done, lost) < 0 or done + lost > self.certificate["plan"]["steps"] or due > charged:
            raise InputError(f"{done} steps done and {lost} lost do not agree with {charged} charges.")
        ahead = [(event, count) for event, count in planned.items() if isinstance(event, GaussianRelease)]
        files = {False: "features.safetensors", True: "holdout.json"}
        unpaid = [event for event, count in ahead if charges.get(event, 0) < count]
        unpaid = [event for event in unpaid if (self.path / files[event.held_out]).exists()]
        if unpaid and self._search is None:
            raise InputError(f"What is in {files[unpaid[0].held_out]} was not charged: {describe(unpaid[0])}.")
        return f"{charged} in the ledger, none beyond the plan"

    def epsilon(self) -> str:
        for name in _FIGURES:
            found, certified = self._again.get(name), self.certificate.get(name)
            if not close(found, certified):
                raise InputError(f"{name} is {found!r} by the ledger, and {certified!r} is certified.")
        proved = guarantee_of(self._again)
        if proved is None:
            return "no guarantee is claimed"
        if self._again["rehearsal"]:
            return f"none, this is a rehearsal; {proved['epsilon']:.6g} from the ledger for a run without a seed"
        return f"{proved['epsilon']:.6g} from the ledger, as certified"

    def statements(self) -> str:
        stated, config, plan = self.certificate, self._config, self.certificate["plan"]
        encoder, learned = _json(self.path / "encoder.json"), self.path / "features.safetensors"
        features, search = stated.get("features") or {}, self._search or {}
        facts = {
            "format": stated["format"] == FORMAT,
            "method": stated["method"] == config["method"],
            "sampling": stated["sampling"] == plan["sampling"],
            "arithmetic": stated["arithmetic"] == config.get("arithmetic", "fast"),
            "randomness": stated["randomness"] == randomness(self._seed),
            "encoder_digest": stated.get("encoder_digest") == (None if encoder is None else json_digest(encoder)),
            "features": features.get("learned_digest")
            == (stored_digest(read_stored(learned)[0]) if learned.exists() else None),
            "search": all((stated.get("search") or {}).get(name) == search.get(name) for name in _OF_SEARCH),
        }
        names = ("neighbours", "protects", "accountant", "torn_charges")
        wrong = [name for name in names if stated[name] != self._again[name]]
        wrong += [name for name, agrees in facts.items() if not agrees]
        wrong += sorted(stated.keys() - _KNOWN)
        if wrong:
            raise InputError(f"The certificate says something else than this run under: {', '.join(wrong)}.")
        return "as these files say them again"

    def measurements(self) -> str:
        found = {name: self.path / name for name in _MEASURED}
        digests = {name: sha256(contents(path)).hexdigest() for name, path in found.items() if path.exists()}
        if self.certificate["measured"] != digests:
            raise InputError(f"One of {', '.join(_MEASURED)} is not the one that was certified.")
        return f"{' and '.join(digests) or 'nothing'} as certified"

    def search(self) -> str:
        search = self._search
        assert search is not None
        if search["records"] != self.certificate["plan"]["records"]:
            raise InputError("search.json names another number of records than the certificate.")
        proved = guarantee_of(self._again)
        assert proved is not None  # a search takes neither methods nor accountants without a proof
        cost, target, delta = proved["epsilon"], search["epsilon"], search["delta"]
        if delta != self._config.get("delta") or not cost <= target * (1 + CLOSE):
            raise InputError(f"The search costs {cost:.6g} at delta {delta:g}, and {target:g} was asked.")
        return f"one of {len(self._candidates)} settings, within epsilon {target:g}"

    def _all_admitted(self, lost: int) -> None:
        """Nothing was charged beyond the plan, or beyond the filter of a run whose noise was chosen during the run."""
        charges, planned = self._record.charges, self._planned
        if not self._adaptive:
            beyond = [event for event, count in charges.items() if count > planned.get(event, 0)]
        else:
            budget = self._filter()
            for event, count in charges.items():
                budget.admit(event, count)
                budget.commit(event, count)
            # the noise of lost steps is not known
            beyond = [] if lost else [each for each, count in planned.items() if charges.get(each, 0) < count]
        if beyond:
            raise InputError(f"The ledger holds other releases than the certified plan: {describe(beyond[0])}.")

    def _keep_target(self) -> None:
        """Refuse a plan that costs more than config.toml allows."""
        config, event = self._config, whole(self._planned)
        asked = "epsilon" if config.get("rho") is None else "rho"
        if event is None or config.get(asked) is None:
            return
        if asked == "rho":
            zcdp: Any = accountant("zcdp")
            cost = zcdp.rho(self._planned)
        else:
            cost = accountant(config["accountant"]).epsilon(event, config["delta"]).epsilon
        if not cost <= config[asked] * (1 + CLOSE):
            raise InputError(f"The certified plan costs {asked} {cost:.6g}; config.toml asks for {config[asked]:g}.")

    def _filter(self) -> FixedBudget:
        """The filter the ledger began with, fresh. Its numbers are its own: an earlier conversion of the same budget
        gave another rho or order, which is as valid as long as it allows no more than config.toml asks for.
        """
        begun, config = budget_like(self._record.budget), self._config
        asked = "epsilon" if config.get("rho") is None else "rho"
        kept = getattr(begun, asked, math.inf) <= config[asked] * (1 + CLOSE)
        if not kept or begun.delta != config["delta"]:
            raise InputError(_ANOTHER_PLAN)
        return begun

    @cached_property
    def _config(self) -> dict[str, Any]:
        try:
            return read_toml(self.path / "config.toml")
        except (OSError, ValueError) as error:
            raise InputError(f"config.toml cannot be read: {error}.", fix="Put the run's own file back.") from error

    @property
    def _seed(self) -> int | None:
        seed: int | None = self._config.get("seed")
        return seed

    @property
    def _adaptive(self) -> bool:
        return bool(self.certificate["plan"].get("adaptive"))

    @cached_property
    def _record(self) -> LedgerRecord:
        return read_ledger(self.path / "ledger.jsonl")

    @cached_property
    def _search(self) -> dict[str, Any] | None:
        """What the run was chosen among."""
        found: dict[str, Any] | None = _json(self.path / "search.json")
        return found

    @cached_property
    def _candidates(self) -> list[dict[Event, int]]:
        """What each candidate of the charged search releases."""
        (event,) = self._record.charges
        parts: tuple[Event, ...] = event.parts if isinstance(event, Disjoint) else (event,)
        found: tuple[Event, ...] = getattr(parts[0], "candidates", parts[:-1])
        return [flatten(each) for each in found]

    @cached_property
    def _planned(self) -> dict[Event, int]:
        stated = self.certificate
        steps = stated["steps_done"] + stated["steps_lost"] if self._adaptive else stated["plan"]["steps"]
        return _planned_releases(stated["plan"], steps)

    @cached_property
    def _again(self) -> dict[str, Any]:
        """What the ledger proves, as it would be written now."""
        stated, plan, config = self.certificate, self.certificate["plan"], self._config
        listed = (guarantee_of(stated) or {}).get("cross_check") or []
        named = {"pld", "rdp", "zcdp", *(each["accountant"] for each in listed)}
        return figures(
            self._record,
            noisy=plan["noise"] != "none",
            neighbours=Neighbours.parse(plan["neighbours"]),
            delta=config.get("delta"),
            accountant_name=config["accountant"],
            seed=self._seed,
            budget=self._filter() if self._adaptive else None,
            not_private=self._record.not_private,
            paper=(stated.get("claimed_by_paper") or {}).get("paper"),
            compared=[name for name in ACCOUNTANTS if name in named],
        )


def _planned_releases(plan: Mapping[str, Any], steps: int) -> dict[Event, int]:
    """The releases that ``plan`` lists, if they are those of its numbers for ``steps`` steps."""
    planned = {from_json(each["event"]): each["count"] for each in plan["releases"]}
    ahead = [event for event, count in planned.items() if isinstance(event, GaussianRelease) for _ in range(count)]
    before, held = ([event for event in ahead if event.held_out is aside] for aside in (False, True))
    sampled = {event: count for event, count in planned.items() if not isinstance(event, GaussianRelease)}
    rate = plan["batch_size"] / plan["records"]
    drawn = [_opened(event) for event in sampled]
    of_first_size = drawn[:1] if "batch_size_schedule" in plan else drawn
    wrong = {
        "neighbours": any(event.neighbours.value != plan["neighbours"] for event in planned),
        "before": sorted(event.noise_multiplier for event in before) != sorted(plan.get("before", [])),
        "replaced": "replaced" in plan and sorted(event.replaced for event in before) != sorted(plan["replaced"]),
        "held": [event.noise_multiplier for event in held] != [plan[name] for name in ("held",) if name in plan],
        "steps": sum(sampled.values()) != _rounds(plan, steps) and not _varies(plan),
        "steps_per_epoch": plan["steps_per_epoch"] != -(-plan["records"] // plan["batch_size"]),
        "sampling_probability": plan["sampling_probability"] != rate,
        "sampling": any(sampling != plan["sampling"] for sampling, _, _ in drawn),
        "batch_size": any(found not in (None, rate) for _, found, _ in of_first_size),
        "noise": not all(_agree(plan, multipliers) for _, _, multipliers in drawn),
    }
    if any(wrong.values()):
        names = ", ".join(name for name, is_wrong in wrong.items() if is_wrong)
        raise InputError(f"The certified plan does not have the releases of its own numbers: {names}.")
    return planned


def _varies(plan: Mapping[str, Any]) -> bool:
    """Whether how many epochs there are does not follow from one batch size."""
    return plan["sampling"] == "reshuffle" and "batch_size_schedule" in plan


def _rounds(plan: Mapping[str, Any], steps: int) -> int:
    """How many charges so many steps need, at least: batches of a reshuffled epoch are charged together."""
    if plan["sampling"] != "reshuffle":
        return steps
    return min(steps, 1) if _varies(plan) else -(-steps // plan["steps_per_epoch"])


def _opened(event: Event) -> tuple[str, float | None, list[float]]:
    """How the batches of a step were drawn, at which rate, and the noise multipliers of their gradients."""
    if isinstance(event, AdaptivelyChosen):
        return _opened(event.event)
    if isinstance(event, PoissonSampled):
        return "poisson", event.sampling_probability, [_gradient(event.event)]
    if isinstance(event, FixedSizeSampled):
        return "fixed", event.sampling_fraction, [_gradient(event.event)]
    if isinstance(event, ReshuffledEpoch):
        return "reshuffle", None, [_gradient(batch) for batch in event.batches]
    raise InputError(f"{describe(event)} is no step of a run.")


def _gradient(release: Event) -> float:
    """The noise multiplier of the gradient, which comes first of what is released from a batch."""
    first = release.events[0] if isinstance(release, Composed) else release
    if not isinstance(first, GaussianRelease):
        raise InputError(f"{describe(release)} releases no gradient.")
    return first.noise_multiplier


def _agree(plan: Mapping[str, Any], multipliers: list[float]) -> bool:
    """Whether the noise that a plan names is that of its releases; schedules are left to who resolves config.toml."""
    name, _, value = plan["noise"].partition(":s0=")
    if name == "none":
        return not any(multipliers)
    return all(multipliers) and (name != "uniform" or bool(plan.get("keep_noise")) or {*multipliers} == {float(value)})


def _json(path: Path) -> Any:
    """The content of a file; None if there is none."""
    try:
        return json_of(contents(path))
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise RunError(f"{path} cannot be read: {error}.", fix="Put the run's own file back.") from error
