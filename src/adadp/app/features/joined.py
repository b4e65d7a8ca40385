"""Several features of the same records side by side: ``log-scatter&patches``, which a shell needs in quotes.

Every block is scaled to norm 1 and divided by sqrt(number of blocks), so that each has the same share of a record of
norm 1; a block that is zero stays zero. Blocks are stages that are known before the data.
"""

from __future__ import annotations

import hashlib
import inspect
import math
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from adadp.app.features.base import FixedStage, Shape, Stage
from adadp.errors import InputError


@dataclass(frozen=True)
class Joined(FixedStage):
    """The features of several ``blocks``, each computed from the record as it comes."""

    blocks: tuple[FixedStage, ...]

    @classmethod
    def of(cls, stages: Iterable[Stage]) -> Joined:
        """The blocks joined; ``InputError`` if one is released."""
        blocks = tuple(stages)
        for stage in blocks:
            if not isinstance(stage, FixedStage):
                raise InputError(
                    f"{stage.name} is released from the records, and is joined with other features by &.",
                    why="Only features that are known before the data can be joined.",
                    fix="Put it after the joined ones, by +.",
                )
        return cls(tuple(stage for stage in blocks if isinstance(stage, FixedStage)))

    @property
    def name(self) -> str:  # type: ignore[override]
        """The names of the blocks."""
        return "&".join(block.name for block in self.blocks)

    @property
    def public(self) -> tuple[str, ...]:
        return tuple(said for block in self.blocks for said in block.public)

    def __str__(self) -> str:
        return "&".join(map(str, self.blocks))

    def output_shape(self, shape: Shape) -> Shape:
        return (sum(math.prod(block.output_shape(shape)) for block in self.blocks),)

    def module(self, shape: Shape) -> nn.Module:
        return self.of_modules([block.module(shape) for block in self.blocks])

    @staticmethod
    def of_modules(modules: list[nn.Module]) -> nn.Module:
        """What computes the stage, given what computes each block."""
        return _Joined(modules)


def described(stage: FixedStage) -> tuple[object, ...]:
    """What says how a stage computes: its text and version, and of somebody else's stage its file too."""
    if isinstance(stage, Joined):
        return tuple(described(block) for block in stage.blocks)
    own = type(stage).__module__.startswith("adadp.")
    code = () if own else (hashlib.sha256(Path(inspect.getfile(type(stage))).read_bytes()).hexdigest(),)
    return str(stage), stage.version, *code


class _Joined(nn.Module):
    """Blocks of one norm, side by side."""

    def __init__(self, blocks: list[nn.Module]) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(blocks)

    def forward(self, records: Tensor) -> Tensor:
        share = 1 / math.sqrt(len(self.blocks))
        return torch.cat([normalize(block(records).flatten(1)) * share for block in self.blocks], dim=1)
