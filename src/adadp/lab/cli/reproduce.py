"""``adadp reproduce``: the tables and figures of the papers, run again."""

# torch and the rooms over it take seconds to load, which `adadp --help` must not wait for: imported in the command.
# ruff: noqa: PLC0415

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import click

from adadp.app.cli.options import executor_option, given_executor, section
from adadp.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from adadp.lab.reproduce import Store


_FOLDER = click.Path(file_okay=False, path_type=Path)


@section("Laboratory")
@click.command()
@click.argument("what", nargs=-1, metavar="[PAPER[/ITEM] | all]...")
@click.option("--quick", is_flag=True, help="A minute or two each: fewer cases and steps, one seed.")
@click.option("--seeds", type=click.IntRange(min=1), help="How many seeds.  [default: what the item says]")
@click.option("--again", is_flag=True, help="Measure also what has been measured.")
@click.option("--page", "only_page", is_flag=True, help="Measure nothing: write the pages from what there is.")
@click.option(
    "--out", type=_FOLDER, default="reproduced", show_default=True, help="Folder for results, pages and pictures."
)
@click.option("--experiments", type=_FOLDER, help="Folder with the experiments.  [default: those that come with AdaDP]")
@click.option("--threads", type=click.IntRange(min=1), help="Threads of PyTorch.  [default: all cores]")
@executor_option
@click.option("--json", "as_json", is_flag=True, help="Print JSON for programs.")
def reproduce(
    what: tuple[str, ...],
    *,
    quick: bool,
    seeds: int | None,
    again: bool,
    only_page: bool,
    out: Path,
    experiments: Path | None,
    threads: int | None,
    executor: str | None,
    as_json: bool,
) -> None:
    """Run the tables and figures of the papers again; without a name, list them and their state.

    \b
    adadp reproduce
    adadp reproduce xu-2020/example-lemma1
    adadp reproduce xu-2020/table1 --quick
    adadp reproduce abadi-2016 --out reproduced
    adadp reproduce abadi-2016 --executor dask:HOST:8786 --out /shared/reproduced
    """
    from adadp.lab import reproduce as lab

    if threads is not None and executor is not None:
        raise InputError(
            "--threads was given with --executor.",
            why="It sets the threads of this process, and others make the runs.",
            fix="Leave it out: processes:N share the cores, and other workers are told when they are started.",
        )
    known = lab.papers(experiments or lab.experiments_folder())
    items = lab.chosen_items(known, what or ["all"])
    stores = [lab.Store(item, out, quick) for item in items]
    if not what and not only_page:
        _show(stores, as_json)
        return
    if not only_page:
        if threads is not None:
            import torch

            torch.set_num_threads(threads)
        wanted = None if seeds is None else range(seeds)
        with given_executor(executor) as hands:
            for store in stores:
                lab.measure(
                    store, seeds=wanted, again=again, executor=hands, tell=lambda line: click.echo(line, err=True)
                )
    pages = [lab.write_paper(known[name], out, quick=quick) for name in dict.fromkeys(item.paper for item in items)]
    if not quick:
        pages.append(lab.write_inventory(known, out))
    _show(stores, as_json)
    if not as_json:
        click.echo(f"Pages: {', '.join(str(page) for page in pages)}")


def _show(stores: Sequence[Store], as_json: bool) -> None:
    """Every item with its state; of few items also their figures."""
    from rich.console import Console
    from rich.table import Table

    from adadp.lab.reproduce import judged

    found = [(store.item, judged(store)) for store in stores]
    if as_json:
        rows = [
            {
                "item": item.path,
                "title": item.title,
                "state": each.state.value,
                "met": each.met,
                "printed": each.printed,
                "figures": [
                    {"name": row.name, "ours": row.ours, "printed": row.printed, "met": row.verdict.value}
                    for row in each.rows
                ],
                "claims": [
                    {"says": claim.claim.says, "found": claim.found, "met": claim.verdict.value}
                    for claim in each.claims
                ],
            }
            for item, each in found
        ]
        click.echo(json.dumps(rows))
        return
    console = Console()
    if len(found) <= 3:
        for item, each in found:
            figures = Table("", "ours", "printed", "gap", "met", title=item.title, title_justify="left")
            for row in each.rows:
                figures.add_row(row.name, row.ours, row.printed, row.gap, row.verdict.value)
            console.print(figures)
            for claim in each.claims:
                console.print(f"{claim.claim.says}: {claim.verdict.value or 'not shown'} ({claim.found})", style=None)
    states = Table("item", "what", "state", "as printed")
    for item, each in found:
        states.add_row(item.path, item.title, each.state.value, f"{each.met} of {each.printed}" if each.printed else "")
    console.print(states)
