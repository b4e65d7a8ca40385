"""A schema to fill in, from the names of the columns alone: no value of the file is looked at."""

from __future__ import annotations

import json

from adadp.app.owndata.base import Path
from adadp.app.owndata.tables import open_table

_TOP = """\
# What is publicly known about {file}. Write here only what you know without looking at its values: ranges from
# what the column means, categories from the form that was filled in. Nothing is taken from the data.

[target]
# column = "income"                  # the column to predict; leave it out below
# classes = ["<=50K", ">50K"]        # every class

# [unit]
# column = "patient_id"              # whose rows are protected together, where somebody has several; leave it out below
{delimiter}
[columns]
# For each column take the mark # from one of its lines and put in what is known.
#   number    clipped to low..high. Not known: bounds = "private" instead of low and high; releasing them costs privacy.
#             missing = true allows empty cells, missing = ["?", "NA"] these texts too.
#   category  values = [...] lists them, anything else is "other"; buckets = 64 hashes any text, no list needed.
#   ignore    not used.
"""


def draft_schema(path: Path) -> str:
    """A draft of the schema of the table ``path``, as TOML with every choice commented out."""
    table = open_table(path)
    separators = [mark for mark in ";\t|" if mark in table.header[0]] if len(table.header) == 1 else []
    delimiter = ""
    if separators:
        table = open_table(path, separators[0])
        delimiter = f"\n[file]\ndelimiter = {_quoted(separators[0])}\n"
    lines = [_TOP.format(file=_comment(table.path.name), delimiter=delimiter)]
    for name in map(_quoted, table.header):
        lines.append(
            f'# {name} = {{kind = "number", low = 0, high = 100}}\n'
            f'# {name} = {{kind = "category", values = ["a", "b"]}}\n'
            f'# {name} = {{kind = "category", buckets = 64}}\n'
            f'# {name} = {{kind = "ignore"}}\n'
        )
    return "\n".join(lines)


def _quoted(text: str) -> str:
    """``text`` as a TOML string, which is JSON's but for one control character."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def _comment(text: str) -> str:
    """``text`` with nothing that could end a comment."""
    return "".join(char if char.isprintable() else "?" for char in text)
