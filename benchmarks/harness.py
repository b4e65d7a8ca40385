"""What the benchmarks share: facts about the machine, peers that may be missing, and the page they write together."""

from __future__ import annotations

import platform
import re
from collections.abc import Iterable
from datetime import datetime, timezone
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

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
