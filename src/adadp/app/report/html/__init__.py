"""The page of a run or a comparison: one HTML file with everything in it, and its charts as files.

``page.py`` is what a page says, as data; ``run_page.py`` and ``comparison_page.py`` make one; ``render.py`` turns it
into HTML with the files in ``assets/``; ``export.py`` draws the same charts with matplotlib.
"""

from adadp.app.report.html.comparison_page import comparison_page
from adadp.app.report.html.render import render
from adadp.app.report.html.run_page import run_page
from adadp.app.report.html.writing import page_of, write_report

__all__ = ["comparison_page", "page_of", "render", "run_page", "write_report"]
