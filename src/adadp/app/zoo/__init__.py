"""Data sets, checksummed and cached, and the small networks the papers train on them.

What is promised
    * No byte is used before its SHA-256 was compared with the one in the catalogue, wherever the byte came from.
    * A file of the cache is whole or absent: what arrives is written under another name, checked, and renamed.
    * Features are scaled by public constants only (a pixel over 255, the declared range of a table's column). A mean or
      a maximum taken from the data would be a release of the data, and nothing here pays for one.
    * The split into training and test records is fixed and looks at no value.

What is not promised
    * A record is what the guarantee protects, and a record is not always a person. The catalogue says what it is.

``adadp.app.zoo.weights`` has weights that others trained on public data, had in the same way. ``adadp.app.zoo.models``
has the networks; it imports torch, which this module and the catalogue do not until data is loaded.
"""

from adadp.app.zoo.catalogue import DATA_SETS, find, load
from adadp.app.zoo.description import DataSet, Entry, LoadedData
from adadp.app.zoo.fetching import Fetched, FileState, cache_folder, cached_form, fetch, inspect
from adadp.app.zoo.sources import DataFile
from adadp.app.zoo.weights import WEIGHTS, Weights, efficientnet_weights, wordllama_files

__all__ = [
    "DATA_SETS",
    "WEIGHTS",
    "DataFile",
    "DataSet",
    "Entry",
    "Fetched",
    "FileState",
    "LoadedData",
    "Weights",
    "cache_folder",
    "cached_form",
    "efficientnet_weights",
    "fetch",
    "find",
    "inspect",
    "load",
    "wordllama_files",
]
