"""The options of a training run, shared by the commands that start one and those that only look ahead."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from adadp.app.config import TrainConfig

_Command = TypeVar("_Command", bound=Callable[..., Any])

_NUMBER_OR_AUTO = ("chunk_size", "batch_size", "steps", "epochs")


def config_options(command: _Command) -> _Command:
    """One option per field of ``TrainConfig``, in the order people look for them."""
    for option in reversed(
        [
            click.option(
                "--data",
                help="Data set: cancer, mnist, ... (adadp data list); or yours: table:FILE, npz:FILE, images:DIR.",
            ),
            click.option("--target", help="For table: the column to learn.  [default: as the schema says]"),
            click.option("--schema", help="For data of your own: what is public about it (adadp data schema)."),
            click.option("--test-data", help="For data of your own: public records for the accuracy."),
            click.option(
                "--input-bound",
                help="For npz: numbers are brought into [-B, B], or into LOW,HIGH.  [default: 1e6]",
            ),
            click.option(
                "--features",
                help="Before the network: none, scatter, pca:dim=60, conv-cifar100, efficientnet-lite0:size=128; "
                "joined by +.  [default: by data; none if --model is given]",
            ),
            click.option(
                "--model",
                help="Network: linear, mlp:1000, cnn-tanh, ..., or module:function.  [default: by data and features]",
            ),
            click.option(
                "--method",
                help="How to train: adadp, dpsgd, dpsgd-momentum, agd, dpopt, adal, adan, adadp-published.  "
                "[default: adadp]",
            ),
            click.option(
                "--epsilon", type=float, help="Target epsilon; the noise follows. Or give --noise-multiplier."
            ),
            click.option("--rho", type=float, help="Target rho of zCDP instead, for reshuffled or full-batch runs."),
            click.option(
                "--noise-multiplier", type=float, help="Noise multiplier; epsilon follows. Or give --epsilon."
            ),
            click.option(
                "--noise-schedule",
                help="Noise over the epochs: exp:k=0.1 lands on the budget; exp:s0=10 has k solved; exp:s0=10,k=0.01 "
                "runs as long as the budget lasts; validation:s0=10,k=0.7 follows looks. Shapes: uniform, time, exp, "
                "step, poly, piecewise:0=10,20=5; start=, stop= for a window.",
            ),
            click.option(
                "--delta", type=float, help="Target delta, well below 1 / number of records.  [default: by data]"
            ),
            click.option("--epochs", help="Length in epochs; auto: as the budget allows.  [default: by data]"),
            click.option("--steps", help="Length in steps instead; auto: by epsilon."),
            click.option(
                "--batch-size", help="Expected records per step; auto: by epsilon, delta and N.  [default: by data]"
            ),
            click.option("--batch-size-schedule", help="Records per step over the epochs: piecewise:0=600,20=1200."),
            click.option("--clip-norm", type=float, help="l2 bound of one record's gradient.  [default: by data]"),
            click.option(
                "--clip-norm-schedule",
                help="Bound over the epochs: poly:k=1,s_end=0.5,period=10, relative to --clip-norm.",
            ),
            click.option(
                "--keep-noise/--no-keep-noise",
                default=None,
                help="While the bound changes the noise keeps its size, or its ratio to it.  [default: by method]",
            ),
            click.option(
                "--clip-rule", help="flat, per-layer, automatic, quantile, or in full: 'automatic:1,gamma=0.01'."
            ),
            click.option("--lr", type=float, help="Learning rate.  [default: by data]"),
            click.option("--lr-schedule", help="Rate over the epochs: poly:s0=0.1,k=1,s_end=0.052,period=10."),
            click.option(
                "--optimizer",
                type=click.Choice(["sgd", "adam", "adamw", "adambc", "rms"]),
                help="[default: by data]",
            ),
            click.option("--momentum", type=float, help="For sgd.  [default: 0]"),
            click.option("--weight-decay", type=float, help="[default: 0]"),
            click.option("--ema", type=float, help="Average the weights, keeping this share.  [default: no average]"),
            click.option("--sampling", type=click.Choice(["poisson", "fixed", "reshuffle"]), help="[default: poisson]"),
            click.option(
                "--neighbours",
                type=click.Choice(["add-remove", "replace-one", "zero-out"]),
                help="What the guarantee compares.  [default: by sampling]",
            ),
            click.option("--accountant", help="Which accountant certifies.  [default: pld]"),
            click.option(
                "--seed",
                type=int,
                help="Makes a rehearsal: repeatable, and not private, as the seed gives the noise away.  "
                "[default: secure randomness]",
            ),
            click.option(
                "--arithmetic",
                type=click.Choice(["fast", "exact"]),
                help="exact: one record at a time, in whole numbers; slow, but proved with rounding.  [default: fast]",
            ),
            click.option("--chunk-size", help="Records processed at once, or auto.  [default: auto]"),
            click.option("--memory-limit-mb", type=int, help="For --chunk-size auto.  [default: 1024]"),
            click.option("--device", help="cpu, cuda or cuda:1.  [default: cpu]"),
            click.option("--threads", type=int, help="Threads of PyTorch.  [default: all cores]"),
            click.option(
                "--evaluate-every", type=int, help="Epochs between looks at the test set.  [default: end only]"
            ),
            click.option(
                "--checkpoint-every", type=int, help="Steps between checkpoints.  [default: a tenth of the run]"
            ),
            click.option(
                "--tensorboard/--no-tensorboard",
                default=None,
                help="Also write what is logged for TensorBoard, into OUT/tensorboard.  [default: no]",
            ),
            click.option("--validation", type=int, help="Training records kept aside for a validation schedule."),
            click.option(
                "--validation-public",
                is_flag=True,
                default=None,
                help="These records are public: looks at them cost nothing.",
            ),
            click.option("--validation-data", help="For data of your own: public validation records."),
            click.option("--records", type=int, help="A public number in place of the exact size of the data."),
            click.option(
                "--searched", type=int, help="Settings tried before this run and not charged; certified as such."
            ),
            click.option(
                "--allow-nonprivate",
                is_flag=True,
                default=None,
                help="Allow a run without privacy: --noise-multiplier 0, or a method that is not private.",
            ),
        ]
    ):
        command = option(command)
    return command


def given_options(flags: dict[str, Any]) -> dict[str, Any]:
    """The fields of a configuration that were given on the command line."""
    given = {name: value for name, value in flags.items() if value is not None}
    for name in _NUMBER_OR_AUTO:
        if name in given and given[name].isdigit():
            given[name] = int(given[name])
    return given


def config_of(given: dict[str, Any], config_file: str | None) -> TrainConfig:
    """The configuration with the fields in ``given``, which win over those of the TOML file, if there is one."""
    from adadp.app.config import TrainConfig  # noqa: PLC0415  # `adadp --help` must not wait for it

    if config_file is None:
        return TrainConfig.from_dict(given)
    return TrainConfig.from_toml(Path(config_file), **given)
