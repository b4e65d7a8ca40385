"""CPU time of one private step in fast and in exact arithmetic, for the networks of the step benchmark.

    python benchmarks/arithmetic.py [--rounds N] [--models NAME ...]

Both make the same steps: the batch drawn and gathered, forward and backward pass, clipping, noise, and the charge in a
ledger on disk. They take turns, at one thread, and the median CPU time of a step counts. Nothing is asserted. The table
is written into docs/arithmetic.md.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from pathlib import Path

from harness import ROOT, measured, table, versions_text, write_section
from step_sides import CASES, CLIP, NOISE, STEPS, Case

from adadp import Ledger, Plan, PrivateGradients
from adadp.app.losses import cross_entropy
from adadp.ledger import PlannedBudget
from adadp.step import ARITHMETICS

PAGE = ROOT / "docs" / "arithmetic.md"
SLICE = 0.5
"""Seconds of steps in a turn; one step at least."""


def started(case: Case, arithmetic: str, folder: Path) -> PrivateGradients:
    plan = Plan.of_noise(noise=NOISE, steps=STEPS, records=case.records, batch_size=case.batch_size, clip_norm=CLIP)
    ledger = Ledger.create(folder / f"{arithmetic}.jsonl", budget=PlannedBudget(plan.event()))
    return PrivateGradients(case.build(), case.data(), cross_entropy, plan, ledger, arithmetic=arithmetic)


def milliseconds(private: PrivateGradients, steps: int) -> float:
    """CPU time of a step."""
    start = time.process_time()
    for _ in range(steps):
        private.release()
    return 1000 * (time.process_time() - start) / steps


def measure(case: Case, rounds: int) -> dict[str, float]:
    """Arithmetic to the median CPU time of a step."""
    with tempfile.TemporaryDirectory() as folder:
        sides = {arithmetic: started(case, arithmetic, Path(folder)) for arithmetic in ARITHMETICS}
        steps = {name: max(1, int(1000 * SLICE / milliseconds(side, 1))) for name, side in sides.items()}
        found: dict[str, list[float]] = {name: [] for name in sides}
        for _ in range(rounds):
            for name, side in sides.items():
                found[name].append(milliseconds(side, steps[name]))
        for side in sides.values():
            side.ledger.close()
    return {name: statistics.median(values) for name, values in found.items()}


def main() -> None:
    known, results = measured("arithmetic", __doc__ or "", CASES, measure, rounds=5)
    rows = [
        (
            each["text"],
            str(each["batch_size"]),
            f"{each['fast']:.3g}",
            f"{each['exact']:.0f}",
            f"{each['exact'] / each['fast']:.0f}",
            f"{each['exact'] / each['batch']:.2g}",
        )
        for each in results
    ]
    header = ("network", "batch_size", "fast ms", "exact ms", "exact / fast", "exact, ms per record")
    lines = [
        f"CPU time of one private step at one thread, median of {known['rounds']} turns; `benchmarks/arithmetic.py`, "
        f"{known['date']}, {known['cpu']}; {versions_text(known)}.",
        "",
        *table(header, rows),
    ]
    write_section("What it costs", lines, PAGE)


if __name__ == "__main__":
    main()
