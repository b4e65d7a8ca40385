"""Training on more records than fit into memory: a step at 10^8 records of 100 columns beside one at 10^6.

    python benchmarks/large.py [--folder DIR] [--records N ...] [--steps T]

Writes the records as ``.npy`` files into a temporary folder in DIR (10 GB for 10^8), trains on them by ``adadp.fit`` in
a process of its own, and deletes them. The system's cache of the files is dropped before a run, so rows come from the
disk. Writes benchmarks/results and the section of docs/benchmarks.md. Nothing is asserted.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from harness import RESULTS, facts, table, versions_text, write_section
from torch import Tensor, nn

import adadp
from adadp.app import stored
from adadp.records import Records
from adadp.release import Permit
from adadp.sampling import Batches

COLUMNS, BATCH, AT_ONCE = 100, 1000, 10**6
PARTS = {"draw": (Batches, "batch"), "gather": (Records, "_gathered"), "release": (Permit, "gaussian")}
"""What is timed: who does it. The rows of a batch are gathered by a thread, while the batch before is computed."""


class Bytes(nn.Module):
    """Whole numbers from 0 to 255 as floats in [-1, 1]."""

    def forward(self, values: Tensor) -> Tensor:
        return values.float() / 127.5 - 1


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", type=Path, default=None, help="where the records are written for a while")
    parser.add_argument("--records", type=int, nargs="*", default=[10**6, 10**8])
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--run", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--forgotten", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.run is not None:
        if options.forgotten:
            stored._memory = lambda: 0.0
        print(json.dumps(trained(options.run, options.steps)))
        return
    known = facts(("torch", "numpy")) | {"columns": COLUMNS, "batch_size": BATCH, "steps": options.steps}
    found = []
    for records in options.records:
        with tempfile.TemporaryDirectory(prefix="adadp-large-", dir=options.folder) as place:
            write(Path(place), records)
            for kept in (True, False):
                found.append({"records": records, "kept": kept, **in_a_process(Path(place), options.steps, kept=kept)})
                print(found[-1], flush=True)
    (RESULTS / "large.json").write_text(json.dumps(known | {"results": found}, indent=1) + "\n", encoding="utf-8")
    lines = [
        f"`adadp.fit` on two `.npy` files: {COLUMNS} columns of one byte, and labels. Batches of {BATCH:,} on average, "
        f"{options.steps} steps, a network of two layers ({COLUMNS}-32-2), one thread beside the one that reads, "
        "secure randomness. The disk is cold at the start: of files that fit into half of the memory the system reads "
        "megabytes around a row, so that all is in memory soon; of others single pages, all of them from the disk. "
        "Medians in milliseconds of wall-clock time. Rows are gathered while the batch before is computed. Memory is "
        "the most that the process itself held; pages are those of the files that it had touched, which the system "
        f"takes back when it needs them. {known['cpu']}; {versions_text(known)}; "
        f"{known['date']}.",
        "",
        *rows(found),
    ]
    write_section("More records than memory", lines)
    print("\n".join(lines))


def rows(found: list[dict[str, Any]]) -> list[str]:
    """The table of the page."""
    return table(
        (
            "records",
            "read as if",
            "file, GB",
            "before the first step, s",
            "step",
            *PARTS,
            "wait for rows",
            "compute, and all else",
            "memory, MB",
            "pages, MB",
        ),
        [
            (
                f"{each['records']:,}",
                "it fits into memory" if each["kept"] else "it does not",
                f"{each['gigabytes']:.1f}",
                f"{each['seconds_before']:.1f}",
                *(f"{each['ms'][name]:.2f}" for name in ("step", *PARTS, "wait", "compute")),
                f"{each['memory_mb']:.0f}",
                f"{each['pages_mb']:.0f}",
            )
            for each in found
        ],
        left=2,
    )


def write(place: Path, records: int) -> None:
    """Random records in ``place``; the label says whether the first ten columns have a large sum."""
    needed, free = records * (COLUMNS + 1), shutil.disk_usage(place).free
    if needed > free:
        raise SystemExit(f"{needed / 1e9:.0f} GB are needed in {place}, and {free / 1e9:.0f} are free.")
    values, labels = (
        np.lib.format.open_memmap(place / f"{name}.npy", mode="w+", dtype=np.uint8, shape=shape)
        for name, shape in (("values", (records, COLUMNS)), ("labels", (records,)))
    )
    generator = np.random.Generator(np.random.SFC64(1))
    for first in range(0, records, AT_ONCE):
        part = generator.integers(0, 256, size=(min(AT_ONCE, records - first), COLUMNS), dtype=np.uint8)
        values[first : first + len(part)] = part
        labels[first : first + len(part)] = part[:, :10].sum(1) > 1275
    values.flush()
    labels.flush()


def in_a_process(place: Path, steps: int, *, kept: bool) -> dict[str, Any]:
    """What a process of its own measures, once the system has forgotten the files.

    Unless they are ``kept`` in memory from then on, the process takes them for larger than memory.
    """
    for file in place.iterdir():
        with file.open("rb") as opened:
            os.fsync(opened.fileno())
            os.posix_fadvise(opened.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    command = [sys.executable, __file__, "--run", str(place), "--steps", str(steps), *([] if kept else ["--forgotten"])]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    size = sum(file.stat().st_size for file in place.iterdir())
    return {"gigabytes": size / 1e9, **json.loads(done.stdout.splitlines()[-1])}


def trained(place: Path, steps: int) -> dict[str, Any]:
    """Train on the files in ``place``, and say what it took."""
    torch.set_num_threads(1)
    seconds: dict[str, list[float]] = {name: [] for name in (*PARTS, "wait")}
    for name, (owner, function) in PARTS.items():
        setattr(owner, function, timed(getattr(owner, function), seconds[name]))
    Records.batch = timed(Records.batch, seconds["wait"])
    moments, memory, pages = list[float](), list[int](), list[int]()

    def watch(status: Any) -> None:  # noqa: ARG001
        moments.append(time.perf_counter())
        memory.append(kilobytes("RssAnon"))
        pages.append(kilobytes("RssFile"))

    torch.manual_seed(0)
    model = nn.Sequential(Bytes(), nn.Linear(COLUMNS, 32), nn.ReLU(), nn.Linear(32, 2))
    before = time.perf_counter()
    adadp.fit(
        model,
        (place / "values.npy", place / "labels.npy"),
        epsilon=2,
        delta=1e-9,
        batch_size=BATCH,
        steps=steps,
        lr=0.5,
        watch=watch,
    )
    found = {"step": statistics.median(b - a for a, b in pairwise(moments))}
    found |= {name: statistics.median(times) for name, times in seconds.items()}
    found["compute"] = found["step"] - found["draw"] - found["release"] - found["wait"]
    return {
        "ms": {name: 1e3 * value for name, value in found.items()},
        "seconds_before": moments[0] - before,
        "memory_mb": max(memory) / 1024,
        "pages_mb": max(pages) / 1024,
    }


def timed(function: Callable[..., Any], seconds: list[float]) -> Callable[..., Any]:
    """``function``, which adds to ``seconds`` how long it took."""

    def run(*arguments: Any, **settings: Any) -> Any:
        began = time.perf_counter()
        try:
            return function(*arguments, **settings)
        finally:
            seconds.append(time.perf_counter() - began)

    return run


def kilobytes(name: str) -> int:
    """A figure of this process, as Linux tells it."""
    return int(re.search(rf"{name}:\s*(\d+)", Path("/proc/self/status").read_text()).group(1))


if __name__ == "__main__":
    main()
