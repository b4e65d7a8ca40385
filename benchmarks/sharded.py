"""Memory of a process and bytes on the network of one step, where a decoder is split over two processes.

    python benchmarks/sharded.py [--steps T] [--layers L]

Four sides take turns: DistributedDataParallel and FSDP2 as they are, and private steps of the same decoder, copied and
split. Each process has one thread. Memory is the most that a process had beyond what it had before the model was built,
in a step and until then; what crosses the network is read off the counters of the loopback device. Writes
benchmarks/results and the section of docs/benchmarks.md. Nothing is asserted.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import torch
from harness import RESULTS, facts, table, versions_text, write_section
from ranks import crossed
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from adadp.plan import Plan
from adadp.step import PrivateGradients

SIDES = ("ordinary, copied", "ordinary, split", "private, copied", "private, split")
PROCESSES = 2
WIDTH, HEADS, WORDS, PLACES, RECORDS, BATCH = 512, 8, 2000, 32, 400, 16


class Decoder(nn.Module):
    """A decoder as torch's own layers make it."""

    def __init__(self, layers: int) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(WORDS, WIDTH), nn.Embedding(PLACES, WIDTH)
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(WIDTH, HEADS, 4 * WIDTH, 0.0, batch_first=True, norm_first=True)
            for _ in range(layers)
        )
        self.norm, self.last = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WORDS, bias=False)

    def forward(self, words: Tensor) -> Tensor:
        values = self.words(words) + self.places(torch.arange(PLACES))
        mask = nn.Transformer.generate_square_subsequent_mask(PLACES)
        for block in self.blocks:
            values = block(values, src_mask=mask)
        scores: Tensor = self.last(self.norm(values))
        return scores


def loss(model: nn.Module, words: Tensor) -> Tensor:
    scores = model(words)[:, :-1]
    return nn.functional.cross_entropy(scores.transpose(1, 2), words[:, 1:], reduction="none").mean(1)


def built(side: str, layers: int) -> nn.Module:
    """The decoder; a split one is never whole in a process."""
    with torch.device("meta"):
        model: nn.Module = Decoder(layers)
    if side.endswith("split"):
        mesh = init_device_mesh("cpu", (PROCESSES,))
        for block in model.blocks:
            fully_shard(block, mesh=mesh)
        fully_shard(model, mesh=mesh)
    model.to_empty(device="cpu")
    torch.manual_seed(0)
    with torch.no_grad():
        for each in model.parameters():
            each.fill_(1.0) if each.dim() == 1 else each.normal_(std=0.02)
    return model


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--side", choices=SIDES, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.side is not None:
        print(json.dumps(measured(options.side, options.layers, options.steps)))
        return
    found = {side: launched(side, options) for side in SIDES}
    with torch.device("meta"):
        parameters = sum(each.numel() for each in Decoder(options.layers).parameters())
    known = facts(("torch",)) | {"layers": options.layers, "parameters": parameters, "results": found}
    (RESULTS / "sharded.json").write_text(json.dumps(known, indent=1) + "\n", encoding="utf-8")
    lines = [
        f"A decoder of {options.layers} layers and {parameters / 1e6:.0f} million parameters "
        f"({4 * parameters / 1e6:.0f} MB in float32), {PROCESSES} processes on two cores, one thread each, gloo over "
        f"loopback, {BATCH} texts of {PLACES} words a step, SGD. Memory is the most that a process had beyond what it "
        "had before the model was built: in a step, and until the first one, where a private side looks the model "
        "over; megabytes are all that crossed the network in a step, "
        "headers and confirmations included. The machine was busy with other work: seconds are rough. "
        f"{known['cpu']}; {versions_text(known)}; {known['date']}.",
        "",
        *table(
            (
                "side",
                "memory of a step, MB",
                "until the first step",
                "network, MB a step",
                "bytes a parameter",
                "seconds",
            ),
            [
                (
                    side,
                    f"{each['peak']:.0f}",
                    f"{each['built']:.0f}",
                    f"{each['megabytes']:.0f}",
                    f"{each['megabytes'] * 1e6 / parameters:.1f}",
                    f"{each['seconds']:.1f}",
                )
                for side, each in found.items()
            ],
        ),
    ]
    write_section("A model split over processes", lines)
    print("\n".join(lines))


def launched(side: str, options: argparse.Namespace) -> dict[str, float]:
    """What the processes measure: the larger memory, and what else the first one says."""
    command = [sys.executable, __file__, "--side", side]
    command += ["--steps", str(options.steps), "--layers", str(options.layers)]
    with tempfile.TemporaryDirectory() as folder:
        shared = {"WORLD_SIZE": str(PROCESSES), "OMP_NUM_THREADS": "1", "MEETING": f"{folder}/store"}
        shared["MALLOC_MMAP_THRESHOLD_"] = "65536"  # what is freed goes back to the system, and counts no more
        started = [
            subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=os.environ | shared | {"RANK": str(rank)})
            for rank in range(PROCESSES)
        ]
        said = [each.communicate()[0] for each in started]
    if any(each.returncode for each in started):
        raise SystemExit(f"{side}: a process failed.")
    every = [json.loads(each.splitlines()[-1]) for each in said]
    found: dict[str, float] = every[0] | {name: max(each[name] for each in every) for name in ("built", "peak")}
    print(side, found, flush=True)
    return found


def measured(side: str, layers: int, steps: int) -> dict[str, float]:
    """Peak memory, bytes on the network and seconds of a step in this process."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    torch.distributed.init_process_group(
        "gloo",
        init_method=f"file://{os.environ['MEETING']}",
        rank=int(os.environ["RANK"]),
        world_size=PROCESSES,
    )
    data = torch.randint(WORDS, (RECORDS, PLACES), generator=torch.Generator().manual_seed(0))
    torch.distributed.barrier()
    before = memory("VmRSS")
    forget_peak()
    with tempfile.TemporaryDirectory() as folder:
        step = steps_of(side, built(side, layers), data, Path(folder))
        step()
        built_peak = memory("VmHWM") - before
        forget_peak()
        torch.distributed.barrier()
        crossed_before, times = crossed(), []
        for _ in range(steps):
            began = time.perf_counter()
            step()
            times.append(time.perf_counter() - began)
        torch.distributed.barrier()
        sent = (crossed() - crossed_before) / steps / 1e6
    peak = memory("VmHWM") - before
    torch.distributed.destroy_process_group()
    return {"built": built_peak, "peak": peak, "megabytes": sent, "seconds": statistics.median(times)}


def steps_of(side: str, model: nn.Module, data: Tensor, folder: Path) -> Callable[[], None]:
    """One step of the side."""
    if side.startswith("private"):
        plan = Plan.of_noise(noise=1.0, steps=1000, records=RECORDS, batch_size=BATCH, clip_norm=1.0)
        # The batch of a process in one chunk: the ordinary steps do not divide it either.
        private = PrivateGradients(model, (data,), loss, plan, folder / "ledger.jsonl", chunk_size=BATCH)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

        def step() -> None:
            private.release()
            optimizer.step()
            optimizer.zero_grad()

        return step
    network = model if side.endswith("split") else DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def ordinary() -> None:
        loss(network, data[torch.randint(RECORDS, (BATCH // PROCESSES,))]).mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    return ordinary


def forget_peak() -> None:
    """From now on ``VmHWM`` is the most memory since this."""
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")


def memory(which: str) -> float:
    """Megabytes of memory of this process, now or at most."""
    for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
        if line.startswith(which):
            return int(line.split()[1]) * 1024 / 1e6
    raise SystemExit(f"The system does not tell {which}.")


if __name__ == "__main__":
    main()
