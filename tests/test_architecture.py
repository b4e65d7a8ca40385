"""House rules that no other test would notice: who imports whom, what starting costs, one version, no local paths."""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import adadp

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "src" / "adadp"
PUBLIC = "adadp"
"""The room of ``adadp/__init__.py``, and what ``from adadp import <public name>`` asks for."""

MAY_IMPORT: dict[str, set[str]] = {
    "errors": set(),
    "checks": {"errors"},
    "events": {"errors", "checks"},
    "schedules": {"errors", "checks"},
    "ledger": {"errors", "checks", "events"},
    "accounting": {"errors", "checks", "events", "schedules"},
    "randomness": {"errors", "checks"},
    "sampling": {"errors", "checks", "events", "randomness"},
    "clipping": {"errors", "checks"},
    "noise": {"errors", "checks", "randomness"},
    "gradients": {"errors", "checks"},
    "input_bound": {"checks"},
    "records": {"errors", "input_bound"},
    "losses": {"errors"},
    "config": {"errors", "checks", "schedules"},
    "runs": {"errors", "checks", "config"},
    "zoo": {"errors", "checks"},
    "owndata": {"errors", "checks", "input_bound"},
    "features": {"errors", "checks", "input_bound", "zoo", "owndata", "runs"},
    "inputs": {"errors", "config", "zoo", "owndata", "features"},
    "recipes": {"features"},
}
"""Room -> rooms of AdaDP it may import. Imports go down only."""

_BELOW_PLAN = {"errors", "checks", "events", "schedules", "accounting"}
MAY_IMPORT["plan"] = _BELOW_PLAN | {"sampling", "clipping"}
MAY_IMPORT["sizing"] = {"plan"}
MAY_IMPORT["methods"] = {"errors", "checks", "clipping", "gradients", "schedules"}
MAY_IMPORT["exact"] = {"errors", "gradients", "methods", "noise", "randomness", "records"}
MAY_IMPORT["step"] = {"exact", "errors", "checks", "plan", "ledger", "records", "randomness", "methods"}
MAY_IMPORT["step"] |= {"sampling", "clipping", "gradients", "noise"}
MAY_IMPORT["report"] = _BELOW_PLAN | {"ledger", "plan", "config", "runs", "features", "methods", PUBLIC}
MAY_IMPORT["audit"] = _BELOW_PLAN | {"noise", "randomness", "plan", "step", "ledger", "clipping", "records", "losses"}
MAY_IMPORT["audit"] |= {"methods", "report", "zoo"}
MAY_IMPORT["studies"] = {"errors", "checks", "randomness", "clipping", "features", "ledger", "losses", "methods"}
MAY_IMPORT["studies"] |= {"gradients", "owndata", "plan", "step", "exact", "zoo", "accounting", "events"}
MAY_IMPORT["train"] = _BELOW_PLAN | {
    "ledger",
    "clipping",
    "records",
    "losses",
    "config",
    "runs",
    "plan",
    "step",
    "report",
    "features",
    "input_bound",
    "methods",
    "noise",
    "randomness",
    "sampling",
}
MAY_IMPORT["launch"] = _BELOW_PLAN | {"config", "features", "inputs", "owndata", "recipes", "runs"}
MAY_IMPORT["launch"] |= {"sampling", "sizing", "train", "zoo", "methods"}
MAY_IMPORT["predict"] = {"errors", "config", "features", "inputs", "owndata", "runs", "zoo"}
MAY_IMPORT["selection"] = _BELOW_PLAN | {"config", "features", "inputs", "launch", "ledger", "methods", "noise"}
MAY_IMPORT["selection"] |= {"gradients", "losses", "plan", "records"}
MAY_IMPORT["selection"] |= {"owndata", "randomness", "report", "runs", "sampling", "train", "zoo"}
MAY_IMPORT["compare"] = _BELOW_PLAN | {
    "config",
    "launch",
    "ledger",
    "methods",
    "owndata",
    "plan",
    "report",
    "runs",
    "train",
}
MAY_IMPORT["compare"] |= {"features", "inputs", "zoo", PUBLIC}
MAY_IMPORT["reproduce"] = {"errors", "checks", "accounting", "compare", "config", "launch", "owndata", "runs"}
MAY_IMPORT["cli"] = {*MAY_IMPORT, PUBLIC}
MAY_IMPORT["__main__"] = {"cli"}
MAY_IMPORT[PUBLIC] = set(MAY_IMPORT)

WITHOUT_TORCH = {"errors", "checks", "events", "schedules", "ledger", "accounting", "config"}
HEAVY = {"torch", "numpy", "scipy"}
SECONDS_TO_START = 0.5


def module_of(path: Path) -> str:
    """``adadp.events.text`` for ``events/text.py``, ``adadp.events.__init__`` for its ``__init__.py``."""
    return ".".join(["adadp", *path.relative_to(PACKAGE).with_suffix("").parts])


def room_of(module: str) -> str:
    """The folder or file of the package ``module`` belongs to."""
    parts = module.split(".")
    return PUBLIC if len(parts) == 1 or parts[1] == "__init__" else parts[1]


def imported_modules(tree: ast.AST, importer: str) -> Iterator[str]:
    """Everything ``importer`` imports anywhere in ``tree``, in functions and for type checking too, as dotted names.

    ``from a import b`` yields ``a.b``: whether ``b`` is a module does not matter to which room it belongs.
    """
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = importer.split(".")[: -node.level] if node.level else []
            module = [*base, *([node.module] if node.module else [])]
            yield from (".".join([*module, alias.name]) for alias in node.names)
        elif isinstance(node, ast.Call) and re.search(r"\b(import_module|__import__)$", ast.unparse(node.func)):
            yield from (arg.value for arg in node.args if isinstance(arg, ast.Constant) and isinstance(arg.value, str))


def imported_room(name: str) -> str | None:
    """The room of AdaDP that importing ``name`` reaches, None outside of AdaDP."""
    package, *rest = name.split(".")
    if package != "adadp":
        return None
    return rest[0] if rest and rest[0] in rooms() else PUBLIC


def sources() -> list[Path]:
    return sorted(PACKAGE.rglob("*.py"))


def rooms() -> set[str]:
    return {room_of(module_of(path)) for path in sources()}


def imports_of(path: Path) -> list[str]:
    return list(imported_modules(ast.parse(path.read_text(encoding="utf-8")), module_of(path)))


@pytest.mark.parametrize(
    ("code", "importer", "expected"),
    [
        ("import torch.nn as nn, os", "adadp.ledger", ["torch.nn", "os"]),
        ("from adadp import checks, errors", "adadp.events.text", ["adadp.checks", "adadp.errors"]),
        ("from . import text", "adadp.events.records", ["adadp.events.text"]),
        ("from .text import describe", "adadp.events.__init__", ["adadp.events.text.describe"]),
        ("from .. import ledger", "adadp.events.records", ["adadp.ledger"]),
        ("from ..ledger.chain import Chain", "adadp.events.records", ["adadp.ledger.chain.Chain"]),
        ("def f():\n    import numpy", "adadp.events.text", ["numpy"]),
        ("if TYPE_CHECKING:\n    from torch import nn", "adadp.events.text", ["torch.nn"]),
        ("importlib.import_module('adadp.cli')", "adadp.events.text", ["adadp.cli"]),
        ("__import__('torch')", "adadp.events.text", ["torch"]),
    ],
)
def test_imports_are_found_wherever_they_hide(code, importer, expected):
    assert list(imported_modules(ast.parse(code), importer)) == expected


def test_rooms_are_told_apart():
    assert room_of("adadp.events.__init__") == room_of("adadp.events.text") == "events"
    assert room_of("adadp.errors") == "errors"
    assert room_of("adadp.__init__") == PUBLIC
    assert imported_room("adadp.events.text.describe") == "events"
    assert imported_room("adadp") == imported_room("adadp.__version__") == PUBLIC
    assert imported_room("torch.nn") is None


def test_every_room_is_in_the_table():
    unlisted = rooms() - set(MAY_IMPORT)
    assert not unlisted, (
        f"No rule says what {sorted(unlisted)} may import: add each room to MAY_IMPORT in {Path(__file__).name}."
    )


@pytest.mark.parametrize("path", sources(), ids=module_of)
def test_imports_go_down_only(path):
    room = room_of(module_of(path))
    allowed = MAY_IMPORT.get(room, set()) | {room}
    wrong = {name for name in imports_of(path) if imported_room(name) not in {*allowed, None}}
    assert not wrong, f"{module_of(path)} imports {sorted(wrong)}; the room {room} may import only {sorted(allowed)}."


@pytest.mark.parametrize("path", sources(), ids=module_of)
def test_accounting_and_what_lies_below_it_never_import_torch(path):
    if room_of(module_of(path)) in WITHOUT_TORCH:
        assert "torch" not in {name.split(".")[0] for name in imports_of(path)}


def test_no_module_is_called_utils():
    assert [path for path in PACKAGE.rglob("*") if path.stem in {"util", "utils"}] == []


def start(code: str) -> subprocess.CompletedProcess[str]:
    """Run ``code`` in a fresh interpreter on this source tree, without a coverage tool that would slow it down."""
    environment = {key: value for key, value in os.environ.items() if not key.startswith("COV")}
    environment["PYTHONPATH"] = str(PACKAGE.parent)
    return subprocess.run(
        [sys.executable, "-c", code], env=environment, cwd=ROOT, capture_output=True, text=True, check=False
    )


IMPORT = "import adadp\n"
HELP = """
from adadp.cli import main
try:
    main(["--help"])
except SystemExit as end:
    assert not end.code, end.code
"""


@pytest.mark.parametrize("code", [IMPORT, HELP], ids=["import", "help"])
def test_starting_imports_nothing_heavy(code):
    done = start(f"{code}import sys\nprint('loaded:', *sorted({HEAVY!r} & set(sys.modules)))")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1].split() == ["loaded:"]
    assert code != HELP or "Usage:" in done.stdout


@pytest.mark.parametrize("code", [IMPORT, HELP], ids=["import", "help"])
def test_starting_is_quick(code):
    """Best of five, of wall and processor time the smaller, so that a busy machine does not fail it."""
    best = float("inf")
    for _ in range(5):
        before = time.perf_counter()
        done = start(f"{code}import time\nprint(time.process_time())")
        wall = time.perf_counter() - before
        assert done.returncode == 0, done.stderr
        best = min(best, wall, float(done.stdout.splitlines()[-1]))
    assert best < SECONDS_TO_START


def test_there_is_one_version():
    declared = re.search(r'^version = "(.+)"$', (ROOT / "pyproject.toml").read_text(encoding="utf-8"), re.MULTILINE)
    assert declared
    assert declared[1] == adadp.__version__


LOCAL_PATH = re.compile(rb"(?<![\w.-])/(root|home|work)/")


@pytest.mark.parametrize("folder", [b"root", b"home", b"work"])
@pytest.mark.parametrize("before", [b"/", b"in /", b'"/', b"~/", b"file:///"])
def test_a_local_path_is_recognised(before, folder):
    assert LOCAL_PATH.search(before + folder + b"/x")


@pytest.mark.parametrize("folder", [b"root", b"home", b"work"])
@pytest.mark.parametrize(
    ("before", "after"), [(b"example.org/", b"/"), (b"src/", b"/x"), (b"./", b"/x"), (b"/", b"s/")]
)
def test_other_paths_are_left_alone(before, folder, after):
    assert not LOCAL_PATH.search(before + folder + after)


def test_no_file_names_a_folder_of_somebodys_machine():
    """Every file git tracks, or would track once added."""
    if shutil.which("git") is None or not (ROOT / ".git").exists():
        pytest.skip("needs the git repository")
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, check=True).stdout.decode().split("\0")
    files = [path for name in listed if name and (path := ROOT / name).is_file() and path != Path(__file__).resolve()]
    assert ROOT / "pyproject.toml" in files
    contents = {path: path.read_bytes() for path in files}
    text = {path: content for path, content in contents.items() if b"\0" not in content}
    assert [str(path.relative_to(ROOT)) for path, content in text.items() if LOCAL_PATH.search(content)] == []
