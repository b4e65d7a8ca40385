"""``adadp audit``: attack a method with a record made to be found, and compare what is proved with what is claimed."""

# torch and the rooms over it take seconds to load, which `adadp --help` must not wait for: imported in the command.
# ruff: noqa: PLC0415

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

from adadp.app.cli.options import section

if TYPE_CHECKING:
    from adadp.app.audit import Audit


@section("Trust")
@click.command()
@click.argument("method")
@click.option("--trials", type=int, default=1000, show_default=True, help="Runs with the record, and as many without.")
@click.option(
    "--attack",
    type=click.Choice(["canary", "dirac", "loss", "both", "all"]),
    default="both",
    show_default=True,
    help="canary: a flag of its own in real data, seen in the weights. dirac: the strongest record, seen step by step. "
    "loss: the canary, seen in the loss of the final model. both: canary and dirac.",
)
@click.option("--epsilon", type=float, help="What the attacked run claims; the noise follows.  [default: 1]")
@click.option("--noise-multiplier", type=float, help="Noise multiplier instead; the claim follows.")
@click.option("--delta", type=float, default=1e-5, show_default=True, help="A larger one lets an attack show more.")
@click.option("--steps", type=int, default=25, show_default=True, help="Steps of each run.")
@click.option("--records", type=int, default=100, show_default=True, help="Records, the one looked for included.")
@click.option("--batch-size", "batch_size", type=int, default=50, show_default=True, help="Expected records per step.")
@click.option("--clip-norm", type=float, help="l2 bound of a record's gradient.  [default: 1]")
@click.option("--clip-rule", default="flat", show_default=True, help="Name of a clip rule, or a rule in full text.")
@click.option("--sampling", default="poisson", show_default=True, help="How batches are drawn, as in adadp train.")
@click.option("--neighbours", help="add-remove, replace-one or zero-out.  [default: by sampling]")
@click.option("--best-of", type=float, help="Attack the best of a Poisson number of runs with this mean, as in tune.")
@click.option("--rows", type=int, default=1, show_default=True, help="Rows of the person who is looked for.")
@click.option("--optimizer", type=click.Choice(["sgd", "adam", "rms"]), help="[default: by method]")
@click.option("--lr", type=float, help="Learning rate.  [default: 0.05]")
@click.option(
    "--data", type=click.Choice(["cancer", "mnist"]), default="cancer", show_default=True, help="For the canary."
)
@click.option("--from", "source_dir", type=click.Path(), help="Folder that holds the files of --data.")
@click.option("--confidence", type=float, default=0.95, show_default=True, help="With which the bound holds.")
@click.option("--seed", type=int, default=0, show_default=True, help="The same seed gives the same runs.")
@click.option("--out", type=click.Path(file_okay=False), help="Folder for audit.json and audit.png.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON for programs.")
def audit(method: str, out: str | None, as_json: bool, **options: Any) -> None:
    """Prove by attack how much a training method leaks. Exit code 1 if that is more than it claims.

    METHOD is that of adadp train: dpsgd, adadp, adal, adadp-published:clip=batch, ... Methods that are not private may
    be attacked too; all data is public. Or it is a released feature stage, such as standardise or pca:dim=4.

    \b
    adadp audit dpsgd --epsilon 4 --batch-size 100 --steps 4
    adadp audit adadp:start=3 --epsilon 2 --delta 1e-2
    adadp audit adadp-published --noise-multiplier 8 --out audits/published
    """
    from adadp.app.audit import audit_method

    with _bar(quiet=as_json) as watch:
        found = audit_method(method, watch=watch, **options)
    written = () if out is None else found.write(out)
    if as_json:
        click.echo(json.dumps(found.summary(), allow_nan=False))
    else:
        _show(found)
        for path in written:
            click.echo(f"wrote {path}", err=True)
    sys.exit(1 if found.refuted else 0)


def _show(found: Audit) -> None:
    plan = found.plan.describe()
    click.echo(
        f"{found.method}: noise {plan['noise']}, q = {plan['sampling_probability']:g}, {plan['steps']} steps, "
        f"clip {plan['clip_norm']}, {plan['neighbours']} neighbours"
    )
    word = "claimed" if found.not_private else "certified"
    click.echo(f"{word} epsilon {found.claimed.epsilon:.4f} ({found.claimed.accountant})")
    for each in found.attacks:
        bound = each.bound
        click.echo(
            f"{each.name}: epsilon at least {bound.epsilon_low:.4f} by the score '{each.score}'; "
            f"{len(each.trials.scores_with)} runs a side can show {bound.largest_possible:.4f} at most"
        )
        click.echo(f"  {bound.describe()}")
    if found.not_private:
        click.echo(f"Not private: {found.not_private}")
    click.echo(found.verdict())


@contextmanager
def _bar(*, quiet: bool) -> Iterator[Callable[[int, int], None] | None]:
    """How many runs are done, on a terminal."""
    from rich.console import Console

    console = Console(stderr=True)
    if quiet or not console.is_terminal:
        yield None
        return
    from rich.progress import Progress

    with Progress(console=console, transient=True) as bar:
        task = bar.add_task("runs", total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)
