"""Time of one iteration of every method beside DP-SGD's, in one run: Table II of Xu et al. 2020.

    python benchmarks/method_time.py [--rounds N]

Measures by ``adadp study time``, which says how (src/adadp/studies/timing.py), and writes benchmarks/results and the
section of docs/benchmarks.md. Nothing is asserted. The machine should have nothing else to do.
"""

from __future__ import annotations

import argparse
import json

from harness import RESULTS, facts, table, versions_text, write_section

from adadp.lab.studies.timing import CASES, TimeStudy, study_time


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=25)
    options = parser.parse_args()
    known = facts(("torch",))
    found = study_time(rounds=options.rounds)
    (RESULTS / "method_time.json").write_text(
        json.dumps({**known, "ms": by_title(found)}, indent=1) + "\n", encoding="utf-8"
    )
    lines = [
        f"One thread, CPU time, median of {found.rounds} rounds, methods interleaved; {known['cpu']}; "
        f"{versions_text(known)}; {known['date']}. Milliseconds of a step, and in brackets how many times DP-SGD's.",
        "",
        *rows(found),
    ]
    write_section("Time per iteration of every method", lines)
    print("\n".join(lines))


def by_title(found: TimeStudy) -> dict[str, dict[str, float]]:
    """Title of a case to method to milliseconds of a step."""
    return {each.case.title: {text: each.ms[name] for name, text in found.methods.items()} for each in found.cases}


def rows(found: TimeStudy) -> list[str]:
    """The table of the page."""
    printed = found.cases[0].printed_over_dpsgd
    return table(
        ("method", *(case.title for case in CASES.values()), "printed (MNIST)"),
        [
            (
                f"`{text}`",
                *(f"{each.ms[name]:.1f} ({each.over_dpsgd[name]:.2f})" for each in found.cases),
                f"{printed[name]:.2g}" if name in printed and printed[name] != 1 else "",
            )
            for name, text in found.methods.items()
        ],
    )


if __name__ == "__main__":
    main()
