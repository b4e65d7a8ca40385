"""``adadp pretrain``: make the frozen layers of features that come with AdaDP again, from public images."""

# torch and the rooms over it take seconds to load, which `adadp --help` must not wait for: imported in the command.
# ruff: noqa: PLC0415

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from adadp.app.cli.options import section

if TYPE_CHECKING:
    from adadp.lab.pretraining.training import Epoch

_FEATURES = ("conv-cifar100", "lite0-cifar100")


@section("Laboratory")
@click.command()
@click.argument("features", type=click.Choice(_FEATURES), default=_FEATURES[0])
@click.option(
    "--out", "folder", required=True, type=click.Path(file_okay=False, path_type=Path), help="Folder to fill."
)
@click.option("--epochs", type=int, help="Length in epochs; that of the shipped weights without it.")
@click.option("--seed", type=int, default=0, show_default=True, help="The same seed gives the same weights.")
@click.option("--threads", type=int, default=1, show_default=True, help="Sums, and so the last digits, depend on it.")
@click.option("--from", "source_dir", type=click.Path(), help="Folder that holds the files of CIFAR-100.")
def pretrain(features: str, folder: Path, source_dir: str | None, **how: Any) -> None:
    """Train the frozen layers of FEATURES on the public images of CIFAR-100. Not private.

    FEATURES are conv-cifar100 (two convolutions) or lite0-cifar100 (a network for ImageNet, fine-tuned). The files are
    written after every epoch.

    \b
    adadp pretrain --out weights
    adadp pretrain lite0-cifar100 --out weights --from DIR
    """
    from adadp.app import zoo
    from adadp.lab.pretraining.convolutions import Convolutions
    from adadp.lab.pretraining.lite0 import Lite0
    from adadp.lab.pretraining.training import pretrain as train
    from adadp.lab.pretraining.training import write_pretrained

    def watch(epoch: Epoch) -> None:
        write_pretrained(folder, epoch.pretrained)
        click.echo(
            f"epoch {epoch.number}/{epoch.epochs}: loss {epoch.loss:.4f}, held-out accuracy "
            f"{epoch.held_out_accuracy:.4f}, {epoch.seconds:.0f} s",
            err=True,
        )

    recipes = {each.name: each for each in (Convolutions(), Lite0())}
    loaded = zoo.load("cifar100", source_dir=source_dir)
    made = train(recipes[features], *loaded.train, **how, watch=watch, origin=loaded.description)
    click.echo(f"wrote {made.name}.safetensors and {made.name}.json to {folder}")
    click.echo(f"sha256 of the tensors {made.record['sha256']}")
