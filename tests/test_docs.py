"""The documentation can be used as printed: names in its code, commands and options, links and anchors.

Nothing is trained or run here: a block that passes may still fail for a reason that only running it shows.
"""

from __future__ import annotations

import ast
import builtins
import re
import shlex
import symtable
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from adadp.app.cli import main

ROOT = Path(__file__).resolve().parents[1]
ROOT_PAGES = [ROOT / name for name in ("README.md", "ARCHITECTURE.md", "CONTRIBUTING.md")]
PAGES = ROOT_PAGES + sorted(ROOT.glob("docs/**/*.md"))
SHELL = ("", "sh", "bash", "console")
OPTIONS_ELSEWHERE = {"--strict", "--models"}
"""Options in the text that belong to other programs: mypy, benchmarks/step.py."""

every_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))


def blocks(text: str) -> Iterator[tuple[str, range, str]]:
    """Code between fences, or indented by four spaces after an empty line: its language, its lines, the code."""
    lines = [*text.splitlines(), ""]
    place = 0
    while place < len(lines):
        start = place
        if lines[place].startswith("```"):
            place = lines.index("```", place + 1) + 1
            yield lines[start][3:].strip(), range(start, place), "\n".join(lines[start + 1 : place - 1])
        elif lines[place].startswith("    ") and (place == 0 or not lines[place - 1]):
            while lines[place].startswith("    "):
                place += 1
            yield "", range(start, place), "\n".join(line[4:] for line in lines[start:place])
        else:
            place += 1


def prose(text: str) -> str:
    """The page without its blocks of code."""
    code = {place for _, places, _ in blocks(text) for place in places}
    return "\n".join(line for place, line in enumerate(text.splitlines()) if place not in code)


def undefined(code: str, known: set[str]) -> set[str]:
    """Names that ``code`` uses and nobody has made, statement by statement. What it makes is added to ``known``."""
    missing = set()
    for statement in ast.parse(code).body:
        top = symtable.symtable(ast.unparse(statement), "block", "exec")
        known |= {each.get_name() for each in top.get_symbols() if each.is_assigned() or each.is_imported()}
        missing |= {name for name in _asked_for(top, top) if name not in known and not hasattr(builtins, name)}
    return missing


def _asked_for(table: symtable.SymbolTable, top: symtable.SymbolTable) -> Iterator[str]:
    for each in table.get_symbols():
        if each.is_referenced() and (table is top or each.is_global()):
            yield each.get_name()
    for child in table.get_children():
        yield from _asked_for(child, top)


def absent(code: str) -> Iterator[str]:
    """What ``code`` wants of AdaDP that is not there, by ``from adadp.a import b`` or ``adadp.b``."""
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.ImportFrom) and str(node.module).split(".")[0] == "adadp":
            wanted = [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "adadp":
            wanted = [f"adadp.{node.attr}"]
        else:
            continue
        yield from (name for name in wanted if not _is_there(name))


def _is_there(name: str) -> bool:
    """Whether the sources have it: a module, or a name at the top of one. Importing them would take seconds."""
    if _source(name) is not None:
        return True
    module, _, last = name.rpartition(".")
    source = _source(module)
    return source is not None and last in symtable.symtable(source.read_text(), module, "exec").get_identifiers()


def _source(module: str) -> Path | None:
    path = ROOT / "src" / Path(*module.split("."))
    return next((each for each in (path.with_suffix(".py"), path / "__init__.py") if each.exists()), None)


def commands(text: str) -> Iterator[list[str]]:
    """The words after ``adadp`` of every command in a block, up to a redirection or to dots for further options."""
    for language, _, code in blocks(text):
        if language in SHELL:
            for line in re.sub(r"\\\n\s*", " ", code).splitlines():
                if line.removeprefix("$ ").startswith("adadp "):
                    words = shlex.split(line.removeprefix("$ "), comments=True)[1:]
                    yield words[: next((at for at, word in enumerate(words) if word in (">", "|", "...")), len(words))]


def command_of(words: list[str]) -> tuple[click.Command, list[str]]:
    """The command that ``words`` begin with, and the other words."""
    command: click.Command = main
    while isinstance(command, click.Group) and words and not words[0].startswith("-"):
        if words[0] not in command.commands:
            raise click.UsageError(f"No such command: {words[0]}")
        command, words = command.commands[words[0]], words[1:]
    return command, words


def refusal(words: list[str]) -> str | None:
    """What click has against a command line: no such command or option, a missing value or one of the wrong kind."""
    try:
        command, others = command_of(words)
        command.make_context(str(command.name), list(others))
    except click.UsageError as error:
        return f"adadp {' '.join(words)}: {error.format_message()}"
    except click.exceptions.Exit:  # --help
        return None
    return None


def options_of(command: click.Command) -> set[str]:
    """Those of the command and of all commands in it."""
    own = {name for each in command.params for name in (*each.opts, *each.secondary_opts)}
    inner = command.commands.values() if isinstance(command, click.Group) else ()
    return own.union({"--help"}, *map(options_of, inner))


def unknown_options(text: str) -> Iterator[str]:
    """Options between backticks that no command has; after the name of a command, that this one does not have."""
    for quoted in re.findall(r"`([^`]+)`", prose(text)):
        options = set(re.findall(r"(?<![\w-])--[a-z][a-z-]*", quoted)) - OPTIONS_ELSEWHERE
        command = main
        if re.match(r"adadp [a-z]", quoted):
            command, _ = command_of(quoted.split()[1:])
        yield from sorted(options - options_of(command))


def anchors(text: str) -> Iterator[str]:
    """The names that headings get: small letters, no punctuation, dashes for spaces, a number from the second on."""
    seen: list[str] = []
    for heading in re.findall(r"^#+ +(.*?)\s*$", prose(text), re.MULTILINE):
        words = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading).lower()
        name = re.sub(r"[^\w\- ]", "", words).replace(" ", "-")
        yield f"{name}-{seen.count(name)}" if name in seen else name
        seen.append(name)


def broken_links(page: Path) -> Iterator[str]:
    text = re.sub(r"`[^`]*`", "", prose(page.read_text()))
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        path, _, anchor = target.partition("#")
        file = page.parent / path if path else page
        if re.match(r"[a-z]+:", target):
            continue
        if not file.exists() or (anchor and anchor not in anchors(file.read_text())):
            yield target


def missing_files(page: Path) -> Iterator[str]:
    """Files and folders that a page about the sources names and that are not there.

    A name counts from the root, from src/adadp, or from the room (a folder of src/adadp) that the heading
    ``## Inside ROOM`` or the beginning of the line names. Capitals stand for what a reader fills in.
    """
    rooms: list[str] = []
    for line in page.read_text().splitlines():
        if line.startswith("#"):
            rooms = re.findall(r"[a-z/]+", line.partition("Inside ")[2])
        here = [*rooms, *re.findall(r"^(?:\| `|[0-9]\. .* in `)([a-z/]+)/", line)]
        bases = [ROOT, ROOT / "src/adadp", *(ROOT / "src/adadp" / room for room in here)]
        for name in re.findall(r"[\w*./][\w*./-]*\.(?:py|md|toml)\b|(?<=`)[a-z_/]+/(?=`)", line):
            if not re.search("[A-Z]{2}", name.rpartition("/")[0]) and not any(any(base.glob(name)) for base in bases):
                yield name


def names_in_the_code() -> set[str]:
    """Every name that the sources define, assign or take, and the names with dashes that users write."""
    found: set[str] = set()
    for source in (ROOT / "src").rglob("*.py"):
        for node in ast.walk(ast.parse(source.read_text())):
            if isinstance(node, ast.FunctionDef | ast.ClassDef):
                found.add(node.name)
            elif isinstance(node, ast.arg):
                found.add(node.arg)
            elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                found.add(node.id)
            elif isinstance(node, ast.Constant) and re.fullmatch(r"\w+(-\w+)+", str(node.value)):
                found.add(str(node.value))
    return found


def rows_without_a_name(text: str, known: set[str]) -> Iterator[str]:
    """Symbols of a page of notation whose second column names nothing that the code has."""
    for line in text.splitlines():
        cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
        if len(cells) != 4 or cells[0] == "symbol" or set(line) <= set("|- "):
            continue
        quoted = " ".join(re.findall(r"`([^`]+)`", cells[1]))
        if not quoted or not set(re.findall(r"[A-Za-z_][\w-]*", quoted)) <= known:
            yield cells[0]


@every_page
def test_code_uses_names_that_exist(page):
    known: set[str] = set()
    for language, lines, code in blocks(page.read_text()):
        assert language in (*SHELL, "python", "toml")
        if language == "python":
            missing = [*sorted(undefined(code, known)), *absent(code)]
            assert not missing, f"{page.name}, line {lines.start + 1}"


@every_page
def test_commands_exist_and_take_what_they_are_given(page):
    assert [said for said in map(refusal, commands(page.read_text())) if said] == []


@every_page
def test_options_in_the_text_exist(page):
    assert list(unknown_options(page.read_text())) == []


@every_page
def test_links_lead_somewhere(page):
    assert list(broken_links(page)) == []


def test_the_page_on_training_has_every_method_of_the_command():
    (option,) = (each for each in main.commands["train"].params if each.name == "method")
    names = re.findall(r"[a-z][a-z-]+", option.help.partition(":")[2].partition(".")[0])
    part = (ROOT / "docs" / "training.md").read_text().partition("`--method` is")[2].partition("`--batch-size")[0]
    assert "dpsgd" in names
    assert set(names) <= set(re.findall(r"`([a-z-]+)`", part))


@pytest.mark.parametrize("name", ["ARCHITECTURE.md", "CONTRIBUTING.md"])
def test_files_that_are_named_exist(name):
    assert list(missing_files(ROOT / name)) == []


def test_every_symbol_has_a_name_in_the_code():
    assert list(rows_without_a_name((ROOT / "docs" / "notation.md").read_text(), names_in_the_code())) == []


def test_there_is_something_to_check():
    texts = [page.read_text() for page in PAGES]
    assert sum(language == "python" for text in texts for language, _, _ in blocks(text)) > 20
    assert sum(1 for text in texts for _ in commands(text)) > 100
    assert sum(len(re.findall(r"\]\(", prose(text))) for text in texts) > 200


@pytest.mark.parametrize(
    ("code", "missing"),
    [
        ("print(x)", {"x"}),
        ("print(x)\nx = 1", {"x"}),
        ("x = 1\nprint([x + y for y in range(x)])", set()),
        ("def f(a):\n    return a + b", {"b"}),
        ("import a.b, c as d\na, d, c", {"c"}),
        ("with open('f') as file:\n    f = lambda z: (z, file, earlier, never)", {"never"}),
    ],
)
def test_names_nobody_made_are_seen(code, missing):
    assert undefined(code, {"earlier"}) == missing


def test_code_that_cannot_be_read_is_seen():
    with pytest.raises(SyntaxError):
        undefined("fit(a, b=1, ...)", set())


def test_names_adadp_does_not_have_are_seen():
    code = "from adadp.app.zoo import load, unload\nfrom adadp.nothing import a\nfrom adadp import app, fit\n"
    code += "adadp.Plan, adadp.plam"
    assert set(absent(code)) == {"adadp.app.zoo.unload", "adadp.nothing.a", "adadp.plam"}


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("adadp tain --data cancer", "No such command"),
        ("adadp data fetchh mnist", "No such command"),
        ("adadp train --datum cancer", "No such option"),
        ("adadp train --epsilon two", "not a valid float"),
        ("adadp train --data cancer \\\n  --optimizer adamant # a comment", "is not one of"),
        ("adadp verify", "Missing argument"),
        ("adadp train --data npz:f.npz ...", None),
        ("$ adadp data schema people.csv > people.toml", None),
        ("adadp train --help", None),
    ],
)
def test_commands_that_cannot_be_given_are_seen(line, said):
    for page in (f"```\n{line}\n```", "\n\n" + "\n".join(f"    {part}" for part in line.splitlines())):
        (words,) = commands(page)
        found = refusal(words)
        assert found is None if said is None else said in str(found)


def test_options_nobody_has_are_seen():
    assert list(unknown_options("`--epsilon 2`, `adadp train --epsilom 2` and `adadp verify --epsilon 2`")) == [
        "--epsilom",
        "--epsilon",
    ]


def test_files_that_are_not_there_are_seen(tmp_path):
    page = tmp_path / "page.md"
    page.write_text(
        "`step.py`, docs/notation.md, experiments/PAPER/ITEM.toml, `src/`\n| `ledger/` | `writer.py`, `gone.py` |\n"
        "`writer.py` moved/away.toml `nowhere/`\n## Inside app/features\npca.py  gone.py; docs/*.md\n"
    )
    assert list(missing_files(page)) == ["gone.py", "writer.py", "moved/away.toml", "nowhere/", "gone.py"]


def test_symbols_without_a_name_are_seen():
    page = "| symbol | in the code | meaning | elsewhere |\n|---|---|---|---|\n| q | `fraction` | a | \\|b\\| |\n"
    page += "| N | - | a | |\n| L | `batches` of `dp-sgd` | a | |\n| t | `fraction_at(step)` | a | |\n"
    assert list(rows_without_a_name(page, {"fraction", "step"})) == ["N", "L", "t"]


def test_broken_links_are_seen(tmp_path):
    page = tmp_path / "page.md"
    page.write_text(
        "# The `one`, [two](http://a.b)!\n\n## Same\n\n## Same\n\n```\n# no heading\n```\n\n"
        "[a](#the-one-two) [b](page.md#same-1) [c](#same) [d](https://a.b/c) `[e](code.md)`\n"
        "[f](#same-2) [g](gone.md) [h](page.md#no-heading)\n"
    )
    assert list(broken_links(page)) == ["#same-2", "gone.md", "page.md#no-heading"]
