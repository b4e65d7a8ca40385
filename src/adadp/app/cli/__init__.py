"""The ``adadp`` command. Thin: every command turns its options into one library call and prints the answer.

Heavy imports (numpy, scipy, matplotlib, rich, torch) happen inside the commands, so that ``adadp --help`` is instant.
"""

from __future__ import annotations

from typing import Any

import click

from adadp import __version__
from adadp.app.cli.accounting import calibrate, delta, epsilon
from adadp.app.cli.audit import audit
from adadp.app.cli.budget import budget
from adadp.app.cli.data import data
from adadp.app.cli.ledger import ledger
from adadp.app.cli.options import spelling, visible
from adadp.app.cli.plan import plan
from adadp.app.cli.predict import evaluate, predict
from adadp.app.cli.report import report
from adadp.app.cli.train import sign, train, verify
from adadp.app.cli.tune import tune
from adadp.app.launch import speaks
from adadp.errors import AdaDPError
from adadp.registry import Registry

_MORE = "More"


class _BadInput(click.ClickException):
    """Exit code 2 and a message, never a traceback, for what the user can mend."""

    exit_code = 2


class _Commands(click.Group):
    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except AdaDPError as error:
            if error.told and not speaks():
                ctx.exit(_BadInput.exit_code)
            command = self.get_command(ctx, ctx.invoked_subcommand or "") or self
            raise _BadInput(visible("\n  ".join(error.parts(spelling(command, ctx))))) from error

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        return list(self.commands)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        sections: dict[str, list[tuple[str, str]]] = {}
        for name, command in self.commands.items():
            short = command.get_short_help_str(formatter.width - 6 - max(map(len, self.commands)))
            sections.setdefault(getattr(command, "section", _MORE), []).append((name, short))
        for title in sorted(sections, key=_MORE.__eq__):
            with formatter.section(title):
                formatter.write_dl(sections[title])


_OURS = (
    train,
    tune,
    plan,
    predict,
    evaluate,
    verify,
    sign,
    report,
    audit,
    budget,
    ledger,
    epsilon,
    delta,
    calibrate,
    data,
)
_COMMANDS: Registry[click.Command] = Registry(
    "command",
    {str(each.name): each for each in _OURS},
    lambda found: found if isinstance(found, click.Command) else None,
)
"""Ours and those of installed packages, which are loaded when they are asked for."""


@click.group(
    cls=_Commands,
    commands=_COMMANDS,  # click only reads it
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
)
@click.version_option(__version__, prog_name="adadp")
def main() -> None:
    """Train PyTorch models under differential privacy, with a guarantee that is true."""
