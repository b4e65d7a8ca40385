"""What the benchmarks share: facts about the machine, peers that may be missing, and the page they write together."""

from __future__ import annotations

import argparse
import json
import platform
import re
import warnings
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime, timezone
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from adadp import __version__

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results"
PAGE = ROOT / "docs" / "benchmarks.md"


def load(name: str) -> Any:
    """The module called ``name``, or None where it is not installed."""
    try:
        return import_module(name)
    except ImportError:
        return None


def machine() -> str:
    """The CPU's name, where the system tells."""
    try:
        match = re.search(r"model name\s*:\s*(.+)", Path("/proc/cpuinfo").read_text(encoding="utf-8"))
    except OSError:
        match = None
    return match.group(1).strip() if match else platform.processor() or platform.machine()


def versions(packages: Iterable[str]) -> dict[str, str]:
    """Of Python, AdaDP and ``packages``."""
    found = {"python": platform.python_version(), "adadp": __version__}
    for name in packages:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = "not installed"
    return found


def facts(packages: Iterable[str]) -> dict[str, Any]:
    """When, where and with what a benchmark ran."""
    return {
        "date": datetime.now(timezone.utc).date().isoformat(),
        "cpu": machine(),
        "versions": versions(packages),
    }


def versions_text(known: dict[str, Any]) -> str:
    return ", ".join(f"{name} {number}" for name, number in known["versions"].items())


def measured(
    name: str, description: str, cases: Sequence[Any], measure: Callable[[Any, int], dict[str, float]], *, rounds: int
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Measure the networks that the command line asks for, at one thread; what was found, also as ``name``.json.

    ``measure`` takes a case and how many rounds, and gives figures by name.
    """
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=rounds)
    parser.add_argument("--models", nargs="*", default=[case.name for case in cases])
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    known = facts(["torch", "numpy"]) | {"rounds": arguments.rounds}
    results = []
    for case in cases:
        if case.name in arguments.models:
            figures = measure(case, arguments.rounds)
            results.append({"model": case.name, "text": case.text, "batch_size": case.batch_size, **figures})
            print(results[-1], flush=True)
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / f"{name}.json").write_text(json.dumps(known | {"results": results}, indent=1) + "\n", encoding="utf-8")
    return known, results


def table(header: tuple[str, ...], rows: Iterable[tuple[str, ...]], *, left: int = 1) -> list[str]:
    """A table in Markdown; the first ``left`` columns are text, the others numbers."""
    rule = "|" + "---|" * left + "---:|" * (len(header) - left)
    return ["| " + " | ".join(header) + " |", rule, *("| " + " | ".join(row) + " |" for row in rows)]


def write_section(title: str, lines: list[str], page: Path = PAGE) -> None:
    """Put ``lines`` under the heading ``title`` of the page, in place of what stood there; other sections stay."""
    head, *sections = re.split(r"(?m)^(?=## )", page.read_text(encoding="utf-8"))
    new = "\n".join([f"## {title}", "", *lines]).rstrip() + "\n"
    kept = [part.rstrip() + "\n" for part in sections]
    titles = [part.split("\n", 1)[0].removeprefix("## ") for part in kept]
    if title in titles:
        kept[titles.index(title)] = new
    else:
        kept.append(new)
    page.write_text("\n".join([head.rstrip() + "\n", *kept]), encoding="utf-8")
