"""What it costs to know that a model keeps records apart: looking it over ahead, and the checks in a run.

    python benchmarks/spotcheck.py [--rounds N] [--models NAME ...]

A step with a check (two records of the batch computed alone and compared) and one without take turns, at one thread;
the median CPU time counts. In a run the first step is checked and, at random, one in fifty of the others. Building the
engine, which follows records through the model and compares gradients with plain autograd's, is timed too: it happens
once. Nothing is asserted. The table is written into docs/benchmarks.md.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from pathlib import Path

from harness import measured, table, versions_text, write_section
from step_sides import CASES, CLIP, NOISE, STEPS, Case

from adadp import Ledger, Plan, PrivateGradients
from adadp.app.losses import cross_entropy
from adadp.ledger import PlannedBudget
from adadp.step import CHECK_EVERY


def measure(case: Case, rounds: int) -> dict[str, float]:
    """Milliseconds of CPU time: to build, of a step, and of the check in one."""
    plan = Plan.of_noise(noise=NOISE, steps=STEPS, records=case.records, batch_size=case.batch_size, clip_norm=CLIP)
    model, data = case.build(), case.data()
    with tempfile.TemporaryDirectory() as folder:
        ledger = Ledger.create(Path(folder) / "ledger.jsonl", budget=PlannedBudget(plan.event()))
        start = time.process_time()
        private = PrivateGradients(model, data, cross_entropy, plan, ledger)
        built = time.process_time() - start
        found: dict[bool, list[float]] = {True: [], False: []}
        for _ in range(rounds):
            for checked, times in found.items():
                private._checks = lambda _, checked=checked: checked  # type: ignore[method-assign]
                start = time.process_time()
                private.release()
                times.append(time.process_time() - start)
        ledger.close()
    step = statistics.median(found[False])
    check = statistics.median(one - other for one, other in zip(found[True], found[False], strict=True))
    return {"built": 1000 * built, "step": 1000 * step, "check": 1000 * check}


def share(found: dict[str, float], steps: int) -> float:
    """What the checks cost, in percent of the steps of a run."""
    return 100 * (1 + CHECK_EVERY * steps) * found["check"] / (steps * found["step"])


def main() -> None:
    known, results = measured("spotcheck", __doc__ or "", CASES, measure, rounds=25)
    rows = [
        (
            each["text"],
            str(each["batch_size"]),
            f"{each['built']:.0f}",
            f"{each['step']:.3g}",
            f"{each['check']:.2g}",
            *(
                f"{100 * (1 + CHECK_EVERY * steps) * each['check'] / (steps * each['step']):.2f} %"
                for steps in (100, 1000)
            ),
        )
        for each in results
    ]
    header = ("network", "batch_size", "building, ms", "step, ms", "check, ms", "of 100 steps", "of 1,000 steps")
    lines = [
        f"CPU time at one thread, median of {known['rounds']} turns; `benchmarks/spotcheck.py`, {known['date']}, "
        f"{known['cpu']}; {versions_text(known)}. The last columns are what the checks cost, of the steps of a run.",
        "",
        *table(header, rows),
    ]
    write_section("Knowing that records are kept apart", lines)


if __name__ == "__main__":
    main()
