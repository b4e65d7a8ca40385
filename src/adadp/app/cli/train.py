"""``adadp train`` and ``adadp verify``: one command to a trained private model, one to check what it claims."""

# torch and the rooms over it take seconds to load, which `adadp --help` must not wait for: imported in the commands.
# ruff: noqa: PLC0415

from __future__ import annotations

import json
import sys
from contextlib import nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from adadp.app.cli.options import RunCommand, config_of, given_options, section, trust_option, visible
from adadp.app.cli.progress import feature_bar, training_bar
from adadp.app.launch import is_one_of_several, launch, processes, speaks
from adadp.app.settings import flag_of
from adadp.errors import InputError, Interrupted
from adadp.files import contents, json_of

if TYPE_CHECKING:
    from adadp.app.config import TrainConfig
    from adadp.app.train import TrainResult


@section("Train")
@click.command(cls=RunCommand)
@click.option("--out", type=click.Path(file_okay=False), help="Folder for the model, certificate, ledger, metrics.")
@click.option("--resume", type=click.Path(file_okay=False), help="Resume the run in this folder.")
@click.option("--moved", is_flag=True, help="With --resume: it ran on another machine, and no other copy went on.")
@trust_option
@click.option("--config", "config_file", type=click.Path(dir_okay=False), help="TOML file; flags win over it.")
@click.option("--nproc", type=click.IntRange(1), help="Train in so many processes on this machine.  [default: 1]")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object as the last line.")
def train(  # noqa: PLR0917
    out: str | None,
    config_file: str | None,
    resume: str | None,
    moved: bool,
    trust_code: bool,
    nproc: int | None,
    as_json: bool,
    **flags: Any,
) -> None:
    """Train a model privately, and certify it.

    \b
    adadp train --data cancer --epsilon 2 --delta 1e-4 --out runs/cancer
    adadp train --data mnist --epsilon 2 --out runs/mnist
    adadp train --data mnist --features pca:dim=60,noise_multiplier=7 --model mnist-mlp --epsilon 2 --delta 1e-5 --json
    adadp train --data table:people.csv --schema people.toml --epsilon 1 --delta 1e-6 --out runs/people
    adadp train --resume runs/mnist
    adadp train --data mnist --epsilon 2 --out runs/mnist --nproc 4
    torchrun --nproc-per-node 4 -m adadp train --data mnist --epsilon 2 --out runs/mnist
    """
    given = given_options(flags)
    if resume is not None:
        _only_resume(given, out, config_file)
    elif moved or trust_code:
        given_alone = "--moved" if moved else "--trust-code"
        raise InputError(
            f"{given_alone} was given without --resume.", why="It says something about a run that goes on."
        )
    else:
        _require_out(config_of(given, config_file), out)
    if nproc is not None and nproc > 1 and not is_one_of_several():
        sys.exit(launch(nproc, sys.argv[1:]))
    from adadp.app import start

    quiet = as_json or not speaks()
    features = feature_bar() if speaks() else nullcontext()
    try:
        with training_bar(quiet=quiet) as watch, features as progress, processes():
            if resume is not None:
                result = start.resume(resume, moved=moved, trust_code=trust_code, watch=watch, progress=progress)
            else:
                result = start.start(config_of(given, config_file), out, watch=watch, progress=progress)
    except Interrupted as stopped:
        if speaks():
            click.echo(f"{stopped.what} {stopped.fix}".strip(), err=True)
        sys.exit(130)
    except KeyboardInterrupt:
        place = resume or out
        again = f" If the run had begun, go on with: adadp train --resume {place}" if place else ""
        if speaks():
            click.echo(f"Interrupted at once, before the step at hand was finished.{again}", err=True)
        sys.exit(130)
    if speaks():
        _show(result, as_json)


@section("Trust")
@click.command()
@click.argument("folder", type=click.Path(file_okay=False))
@click.option("--key", type=click.Path(dir_okay=False), help="Public keys of whom you trust: the run must be signed.")
@click.option("--budget", type=click.Path(dir_okay=False), help="Budget of the data: the run must be counted there.")
@trust_option
@click.option("--json", "as_json", is_flag=True, help="Print JSON for programs.")
def verify(folder: str, key: str | None, budget: str | None, trust_code: bool, as_json: bool) -> None:
    """Check a finished run: its ledger, its model, and epsilon computed again. Exit code 1 if anything is wrong.

    Needs neither PyTorch nor code of your own that the run used; what could not be checked without it is said. A run
    with a seed verifies as what it is, a rehearsal. Whoever can write the folder can write all of it anew, which
    only a signature tells (adadp sign).

    \b
    adadp verify runs/mnist
    adadp verify runs/mnist --key owner.pub
    adadp verify runs/people --budget people.budget
    """
    from adadp.app.report.attacks import stated_attacks
    from adadp.app.report.wording import plain_words
    from adadp.app.signing import signature_check, what_is_claimed
    from adadp.app.verify import verify_run
    from adadp.certificate.wording import stated

    signed = [] if key is None else [signature_check(folder, key)]
    checks = [*verify_run(folder, budget, trust_code=trust_code), *signed]
    passed = all(check.passed for check in checks)
    certificate = json_of(contents(Path(folder) / "certificate.json")) if passed else None
    if as_json:
        rows = [{"check": each.name, "passed": each.passed, "detail": each.detail} for each in checks]
        said = {} if certificate is None else {**stated(certificate), **stated_attacks(certificate)}
        click.echo(json.dumps({"verified": passed, "signed": key is not None and passed, **said, "checks": rows}))
    else:
        for each in checks:
            click.echo(visible(f"{'ok  ' if each.passed else 'FAIL'}  {each.name}: {each.detail}"))
        click.echo("This run does NOT verify." if certificate is None else visible(plain_words(certificate)))
        if passed and key is None:
            click.echo(what_is_claimed(folder))
    sys.exit(0 if passed else 1)


@section("Trust")
@click.command()
@click.argument("folder", type=click.Path(file_okay=False))
@click.option("--key", required=True, type=click.Path(dir_okay=False), help="Private Ed25519 key, of OpenSSH or PEM.")
def sign(folder: str, key: str) -> None:
    """Sign every file of a finished run that verifies, so that others can tell it from a forgery.

    The signature is an in-toto statement in a DSSE envelope, signature.dsse.json in the folder.

    \b
    ssh-keygen -t ed25519 -f owner
    adadp sign runs/mnist --key owner
    adadp verify runs/mnist --key owner.pub
    """
    from adadp.app import signing
    from adadp.app.verify import verify_run

    failed = [check for check in verify_run(folder) if not check.passed]
    if failed:
        raise InputError(
            f"The run in {folder} does not verify: {failed[0].name}: {failed[0].detail}",
            why="A signature would vouch for it.",
            fix=f"See adadp verify {folder}.",
        )
    place = signing.sign(folder, key, lambda: click.prompt("Passphrase of the key", hide_input=True, err=True))
    click.echo(f"Signed: {place}")


def _require_out(config: TrainConfig, out: str | None) -> None:
    from adadp.app.owndata import is_own

    if out is None and is_own(config.data):
        raise InputError(
            "A run on data of your own needs a folder.",
            why="It would spend epsilon, and leave neither the model nor the record of what was spent.",
            fix="Pass --out.",
        )


def _only_resume(given: dict[str, Any], out: str | None, config_file: str | None) -> None:
    others = [*given, *(["out"] if out else []), *(["config"] if config_file else [])]
    if others:
        raise InputError(
            f"--resume was given together with {', '.join(map(flag_of, others))}.",
            why="A run goes on as it was planned and charged; nothing about it can change.",
            fix="Leave the other options out.",
        )


def _show(result: TrainResult, as_json: bool) -> None:
    from adadp.app.figures import lines
    from adadp.app.report.attacks import stated_attacks
    from adadp.certificate.wording import stated

    plan, certificate = result.plan, result.certificate
    if as_json:
        summary = {
            **stated(certificate),
            **stated_attacks(certificate),
            "test_accuracy": result.test_accuracy,
            "balanced_accuracy": result.balanced_accuracy,
            **({} if result.evaluation is None else {"evaluation": asdict(result.evaluation)}),
            "headline": result.headline,
            "delta": certificate["delta"],
            "noise_multiplier": plan.noise_multiplier_at(0),
            "steps": certificate["steps_done"],
            "seconds": result.seconds,
            "method": certificate["method"],
            "features": [] if "features" not in certificate else certificate["features"]["stages"],
            "out": None if result.out is None else str(result.out),
        }
        click.echo(json.dumps(summary))
        return
    click.echo(result.describe())
    if result.figures is not None:
        for line in lines(result.figures):
            click.echo(line)
    elif result.test_accuracy is not None:
        click.echo(f"Test accuracy {result.test_accuracy:.4f}.")
    elif result.evaluation is not None:
        click.echo(f"On the test data: {result.evaluation}.")
    if result.holdout is not None:
        for line in lines(result.holdout):
            click.echo(line)
    click.echo(f"It took at most {result.seconds} s.")
    if result.out is not None:
        click.echo(
            f"Everything is in {result.out}, with a page to read: report.html. Check it with: adadp verify {result.out}"
        )
    else:
        click.echo("Nothing of it was kept: pass --out to have the model, its certificate and a page.")
