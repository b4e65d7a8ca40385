"""The options of a training run, made from the settings of ``TrainConfig``, and help in sections."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Executor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import click

from adadp.app.config import GROUPS, TrainConfig, read_toml
from adadp.app.settings import Setting, flag_of, settings_of

_Command = TypeVar("_Command", bound=click.Command)

_OTHER = "Other"
_GROUPS = (
    dict.fromkeys(("--out", "--resume", "--config"), GROUPS[0])
    | dict.fromkeys(("--json", "--help"), _OTHER)
    | {"--nproc": GROUPS[-1]}
)
"""Where options that are no settings are shown."""
_FILE_KEYS = "adadp.file_keys"


def section(title: str) -> Callable[[_Command], _Command]:
    """Show a command under ``title`` in ``adadp --help``; one without a section is under More."""

    def decorate(command: _Command) -> _Command:
        command.section = title  # type: ignore[attr-defined]  # commands of other packages need no class of ours
        return command

    return decorate


executor_option = click.option(
    "--executor",
    metavar="NAME",
    help="Who makes the runs: processes:N, dask:HOST:PORT, or package.module:function that returns an executor.",
)


trust_option = click.option(
    "--trust-code", is_flag=True, help="Import code that the folder names, module:Name: it can do all that you can."
)


def visible(text: str) -> str:
    """``text``, which may come from a stranger's file, without what would control the terminal."""
    return "".join(each if each.isprintable() or each in "\n\t" else repr(each)[1:-1] for each in text)


@contextmanager
def given_executor(name: str | None) -> Iterator[Executor | None]:
    """The executor that ``--executor`` names; None if it was not given."""
    from adadp.app.sweeps.executors import executor_named  # noqa: PLC0415  # not for --help

    if name is None:
        yield None
        return
    with executor_named(name) as executor:
        yield executor


class RunCommand(click.Command):
    """A command with the options of a run. Its help has those of most runs first, then those of ``own``, its own."""

    def __init__(self, *args: Any, params: Sequence[click.Parameter] = (), own: str = "", **attributes: Any) -> None:
        attributes["params"] = [*options_of(TrainConfig), *params]
        super().__init__(*args, **attributes)
        self._groups = {flag_of(each.name): each.group for each in settings_of(TrainConfig).values()} | _GROUPS
        self._own = own

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        sections: dict[str, list[tuple[str, str]]] = {}
        for each in self.get_params(ctx):
            record = each.get_help_record(ctx)
            if record is not None:
                sections.setdefault(self._groups.get(each.opts[-1], self._own), []).append(record)
        for name in dict.fromkeys((GROUPS[0], self._own, *GROUPS[1:], _OTHER)):
            if name in sections:
                with formatter.section(name):
                    formatter.write_dl(sections[name])


def _number_or_text(value: str) -> int | str:
    return int(value) if value.isdigit() else value  # text other than auto is refused by the configuration


def options_of(config: type) -> list[click.Option]:
    """One option for every setting that ``config`` declares."""
    return [_option(each) for each in settings_of(config).values()]


def _option(each: Setting) -> click.Option:
    flags = flag_of(each.name) + (f"/{flag_of('no_' + each.name)}" if each.kind is bool else "")
    kind: Any = click.Choice(each.choices) if each.choices else _number_or_text if each.auto else each.kind
    metavar = "INTEGER|auto" if each.auto else None
    return click.Option([flags], type=kind, metavar=metavar, default=None, help=each.explained(flag_of))


def given_options(flags: dict[str, Any]) -> dict[str, Any]:
    """The fields of a configuration that were given on the command line."""
    return {name: value for name, value in flags.items() if value is not None}


def config_of(given: dict[str, Any], config_file: str | None) -> TrainConfig:
    """The configuration with the fields in ``given``, which win over those of the TOML file, if there is one."""
    values = {} if config_file is None else read_toml(Path(config_file))
    name_as_in_file(key for key in values if key not in given)
    return TrainConfig.from_dict(values, **given)


def name_as_in_file(keys: Iterable[str]) -> None:
    """Let errors call these settings by their keys in a file, where the user wrote them, and not by their options."""
    click.get_current_context().meta[_FILE_KEYS] = set(keys)


def spelling(command: click.Command, ctx: click.Context) -> Callable[[str], str]:
    """How the settings of ``command`` are spelled: as options, or as the keys of the file they are in."""
    flags = {option[2:].replace("-", "_"): option for option in _options(command)}
    keys = ctx.meta.get(_FILE_KEYS, ())
    return lambda name: name if name in keys else flags.get(name, name)


def _options(command: click.Command) -> list[str]:
    """All options of a command and of those under it."""
    below = command.commands.values() if isinstance(command, click.Group) else ()
    own = [option for each in command.params for option in each.opts if option.startswith("--")]
    return own + [option for each in below for option in _options(each)]
