"""Per-example gradients of a model, without making them: norms and weighted sums of a batch of records."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from adadp import checks
from adadp.errors import InputError
from adadp.gradients.capture import Capture, given, zero_sums
from adadp.gradients.inspection import one_per_record, trained_parameters
from adadp.gradients.model_checks import COMPILED, is_compiled, plain_model, uncompiled
from adadp.gradients.oracle import loop_gradients, loop_losses, picked
from adadp.gradients.passes import MakePasses, capture_of, run_alone, run_batch
from adadp.gradients.probe_records import Loss, check_leading, probe_records_for
from adadp.gradients.proof import Proof, proved_blueprint
from adadp.gradients.recorder import Recorder
from adadp.gradients.regions import RefusedByVmap, UnseenPath
from adadp.gradients.spotcheck import compare_again, compare_alone
from adadp.registry import Registry
from adadp.sharding import divide

_CHECKS: Registry[Callable[..., None]] = Registry("model check", {}, lambda found: found if callable(found) else None)
"""What refuses models in words before they are looked over, as installed packages offer it."""
_CHECKED, _TOGETHER = 2, 8
"""How many records of a batch are computed alone and compared, and with how many others where it is done anew."""
_ALONE_NUMBERS = 1 << 26
"""Numbers in the gradients of records that are computed one at a time and kept together: 256 MB."""


class GradientEngine:
    """Gets norms and weighted sums of per-example gradients from one forward and one backward pass.

    ``loss(model, *batch)`` returns one number per record; of ``like``, a batch, only shapes and dtypes are read.
    Building the engine runs the model on a few probe records, or on some of ``example``, public records of the user's
    own. It follows them through the model and compares gradients with plain autograd's. What has no closed form, or
    moves records, goes a generic way (``notes`` says which), and a model that mixes records is refused. All that holds
    for the mode each module is in: come back to that mode after an evaluation. ``passes`` makes forward and backward
    passes of batches in another way than torch would, or declines a batch.

    =======================================  =========================================================================
    a batch of no records                    zero sums; the model is not run
    a parameter no record used               norm zero, sum zero
    a record with NaN, Inf or a squared      its norms are infinite, it contributes nothing; the others are unaffected
    norm that overflows
    batch statistics, records mixed          refused when the engine is built
    a module in another mode than then, or   refused
    other parameters
    a path that was not seen then            its records are computed one at a time
    =======================================  =========================================================================

    The backward pass goes through activations only, and per-example gradients never exist where a closed form does.
    """

    split: ClassVar[bool] = False
    """Whether parameters and sums are split over processes."""
    make_proof: Callable[..., Proof] = Proof

    def __init__(
        self,
        model: nn.Module,
        loss: Loss,
        like: Sequence[Any],
        *,
        example: Sequence[Any] | None = None,
        passes: MakePasses | None = None,
    ) -> None:
        self.model = model = plain_model(passed := model)
        self.loss = loss = uncompiled(loss)
        self._parameters = trained_parameters(model)
        self.names = tuple(self._parameters)
        for check in _CHECKS.values():
            check(model, split=self.split)
        if not self._parameters:
            raise InputError(
                "The model has no trained parameter.", fix="Set requires_grad=True on what should be trained."
            )
        self._probes = probe_records_for(model, loss, like, example)
        self._blueprint = proved_blueprint(model, loss, self._probes, self.make_proof)
        self._passes = None if passes is None else passes(model, loss, self._blueprint, self._probes)
        said = (COMPILED,) if is_compiled(passed) and passes is None else ()
        self.notes = (*said, *self._blueprint.notes, *(() if self._passes is None else (self._passes.note,)))
        self.bytes_per_record = self._blueprint.bytes_per_record
        """About how much memory one more record in a batch needs."""
        self.scale_shapes = self._blueprint.scale_shapes
        """The shape of the scales ``Capture.square_norms`` takes most cheaply: a number per input of each layer."""
        self._modes = [(module, module.training) for module in model.modules()]

    def chunk_size(self, limit_bytes: int) -> int:
        """How many records fit ``limit_bytes`` at once; at least one."""
        return max(1, checks.count("limit_bytes", limit_bytes) // self.bytes_per_record)

    def zeros(self) -> dict[str, Tensor]:
        """A sum of nothing: what an empty batch contributes."""
        return zero_sums(self._parameters)

    @torch.no_grad()
    def losses_along(self, batch: Sequence[Any], direction: Mapping[str, Tensor], lengths: Sequence[float]) -> Tensor:
        """Every record's loss where the model would be after a step of each length against ``direction``: lengths x
        records, and sensitive. The model is afterwards what it was, bit for bit.
        """
        before = {name: value.clone() for name, value in self._parameters.items()}
        found = []
        try:
            for length in lengths:
                for name, value in self._parameters.items():
                    value.copy_(before[name] - length * direction[name].to(value.dtype))
                found.append(self._losses(batch).float())
        finally:
            for name, value in self._parameters.items():
                value.copy_(before[name])
        return torch.stack(found)

    def _losses(self, batch: Sequence[Any]) -> Tensor:
        """The loss of every record of ``batch``: of each alone, unless the batch is known to keep them apart."""
        records = check_leading(batch)
        if self._blueprint.all_alone is None:
            with Recorder(self._parameters, derived=self._blueprint.derived) as recorder:
                losses = one_per_record(self.loss(self.model, *batch), records)
            if recorder.calls_made in self._blueprint.calls_made:
                return losses
        return loop_losses(self.model, self.loss, batch, records)

    def padding(self, count: int) -> tuple[Any, ...]:
        """``count`` probe records, on which the model is known to run: public, to fill up a batch with."""
        return self._probes.batch(count)

    def alone(self, record: Sequence[Any]) -> Capture:
        """The gradient of a batch of one by plain autograd, in double precision from there on. Sensitive.

        Nothing but the model's own kernels touches the record: neither closed forms nor other records.
        """
        self._check_unchanged()
        (grads,) = loop_gradients(self.model, self.loss, record, 1)
        return Capture(self._parameters, given({name: value.double().unsqueeze(0) for name, value in grads.items()}), 1)

    def capture(self, batch: Sequence[Any]) -> Capture:
        """Run ``batch`` forward and back. What comes out is sensitive and belongs to the caller's stack frame."""
        self._check_unchanged()
        try:
            return self._captured(batch)
        except (UnseenPath, RefusedByVmap):
            return run_alone(self._parameters, batch, self._blueprint.alone)

    def _captured(self, batch: Sequence[Any]) -> Capture:
        passed = None if self._passes is None else self._passes(batch)
        if passed is None:
            return run_batch(self._parameters, self.model, self.loss, batch, self._blueprint)
        return capture_of(self._parameters, passed, batch, self._blueprint)

    def captures(self, batch: Sequence[Any], padding: Tensor, *, checked: bool = False) -> Iterator[Capture]:
        """The same for a chunk: one capture, or several where its records must be computed one at a time.

        Rows marked in ``padding``, on the processor, are no records: they keep the batch at its size, and no norm or
        sum sees them. With ``checked`` a few records of the batch are compared with what they are alone, and
        ``MixedRecords`` may come.
        """
        self._check_unchanged()
        rows = (~padding).nonzero().squeeze(1)
        whole = self._blueprint.all_alone
        try:
            looped = whole is not None and not whole.vectorised
            with self._forgetting(batch, rows) if looped else contextlib.nullcontext():
                captured = self._captured(batch)
            if checked and len(rows):
                self._check(batch, captured, rows)
        except (UnseenPath, RefusedByVmap):
            size = max(1, _ALONE_NUMBERS // sum(value.numel() for value in self._parameters.values()))
            with self._forgetting(batch, rows):
                for few in torch.split(rows, size) if len(rows) else ():
                    yield run_alone(self._parameters, picked(batch, few), self._blueprint.alone)
            return
        captured.padding = padding.to(next(iter(self._parameters.values())).device)
        yield captured

    @contextlib.contextmanager
    def _forgetting(self, batch: Sequence[Any], rows: Tensor) -> Iterator[None]:
        """Around records of ``batch``, at ``rows``, that are computed one at a time: the first of them must be the same
        before and after the others. One at a time a model cannot mix records, but it may still remember them.

        It may remember only the last few, which are those of ``batch`` both times: the second record comes in between.
        """
        if not len(rows):
            yield
            return
        few = rows[:2].flip(0)
        with self._without_chance():
            (before,) = loop_gradients(self.model, self.loss, picked(batch, few[-1:]), 1)
        yield
        with self._without_chance():
            *_, after = loop_gradients(self.model, self.loss, picked(batch, few), len(few))
        compare_again(before, after, rounding=self._blueprint.rounding)

    @contextlib.contextmanager
    def _without_chance(self) -> Iterator[None]:
        """Inside, a model that draws random numbers is in evaluation mode: it would draw others each time."""
        if self._blueprint.random:
            self.model.eval()
        try:
            yield
        finally:
            for module, mode in self._modes:
                module.training = mode

    def _check(self, batch: Sequence[Any], capture: Capture, rows: Tensor) -> None:
        """Compare what ``capture`` says of a few records of ``batch``, at ``rows``, with what they are alone.

        The records of a model that draws random numbers are computed once more for it, some together and a few alone.
        If these few take a path of their own they would not be captured together, and there is nothing to compare.
        """
        few = rows[:_CHECKED]
        with self._without_chance():
            if self._blueprint.random:
                batch, few = picked(batch, rows[:_TOGETHER]), torch.arange(len(few))
                try:
                    capture = run_batch(self._parameters, self.model, self.loss, batch, self._blueprint)
                except (UnseenPath, RefusedByVmap):
                    return
            compare_alone(
                self.model, self.loss, picked(batch, few), capture.picked(few), rounding=self._blueprint.rounding
            )

    def _check_unchanged(self) -> None:
        changed = [type(module).__name__ for module, mode in self._modes if module.training is not mode]
        if changed:
            raise InputError(
                f"{', '.join(sorted(set(changed)))} is in another mode (training, evaluation) than when the engine was "
                "built.",
                why="Another mode is another model: whether that one keeps records apart has not been looked at.",
                fix="Call model.train() or model.eval() so that it is as it was, or build a new engine.",
            )
        now = trained_parameters(self.model).values()
        if not self.split and [*map(id, now)] != [*map(id, self._parameters.values())]:
            raise InputError(
                "Parameters were replaced, frozen or thawed since the engine was built.",
                why="A new parameter would get noise and no gradient, and a frozen one would still be trained.",
                fix="Change them before, or build a new engine.",
            )


def engine_for(model: nn.Module) -> type[GradientEngine]:
    """Who computes the gradients of ``model``: an installed package (``adadp.engines``), if it is split over processes.

    What that engine captures is compared with plain autograd's too, before the first step and on real records.
    """
    if not divide(model):
        return GradientEngine
    engines: Registry[type[GradientEngine]] = Registry(
        "engine", {}, lambda made: made if isinstance(made, type) and issubclass(made, GradientEngine) else None
    )
    return engines.find("sharded")
