"""Whose values every number of a forward pass is made of.

While ``Owners`` is active torch calls it around every kernel. Each number of each tensor has an owner: nobody (a
constant, a parameter), one record, or ``MIXED`` (more than one record). The owner of a result is the join of the owners
of all numbers it can depend on, whatever their values are: what an index that depends on records picks along a
dimension is the join over that dimension, so a sort followed by its inverse is mixed although on the records at hand it
may have changed nothing. A kernel without a rule (``owner_rules.py``) joins everything it is given. So:

    if at the end loss i is owned by record i, and row i of the input and of the output of a layer is owned by record i,
    then row i of the gradient at that output is a function of record i too (loss k does not depend on row i for k != i)
    and what is captured there belongs to record i. This holds for every batch on which the model makes the same calls.

What cannot be followed is said in ``lost``: values that leave torch as Python numbers, whose number of elements depends
on records, or whose backward pass is the user's own. A truth value that leaves torch can choose what follows, so it is
compared with what was followed, as the calls are (``Recorder.calls_made``).
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch._C import _len_torch_function_stack
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from adadp.gradients.layout import Layout
from adadp.gradients.owner_rules import MIXED, NOBODY, Arguments, join, joined, over, rule_for
from adadp.gradients.recorder import DESCRIBING

_COPYING = frozenset({"tensor", "as_tensor", "asarray", "new", "new_tensor"})
"""Functions that make a tensor of plain numbers, and take tensors for these without a kernel."""
_NOT_THE_MODELS = ("torch.", "adadp.gradients.", "adadp.app.gradient_rules.")
"""Modules whose lines are no lines of a model."""


class Owners(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Follows the owners of all numbers through a pass, or several: what an earlier one left is mixed for the next."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._held: dict[int, tuple[torch.UntypedStorage, int, Tensor]] = {}
        """Memory by its address: itself, so that the address stays its own; bytes of an element, or of one of the two
        parts of a complex one; owner of each."""
        self.lost: str | None = None
        """Why nothing can be said about this pass, with the line of the model that is to blame."""
        self.mixed_at: str | None = None
        """The first line of the model that joined several records."""
        self._taken = False
        """Whether a kernel has read a number of a record into Python or C++ since a function gave back its answer."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Torch's switch for modes that are never compiled: otherwise it loads the compiler to say so."""
        return False

    def next_pass(self) -> None:
        """What was seen until now belongs to another batch: who meets it again has mixed two."""
        for _, _, owners in self._held.values():
            owners[owners != NOBODY] = MIXED
        self.lost = self.mixed_at = None

    def give(self, batch: Any) -> None:
        """Row i of every tensor in ``batch`` is record i's."""
        for leaf in tree_leaves(batch):
            if isinstance(leaf, Tensor):
                self._put(leaf, pattern(Layout(0), leaf.shape, leaf.shape[0]))

    def of(self, value: Tensor) -> Tensor:
        """The owner of every number of ``value``; -1 is nobody."""
        held = self._held.get(_address(value))
        if held is None:
            return torch.full((), NOBODY, dtype=torch.int16).expand(value.shape)
        _, size, owners = held
        if not _reaches(value, size, owners):
            return torch.full((), MIXED, dtype=torch.int16).expand(value.shape)
        if value.element_size() == size:
            return owners.as_strided(value.shape, value.stride(), value.storage_offset())
        return over(_pieces(owners, value, size), [-1]).squeeze(-1)

    def known(self, value: Any) -> bool:
        """Whether any number of ``value`` is a record's."""
        return isinstance(value, Tensor) and bool((self.of(value) != NOBODY).any())

    def claim(self, value: Tensor, layout: Layout, records: int) -> Tensor:
        """``value``, now owned row by row as ``layout`` says, also where nobody did; who mixes it up will be seen.

        A view of a parameter has no memory of its own: then the value is a copy.
        """
        if any(stride == 0 and size > 1 for stride, size in zip(value.stride(), value.shape, strict=True)):
            value = value.clone()
        self._put(value, join(self.of(value), pattern(layout, value.shape, records)))
        return value

    def belongs(self, value: Tensor, layout: Layout, records: int) -> bool:
        """Whether every row of ``value`` is its record's, or nobody's."""
        if not layout.fits(value.shape, records):
            return False
        owners = self.of(value)
        return bool(((owners == NOBODY) | (owners == pattern(layout, value.shape, records))).all())

    def watch_answer(self, function: Callable[..., Any], given: Any, output: Any) -> None:
        """Notice values of records that leave torch: anything but a tensor that a function on them gives back."""
        name = getattr(function, "__name__", "")
        sized = len(given) == 1 if name == "one_hot" else name == "tensor_split" and isinstance(given[1], Tensor)
        if sized and any(map(self.known, given)):
            self._lose(f"{name}, which makes tensors whose size depends on records,")
        taken, self._taken = self._taken, False
        if name in _COPYING:  # torch.tensor([n.max(), n.min()])
            taken = any(
                self.known(leaf) for part in given if isinstance(part, (list, tuple)) for leaf in tree_leaves(part)
            )
        if taken and not isinstance(output, bool) and name != "one_hot":  # which looks whether its numbers are in range
            self._lose(f"{name}, which uses a value of records as a plain number,")
        if self.lost is not None or name in DESCRIBING or isinstance(output, (Tensor, torch.Size, torch.dtype)):
            return
        hooked = name in {"register_hook", "register_post_accumulate_grad_hook"}
        strangers = [leaf for leaf in tree_leaves(output) if leaf is not None and not isinstance(leaf, Tensor)]
        if not hooked and all(isinstance(leaf, (bool, torch.Size, torch.dtype, torch.device)) for leaf in strangers):
            return
        if any(self.known(leaf) for leaf in tree_leaves(given)):
            self._lose(f"{name}, which takes values of records out of torch,")

    def reason(self) -> str:
        """Why something cannot be attributed to records, with the line of the model."""
        return self.lost or self.mixed_at or "rows that belong to no record"

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        output = func(*args, **(kwargs or {}))
        unseen = _len_torch_function_stack() > 0  # inside a torch function its recorder is set aside
        with torch._C.DisableTorchFunction():  # what is done here is no call of the model's
            arguments = Arguments(func._schema, args, kwargs or {}, self.of)
            known = [value for value in arguments.tensors() if _address(value) in self._held]
            if unseen and known:
                self._lose(f"{func._schema.name}, called by no torch function (a script, an extension),")
            self._taken |= func is torch.ops.aten._local_scalar_dense.default and any(map(self.known, known))
            if known and torch.Tag.inplace_view not in func.tags:
                self._follow(func, arguments, output)
        return output

    def _follow(self, func: Any, arguments: Arguments, output: Any) -> None:
        results = [leaf for leaf in tree_leaves(output) if isinstance(leaf, Tensor)]
        written = arguments.written()
        shared = {_address(value) for value in arguments.tensors()} - {_address(value) for value in written}
        made = [leaf for leaf in results if _address(leaf) not in shared]  # the others are views
        made += [value for value in written if not any(value is leaf for leaf in made)]
        if not made:
            return
        name = func._schema.name.removeprefix("aten::")
        sized = torch.Tag.dynamic_output_shape in func.tags and any(map(self.known, arguments.tensors()))
        if arguments.picks_by_truth() if name == "index" else sized:
            self._lose(f"{name}, which makes a tensor whose size depends on records,")
        if any(leaf.layout != torch.strided for leaf in made):
            self._lose(f"{name}, which makes a sparse tensor,")
            return
        found = self._found(name, func, arguments, made)
        before = self.mixed_at is None and any(bool((self.of(value) == MIXED).any()) for value in arguments.tensors())
        for leaf, owners in zip(made, found, strict=True):
            if self.mixed_at is None and not before and bool((owners == MIXED).any()):
                self.mixed_at = f"{name} at {line_of_the_model()}"
            self._put(leaf, owners)

    def _found(self, name: str, func: Any, arguments: Arguments, made: list[Tensor]) -> list[Tensor]:
        """The owners of what a kernel made; where its rule does not fit the shapes, the join of everything."""
        rule, arguments.made = rule_for(name, func), made
        with contextlib.suppress(RuntimeError):
            found = None if rule is None else rule(arguments)
            if found is not None:
                found = found if isinstance(found, list) else [found] * len(made)
                return [owners.expand(leaf.shape) for leaf, owners in zip(made, found, strict=True)]
        everything = joined([self.of(value) for value in arguments.tensors()])
        return [everything] * len(made)

    def _put(self, value: Tensor, owners: Tensor) -> None:
        address = _address(value)
        if address not in self._held:
            storage = value.untyped_storage()
            size = value.element_size() // (2 if value.is_complex() else 1)
            empty = torch.full((storage.nbytes() // size,), NOBODY, dtype=torch.int16)
            self._held[address] = storage, size, empty
        _, size, held = self._held[address]
        if not _reaches(value, size, held):
            held.fill_(MIXED)
        else:
            _pieces(held, value, size).copy_(owners.expand(value.shape).unsqueeze(-1))

    def _lose(self, why: str) -> None:
        if self.lost is None:
            self.lost = f"{why} at {line_of_the_model()}"


def pattern(layout: Layout, shape: torch.Size, records: int) -> Tensor:
    """The owners of a tensor that holds ``records`` records as ``layout`` says."""
    rows = torch.arange(records, dtype=torch.int16).repeat_interleave(layout.per_record)
    return rows.view([-1 if dim == layout.dim else 1 for dim in range(len(shape))]).expand(shape)


def line_of_the_model() -> str:
    """The innermost line of Python that is neither torch's nor ours: file name, number and function."""
    frame = sys._getframe(1)
    while frame is not None:
        module = frame.f_globals.get("__name__", "")
        if not module.startswith(_NOT_THE_MODELS) and module != "torch":
            return f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno} in {frame.f_code.co_name}"
        if frame.f_back is None:
            break
        frame = frame.f_back
    return "an unknown line"


def _pieces(owners: Tensor, value: Tensor, size: int) -> Tensor:
    """The places in ``owners``, one for ``size`` bytes each, of every number of ``value``; the last dimension holds
    those of one number, such as the two parts of a complex one.
    """
    each = value.element_size() // size
    strides = [step * each for step in value.stride()]
    return owners.as_strided((*value.shape, each), (*strides, 1), value.storage_offset() * each)


def _reaches(value: Tensor, size: int, owners: Tensor) -> bool:
    """Whether ``owners``, one for ``size`` bytes each, can be seen as ``value`` sees its memory: not if it was resized,
    or is seen as smaller numbers.
    """
    last = value.storage_offset() + sum((n - 1) * step for n, step in zip(value.shape, value.stride(), strict=True))
    each, rest = divmod(value.element_size(), size)
    return rest == 0 and each > 0 and (value.numel() == 0 or (last + 1) * each <= len(owners))


def _address(value: Tensor) -> int:
    """Where the memory of ``value`` is; tensors that keep their numbers otherwise (sparse ones) are at nobody's."""
    return value.untyped_storage()._cdata if value.layout == torch.strided else 0
