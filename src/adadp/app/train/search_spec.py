"""What a search among settings is, as data: enough to compute its event again, and nothing that must stay secret.

How many runs a search by ``repeat`` made, what the others were and how they scored is not here, nor anywhere else when
the search is over.

    by       what is published                         event
    repeat   the best of a random number of runs       BestOf over the candidates' plans; with private scores, the
                                                       Disjoint of that and of a BestOf over one noisy count
    parts    one of k models, each of a part of the    Disjoint of the k plans and of the choice on the last part
             data

A record is either trained on or scored with, by a coin of its own or by its place, for the whole search. Neighbouring
data sets therefore differ in the training part or in the scored part and never in both: that is ``Disjoint``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from adadp import checks
from adadp.app.accounting.best_of import BestOf
from adadp.app.accounting.repetitions import Repetitions, describe_law, law_from_json, law_to_json
from adadp.app.config import TrainConfig
from adadp.app.spec import RunSpec
from adadp.app.train.planning import plan_of
from adadp.errors import InputError, RunError
from adadp.events import Disjoint, Event, GaussianRelease, Selection, SelectionMechanism
from adadp.plan import Plan

REPEAT, PARTS = "repeat", "parts"
PUBLIC, FILE, PRIVATE = "public", "file", "private"
"""Whose records give the scores: the last training records, declared public; a public file; private ones kept aside."""
FORMAT = 1


@dataclass(frozen=True)
class Scoring:
    """The records candidates are compared on. ``noise_multiplier`` is that of the number of right answers."""

    records_are: str
    size: int | None = None
    """How many there are, as a public number; None for a file."""
    noise_multiplier: float | None = None
    file: str | None = None

    def describe(self) -> str:
        """For people."""
        if self.records_are == FILE:
            return "their accuracy on a file of public records"
        if self.records_are == PUBLIC:
            return f"their accuracy on {self.size} records that were taken as public"
        noise = f"noise multiplier {self.noise_multiplier:g} on the number of right answers"
        return f"noisy accuracy ({noise} of about {self.size} records)"


@dataclass(frozen=True)
class Search:
    """A search, and what came of it. ``chosen`` is None while it goes on, and where no run was made."""

    by: str
    settings: tuple[dict[str, Any], ...]
    """What each candidate changes, as it was given."""
    candidates: tuple[TrainConfig, ...]
    """The configurations in full: with their noise, and with the seed of the search."""
    records: int
    """The public number of records one candidate trains on."""
    epsilon: float
    """What was asked for."""
    delta: float
    exact: bool = True
    """Whether ``records`` follows from the exact number of records, or from a public one in its place."""
    repetitions: Repetitions | None = None
    scoring: Scoring | None = None
    select_epsilon: float | None = None
    chosen: int | None = None
    score: float | None = None
    """The published score of the chosen run."""

    def plans(self) -> tuple[Plan, ...]:
        """What each candidate does."""
        return tuple(plan_of(RunSpec.of(candidate), self.records) for candidate in self.candidates)

    def event(self) -> Event:
        """All that the search releases: what is charged before its first run."""
        events = tuple(plan.event() for plan in self.plans())
        relation = events[0].neighbours
        if self.by == PARTS:
            assert self.select_epsilon is not None
            return Disjoint((*events, Selection(self.select_epsilon, SelectionMechanism.EXPONENTIAL, relation)))
        assert self.repetitions is not None
        trained = BestOf(events, self.repetitions)
        if self.scoring is None or self.scoring.noise_multiplier is None:
            return trained
        return Disjoint(
            (trained, BestOf((GaussianRelease(self.scoring.noise_multiplier, relation),), self.repetitions))
        )

    def configuration(self, seed: int | None) -> TrainConfig:
        """The configuration of the chosen run; where there is none, of the first candidate."""
        return self.candidates[self.chosen or 0].replace(seed=seed)

    def describe(self) -> str:
        """The search in words, before it has begun."""
        count = len(self.candidates)
        settings = f"{count} setting{'s' if count > 1 else ''}"
        if self.by == PARTS:
            return (
                f"One of {settings}, each trained on a part of the data of its own and chosen on another; a record is "
                "in one part, and epsilon is that of the worst part."
            )
        assert self.repetitions is not None
        assert self.scoring is not None
        return (
            f"Best of a random number of runs, about {self.repetitions.mean:.4g} on average, over {settings}, by "
            f"{self.scoring.describe()}; the cost of the search is in epsilon."
        )

    def statement(self) -> dict[str, Any]:
        """What the certificate says about the search, when it is over."""
        text = self.describe()
        if self.chosen is None:
            text += " The number of runs came out as 0: nothing was trained, and there is no model."
        return {
            "by": self.by,
            "text": text,
            "settings": [dict(setting) for setting in self.settings],
            "law": None if self.repetitions is None else describe_law(self.repetitions),
            "chosen": self.chosen,
            "score": self.score,
        }

    def disclosed(self) -> list[str]:
        """What else comes to be known, or must not."""
        lines = ["The settings that were compared, and which of them was chosen."]
        if self.by == PARTS:
            lines.append(f"That there were {len(self.candidates) + 1} parts of about {self.records} records each.")
        else:
            lines.append(
                "How long the search took, to who saw it: that tells how many runs there were, which must not become "
                "known."
            )
        if self.scoring is not None and self.scoring.records_are == PUBLIC:
            lines.append(
                f"{self.scoring.size} training records beside the {self.records}, which were taken as public: they are "
                "not protected."
            )
        if self.scoring is not None and self.scoring.records_are == PRIVATE:
            lines.append(
                f"That about {self.scoring.size} records beside the {self.records} were kept aside for scores and not "
                "trained on."
            )
        if self.exact and self.candidates[0].records is not None:
            lines.append("The exact number of all records, through the sampling rate.")
        return lines

    def as_json(self) -> dict[str, Any]:
        """The search as JSON, exactly."""
        return {"format": FORMAT, **vars(self)} | {
            "settings": [dict(setting) for setting in self.settings],
            "candidates": [candidate.as_dict() for candidate in self.candidates],
            "repetitions": None if self.repetitions is None else law_to_json(self.repetitions),
            "scoring": None if self.scoring is None else asdict(self.scoring),
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Search:
        """The search that ``as_json`` wrote."""
        try:
            body = dict(data)
            if body.pop("format") != FORMAT or body["by"] not in (REPEAT, PARTS):
                raise InputError("search.json was written by another AdaDP.", fix="Use the release that wrote it.")
            law, scoring = body["repetitions"], body["scoring"]
            body |= {
                "settings": tuple(dict(each) for each in body["settings"]),
                "candidates": tuple(TrainConfig.from_dict(each) for each in body["candidates"]),
                "repetitions": None if law is None else law_from_json(law),
                "scoring": None if scoring is None else Scoring(**scoring),
            }
            search = cls(**body)
        except (KeyError, TypeError) as error:
            raise RunError(f"search.json is not complete: {error}.", fix="Put the run's own file back.") from error
        count = len(search.candidates)
        if not count or len(search.settings) != count or search.chosen not in (None, *range(count)):
            raise RunError("search.json does not name its candidates.", fix="Put the run's own file back.")
        checks.count("records", search.records, minimum=2)
        return search
