"""The generic way: per-example gradients of any differentiable part of a model, by ``torch.func`` or by a loop.

A region is a module whose inputs and outputs hold the records one by one, or the whole loss. For the parameters no rule
covers, the region is run again for every record on its own and differentiated. It is slower, and right for any model
that does not mix records.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, get_gradient_edge
from torch.func import functional_call, grad, vmap
from torch.utils._pytree import tree_flatten, tree_unflatten

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


class UnseenPath(Exception):
    """A batch made the model do what it did not do when it was looked over: nothing was computed from it."""


class RefusedByVmap(RuntimeError):
    """``torch.func`` cannot run a region."""

    def __init__(self, region: Region, error: RuntimeError) -> None:
        super().__init__(str(error))
        self.region = region


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
        if len(calls) != len(self.layouts) or not all(
            layout.fits(call, records) for call, layout in zip(calls, self.layouts, strict=True)
        ):
            raise UnseenPath
        total: dict[str, Tensor] = {}
        for call, layout, grads in zip(calls, self.layouts, output_grads, strict=True):
            cotangents = [
                torch.zeros_like(output) if each is None else each
                for output, each in zip(call.outputs, grads, strict=True)
            ]
            device = call.outputs[0].device.type
            with torch.autocast(device, dtype=call.autocast, enabled=call.autocast is not None):
                if self.vectorised:
                    try:
                        grads_of_call = self._vectorised(call, layout, cotangents)
                    except RuntimeError as error:
                        raise RefusedByVmap(self, error) from error
                else:
                    grads_of_call = self._looped(call, layout, cotangents)
            for name, value in grads_of_call.items():
                total[name] = total[name] + value if name in total else value
        return total

    def of_the_loss(
        self, batch: Sequence[Any], device: torch.device, autocast: torch.dtype | None
    ) -> dict[str, Tensor]:
        """The gradient of every record's loss, where the region is the whole loss: records are in dimension 0."""
        leaves = tree_flatten((tuple(batch), {}))[0]
        inputs = tuple(Layout(0) if isinstance(leaf, Tensor) else None for leaf in leaves)
        records = next(leaf.shape[0] for leaf in leaves if isinstance(leaf, Tensor))
        ones = torch.ones(records, device=device)
        call = Call(tuple(batch), {}, [ones], [None], [], autocast)
        return replace(self, layouts=(CallLayout(inputs, (Layout(0),)),)).per_example([call], [[ones]], records)

    def _values(self) -> dict[str, Tensor]:
        return {local: self.module.get_parameter(local).detach() for local in self.parameters}

    def _vectorised(self, call: Call, layout: CallLayout, cotangents: Sequence[Tensor]) -> dict[str, Tensor]:
        leaves, spec = tree_flatten((call.args, call.kwargs))
        leaves = [leaf.detach() if isinstance(leaf, Tensor) else leaf for leaf in leaves]
        held = [(place, each.dim) for place, each in enumerate(layout.inputs) if each is not None]

        def product(values: dict[str, Tensor], inputs: list[Tensor], cotangent: list[Tensor]) -> Tensor:
            filled = list(leaves)
            for (place, dim), value in zip(held, inputs, strict=True):
                filled[place] = value.unsqueeze(dim)
            args, kwargs = tree_unflatten(filled, spec)
            outputs = differentiable_leaves(functional_call(self.module, values, args, kwargs))
            parts = [
                (output.squeeze(each.dim) * ct).sum()
                for output, each, ct in zip(outputs, layout.outputs, cotangent, strict=True)
            ]
            return torch.stack(parts).sum()

        in_dims = (None, [dim for _, dim in held], [each.dim for each in layout.outputs])
        mapped = vmap(grad(product), in_dims=in_dims, randomness="different")
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="There is a performance drop")  # the note has said so already
            grads = mapped(self._values(), [leaves[place] for place, _ in held], list(cotangents))
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
            # A record may take no part (none of its words is masked): then its output depends on no parameter.
            taking_part = [
                (output, ct.narrow(each.dim, record, 1).to(output.dtype))
                for output, each, ct in zip(outputs, layout.outputs, cotangents, strict=True)
                if output.requires_grad
            ]
            grads: Sequence[Tensor | None] = [None] * len(values)
            if taking_part:
                parts, chosen = zip(*taking_part, strict=True)
                grads = torch.autograd.grad(parts, list(values.values()), chosen, allow_unused=True)
            for (local, value), each_grad in zip(values.items(), grads, strict=True):
                rows[local].append(torch.zeros_like(value) if each_grad is None else each_grad.detach())
        return {self.parameters[local]: torch.stack(each) for local, each in rows.items()}


@contextlib.contextmanager
def hooked(hooks: Sequence[tuple[Region, Callable[..., None]]]) -> Iterator[None]:
    """Inside, every hook is told of the calls of its region's module."""
    with contextlib.ExitStack() as stack:
        for region, hook in hooks:
            stack.callback(region.module.register_forward_hook(hook, with_kwargs=True).remove)
        yield


def check_unchanged(path: str, calls: Sequence[Call]) -> None:
    """Refuse inputs of a region that were changed in place after it ran."""
    if any(call.versions != _versions(call.args, call.kwargs) for call in calls):
        raise changed_in_place(f"An input of {path}")


class CallCollector:
    """Forward hook of a region's module: keeps its calls, once per forward pass of the model."""

    def __init__(self) -> None:
        self.calls: list[Call] = []

    def __call__(self, _: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        with torch._C.DisableTorchFunction():  # what is done here is no call of the model's
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
