"""Projection on the principal components of synthetic images, the longest of them shortened.

The rows of synthetic images (each scaled to norm 1) have a few directions with most of their length, and many with next
to none. Projected on the ``dim`` longest, a record keeps nearly all of its length, and a linear model has fewer weights
that get noise. The ``flatten`` longest are multiplied by sqrt(l / l_i), with l the eigenvalue of the next one: what
``equalise`` pays for, free. The result has norm 1.

    case                                  what happens
    more components than images or values  InputError
    zero record                           stays zero
    non-finite value                      that record's features are non-finite, no other record's
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from adadp import checks
from adadp.app.features.base import Shape
from adadp.app.features.synthetic.source import SyntheticStage
from adadp.errors import InputError


@dataclass(frozen=True)
class SyntheticPca(SyntheticStage):
    """``synthetic-pca:dim=2000,flatten=200``: so many components of synthetic images, the longest ones shortened."""

    name = "synthetic-pca"
    dim: int = 2000
    flatten: int = 200

    def __post_init__(self) -> None:
        self._set(dim=checks.count("dim", self.dim), flatten=checks.count("flatten", self.flatten, minimum=0))
        if self.flatten >= self.dim:
            raise InputError(
                f"flatten is {self.flatten}, and dim is {self.dim}.",
                why="The longest components are made as long as the next one, which must be there.",
                fix="Pass a smaller flatten.",
            )

    def output_shape(self, shape: Shape) -> Shape:
        if self.dim > math.prod(shape):
            raise InputError(
                f"{self.name} has dim={self.dim}, and a record has {math.prod(shape)} values.",
                fix=f"Pass dim of at most {math.prod(shape)}.",
            )
        return (self.dim,)

    def fit(self, records: Tensor) -> dict[str, Tensor]:
        if self.dim >= len(records):
            raise InputError(
                f"{self.name} has dim={self.dim}, and there are {len(records)} synthetic images.",
                why="So few images do not have as many directions.",
                fix=f"Pass a smaller dim, or more images: synthetic:leaves,images={2 * self.dim}.",
            )
        rows = normalize(records.flatten(1))
        sizes, vectors = torch.linalg.eigh((rows @ rows.T).double())
        sizes, vectors = sizes.flip(0)[: self.dim], vectors.flip(1)[:, : self.dim]
        components = (vectors / sizes.sqrt()).T.float() @ rows
        largest = components.gather(1, components.abs().argmax(1, keepdim=True))
        components *= largest.sign()  # a direction is known up to its sign
        components[: self.flatten] *= (sizes[self.flatten] / sizes[: self.flatten]).sqrt().float()[:, None]
        return {"components": components}

    def fitted(self, shape: Shape, tensors: Mapping[str, Tensor]) -> nn.Module:
        del shape
        return _Projection(tensors["components"])


class _Projection(nn.Module):
    """Rows on components, at norm 1."""

    components: Tensor

    def __init__(self, components: Tensor) -> None:
        super().__init__()
        self.register_buffer("components", components)

    def forward(self, records: Tensor) -> Tensor:
        return normalize(records.flatten(1) @ self.components.T)
