"""Steps per second with one and two processes, and what they send each other, beside DistributedDataParallel.

    python benchmarks/ranks.py [--rounds N] [--steps T] [--models NAME ...]

Every process has one thread, and the batch is divided among them. The four sides (ordinary and private, one and two
processes) take turns. CPU time stands beside wall-clock time: on a machine with other work to do, processes that wait
for one another wait for their turn on a processor too, at every meeting. What crosses the network is read off the
counters of the loopback device. Then a model on paper says what a private step costs beside an ordinary one on many
GPUs. Writes benchmarks/results and the section of docs/benchmarks.md. Nothing is asserted.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from harness import RESULTS, facts, table, versions_text, write_section
from step_sides import CASES, OURS, Case, our_parts
from torch.nn.parallel import DistributedDataParallel

from adadp.app.losses import cross_entropy

SIDES = ("ordinary", "private")
PROCESSES = (1, 2)
MODELS = ("mnist-cnn", "cifar-cnn", "gpt2")
BATCHES = {"gpt2": 32}
"""Larger than in the benchmark of the step, where its own batch leaves little to divide."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--models", nargs="*", default=list(MODELS))
    parser.add_argument("--side", choices=SIDES, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.side is not None:
        print(json.dumps(timed_steps(case_of(options.models[0]), options.side, options.steps)))
        return
    found = [measured(case_of(name), options.rounds, options.steps) for name in options.models]
    known = facts(("torch",)) | {"rounds": options.rounds, "steps": options.steps, "results": found}
    known["load"] = f"{os.getloadavg()[2]:.0f} processes wanted a processor in the quarter of an hour before the end. "
    (RESULTS / "ranks.json").write_text(json.dumps(known, indent=1) + "\n", encoding="utf-8")
    lines = [
        "One and two processes on two cores, one thread each, gloo over loopback. The batch is divided among them; "
        "the ordinary step of two is that of DistributedDataParallel. Steps per second and their gain are by medians "
        "of wall-clock time; the gain by CPU time is that of one process over the longer of two, which is what "
        "dividing the work leaves without waiting. Megabytes are all that crossed the network in a step, in both "
        "directions, headers and confirmations included. "
        f"{known['load']}"
        f"{known['cpu']}; {versions_text(known)}; {known['date']}.",
        "",
        *table(
            (
                "network",
                "batch",
                *(f"{side}, {count}: steps/s" for side in SIDES for count in PROCESSES),
                *(f"{side}: gain of two" for side in SIDES),
                *(f"{side}: by CPU time" for side in SIDES),
                *(f"{side}: MB a step" for side in SIDES),
            ),
            [
                (
                    each["text"],
                    str(each["batch_size"]),
                    *(f"{each['steps_per_second'][f'{side} {count}']:.2f}" for side in SIDES for count in PROCESSES),
                    *(f"{each['gain'][side]:.2f}" for side in SIDES),
                    *(f"{each['cpu_gain'][side]:.2f}" for side in SIDES),
                    *(f"{each['megabytes'][side]:.2f}" for side in SIDES),
                )
                for each in found
            ],
        ),
        "",
        *on_paper(),
    ]
    write_section("Several processes", lines)
    print("\n".join(lines))


def case_of(name: str) -> Case:
    return next(case for case in CASES if case.name == name)


def measured(case: Case, rounds: int, steps: int) -> dict[str, Any]:
    """The four sides of ``case``, in turns."""
    seconds: dict[str, list[float]] = {}
    cpu: dict[str, list[float]] = {}
    megabytes: dict[str, list[float]] = {side: [] for side in SIDES}
    for _ in range(rounds):
        for side in SIDES:
            for processes in PROCESSES:
                turn = launched(case, side, processes, steps)
                seconds.setdefault(f"{side} {processes}", []).append(turn["seconds"])
                cpu.setdefault(f"{side} {processes}", []).append(turn["cpu"])
                if processes > 1:
                    megabytes[side].append(turn["megabytes"])
                print(case.name, side, processes, turn, flush=True)
    rates = {name: 1 / statistics.median(times) for name, times in seconds.items()}
    cpu_rates = {name: 1 / statistics.median(times) for name, times in cpu.items()}
    return {
        "model": case.name,
        "text": case.text,
        "batch_size": BATCHES.get(case.name, case.batch_size),
        "seconds": seconds,
        "cpu_seconds": cpu,
        "steps_per_second": rates,
        "gain": {side: rates[f"{side} 2"] / rates[f"{side} 1"] for side in SIDES},
        "cpu_gain": {side: cpu_rates[f"{side} 2"] / cpu_rates[f"{side} 1"] for side in SIDES},
        "megabytes": {side: statistics.median(each) for side, each in megabytes.items()},
    }


def launched(case: Case, side: str, processes: int, steps: int) -> dict[str, float]:
    """What the first of ``processes`` measures; of CPU time, the most that any of them took."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, __file__, "--models", case.name, "--side", side, "--steps", str(steps)]
    shared = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(processes)}
    started = [
        subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | shared | {"RANK": str(rank), "OMP_NUM_THREADS": "1"},
        )
        for rank in range(processes)
    ]
    said = [each.communicate()[0] for each in started]
    if any(each.returncode for each in started):
        raise SystemExit(f"{case.name}, {side}: a process failed.")
    found: list[dict[str, float]] = [json.loads(each.splitlines()[-1]) for each in said]
    return found[0] | {"cpu": max(each["cpu"] for each in found)}


def timed_steps(case: Case, side: str, steps: int) -> dict[str, float]:
    """Seconds of a step by the wall clock and by the processor's, and megabytes that crossed the loopback device."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    torch.manual_seed(0)
    world = int(os.environ["WORLD_SIZE"])
    if world > 1:
        torch.distributed.init_process_group("gloo")
    generator = torch.Generator().manual_seed(0)
    batch_size = BATCHES.get(case.name, case.batch_size)
    inputs = case.draw(case.records)
    labels = inputs if case.language else torch.randint(10, (case.records,), generator=generator)
    with tempfile.TemporaryDirectory() as folder:
        if side == "private":
            private, optimizer = our_parts(OURS, replace(case, batch_size=batch_size), (inputs, labels), Path(folder))

            def step() -> None:
                private.release()
                optimizer.step()
                optimizer.zero_grad()

        else:
            model = case.build()
            network = DistributedDataParallel(model) if world > 1 else model
            optimizer = torch.optim.SGD(model.parameters(), lr=0.05)

            def step() -> None:
                chosen = torch.randint(case.records, (batch_size // world,))
                cross_entropy(network, inputs[chosen], labels[chosen]).mean().backward()
                optimizer.step()
                optimizer.zero_grad()

        step()
        step()
        times, cpu, before = [], [], crossed()
        for _ in range(steps):
            began, used = time.perf_counter(), time.process_time()
            step()
            times.append(time.perf_counter() - began)
            cpu.append(time.process_time() - used)
        sent = (crossed() - before) / steps / 1e6
        if world > 1:
            torch.distributed.barrier()
            torch.distributed.destroy_process_group()
    return {"seconds": statistics.median(times), "cpu": statistics.median(cpu), "megabytes": sent}


def crossed() -> int:
    """Bytes that the loopback device has received since the machine was started."""
    for line in Path("/proc/net/dev").read_text(encoding="ascii").splitlines():
        name, _, counters = line.partition(":")
        if name.strip() == "lo":
            return int(counters.split()[0])
    raise SystemExit("There is no loopback device to count on.")


@dataclass(frozen=True)
class Cluster:
    """What the model on paper assumes of a machine; none of it was measured here."""

    gpus: int
    gigabytes_per_second: float
    """That a GPU exchanges with the others in a ring."""
    per_node: int = 8
    teraflops: float = 200.0
    """Reached by a GPU in bf16."""
    noise_nanoseconds: float = 0.02
    """A coordinate: 64 random bits, and three functions in float64, on the device."""
    message_microseconds: float = 30.0
    """One hop of a small message between hosts."""
    fsync_milliseconds: float = 2.0


CLUSTERS = (Cluster(8, 200.0), Cluster(64, 40.0), Cluster(1024, 40.0))
PARAMETERS, TOKENS_OF_BATCH = 1.3e9, 2**20


def on_paper() -> list[str]:
    """A table of the time of a step of a decoder on ``CLUSTERS``, part by part."""
    rows = []
    for each in CLUSTERS:
        parts = milliseconds(each)
        private = sum(parts.values())
        ordinary = parts["forward and backward"] / 1.2 + parts["exchange"] * 8 / 12
        worst = max((name for name in parts if name != "forward and backward"), key=lambda name: parts[name])
        rows.append(
            (
                f"{each.gpus:,}",
                *(f"{value:.1f}" for value in parts.values()),
                f"{private:.0f}",
                f"{private / ordinary:.2f}",
                worst,
            )
        )
    first = CLUSTERS[0]
    return [
        f"**On paper**, for a decoder of {PARAMETERS / 1e9:.1f}e9 parameters, copied on every GPU, and batches of "
        f"{TOKENS_OF_BATCH:,} tokens; milliseconds a step. Assumed, not measured: {first.teraflops:.0f} TFLOP/s a GPU; "
        "a private pass 1.2 times an ordinary one; an exchange of 12 bytes a parameter (ordinary: 8) at "
        f"{first.gigabytes_per_second:.0f} GB/s inside a machine and {CLUSTERS[1].gigabytes_per_second:.0f} GB/s a "
        f"GPU between machines, not overlapped with the passes; noise at {first.noise_nanoseconds} ns a coordinate, of "
        f"which each GPU makes its share; three meetings a step, of log2(W) hops of {first.message_microseconds:.0f} "
        f"microseconds; a charge of {first.fsync_milliseconds:.0f} ms.",
        "",
        *table(
            ("GPUs", *milliseconds(first), "step", "beside an ordinary step", "largest part of the difference"),
            rows,
        ),
    ]


def milliseconds(cluster: Cluster) -> dict[str, float]:
    """The parts of a private step."""
    gpus = cluster.gpus
    hops = max(1, gpus - 1).bit_length()
    return {
        "forward and backward": 1.2e3 * 6 * PARAMETERS * TOKENS_OF_BATCH / (gpus * cluster.teraflops * 1e12),
        "exchange": 1e3 * 12 * PARAMETERS * (gpus - 1) / gpus / (cluster.gigabytes_per_second * 1e9),
        "noise": 1e-6 * PARAMETERS / gpus * cluster.noise_nanoseconds,
        "meetings": 1e-3 * 3 * hops * cluster.message_microseconds,
        "ledger": cluster.fsync_milliseconds,
    }


if __name__ == "__main__":
    main()
