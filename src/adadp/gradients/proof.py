"""The engine proves itself on made-up records before it sees a real one.

1. *Nobody else's business.* One of three records is changed, with the same random numbers: the losses and the gradients
   of the other two must stay as they were. This is done in the mode the model will be trained in.
2. *The whole.* With the same random numbers the gradients of the records sum to plain autograd's.
3. *The parts.* Each record's gradient, and its norm, equals plain autograd's for that record alone. A model that draws
   random numbers is put into evaluation mode for this one: every run would draw others.

Parameters are moved a little first, because what a model multiplies by zero at first (a fresh adapter, a new head)
would hide a wrong gradient behind a zero.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NoReturn

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from adadp.errors import InputError
from adadp.gradients.batchnorm import refuse_batch_statistics
from adadp.gradients.capture import Capture, wide
from adadp.gradients.inspection import Blueprint, inspect, trained_parameters
from adadp.gradients.made_up import Loss, MadeUp, random_states, undisturbed, way_for
from adadp.gradients.oracle import loop_gradients, loop_losses
from adadp.gradients.passes import run_batch
from adadp.gradients.recorder import Recorder
from adadp.gradients.regions import LossModule

RECORDS = 3
_SHARP = 5e-3
"""Two runs of the same shapes differ less than a batch from its records alone: this much of the rounding is allowed."""
_HALF = (torch.float16, torch.bfloat16)


def proved_blueprint(model: nn.Module, loss: Loss, example: Sequence[Any]) -> Blueprint:
    """A blueprint whose gradients equal plain autograd's; a model that mixes records is refused.

    A parameter whose gradients disagree (used where the recorder cannot see it, or where records are laid out in an
    unusual way) is tried once more the generic way, as a part of the whole loss.
    """
    refuse_batch_statistics(model)
    if not trained_parameters(model):
        raise InputError("The model has no trained parameter.", fix="Set requires_grad=True on what should be trained.")
    way = way_for(model, loss, example)
    proof = _Proof(model, loss, example, way)
    demoted: dict[str, str] = {}
    while True:
        try:
            blueprint = inspect(model, loss, example, way=way, demoted=demoted)
            blueprint, wrong = proof.examined(blueprint)
        except RuntimeError as error:
            raise InputError(
                f"The gradients of the model cannot be computed: {error}",
                why="Before it sees a real record the model is run forward and back on made-up ones.",
                fix="Check that torch.autograd.grad works for it; checkpoints need use_reentrant=False.",
            ) from error
        if not wrong:
            for note in blueprint.notes:
                warnings.warn(note, stacklevel=3)
            return blueprint
        if wrong <= set(demoted):
            _refuse_mixing(f"The gradient of {', '.join(sorted(wrong))} for one record changes")
        demoted |= dict.fromkeys(sorted(wrong), "a use that cannot be attributed to records")


def _looped(blueprint: Blueprint) -> Blueprint:
    regions = tuple(replace(region, vectorised=False) for region in blueprint.regions)
    notes = tuple(note.replace("by torch.func", "record by record") for note in blueprint.notes)
    return replace(blueprint, regions=regions, notes=notes)


class _Proof:
    """Compares a blueprint's gradients with plain autograd's; every method leaves the model as it was."""

    def __init__(self, model: nn.Module, loss: Loss, example: Sequence[Any], way: MadeUp) -> None:
        self._model = model
        self._loss = loss
        self._way = way
        self._parameters = trained_parameters(model)
        self._groups = [[name] for name in self._parameters]
        self._batch = way.batch(example, RECORDS)
        self._other = _first_replaced(self._batch, way.batch(example, RECORDS, seed=2018))

    def examined(self, blueprint: Blueprint) -> tuple[Blueprint, set[str]]:
        """``blueprint``, with regions that torch.func cannot run looped over, and the parameters it is wrong about.

        Regions that cannot be run for one record at all are wrong about theirs; for the whole loss that is an error.
        """
        try:
            return blueprint, self.disagreements(blueprint)
        except RuntimeError:
            if not blueprint.regions:
                raise
            blueprint = _looped(blueprint)
        try:
            return blueprint, self.disagreements(blueprint)
        except RuntimeError:
            inner = {
                name
                for region in blueprint.regions
                if not isinstance(region.module, LossModule)
                for name in region.parameters.values()
            }
            if not inner:
                raise
            return blueprint, inner

    def disagreements(self, blueprint: Blueprint) -> set[str]:
        """Trained parameters whose gradients for the made-up records are not those of plain autograd."""
        with undisturbed(self._model), self._way.parameters(self._model):
            losses, total, random, rounding = self._plain(self._batch)
            changed, *_ = self._plain(self._other)
            if not _close(losses[1:], changed[1:], rounding * _SHARP):
                _refuse_mixing("The loss of one record changes")
            wrong = self._influenced(blueprint, rounding)
            wrong |= self._wrong_total(blueprint, total, rounding, random)
            if random:
                self._model.eval()
                losses, *_ = self._plain(self._batch)
            alone = loop_losses(self._model, self._loss, self._batch, RECORDS)
            if not _close(losses, alone, rounding):
                _refuse_mixing("The loss of one record changes")
            return wrong | self._wrong_parts(blueprint, rounding)

    def _plain(self, batch: Sequence[Any]) -> tuple[Tensor, dict[str, Tensor], bool, float]:
        """Losses and summed gradient by plain autograd, whether random numbers were drawn, and the rounding to expect.

        Losses may be float32 although the layers ran in half precision: what the layers put out tells.
        """
        torch.manual_seed(0)
        before = random_states(self._model)
        with torch.enable_grad(), Recorder(self._parameters) as recorder:
            losses = self._loss(self._model, *batch)
        random = not all(map(torch.equal, before, random_states(self._model)))
        grads = torch.autograd.grad(losses.sum(), list(self._parameters.values()), allow_unused=True)
        total = {
            name: torch.zeros_like(value) if each is None else each.to_dense()
            for (name, value), each in zip(self._parameters.items(), grads, strict=True)
        }
        half = losses.dtype in _HALF or any(dtype in _HALF for dtype in recorder.dtypes)
        return losses.detach(), total, random, 5e-2 if half else 2e-3

    def _captured(self, batch: Sequence[Any], blueprint: Blueprint) -> Capture:
        torch.manual_seed(0)
        return run_batch(self._parameters, self._model, self._loss, batch, blueprint)

    def _influenced(self, blueprint: Blueprint, rounding: float) -> set[str]:
        """Parameters whose gradients for two records change with the third one."""
        sums = []
        for batch in (self._batch, self._other):
            capture = self._captured(batch, blueprint)
            capture.square_norms(self._groups)
            sums.append([self._row(capture, record) for record in range(1, RECORDS)])
        return self._unequal(*sums, rounding=rounding * _SHARP)

    def _wrong_total(self, blueprint: Blueprint, total: dict[str, Tensor], rounding: float, random: bool) -> set[str]:
        """Parameters whose gradients do not sum to plain autograd's.

        Those of the whole loss are computed by running it again; if it draws random numbers these are others.
        """
        capture = self._captured(self._batch, blueprint)
        capture.square_norms(self._groups)
        got = capture.weighted_sums(torch.ones(RECORDS, len(self._groups)), self._groups)
        wrong = self._unequal([got], [total], rounding=rounding)
        if random:
            wrong -= {
                name
                for region in blueprint.regions
                if isinstance(region.module, LossModule)
                for name in region.parameters.values()
            }
        return wrong

    def _wrong_parts(self, blueprint: Blueprint, rounding: float) -> set[str]:
        """Parameters whose gradient, or its norm, is not plain autograd's for some record alone."""
        expected = loop_gradients(self._model, self._loss, self._batch, RECORDS)
        capture = self._captured(self._batch, blueprint)
        norms = capture.square_norms(self._groups).double().sqrt()
        wrong = self._unequal([self._row(capture, record) for record in range(RECORDS)], expected, rounding=rounding)
        sizes = torch.tensor([[float(row[name].double().norm()) for name in self._parameters] for row in expected])
        slack = rounding * 1e-3 * float(sizes.max())
        off = ((norms.cpu() - sizes).abs() > rounding * sizes + slack).any(0)
        return wrong | {name for name, each in zip(self._parameters, off.tolist(), strict=True) if each}

    def _row(self, capture: Capture, record: int) -> dict[str, Tensor]:
        weights = torch.zeros(RECORDS, len(self._groups))
        weights[record] = 1
        return capture.weighted_sums(weights, self._groups)

    def _unequal(
        self, got: Sequence[Mapping[str, Tensor]], want: Sequence[Mapping[str, Tensor]], *, rounding: float
    ) -> set[str]:
        """Names whose tensors differ by more than rounding, relative to their own size and a little to the largest."""
        slack = rounding * 1e-3 * max(float(value.norm()) for row in want for value in row.values())
        return {
            name
            for mine, theirs in zip(got, want, strict=True)
            for name, parameter in self._parameters.items()
            if not float((mine[name] - theirs[name].to(wide(parameter.dtype))).norm())
            <= rounding * float(theirs[name].norm()) + slack
        }


def _first_replaced(batch: Sequence[Any], other: Sequence[Any]) -> tuple[Any, ...]:
    """``batch`` with the first record of ``other``."""

    def put(leaf: Any, source: Any) -> Any:
        return torch.cat([source[:1], leaf[1:]]) if isinstance(leaf, Tensor) else leaf

    return tuple(tree_map(put, tuple(batch), tuple(other)))


def _close(first: Tensor, second: Tensor, rounding: float) -> bool:
    return torch.allclose(first.double(), second.double(), rtol=rounding, atol=rounding, equal_nan=True)


def _refuse_mixing(what: str) -> NoReturn:
    raise InputError(
        f"{what} with the other records of its batch.",
        why="The model mixes records (a statistic over the batch, an index across it), so clipping a record's gradient "
        "does not bound its influence.",
        fix="Remove that layer or compute it per record; for batch normalisation use adadp.replace_batchnorm(model).",
    )
