"""Time of one iteration of every method beside DP-SGD's: Table II of Xu et al. 2020.

All methods of a case take turns in one process and on one thread, round after round; the median CPU time of a step
counts. A step is the whole of it: the batch drawn and gathered, gradients, clipping, the charge in a ledger on disk,
noise, for agd the line search and its choice, and the optimizer. Records are made up, and can be learnt: on noise a
line search would find nothing. Methods that wait before they adapt are told not to (``start=1``, ``threshold=0``).

Milliseconds depend on the machine, and on what else it does. How many times DP-SGD's they are depends on it less.

    case                                      answer
    dpsgd not asked for                       measured all the same, first: the others are told beside it
    a method or case asked for twice          measured once
    an unknown case, method or option         refused before anything is measured
    the number of threads of the process      1 while measuring, then what it was
    torch's global generator                  neither read nor moved
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from adadp import checks
from adadp.app.accounting import RdpFilter
from adadp.app.exact import one_thread
from adadp.app.losses import cross_entropy
from adadp.app.texts.methods import parse_method
from adadp.app.zoo.models import build_model
from adadp.errors import InputError
from adadp.lab.studies.keys import keyed
from adadp.ledger import Ledger, PlannedBudget
from adadp.plan import Plan
from adadp.step import PrivateGradients

DPSGD = "dpsgd"
METHODS = {
    DPSGD: "dpsgd",
    "dpsgd-momentum": "dpsgd-momentum",
    "adadp": "adadp:start=1",
    "dpopt": "dpopt:start=1",
    "dpopt-projected": "dpopt:solver=projected,start=1",
    "agd": "agd",
    "agd-20": "agd:grid=20",
    "adadp-published": "adadp-published:threshold=0",
    "dpopt-raw": "dpopt:source=raw,start=1",
    "dpopt-published": "dpopt:source=raw,solver=projected,start=1",
}
"""Short name -> what is measured under it. Those that are published or raw are not private."""
PRINTED = {
    "mnist": {DPSGD: 0.3, "adadp-published": 0.5, "agd": 12.0, "dpopt-published": 15.5},
    "cifar10": {DPSGD: 0.9, "adadp-published": 1.2, "agd": 23.7, "dpopt-published": 19.1},
}
"""Table II: seconds of an iteration, by case and method."""
_STEPS_PLANNED = 1_000_000
_WARM_UP = 2
"""Rounds that do not count."""
_TICK = 1e-6
"""Seconds a step takes at least, for a clock that has not moved."""


@dataclass(frozen=True)
class Case:
    """A network and the size of its batches."""

    name: str
    title: str
    inputs: int
    model: str
    records: int
    batch_size: int


CASES = {
    case.name: case
    for case in (
        Case("mnist", "MNIST: MLP 60-1000-10, batches of 120", 60, "mlp:1000", 60_000, 120),
        Case("cifar10", "CIFAR-10: 2304-384-384-10, the trained part, batches of 32", 2304, "mlp:384,384", 50_000, 32),
        Case("mnist-1200", "MNIST: MLP 60-1000-10, batches of 1200", 60, "mlp:1000", 60_000, 1200),
    )
}
"""Name -> case: the two of Table II, and the first with the batches a private run has today."""


@dataclass(frozen=True)
class CaseTimes:
    """What was measured of one case, by the short names of the methods."""

    case: Case
    ms: dict[str, float]
    """Milliseconds of a step."""

    @property
    def over_dpsgd(self) -> dict[str, float]:
        """How many times DP-SGD's."""
        return {name: value / self.ms[DPSGD] for name, value in self.ms.items()}

    @property
    def printed_over_dpsgd(self) -> dict[str, float]:
        """The same of the seconds that Table II prints; empty for a case it has not."""
        seconds = PRINTED.get(self.case.name, {})
        return {name: value / seconds[DPSGD] for name, value in seconds.items() if name in self.ms}

    def to_json(self) -> dict[str, object]:
        case = {name: getattr(self.case, name) for name in ("title", "model", "records", "batch_size")}
        return case | {"ms": self.ms, "over_dpsgd": self.over_dpsgd}


@dataclass(frozen=True)
class TimeStudy:
    """Every case that was measured."""

    rounds: int
    methods: dict[str, str]
    """Short name -> the method with its options."""
    cases: tuple[CaseTimes, ...]

    @property
    def not_private(self) -> tuple[str, ...]:
        """Short names of the methods that carry no guarantee."""
        return tuple(name for name, text in self.methods.items() if parse_method(text).not_private)

    def to_json(self) -> dict[str, object]:
        return {
            "rounds": self.rounds,
            "methods": self.methods,
            "not_private": list(self.not_private),
            "cases": {each.case.name: each.to_json() for each in self.cases},
            "printed": {
                each.case.name: {"seconds": PRINTED[each.case.name], "over_dpsgd": each.printed_over_dpsgd}
                for each in self.cases
                if each.case.name in PRINTED
            },
        }


def study_time(
    cases: Sequence[str] = tuple(CASES),
    methods: Sequence[str] = tuple(METHODS),
    *,
    rounds: int = 25,
    seconds: float = 0.2,
    watch: Callable[[str, int, int], None] | None = None,
) -> TimeStudy:
    """Measure ``methods``, by short names or with options of your own, in ``cases``.

    In each of ``rounds`` a method takes as many steps as fit into ``seconds`` of CPU time, at least one. ``watch`` is
    told after each round the case, how many are done, and of how many.
    """
    rounds, seconds = checks.count("rounds", rounds), checks.positive("seconds", seconds)
    for name in cases:
        if name not in CASES:
            raise InputError(f"There is no case {name!r} to time.", fix=f"Choose one of: {', '.join(CASES)}.")
    chosen = [CASES[name] for name in dict.fromkeys(cases)]
    texts = keyed((DPSGD, *methods), METHODS)
    for text in texts.values():
        parse_method(text)
    with one_thread():
        found = tuple(CaseTimes(case, _measured(case, texts, rounds, seconds, watch)) for case in chosen)
    return TimeStudy(rounds, texts, found)


def _measured(
    case: Case, methods: dict[str, str], rounds: int, seconds: float, watch: Callable[[str, int, int], None] | None
) -> dict[str, float]:
    """Short name to milliseconds of a step."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(case.records, case.inputs, generator=generator)
    data = (x, (x @ torch.randn(case.inputs, 10, generator=generator)).argmax(1))
    times: dict[str, list[float]] = {name: [] for name in methods}
    with ExitStack() as stack:
        steps = {name: _step(text, case, data, stack) for name, text in methods.items()}
        counts = dict.fromkeys(methods, 1)
        for number in range(1, rounds + _WARM_UP + 1):
            for name, step in steps.items():
                before = time.process_time()
                for _ in range(counts[name]):
                    step()
                spent = (time.process_time() - before) / counts[name]
                counts[name] = max(1, int(seconds / max(spent, _TICK)))
                if number > _WARM_UP:
                    times[name].append(1000 * spent)
            if watch is not None:
                watch(case.name, number, rounds + _WARM_UP)
    return {name: statistics.median(values) for name, values in times.items()}


def _step(method: str, case: Case, data: tuple[Tensor, Tensor], stack: ExitStack) -> Callable[[], None]:
    """One step of ``method``; ``stack`` closes its ledger."""
    settings = parse_method(method)
    plan = Plan.of_noise(
        noise=1.0, records=case.records, batch_size=case.batch_size, steps=_STEPS_PLANNED, clip_norm=1.0
    )
    budget: PlannedBudget | RdpFilter = PlannedBudget(plan.event())
    if settings.choice is not None:
        plan = plan.for_choices(settings.choice)
        budget = RdpFilter(epsilon=1e6, delta=1e-5, orders=(8.0,))
    folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="adadp-"))
    ledger = stack.enter_context(Ledger.create(Path(folder) / "ledger.jsonl", budget=budget))
    model = build_model(case.model, input_shape=(case.inputs,), classes=10, seed=0)
    private = PrivateGradients(
        model,
        data,
        cross_entropy,
        plan,
        ledger,
        method=settings,
        seed=0,
        allow_nonprivate=True,  # the data is made up
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0 if settings.choice is not None else 0.05)

    def step() -> None:
        private.release()
        optimizer.step()

    return step
