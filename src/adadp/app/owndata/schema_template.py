"""A schema to fill in, from the names of the columns and, of Parquet, their types; no value is looked at."""

from __future__ import annotations

import json
import re

from adadp.app.owndata.base import Path
from adadp.app.owndata.tables import ParquetTable, open_table

_TOP = """\
# What is publicly known about {file}. Write only what you know without looking at its values: ranges from what a
# column means, categories from the form that was filled in. Then run: adadp data check FILE --schema THIS
#   {{kind = "number", low = 0, high = 100}}          clamped to low..high; or bounds = "private", which costs privacy
#   {{kind = "category", values = ["a", "b"]}}        anything else is "other"; buckets = 64 needs no list
#   {{kind = "date", low = 2000-01-01, high = 2030-12-31}}
#   {{kind = "text"}}     {{kind = "ignore"}}
# log = true for amounts of which most are small, default = 0 for the value most records have, missing = true (or texts
# such as ["?"]) where a number or date may be empty, outside = "refuse" to be told of values out of range.

[target]
column = ""                  # the column to predict; take its line below out
classes = []                 # every class, such as ["no", "yes"]

# [unit]
# column = "patient_id"        # whose rows are protected together, where somebody has several; leave it out below
{delimiter}
[columns]
"""


def draft_schema(path: Path) -> str:
    """A draft of the schema of the table ``path``, as TOML: one line for each column."""
    table = open_table(path)
    separators = [mark for mark in ";\t|" if mark in table.header[0]] if len(table.header) == 1 else []
    delimiter = ""
    if separators:
        table = open_table(path, separators[0])
        delimiter = f"\n[file]\ndelimiter = {_quoted(separators[0])}\n"
    kinds = table.kinds() if isinstance(table, ParquetTable) else {}
    lines = [f'{_quoted(name)} = {{kind = "{kinds.get(name, "")}"}}\n' for name in table.header]
    return _TOP.format(file=_comment(table.path.name), delimiter=delimiter) + "".join(lines)


def _quoted(text: str) -> str:
    """``text`` as a TOML string, which is JSON's but for one control character; a plain name as it is."""
    if re.fullmatch(r"[A-Za-z0-9_-]+", text):
        return text
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def _comment(text: str) -> str:
    """``text`` with nothing that could end a comment."""
    return "".join(char if char.isprintable() else "?" for char in text)
