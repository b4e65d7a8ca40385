"""The engine proves itself: on three made-up records its gradients must equal plain autograd's, record by record."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NoReturn

import torch
from torch import Tensor, nn

from adadp.errors import InputError
from adadp.gradients.capture import wide
from adadp.gradients.inspection import Blueprint, Loss, inspect, made_up_batch, trained_parameters, undisturbed
from adadp.gradients.oracle import loop_gradients, loop_losses
from adadp.gradients.passes import run_batch

RECORDS = 3


def proved_blueprint(model: nn.Module, loss: Loss, example: Sequence[Any]) -> Blueprint:
    """A blueprint whose gradients equal plain autograd's; a model that mixes records is refused.

    A parameter whose gradients disagree (used where the recorder cannot see it, or where records are laid out in an
    unusual way) is tried once more the generic way, as a part of the whole loss.
    """
    demoted: dict[str, str] = {}
    while True:
        blueprint = inspect(model, loss, example, demoted)
        try:
            wrong = _disagreements(model, loss, example, blueprint)
        except _NotVectorisedError:
            regions = tuple(replace(region, vectorised=False) for region in blueprint.regions)
            notes = tuple(note.replace("by torch.func", "record by record") for note in blueprint.notes)
            blueprint = replace(blueprint, regions=regions, notes=notes)
            wrong = _disagreements(model, loss, example, blueprint)
        if not wrong:
            for note in blueprint.notes:
                warnings.warn(note, stacklevel=4)
            return blueprint
        if all(name in demoted for name in wrong):
            _refuse_mixing(f"The gradient of {', '.join(wrong)} for one record changes")
        demoted |= dict.fromkeys(wrong, "a use that cannot be attributed to records")


class _NotVectorisedError(Exception):
    """``vmap`` has no rule for something in a region."""


def _disagreements(model: nn.Module, loss: Loss, example: Sequence[Any], blueprint: Blueprint) -> list[str]:
    """Trained parameters whose gradients for the made-up records are not those of plain autograd."""
    parameters = trained_parameters(model)
    with undisturbed(model):
        batch, losses, random = _tried(model, loss, example)
        if random:
            model.eval()  # dropout would draw other masks in every run; without it the comparison is exact
            with torch.no_grad():
                losses = loss(model, *batch)
        tolerance = _tolerance(losses)
        alone = loop_losses(model, loss, batch, RECORDS)
        if not torch.allclose(losses.double(), alone.double(), rtol=10 * tolerance, atol=tolerance):
            _refuse_mixing("The loss of one record changes")
        try:
            capture = run_batch(parameters, model, loss, batch, blueprint)
        except (RuntimeError, NotImplementedError) as error:
            if any(region.vectorised for region in blueprint.regions):
                raise _NotVectorisedError from error
            raise
        expected = loop_gradients(model, loss, batch, RECORDS)
    groups = [[name] for name in parameters]
    norms = capture.square_norms(groups)
    scale = max(float(grad.norm()) for row in expected for grad in row.values())
    slack = tolerance * 1e-3 * scale
    wrong = set()
    for record in range(RECORDS):
        weights = torch.zeros_like(norms)
        weights[record] = 1
        got = capture.weighted_sums(weights, groups)
        for index, name in enumerate(parameters):
            want = expected[record][name].to(wide(parameters[name].dtype))
            size = float(want.norm())
            close = float((got[name] - want).norm()) <= tolerance * size + slack
            close_norm = abs(float(norms[record, index]) ** 0.5 - size) <= tolerance * size + slack
            if not (close and close_norm):
                wrong.add(name)
    return sorted(wrong)


def _tried(model: nn.Module, loss: Loss, example: Sequence[Any]) -> tuple[tuple[Any, ...], Tensor, bool]:
    """A made-up batch the model accepts, its losses, and whether the model drew random numbers."""
    before = torch.get_rng_state()
    with torch.no_grad():
        try:
            batch = made_up_batch(example, RECORDS)
            losses = loss(model, *batch)
        except IndexError:
            batch = made_up_batch(example, RECORDS, integer=1)
            losses = loss(model, *batch)
    return batch, losses, not torch.equal(before, torch.get_rng_state())


def _tolerance(losses: Tensor) -> float:
    """Relative error that rounding explains; losses in half precision mean that the layers were too."""
    return 5e-2 if losses.dtype in (torch.float16, torch.bfloat16) or torch.is_autocast_enabled("cpu") else 2e-3


def _refuse_mixing(what: str) -> NoReturn:
    raise InputError(
        f"{what} with the other records of its batch.",
        why="The model mixes records (a statistic over the batch, an index across it), so clipping a record's gradient "
        "does not bound its influence.",
        fix="Remove that layer or compute it per record; for batch normalisation use adadp.replace_batchnorm(model).",
    )
