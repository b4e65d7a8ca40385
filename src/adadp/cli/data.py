"""``adadp data``: which data sets there are, what they are, and getting them."""

# The zoo pulls in numpy, which `adadp --help` must not wait for: it is imported in the commands.
# ruff: noqa: PLC0415

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from adadp.zoo import DataSet

_JSON = click.option("--json", "as_json", is_flag=True, help="Print JSON for programs.")


@click.group()
def data() -> None:
    """Data sets: which there are, what they are, and getting them."""


@data.command(name="list")
@_JSON
def list_command(as_json: bool) -> None:
    """List the data sets, and which of them are here."""
    from adadp.zoo import DATA_SETS

    rows: list[dict[str, Any]] = [
        {
            "name": entry.name,
            "title": entry.title,
            "train_records": entry.train_records,
            "test_records": entry.test_records,
            "shape": list(entry.shape),
            "classes": entry.classes,
            "state": _state(entry),
        }
        for entry in DATA_SETS.values()
    ]
    if as_json:
        click.echo(json.dumps(rows))
        return
    from rich.console import Console
    from rich.table import Table

    table = Table("name", "train", "test", "shape", "classes", "state", "what")
    for row in rows:
        numbers = (f"{row['train_records']:,}", f"{row['test_records']:,}", _shape_text(row["shape"]))
        table.add_row(row["name"], *numbers, str(row["classes"]), row["state"], row["title"])
    Console(highlight=False).print(table)


@data.command()
@click.argument("name")
@click.option(
    "--from", "source_dir", type=click.Path(), help="Folder that holds the files, raw or gzipped: asked first."
)
@_JSON
def fetch(name: str, source_dir: str | None, as_json: bool) -> None:
    """Get the data set NAME, check it and keep it in the cache.

    \b
    adadp data fetch mnist
    adadp data fetch mnist --from DIR
    """
    from adadp import zoo

    entry = zoo.find(name)
    fetched = zoo.fetch(entry, source_dir=source_dir)
    if as_json:
        files = [
            {"name": file.name, "size": file.size, "sha256": file.sha256, "origin": fetched.origin[file.name]}
            for file in entry.files
        ]
        folder = None if fetched.folder is None else str(fetched.folder)
        click.echo(json.dumps({"name": entry.name, "folder": folder, "files": files}))
        return
    origins = ", ".join(dict.fromkeys(fetched.origin.values()))
    where = "inside the package" if fetched.folder is None else f"in {fetched.folder}"
    size = sum(file.size for file in entry.files) / 1e6
    click.echo(f"{entry.name}: {len(entry.files)} verified files, {size:.2f} MB, {where} (from: {origins})")


@data.command()
@click.argument("name")
@_JSON
def info(name: str, as_json: bool) -> None:
    """Say what NAME is, what one record of it is, and where its files come from and lie."""
    from adadp import zoo

    entry = zoo.find(name)
    states = zoo.inspect(entry)
    facts: dict[str, Any] = {
        "name": entry.name,
        "title": entry.title,
        "record": entry.record,
        "train_records": entry.train_records,
        "test_records": entry.test_records,
        "shape": list(entry.shape),
        "classes": entry.classes,
        "split": entry.split,
        "scaling": entry.scaling,
        "default_model": entry.default_model,
        "citation": entry.citation,
        "licence": entry.licence,
        "sources": ["package"] if entry.packaged else [str(source) for source in entry.sources],
        "cache": None if entry.packaged else str(zoo.cache_folder() / entry.name),
        "files": [
            {"name": file.name, "size": file.size, "sha256": file.sha256, "md5": file.md5}
            | {"state": states[file.name].value}
            for file in entry.files
        ],
    }
    if as_json:
        click.echo(json.dumps(facts))
    else:
        _print(facts)


def _print(facts: dict[str, Any]) -> None:
    shown = facts | {
        "shape": _shape_text(facts["shape"]),
        "sources": ", ".join(facts["sources"]),
        "cache": facts["cache"] or "none needed: the files come with the package",
    }
    for name, fact in shown.items():
        if name != "files":
            click.echo(f"{name.replace('_', ' '):<15}{fact}")
    for file in facts["files"]:
        click.echo(f"{'file':<15}{file['name']}: {file['state']}, {file['size']:,} bytes")
        click.echo(f"{'':<15}sha256 {file['sha256']}, md5 {file['md5']}")


def _state(entry: DataSet) -> str:
    from adadp.zoo import FileState, inspect

    found = set(inspect(entry).values())
    if found == {FileState.VERIFIED}:
        return "packaged" if entry.packaged else "cached"
    return "corrupt" if FileState.CORRUPT in found else "not fetched"


def _shape_text(shape: list[int]) -> str:
    return " x ".join(map(str, shape))
