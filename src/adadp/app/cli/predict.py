"""``adadp predict`` and ``adadp evaluate``: use what a run has trained."""

# torch and the rooms over it take seconds to load, which `adadp --help` must not wait for: imported in the commands.
# ruff: noqa: PLC0415

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from adadp.app.cli.options import section, trust_option
from adadp.errors import InputError

if TYPE_CHECKING:
    from adadp.app.predict import TrainedModel
    from adadp.app.runs import ClassCounts


def _network_options(command: Callable[..., None]) -> Callable[..., None]:
    """What says the network of a run from Python, whose folder names none."""
    model = click.option("--model", help="For a run of adadp.fit: module:function that builds its network.")
    classes = click.option("--classes", help="For such a run: the number of classes, or their names: no,yes.")
    return model(classes(trust_option(command)))


@section("Train")
@click.command()
@click.argument("folder", type=click.Path(file_okay=False))
@click.option("--input", "source", required=True, type=click.Path(), help="Records like those it was trained on.")
@click.option(
    "--output", type=click.Path(dir_okay=False), help="File to write: .parquet, or CSV.  [default: standard output]"
)
@click.option("--id", "id_column", help="Column of a table that names its rows, to keep.  [default: their number]")
@click.option(
    "--probabilities/--no-probabilities", default=True, help="Write those of all classes, or the class alone."
)
@click.option("--json", "as_json", is_flag=True, help="One JSON object per record instead of CSV.")
@_network_options
def predict(
    folder: str,
    source: str,
    output: str | None,
    *,
    id_column: str | None,
    probabilities: bool,
    as_json: bool,
    model: str | None,
    classes: str | None,
    trust_code: bool,
) -> None:
    """Predict the class, or the numbers, of every record in a file, with the model (and features) of the run in FOLDER.

    A table needs no target column, and is read some rows at a time. For data sets of the catalogue, and runs of
    adadp.fit: an .npz with the array x.

    \b
    adadp predict runs/people --input new.csv --id patient --output classes.csv
    adadp predict runs/people --input new.parquet --output classes.parquet
    adadp predict runs/mnist --input digits.npz --json
    adadp predict runs/mine --input new.npz --model nets:small --classes 2
    """
    from adadp.app.predictions import write_predictions

    if output is not None:
        _check_output(Path(output))
    trained = _loaded(folder, model, classes, source, trust_code=trust_code)
    rows = write_predictions(
        trained,
        source,
        sys.stdout if output is None else output,
        id_column=id_column,
        probabilities=probabilities,
        json_lines=as_json,
    )
    if output is not None:
        click.echo(f"{rows} records, written to {output}.", err=True)


@section("Train")
@click.command()
@click.argument("folder", type=click.Path(file_okay=False))
@click.option(
    "--data", "source", type=click.Path(), help="Labelled records of your own.  [default: the run's test data]"
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON for programs.")
@_network_options
def evaluate(  # noqa: PLR0917
    folder: str, source: str | None, as_json: bool, model: str | None, classes: str | None, trust_code: bool
) -> None:
    """Measure the figures of the run in FOLDER, in all and by class. On private records these are private too."""
    from adadp.app.figures import lines
    from adadp.app.predict import evaluation
    from adadp.app.report.html.formatting import doubts

    trained = _loaded(folder, model, classes, source, trust_code=trust_code)
    found = evaluation(trained, source)
    if source is not None and was_trained_on(trained.config.data, trained.place(source)):
        click.echo(
            f"Warning: the run was trained on {source}. What follows is computed from private records without noise, "
            "no epsilon covers it, and it must not be published.",
            err=True,
        )
    if trained.targets:
        shown = [json.dumps(found)] if as_json else lines(found["figures"])
        for line in shown:
            click.echo(line)
        return
    counts = _counts(found["by_class"])
    largest = trained.class_names[counts.largest]
    if as_json:
        about = {"largest_class": largest, "largest_share": counts.largest_share}
        click.echo(json.dumps({**found, "balanced_accuracy": counts.balanced_accuracy, **about}))
        return
    if found["figures"] is not None:
        click.echo(lines(found["figures"])[0])
    click.echo(f"Accuracy {found['accuracy']:.4f} on {found['records']} records.")
    click.echo(f"Balanced accuracy {counts.balanced_accuracy:.4f}, the mean over the classes that occur.")
    click.echo(f"Always answering {largest}, the most frequent class: {counts.largest_share:.4f}.")
    for line in doubts(counts, trained.class_names):
        click.echo(line)
    for name, each in found["by_class"].items():
        share = "none" if each["accuracy"] is None else f"{each['accuracy']:.4f}"
        click.echo(f"  class {name}: {share} of {each['records']}")


def _loaded(
    folder: str, model: str | None, classes: str | None, source: str | None, *, trust_code: bool
) -> TrainedModel:
    """The model of the run in ``folder``; that of a run from Python for records like those in ``source``."""
    from adadp.app.owndata.arrays import given_features
    from adadp.app.predict import load_model

    if model is None and classes is None:
        return load_model(folder, trust_code=trust_code)
    if source is None:
        raise InputError("The run names no test data.", fix="Name labelled records with `data`.")
    named: int | list[str] | None = None
    if classes is not None:
        named = int(classes) if classes.isdecimal() else classes.split(",")
    shape = tuple(given_features(source.removeprefix("npz:")).shape[1:])
    return load_model(folder, model=model, classes=named, input_shape=shape, trust_code=trust_code)


def _check_output(file: Path) -> None:
    """Refuse, before anything is computed, a file that cannot be written in the end."""
    folder = file.parent
    if not folder.is_dir():
        raise InputError(f"{file} cannot be written: there is no folder {folder}.", fix="Make it, or choose another.")
    if not os.access(file if file.exists() else folder, os.W_OK):
        raise InputError(f"{file} cannot be written: you may not write there.", fix="Choose another place.")


def _counts(by_class: dict[str, Any]) -> ClassCounts:
    from adadp.app.runs import ClassCounts

    records = tuple(each["records"] for each in by_class.values())
    shares = tuple(each["accuracy"] or 0.0 for each in by_class.values())
    return ClassCounts(records, tuple(round(share * size) for share, size in zip(shares, records, strict=True)))


def was_trained_on(data: str, source: str | Path) -> bool:
    """Whether ``source`` is where the records of ``data``, ``KIND:PATH``, came from; of images also DIR/train."""
    kind, _, path = data.partition(":")
    places = [Path(path), Path(path) / "train"] if kind == "images" else [Path(path)]
    return any(place.exists() and place.samefile(source) for place in places)
