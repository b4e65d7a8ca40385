"""Time the accountants of AdaDP and of its peers on the same questions, in one run.

    python benchmarks/accounting.py [--repeat N] [--quick]

Every question is asked of every program in turn, round after round, on one thread, and the median CPU time counts. A
program that needs more than 20 s for a question is asked once. The answers stand beside the times, so that equal work
can be seen. Nothing is asserted, and nothing is compared with a figure from another run. A peer that is not installed
is reported and left out. The machine should have nothing else to do.
"""

from __future__ import annotations

import os

# One thread: this must stand before numpy is imported.
os.environ["OMP_NUM_THREADS"] = "1"
os.environ["OPENBLAS_NUM_THREADS"] = "1"
os.environ["MKL_NUM_THREADS"] = "1"

import argparse
import json
import math
import resource
import signal
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Any

from harness import PAGE, RESULTS, ROOT, facts, load, table, versions_text, write_section
from rich.console import Console
from rich.table import Table

from adadp.accounting import accountant
from adadp.app.accounting.calibrate import smallest_noise
from adadp.app.accounting.run_shape import RunShape
from adadp.app.texts.schedules import parse_schedule
from adadp.events import Repeated, compose

SLOW = 20.0
"""Seconds from which on a job is not repeated."""
OURS, GOOGLE, PRV = "adadp", "dp-accounting", "prv-accountant"
SCHEDULE = "exp:s0=10,k=0.01"


@dataclass(frozen=True)
class Found:
    """One answer: a value, and the bracket around it where the program gives one."""

    value: float
    low: float | None = None
    high: float | None = None


@dataclass
class Job:
    """One program's way to answer one question."""

    program: str
    method: str
    ask: Callable[[], Found]
    seconds: list[float] = field(default_factory=list)
    found: Found | None = None
    failure: str = ""

    def run(self) -> None:
        """Ask once more, unless that failed or took too long before."""
        if self.failure or (self.seconds and self.seconds[0] > SLOW):
            return
        start = time.process_time()
        try:
            self.found = self.ask()
        except Exception as error:  # a peer's failure is a result
            self.failure = f"{type(error).__name__}: {error}".splitlines()[0]
        else:
            self.seconds.append(time.process_time() - start)

    @property
    def median(self) -> float:
        return statistics.median(self.seconds) if self.seconds else math.nan


@dataclass
class Question:
    """What all programs are asked."""

    name: str
    text: str
    jobs: list[Job]
    quantity: str = "epsilon"


SETTINGS, SEED = 40, 16
"""Random settings, and the seed they are drawn with."""
LIMIT = 10.0
"""Seconds of CPU time after which a peer's answer to a random setting is given up."""

MEMORY = 4 << 30
"""Bytes of address space a program may use for a random setting; some ask for more than the machine has."""

DPA, DPA_PLD, DPA_RDP = load("dp_accounting"), load("dp_accounting.pld"), load("dp_accounting.rdp")
PRV_ACCOUNTANT = load("prv_accountant")

Level = tuple[float, int]
"""A noise multiplier and for how many steps it is used."""


def ours(method: str, q: float, levels: list[Level], delta: float) -> Found:
    shape = RunShape(q=q)
    if len(levels) == 1:
        event = shape.run(levels[0][0], steps=levels[0][1])
    else:
        event = shape.run(parse_schedule(SCHEDULE), epochs=len(levels))
    answer = accountant(method).epsilon(event, delta)
    return Found(answer.epsilon, answer.epsilon_low, answer.epsilon_high)


def google_event(q: float, levels: list[Level]) -> Any:
    return DPA.ComposedDpEvent(
        [
            DPA.SelfComposedDpEvent(DPA.PoissonSampledDpEvent(q, DPA.GaussianDpEvent(noise_multiplier)), steps)
            for noise_multiplier, steps in levels
        ]
    )


def google(method: str, q: float, levels: list[Level], delta: float) -> Found:
    theirs = DPA_PLD.PLDAccountant() if method == "pld" else DPA_RDP.RdpAccountant()
    theirs.compose(google_event(q, levels))
    return Found(float(theirs.get_epsilon(delta)))


def prv(q: float, levels: list[Level], delta: float, eps_error: float) -> Found:
    theirs = PRV_ACCOUNTANT.PRVAccountant(
        prvs=[
            PRV_ACCOUNTANT.PoissonSubsampledGaussianMechanism(sampling_probability=q, noise_multiplier=noise_multiplier)
            for noise_multiplier, _ in levels
        ],
        max_self_compositions=[steps for _, steps in levels],
        eps_error=eps_error,
        delta_error=1e-3 * delta,
    )
    low, middle, high = theirs.compute_epsilon(delta, [steps for _, steps in levels])
    return Found(float(middle), float(low), float(high))


def rounding_bracket(q: float, noise_multiplier: float, steps: int, delta: float) -> Found:
    """dp-accounting's older discretisation, the one with a lower side: every loss rounded down, then up."""
    ends = []
    for pessimistic in (False, True):
        one = DPA_PLD.privacy_loss_distribution.from_gaussian_mechanism(
            noise_multiplier, pessimistic_estimate=pessimistic, sampling_prob=q, use_connect_dots=False
        )
        ends.append(float(one.self_compose(steps).get_epsilon_for_delta(delta)))
    return Found(ends[1], ends[0], ends[1])


def epsilon_question(
    name: str, text: str, *, q: float, levels: list[Level], delta: float, eps_error: float
) -> Question:
    """PLD and RDP of AdaDP and of dp-accounting, and prv-accountant with an error bound of ``eps_error``."""
    jobs = []
    for method in ("pld", "rdp"):
        jobs.append(Job(OURS, method, lambda method=method: ours(method, q, levels, delta)))
        if DPA is not None:
            jobs.append(Job(GOOGLE, method, lambda method=method: google(method, q, levels, delta)))
        if method == "pld" and PRV_ACCOUNTANT is not None:
            jobs.append(Job(PRV, f"pld, error {eps_error:g}", lambda: prv(q, levels, delta, eps_error)))
    return Question(name, text, jobs)


def calibration_question() -> Question:
    epsilon, delta, q, steps = 2.0, 1e-5, 0.01, 10_000

    def our_sigma() -> Found:
        shape = RunShape(q=q)
        return Found(
            smallest_noise(
                lambda noise_multiplier: shape.run(noise_multiplier, steps=steps),
                epsilon=epsilon,
                delta=delta,
                accountant=accountant("pld"),
            ).value
        )

    def google_sigma() -> Found:
        return Found(
            float(
                DPA.calibrate_dp_mechanism(
                    DPA_PLD.PLDAccountant,
                    lambda noise_multiplier: google_event(q, [(noise_multiplier, steps)]),
                    epsilon,
                    delta,
                )
            )
        )

    jobs = [Job(OURS, "pld", our_sigma)] + ([Job(GOOGLE, "pld", google_sigma)] if DPA is not None else [])
    text = "smallest sigma for epsilon 2, delta 1e-5, q 0.01, 10,000 steps"
    return Question("calibration", text, jobs, "noise_multiplier")


def bracket_question() -> Question:
    q, noise_multiplier, steps, delta = 0.01, 4.0, 10_000, 1e-5
    jobs = [Job(OURS, "pld", lambda: ours("pld", q, [(noise_multiplier, steps)], delta))]
    if DPA is not None:
        jobs.append(Job(GOOGLE, "pld, rounded", lambda: rounding_bracket(q, noise_multiplier, steps, delta)))
    if PRV_ACCOUNTANT is not None:
        for error in (0.1, 0.01):
            jobs.append(
                Job(PRV, f"pld, error {error:g}", lambda error=error: prv(q, [(noise_multiplier, steps)], delta, error))
            )
    return Question("bracket", "low and high side of epsilon: q 0.01, sigma 4, 10,000 steps, delta 1e-5", jobs)


def questions(quick: bool) -> list[Question]:
    schedule = parse_schedule(SCHEDULE)
    levels = [(schedule.value_at(epoch), 100) for epoch in range(100)]
    plain: list[Level] = [(4.0, 10_000)]
    found = [
        epsilon_question(
            "plain", "q 0.01, sigma 4, 10,000 steps, delta 1e-5", q=0.01, levels=plain, delta=1e-5, eps_error=0.01
        ),
        epsilon_question(
            "schedule",
            f"{SCHEDULE}: 100 sigmas, 100 steps each, q 0.01, delta 1e-5",
            q=0.01,
            levels=levels,
            delta=1e-5,
            eps_error=0.1,
        ),
        calibration_question(),
        epsilon_question(
            "small delta",
            "q 0.01, sigma 4, 10,000 steps, delta 1e-12",
            q=0.01,
            levels=plain,
            delta=1e-12,
            eps_error=0.01,
        ),
        epsilon_question(
            "rare sampling",
            "q 1e-6, sigma 1, 10^6 steps, delta 1e-5",
            q=1e-6,
            levels=[(1.0, 10**6)],
            delta=1e-5,
            eps_error=0.1,
        ),
        epsilon_question(
            "many steps",
            "q 0.001, sigma 10, 10^7 steps, delta 1e-5",
            q=1e-3,
            levels=[(10.0, 10**7)],
            delta=1e-5,
            eps_error=0.1,
        ),
        bracket_question(),
    ]
    if quick:
        for question in found:
            question.jobs = [job for job in question.jobs if job.program != PRV or question.name == "plain"]
        found = [question for question in found if question.name != "many steps"]
    return found


@dataclass(frozen=True)
class Setting:
    """A run off the papers' grid, drawn at random: any schedule of up to 100 noise levels."""

    q: float
    levels: list[Level]
    delta: float

    @classmethod
    def drawn(cls, random: Random) -> Setting:
        """Q from 1e-6 to 1, sigma from 0.3 to 50, 1 to 10^7 steps, delta from 1e-12 to 1e-3, all log-uniform."""

        def between(low: float, high: float) -> float:
            return math.exp(random.uniform(math.log(low), math.log(high)))

        steps = int(between(1, 1e7))
        count = min(random.choice([1, 2, 5, 27, 100]), steps)
        first, last = between(0.3, 50), between(0.3, 50)
        shape = random.choice(["falling", "scattered"])
        sigmas = [
            between(0.3, 50) if shape == "scattered" else first * (last / first) ** (k / max(count - 1, 1))
            for k in range(count)
        ]
        shares = [between(1e-3, 1) for _ in sigmas]
        return cls(
            between(1e-6, 1),
            [
                (noise_multiplier, max(1, round(steps * share / sum(shares))))
                for noise_multiplier, share in zip(sigmas, shares, strict=True)
            ],
            between(1e-12, 1e-3),
        )

    def text(self) -> str:
        sigmas = [noise_multiplier for noise_multiplier, _ in self.levels]
        noise = f"{min(sigmas):.3g}" if len(sigmas) == 1 else f"{min(sigmas):.3g} .. {max(sigmas):.3g}"
        return f"{self.q:.3g} | {noise} | {len(sigmas)} | {sum(steps for _, steps in self.levels):,} | {self.delta:.2g}"

    def jobs(self) -> list[Job]:
        shape = RunShape(q=self.q)
        run = compose(*(Repeated(shape.step(noise_multiplier), steps) for noise_multiplier, steps in self.levels))

        def our_answer() -> Found:
            answer = accountant("pld").epsilon(run, self.delta)
            return Found(answer.epsilon, answer.epsilon_low, answer.epsilon_high)

        jobs = [Job(OURS, "pld", our_answer)]
        if DPA is not None:
            jobs.append(Job(GOOGLE, "pld", lambda: google("pld", self.q, self.levels, self.delta)))
        if PRV_ACCOUNTANT is not None:
            jobs.append(Job(PRV, "pld, error 0.1", lambda: prv(self.q, self.levels, self.delta, 0.1)))
        return jobs


def limited(job: Job, seconds: float) -> None:
    """Ask once, and give up after ``seconds`` of CPU time."""

    def give_up(_number: int, _frame: object) -> None:
        raise TimeoutError(f"more than {seconds:g} s")

    _, most = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, most))
    before = signal.signal(signal.SIGVTALRM, give_up)
    signal.setitimer(signal.ITIMER_VIRTUAL, seconds)
    try:
        job.run()
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)
        resource.setrlimit(resource.RLIMIT_AS, (most, most))


def random_settings(limit: float) -> list[tuple[Setting, list[Job]]]:
    """The settings with every program's answer, each asked once."""
    random = Random(SEED)
    found = []
    for _ in range(SETTINGS):
        setting = Setting.drawn(random)
        jobs = setting.jobs()
        for job in jobs:
            limited(job, limit)
        found.append((setting, jobs))
    return found


RANDOM_HEADER = (
    "q",
    "noise_multiplier",
    "levels",
    "steps",
    "delta",
    OURS,
    "bracket",
    "time",
    GOOGLE,
    "time",
    PRV,
    "time",
)


def random_rows(asked: list[tuple[Setting, list[Job]]]) -> list[tuple[str, ...]]:
    lines = []
    for setting, jobs in asked:
        cells: list[str] = setting.text().split(" | ")
        for job in jobs:
            late = "TimeoutError" in job.failure
            cells.append("" if late else "failed" if job.failure else answer_text(job))
            if job.program == OURS:
                cells.append(relative_width(job))
            cells.append(f"> {LIMIT:g} s" if late else seconds_text(job))
        lines.append(tuple(cells))
    return lines


def relative_width(job: Job) -> str:
    """The width of the bracket over its upper end."""
    if job.found is None or job.found.low is None or not job.found.value:
        return "0"
    return f"{(job.found.value - job.found.low) / job.found.value:.1g}"


def worst(asked: list[tuple[Setting, list[Job]]]) -> list[str]:
    """The slowest answer and the widest bracket of AdaDP, by name."""
    slowest = max(asked, key=lambda each: each[1][0].median)
    widest = max(asked, key=lambda each: float(relative_width(each[1][0])))
    names = [f"setting {asked.index(each) + 1} ({each[0].text().replace(' | ', ', ')})" for each in (slowest, widest)]
    return [
        f"AdaDP's slowest answer: {seconds_text(slowest[1][0])}, {names[0]} as q, sigma, levels, steps, delta.",
        f"Its widest bracket: {relative_width(widest[1][0])} of epsilon, {names[1]}.",
    ]


def seconds_text(job: Job) -> str:
    if job.failure:
        return "failed"
    return f"{1000 * job.median:.0f} ms" if job.median < 1 else f"{job.median:.1f} s"


def ratio_text(job: Job, reference: Job) -> str:
    """How many times as long as AdaDP with the same method."""
    ratio = job.median / reference.median
    return "" if math.isnan(ratio) or job is reference else f"{ratio:.3g}"


def answer_text(job: Job) -> str:
    if job.found is None:
        return job.failure
    return f"{job.found.value:.6g}"


def width_text(job: Job) -> str:
    if job.found is None or job.found.low is None or job.found.high is None or job.found.low == job.found.high:
        return ""
    return f"{job.found.low:.6g} .. {job.found.high:.6g}"


HEADER = ("program", "method", "answer", "bracket", "CPU time", "x adadp", "runs")


def rows(question: Question) -> list[tuple[str, ...]]:
    reference = {job.method: job for job in question.jobs if job.program == OURS}
    first = question.jobs[0]
    return [
        (
            job.program,
            job.method,
            answer_text(job),
            width_text(job),
            seconds_text(job),
            ratio_text(job, reference.get(job.method, first)),
            str(len(job.seconds)),
        )
        for job in question.jobs
    ]


def markdown(asked: list[Question], drawn: list[tuple[Setting, list[Job]]], known: dict[str, Any]) -> list[str]:
    lines = [
        "Written by `benchmarks/accounting.py`; do not edit. Run it again with `make benchmark`, on a machine that has",
        "nothing else to do.",
        "",
        f"{known['date']}, {known['cpu']}, one thread, CPU time, median of the runs. {versions_text(known)}.",
        "",
        "All programs were asked in turn in one run. The bracket is what a program says about both sides of its",
        "answer; dp-accounting's default has an upper side only, and an RDP figure is a bound, not the exact epsilon.",
        "prv-accountant is asked for the stated absolute error of epsilon, and for a thousandth of delta; its answer",
        "is the middle of its bracket. `x adadp` is the CPU time over AdaDP's for the same method: above 1, AdaDP was",
        f"faster. A program that needed more than {SLOW:g} s was asked once.",
    ]
    for question in asked:
        lines += ["", f"### {question.name.capitalize()}", "", f"{question.quantity}: {question.text}", ""]
        lines += table(HEADER, rows(question), left=2)
    lines += [
        "",
        "### Random settings",
        "",
        f"{SETTINGS} runs off the papers' grid, drawn with seed {SEED} before any of them was computed: epsilon by the",
        "loss distribution, asked once. `bracket` is the width of AdaDP's over epsilon. prv-accountant is asked for an",
        f"absolute error of 0.1. A peer is given up after {LIMIT:g} s of CPU time; `failed` is an error of its own, or "
        f"more than {MEMORY >> 30} GiB of memory.",
        "",
        *worst(drawn),
        "",
        *table(RANDOM_HEADER, random_rows(drawn), left=0),
    ]
    return lines


def record(asked: list[Question], drawn: list[tuple[Setting, list[Job]]], known: dict[str, Any]) -> dict[str, Any]:
    return known | {
        "random": [
            {
                "q": setting.q,
                "levels": setting.levels,
                "delta": setting.delta,
                "jobs": [
                    {
                        "program": job.program,
                        "value": job.found.value if job.found else None,
                        "low": job.found.low if job.found else None,
                        "high": job.found.high if job.found else None,
                        "cpu_seconds": job.seconds,
                        "failure": job.failure,
                    }
                    for job in jobs
                ],
            }
            for setting, jobs in drawn
        ],
        "questions": [
            {
                "name": question.name,
                "text": question.text,
                "quantity": question.quantity,
                "jobs": [
                    {
                        "program": job.program,
                        "method": job.method,
                        "value": job.found.value if job.found else None,
                        "low": job.found.low if job.found else None,
                        "high": job.found.high if job.found else None,
                        "cpu_seconds": job.seconds,
                        "median": job.median if job.seconds else None,
                        "failure": job.failure,
                    }
                    for job in question.jobs
                ],
            }
            for question in asked
        ],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--repeat", type=int, default=5, help="rounds over all questions (default 5)")
    parser.add_argument("--quick", action="store_true", help="one round without the slowest jobs; writes no file")
    options = parser.parse_args()
    if options.repeat < 1:
        parser.error("--repeat must be at least 1")
    console = Console() if sys.stdout.isatty() else Console(width=120)
    for name, module in ((GOOGLE, DPA), (PRV, PRV_ACCOUNTANT)):
        if module is None:
            console.print(f"{name} is not installed and left out.")
    asked = questions(options.quick)
    rounds = 1 if options.quick else options.repeat
    for number in range(rounds):
        for question in asked:
            console.print(f"round {number + 1} of {rounds}: {question.name}", style="dim")
            for job in question.jobs:
                job.run()
    for question in asked:
        table = Table(*HEADER, title=f"{question.name}: {question.quantity}, {question.text}", title_justify="left")
        for row in rows(question):
            table.add_row(*row)
        console.print(table)
    console.print(f"{SETTINGS} random settings", style="dim")
    drawn = random_settings(5.0 if options.quick else LIMIT)
    for line in worst(drawn):
        console.print(line)
    if options.quick:
        console.print("A quick run, one round: no file was written.")
        return
    known = facts(("numpy", "scipy", GOOGLE, PRV)) | {"threads": 1, "rounds": rounds}
    RESULTS.mkdir(parents=True, exist_ok=True)
    results = RESULTS / "accounting.json"
    results.write_text(json.dumps(record(asked, drawn, known), indent=1) + "\n", encoding="utf-8")
    write_section("Accounting", markdown(asked, drawn, known))
    console.print(f"Written: {results.relative_to(ROOT)} and {PAGE.relative_to(ROOT)}.")


if __name__ == "__main__":
    main()
