"""Reading a torch function call: which rule fits it, which argument is the input and which are its parameters.

Readers come from installed packages, through the entry points ``adadp.gradient_rules``: each loads a mapping from torch
functions to readers, and a reader takes the arguments of a call. A call that nobody reads goes the generic way, by the
whole loss or by a region that a ``Finder`` knows, which an entry point may load instead. The proof compares what rules
and regions give with plain autograd, so that a wrong formula is found. Rounding is the rule's business: a norm must not
come out too small.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from inspect import signature
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from adadp.errors import InputError
from adadp.gradients.probe_records import Loss, ProbeRecords
from adadp.gradients.regions import Region
from adadp.gradients.rule import Rule
from adadp.registry import Registry


@dataclass(frozen=True)
class Reading:
    """A call that a rule covers. ``parameters`` are candidates: the recorder keeps those that are trained."""

    rule: Rule
    input: Tensor | None
    parameters: Mapping[str, Tensor | None]
    batch_first_only: bool = False
    """Whether the rule needs the records in dimension 0 of the tensors as they are."""


Part = Callable[[Tensor, int, int], Tensor]
"""``part(parameter, start, stop)`` gives rows of a packed parameter, followed as parameters of their own."""


@dataclass(frozen=True)
class WrittenOut:
    """A call replaced by the same computation in smaller calls, which are read one by one: ``run(part=...)``."""

    run: Callable[..., Any]


Reader = Callable[..., Reading | WrittenOut | Sequence[Reading] | None]
"""Several readings: the first is taken whose parameters are those among the arguments of the call (``x + p`` may be
``p + x``)."""


Finder = Callable[[nn.Module, Loss, ProbeRecords, Collection[str]], Iterable[Region]]
"""Regions of a model for some of the parameters with these names, smaller than the whole loss."""


@functools.cache
def installed_rules() -> tuple[Mapping[Callable[..., Any], Reader], tuple[Finder, ...]]:
    """The readers of all installed packages, of two for one function the first in the order of their names; and what
    finds regions.
    """
    packages: Registry[Mapping[Any, Reader] | Finder] = Registry(
        "gradient rule", {}, lambda found: found if isinstance(found, Mapping) or callable(found) else None
    )
    readers: dict[Callable[..., Any], Reader] = {}
    finders: list[Finder] = []
    for name in sorted(packages, reverse=True):
        offered = packages[name]
        if isinstance(offered, Mapping):
            readers |= offered
        else:
            finders.append(offered)
    return readers, tuple(finders)


def read_call(
    function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> Sequence[Reading] | WrittenOut:
    """How rules cover this call."""
    if function in (F.embedding, F.embedding_bag):
        _check_embedding(signature(function).bind(*args, **kwargs).arguments)
    reader = installed_rules()[0].get(function)
    found = None if reader is None else reader(*args, **kwargs)
    return (found,) if isinstance(found, Reading) else found or ()


def _check_embedding(given: Mapping[str, Any]) -> None:
    """Refuse what no rule and no proof would make private."""
    if given.get("max_norm") is not None:
        raise InputError(
            "An embedding with max_norm cannot be trained privately.",
            why="It rewrites the rows that were looked up during the forward pass: which rows change shows which words "
            "the records hold, without any noise.",
            fix="Leave max_norm out; per-example clipping bounds the update.",
        )
    if given.get("scale_grad_by_freq"):
        raise InputError(
            "An embedding with scale_grad_by_freq cannot be trained privately.",
            why="It divides by how often an index occurs in the batch, so one record changes the gradients of others.",
            fix="Set scale_grad_by_freq=False.",
        )
