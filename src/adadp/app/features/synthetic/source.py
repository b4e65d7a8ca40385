"""Synthetic images as a public data set: what later stages take their statistics from, at no cost in privacy.

``synthetic:leaves`` changes no record. It says which random process draws the images that the stages after it are
fitted to: each gets the images as the stages in between have mapped them, exactly as these map a record.

What a stage has been fitted to does not depend on any data set. It is kept in the folder of caches, under a digest of
everything it follows from, and made again where it is not found.

    what is found in the cache                       what is done
    a whole file whose checksum holds                it is read
    nothing, or a file that is damaged               the stage is fitted again
    the cache cannot be written                      a warning; the fit is used and not kept
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
import warnings
from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import safetensors.torch
import torch
from safetensors import SafetensorError
from torch import Tensor, nn

from adadp import checks
from adadp.app.features.base import FixedStage, Shape
from adadp.app.features.joined import described
from adadp.app.features.synthetic.processes import PROCESSES
from adadp.app.zoo.fetching import cache_folder
from adadp.errors import InputError

_AT_ONCE = 128

_DIGEST = 64
"""Characters of the checksum that a kept fit begins with."""


@dataclass(frozen=True)
class SyntheticImages(FixedStage):
    """``synthetic:leaves``: from here on, statistics come from so many ``images`` of this ``process``."""

    name = "synthetic"
    unnamed = "process"
    process: str
    images: int = 3000
    seed: int = 0

    def __post_init__(self) -> None:
        if self.process not in PROCESSES:
            raise InputError(
                f"There is no random process {self.process!r}.", fix=f"Use one of: {', '.join(PROCESSES)}."
            )
        self._set(
            images=checks.count("images", self.images, minimum=100, why="Statistics are taken from them."),
            seed=checks.count("seed", self.seed, minimum=0),
        )

    @property
    def public(self) -> tuple[str, ...]:
        said = PROCESSES[self.process][1]
        return (f"{self.images} synthetic images drawn by a random process ({said}): no real image is in them.",)

    def output_shape(self, shape: Shape) -> Shape:
        if len(shape) != 3 or shape[0] not in (1, 3):
            raise InputError(
                f"Synthetic images have one or three channels, and records have the shape {tuple(shape)}.",
                fix="Give records of shape (1 or 3, height, width), and put the stage before all others.",
            )
        return shape

    def module(self, shape: Shape) -> nn.Module:
        self.output_shape(shape)
        return nn.Identity()

    def drawn(self, shape: Shape) -> Tensor:
        """The images, of the shape of a record."""
        return _drawn(self, shape)


@lru_cache(maxsize=1)
def _drawn(source: SyntheticImages, shape: Shape) -> Tensor:
    """Kept while the stages of one chain are fitted to them."""
    return PROCESSES[source.process][0](source.images, shape, source.seed)


@dataclass(frozen=True)
class Reference:
    """The synthetic images, and the stages that map them on the way to the one that is fitted."""

    source: SyntheticImages
    shape: Shape
    before: tuple[tuple[FixedStage, nn.Module], ...] = ()

    def after(self, stage: FixedStage, module: nn.Module) -> Reference:
        """The same images, mapped by one stage more."""
        return Reference(self.source, self.shape, (*self.before, (stage, module)))

    def records(self) -> Tensor:
        """The images as the stages have mapped them."""
        path = nn.Sequential(*(module for _, module in self.before))
        return in_batches(path, self.source.drawn(self.shape))

    def place(self, stage: SyntheticStage) -> Path:
        """Where the fit of ``stage`` is kept."""
        path = [self.source, *(each for each, _ in self.before), stage]
        said = [list(self.shape), [described(each) for each in path]]
        digest = hashlib.sha256(json.dumps(said).encode()).hexdigest()[:16]
        return cache_folder() / "synthetic" / f"{stage.name}-{digest}.safetensors"


class SyntheticStage(FixedStage):
    """A fixed stage whose tensors are statistics of synthetic images."""

    @abstractmethod
    def fit(self, records: Tensor) -> dict[str, Tensor]:
        """The tensors of the stage, from synthetic images as the stages before it have mapped them."""

    @abstractmethod
    def fitted(self, shape: Shape, tensors: Mapping[str, Tensor]) -> nn.Module:
        """What computes the stage on records of ``shape`` with what ``fit`` has found."""

    def module(self, shape: Shape) -> nn.Module:
        """Refused: without synthetic images there is nothing to fit it to."""
        del shape
        raise InputError(
            f"{self.name} has no synthetic images to take its statistics from.",
            why="Statistics of the records themselves would have to be released with noise.",
            fix="Begin the features with synthetic:leaves, and put stages that are released after it.",
        )

    def module_after(self, reference: Reference, shape: Shape) -> nn.Module:
        """What computes the stage, fitted to ``reference`` or as it is in the cache."""
        place = reference.place(self)
        tensors = _kept(place)
        if tensors is None:
            with torch.no_grad():
                tensors = {name: value.contiguous() for name, value in self.fit(reference.records()).items()}
            _keep(place, tensors)
        return self.fitted(shape, tensors)


def in_batches(module: nn.Module, records: Tensor) -> Tensor:
    """``module`` over all ``records``, a batch at a time."""
    return torch.cat([module(batch) for batch in torch.split(records, _AT_ONCE)])


def _kept(place: Path) -> dict[str, Tensor] | None:
    try:
        with place.open("rb") as file:
            said, content = file.read(_DIGEST), file.read()
        whole = hashlib.sha256(content).hexdigest().encode() == said
        return safetensors.torch.load(content) if whole else None
    except (OSError, SafetensorError):
        return None


def _keep(place: Path, tensors: dict[str, Tensor]) -> None:
    """Write ``tensors`` beside ``place``, after their checksum, and rename: a file is whole or absent."""
    content = safetensors.torch.save(tensors)
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".part-", dir=place.parent) as folder:
            part = Path(folder) / "fit"
            part.write_bytes(hashlib.sha256(content).hexdigest().encode() + content)
            os.replace(part, place)
    except OSError as error:
        warnings.warn(f"Statistics of synthetic images could not be kept in {place}: {error}.", stacklevel=3)
