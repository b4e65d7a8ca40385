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
from adadp.app.figures import Groups
from adadp.app.owndata import OwnData, load_own
from adadp.app.owndata.base import MaybeStored
from adadp.app.owndata.tabular import TableEncoder
from adadp.app.targets import Target
from adadp.app.units import ROWS_PER_UNIT, Units
from adadp.errors import InputError

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
    units: Units | None = None
    """Which rows of ``train`` belong together; None: each is a record."""

    targets: tuple[Target, ...] = ()
    """Those that are numbers."""
    groups: Groups | None = None
    """The groups of the test records."""

    @property
    def outputs(self) -> int:
        """How many numbers the network says of a record: a score for each class, or one for each target."""
        return len(self.targets) or len(self.class_names)

    @property
    def size(self) -> int:
        """How many records are protected: rows, or units."""
        return len(self.train[0]) if self.units is None else len(self.units)

    @property
    def shape(self) -> Shape:
        first = self.train[0]
        return tuple((first if isinstance(first, Tensor) else first.rows(torch.zeros(1, dtype=torch.long))).shape[1:])


def load_inputs(config: TrainConfig, *, own: bool) -> Inputs:
    """The records ``config.data`` names."""
    if own:
        found = _own(_load_own(config, config.test_data), config)
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


def _groups(data: OwnData, by: str | None) -> Groups | None:
    """The groups of the test records by the column ``by``."""
    if by is None:
        return None
    if not isinstance(data.encoder, TableEncoder) or data.test is None:
        raise InputError(
            "`groups` is given, and there is no table of test records.",
            why="Groups are compared on public test data, by one of its columns.",
            fix="Pass `test_data`, or leave `groups` out.",
        )
    return data.encoder.groups(data.test[0], by)


def _load_own(config: TrainConfig, test_data: str | None) -> OwnData:
    return load_own(
        config.data,
        target=config.target,
        schema=config.schema,
        test_data=test_data,
        input_bound=config.input_bound,
        unit=config.unit,
    )


def _own(data: OwnData, config: TrainConfig) -> Inputs:
    rows = ROWS_PER_UNIT if config.rows_per_unit is None else config.rows_per_unit
    return Inputs(
        targets=data.encoder.targets,
        groups=_groups(data, config.groups),
        train=data.train,
        test=data.test,
        class_names=data.class_names,
        record=data.record,
        notes=(*data.disclosed, *data.public),
        encoder=data.encoder.as_json(),
        units=None if data.units is None else Units(data.units, rows),
    )
