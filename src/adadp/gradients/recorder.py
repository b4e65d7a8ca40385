"""Watching a forward pass: every use of a trained parameter, seen at the torch function that consumes it.

The model is neither wrapped nor changed: while the recorder is active torch calls it around every function
(``TorchFunctionMode``). So a weight used by several layers, by a layer called twice or by a functional call of the user's
own is one parameter with several uses, and a use that no rule covers cannot be missed.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, get_gradient_edge
from torch.overrides import TorchFunctionMode

from adadp.gradients.attention import attention
from adadp.gradients.calls import read_call
from adadp.gradients.rules import Rule


@dataclass(frozen=True)
class Target:
    """A trained parameter, or the rows ``start`` to ``stop`` of one (a packed projection used in parts)."""

    name: str
    start: int | None = None
    stop: int | None = None


Key = tuple[str, int]
"""A use's identity from one forward pass to the next: its first parameter, and the how-manieth use of it."""


@dataclass(frozen=True)
class Use:
    """One call that a rule covers. ``edge`` is where the gradient of its output can be asked for, even when the output is
    changed in place afterwards; ``version`` tells whether its input was.
    """

    key: Key
    rule: Rule
    targets: Mapping[str, Target]
    input: Tensor | None
    version: int
    output_shape: torch.Size
    edge: GradientEdge
    batch_first_only: bool
    modules: tuple[str, ...]
    """The modules it happened in, outermost first, as far as the recorder was told."""

    def checked_input(self) -> Tensor | None:
        """The input, if nobody changed it in place since."""
        if self.input is not None and self.input._version != self.version:
            raise RuntimeError(
                f"The input of the layer that holds {self.key[0]!r} was changed in place after the layer had used it, so "
                "its gradient can no longer be computed. Plain autograd refuses this too: use the out-of-place "
                "operation there."
            )
        return self.input


@dataclass(frozen=True)
class OtherUse:
    """A use of trained parameters that no rule covers, and the modules it happened in, outermost first."""

    names: tuple[str, ...]
    function: str
    modules: tuple[str, ...]


class Recorder(TorchFunctionMode):
    """Collects the uses of ``parameters`` (name to trained parameter) in one forward pass."""

    def __init__(self, parameters: Mapping[str, nn.Parameter], skip: Iterable[str] = ()) -> None:
        super().__init__()
        skipped = set(skip)
        self._targets = {id(value): Target(name) for name, value in parameters.items() if name not in skipped}
        self._views: list[Tensor] = []
        self._seen: defaultdict[str, int] = defaultdict(int)
        self.uses: list[Use] = []
        self.others: list[OtherUse] = []
        self.modules: list[str] = []
        """The modules being run, outermost first, as far as somebody keeps this up to date."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        found = [target for value in _tensors(args, kwargs) if (target := self._targets.get(id(value))) is not None]
        if not found or not torch.is_grad_enabled():
            return func(*args, **kwargs)
        if func is F.multi_head_attention_forward:
            with self:
                return attention(*args, **kwargs, part=self._part)
        output = func(*args, **kwargs)
        if _carries_grad(output):
            self._record(func, args, kwargs, output, found)
        return output

    def _record(
        self,
        func: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        output: Any,
        found: list[Target],
    ) -> None:
        reading = read_call(func, args, kwargs)
        if reading is not None and isinstance(output, Tensor):
            targets = {
                slot: target
                for slot, value in reading.parameters.items()
                if (target := self._targets.get(id(value))) is not None
            }
            if len(targets) == len(found):  # no other argument is a trained parameter too
                first = found[0].name
                key = (first, self._seen[first])
                self._seen[first] += 1
                value = reading.input
                self.uses.append(
                    Use(
                        key,
                        reading.rule,
                        targets,
                        value,
                        -1 if value is None else value._version,
                        output.shape,
                        get_gradient_edge(output),
                        reading.batch_first_only,
                        tuple(self.modules),
                    )
                )
                return
        names = tuple(sorted({target.name for target in found}))
        self.others.append(OtherUse(names, getattr(func, "__name__", str(func)), tuple(self.modules)))

    def _part(self, parameter: Tensor, start: int, stop: int) -> Tensor:
        """Rows of a parameter, remembered as a target of their own."""
        view = parameter[start:stop]
        whole = self._targets.get(id(parameter))
        if whole is not None:
            # The slicing itself was recorded as a use no rule covers; the view stands for those rows instead.
            self.others = [
                other for other in self.others if other.function != "__getitem__" or other.names != (whole.name,)
            ]
            self._targets[id(view)] = Target(whole.name, start, stop)
            self._views.append(view)
        return view


def _tensors(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Iterator[Tensor]:
    for value in args:
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, (list, tuple)):
            yield from _tensors(tuple(value), {})
    for value in kwargs.values():
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, (list, tuple)):
            yield from _tensors(tuple(value), {})


def _carries_grad(output: Any) -> bool:
    if isinstance(output, Tensor):
        return output.requires_grad
    return isinstance(output, (list, tuple)) and any(_carries_grad(each) for each in output)
