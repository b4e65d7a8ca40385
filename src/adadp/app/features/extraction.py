"""Features of whole data sets: computed in batches, and for public data sets kept in the cache.

Only data sets of the catalogue are cached: their records are public. Features of a user's own records are as private as
the records, so nothing is written anywhere for them.

    what is found in the cache                       what is done
    features from another kind of device             not found: they would differ in their last bits
    a whole entry whose checksums hold               it is read
    nothing                                          the features are computed, written under another name, and renamed
    an entry that is damaged                         a warning, and it is computed again
    another process computing the same               both compute; the one that is last leaves its result
    the cache cannot be written                      a warning; the features are used and not kept
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import tempfile
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from adadp.app.features.base import FixedStage, Shape
from adadp.app.features.chain import whole_module
from adadp.app.features.joined import described

Progress = Callable[[str, int, int], None]
"""Called with what is under way, how many records are done, and of how many."""

_AT_ONCE = 128
_KINDS, _FILES = {False: "<f4", True: "<i8"}, {False: "features.f32", True: "features.i64"}
"""How features are kept: as numbers, or as whole numbers such as those of tokens."""
_READABLE = 100
"""Characters of the stages that the name of an entry has, beside its digest."""


@dataclass(frozen=True)
class CacheKey:
    """What features were computed from: a public data set, by name and by the checksums of its files."""

    folder: Path
    data: str
    checksums: tuple[str, ...]

    def place(
        self,
        stages: Sequence[FixedStage],
        part: str,
        records: int,
        device: torch.device | str = "cpu",
        alone: bool = False,
    ) -> Path:
        """Where the features of ``part`` lie that a device of this kind computed, in batches or each record alone: each
        rounds in its own way, and a run with a seed repeats to the bit only on the same features.
        """
        said = [self.data, part, records, self.checksums, [described(stage) for stage in stages]]
        kind = torch.device(device).type
        said += [] if kind == "cpu" else [kind]
        said += ["alone"] if alone else []
        digest = hashlib.sha256(json.dumps(said).encode()).hexdigest()[:16]
        readable = re.sub(r"[^a-z0-9=.-]+", "-", "+".join(str(stage) for stage in stages))[:_READABLE]
        return self.folder / "features" / f"{self.data}-{part}-{readable}-{digest}"


def extract(
    stages: Sequence[FixedStage],
    records: Tensor,
    *,
    part: str,
    key: CacheKey | None = None,
    device: torch.device | str = "cpu",
    progress: Progress | None = None,
    alone: bool = False,
) -> Tensor:
    """The features of ``records``, from the cache if ``key`` says whose they are."""
    if not stages:
        return records
    place = None if key is None else key.place(stages, part, len(records), device, alone=alone)
    if place is not None:
        found = _cached(place)
        if found is not None:
            return found
    module, shape = whole_module(tuple(stages), tuple(records.shape[1:]), {})
    features = computed(module, records, shape, device=device, part=part, progress=progress, alone=alone)
    if place is not None:
        _keep(place, features)
    return features


def extract_both(
    stages: Sequence[FixedStage], train: tuple[Tensor, ...], test: tuple[Tensor, Tensor] | None, **how: Any
) -> tuple[tuple[Tensor, ...], tuple[Tensor, Tensor] | None]:
    """Training and test records with features in place of their first tensor; ``how`` as for ``extract``."""
    tested = None if test is None else (extract(stages, test[0], part="test", **how), test[1])
    return (extract(stages, train[0], part="train", **how), *train[1:]), tested


def computed(
    module: nn.Module,
    records: Tensor,
    shape: Shape,
    *,
    device: torch.device | str = "cpu",
    part: str = "records",
    progress: Progress | None = None,
    alone: bool = False,
) -> Tensor:
    """``module`` over all ``records``, a batch at a time, or each record ``alone``, on the CPU: as float32, or as int64
    where the module makes whole numbers.

    The last batch is filled up with zeros: in batches of one size the features of a record do not depend on the others,
    and on its place among them only through the rounding of the last bits, which the allowance for rounding in
    ``adadp.step`` covers. In a batch of another size other algorithms may be chosen, which round far more differently.
    Alone, they do not depend on its place either: that is for exact arithmetic.
    """
    at_once = 1 if alone else _AT_ONCE
    features: Tensor | None = None
    module = module.to(device)
    with torch.inference_mode():
        for start in range(0, len(records), at_once):
            batch = records[start : start + at_once].clone()
            count = len(batch)
            if count < at_once:
                batch = torch.cat([batch, batch.new_zeros(at_once - count, *batch.shape[1:])])
            found = module(batch.to(device))[:count]
            if features is None:
                kind = torch.float32 if found.is_floating_point() else torch.int64
                with torch.inference_mode(False):  # a network is trained on them
                    features = torch.empty(len(records), *shape, dtype=kind)
            features[start : start + count] = found
            if progress is not None:
                progress(f"features of {part}", start + count, len(records))
    return torch.empty(0, *shape) if features is None else features


def _cached(place: Path) -> Tensor | None:
    about = place / "about.json"
    if not about.is_file():
        return None
    try:
        said = json.loads(about.read_text(encoding="utf-8"))
        whole = said.get("whole", False)
        values = np.fromfile(place / _FILES[whole], dtype=_KINDS[whole])
        if hashlib.sha256(values.data).hexdigest() != said["sha256"]:
            raise ValueError("its checksum does not hold")
        return torch.from_numpy(values.reshape(said["shape"]))
    except (OSError, ValueError, KeyError, TypeError) as error:
        warnings.warn(f"The cached features in {place} cannot be used and are computed again: {error}.", stacklevel=4)
        return None


def _keep(place: Path, features: Tensor) -> None:
    """Write ``features`` beside ``place`` and rename: an entry is whole or absent."""
    whole = not features.is_floating_point()
    values = features.numpy().astype(_KINDS[whole], copy=False)
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".part-", dir=place.parent) as folder:
            part = Path(folder) / "entry"
            part.mkdir()
            values.tofile(part / _FILES[whole])
            about = {"shape": list(features.shape), "sha256": hashlib.sha256(values.data).hexdigest(), "whole": whole}
            (part / "about.json").write_text(json.dumps(about), encoding="utf-8")
            if place.exists():
                shutil.rmtree(place)
            os.replace(part, place)
    except OSError as error:
        warnings.warn(f"The features could not be kept in {place}: {error}.", stacklevel=4)
