"""Which attack catches which broken twin, and after how many runs: the table in docs/audit.md.

    python benchmarks/audits.py                        measures and prints it
    python benchmarks/audits.py --write docs/audit.md  puts it into the page too

Every attack makes 320 runs on each side of the twin; the number in a cell is the smallest of 20, 40, 80, ... runs on
a side whose scores refute what the runs have charged.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import torch

from adadp.accounting import accountant

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests" / "app" / "audit"))

from broken_twins import TWINS, Twin  # noqa: E402 - they are the twins of the tests

START, END = "<!-- twins -->\n", "<!-- end of twins -->\n"
ATTACKS = ("dirac", "canary", "loss")


def cell(twin: Twin, attack: str, most: int) -> str:
    """The least number of runs that refutes, as text."""
    if twin.broken_dirac is not None and attack != "dirac":
        return "cannot be stated"
    found = twin.run(attack, trials=most)
    claimed = accountant("pld").epsilon(found.charged, twin.delta).epsilon
    trials = 20
    while trials <= most:
        if twin.bound(found, trials) > claimed:
            return f"caught, {trials} runs"
        trials *= 2
    return "not caught"


def main() -> None:
    """Measure the table, and write it where that is asked."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--runs", type=int, default=320, help="Runs on each side at most.")
    parser.add_argument("--write", type=Path, help="Page to put the table into.")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    lines = [f"| twin | delta | {' | '.join(ATTACKS)} |", "|---|---|---|---|---|"]
    for twin in TWINS:
        cells = [cell(twin, attack, asked.runs) for attack in ATTACKS]
        lines.append(f"| {twin.name} | {twin.delta:g} | {' | '.join(cells)} |")
        print(lines[-1], flush=True)
    if asked.write is not None:
        before, rest = asked.write.read_text(encoding="utf-8").split(START)
        table = "\n".join(lines) + "\n"
        asked.write.write_text(before + START + table + END + rest.split(END)[1], encoding="utf-8")


if __name__ == "__main__":
    main()
