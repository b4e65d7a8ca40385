"""The forward and backward pass of a batch as one compiled graph.

The graph is traced with fake tensors, which have shapes and no numbers. So nothing in it can depend on what a record
holds: a model that asks a tensor for a number or a truth value cannot be traced, and runs as it is written. While it is
traced the same recorder watches as in an ordinary pass, and its calls must be among those that were followed. The graph
is then that sequence of calls for every batch of these shapes, and the theorem of docs/models.md covers it. What the
compiler makes of the graph is compared with the model as written, on probe records, before a real batch is given to it.

    =========================================  =====================================================================
    a model that reads values, or has          not compiled, with the reason in ``note``
    parameters that need a generic way
    no compiler for this device, or one that   that batch runs as written: found out on probe records
    computes something else
    more shapes than ``_SHAPES``               further ones run as written
    a batch shorter than one before it         runs as written: a short chunk is there only if a batch is larger
                                               than usual, and compiling it, which takes seconds, would tell
    Python that does something else at each    its first outcome stays; two records of a step in fifty are compared
    call (a counter, numbers from elsewhere)   with the model as written, as always
    =========================================  =====================================================================
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._pytree import TreeSpec, tree_flatten, tree_leaves, tree_unflatten

from adadp.gradients.capture import full_precision
from adadp.gradients.derived import PulledRule
from adadp.gradients.inspection import Blueprint, check_losses
from adadp.gradients.passes import Passed
from adadp.gradients.probe_records import Loss, ProbeRecords, undisturbed
from adadp.gradients.recorder import Recorder, Use
from adadp.gradients.regions import UnseenPath, autocast_dtype
from adadp.gradients.rule import Rule

_SHAPES = 8
"""How many graphs are compiled at most."""
_TRIED = 3
"""Records of the batch that is traced to see whether a model can be."""
_FAR, _SPREAD = 1e-2, 4
"""How far a tensor of a compiled pass may be, over its size, from the same in double precision where rounding excuses
it, and how many times as far as the code as written."""
_NUDGE, _MOVES = 2.0**-20, 3
"""How far parameters are moved, over their size, to see what rounding does to a pass, and how often."""
_COMPILED = "Forward and backward passes are compiled, where compiled code agreed with the code as written."
_NAME = "_model."
"""What names of parameters and buffers begin with where the loss is a module."""


class _Loss(nn.Module):
    """The loss as a module, so that its model can be run with other tensors in the place of its parameters."""

    def __init__(self, model: nn.Module, loss: Loss) -> None:
        super().__init__()
        self._model, self._loss = model, loss

    def forward(self, *batch: Any) -> Tensor:
        return self._loss(self._model, *batch)


@dataclass(frozen=True)
class _Graph:
    """A pass that returns the tensors of its uses as a list, the uses it was traced with, and the order of the list."""

    run: Callable[..., list[Tensor]]
    uses: Sequence[Use]
    order: TreeSpec

    def __call__(self, state: Mapping[str, Tensor], batch: list[Tensor]) -> Passed:
        inputs, leaves, grads = tree_unflatten(self.run(state, batch), self.order)
        parameters = {name.removeprefix(_NAME): value for name, value in state.items()}
        uses = [
            replace(use, input=value, version=0 if value is None else value._version, rule=rule)
            for use, value, rule in zip(
                self.uses, inputs, map(_rule, self.uses, leaves, [parameters] * len(leaves)), strict=True
            )
        ]
        return uses, grads


class CompiledPasses:
    """Compiled passes of a model, one for each shape of a batch."""

    def __init__(self, model: nn.Module, loss: Loss, blueprint: Blueprint, probes: ProbeRecords) -> None:
        self._module, self._blueprint, self._probes = _Loss(model, loss), blueprint, probes
        self._graphs: dict[Any, _Graph | None] = {}
        self._longest = 0
        reason = self._refusal()
        self.note = _COMPILED if reason is None else f"Nothing is compiled: {reason}."
        self._possible = reason is None

    def __call__(self, batch: Sequence[Any]) -> Passed | None:
        """One pass of ``batch``; None: run it as written."""
        leaves, structure = tree_flatten(tuple(batch))
        if not self._possible or not all(isinstance(leaf, Tensor) for leaf in leaves):
            return None
        kinds = _kinds(leaves)
        key = (structure, autocast_dtype(leaves[0].device), *kinds)
        records = len(leaves[0])
        if records >= self._longest and key not in self._graphs and len(self._graphs) < _SHAPES:
            self._longest, self._graphs[key] = records, self._compiled(kinds)
        graph = self._graphs.get(key)
        if graph is None:
            return None
        with full_precision(leaves[0].device):
            return graph(self._state(), [leaf.contiguous() for leaf in leaves])

    def _state(self) -> dict[str, Tensor]:
        """Parameters and buffers, each once, as they are now."""
        return dict(self._module.named_parameters()) | dict(self._module.named_buffers())

    def _refusal(self) -> str | None:
        """Why no pass can be compiled."""
        if self._blueprint.regions:
            return "some parameters need another way than closed forms"
        try:
            self._traced(_TRIED)
        except Exception as error:  # whatever a model does that cannot be traced; it saw public records only
            return f"the model cannot be traced without its values ({type(error).__name__})"
        return None

    def _compiled(self, kinds: Sequence[tuple[torch.Size, torch.dtype]]) -> _Graph | None:
        """The graph for batches of these shapes, if it computes on probe records what the model does as written."""
        records = kinds[0][0][0]
        try:
            graph, batch, structure = self._traced(records)
            if _kinds(batch) != kinds:
                return None
            compiled = replace(graph, run=torch.compile(graph.run, dynamic=False, options={"fallback_random": True}))
            with undisturbed(self._module):
                torch.manual_seed(0)
                with full_precision(batch[0].device):
                    found = compiled(self._state(), batch)
                torch.manual_seed(0)
                expected = self._pass(self._state(), tree_unflatten(batch, structure), records)
                rounding = [max(self._blueprint.rounding, 1e-4)] * len(_tensors(found))
                alike = all(map(_alike, _tensors(found), _tensors(expected), rounding))
                if not alike and not self._blueprint.random:  # else all would have masks of their own
                    usual = [expected, *self._moved(batch, structure)]
                    alike = _as_close(found, usual, self._precisely(batch, structure))
        except Exception as error:  # compilers fail in many ways, here on public records
            warnings.warn(f"A batch is not compiled: {type(error).__name__}.", stacklevel=2)
            return None
        if alike:
            return compiled
        warnings.warn("A batch is not compiled: the compiled code computes something else.", stacklevel=2)
        return None

    def _precisely(self, batch: Sequence[Tensor], structure: TreeSpec) -> Passed:
        """The pass as written, in double precision: what all others are rounded from."""
        doubled = [value.double() if value.is_floating_point() else value for value in batch]
        state = {key: value.double() if value.is_floating_point() else value for key, value in self._state().items()}
        return self._pass(state, tree_unflatten(doubled, structure), len(batch[0]))

    def _moved(self, batch: Sequence[Tensor], structure: TreeSpec) -> Iterator[Passed]:
        """The pass as written with parameters that are a rounding off, several times."""
        generator = torch.Generator().manual_seed(0)
        for _ in range(_MOVES):
            state = {
                key: value * (1 + _NUDGE * torch.randn(value.shape, generator=generator).to(value))
                if value.is_floating_point()
                else value
                for key, value in self._state().items()
            }
            yield self._pass(state, tree_unflatten(list(batch), structure), len(batch[0]))

    def _traced(self, records: int) -> tuple[_Graph, list[Tensor], TreeSpec]:
        batch, structure = tree_flatten(tuple(self._probes.batch(records)))
        kept: list[Any] = []

        def traced(state: dict[str, Tensor], leaves: list[Tensor]) -> list[Tensor]:
            uses, grads = self._pass(state, tree_unflatten(leaves, structure), records)
            inputs = [None if use.input is None else use.input.detach() for use in uses]
            flat, order = tree_flatten((inputs, [_leaves(use) for use in uses], list(grads)))
            kept[:] = uses, order
            return flat

        run = make_fx(traced, tracing_mode="fake", _allow_non_fake_inputs=True)(self._state(), batch)
        return _Graph(run, *kept), batch, structure

    def _pass(self, state: Mapping[str, Tensor], batch: Sequence[Any], records: int) -> Passed:
        """One pass as ``passes.run_batch`` makes it, with ``state`` in the place of parameters and buffers."""
        trains = {name for name, value in self._module.named_parameters() if value.requires_grad}
        values = {name: value.detach().requires_grad_(name in trains) for name, value in state.items()}
        trained = {name.removeprefix(_NAME): value for name, value in values.items() if name in trains}
        recorder = Recorder(trained, derived=self._blueprint.derived)
        with torch.enable_grad(), recorder:
            losses = check_losses(functional_call(self._module, values, tuple(batch)), records)
        for use in recorder.uses:
            use.checked_input()
        if recorder.others or recorder.calls_made not in self._blueprint.calls_made:
            raise UnseenPath
        edges = [use.edge for use in recorder.uses]
        return recorder.uses, torch.autograd.grad(losses.sum(), edges, allow_unused=True)


def _kinds(leaves: Sequence[Tensor]) -> list[tuple[torch.Size, torch.dtype]]:
    return [(leaf.shape, leaf.dtype) for leaf in leaves]


def _leaves(use: Use) -> list[Tensor]:
    """The tensors that the rule of a use holds beside parameters."""
    return [leaf.detach() for leaf in use.rule.derived.leaves()] if isinstance(use.rule, PulledRule) else []


def _rule(use: Use, leaves: Sequence[Tensor], parameters: Mapping[str, Tensor]) -> Rule:
    """The rule of ``use`` with these ``leaves`` in place of what it was traced with."""
    if not isinstance(use.rule, PulledRule):
        return use.rule
    return replace(use.rule, derived=use.rule.derived.with_leaves(iter(leaves)), parameters=parameters)


def _tensors(passed: Passed) -> list[Tensor]:
    uses, grads = passed
    return [leaf for leaf in tree_leaves(([use.input for use in uses], list(grads))) if isinstance(leaf, Tensor)]


def _as_close(found: Passed, usual: Sequence[Passed], exact: Passed) -> bool:
    """Whether ``found`` is as close to ``exact`` as rounding leaves the code as written, ``usual``.

    A deep network has records at the corner of some ReLU, where the last bit decides: one of them moves the gradients
    of all layers before it by more than 1e-4, in the code as written too. Compared are mean squares over all tensors.
    """
    mine, *others = [_distances(each, exact) for each in (found, *usual)]
    return max(mine) <= _FAR and math.hypot(*mine) <= _SPREAD * max(math.hypot(*each) for each in others)


def _distances(passed: Passed, exact: Passed) -> list[float]:
    """How far the tensors of a pass are from ``exact``, each over its size; infinity where that says nothing."""
    found = []
    for value, truth in zip(_tensors(passed), _tensors(exact), strict=True):
        if value.shape != truth.shape or not truth.is_floating_point():
            found.append(0.0 if torch.equal(value, truth) else math.inf)
        else:
            away = float((value.detach().double() - truth.detach()).norm() / truth.detach().norm().clamp(min=1e-300))
            found.append(math.inf if math.isnan(away) else away)
    return found


def _alike(found: Tensor, expected: Tensor, rounding: float) -> bool:
    if found.shape != expected.shape or not expected.is_floating_point():
        return torch.equal(found, expected)
    size, away = expected.double().norm(), (found.double() - expected.double()).norm()
    return bool(away <= rounding * size + 1e-12) or not bool(size.isfinite())
