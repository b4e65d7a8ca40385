"""The table of settings in docs/training.md, made from their declarations. Run this file to write it."""

from __future__ import annotations

from pathlib import Path

from adadp.app.config import GROUPS, TrainConfig
from adadp.app.settings import settings_of

PAGE = Path(__file__).resolve().parents[1] / "docs" / "training.md"
START, END = "<!-- settings -->\n", "<!-- end of settings -->\n"


def table() -> str:
    lines = ["| setting | | default |", "|---|---|---|"]
    for group in GROUPS:
        lines.append(f"| **{group}** | | |")
        found = [each for each in settings_of(TrainConfig).values() if each.group == group]
        for each in found:
            choices = f" {', '.join(each.choices[:-1])} or {each.choices[-1]}." if each.choices else ""
            lines.append(f"| `{each.name}` | {each.help}{choices} | {each.unset} |")
    return "\n".join(lines) + "\n"


def page() -> str:
    """The page with the table as it must be."""
    before, rest = PAGE.read_text(encoding="utf-8").split(START)
    return before + START + table() + END + rest.split(END)[1]


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
