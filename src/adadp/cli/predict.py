"""``adadp predict`` and ``adadp evaluate``: use what a run has trained."""

# torch and the rooms over it take seconds to load, which `adadp --help` must not wait for: imported in the commands.
# ruff: noqa: PLC0415

from __future__ import annotations

import csv
import json
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from torch import Tensor

    from adadp.predict import TrainedModel


@click.command()
@click.argument("folder", type=click.Path(file_okay=False))
@click.option("--input", "source", required=True, type=click.Path(), help="Records like those it was trained on.")
@click.option("--output", type=click.Path(dir_okay=False), help="CSV file to write.  [default: standard output]")
@click.option("--json", "as_json", is_flag=True, help="One JSON object per record instead of CSV.")
def predict(folder: str, source: str, output: str | None, as_json: bool) -> None:
    """Predict the class of every record in a file, with the model (and features) of the run in FOLDER.

    A table needs no target column. For data sets of the catalogue: an .npz with the array x.

    \b
    adadp predict runs/people --input new.csv --output classes.csv
    adadp predict runs/mnist --input digits.npz --json
    """
    from adadp.predict import load_model

    trained = load_model(folder)
    probabilities = trained.probabilities(trained.read(source))
    with click.open_file(output or "-", "w", encoding="utf-8") as file:
        if as_json:
            for row in _rows(trained, probabilities):
                file.write(json.dumps(row) + "\n")
        else:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow(["record", "class", *(f"p({name})" for name in trained.class_names)])
            for row in _rows(trained, probabilities):
                writer.writerow([row["record"], row["class"], *(f"{each:.6g}" for each in row["probabilities"])])
    if output is not None:
        click.echo(f"{len(probabilities)} records, written to {output}.", err=True)


@click.command()
@click.argument("folder", type=click.Path(file_okay=False))
@click.option(
    "--data", "source", type=click.Path(), help="Labelled records of your own.  [default: the run's test data]"
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON for programs.")
def evaluate(folder: str, source: str | None, as_json: bool) -> None:
    """Measure the accuracy of the run in FOLDER, in all and by class. On private records this is private too."""
    from adadp.predict import evaluation, load_model

    found = evaluation(load_model(folder), source)
    if as_json:
        click.echo(json.dumps(found))
        return
    click.echo(f"Accuracy {found['accuracy']:.4f} on {found['records']} records.")
    for name, each in found["by_class"].items():
        share = "none" if each["accuracy"] is None else f"{each['accuracy']:.4f}"
        click.echo(f"  class {name}: {share} of {each['records']}")


def _rows(trained: TrainedModel, probabilities: Tensor) -> list[dict[str, Any]]:
    return [
        {
            "record": number,
            "class": trained.class_names[int(row.argmax())],
            "probabilities": [round(float(each), 6) for each in row],
        }
        for number, row in enumerate(probabilities)
    ]
