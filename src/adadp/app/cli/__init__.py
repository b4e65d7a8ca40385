"""The ``adadp`` command. Thin: every command turns its options into one library call and prints the answer.

Heavy imports (numpy, scipy, matplotlib, rich, torch) happen inside the commands, so that ``adadp --help`` is instant.
"""

from __future__ import annotations

import re
from typing import Any

import click

from adadp import __version__
from adadp.app.cli.accounting import calibrate, delta, epsilon
from adadp.app.cli.audit import audit
from adadp.app.cli.data import data
from adadp.app.cli.ledger import ledger
from adadp.app.cli.plan import plan
from adadp.app.cli.predict import evaluate, predict
from adadp.app.cli.report import report
from adadp.app.cli.train import train, verify
from adadp.app.cli.tune import tune
from adadp.errors import AdaDPError
from adadp.registry import Registry


class _BadInput(click.ClickException):
    """Exit code 2 and a message, never a traceback, for what the user can mend."""

    exit_code = 2


class _Commands(click.Group):
    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except AdaDPError as error:
            command = self.get_command(ctx, ctx.invoked_subcommand or "") or self
            parts = (error.what, error.why, in_flags(error.fix, command))
            raise _BadInput("\n  ".join(part for part in parts if part)) from error


_ASKED = re.compile(r"\b(?:pass|give|leave|say) .*?(?=[.:;](?:\s|$)|$)", re.IGNORECASE | re.DOTALL)
"""What an advice asks for: from a verb to the end of its clause."""
_WORD = re.compile(r"(?<![\w./:-])[a-z_]+(?![\w(-]|\.\w| ?=)")
"""A word that is no piece of a path or of Python, such as ``plan.event()`` or ``epsilon=2``."""
_BEFORE = re.compile(r"(?:\b(?:pass|give|leave|leave out|one of|as|or|and|with|neither|nor) |, )$", re.IGNORECASE)
"""What stands before a setting of one word; in "a larger batch" it is plain English."""
_NOT_AFTER = re.compile(r" (?:of|in|the)\b| as \(")
"""What does not stand after one: "records of shape", "plan the run" and "data as (features, labels)" name none."""


def in_flags(advice: str, command: click.Command) -> str:
    """``advice``, which names settings as Python does, with the options of ``command`` in their place."""
    options = [option for each in command.params for option in each.opts if option.startswith("--")]
    flags = {option[2:].replace("-", "_"): option for option in options}

    def flag(word: re.Match[str]) -> str:
        name, before, after = word[0], word.string[: word.start()], word.string[word.end() :]
        meant = "_" in name or (before[-1:], after[:1]) == ("(", ")")
        if name != "out":  # "leave out" and "leave it out" name no folder
            meant = meant or (_BEFORE.search(before) is not None and _NOT_AFTER.match(after) is None)
        return flags.get(name, name) if meant else name

    return _ASKED.sub(lambda asked: _WORD.sub(flag, asked[0]), advice)


_OURS = (plan, train, tune, verify, predict, evaluate, data, epsilon, delta, calibrate, ledger, report, audit)
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
