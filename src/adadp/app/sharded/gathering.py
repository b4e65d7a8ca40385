"""Layers whose parameters are gathered while they compute: the passes of a model that is split over processes.

FSDP gathers a layer before it runs and divides it again afterwards, by hooks that also add up gradients of all
processes. Private passes take no gradients of parameters and exchange other sums, so these hooks are replaced by ours
while they run, which gather and divide by FSDP's public calls (``unshard``, ``reshard``):

    before a layer runs forward                  it is gathered
    after that                                   it is divided, unless it is the whole model's own
    before the gradient of its output goes back  it is gathered again
    when the gradients of its inputs are there   it is divided
    before the whole model runs once more        everything is divided, so that parameters that were moved are seen

All processes must gather the same layers in the same order. So they meet before each of them: where one has failed, or
runs other layers, all are told (``adadp.ranks``), instead of waiting for one another.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import register_multi_grad_hook
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor, Shard
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_leaves

from adadp.errors import InputError
from adadp.gradients.regions import UnseenPath
from adadp.ranks import Ranks
from adadp.sharding import GATHERED, is_split, own_part, own_rows

_ROOT = ""
"""The name of the whole model among its modules."""


class Gathering:
    """The layers of ``model`` that FSDP gathers."""

    def __init__(self, model: nn.Module, ranks: Ranks) -> None:
        self._ranks = ranks
        self._layers: dict[str, Any] = {
            name: each for name, each in model.named_modules() if isinstance(each, FSDPModule)
        }
        self._here: set[str] = set()
        """The layers that are gathered now."""
        self._agreed = False
        """Whether all processes have come as far as the gradients of this pass."""
        self._check(model)
        self._layers[_ROOT]._get_fsdp_state()._lazy_init()  # as its first forward pass does
        split = dict(model.named_parameters())
        self._layer_of = self._named_gathered(model, split)
        self._check_rows(split)

    def _check(self, model: nn.Module) -> None:
        if _ROOT not in self._layers:
            raise InputError(
                "Parts of the model were given to fully_shard, and the model itself was not.",
                why="Its other parameters would be whole in every process, and their gradients added by nobody.",
                fix="Call fully_shard(model) on the whole model last.",
            )
        for name, value in model.named_parameters():
            if not isinstance(value, DTensor):
                what, fix = "is not split over the processes", "Call fully_shard without `ignored_params`."
            elif value.device_mesh.ndim != 1 or value.device_mesh.size() != self._ranks.size:
                what, fix = (
                    "is not split over all processes of the run",
                    "Use one mesh of one dimension for all of them.",
                )
            elif value.placements != (Shard(0),):
                what, fix = "is not split by rows", "Call fully_shard without `shard_placement_fn`, and no other split."
            elif value.device_mesh.get_local_rank() != self._ranks.rank:
                what, fix = "has its parts in another order than the processes", "Number the mesh by rank."
            else:
                continue
            raise InputError(
                f"The parameter {name} {what}.",
                why="Every coordinate of a gradient must be added up, and given its noise, by exactly one process.",
                fix=fix,
            )
        for layer in self._layers.values():
            policy = layer._get_fsdp_state()._mp_policy
            if any((policy.param_dtype, policy.reduce_dtype, policy.output_dtype)):
                raise InputError(
                    "The model was given to fully_shard with a mixed precision policy.",
                    why="Private passes gather parameters as they are.",
                    fix="Leave `mp_policy` out; half precision in a run is `precision='bf16'`.",
                )

    def _named_gathered(self, model: nn.Module, split: Mapping[str, nn.Parameter]) -> dict[str, str]:
        """The layer that gathers each parameter. The model's parameters know what they are while they are gathered."""
        found: dict[str, str] = {}
        for name, layer in self._layers.items():
            self._ranks.meet(f"gathering {name!r}")
            layer.unshard()
            for parameter, value in model.named_parameters():
                if not is_split(value):
                    setattr(split[parameter], GATHERED, value)
                    found[parameter] = name
            layer.reshard()
        return found

    def _check_rows(self, split: Mapping[str, Tensor]) -> None:
        """Refuse parts that are not all rows of a parameter, each once, where they are looked for."""
        mine = {name: (tuple(value.shape), own_rows(value), len(own_part(value))) for name, value in split.items()}
        every = self._ranks.all_of("dividing parameters", mine)
        for name, value in split.items():
            found = [each.get(name) for each in every]
            shapes, rows = {each and each[0] for each in found}, [row for each in found if each for row in each[1]]
            if (
                len(shapes) > 1
                or rows != list(range(len(value)))
                or any(len(each[1]) != each[2] for each in found if each)
            ):
                raise InputError(
                    f"The parts of {name} that the processes have are not the whole parameter, divided evenly.",
                    why="Every coordinate of a gradient must be added up, and given its noise, by exactly one process.",
                    fix="Call fully_shard in all processes alike.",
                )

    @contextmanager
    def running(self) -> Iterator[None]:
        """Around passes forward and back. Nothing is gathered afterwards."""
        for layer in self._layers.values():
            layer.reshard()  # what an evaluation has left
        replaced, handles = [], []
        for name, layer in self._layers.items():
            state = layer._get_fsdp_state()
            for hooks in (layer._forward_pre_hooks, layer._forward_hooks):
                for key in [key for key, hook in hooks.items() if _belongs(hook, state)]:
                    replaced.append((hooks, key, hooks[key]))
                    hooks[key] = _nothing
            handles.append(layer.register_forward_pre_hook(partial(self._before, name), prepend=True, with_kwargs=True))
            handles.append(layer.register_forward_hook(partial(self._after, name)))
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()
            for hooks, key, hook in replaced:
                hooks[key] = hook
            self._divide_all()

    @contextmanager
    def available(self, parameters: Iterable[str]) -> Iterator[None]:
        """Inside, these parameters are gathered."""
        before = set(self._here)
        for layer in sorted({self._layer_of[each] for each in parameters}):
            self._gather(layer)
        try:
            yield
        finally:
            for layer in self._here - before:
                self._divide(layer)

    def is_of_the_whole(self, parameter: str) -> bool:
        """Whether a parameter is gathered as long as the whole model runs."""
        return self._layer_of[parameter] == _ROOT

    def each_gradient(
        self, parameters: Mapping[str, nn.Parameter], losses: Tensor, see: Callable[[str, Tensor], None]
    ) -> None:
        """Take the gradient of ``losses``, as autograd does: ``see`` is shown that of one parameter after the other."""

        def shown(name: str, parameter: Tensor) -> None:
            gradient, parameter.grad = parameter.grad, None
            if gradient is not None:
                with _unseen():
                    see(name, gradient.to_dense())

        handles = [
            value.register_post_accumulate_grad_hook(partial(shown, name))  # type: ignore[no-untyped-call]
            for name, value in parameters.items()
        ]
        try:
            losses.sum().backward()  # type: ignore[no-untyped-call]
        finally:
            for handle in handles:
                handle.remove()

    def _before(self, name: str, _: nn.Module, args: Any, kwargs: Any) -> None:
        with _unseen():
            back = _going_back()
            if name == _ROOT and not back:
                self._divide_all()
            self._gather(name)
            given = [] if back else [each for each in _tensors((args, kwargs)) if each.requires_grad]
            if given and name != _ROOT:
                register_multi_grad_hook(given, lambda _: self._divide(name))

    def _after(self, name: str, _: nn.Module, __: Any, output: Any) -> None:
        if name == _ROOT or _going_back():
            return
        with _unseen():
            made = [each for each in _tensors(output) if each.requires_grad]
            for each in made:
                each.register_hook(lambda _: self._go_back(name))  # type: ignore[no-untyped-call]
            if made or not torch.is_grad_enabled():
                self._divide(name)

    def _go_back(self, name: str) -> None:
        with _unseen():
            self.agree()
            self._gather(name)

    def agree(self, *, unseen: bool = False) -> None:
        """Before any gradient goes back: whether the pass of some process took a path that is not known."""
        if not self._agreed:
            self._agreed = True
            if self._ranks.any("going back", unseen):
                raise UnseenPath

    def _gather(self, name: str) -> None:
        if name not in self._here:
            self._ranks.meet(f"gathering {name!r}")
            try:
                self._layers[name].unshard()
            except RuntimeError:
                self._ranks.meet("gathering failed")  # the others have ended, or come here too
                raise
            self._here.add(name)

    def _divide(self, name: str) -> None:
        if name in self._here:
            self._layers[name].reshard()
            self._here.discard(name)

    def _divide_all(self) -> None:
        self._agreed = False
        for name in list(self._here):
            self._divide(name)


def _going_back() -> bool:
    """Whether gradients are going back: a layer that runs then is one that a checkpoint runs once more."""
    return torch._C._current_graph_task_id() >= 0


@contextmanager
def _unseen() -> Iterator[None]:
    """Inside, whoever watches a pass sees nothing, and no gradient is followed."""
    with torch._C.DisableTorchFunction(), _disable_current_modes(), torch.no_grad():
        yield


def _belongs(hook: Any, state: object) -> bool:
    return getattr(hook, "__self__", None) is state


def _nothing(*_: Any) -> None:
    """In the place of a hook."""


def _tensors(values: Any) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(values) if isinstance(leaf, Tensor)]
