"""What is installed is what was pinned: constraints.txt, the files of digests made from it, and the workflows."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).resolve().parents[1]
LOCKS = ("requirements.lock", ".ci/tools.lock")
UNLOCKED = {"torch"}
"""By version alone: docs/dependencies.md."""
APART = "tabular"
"""An extra for an environment of its own: its scikit-learn is another one."""


def pins() -> dict[str, str]:
    """Name -> version, of constraints.txt."""
    lines = [line for line in (ROOT / "constraints.txt").read_text().splitlines() if not line.startswith("#")]
    found = dict(line.split("==") for line in lines)
    assert len(found) == len(lines)
    return {canonicalize_name(name): version for name, version in found.items()}


def locked(name: str) -> dict[str, tuple[str, str, list[str]]]:
    """Name -> version, marker and digests, of a file of digests; nothing else may stand in it."""
    text = "\n".join(line for line in (ROOT / name).read_text().splitlines() if not line.startswith("#"))
    found = {}
    for entry in re.split(r"\n(?=\S)", text.replace("\\\n", "").strip()):
        head, *digests = entry.split(" --hash=")
        requirement = Requirement(head.strip())
        ((operator, version),) = [(each.operator, each.version) for each in requirement.specifier]
        assert operator == "=="
        assert requirement.url is None
        digests = [each.strip() for each in digests]
        assert digests, head
        assert all(re.fullmatch("sha256:[0-9a-f]{64}", each) for each in digests), head
        found[canonicalize_name(requirement.name)] = version, str(requirement.marker or ""), digests
    return found


@pytest.mark.parametrize("name", LOCKS)
def test_a_file_of_digests_names_no_place(name):
    text = (ROOT / name).read_text()
    assert not re.search(r"://|-url|find-links|trusted-host|@|file:|/", text)
    assert len(locked(name)) > 20


def test_every_pin_is_locked_and_nothing_else():
    wanted, found = pins(), locked("requirements.lock")
    assert {name: found[name][0] for name in wanted if name in found} == {
        name: version for name, version in wanted.items() if name not in UNLOCKED
    }
    others = {name: marker for name, (_, marker, _) in found.items() if name not in wanted}
    assert all(re.search(r"sys_platform == .(win32|emscripten)", marker) for marker in others.values()), others


def test_what_the_project_asks_for_is_pinned_within_its_range():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    extras = project["project"]["optional-dependencies"]
    asked = [*project["build-system"]["requires"], *project["project"]["dependencies"]]
    asked += [each for name, extra in extras.items() if name != APART for each in extra]
    wanted = pins()
    for each in map(Requirement, asked):
        assert wanted[canonicalize_name(each.name)] in each.specifier, each


def test_the_tools_that_are_asked_for_are_locked():
    lines = (ROOT / ".ci" / "tools.in").read_text().splitlines()
    found = locked(".ci/tools.lock")
    for each in map(Requirement, (line for line in lines if not line.startswith("#"))):
        assert found[canonicalize_name(each.name)][0] in each.specifier


@pytest.mark.parametrize("name", ["ci", "release"])
def test_workflows_use_actions_by_commit_and_no_secrets(name):
    text = (ROOT / ".github" / "workflows" / f"{name}.yml").read_text()
    assert "secrets." not in text
    used = re.findall(r"uses: (.*)", text)
    assert used
    assert all(re.fullmatch(r"[\w-]+/[\w-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+", each) for each in used), used
    before, _, last = text.partition("\n  release:\n")
    assert ": write" not in before
    assert ("contents: write" in last) == (name == "release")
    assert not re.search(r"checkout|make |\.ci/", last)  # no code of the project where there are rights
