"""Watching a forward pass: every use of a trained parameter, seen at the torch function that consumes it.

The model is neither wrapped nor changed: while the recorder is active torch calls it around every function
(``TorchFunctionMode``). So a weight used by several layers, by a layer called twice or by a functional call of the
user's own is one parameter with several uses, and a use that no rule covers is seen as one.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge, get_gradient_edge
from torch.overrides import TorchFunctionMode

from adadp.errors import InputError
from adadp.gradients.derived import Derived, PulledRule, Target
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


Key = tuple[str, int]
"""A call's identity from one forward pass to the next: its first parameter, and the how-manieth call with it."""


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

    @property
    def names(self) -> tuple[str, ...]:
        """The trained parameters it is a use of."""
        return tuple(target.name for target in self.targets.values())

    def checked_input(self) -> Tensor | None:
        """The input, if nobody changed it in place since."""
        if self.input is not None and self.input._version != self.version:
            raise changed_in_place(f"The input of the layer that holds {self.key[0]!r}")
        return self.input


@dataclass(frozen=True)
class OtherUse:
    """A use of trained parameters that no rule covers, and the modules it happened in, outermost first."""

    key: Key
    output_shape: torch.Size | None
    """None if it gave back anything but one new tensor."""
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

    What the calls ``derived`` give back counts as a parameter too. Parameters are told apart by ``id``: they, what is
    derived of them, and the views standing for their rows, outlive the pass.
    """

    def __init__(
        self, parameters: Mapping[str, Tensor], skip: Iterable[str] = (), derived: Container[Key] = ()
    ) -> None:
        super().__init__()
        self._parameters = parameters
        self._targets: dict[int, Target | Derived] = {id(value): Target(name) for name, value in parameters.items()}
        self._skipped = frozenset(skip)
        self._derived = derived
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
                # By what was there before anything was known to be derived, so that calls keep their keys.
                first = min(found, key=lambda each: each.depth).name
                key, before = (first, self._seen[first]), len(self.uses)
                self._seen[first] += 1
                if key in self._derived:
                    among = {id(each): self._targets[id(each)] for each in _tensors(given) if id(each) in self._targets}
                    self._derive(Derived(f"{first} {key[1]}", func, args, kwargs, among), output)
                elif not isinstance(output, Tensor) or not self._covered(key, reading, output, found):
                    names = tuple(sorted(frozenset().union(*(each.roots for each in found)) - self._skipped))
                    if names:
                        made = isinstance(output, Tensor) and all(output is not each for each in _tensors(given))
                        shape = output.shape if made else None
                        self.others.append(OtherUse(key, shape, names, name or str(func), tuple(self.modules)))
                for use in self.uses[before:]:
                    output = self._kept(use, output)
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

    def _derive(self, derived: Derived, output: Tensor) -> None:
        """``output`` counts as a parameter from here on."""
        self._targets[id(output)] = derived
        self._views.append(output)

    def _covered(
        self, key: Key, readings: Sequence[Reading], output: Tensor, found: Sequence[Target | Derived]
    ) -> bool:
        """Whether a reading accounts for all parameters ``found`` among the arguments; if so it is kept as a use, and
        as one more for each root of a derived parameter.
        """
        for reading in readings:
            targets = {
                slot: target
                for slot, value in reading.parameters.items()
                if (target := self._targets.get(id(value))) is not None
            }
            if len(targets) != len(found):
                continue
            value, edge = reading.input, get_gradient_edge(output)
            plain = {slot: each for slot, each in targets.items() if isinstance(each, Target)}
            ways: list[tuple[Rule, Mapping[str, Target]]] = [(reading.rule, plain)]
            ways += [
                (PulledRule(reading.rule, slot, each, root, self._parameters), {"weight": Target(root)})
                for slot, each in targets.items()
                if isinstance(each, Derived)
                for root in sorted(each.roots)
            ]
            for rule, slots in ways:
                kept = {slot: target for slot, target in slots.items() if target.name not in self._skipped}
                if kept:
                    version = -1 if value is None else value._version
                    first_only, modules = reading.batch_first_only, tuple(self.modules)
                    self.uses.append(Use(key, rule, kept, value, version, output.shape, edge, first_only, modules))
            return True
        return False

    def _part(self, parameter: Tensor, start: int, stop: int) -> Tensor:
        """Rows of a parameter, remembered as a target of their own."""
        before = len(self.others)
        view = parameter[start:stop]
        whole = self._targets.get(id(parameter))
        if isinstance(whole, Target):
            del self.others[before:]  # the slicing itself, seen as a use no rule covers
            self._targets[id(view)] = Target(whole.name, start, stop)
            self._views.append(view)
        return view


def _tensors(args: Iterable[Any]) -> Iterator[Tensor]:
    for value in args:
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, (list, tuple)):
            yield from _tensors(value)
