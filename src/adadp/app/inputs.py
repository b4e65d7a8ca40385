"""The records a configuration names: a data set of the catalogue, or files of the user's own."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from adadp.app import zoo
from adadp.app.config import TrainConfig
from adadp.app.features import CacheKey, Shape
from adadp.app.owndata import OwnData, load_own
from adadp.app.owndata.base import MaybeStored

Records = tuple[Tensor, Tensor]
"""Values and labels, one row per record."""


@dataclass(frozen=True, eq=False)
class Inputs:
    """What a run trains on. ``train`` is private, unless the data set is public; ``test`` must be public."""

    train: MaybeStored
    """On disk where it would take much memory."""
    test: Records | None
    class_names: tuple[str, ...]
    record: str
    """What one record is: the unit the guarantee protects."""
    validation: Records | None = None
    """Public records for the looks of a validation schedule, from a file of their own."""
    key: CacheKey | None = None
    """Whose features may be cached; None for a user's own records."""
    notes: tuple[str, ...] = ()
    encoder: dict[str, Any] | None = None
    """How a user's own file becomes records, as JSON."""

    @property
    def classes(self) -> int:
        return len(self.class_names)

    @property
    def shape(self) -> Shape:
        first = self.train[0]
        return tuple((first if isinstance(first, Tensor) else first.rows(torch.zeros(1, dtype=torch.long))).shape[1:])


def load_inputs(config: TrainConfig, *, own: bool) -> Inputs:
    """The records ``config.data`` names."""
    if own:
        found = _own(_load_own(config, config.test_data))
        if config.validation_data is None:
            return found
        return replace(found, validation=_load_own(config, config.validation_data).test)
    loaded = zoo.load(config.data)
    entry = loaded.description
    checksums = tuple(file.sha256 for file in entry.files)
    digest = hashlib.sha256("".join(checksums).encode()).hexdigest()
    return Inputs(
        train=loaded.train,
        test=loaded.test if len(loaded.test[1]) else None,
        class_names=tuple(str(number) for number in range(loaded.classes)),
        record=entry.record,
        key=CacheKey(zoo.cache_folder(), entry.name, checksums),
        notes=(f"Data set {entry.name}, {entry.train_records} training records; checksum of its files {digest}.",),
    )


def _load_own(config: TrainConfig, test_data: str | None) -> OwnData:
    return load_own(
        config.data,
        target=config.target,
        schema=config.schema,
        test_data=test_data,
        input_bound=config.input_bound,
    )


def _own(data: OwnData) -> Inputs:
    return Inputs(
        train=data.train,
        test=data.test,
        class_names=data.class_names,
        record=data.record,
        notes=(*data.disclosed, *data.public),
        encoder=data.encoder.as_json(),
    )
