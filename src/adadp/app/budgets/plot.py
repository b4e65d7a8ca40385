"""The picture of a budget: what was spent by whom over time, what is reserved, what is left."""

from __future__ import annotations

import math
import os
from datetime import datetime, timedelta
from pathlib import Path

from matplotlib.figure import Figure

from adadp.app.budgets.rules import FILTER
from adadp.app.budgets.snapshot import Snapshot
from adadp.errors import InputError

_ROOM = 0.08
_DAY = 86400
_SHORTEST = timedelta(minutes=1)


def plot_budget(path: str | os.PathLike[str], state: Snapshot, *, now: datetime) -> Path:
    """Draw ``state`` as it is ``now`` into the file ``path`` (.png, .svg or .pdf): a band for each person.

    A run counts with what it reserved until it was settled, and with what it released from then on.
    """
    out = Path(path)
    if out.suffix not in (".png", ".svg", ".pdf"):
        raise InputError(f"{out} is no picture.", fix="Name a file that ends in .png, .svg or .pdf.")
    people = list(dict.fromkeys(run.who for run in state.runs))
    changes = sorted(_changes(state), key=lambda each: each[0])
    times = [datetime.fromisoformat(state.created)]
    bands = [[0.0] for _ in people]
    for when, who, change in changes:
        times.append(when)
        for person, band in zip(people, bands, strict=True):
            band.append(max(band[-1] + (change if person == who else 0.0), 0.0))
    times.append(max(now, times[-1]))
    for band in bands:
        band.append(band[-1])
    figure = Figure(figsize=(8.4, 4.6), layout="constrained")
    axes = figure.subplots()
    times[-1] = max(times[-1], times[0] + _SHORTEST)  # else nothing is to be seen of a budget that is seconds old
    days = [time.timestamp() / _DAY for time in times]  # as matplotlib counts dates
    if people:
        axes.stackplot(days, bands, labels=people, step="post", alpha=0.85)
    axes.axhline(1.0, color="black", linewidth=1.2, label="the whole budget")
    axes.set_xlim(days[0], days[-1])
    axes.xaxis_date()
    axes.set_ylim(0, max(1.0, state.used) + _ROOM)
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
    axes.set_ylabel("share of the budget, spent or reserved")
    terms = state.terms
    left = math.floor(max(1 - state.used, 0.0) * 1000) / 1000  # never more than there is
    axes.set_title(
        f"Epsilon {terms.epsilon:g} at delta {terms.delta:g} for one {terms.unit}: {left:.1%} left", fontsize=10
    )
    axes.grid(alpha=0.3)
    figure.legend(loc="outside right upper", fontsize=8)
    figure.autofmt_xdate()
    try:
        figure.savefig(out, dpi=130)
    except OSError as error:
        raise InputError(f"{out} cannot be written: {error.strerror}.", fix="Choose another place.") from error
    return out


def _changes(state: Snapshot) -> list[tuple[datetime, str, float]]:
    """When whose share became larger or smaller, and by how much.

    Under the rule ``planned`` losses are composed and not added up: a run takes what it adds to those before it.
    """
    rule, found = state.terms.rule, list[tuple[datetime, str, float]]()
    before, begun = 0.0, datetime.fromisoformat(state.created)
    for number, run in enumerate(state.runs, 1):
        begun = datetime.fromisoformat(run.reserved) if run.reserved else begun  # of a search: after the one before
        if state.terms.kind != FILTER:
            total = rule.share(each.planned for each in state.runs[:number])
            found.append((begun, run.who, total - before))
            before = total
            continue
        planned = rule.share([run.planned])
        found.append((begun, run.who, planned))
        if run.settled is not None:
            found.append((datetime.fromisoformat(run.settled), run.who, state.share_of(run) - planned))
    return found
