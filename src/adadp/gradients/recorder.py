"""Watching a forward pass: every use of a trained parameter, seen at the torch function that consumes it.

The model is neither wrapped nor changed: while the recorder is active torch calls it around every function
(``TorchFunctionMode``). So a weight used by several layers, by a layer called twice or by a functional call of the
user's own is one parameter with several uses, and a use that no rule covers is seen as one.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, get_gradient_edge
from torch.overrides import TorchFunctionMode

from adadp.errors import InputError
from adadp.gradients.readers import Reading, WrittenOut, read_call
from adadp.gradients.rule import Rule

DESCRIBING = frozenset(
    {"__get__", "__hash__", "__len__", "_is_view", "can_cast", "data_ptr", "dim", "element_size", "get_device",
     "has_names", "is_complex", "is_conj", "is_contiguous", "is_floating_point", "is_inference", "is_neg",
     "is_same_size", "is_set_to", "is_shared", "is_signed", "nelement", "ndimension", "numel", "result_type", "size",
     "storage_offset", "stride", "type"}
)  # fmt: skip
"""Functions that look at no value of a tensor, but at its shape and kind."""
_MOVING = frozenset({"flip", "fliplr", "flipud", "roll", "rot90"})
"""Functions whose plain numbers say which rows go where: these count as a part of the call."""


@dataclass(frozen=True)
class Target:
    """A trained parameter, or the rows ``start`` to ``stop`` of one (a packed projection used in parts)."""

    name: str
    start: int | None = None
    stop: int | None = None

    def of(self, whole: Tensor) -> Tensor:
        """These rows of a tensor that has the shape of the parameter."""
        return whole if self.start is None else whole[self.start : self.stop]


Key = tuple[str, int]
"""A use's identity from one forward pass to the next: its first parameter, and the how-manieth use of it."""


@dataclass(frozen=True)
class Use:
    """One call that a rule covers. ``edge`` is where the gradient of its output can be asked for, even when the output
    is changed in place afterwards; ``version`` tells whether its input was.
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
            raise changed_in_place(f"The input of the layer that holds {self.key[0]!r}")
        return self.input


@dataclass(frozen=True)
class OtherUse:
    """A use of trained parameters that no rule covers, and the modules it happened in, outermost first."""

    names: tuple[str, ...]
    function: str
    modules: tuple[str, ...]


def changed_in_place(what: str) -> InputError:
    """The error for a tensor that is needed as it was and no longer is."""
    return InputError(
        f"{what} was changed in place after it had been used.",
        why="The gradient of the parameters is computed from it. Plain autograd refuses this too.",
        fix="Use the out-of-place operation there.",
    )


class Recorder(TorchFunctionMode):
    """Collects the uses of ``parameters`` (name to trained parameter) in one forward pass, but not those of ``skip``.

    Parameters are told apart by ``id``: they, and the views standing for their rows, outlive the pass.
    """

    def __init__(self, parameters: Mapping[str, nn.Parameter], skip: Iterable[str] = ()) -> None:
        super().__init__()
        self._targets = {id(value): Target(name) for name, value in parameters.items()}
        self._skipped = frozenset(skip)
        self._views: list[Tensor] = []
        self._seen: defaultdict[str, int] = defaultdict(int)
        self.uses: list[Use] = []
        self.others: list[OtherUse] = []
        self.dtypes: set[torch.dtype] = set()
        """Of the outputs of all uses."""
        self.modules: list[str] = []
        """The modules being run, outermost first, as far as somebody keeps this up to date."""
        self.calls_made = 0
        """A number that stands for the sequence of all torch functions that were called, trained or not, and for the
        truth values they gave back: what Python does next can depend on these."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        given = (*args, *kwargs.values()) if kwargs else args
        name = getattr(func, "__name__", "")
        if name not in DESCRIBING:
            numbers = repr([value for value in given if not isinstance(value, Tensor)]) if name in _MOVING else ""
            self.calls_made = hash((self.calls_made, name, numbers))
        found = [target for value in _tensors(given) if (target := self._targets.get(id(value))) is not None]
        if not found or not torch.is_grad_enabled():
            return self._told(func, given, func(*args, **kwargs))
        reading = read_call(func, args, kwargs)  # first: it may refuse what the call would do
        if isinstance(reading, WrittenOut):
            with self:
                return reading.run(part=self._part)
        output = func(*args, **kwargs)
        for leaf in _tensors((output,)):
            # A conversion to the dtype it has already gives back the parameter itself: no use.
            if leaf.requires_grad and id(leaf) not in self._targets:
                self.dtypes.add(leaf.dtype)
                before = len(self.uses)
                if reading is None or not isinstance(output, Tensor) or not self._covered(reading, output, found):
                    names = tuple(sorted({target.name for target in found} - self._skipped))
                    if names:
                        self.others.append(OtherUse(names, name or str(func), tuple(self.modules)))
                elif len(self.uses) > before:
                    output = self._kept(self.uses[-1], output)
                break
        return self._told(func, given, output)

    def _told(self, func: Callable[..., Any], given: tuple[Any, ...], output: Any) -> Any:
        if isinstance(output, bool) and getattr(func, "__name__", "") not in DESCRIBING:
            self.calls_made = hash((self.calls_made, output))
        return self._answered(func, given, output)

    def _answered(self, func: Callable[..., Any], given: tuple[Any, ...], output: Any) -> Any:  # noqa: ARG002
        """What ``func`` gives back to the model; somebody may look at it."""
        return output

    def _kept(self, use: Use, output: Tensor) -> Tensor:  # noqa: ARG002
        """The output of a use that a rule covers; somebody may look at it."""
        return output

    def _covered(self, reading: Reading, output: Tensor, found: list[Target]) -> bool:
        """Whether ``reading`` accounts for all parameters ``found`` among the arguments; if so it is kept as a use."""
        targets = {
            slot: target
            for slot, value in reading.parameters.items()
            if (target := self._targets.get(id(value))) is not None
        }
        if len(targets) != len(found):
            return False
        first = found[0].name
        key = (first, self._seen[first])
        self._seen[first] += 1
        kept = {slot: target for slot, target in targets.items() if target.name not in self._skipped}
        if not kept:
            return True
        value = reading.input
        self.uses.append(
            Use(
                key,
                reading.rule,
                kept,
                value,
                -1 if value is None else value._version,
                output.shape,
                get_gradient_edge(output),
                reading.batch_first_only,
                tuple(self.modules),
            )
        )
        return True

    def _part(self, parameter: Tensor, start: int, stop: int) -> Tensor:
        """Rows of a parameter, remembered as a target of their own."""
        before = len(self.others)
        view = parameter[start:stop]
        del self.others[before:]  # the slicing itself, seen as a use no rule covers
        whole = self._targets.get(id(parameter))
        if whole is not None:
            self._targets[id(view)] = Target(whole.name, start, stop)
            self._views.append(view)
        return view


def _tensors(args: Iterable[Any]) -> Iterator[Tensor]:
    for value in args:
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, (list, tuple)):
            yield from _tensors(value)
