"""Time and memory of one training step of plain PyTorch, of Opacus and of AdaDP, in one run.

    python benchmarks/step.py [--rounds N] [--threads N ...] [--models NAME ...] [--sides NAME ...] [--quick]

Every side has a process of its own. The sides of a network take turns, one at a time, round after round, at one and at
two threads, and the median CPU time of a step counts. A private step is the whole of it: the batch gathered, forward
and backward pass, clipping, noise, the charge in a ledger on disk (AdaDP) or in the accountant's list (Opacus), and the
optimizer. Then come the peak of memory, and the parts of AdaDP's steps beside those of the plain one. Nothing is
asserted. A side that cannot run a network is reported with its reason. The machine should have nothing else to do.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

from harness import PAGE, RESULTS, ROOT, facts, table, versions_text, write_section
from rich.console import Console
from rich.table import Table
from step_sides import CASES, METHODS, OPACUS, OURS, PLAIN, SIDES, Case
from step_worker import Worker

THREADS = (1, 2)
SLICE = 0.25
"""Seconds of steps a side makes in its turn; one step at least."""
LONG = 1.0
"""Seconds of a step from which on a side takes part in the first rounds only."""
FIRST = 2


@dataclass
class Timed:
    """The steps of one side at one number of threads, in milliseconds, one figure per turn."""

    cpu: list[float] = field(default_factory=list)
    wall: list[float] = field(default_factory=list)
    _expected: float | None = None
    """Seconds of a step, as of the last turn."""

    def take_turn(self, worker: Worker, threads: int) -> None:
        """One turn more; the first only warms up and shows how long a step takes."""
        if self._expected is not None and self._expected > LONG and len(self.wall) >= FIRST:
            return
        steps = 1 if self._expected is None else max(1, int(SLICE / self._expected))
        cpu, wall = worker.turn(threads, steps)
        if self._expected is not None:
            self.cpu.append(cpu)
            self.wall.append(wall)
        self._expected = wall / 1000

    def medians(self) -> tuple[float, float]:
        return statistics.median(self.cpu), statistics.median(self.wall)


@dataclass
class Measured:
    """What was found for one network."""

    case: Case
    timed: dict[tuple[str, int], Timed] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)
    memory: dict[str, float] = field(default_factory=dict)
    """Side to megabytes."""
    parts: dict[str, dict[str, float]] = field(default_factory=dict)
    """Side to part of the step to milliseconds, at one thread."""
    known: dict[str, Any] = field(default_factory=dict)
    """When, where and with what it was measured."""

    @classmethod
    def read(cls, case: Case, found: dict[str, Any]) -> Measured:
        """What ``as_json`` has written."""
        timed = {(each["side"], each["threads"]): Timed(each["cpu_ms"], each["wall_ms"]) for each in found["sides"]}
        return cls(case, timed, found["failures"], found["peak_mb"], found["parts_cpu_ms"], found["known"])

    def as_json(self) -> dict[str, Any]:
        return {
            "name": self.case.name,
            "text": self.case.text,
            "batch_size": self.case.batch_size,
            "records": self.case.records,
            "sides": [
                {"side": side, "threads": count, "cpu_ms": timed.cpu, "wall_ms": timed.wall}
                for (side, count), timed in self.timed.items()
            ],
            "failures": self.failures,
            "peak_mb": self.memory,
            "parts_cpu_ms": self.parts,
            "known": self.known,
        }

    def times(self, side: str, threads: int) -> tuple[float, float] | None:
        found = self.timed.get((side, threads))
        return found.medians() if found is not None and found.cpu else None

    def ratio(self, side: str, other: str, threads: int) -> float | None:
        """CPU time of a step of one side over that of another."""
        mine, theirs = self.times(side, threads), self.times(other, threads)
        return None if mine is None or theirs is None else mine[0] / theirs[0]

    def best_opacus(self, threads: int) -> str | None:
        ran = [side for side in SIDES if side.startswith("opacus") and self.times(side, threads) is not None]
        return min(ran, key=lambda side: self.timed[side, threads].medians()[0], default=None)


def measure(case: Case, rounds: int, counts: list[int], sides: list[str], *, quick: bool) -> Measured:
    measured = Measured(case, known=facts(("torch", "opacus", "transformers")) | {"rounds": rounds})
    with ExitStack() as stack:
        workers = {side: Worker(case.name, side) for side in case.sides if side in sides}
        for side, worker in list(workers.items()):
            stack.callback(worker.close)
            if worker.failure:
                measured.failures[side] = worker.failure
                del workers[side]
        for _ in range(rounds + 1):
            for threads in counts:
                for side, worker in workers.items():
                    measured.timed.setdefault((side, threads), Timed()).take_turn(worker, threads)
        if not quick:
            measured.memory = {side: worker.peak() for side, worker in workers.items()}
        for side in (*METHODS, PLAIN):
            times = measured.times(side, 1)
            if times is not None:
                steps = max(5, min(100, int((500 if quick else 3000) / times[1])))
                measured.parts[side] = workers[side].parts(steps)
    return measured


def number(value: float | None, digits: int = 3) -> str:
    """With three significant digits, and no exponent."""
    if value is None or math.isnan(value):
        return ""
    return f"{value:.0f}" if value >= 10 ** (digits - 1) else f"{value:.{digits}g}"


HEADER = ("side", "threads", "CPU ms", "x plain", "x dpsgd", "wall ms", "x plain", "peak MB", "x plain")
"""``dpsgd`` is that of AdaDP."""


def rows(measured: Measured) -> list[tuple[str, ...]]:
    found = []
    threads = sorted({count for _, count in measured.timed})
    for side in measured.case.sides:
        for count in threads:
            times, plain = measured.times(side, count), measured.times(PLAIN, count)
            if times is None or plain is None:
                if count == threads[0] and side in measured.failures:
                    found.append((side, f"cannot: {measured.failures.get(side, '')}", *[""] * (len(HEADER) - 2)))
                continue
            memory, base = (measured.memory.get(name) if count == 1 else None for name in (side, PLAIN))
            found.append(
                (
                    side,
                    str(count),
                    number(times[0]),
                    f"{times[0] / plain[0]:.2f}",
                    _times(measured.ratio(side, OURS, count)),
                    number(times[1]),
                    f"{times[1] / plain[1]:.2f}",
                    number(memory),
                    _times(None if memory is None or base is None else memory / base),
                )
            )
    return found


def _times(ratio: float | None) -> str:
    return "" if ratio is None else f"{ratio:.2f}"


SUMMARY = ("network", "threads", "adadp dpsgd x plain", "best mode of opacus", "x plain", "x adadp dpsgd")


def summary(all_measured: list[Measured]) -> list[tuple[str, ...]]:
    found = []
    for measured in all_measured:
        for count in sorted({count for _, count in measured.timed}):
            best = measured.best_opacus(count)
            theirs = None if best is None else measured.ratio(best, PLAIN, count)
            gap = None if best is None else measured.ratio(best, OURS, count)
            found.append(
                (
                    measured.case.name,
                    str(count),
                    number(measured.ratio(OURS, PLAIN, count)),
                    best or "none ran",
                    number(theirs),
                    number(gap),
                )
            )
    return found


METHOD_SUMMARY = ("network", "threads", *(f"{method} {over}" for method in METHODS for over in ("x plain", "x dpsgd")))


def method_summary(all_measured: list[Measured]) -> list[tuple[str, ...]]:
    """The methods of AdaDP side by side."""
    return [
        (
            measured.case.name,
            str(count),
            *(_times(measured.ratio(side, other, count)) for side in METHODS for other in (PLAIN, OURS)),
        )
        for measured in all_measured
        for count in sorted({count for _, count in measured.timed})
    ]


def parts_rows(measured: Measured) -> list[tuple[str, ...]]:
    """A row for each part of a step, a column for each side of AdaDP that ran, and for the plain one."""
    columns = list(measured.parts.values())
    largest = {part: max(column.get(part, 0.0) for column in columns) for column in columns for part in column}
    ordered = sorted(largest, key=lambda part: -largest[part])
    found = [(part, *(f"{column[part]:.2f}" if part in column else "" for column in columns)) for part in ordered]
    return [*found, ("sum", *(f"{sum(column.values()):.2f}" for column in columns))]


def parts_header(measured: Measured) -> tuple[str, ...]:
    return ("part", *measured.parts)


def markdown(all_measured: list[Measured]) -> list[str]:
    lines = [
        "Written by `benchmarks/step.py`; do not edit. Run it again with `make benchmark`, on a machine that has",
        "nothing else to do.",
        "",
        *sorted(
            {
                f"{each.known['date']}, {each.known['cpu']}, median of {each.known['rounds']} rounds. "
                f"{versions_text(each.known)}."
                for each in all_measured
            }
        ),
        "",
        "The sides of a network took turns, each in a process of its own. CPU time counts; at two threads it includes",
        "what a thread spends waiting for the other in a loop, so the wall time stands beside it. Every private side",
        "adds noise and steps by SGD on batches of the same size, and all but the published ADADP clip flat. "
        "AdaDP has a",
        "side for each method: `dpsgd`, which is what Opacus does; `adadp`, with scales from the first step on; and,",
        "for the MLPs, `adadp-published` with clip=example and its gate open, which is not private and clamps every",
        "coordinate of every record's gradient. AdaDP does more in its step than Opacus: it draws its",
        "batches, takes its noise from a cryptographic generator, rounds it to a grid, and charges a ledger on disk",
        "before every release. Opacus runs without `secure_mode`, is handed its batches and spared its data loader. "
        "For",
        "the transformer it is given `DPMultiheadAttention` by its own `ModuleValidator.fix` (with `batch_first=True`",
        "it does not compute what `nn.MultiheadAttention` does, but as much) and contiguous indices for embeddings,",
        "which its ghost mode needs. The peak of memory is what a step needs beside what is there between steps. Sides",
        "that a network does not list were not run with it this time; of Opacus, the mode that was fastest before was.",
        "",
        "The first table is the summary: CPU time over that of the plain step, and over that of AdaDP's DP-SGD. The",
        "second compares the methods of AdaDP.",
        "",
        *table(SUMMARY, summary(all_measured)),
        "",
        *table(METHOD_SUMMARY, method_summary(all_measured)),
    ]
    for measured in all_measured:
        case = measured.case
        lines += [
            "",
            f"### {case.name}",
            "",
            f"{case.text}; batches of {case.batch_size} of {case.records:,} records; {measured.known['date']}, "
            f"{measured.known['cpu']}.",
            "",
        ]
        lines += table(HEADER, rows(measured))
        lines += ["", "Where the time of a step goes, CPU milliseconds at one thread:", ""]
        lines += table(parts_header(measured), parts_rows(measured))
    return lines


def show(console: Console, measured: Measured) -> None:
    shown = Table(*HEADER, title=f"{measured.case.name}: {measured.case.text}", title_justify="left")
    for row in rows(measured):
        shown.add_row(*row)
    console.print(shown)
    shown = Table(*parts_header(measured), title="CPU milliseconds at one thread", title_justify="left")
    for row in parts_rows(measured):
        shown.add_row(*row)
    console.print(shown)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    cases = {case.name: case for case in CASES}
    parser.add_argument("--rounds", type=int, default=7, help="turns of every side (default 7)")
    parser.add_argument("--threads", type=int, nargs="+", default=list(THREADS), help="numbers of threads (1 2)")
    parser.add_argument(
        "--models", nargs="+", choices=cases, default=list(cases), help="only these; others are kept as they were"
    )
    parser.add_argument("--sides", nargs="+", choices=SIDES, default=list(SIDES), help="only these")
    parser.add_argument("--quick", action="store_true", help="one thread, two rounds, no memory; writes no file")
    options = parser.parse_args()
    if options.rounds < 1:
        parser.error("--rounds must be at least 1")
    console = Console() if sys.stdout.isatty() else Console(width=120)
    if OPACUS is None:
        console.print("opacus is not installed and left out: install the extra [benchmark].")
    rounds = min(2, options.rounds) if options.quick else options.rounds
    counts = [1] if options.quick else options.threads
    results = RESULTS / "step.json"
    kept = json.loads(results.read_text(encoding="utf-8"))["models"] if results.exists() else []
    found = {each["name"]: Measured.read(cases[each["name"]], each) for each in kept if "known" in each}
    for case in (cases[name] for name in options.models):
        console.print(f"{case.name}: {rounds} rounds", style="dim")
        measured = measure(case, rounds, counts, options.sides, quick=options.quick)
        show(console, measured)
        found[case.name] = measured
        if not options.quick:
            RESULTS.mkdir(parents=True, exist_ok=True)
            written = {"models": [found[name].as_json() for name in cases if name in found]}
            results.write_text(json.dumps(written, indent=1) + "\n", encoding="utf-8")
    if options.quick:
        console.print("Quick: no file was written.")
        return
    write_section("Training step", markdown([found[name] for name in cases if name in found]))
    console.print(f"Written: {results.relative_to(ROOT)} and {PAGE.relative_to(ROOT)}.")


if __name__ == "__main__":
    main()
