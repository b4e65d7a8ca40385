"""Steps compiled by torch.compile, private and ordinary, beside those as written, on the networks of the papers.

    python benchmarks/compiled.py [--rounds N] [--models NAME ...]

The four sides take turns of a few steps in one process, at one thread, and the median CPU time counts; compiling is not
timed. Nothing is asserted. The table is written into docs/benchmarks.md.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

from harness import measured, table, versions_text, write_section
from step_sides import CASES, COMPILED, OURS, OURS_COMPILED, PLAIN, PLAIN_COMPILED, Case, build_side

NETWORKS = ("mlp-60", "mlp-784", "mnist-cnn", "cifar-cnn")
STEPS = 6
"""In a turn."""


def measure(case: Case, rounds: int) -> dict[str, float]:
    """Milliseconds of CPU time of a step, by side."""
    data = case.data()
    times: dict[str, list[float]] = {side: [] for side in (PLAIN, OURS, *COMPILED)}
    with ExitStack() as stack:
        sides = {}
        for name in times:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            sides[name] = build_side(name, case, data, folder)
            stack.callback(sides[name].close)
        for _ in range(rounds + 1):
            for name, side in sides.items():
                start = time.process_time()
                for _ in range(STEPS):
                    side.step()
                times[name].append(1000 * (time.process_time() - start) / STEPS)
    return {name: statistics.median(found[1:]) for name, found in times.items()}  # the first turn compiles


def main() -> None:
    cases = [case for case in CASES if case.name in NETWORKS]
    known, results = measured("compiled", __doc__ or "", cases, measure, rounds=6)
    lines = [
        "CPU milliseconds of a step as written and compiled by `torch.compile` (`compile=True` in AdaDP), one thread, "
        f"median of {known['rounds']} turns of {STEPS} steps; `benchmarks/compiled.py`, {known['date']}, "
        f"{known['cpu']}; {versions_text(known)}.",
        "",
        *table(
            ("network", "ordinary", "compiled", "private", "compiled", "private / ordinary", "both compiled"),
            [
                (
                    each["text"],
                    *(f"{each[side]:.1f}" for side in (PLAIN, PLAIN_COMPILED, OURS, OURS_COMPILED)),
                    f"{each[OURS] / each[PLAIN]:.2f}",
                    f"{each[OURS_COMPILED] / each[PLAIN_COMPILED]:.2f}",
                )
                for each in results
            ],
        ),
    ]
    write_section("Compiled steps", lines)


if __name__ == "__main__":
    main()
