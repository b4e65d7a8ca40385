"""Figures on records that were kept aside: never trained on, and released once, when the run is over.

They are sums of what each record adds, with Gaussian noise (``adadp.app.figures.released`` has their bounds), charged
as a release of held-out records: a record is trained on or kept aside, so what the two parts cost is not added.

    on resume                                        what happens
    holdout.json is there                            it is used as it is; nothing is charged
    the charge is in the ledger, and no holdout.json seeded: released again, bit for bit, without a charge; secure:
    (the process was killed in between)              it is lost, and the certificate says so; nothing is released
    neither                                          charged and released
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from adadp.app.figures import headline
from adadp.app.figures.released import (
    bound_of_numbers,
    class_figures,
    class_sums,
    edges,
    number_figures,
    number_sums,
)
from adadp.app.losses import probabilities_of
from adadp.app.runs import RunFolder
from adadp.app.train.evaluation import LabelledRecords, NumberRecords
from adadp.errors import InputError
from adadp.step import PrivateGradients

_PURPOSE, _SUMS = "holdout/figures", "sums"


@dataclass(frozen=True, eq=False)
class Holdout:
    """The records that were kept aside, and how the model is tried on them. Sensitive, but for ``size``."""

    records: LabelledRecords | NumberRecords | None
    """None: no coin kept one aside."""
    like: LabelledRecords | NumberRecords
    """Of the same kind, for what is public about them."""
    size: int
    """How many there are, as a public number."""
    held: Tensor
    """Which of the training records they are."""
    weights: Tensor | None = None
    """What each of ``records`` weighs, where these are the rows of units: those of one unit weigh 1 together."""

    def check(self) -> None:
        """Refuse what cannot be released, before anything is charged."""
        if isinstance(self.like, NumberRecords) and any(target.low is None for target in self.like.aims):
            raise InputError(
                "Records are kept aside for figures, and the range of the target is not declared.",
                why="Without one a single record could move a mean error by any amount.",
                fix="Pass `target_range` as LOW,HIGH; of a table write low and high into the schema.",
            )

    @property
    def about(self) -> dict[str, Any]:
        """What is public about the release: enough to compute the figures from the sums."""
        if isinstance(self.like, NumberRecords):
            return {"kind": "numbers", "targets": [target.as_json() for target in self.like.aims], "records": self.size}
        threshold = self.like.asked.threshold
        names = list(self.like.asked.names(self.like.classes))
        return {
            "kind": "classes",
            "classes": names,
            "threshold": 0.5 if threshold is None else threshold,
            "records": self.size,
        }

    @property
    def l2_bound(self) -> float:
        """What one record adds to the sums at most."""
        return bound_of(self.about)

    def release(self, private: PrivateGradients, folder: RunFolder | None) -> dict[str, Any]:
        """The figures of the model as it is now, released once; what is kept as holdout.json."""
        ranks = private.ranks
        known = ranks.from_first("loading held-out figures", lambda: None if folder is None else folder.holdout())
        if known is not None:
            return known
        (charge,) = private.plan.charges_after()
        paid = charge in private.ledger.charges
        noise = private.plan.held
        assert noise is not None
        content: dict[str, Any] = {**self.about, "noise_multiplier": noise, "sums": None, "figures": None}
        if paid and not private.source.reproducible:
            content["text"] = (
                "Figures of held-out records were charged, and lost when the process was killed before they were saved."
            )
        else:
            total = ranks.from_first("trying the model", lambda: self.sums(private.model))
            mine = total if ranks.first else torch.zeros_like(total)
            # ======================== trust line: above sensitive, below public ========================
            permit = private.crossing.pay(charge, charge, paid=paid)
            released = permit.gaussian({_SUMS: mine}, self.l2_bound, step=0, purpose=_PURPOSE)[_SUMS]
            content["sums"] = [float(f"{each:.10g}") for each in released.double().tolist()]
            content |= {"figures": figures_of(content), "text": text_of(content)}
        # Of several processes only the first has the folder.
        ranks.from_first("saving held-out figures", lambda: None if folder is None else folder.write_holdout(content))
        return content

    def sums(self, model: nn.Module) -> Tensor:
        """What the records add up to; each is tried by itself, so that no other one reaches what it adds. A unit adds
        the mean of what its rows add.
        """
        records = self.records
        if records is None:
            return torch.zeros(length_of(self.about), dtype=torch.float64)
        weights = None if self.weights is None else self.weights.numpy()
        if isinstance(records, NumberRecords):
            targets, found = records.values(model, at_once=1)
            return torch.from_numpy(number_sums(targets, found, _ranges(self.about), weights))
        said = torch.cat([probabilities_of(scores, records.loss) for _, scores in records.scored(model, at_once=1)])
        labels = records.labels.cpu().long().flatten()
        return torch.from_numpy(class_sums(said.numpy(), labels.numpy(), self.about["threshold"], weights))


def bound_of(about: Mapping[str, Any]) -> float:
    """The l2 bound of what one record adds."""
    return bound_of_numbers(len(about["targets"])) if about["kind"] == "numbers" else 1.0


def length_of(about: Mapping[str, Any]) -> int:
    """How many sums there are."""
    if about["kind"] == "numbers":
        return 1 + 4 * len(about["targets"])
    names = about["classes"]
    return 2 * (len(edges(about["threshold"])) + 1) if len(names) == 2 else 2 * len(names)


def figures_of(released: Mapping[str, Any]) -> dict[str, Any]:
    """The figures that follow from the released sums in holdout.json, which anybody can compute again."""
    spread = released["noise_multiplier"] * bound_of(released)
    sound = all(map(math.isfinite, released["sums"])) and spread > 0
    if released["kind"] == "numbers":
        sound = sound and all(low < high for low, high in _ranges(released))
    if not sound or len(released["sums"]) != length_of(released):
        raise InputError("holdout.json does not have the sums it should.", fix="Put the run's own file back.")
    if released["kind"] == "numbers":
        names = [target["name"] for target in released["targets"]]
        return number_figures(released["sums"], spread, names, _ranges(released), records=released["records"])
    return class_figures(
        released["sums"],
        spread,
        released["classes"],
        records=released["records"],
        threshold=released["threshold"],
    )


def text_of(released: Mapping[str, Any]) -> str:
    """How the figures came about, in words."""
    spread = released["noise_multiplier"] * bound_of(released)
    return (
        f"On about {released['records']:,} training records that were kept aside and never trained on. The figures "
        f"follow from {length_of(released)} sums that were released once with noise of standard deviation {spread:.4g} "
        "and charged. Intervals hold both the noise and which records there happened to be."
    )


def note_on(released: Mapping[str, Any] | None) -> list[str]:
    """What a certificate says of the figures."""
    if released is None:
        return []
    figures = released["figures"]
    if figures is None:
        return [str(released["text"])]
    about = f"Measured with noise on about {figures['records']:,} private records that were kept aside, and charged: "
    return [f"{about}{headline(figures)}."]


def _ranges(about: Mapping[str, Any]) -> list[tuple[float, float]]:
    return [(float(target["low"]), float(target["high"])) for target in about["targets"]]
