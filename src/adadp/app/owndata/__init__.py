"""The user's own data: tables, arrays and folders of images, read by public declarations alone.

``load_own`` reads data to train on, ``draft_schema`` starts a schema, ``check_table`` lists what is wrong with a
table and its schema, the ``Encoder`` a run has saved reads data to predict from. docs/own-data.md has an example.
"""

from adadp.app.owndata.arrays import array_features
from adadp.app.owndata.base import Encoder, OwnData
from adadp.app.owndata.loading import (
    check_table,
    encoder_from_json,
    is_own,
    load_own,
    own_path,
    private_positions,
)
from adadp.app.owndata.schema import load_schema
from adadp.app.owndata.schema_template import draft_schema

__all__ = [
    "Encoder",
    "OwnData",
    "array_features",
    "check_table",
    "draft_schema",
    "encoder_from_json",
    "is_own",
    "load_own",
    "load_schema",
    "own_path",
    "private_positions",
]
