"""Our results beside those of the public leaderboard of private machine learning.

`make results` runs it after benchmarks/accuracy.py. It writes a table in docs/results.md, and
benchmarks/results/leaderboard.yml with our rows as that leaderboard writes its own.

The entries of others are those of its files ``_data`` (Private-MachineLearning.github.io, as of 2024-06-12): all of
MNIST, Fashion-MNIST and CIFAR-10 that state an accuracy at a positive epsilon. All have delta 1e-5.
"""

from __future__ import annotations

import json
from itertools import groupby

from accuracy import PAGE, RESULTS, Result, features_of, measured_so_far

SUBMISSION = RESULTS.parent / "leaderboard.yml"
BEGIN, END = "<!-- leaderboard -->", "<!-- end of leaderboard -->"
DELTA = 1e-5
NAMES = {"mnist": "MNIST", "fashion-mnist": "Fashion-MNIST", "cifar10": "CIFAR-10"}

OTHERS = """
mnist; ; Tramer and Boneh 2021; ScatterNet, linear; 1.2 98.1, 2 98.5, 2.32 98.6, 2.5 98.7, 2.93 98.7
mnist; ; Tramer and Boneh 2021; ScatterNet, CNN; 1.2 97.8, 2 98.4, 2.32 98.5, 2.5 98.6, 2.93 98.7
fashion-mnist; ; Tramer and Boneh 2021; ScatterNet, linear; 2.7 89.5, 3 89.7
fashion-mnist; ; Tramer and Boneh 2021; ScatterNet, CNN; 2.7 88.7, 3 89.0
cifar10; ; Tramer and Boneh 2021; ScatterNet, linear; 3 67.0
cifar10; ; Tramer and Boneh 2021; ScatterNet, CNN; 3 69.3
cifar10; ; De et al. 2022; Wide-ResNet; 1 56.8, 2 65.9, 4 73.5, 8 81.4
cifar10; ImageNet-1K; De et al. 2022; Wide-ResNet; 1 94.7, 2 95.4, 4 96.1, 8 96.7
"""
"""Data; public images; whose; network; epsilon and accuracy in percent, one or several."""


def main() -> None:
    ours = best(measured_so_far(RESULTS))
    text = PAGE.read_text(encoding="utf-8")
    before, _, rest = text.partition(BEGIN)
    PAGE.write_text(f"{before}{BEGIN}\n{table(ours)}\n{END}{rest.partition(END)[2]}", encoding="utf-8")
    SUBMISSION.write_text(submission(ours), encoding="utf-8")


def best(results: dict[str, Result]) -> list[Result]:
    """Of every data set, public images and epsilon of the leaderboard's delta, the best of our certified rows."""
    rows = [each for each in results.values() if each["private"] and each["epsilon"] and each["delta"] == DELTA]
    rows = [each for each in rows if each["data"] in NAMES]
    rows.sort(key=lambda each: (list(NAMES).index(each["data"]), each["public"], each["epsilon"], -each["mean"]))
    return [next(same) for _, same in groupby(rows, key=lambda each: (each["data"], each["public"], each["epsilon"]))]


def table(ours: list[Result]) -> str:
    rows = []
    for line in OTHERS.strip().splitlines():
        data, public, whose, network, claims = (cell.strip() for cell in line.split(";"))
        for claim in claims.split(","):
            epsilon, accuracy = claim.split()
            rows.append((data, public, float(epsilon), accuracy, network, whose, ""))
    for each in ours:
        accuracy = f"**{100 * each['mean']:.2f} ± {100 * each['spread']:.2f}**"
        whose, seconds = f"AdaDP, {each['method']}", f"{each['seconds']:.0f}"
        rows.append((each["data"], each["public"], each["epsilon"], accuracy, network_of(each), whose, seconds))
    lines = [
        "| data | public images | epsilon | accuracy, % | network | by | seconds |",
        "|---|---|---|---|---|---|---|",
    ]
    for data, public, budget, *cells in sorted(rows, key=lambda row: (list(NAMES).index(row[0]), row[1], row[2])):
        lines.append("| " + " | ".join([NAMES[data], public or "none", f"{budget:g}", *cells]) + " |")
    return "\n".join(lines)


def network_of(result: Result) -> str:
    return f"{features_of(result)}, {result['model']}"


def submission(ours: list[Result]) -> str:
    """Our rows in the leaderboard's own format, a file for each of its lists."""
    parts = []
    for (data, public), rows in groupby(ours, key=lambda each: (each["data"], each["public"])):
        parts.append(f"# {NAMES[data]}, {public or 'no public data'}\n-\n  name: AdaDP 0.1.0\n  claims:\n")
        for each in rows:
            claim = {
                **({"public_data": public} if public else {}),
                "model": network_of(each),
                "epsilon": f"{each['epsilon']:g}",
                "delta": f"{each['delta']:g}",
                "private_accuracy": f"{100 * each['mean']:.2f}%",
                "dp_accountant": "AdaDP PLD",
            }
            text = "".join(f"      {name}: {json.dumps(value)}\n" for name, value in claim.items())
            parts.append(f"    - {text.lstrip()}")
    return "".join(parts)


if __name__ == "__main__":
    main()
