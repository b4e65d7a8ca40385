"""Parameters made of parameters: ``1 + weight``, a transposed or normalised weight, a table looked up at positions that
all records share.

Such a tensor p' = f(p) belongs to no record (``attribution.py`` proves it), and rules read its uses like those of a
parameter. The gradient at p is the one at p' pulled back by f: one linear map for all records. So the weighted sum is
pulled back once. Norms need the gradient of every record, unless f only moves numbers and their norm stays what it is.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from torch.func import vjp, vmap
from torch.utils._pytree import tree_leaves, tree_map

from adadp.gradients.rule import Pair, Rule, Scales, Sums, instances, norms_of

_CASTS = frozenset({"bfloat16", "double", "float", "half", "to", "type", "type_as"})
"""Left out when f is run again, so that nothing is pulled back in half precision: their own gradient is a cast."""
_MOVES = _CASTS | {"clone", "contiguous", "flatten", "movedim", "neg", "permute", "reshape", "squeeze", "swapaxes", "t",
                   "transpose", "unflatten", "unsqueeze", "view"}  # fmt: skip
"""Functions of one tensor whose results are its numbers, each once, up to their signs."""


@dataclass(frozen=True)
class Target:
    """A trained parameter, or the rows ``start`` to ``stop`` of one (a packed projection used in parts)."""

    name: str
    start: int | None = None
    stop: int | None = None

    depth = 0

    @property
    def roots(self) -> frozenset[str]:
        """The trained parameters it is made of."""
        return frozenset({self.name})

    def of(self, whole: Tensor) -> Tensor:
        """These rows of a tensor that has the shape of the parameter."""
        return whole if self.start is None else whole[self.start : self.stop]


@dataclass(frozen=True, eq=False)
class Derived:
    """What a call made of trained parameters and of what all records share; ``sources``: its arguments by ``id``."""

    name: str
    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    sources: Mapping[int, Target | Derived]

    @property
    def depth(self) -> int:
        """How many calls away from a parameter it was made."""
        return 1 + min(source.depth for source in self.sources.values())

    @property
    def roots(self) -> frozenset[str]:
        """The trained parameters it is made of."""
        return frozenset().union(*(source.roots for source in self.sources.values()))

    @cached_property
    def isometric(self) -> bool:
        """Whether pulling a gradient back leaves its norm: every number of p' is one of p's, and no other's."""
        name, first, *rest = getattr(self.function, "__name__", ""), *self.args
        if name == "embedding":  # of distinct rows
            kept = self.kwargs.get("padding_idx") is None and len(first.unique()) == first.numel()
        elif name == "__getitem__":
            index = rest[0] if isinstance(rest[0], tuple) else (rest[0],)
            kept = all(each is None or each is Ellipsis or isinstance(each, (int, slice)) for each in index)
        elif name in {"add", "sub"}:  # a number
            kept = not any(isinstance(each, Tensor) for each in rest) and not self.kwargs
        else:
            kept = name in _MOVES or getattr(self.function, "__self__", None) in {Tensor.T, Tensor.mT}
        return kept and all(isinstance(source, Target) or source.isometric for source in self.sources.values())

    def leaves(self) -> list[Tensor]:
        """The tensors it is made of beside parameters, those of its sources last."""
        own = [leaf for leaf in tree_leaves((self.args, dict(self.kwargs))) if self._is_own(leaf)]
        return own + [leaf for each in self.sources.values() if isinstance(each, Derived) for leaf in each.leaves()]

    def with_leaves(self, leaves: Iterator[Tensor]) -> Derived:
        """The same made of other tensors, in the order of ``leaves``."""
        args, kwargs = tree_map(
            lambda leaf: next(leaves) if self._is_own(leaf) else leaf, (self.args, dict(self.kwargs))
        )
        sources = {
            place: each.with_leaves(leaves) if isinstance(each, Derived) else each
            for place, each in self.sources.items()
        }
        return replace(self, args=args, kwargs=kwargs, sources=sources)

    def _is_own(self, leaf: Any) -> bool:
        return isinstance(leaf, Tensor) and id(leaf) not in self.sources

    def value(self, roots: Mapping[str, Tensor], dtype: torch.dtype) -> Tensor:
        """Compute p' once more, from these ``roots``, in ``dtype``."""

        def given(leaf: Any) -> Any:
            source = self.sources.get(id(leaf))
            if isinstance(source, Derived):
                return source.value(roots, dtype)
            if source is not None:
                return source.of(roots[source.name])
            return leaf.to(dtype) if isinstance(leaf, Tensor) and leaf.is_floating_point() else leaf

        args, kwargs = tree_map(given, (self.args, dict(self.kwargs)))
        if getattr(self.function, "__name__", "") in _CASTS:
            return args[0]  # type: ignore[no-any-return]
        return self.function(*args, **kwargs)  # type: ignore[no-any-return]


@dataclass(frozen=True, eq=False)
class PulledRule(Rule):
    """The rule ``rule`` for the parameter ``derived`` in ``slot``, as a rule for the parameter ``root``."""

    rule: Rule
    slot: str
    derived: Derived
    root: str
    parameters: Mapping[str, Tensor]

    @property
    def several_per_record(self) -> bool:  # type: ignore[override]
        return self.rule.several_per_record

    def per_example(self, pair: Pair) -> Sums:
        return {"weight": self._pulled(self.rule.per_example(self._inner(pair))[self.slot])}

    def working_size(self, pair: Pair) -> int:
        return self.rule.working_size(self._inner(pair)) + 2 * self.parameters[self.root].numel()

    def instantiates(self, pair: Pair) -> bool:  # noqa: ARG002
        """Never: one sum is pulled back instead."""
        return False

    def square_norms(self, pair: Pair, inverse: Scales = None) -> Sums:
        if not self.derived.isometric or (inverse is not None and inverse["weight"].numel() > 1):
            return super().square_norms(pair, inverse)
        inner = self._inner(pair)
        made = self.rule.instantiates(inner)
        norms = norms_of(instances(self.rule, inner)) if made else self.rule.square_norms(inner)
        return {"weight": norms[self.slot] * (1 if inverse is None else inverse["weight"].square().view(()))}

    def weighted_sum(self, pair: Pair, weights: Tensor) -> Sums:
        return {"weight": self._pulled(self.rule.weighted_sum(self._inner(pair), weights)[self.slot][None])[0]}

    def _inner(self, pair: Pair) -> Pair:
        return pair.only((self.slot,))

    def _pulled(self, grads: Tensor) -> Tensor:
        """Gradients at p', ``[records, *shape]``, as gradients at the root."""
        roots = {name: self.parameters[name].detach().to(grads.dtype) for name in self.derived.roots}
        found = vjp(lambda root: self.derived.value({**roots, self.root: root}, grads.dtype), roots[self.root])
        pull = found[1]
        grads = grads.reshape(len(grads), *found[0].shape)
        if len(grads) == 1:
            return pull(grads[0])[0][None]  # type: ignore[no-any-return]
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="There is a performance drop")
            return vmap(pull)(grads)[0]  # type: ignore[no-any-return]
