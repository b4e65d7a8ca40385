"""The generic way: per-example gradients of any differentiable part of a model, by ``torch.func`` or by a loop.

A region is a module whose inputs and outputs hold the records one by one, or the whole loss. For the parameters no rule
covers, the region is run again for every record on its own and differentiated. It is slower, and right for any model
that does not mix records.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, get_gradient_edge
from torch.func import functional_call, grad, vmap
from torch.utils._pytree import tree_flatten, tree_unflatten

from adadp.errors import InputError
from adadp.gradients.layout import Layout, find_layout
from adadp.gradients.recorder import changed_in_place


@dataclass
class Call:
    """One run of a region's module: what went in, what came out, and where to ask for the gradients of that."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    outputs: list[Tensor]
    edges: list[GradientEdge | None]
    versions: list[int]
    """Of the tensors that went in; they tell whether one was changed in place since."""
    autocast: torch.dtype | None
    """The dtype of autocast while it ran, None if that was off."""


@dataclass(frozen=True)
class CallLayout:
    """Where the records are in the leaves of a call's inputs (None: shared by all records) and of its outputs."""

    inputs: tuple[Layout | None, ...]
    outputs: tuple[Layout, ...]

    def fits(self, call: Call, records: int) -> bool:
        """Whether the tensors of ``call`` can hold so many records in these places."""
        leaves = tree_flatten((call.args, call.kwargs))[0]
        held = [(leaf, layout) for leaf, layout in zip(leaves, self.inputs, strict=False) if layout is not None]
        return (
            len(leaves) == len(self.inputs)
            and len(call.outputs) == len(self.outputs)
            and all(isinstance(leaf, Tensor) and layout.fits(leaf.shape, records) for leaf, layout in held)
            and all(layout.fits(each.shape, records) for each, layout in zip(call.outputs, self.outputs, strict=True))
        )


class LossModule(nn.Module):
    """The model and its loss as one module, so that the whole loss is a region too."""

    def __init__(self, model: nn.Module, loss: Callable[..., Tensor]) -> None:
        super().__init__()
        self.model = model
        self.loss = loss

    def forward(self, *batch: Any) -> Tensor:
        """The loss of every record."""
        return self.loss(self.model, *batch)


@dataclass(frozen=True)
class Region:
    """A module, the parameters it is differentiated by (name within the module to trained name), and how."""

    path: str
    module: nn.Module
    parameters: Mapping[str, str]
    layouts: tuple[CallLayout, ...]
    """One per call of the module in a forward pass."""
    vectorised: bool
    """By vmap; otherwise record by record."""

    def per_example(
        self, calls: Sequence[Call], output_grads: Sequence[Sequence[Tensor | None]], records: int
    ) -> dict[str, Tensor]:
        """The gradient of every record for every parameter of the region, summed over the calls."""
        if len(calls) != len(self.layouts):
            raise InputError(
                f"{self.path} ran {len(calls)} times, but {len(self.layouts)} times when the model was inspected.",
                why="Where the records are in its tensors is known only for the calls that were seen.",
                fix="Call it the same number of times for every batch.",
            )
        total: dict[str, Tensor] = {}
        for call, layout, grads in zip(calls, self.layouts, output_grads, strict=True):
            if call.versions != _versions(call.args, call.kwargs):
                raise changed_in_place(f"An input of {self.path}")
            if not layout.fits(call, records):
                raise InputError(
                    f"The tensors that go into or come out of {self.path} do not have the shapes "
                    "that follow from what was seen when the model was inspected.",
                    why="Where the records are in them is not known.",
                    fix="Give them a dimension for the records, and the same one for every batch.",
                )
            cotangents = [
                torch.zeros_like(output) if each is None else each
                for output, each in zip(call.outputs, grads, strict=True)
            ]
            compute = self._vectorised if self.vectorised else self._looped
            device = call.outputs[0].device.type
            with torch.autocast(device, dtype=call.autocast, enabled=call.autocast is not None):
                grads_of_call = compute(call, layout, cotangents)
            for name, value in grads_of_call.items():
                total[name] = total[name] + value if name in total else value
        return total

    def _values(self) -> dict[str, Tensor]:
        return {local: self.module.get_parameter(local).detach() for local in self.parameters}

    def _vectorised(self, call: Call, layout: CallLayout, cotangents: Sequence[Tensor]) -> dict[str, Tensor]:
        leaves, spec = tree_flatten((call.args, call.kwargs))
        leaves = [leaf.detach() if isinstance(leaf, Tensor) else leaf for leaf in leaves]
        held = [i for i, each in enumerate(layout.inputs) if each is not None]

        def product(values: dict[str, Tensor], inputs: list[Tensor], cotangent: list[Tensor]) -> Tensor:
            filled = list(leaves)
            for place, value in zip(held, inputs, strict=True):
                filled[place] = value.unsqueeze(_dim(layout.inputs[place]))
            args, kwargs = tree_unflatten(filled, spec)
            outputs = differentiable_leaves(functional_call(self.module, values, args, kwargs))
            parts = [
                (output.squeeze(each.dim) * ct).sum()
                for output, each, ct in zip(outputs, layout.outputs, cotangent, strict=True)
            ]
            return torch.stack(parts).sum()

        in_dims = (None, [_dim(layout.inputs[i]) for i in held], [each.dim for each in layout.outputs])
        mapped = vmap(grad(product), in_dims=in_dims, randomness="different")
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="There is a performance drop")  # the note has said so already
            grads = mapped(self._values(), [leaves[i] for i in held], list(cotangents))
        return {self.parameters[local]: value for local, value in grads.items()}

    def _looped(self, call: Call, layout: CallLayout, cotangents: Sequence[Tensor]) -> dict[str, Tensor]:
        leaves, spec = tree_flatten((call.args, call.kwargs))
        values = {local: value.requires_grad_() for local, value in self._values().items()}
        records = cotangents[0].shape[layout.outputs[0].dim]
        rows: dict[str, list[Tensor]] = {local: [] for local in values}
        for record in range(records):
            filled = [
                leaf.detach().narrow(each.dim, record, 1) if isinstance(leaf, Tensor) and each is not None else leaf
                for leaf, each in zip(leaves, layout.inputs, strict=True)
            ]
            args, kwargs = tree_unflatten(filled, spec)
            with torch.enable_grad():
                outputs = differentiable_leaves(functional_call(self.module, values, args, kwargs))
            chosen = [ct.narrow(each.dim, record, 1) for ct, each in zip(cotangents, layout.outputs, strict=True)]
            grads = torch.autograd.grad(outputs, list(values.values()), chosen, allow_unused=True)
            for (local, value), each_grad in zip(values.items(), grads, strict=True):
                rows[local].append(torch.zeros_like(value) if each_grad is None else each_grad.detach())
        return {self.parameters[local]: torch.stack(each) for local, each in rows.items()}


class CallCollector:
    """Forward hook of a region's module: keeps its calls, once per forward pass of the model."""

    def __init__(self) -> None:
        self.calls: list[Call] = []

    def __call__(self, _: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        outputs = differentiable_leaves(output)
        edges = [get_gradient_edge(each) if each.requires_grad else None for each in outputs]
        self.calls.append(Call(args, kwargs, outputs, edges, _versions(args, kwargs), autocast_dtype(outputs)))


def differentiable_leaves(output: Any) -> list[Tensor]:
    """The tensors in ``output`` a gradient can flow into, in order."""
    return [leaf for leaf in tree_flatten(output)[0] if isinstance(leaf, Tensor) and leaf.is_floating_point()]


def autocast_dtype(outputs: Sequence[Tensor]) -> torch.dtype | None:
    """The dtype autocast uses for the device of ``outputs``, None if it is off."""
    device = outputs[0].device.type if outputs else "cpu"
    return torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else None


def _versions(args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[int]:
    return [leaf._version for leaf in tree_flatten((args, kwargs))[0] if isinstance(leaf, Tensor)]


def find_call_layout(two: Call, three: Call) -> CallLayout | None:
    """Where the records are in a call's tensors, from the same call with two and with three records, or None."""
    leaves_two, leaves_three = (tree_flatten((each.args, each.kwargs))[0] for each in (two, three))
    if len(leaves_two) != len(leaves_three) or len(two.outputs) != len(three.outputs):
        return None
    inputs: list[Layout | None] = []
    for a, b in zip(leaves_two, leaves_three, strict=True):
        layout = None
        if isinstance(a, Tensor) and isinstance(b, Tensor) and a.shape != b.shape:
            layout = find_layout(a.shape, b.shape)
            if layout is None or layout.per_record != 1:
                return None
        inputs.append(layout)
    outputs = [find_layout(a.shape, b.shape) for a, b in zip(two.outputs, three.outputs, strict=True)]
    if not outputs or any(each is None or each.per_record != 1 for each in outputs):
        return None
    return CallLayout(tuple(inputs), tuple(each for each in outputs if each is not None))


def _dim(layout: Layout | None) -> int:
    assert layout is not None
    return layout.dim
