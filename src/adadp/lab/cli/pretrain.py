"""``adadp pretrain``: make the frozen convolutions of ``conv-cifar100`` again, from public images."""

# torch and the rooms over it take seconds to load, which `adadp --help` must not wait for: imported in the command.
# ruff: noqa: PLC0415

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from adadp.app.cli.options import section

if TYPE_CHECKING:
    from adadp.lab.pretraining import Epoch


@section("Laboratory")
@click.command()
@click.option(
    "--out", "folder", required=True, type=click.Path(file_okay=False, path_type=Path), help="Folder to fill."
)
@click.option("--epochs", type=int, default=12, show_default=True, help="Length in epochs.")
@click.option("--seed", type=int, default=0, show_default=True, help="The same seed gives the same weights.")
@click.option("--threads", type=int, default=1, show_default=True, help="Sums, and so the last digits, depend on it.")
@click.option("--from", "source_dir", type=click.Path(), help="Folder that holds the files of CIFAR-100.")
def pretrain(folder: Path, epochs: int, seed: int, threads: int, source_dir: str | None) -> None:
    """Train the convolutions of the features conv-cifar100 on the public images of CIFAR-100. Not private.

    \b
    adadp pretrain --out weights
    adadp pretrain --out weights --epochs 1 --from DIR
    """
    from adadp.app import zoo
    from adadp.lab.pretraining import pretrain as train
    from adadp.lab.pretraining import write_pretrained

    loaded = zoo.load("cifar100", source_dir=source_dir)
    made = train(*loaded.train, seed=seed, epochs=epochs, threads=threads, watch=_show, origin=loaded.description)
    weights, record = write_pretrained(folder, made)
    click.echo(f"wrote {weights} and {record}")
    click.echo(f"sha256 of the tensors {made.record['sha256']}")


def _show(epoch: Epoch) -> None:
    click.echo(
        f"epoch {epoch.number}/{epoch.epochs}: loss {epoch.loss:.4f}, held-out accuracy {epoch.held_out_accuracy:.4f}, "
        f"{epoch.seconds:.0f} s",
        err=True,
    )
