"""The tables and figures of the papers as files: experiments/<paper>/<item>.toml, what is run and what was printed.

title, where    what it is, and where in the paper
kind            "train": runs of `adadp train`; "smallest": the epsilon an accuracy costs; "command": any command
                whose answer is JSON
seeds           how many seeds (0, 1, ...) every run is made with
why             why our figures are not the printed ones, if that is known
[base]          settings of `adadp train` that all cases share
[[case]]        ``name``; ``set``: its settings over those of the base; ``printed``, ``tolerance``: the paper's figure
                and how far from it ours may be; ``printed_epochs``; ``beside``: the case it is compared with, seed
                by seed (without it the first one); ``x``: its place on the axis of a sweep
[[claim]]       what the paper says without a number for it, see :class:`Claim`
[quick]         for `--quick`: ``cases`` (without it the first two), ``set`` (settings over all others)

picture         "bars"; "curves", accuracy by epoch; or for a sweep what ``x`` of the cases is;  log: that axis
marks           of the kind smallest: the accuracies; a case has then ``epsilons``, a grid, or ``along``, an
                accountant, by which the epsilon of every epoch of one long run is read off; ``same_as``: a case
                whose run is read off by another accountant here
run, read       of the kind command: the command without `adadp`, and where in its JSON the figure is;  quick: a
                shorter one for `--quick`
[[draw]]        ``run``: a command that draws, with {file} or {out} for where to;  ``take``: a file it leaves in {out}

an unknown key, kind or field; two cases of one name          ``InputError`` that names the file
a case or claim that names a case that is not there           ``InputError``
``same_as`` without ``along``, or of a case that has no run   ``InputError``: it would be left out
"""

from __future__ import annotations

import re
import sys
import sysconfig
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from adadp.app.config import TrainConfig
from adadp.app.owndata import is_own
from adadp.errors import InputError, within

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

TRAIN, SMALLEST, COMMAND = "train", "smallest", "command"
BARS, CURVES = "bars", "curves"
_PLAIN = ("where", "kind", "seeds", "base", "picture", "log")
"""Keys of a file that are fields of an :class:`Item` as they stand."""


@dataclass(frozen=True)
class Case:
    """One row of a table, one point or one line of a figure."""

    name: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    printed: tuple[float, ...] = ()
    """One figure, or one for every mark."""
    tolerance: float | None = None
    printed_epochs: int | None = None
    beside: str | None = None
    x: float | None = None
    epsilons: tuple[float, ...] = ()
    along: str | None = None
    same_as: str | None = None
    """Another case whose run is its own, read off by another accountant: it is not made twice."""
    run: str | None = None
    quick: str | None = None
    read: str | None = None

    def grid(self, *, quick: bool) -> tuple[float, ...]:
        """The epsilons that are tried; quickly, only its two ends."""
        return (self.epsilons[0], self.epsilons[-1]) if quick else self.epsilons


@dataclass(frozen=True)
class Claim:
    """What a paper says about its cases, in a form that can be checked on means over seeds.

    ``of`` and ``over``   the first is better than the second; by ``printed`` points, give or take ``tolerance``
    ``best``              the case with the highest mean is one of these
    ``above``             every case reaches this accuracy
    """

    says: str
    of: str | None = None
    over: str | None = None
    printed: float | None = None
    tolerance: float | None = None
    best: tuple[str, ...] = ()
    above: float | None = None
    ours: bool = False
    """Not the paper's: shown, and not counted among what was printed."""


@dataclass(frozen=True)
class Drawing:
    """A command that draws a picture of the item, and the one that does so in a minute or two, if it is another."""

    run: str
    take: str | None = None
    quick: str | None = None

    @property
    def asks(self) -> str:
        """The command without where it draws to: what a case runs that asks for the figures of the same picture."""
        return re.sub(r" --\S+ \{(file|out)\}", "", self.run)


@dataclass(frozen=True)
class Quick:
    """What of an item is run in a minute or two."""

    cases: tuple[str, ...] = ()
    settings: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Item:
    """One table or figure."""

    paper: str
    name: str
    title: str
    where: str = ""
    kind: str = TRAIN
    seeds: int = 1
    cases: tuple[Case, ...] = ()
    base: Mapping[str, Any] = field(default_factory=dict)
    claims: tuple[Claim, ...] = ()
    drawings: tuple[Drawing, ...] = ()
    quick: Quick = field(default_factory=Quick)
    marks: tuple[float, ...] = ()
    picture: str | None = None
    log: bool = False
    why: str = ""

    @property
    def path(self) -> str:
        """As it is asked for: ``xu-2020/table1``."""
        return f"{self.paper}/{self.name}"

    def runs(self, *, quick: bool = False) -> dict[str, TrainConfig]:
        """Every configuration that is trained, under the name its results are kept by."""
        found = {}
        for case in self.chosen(quick=quick):
            if case.same_as is not None or self.kind == COMMAND:
                continue
            settings = {**self.base, **case.settings}
            if quick:
                settings = _shortened(settings, self.quick.settings)
            if case.epsilons:
                for epsilon in case.grid(quick=quick):
                    found[f"{case.name} at {epsilon:g}"] = _public_config({**settings, "epsilon": epsilon})
            else:
                found[case.name] = _public_config(settings)
        return found

    def chosen(self, *, quick: bool) -> tuple[Case, ...]:
        """The cases that are run."""
        if not quick or self.kind == COMMAND:
            return self.cases
        if self.quick.cases:
            return tuple(case for case in self.cases if case.name in self.quick.cases)
        return self.cases[:2]

    def command(self, name: str, *, quick: bool) -> str:
        """What the case of this name asks, of the kind command."""
        case = self.case(name)
        found = case.quick if quick and case.quick is not None else case.run
        assert found is not None
        return found

    def case(self, name: str) -> Case:
        return next(case for case in self.cases if case.name == name)


@dataclass(frozen=True)
class Paper:
    """A folder of experiments/ with a paper.toml: its title, its page, and its items in order."""

    name: str
    title: str
    page: str
    """The page in the documentation that has its results, seen from the folder of the pages."""
    items: tuple[Item, ...]


def papers(folder: Path) -> dict[str, Paper]:
    """Every paper below ``folder``, by name."""
    return {path.parent.name: _paper(path.parent) for path in sorted(folder.glob("*/paper.toml"))}


def chosen_items(known: Mapping[str, Paper], what: Iterable[str]) -> list[Item]:
    """The items that ``PAPER``, ``PAPER/ITEM`` or ``all`` name, each once."""
    found: dict[str, Item] = {}
    for each in what:
        paper, _, name = each.partition("/")
        if each == "all":
            mine = [item for one in known.values() for item in one.items]
        elif paper not in known:
            raise InputError(f"There is no paper {paper!r}.", fix=f"Known: all, {', '.join(known)}.")
        else:
            items = known[paper].items
            mine = [item for item in items if name in ("", item.name)]
            if not mine:
                raise InputError(
                    f"{paper} has no item {name!r}.", fix=f"It has: {', '.join(item.name for item in items)}."
                )
        found |= {item.path: item for item in mine}
    return list(found.values())


def experiments_folder() -> Path:
    """Where the files are: beside the source, or where an installation puts data."""
    for place in (
        Path(__file__).resolve().parents[4] / "experiments",
        Path(sysconfig.get_path("data")) / "share" / "adadp" / "experiments",
    ):
        if any(place.glob("*/paper.toml")):
            return place
    raise InputError(
        "The experiments of the papers are not here.",
        why="They come with the source, and with an installed package in share/adadp/experiments.",
        fix="Pass `experiments`, the folder they are in.",
    )


def _paper(folder: Path) -> Paper:
    content = _read(folder / "paper.toml")
    order: list[str] = content.get("order", [])
    missing = [name for name in order if not (folder / f"{name}.toml").is_file()]
    if missing:
        raise InputError(f"{folder.name}/paper.toml names {', '.join(missing)}, of which there is no file.")
    rest = [path.stem for path in sorted(folder.glob("*.toml")) if path.stem not in (*order, "paper")]
    items = tuple(item_of(folder.name, name, _read(folder / f"{name}.toml")) for name in (*order, *rest))
    return Paper(folder.name, content["title"], content["page"], items)


def item_of(paper: str, name: str, content: Mapping[str, Any]) -> Item:
    """The item that a file's ``content`` describes; everything in it is checked."""
    place = f"{paper}/{name}.toml"
    known = {"title", *_PLAIN, "case", "claim", "draw", "quick", "marks", "why"}
    _refuse(place, set(content) - known, known)
    quick = content.get("quick", {})
    _refuse(place, set(quick) - {"cases", "set"}, {"cases", "set"})
    item = Item(
        paper,
        name,
        content["title"],
        **{key: content[key] for key in _PLAIN if key in content},
        cases=tuple(_case(place, each) for each in content.get("case", [])),
        claims=tuple(_made(Claim, place, each) for each in content.get("claim", [])),
        drawings=tuple(_made(Drawing, place, each) for each in content.get("draw", [])),
        quick=Quick(tuple(quick.get("cases", ())), quick.get("set", {})),
        marks=tuple(content.get("marks", ())),
        why=content.get("why", "").strip(),
    )
    _check(place, item)
    return item


def _case(place: str, content: Mapping[str, Any]) -> Case:
    plain = {("settings" if key == "set" else key): value for key, value in content.items()}
    if isinstance(plain.get("printed"), (int, float)):
        plain["printed"] = [plain["printed"]]
    case: Case = _made(Case, place, plain)
    return case


def _made(kind: type, place: str, content: Mapping[str, Any]) -> Any:
    """A dataclass from a table of the file; lists become tuples."""
    known = {each.name for each in fields(kind)}
    _refuse(place, set(content) - known, known)
    return kind(**{key: tuple(value) if isinstance(value, list) else value for key, value in content.items()})


def _check(place: str, item: Item) -> None:
    if item.kind not in (TRAIN, SMALLEST, COMMAND):
        raise InputError(f"{place}: {item.kind!r} is no kind.", fix=f"Use {TRAIN}, {SMALLEST} or {COMMAND}.")
    names = [case.name for case in item.cases]
    double = sorted({name for name in names if names.count(name) > 1})
    if double:
        raise InputError(f"{place} has two cases called {', '.join(double)}.", fix="Give each a name of its own.")
    asked = [name for case in item.cases for name in (case.beside, case.same_as)]
    asked += [name for claim in item.claims for name in (claim.of, claim.over)]
    asked += [name for claim in item.claims for name in claim.best]
    asked += item.quick.cases
    unknown = sorted({name for name in asked if name is not None} - set(names))
    if unknown:
        raise InputError(f"{place} names the cases {', '.join(unknown)}, which it does not have.")
    for case in item.cases:
        if case.same_as is not None and not (
            item.kind == SMALLEST and case.along and _is_run_along(item.case(case.same_as))
        ):
            raise InputError(
                f"{place}: {case.name} is the same_as {case.same_as}.",
                why="Only a run along which epsilons are read off can be read in another way.",
                fix="Give both cases along, and the named one its own settings.",
            )
    if item.kind == SMALLEST:
        for case in item.cases:
            if bool(case.epsilons) == bool(case.along):
                raise InputError(f"{place}: {case.name} needs either epsilons or along.")
            needed = {"noise_multiplier", "batch_size", "delta", "evaluate_every"}
            if _is_run_along(case) and not needed <= {**item.base, **case.settings}.keys():
                raise InputError(
                    f"{place}: {case.name} is read off along a run: it needs noise_multiplier, "
                    "batch_size, delta and evaluate_every."
                )
            if case.printed and len(case.printed) != len(item.marks):
                raise InputError(
                    f"{place}: {case.name} has {len(case.printed)} printed figures for {len(item.marks)} marks."
                )
    if item.kind == COMMAND and item.picture:
        raise InputError(f"{place}: the pictures of a command are drawn by commands.", fix="Use [[draw]].")
    if item.kind != COMMAND and item.drawings:
        raise InputError(f"{place}: only an item of the kind command has [[draw]].", fix="Use picture.")
    if item.kind == COMMAND and any(case.read is None or case.run is None for case in item.cases):
        raise InputError(f"{place}: every case of a command needs run and read.")
    with within(place):
        item.runs()
        item.runs(quick=True)
    if item.picture == CURVES and any(config.evaluate_every != 1 for config in item.runs().values()):
        raise InputError(f"{place} draws curves by epoch.", fix="Set evaluate_every = 1 in its base.")


def _is_run_along(case: Case) -> bool:
    return bool(case.along) and case.same_as is None


def _public_config(settings: dict[str, Any]) -> TrainConfig:
    """The configuration of a run on a public data set: runs of an item share their seeds, and leave no ledger."""
    config = TrainConfig.from_dict(settings)
    if is_own(config.data):
        raise InputError(
            f"{config.data} is data of your own, and items are run on public data sets.",
            why="Their runs share noise, and what they charge is not kept: nobody would know what was spent.",
            fix="Use adadp compare, which adds up what its runs cost.",
        )
    return config


def _shortened(settings: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """``settings`` with those of a quick run; its length replaces one in epochs or in steps."""
    length = {"epochs", "steps"}
    kept = {name: value for name, value in settings.items() if not (name in length and length & over.keys())}
    return kept | dict(over)


def _refuse(place: str, unknown: set[str], known: set[str]) -> None:
    if unknown:
        raise InputError(f"{place} has {', '.join(sorted(unknown))}.", fix=f"Known here: {', '.join(sorted(known))}.")


def _read(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(f"{path.parent.name}/{path.name} cannot be read: {error}.") from error
