"""Modules that no rule covers as regions of their own, so that not the whole loss is run again for their parameters.

The innermost module is taken that holds all uses of a parameter, draws no random numbers and whose inputs and outputs
hold the records one by one.
"""

from __future__ import annotations

import contextlib
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, get_gradient_edge
from torch.func import functional_call
from torch.utils._pytree import tree_flatten, tree_leaves, tree_unflatten

from adadp.gradients.inspection import trained_parameters
from adadp.gradients.layout import Layout, find_layout
from adadp.gradients.probe_records import Loss, ProbeRecords, check_leading, random_states, undisturbed
from adadp.gradients.recorder import Recorder, changed_in_place
from adadp.gradients.regions import RefusedByVmap, Region, Told, UnseenPath, autocast_dtype, gradients_by_vmap


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
        leaves = tree_leaves((call.args, call.kwargs))
        if len(leaves) != len(self.inputs) or len(call.outputs) != len(self.outputs):
            return False
        held = [(leaf, layout) for leaf, layout in zip(leaves, self.inputs, strict=True) if layout is not None]
        held += zip(call.outputs, self.outputs, strict=True)
        return all(isinstance(leaf, Tensor) and layout.fits(leaf.shape, records) for leaf, layout in held)


@dataclass(frozen=True)
class ModuleRegion(Region):
    """A module of the model, differentiated by some of its parameters."""

    module: nn.Module
    layouts: tuple[CallLayout, ...]
    """One per call of the module in a forward pass."""

    @contextlib.contextmanager
    def watch(self) -> Iterator[_ModuleWatch]:
        collector = CallCollector()
        with _hooked(self.module, collector):
            yield _ModuleWatch(self, collector.calls)

    def follow(self, told: Told) -> contextlib.AbstractContextManager[None]:
        layouts = iter(self.layouts)

        def hook(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
            with torch._C.DisableTorchFunction():  # what is done here is no call of the model's
                layout = next(layouts, CallLayout((), ()))
                inputs, outputs = tree_leaves((args, kwargs)), differentiable_leaves(output)
                if len(inputs) != len(layout.inputs) or len(outputs) != len(layout.outputs):
                    told((), ())
                    return
                told(
                    list(zip(inputs, layout.inputs, strict=True)),
                    list(zip(outputs, layout.outputs, strict=True)),
                )

        return _hooked(self.module, hook)

    def of_call(self, call: Call, layout: CallLayout, at_outputs: Sequence[Tensor | None]) -> dict[str, Tensor]:
        """The gradient of every record in one call."""
        cotangents = [
            torch.zeros_like(output) if each is None else each
            for output, each in zip(call.outputs, at_outputs, strict=True)
        ]
        device = call.outputs[0].device.type
        with torch.autocast(device, dtype=call.autocast, enabled=call.autocast is not None):
            if not self.vectorised:
                return self._looped(call, layout, cotangents)
            try:
                return self._by_vmap(call, layout, cotangents)
            except RuntimeError as error:
                raise RefusedByVmap(self, error) from error

    def _values(self) -> dict[str, Tensor]:
        return {local: self.module.get_parameter(local).detach() for local in self.parameters}

    def _by_vmap(self, call: Call, layout: CallLayout, cotangents: Sequence[Tensor]) -> dict[str, Tensor]:
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
        inputs = [leaves[place] for place, _ in held]
        grads = gradients_by_vmap(product, in_dims)(self._values(), inputs, list(cotangents))
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


@dataclass(frozen=True)
class _ModuleWatch:
    """The calls of a region's module in one forward pass."""

    region: ModuleRegion
    calls: list[Call]

    def edges(self) -> list[GradientEdge]:
        if any(call.versions != _versions(call.args, call.kwargs) for call in self.calls):
            raise changed_in_place(f"An input of {self.region.title}")
        return [edge for call in self.calls for edge in call.edges if edge is not None]

    def gradients(
        self,
        at_edges: Iterable[Tensor | None],
        batch: Sequence[Any],
        autocast: torch.dtype | None,  # noqa: ARG002
    ) -> dict[str, Tensor]:
        """Summed over the calls."""
        layouts, records = self.region.layouts, check_leading(batch)
        if len(self.calls) != len(layouts) or not all(
            layout.fits(call, records) for call, layout in zip(self.calls, layouts, strict=True)
        ):
            raise UnseenPath
        rest = iter(at_edges)
        total: dict[str, Tensor] = {}
        for call, layout in zip(self.calls, layouts, strict=True):
            at_outputs = [None if edge is None else next(rest) for edge in call.edges]
            for name, value in self.region.of_call(call, layout, at_outputs).items():
                total[name] = total[name] + value if name in total else value
        return total


class CallCollector:
    """Forward hook of a region's module: keeps its calls, once per forward pass of the model."""

    def __init__(self) -> None:
        self.calls: list[Call] = []

    def __call__(self, _: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        with torch._C.DisableTorchFunction():  # what is done here is no call of the model's
            outputs = differentiable_leaves(output)
            edges = [get_gradient_edge(each) if each.requires_grad else None for each in outputs]
            autocast = autocast_dtype(outputs[0].device if outputs else torch.device("cpu"))
            self.calls.append(Call(args, kwargs, outputs, edges, _versions(args, kwargs), autocast))


@contextlib.contextmanager
def _hooked(module: nn.Module, hook: Callable[..., None]) -> Iterator[None]:
    """Inside, ``hook`` is told of the calls of ``module``."""
    handle = module.register_forward_hook(hook, with_kwargs=True)
    try:
        yield
    finally:
        handle.remove()


def differentiable_leaves(output: Any) -> list[Tensor]:
    """The tensors in ``output`` a gradient can flow into, in order."""
    return [leaf for leaf in tree_leaves(output) if isinstance(leaf, Tensor) and leaf.is_floating_point()]


def _versions(args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[int]:
    return [leaf._version for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]


@dataclass
class _Trace:
    """What one forward pass on probe records showed of the modules."""

    recorder: Recorder
    calls: defaultdict[str, CallCollector] = field(default_factory=lambda: defaultdict(CallCollector))
    random: set[str] = field(default_factory=set)
    """Modules that drew random numbers."""

    def around(self, name: str) -> tuple[str, ...]:
        """The modules that all uses of a parameter happened in, outermost first."""
        uses = [(use.modules, [target.name for target in use.targets.values()]) for use in self.recorder.uses]
        uses += [(other.modules, list(other.names)) for other in self.recorder.others]
        columns = zip(*(modules for modules, names in uses if name in names), strict=False)
        return tuple(paths[0] for paths in columns if len(set(paths)) == 1)


def find_modules(model: nn.Module, loss: Loss, probes: ProbeRecords, names: Collection[str]) -> Iterable[Region]:
    """Modules for the parameters ``names``; those for which there is none are left out."""
    with probes.parameters(model):
        two, three = (_trace(model, loss, probes.batch(records)) for records in (2, 3))
    parameters = trained_parameters(model)
    regions: dict[str, ModuleRegion] = {}
    held: defaultdict[str, dict[str, str]] = defaultdict(dict)
    for name in names:
        for path in reversed(three.around(name)):
            module = model.get_submodule(path)
            local = next((key for key, value in module.named_parameters() if value is parameters[name]), None)
            layouts = _call_layouts(path, two, three)
            if local is not None and layouts is not None:
                held[path][local] = name
                title = f"{path or 'the model'} ({type(module).__name__})"
                regions[path] = ModuleRegion(title, held[path], module, layouts)
                break
    return regions.values()


def _trace(model: nn.Module, loss: Loss, batch: Sequence[Any]) -> _Trace:
    trace = _Trace(Recorder(trained_parameters(model)))
    with undisturbed(model), _watched(model, trace), torch.enable_grad(), trace.recorder:
        loss(model, *batch)
    return trace


@contextlib.contextmanager
def _watched(model: nn.Module, trace: _Trace) -> Iterator[None]:
    """Tells the recorder which modules run, and keeps their calls and whether they drew random numbers."""
    paths: Mapping[nn.Module, str] = {module: path for path, module in model.named_modules()}
    states: list[list[Tensor]] = []

    def enter(module: nn.Module, _: Any) -> None:
        trace.recorder.modules.append(paths[module])
        states.append(random_states(model))

    def leave(module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        path = trace.recorder.modules.pop()
        if not all(map(torch.equal, states.pop(), random_states(model))):
            trace.random.add(path)
        trace.calls[path](module, args, kwargs, output)

    with contextlib.ExitStack() as handles:
        for module in paths:
            handles.callback(module.register_forward_pre_hook(enter).remove)
            handles.callback(module.register_forward_hook(leave, with_kwargs=True).remove)
        yield


def _call_layouts(path: str, two: _Trace, three: _Trace) -> tuple[CallLayout, ...] | None:
    """Where the records are in every call of a module; None if it draws random numbers (its second run would differ
    from the first) or its tensors do not hold the records one by one.
    """
    first, second = two.calls[path].calls, three.calls[path].calls
    if path in three.random or len(first) != len(second) or not first:
        return None
    layouts = [find_call_layout(a, b) for a, b in zip(first, second, strict=True)]
    return None if any(each is None for each in layouts) else tuple(each for each in layouts if each is not None)


def find_call_layout(two: Call, three: Call) -> CallLayout | None:
    """Where the records are in a call's tensors, from the same call with two and with three records, or None."""
    leaves_two, leaves_three = (tree_leaves((each.args, each.kwargs)) for each in (two, three))
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
