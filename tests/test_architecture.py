"""House rules that no other test would notice: who imports whom, what starting costs, one version, no local paths."""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

import adadp

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "src" / "adadp"

FLOORS = ("core", "app", "lab")
"""From the ground up. Imports go down; ``__init__.py``, ``__main__.py`` and ``testing.py`` are doors to all floors."""

BESIDE_APP = ("integrations", "sklearn")
"""Parts of the application that users import from, beside ``app``."""

CORE: dict[str, set[str]] = {
    "errors": set(),
    "files": set(),
    "checks": {"errors"},
    "disk": set(),
    "registry": {"errors", "checks"},
    "events": {"errors", "checks"},
    "schedules": {"errors", "checks"},
    "ledger": {"errors", "checks", "disk", "files", "registry", "events"},
    "accounting": {"errors", "checks", "events", "registry"},
    "certificate": {"errors", "checks", "files", "registry", "events", "accounting", "ledger"},
    "normals": {"registry"},
    "randomness": {"errors", "checks", "normals"},
    "sampling": {"errors", "checks", "registry", "events", "randomness", "ranks"},
    "clipping": {"errors", "checks"},
    "ranks": {"errors"},
    "sharding": set(),
    "noise": {"errors", "checks", "normals", "randomness", "ranks", "sharding"},
    "gradients": {"errors", "checks", "registry", "sharding"},
    "input_bound": {"checks"},
    "records": {"errors", "input_bound", "registry"},
    "methods": {"errors", "checks", "clipping", "gradients", "schedules"},
    "plan": {"errors", "checks", "events", "schedules", "accounting", "sampling", "clipping"},
    "release": {"errors", "events", "ledger", "noise", "randomness", "ranks"},
    "joining": {"errors", "randomness", "ranks", "records", "sharding"},
    "step": {
        "registry",
        "joining",
        "errors",
        "checks",
        "plan",
        "ledger",
        "records",
        "randomness",
        "ranks",
        "methods",
        "sampling",
        "clipping",
        "gradients",
        "events",
        "release",
    },
}
"""Room of the core -> rooms of the core it may import."""

WITHOUT_TORCH = {"errors", "checks", "files", "registry", "events", "schedules", "ledger", "accounting", "certificate"}
DOORS = {"__init__", "__main__", "testing"}
HEAVY = {"torch", "numpy", "scipy"}
SECONDS_TO_START = 0.5


def module_of(path: Path) -> str:
    """``adadp.events.codec`` for ``events/codec.py``, ``adadp.events.__init__`` for its ``__init__.py``."""
    return ".".join(["adadp", *path.relative_to(PACKAGE).with_suffix("").parts])


def floor_of(module: str) -> str:
    """The floor of a module of AdaDP; one of the core has no folder of its own."""
    parts = module.split(".")
    if len(parts) > 1 and parts[1] in BESIDE_APP:
        return "app"
    return parts[1] if len(parts) > 1 and parts[1] in FLOORS else "core"


def room_of(module: str) -> str:
    """The file or folder of its floor that ``module`` belongs to."""
    parts = module.split(".")
    below = parts[2:] if floor_of(module) != "core" else parts[1:]
    return below[0] if below else "__init__"


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


def sources() -> list[Path]:
    return [path for path in sorted(PACKAGE.rglob("*.py")) if path.parent != PACKAGE or path.stem not in DOORS]


def imports_of(path: Path) -> list[str]:
    """What a file imports, of AdaDP as the module it reaches."""
    return list(imported_modules(ast.parse(path.read_text(encoding="utf-8")), module_of(path)))


def ours(names: Iterable[str]) -> list[str]:
    return [name for name in names if name.split(".")[0] == "adadp" and name != "adadp.__version__"]


@pytest.mark.parametrize(
    ("code", "importer", "expected"),
    [
        ("import torch.nn as nn, os", "adadp.ledger", ["torch.nn", "os"]),
        ("from adadp import checks, errors", "adadp.events.codec", ["adadp.checks", "adadp.errors"]),
        ("from . import text", "adadp.events.kinds", ["adadp.events.text"]),
        ("from .text import describe", "adadp.events.__init__", ["adadp.events.text.describe"]),
        ("from .. import ledger", "adadp.events.kinds", ["adadp.ledger"]),
        ("from ..ledger.chain import Chain", "adadp.events.kinds", ["adadp.ledger.chain.Chain"]),
        ("def f():\n    import numpy", "adadp.events.codec", ["numpy"]),
        ("if TYPE_CHECKING:\n    from torch import nn", "adadp.events.codec", ["torch.nn"]),
        ("importlib.import_module('adadp.app.cli')", "adadp.events.codec", ["adadp.app.cli"]),
        ("__import__('torch')", "adadp.events.codec", ["torch"]),
    ],
)
def test_imports_are_found_wherever_they_hide(code, importer, expected):
    assert list(imported_modules(ast.parse(code), importer)) == expected


def test_floors_and_rooms_are_told_apart():
    assert floor_of("adadp.events.codec") == floor_of("adadp.errors") == floor_of("adadp") == "core"
    assert (floor_of("adadp.app.config"), floor_of("adadp.lab.compare.spec")) == ("app", "lab")
    assert floor_of("adadp.integrations.lightning") == floor_of("adadp.sklearn") == "app"
    assert room_of("adadp.events.__init__") == room_of("adadp.events.codec.describe") == "events"
    assert (room_of("adadp.app.cli.train"), room_of("adadp.app")) == ("cli", "__init__")


@pytest.mark.parametrize("path", sources(), ids=module_of)
def test_floors_import_only_what_lies_below(path):
    level = FLOORS.index(floor_of(module_of(path)))
    wrong = {name for name in ours(imports_of(path)) if FLOORS.index(floor_of(name)) > level}
    assert not wrong, f"{module_of(path)} imports {sorted(wrong)}, which lies above it."


def core() -> list[Path]:
    return [path for path in sources() if floor_of(module_of(path)) == "core"]


def test_the_core_can_be_read_in_a_day():
    lines = sum(1 for path in core() for line in path.read_text(encoding="utf-8").splitlines() if line.strip())
    assert lines <= 10_000, f"The core has {lines} lines that are not blank."


def test_every_room_of_the_core_is_in_the_table():
    assert {room_of(module_of(path)) for path in core()} == set(CORE)


@pytest.mark.parametrize("path", core(), ids=module_of)
def test_rooms_of_the_core_import_what_the_table_says(path):
    room = room_of(module_of(path))
    wrong = {name for name in ours(imports_of(path)) if room_of(name) not in CORE[room] | {room}}
    assert not wrong, f"{module_of(path)} imports {sorted(wrong)}; {room} may import only {sorted(CORE[room])}."


@pytest.mark.parametrize("path", core(), ids=module_of)
def test_accounting_and_what_lies_below_it_never_import_torch(path):
    if room_of(module_of(path)) in WITHOUT_TORCH:
        assert "torch" not in {name.split(".")[0] for name in imports_of(path)}


@pytest.mark.parametrize("path", sources(), ids=module_of)
def test_only_the_crossing_imports_noise(path):
    """Whoever could draw noise by himself could release what nobody has paid for."""
    if module_of(path) != "adadp.release" and room_of(module_of(path)) != "noise":
        assert not [name for name in imports_of(path) if name.startswith("adadp.noise")]


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
from adadp.app.cli import main
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
