"""``adadp predict`` and ``adadp evaluate``: use what a run has trained."""

# torch and the rooms over it take seconds to load, which `adadp --help` must not wait for: imported in the commands.
# ruff: noqa: PLC0415

from __future__ import annotations

import csv
import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from adadp.app.cli.options import section
from adadp.errors import InputError

if TYPE_CHECKING:
    from torch import Tensor

    from adadp.app.predict import TrainedModel
    from adadp.app.runs import ClassCounts


@section("Train")
@click.command()
@click.argument("folder", type=click.Path(file_okay=False))
@click.option("--input", "source", required=True, type=click.Path(), help="Records like those it was trained on.")
@click.option("--output", type=click.Path(dir_okay=False), help="CSV file to write.  [default: standard output]")
@click.option("--json", "as_json", is_flag=True, help="One JSON object per record instead of CSV.")
def predict(folder: str, source: str, output: str | None, as_json: bool) -> None:
    """Predict the class, or the numbers, of every record in a file, with the model (and features) of the run in FOLDER.

    A table needs no target column. For data sets of the catalogue: an .npz with the array x.

    \b
    adadp predict runs/people --input new.csv --output classes.csv
    adadp predict runs/mnist --input digits.npz --json
    """
    from adadp.app.predict import load_model

    if output is not None:
        _check_output(Path(output))
    trained = load_model(folder)
    records = trained.read(source)
    rows = _numbers(trained, records) if trained.targets else _rows(trained, records)
    with click.open_file(output or "-", "w", encoding="utf-8") as file:
        if as_json:
            for row in rows:
                file.write(json.dumps(row) + "\n")
        elif trained.targets:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow(["record", *(target.name for target in trained.targets)])
            writer.writerows([row["record"], *(f"{each:.6g}" for each in row["values"])] for row in rows)
        else:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow(["record", "class", *(f"p({name})" for name in trained.class_names)])
            for row in rows:
                writer.writerow([row["record"], row["class"], *(f"{each:.6g}" for each in row["probabilities"])])
    if output is not None:
        click.echo(f"{len(records)} records, written to {output}.", err=True)


@section("Train")
@click.command()
@click.argument("folder", type=click.Path(file_okay=False))
@click.option(
    "--data", "source", type=click.Path(), help="Labelled records of your own.  [default: the run's test data]"
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON for programs.")
def evaluate(folder: str, source: str | None, as_json: bool) -> None:
    """Measure the figures of the run in FOLDER, in all and by class. On private records these are private too."""
    from adadp.app.figures import lines
    from adadp.app.predict import evaluation, load_model
    from adadp.app.report.html.formatting import doubts

    trained = load_model(folder)
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


def _rows(trained: TrainedModel, records: Tensor) -> list[dict[str, Any]]:
    return [
        {
            "record": number,
            "class": trained.class_names[int(said)],
            "probabilities": [round(float(each), 6) for each in row],
        }
        for number, (said, row) in enumerate(zip(trained.predict(records), trained.probabilities(records), strict=True))
    ]


def _numbers(trained: TrainedModel, records: Tensor) -> list[dict[str, Any]]:
    rows = trained.numbers(records)
    return [{"record": number, "values": [float(each) for each in row]} for number, row in enumerate(rows)]
