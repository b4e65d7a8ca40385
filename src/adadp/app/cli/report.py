"""``adadp report``: the page of a run or of a comparison."""

# torch and the rooms over it take seconds to load, which `adadp --help` must not wait for: imported in the command.
# ruff: noqa: PLC0415

from __future__ import annotations

from pathlib import Path

import click

from adadp.app.cli.options import section
from adadp.errors import InputError
from adadp.files import contents, json_of


@section("Trust")
@click.command()
@click.argument("folder", type=click.Path(file_okay=False))
@click.option(
    "--format",
    "kind",
    type=click.Choice(["html", "pdf", "model-card", "opendp"]),
    default="html",
    help="A page, or the certificate as a page to print, a model card, an entry of the OpenDP registry.",
    show_default=True,
)
@click.option("--out", type=click.Path(dir_okay=False), help="File to write.  [default: report.html in FOLDER]")
@click.option("--export", "pictures", type=click.Path(file_okay=False), help="Folder for the charts: CSV, PNG, SVG.")
@click.option("--open", "show", is_flag=True, help="Open the page in the browser.")
def report(folder: str, kind: str, out: str | None, pictures: str | None, show: bool) -> None:
    """Write the page of the run or the comparison in FOLDER: one HTML file that needs nothing else.

    Other formats are written from the certificate of a run that verifies.

    \b
    adadp report runs/mnist --open
    adadp report runs/compare --out compare.html
    adadp report runs/mnist --export figures
    adadp report runs/mnist --format pdf
    """
    if kind != "html":
        _export(folder, kind, out, pictures, show)
        return
    from adadp.app.figures import lines
    from adadp.app.report.html import page_of, write_report
    from adadp.app.report.html.writing import told

    target = write_report(folder, out)
    click.echo(f"The page is {target}.")
    figures = Path(folder) / "figures.json"
    if figures.exists():
        with told(folder):
            said = lines(json_of(contents(figures)))
        for line in said:
            click.echo(line)
    if pictures is not None:
        from adadp.app.report.html.export import export

        written = export(page_of(folder), Path(pictures))
        click.echo(f"{len(written)} files of charts are in {pictures}.")
    if show and not _opened(target):
        click.echo("No browser could be opened; open the file yourself.", err=True)


def _export(folder: str, kind: str, out: str | None, pictures: str | None, show: bool) -> None:
    from adadp.app.report.exports import write_export

    if pictures is not None:
        raise InputError(f"--export was given together with --format {kind}.", fix="Leave one of them out.")
    target = write_export(folder, kind, out)
    click.echo(f"The certificate is in {target}.")
    if kind != "pdf":
        click.echo("Complete what is marked TO DO before you publish it.")
    if show and not _opened(target):
        click.echo("No viewer could be opened; open the file yourself.", err=True)


def _opened(target: Path) -> bool:
    import webbrowser

    return webbrowser.open(target.absolute().as_uri())
