"""``adadp data``: which data sets and weights there are, what they are, and getting them."""

# The zoo pulls in numpy, which `adadp --help` must not wait for: it is imported in the commands.
# ruff: noqa: PLC0415

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from adadp.app.cli.options import section
from adadp.errors import InputError

if TYPE_CHECKING:
    from adadp.app.zoo import DataSet, Entry, FileState, Weights

_FORM = ("train_records", "test_records", "split", "sources")
_DATA = (
    *("name", "title", "record", *_FORM, "shape", "classes", "scaling", "default_model", "citation", "licence"),
    *("cache", "files", "alternatives"),
)
_WEIGHTS = ("name", "title", "trained_on", "citation", "licence", "sources", "cache", "files", "alternatives")
"""What is told of a form of a data set, of a data set and of weights, in this order."""

_JSON = click.option("--json", "as_json", is_flag=True, help="Print JSON for programs.")


@section("Data")
@click.group()
def data() -> None:
    """Data sets and weights: which there are, what they are, and getting them."""


@data.command(name="list")
@_JSON
def list_command(as_json: bool) -> None:
    """List the data sets and weights, and which of them are here."""
    from adadp.app.zoo import DATA_SETS, WEIGHTS

    rows = [*map(_row, DATA_SETS.values()), *map(_row, WEIGHTS.values())]
    if as_json:
        click.echo(json.dumps(rows))
        return
    from rich.console import Console
    from rich.table import Table

    table = Table("name", "train", "test", "shape", "classes", "state")
    for row in rows:
        counts = (_count_text(row["train_records"]), _count_text(row["test_records"]), _shape_text(row["shape"]))
        table.add_row(row["name"], *counts, _count_text(row["classes"]), row["state"])
    Console(highlight=False).print(table)


@data.command()
@click.argument("names", nargs=-1, required=True)
@click.option(
    "--from", "source_dir", type=click.Path(), help="Folder that holds the files, raw or gzipped: asked first."
)
@_JSON
def fetch(names: tuple[str, ...], source_dir: str | None, as_json: bool) -> None:
    """Get the data sets or weights NAMES, check them and keep them in the cache; "all" is every one of them.

    \b
    adadp data fetch mnist
    adadp data fetch mnist cifar10 --from DIR
    adadp data fetch all

    With --json a line is printed for each. What cannot be had does not keep the others from being fetched.
    """
    failed: list[InputError] = []
    for entry in _entries(names, source_dir):
        try:
            _fetch_one(entry, source_dir, as_json)
        except InputError as error:
            failed.append(error)
    if len(failed) == 1:
        raise failed[0]
    if failed:
        what = " ".join(error.what for error in failed)
        raise InputError(what, why="\n".join(error.why for error in failed), fix=failed[-1].fix)


@data.command()
@click.argument("file", type=click.Path(dir_okay=False))
def schema(file: str) -> None:
    """Draft the schema of a table of your own, from its header alone; fill it in and pass it to train.

    \b
    adadp data schema people.csv > people.toml
    """
    from adadp.app.owndata import draft_schema

    click.echo(draft_schema(file), nl=False)


@data.command()
@click.argument("file", type=click.Path())
@click.option("--schema", "schema_file", type=click.Path(dir_okay=False), required=True, help="Its schema.")
@click.option("--target", help="The column to learn.  [default: as the schema says]")
@click.option("--no-target", "unlabelled", is_flag=True, help="The table is one to predict from.")
def check(file: str, schema_file: str, target: str | None, unlabelled: bool) -> None:
    """List all that is wrong with a table of your own and its schema: nothing is trained, released or charged.

    \b
    adadp data check people.csv --schema people.toml

    Of each column the first cell that does not fit is named by its line. No cell and no number of rows is shown.
    """
    from adadp.app.owndata import check_table

    columns = check_table(file, schema_file, target=target, labelled=not unlabelled)
    for name, becomes in columns:
        click.echo(f"{name}: {becomes}")
    click.echo(f"{file} fits {schema_file}.")


@data.command()
@click.argument("name")
@_JSON
def info(name: str, as_json: bool) -> None:
    """Say what NAME is, what one record of it is, and where its files come from and lie."""
    from adadp.app import zoo

    entry = _find(name)
    facts = _facts(entry, _WEIGHTS if isinstance(entry, zoo.Weights) else _DATA)
    if as_json:
        click.echo(json.dumps(facts))
    else:
        _print(facts)


def _find(name: str) -> DataSet | Weights:
    from adadp.app import zoo

    if name not in zoo.DATA_SETS and name not in zoo.WEIGHTS:
        known = ", ".join((*zoo.DATA_SETS, *zoo.WEIGHTS))
        raise InputError(f"There is no data set {name!r}.", fix=f"Choose one of: {known}.")
    return zoo.WEIGHTS[name] if name in zoo.WEIGHTS else zoo.find(name)


def _entries(names: tuple[str, ...], source_dir: str | None) -> list[DataSet | Weights]:
    """The entries called ``names``, each once. Of "all", what comes with the package needs no folder."""
    from adadp.app import zoo

    known: list[DataSet | Weights] = [*zoo.DATA_SETS.values(), *zoo.WEIGHTS.values()]
    packaged = {entry.name for entry in zoo.DATA_SETS.values() if entry.packaged}
    everything = [entry.name for entry in known if source_dir is None or entry.name not in packaged]
    wanted = [one for name in names for one in (everything if name == "all" else [name])]
    return [_find(name) for name in dict.fromkeys(wanted)]


def _fetch_one(entry: DataSet | Weights, source_dir: str | None, as_json: bool) -> None:
    from adadp.app import zoo

    fetched = zoo.fetch(entry, source_dir=source_dir)
    had = fetched.form.files
    if as_json:
        files = [
            {"name": file.name, "size": file.size, "sha256": file.sha256, "origin": fetched.origin[file.name]}
            for file in had
        ]
        folder = None if fetched.folder is None else str(fetched.folder)
        click.echo(json.dumps({"name": entry.name, "folder": folder, "files": files}))
        return
    origins = ", ".join(dict.fromkeys(fetched.origin.values()))
    where = "inside the package" if fetched.folder is None else f"in {fetched.folder}"
    size = sum(file.size for file in had) / 1e6
    click.echo(f"{entry.name}: {len(had)} verified files, {size:.2f} MB, {where} (from: {origins})")


def _row(entry: DataSet | Weights) -> dict[str, Any]:
    """The entry, or the form of it that is here; weights have neither records nor a shape."""
    from adadp.app import zoo

    here = zoo.cached_form(entry)
    form = here or entry
    names = ("train_records", "test_records", "shape", "classes")
    state = _state(zoo.inspect(entry)) if here is None else "packaged" if entry.packaged else "cached"
    told = {name: getattr(form, name, None) for name in names}
    return {"name": entry.name, "title": entry.title, **told, "state": state}


def _facts(entry: Entry, names: Sequence[str]) -> dict[str, Any]:
    """The facts ``names``: those that are computed here, and attributes of the entry."""
    from adadp.app import zoo

    states = zoo.inspect(entry)
    computed = {
        "sources": ["package"] if entry.packaged else [str(source) for source in entry.sources],
        "cache": None if entry.packaged else str(zoo.cache_folder() / entry.name),
        "files": [vars(file) | {"state": states[file.name].value} for file in entry.files],
        "alternatives": [_facts(form, (*_FORM, "files")) for form in entry.alternatives],
    }
    return {name: computed[name] if name in computed else getattr(entry, name) for name in names}


def _print(facts: dict[str, Any]) -> None:
    for name, fact in facts.items():
        if name == "shape":
            _line(name, _shape_text(fact))
        elif name == "sources":
            _line(name, ", ".join(fact) or "a folder that holds the files")
        elif name == "cache":
            _line(name, fact or "none needed: the files come with the package")
        elif name == "files":
            for file in fact:
                _line("file", f"{file['name']}: {file['state']}, {file['size']:,} bytes")
                _line("", f"sha256 {file['sha256']}, md5 {file['md5'] or 'not published'}")
        elif name == "alternatives":
            for form in fact:
                click.echo("or, where that cannot be had:")
                _print(form)
        else:
            _line(name.replace("_", " "), fact)


def _line(name: str, fact: object) -> None:
    click.echo(f"{name:<15}{fact}")


def _state(files: Mapping[str, FileState]) -> str:
    from adadp.app.zoo import FileState

    found = set(files.values())
    if found == {FileState.VERIFIED}:
        return "cached"
    return "corrupt" if FileState.CORRUPT in found else "not fetched"


def _shape_text(shape: list[int] | None) -> str:
    return "" if shape is None else " x ".join(map(str, shape))


def _count_text(count: int | None) -> str:
    return "" if count is None else f"{count:,}"
