"""A certificate in the forms that others use: a page to print, a model card, an entry of a registry.

content.py   a run that verifies, and what is said of it     pdf.py        pages of A4
card.py      a model card in Markdown                        registry.py   the OpenDP deployments registry
writing.py   the file

What they say comes from the certificate alone, which is public, and from the day on which the run began.
"""

from adadp.app.report.exports.writing import KINDS, write_export

__all__ = ["KINDS", "write_export"]
