"""Time of one iteration of every method beside DP-SGD's, in one run: Table II of Xu et al. 2020.

    python benchmarks/method_time.py [--rounds N]

All methods of a case take turns in one process and on one thread, round after round; the median CPU time of a step
counts. A step is the whole of it: the lot drawn and gathered, gradients, clipping, the charge in a ledger on disk,
noise, for agd the line search and its choice, and the optimizer. Nothing is asserted. The machine should have nothing
else to do. Records are made up, and can be learnt: on noise a line search would find nothing.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import torch
from harness import RESULTS, facts, table, versions_text, write_section
from torch import Tensor

from adadp import Ledger, Plan, PlannedBudget, PrivateGradients
from adadp.accounting import RdpFilter
from adadp.losses import cross_entropy
from adadp.methods import parse_method
from adadp.zoo.models import build_model

METHODS = (
    "dpsgd",
    "dpsgd-momentum",
    "adadp:start=1",
    "dpopt:start=1",
    "dpopt:solver=projected,start=1",
    "agd",
    "agd:grid=20",
    "adadp-published:threshold=0",
    "dpopt:source=raw,start=1",
    "dpopt:source=raw,solver=projected,start=1",
)
PRINTED = {"adadp-published:threshold=0": 1.7, "agd": 40.0, "dpopt:source=raw,solver=projected,start=1": 52.0}
"""Xu et al. 2020, Table II, MNIST: seconds over those of DP-SGD."""
STEPS_PLANNED, SLICE = 1_000_000, 0.2


@dataclass(frozen=True)
class Case:
    """A network and the size of its lots, those of Table II."""

    name: str
    inputs: int
    model: str
    records: int
    lot: int


CASES = (
    Case("MNIST: MLP 60-1000-10, lots of 120", 60, "mlp:1000", 60_000, 120),
    Case("CIFAR-10: 2304-384-384-10, the trained part, lots of 32", 2304, "mlp:384,384", 50_000, 32),
    Case("MNIST: MLP 60-1000-10, lots of 1200", 60, "mlp:1000", 60_000, 1200),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=25)
    options = parser.parse_args()
    torch.set_num_threads(1)
    known = facts(("torch",))
    found = {case.name: measured(case, options.rounds) for case in CASES}
    (RESULTS / "method_time.json").write_text(json.dumps({**known, "ms": found}, indent=1) + "\n", encoding="utf-8")
    lines = [
        f"One thread, CPU time, median of {options.rounds} rounds, methods interleaved; {known['cpu']}; "
        f"{versions_text(known)}; {known['date']}. Milliseconds of a step, and in brackets how many times DP-SGD's.",
        "",
        *table(
            ("method", *(case.name for case in CASES), "printed (MNIST)"),
            [
                (
                    f"`{method}`",
                    *(f"{times[method]:.1f} ({times[method] / times['dpsgd']:.2f})" for times in found.values()),
                    f"{PRINTED[method]:g}" if method in PRINTED else "",
                )
                for method in METHODS
            ],
        ),
    ]
    write_section("Time per iteration of every method", lines)
    print("\n".join(lines))


def measured(case: Case, rounds: int) -> dict[str, float]:
    """Method to milliseconds of a step."""
    torch.manual_seed(0)
    x = torch.randn(case.records, case.inputs)
    data = (x, (x @ torch.randn(case.inputs, 10)).argmax(1))
    with ExitStack() as stack:
        sides = {method: side(method, case, data, stack) for method in METHODS}
        times: dict[str, list[float]] = {method: [] for method in METHODS}
        counts = dict.fromkeys(METHODS, 1)
        for number in range(rounds + 2):
            for method, step in sides.items():
                before = time.process_time()
                for _ in range(counts[method]):
                    step()
                spent = (time.process_time() - before) / counts[method]
                counts[method] = max(1, int(SLICE / spent))
                if number >= 2:  # the first rounds warm up
                    times[method].append(1000 * spent)
    return {method: statistics.median(values) for method, values in times.items()}


def side(method: str, case: Case, data: tuple[Tensor, Tensor], stack: ExitStack) -> Callable[[], None]:
    """One step of ``method``."""
    settings = parse_method(method)
    plan = Plan.of_noise(noise=1.0, records=case.records, lot_size=case.lot, steps=STEPS_PLANNED, clip=1.0)
    budget: PlannedBudget | RdpFilter = PlannedBudget(plan.event())
    if settings.choice is not None:
        plan = plan.for_choices(settings.choice)
        budget = RdpFilter(epsilon=1e6, delta=1e-5, orders=(8.0,))
    folder = stack.enter_context(tempfile.TemporaryDirectory())
    ledger = stack.enter_context(Ledger.create(Path(folder) / "ledger.jsonl", budget=budget))
    model = build_model(case.model, input_shape=(case.inputs,), classes=10, seed=0)
    private = PrivateGradients(model, data, cross_entropy, plan, ledger, method=settings, seed=0, allow_nonprivate=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0 if settings.choice is not None else 0.05)

    def step() -> None:
        private.release()
        optimizer.step()

    return step


if __name__ == "__main__":
    main()
