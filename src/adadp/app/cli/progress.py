"""Bars on a terminal; nothing where there is none."""

# rich takes a while to load, which `adadp --help` must not wait for: imported where a bar is drawn.
# ruff: noqa: PLC0415

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from adadp.app.train import Status

_SECONDS_BETWEEN_MOVES = 2.0
_SECONDS_BETWEEN_LINES = 10.0


@contextmanager
def training_bar(*, quiet: bool) -> Iterator[Callable[[Status], None] | None]:
    """A bar with step, epsilon so far, accuracy and about how much time is left.

    It moves now and then only, and its time has one digit: how long a step takes depends on how many records it has.
    """
    from rich.console import Console

    console = Console(stderr=True)
    if quiet or not console.is_terminal:
        yield None
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    from adadp.app.runs import coarse_seconds

    columns = (TextColumn("step"), MofNCompleteColumn(), BarColumn(), TextColumn("{task.fields[figures]}"))
    bar = Progress(*columns, console=console, transient=True)
    task = bar.add_task("training", total=None, figures="")
    began, first, shown = 0.0, 0, 0.0

    def watch(status: Status) -> None:
        nonlocal began, first, shown
        now = time.monotonic()
        if not began:
            bar.start()  # not before the first step: features have a bar of their own
            began, first = now, status.step
        if now - shown < _SECONDS_BETWEEN_MOVES and status.step < status.steps:
            return
        shown, done = now, status.step - first
        left = coarse_seconds((now - began) / done * (status.steps - status.step)) if done else None
        figures = f"{_figures(status)}{'' if left is None else f'  about {left} s left'}"
        bar.update(task, completed=status.step, total=status.steps, figures=figures)

    try:
        yield watch
    finally:
        bar.stop()


def _figures(status: Status) -> str:
    epsilon = status.epsilon_so_far()
    cost = "no privacy" if epsilon is None else f"epsilon {epsilon:.3f}"
    if status.rehearsal and epsilon is not None:
        cost = f"rehearsal, {cost} without a seed"
    if status.evaluation is not None:
        return f"{cost}  {status.evaluation.name} {status.evaluation.digits}"
    return cost if status.test_accuracy is None else f"{cost}  accuracy {status.test_accuracy:.4f}"


@contextmanager
def feature_bar() -> Iterator[Callable[[str, int, int], None]]:
    """How far the features are: a bar on a terminal, elsewhere a line on standard error now and then."""
    from rich.console import Console

    console = Console(stderr=True)
    if not console.is_terminal:
        yield _lines()
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    bar = Progress(
        TextColumn("{task.description}"),
        MofNCompleteColumn(),
        BarColumn(),
        TimeRemainingColumn(),
        console=console,
        transient=True,
    )
    tasks: dict[str, int] = {}

    def progress(what: str, done: int, total: int) -> None:
        if what not in tasks:
            bar.start()
            tasks[what] = bar.add_task(what, total=total)
        bar.update(tasks[what], completed=done)  # type: ignore[arg-type]
        if done == total:
            bar.stop()

    try:
        yield progress
    finally:
        bar.stop()


def _lines() -> Callable[[str, int, int], None]:
    """Lines for a log, the first after some seconds, so that short work says nothing."""
    import click

    last = time.monotonic()

    def progress(what: str, done: int, total: int) -> None:
        nonlocal last
        if time.monotonic() - last > _SECONDS_BETWEEN_LINES:
            click.echo(f"{what}: {done} of {total}", err=True)
            last = time.monotonic()

    return progress
