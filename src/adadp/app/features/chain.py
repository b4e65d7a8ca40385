"""Stages one after another: as modules, and as what a certificate says about them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from adadp.app.features.base import FixedStage, ReleasedStage, Shape, Stage
from adadp.app.features.joined import Joined
from adadp.app.features.private_bounds import Bounds
from adadp.app.features.synthetic import Reference, SyntheticImages, SyntheticStage
from adadp.errors import InputError
from adadp.input_bound import InputBound


def stage_module(
    stage: Stage, shape: Shape, learned: Mapping[str, Tensor], reference: Reference | None = None
) -> nn.Module:
    """What computes ``stage`` on records of ``shape``; a released stage needs what it has ``learned``, and one that is
    fitted to synthetic images its ``reference``.
    """
    if isinstance(stage, Joined):
        return stage.of_modules([stage_module(block, shape, {}, reference) for block in stage.blocks])
    if isinstance(stage, SyntheticStage) and reference is not None:
        return stage.module_after(reference, shape)
    if isinstance(stage, FixedStage):
        return stage.module(shape)
    assert isinstance(stage, ReleasedStage)
    return stage.module(learned)


def whole_module(stages: tuple[Stage, ...], shape: Shape, learned: Mapping[str, Tensor]) -> tuple[nn.Module, Shape]:
    """All ``stages`` as one frozen module, and the shape of a record after them.

    ``learned`` holds the tensors of all released stages, each under the number of its stage among those.
    """
    modules: list[nn.Module] = []
    number = 0
    reference: Reference | None = None
    for stage in stages:
        mine: dict[str, Tensor] = {}
        if isinstance(stage, ReleasedStage):
            mine = tensors_of(learned, number)
            number += 1
            if not mine:
                raise InputError(
                    f"What {stage.name} has learned is missing.",
                    why="It was released in the run that trained the model, and cannot be computed again.",
                    fix="Put features.safetensors back into the folder of the run.",
                )
        after = stage.output_shape(shape)
        modules.append(stage_module(stage, shape, mine, reference))
        if isinstance(stage, SyntheticImages):
            reference = Reference(stage, shape)
        elif reference is not None and isinstance(stage, FixedStage):
            reference = reference.after(stage, modules[-1])
        shape = after
    return nn.Sequential(*modules).requires_grad_(False).eval(), shape


class WithFeatures(nn.Module):
    """A network behind the features it was trained on: it takes records as they come from the data.

    What else the network takes beside the values of a record is given to it as it is.
    """

    def __init__(self, bound: nn.Module, features: nn.Module, network: nn.Module) -> None:
        super().__init__()
        self.bound, self.features, self.network = bound, features, network

    def train(self, mode: bool = True) -> WithFeatures:
        """Put the network into this mode; the features are frozen and stay as they are."""
        super().train(mode)
        self.features.eval()
        return self

    def forward(self, values: Tensor, *others: Any) -> Any:
        return self.network(self.features(self.bound(values)), *others)


def raw_bound(stages: tuple[Stage, ...], declared: object) -> nn.Module:
    """What brings records into their range before ``stages``; the stage ``bounds`` takes raw values of any size."""
    if stages and isinstance(stages[0], Bounds):
        if declared is not None:
            raise InputError(
                "`input_bound` is given together with the features bounds.",
                why="These find the ranges of the columns by themselves.",
                fix="Leave one of them out.",
            )
        return nn.Identity()
    return InputBound.of(declared)


def tensors_of(learned: Mapping[str, Tensor], number: int) -> dict[str, Tensor]:
    """What the released stage with this number has learned."""
    prefix = f"{number}."
    return {name[len(prefix) :]: value for name, value in learned.items() if name.startswith(prefix)}


def statement(stages: tuple[Stage, ...], learned_digest: str | None) -> dict[str, Any] | None:
    """What the certificate says about ``stages``: None if there are none."""
    if not stages:
        return None
    public = [each for stage in stages if isinstance(stage, FixedStage) for each in stage.public]
    return {
        "stages": [str(stage) for stage in stages],
        "released": [str(stage) for stage in stages if isinstance(stage, ReleasedStage)],
        "public": public,
        "learned_digest": learned_digest,
    }
