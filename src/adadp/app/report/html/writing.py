"""From a folder to its ``report.html``.

a folder with results.json                      the page of a comparison
a folder with config.toml                       the page of a run
neither                                         ``InputError``
a results.json that is no comparison's          ``InputError``
an error or a kill before the end               the previous page, whole
the same files again                            the same bytes: no clock, no path of the machine
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from adadp.app.report.html.comparison_page import comparison_page
from adadp.app.report.html.page import Page
from adadp.app.report.html.render import render
from adadp.app.report.html.run_page import run_page
from adadp.app.runs import RunFolder
from adadp.app.runs.atomic import write_atomic
from adadp.errors import AdaDPError, InputError
from adadp.files import contents, json_of

FILE = "report.html"


def page_of(path: str | os.PathLike[str] | RunFolder) -> Page:
    """The page of the run or the comparison in the folder ``path``."""
    with told(path):
        return _page_of(path)


@contextmanager
def told(path: str | os.PathLike[str] | RunFolder) -> Iterator[None]:
    """Files that lack something, or have it in another form, are one error."""
    try:
        yield
    except AdaDPError:
        raise
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError, RecursionError) as error:
        folder = path.path if isinstance(path, RunFolder) else path
        raise InputError(
            f"The files in {folder} do not make a page: {type(error).__name__} {error}.",
            why="One of them is not as AdaDP writes it: certificate.json, figures.json, holdout.json or results.json.",
            fix="Put the files of the run back. adadp verify says which of them were changed.",
        ) from error


def _page_of(path: str | os.PathLike[str] | RunFolder) -> Page:
    if isinstance(path, RunFolder):
        return run_page(path)
    folder = Path(path)
    results = folder / "results.json"
    if results.is_file():
        try:
            content = json_of(contents(results))
        except (OSError, ValueError) as error:
            raise InputError(f"{results} cannot be read: {error}.", fix="Run the comparison again.") from error
        return comparison_page(content)
    if (folder / "config.toml").is_file():
        return run_page(RunFolder.open(folder))
    raise InputError(
        f"There is nothing to report on in {folder}.",
        why="It has neither config.toml (a run) nor results.json (a comparison).",
        fix="Pass the folder that adadp train --out or adadp compare --out wrote.",
    )


def write_report(path: str | os.PathLike[str] | RunFolder, out: str | os.PathLike[str] | None = None) -> Path:
    """Write the page of the run or the comparison in the folder ``path``, and return where it is.

    It is ``report.html`` in that folder, or the file ``out``.
    """
    folder = path.path if isinstance(path, RunFolder) else Path(path)
    target = folder / FILE if out is None else Path(out)
    with told(path):
        page = render(page_of(path)).encode("utf-8")
    if not target.parent.is_dir():
        raise InputError(f"There is no folder {target.parent}.", fix="Make it first, or choose another file.")
    write_atomic(target, page)
    return target
