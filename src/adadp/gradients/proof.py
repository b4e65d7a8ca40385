"""The engine proves itself on public records before it sees a real one.

1. *Whose rows.* Records are followed through the model (``attribution.py``): a parameter whose captured rows are not
   provably those of their records is not captured, it goes the generic way.
2. *Nobody else's business.* One of three records is changed, with the same random numbers: the losses and the gradients
   of the other two must stay as they were, and be the same again afterwards. This is done in the mode the model will be
   trained in.
3. *The whole.* With the same random numbers the gradients of the records sum to plain autograd's.
4. *The parts.* Each record's gradient, and its norm, equals plain autograd's for that record alone. A model that draws
   random numbers is put into evaluation mode for this one: every run would draw others.

Records vary in everything and are drawn more than once. Parameters are moved a little first, because what a model
multiplies by zero at first (a fresh adapter, a new head) would hide a wrong gradient behind a zero.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from adadp.errors import InputError
from adadp.gradients.attribution import attribute
from adadp.gradients.capture import Capture, accumulation_dtype
from adadp.gradients.inspection import Blueprint, inspect, trained_parameters
from adadp.gradients.model_checks import explain_single_value
from adadp.gradients.oracle import loop_gradients, loop_losses, picked
from adadp.gradients.owners import Owners
from adadp.gradients.passes import run_batch
from adadp.gradients.probe_records import Loss, ProbeRecords, random_states, undisturbed
from adadp.gradients.recorder import Recorder
from adadp.gradients.regions import RefusedByVmap, UnseenPath, WholeLoss
from adadp.gradients.spotcheck import moved_by_rounding

RECORDS = 3
_COUNTS = (2, 3, 11)
"""How many records a model is followed with."""
_DRAWS = 2
"""How often three records are drawn for the comparisons with plain autograd."""
SHARP = 5e-3
"""Two runs of the same shapes differ less than a batch from its records alone: this much of the rounding is allowed."""
HALF = (torch.float16, torch.bfloat16)


def proved_blueprint(model: nn.Module, loss: Loss, probes: ProbeRecords, make_proof: Callable[..., Proof]) -> Blueprint:
    """A blueprint whose gradients equal plain autograd's; a model that mixes records is refused.

    A parameter that cannot be followed, or whose gradients disagree (used where the recorder cannot see it, or where
    records are laid out in an unusual way) is tried once more the generic way, as a part of the whole loss.
    """
    proof = make_proof(model, loss, probes)
    demoted: dict[str, str] = {}
    while True:
        try:
            blueprint = inspect(model, loss, probes=probes, demoted=demoted)
            blueprint, astray = proof.followed(blueprint)
            if not set(astray) <= set(demoted):
                demoted |= astray
                continue
            (blueprint, wrong), reason = proof.examined(blueprint), "a use that cannot be attributed to records"
        except InputError:
            raise
        except (RuntimeError, ValueError, IndexError, ArithmeticError) as error:
            explain_single_value(error)
            raise InputError(
                f"The gradients of the model cannot be computed{proof.blamed()}: {error}",
                why="Before it sees a real record the model is run forward and back on public ones, and one record at "
                "a time where it moves or mixes them.",
                fix="Check that torch.autograd.grad works for it, for a batch of one record too; checkpoints need "
                "use_reentrant=False.",
            ) from error
        if not wrong and proof.random and proof.whole(blueprint) and blueprint.all_alone is None:
            # The whole loss would draw other random numbers for some of the parameters than for the others.
            wrong, reason = set(trained_parameters(model)), "random numbers that all parameters must share"
        if not wrong:
            for note in blueprint.notes:
                warnings.warn(note, stacklevel=3)
            return replace(blueprint, random=proof.random, rounding=proof.rounding)
        if wrong <= set(demoted):
            raise proof.mixing(f"The gradient of {', '.join(sorted(wrong))} for one record changes")
        demoted |= dict.fromkeys(sorted(wrong - set(demoted)), reason)


class Proof:
    """Compares a blueprint's gradients with plain autograd's; every method leaves the model as it was."""

    def __init__(self, model: nn.Module, loss: Loss, probes: ProbeRecords) -> None:
        self._model = model
        self._loss = loss
        self._probes = probes
        self._parameters = trained_parameters(model)
        self._groups = [[name] for name in self._parameters]
        self._draws = []
        for draw in range(_DRAWS):
            batch, others = (probes.batch(RECORDS, seed=seed + draw) for seed in (2016, 2116))
            self._draws.append((batch, _replaced(batch, others, draw)))
        self.random = False
        """Whether the model drew random numbers."""
        self.rounding = 0.0
        """What was allowed for it."""
        self._moved = ""
        """The line of the model that moves or mixes records, as far as one was seen."""

    def followed(self, blueprint: Blueprint) -> tuple[Blueprint, dict[str, str]]:
        """``blueprint`` with the sequences of calls for which it holds, and the parameters that cannot be followed.

        One record repeated, two, three and eleven times: if the calls depend on how many records there are, no sequence
        stands for a real batch. Different records, drawn twice; and some with plain masks, which may take another path.
        """
        repeated = [self._probes.batch(count, seed=2216, repeated=True) for count in _COUNTS]
        drawn = [batch for batch, _ in self._draws]
        astray: dict[str, str] = {}
        calls: list[int] = []
        owners = Owners()
        with self._probes.parameters(self._model):
            for batch in (*repeated, *drawn):
                found = attribute(self._model, self._loss, batch, blueprint, owners)
                astray = {**found.astray, **astray}
                calls.append(found.calls_made)
            for plain in self._probes.plainer():
                try:
                    found = attribute(self._model, self._loss, plain.batch(RECORDS), blueprint, owners)
                except (RuntimeError, ValueError, IndexError, ArithmeticError):
                    continue  # records that the model does not take
                if not found.astray:
                    calls.append(found.calls_made)
        if len(set(calls[: len(_COUNTS)])) > 1:
            astray = dict.fromkeys(self._parameters, "calls that depend on the number of records") | astray
        self._moved = next(iter(astray.values()), self._moved)
        return replace(blueprint, calls_made=frozenset(calls)), astray

    def examined(self, blueprint: Blueprint) -> tuple[Blueprint, set[str]]:
        """``blueprint``, with each region that torch.func cannot run looped over, and the parameters it is wrong about.

        Regions that cannot be run for one record at all are wrong about theirs; for the whole loss that is an error.
        """
        while True:
            try:
                return blueprint, self.disagreements(blueprint)
            except RefusedByVmap as refused:
                regions = (
                    replace(each, vectorised=each.vectorised and each.title != refused.region.title)
                    for each in blueprint.regions
                )
                blueprint = replace(blueprint, regions=tuple(regions))
            except UnseenPath:
                return blueprint, set(self._parameters)
            except RuntimeError:
                inner = [region for region in blueprint.regions if not isinstance(region, WholeLoss)]
                names = {name for region in inner for name in region.parameters.values()}
                names = names.union(*blueprint.derived.values()) - self.whole(blueprint)
                if not names:
                    raise
                return blueprint, names

    def disagreements(self, blueprint: Blueprint) -> set[str]:
        """Trained parameters whose gradients for public records are not those of plain autograd."""
        wrong: set[str] = set()
        for batch, other in self._draws:
            with undisturbed(self._model), self._probes.parameters(self._model):
                wrong |= self._disagreements(blueprint, batch, other)
        return wrong

    def _disagreements(
        self, blueprint: Blueprint, batch: Sequence[Any], other: tuple[tuple[Any, ...], int]
    ) -> set[str]:
        changed_batch, changed_record = other
        kept = [record for record in range(RECORDS) if record != changed_record]
        losses, total, random, rounding = self._plain(batch)
        changed, *_ = self._plain(changed_batch)
        if not _close(losses[kept], changed[kept], rounding * SHARP):
            raise self.mixing("The loss of one record changes")
        if not _close(losses, self._plain(batch)[0], rounding * SHARP):
            raise InputError(
                "The loss of a batch is another one after another batch was seen.",
                why="What a model remembers of the records it saw mixes them with those that come later.",
                fix="Keep nothing from one call of the model to the next, and draw random numbers by torch alone.",
            )
        self.random, self.rounding = random, rounding
        wrong = self._influenced(blueprint, batch, changed_batch, kept, rounding)
        wrong |= self._wrong_total(blueprint, batch, total, rounding, random)
        if random:
            self._model.eval()
            losses, _, random, _ = self._plain(batch)
            if random:
                raise InputError(
                    "The model draws random numbers in evaluation mode too.",
                    why="What it computes for a batch cannot be compared with what it computes for each record alone.",
                    fix="Let it draw in training mode only: nn.Dropout does, F.dropout takes training=self.training.",
                )
        alone = loop_losses(self._model, self._loss, batch, RECORDS)
        if not _close(losses, alone, rounding):
            raise self.mixing("The loss of one record changes")
        return wrong | self._wrong_parts(blueprint, batch, rounding)

    def blamed(self) -> str:
        """Where the model moves or mixes records, in brackets, as far as that was seen."""
        return f" (see {self._moved.rstrip(',')})" if self._moved else ""

    def mixing(self, what: str) -> InputError:
        """The error for a model whose records are not each other's business."""
        return InputError(
            f"{what} with the other records of its batch{self.blamed()}.",
            why="The model mixes records (a statistic over the batch, an index across it), so clipping a record's "
            "gradient does not bound its influence.",
            fix="Remove that layer or compute it per record; for batch normalisation use "
            "adadp.replace_batchnorm(model).",
        )

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
        half = losses.dtype in HALF or any(dtype in HALF for dtype in recorder.dtypes)
        return losses.detach(), total, random, 5e-2 if half else 2e-3

    def _captured(self, batch: Sequence[Any], blueprint: Blueprint) -> Capture:
        torch.manual_seed(0)
        return run_batch(self._parameters, self._model, self._loss, batch, blueprint)

    def _influenced(
        self, blueprint: Blueprint, batch: Sequence[Any], other: Sequence[Any], kept: Sequence[int], rounding: float
    ) -> set[str]:
        """Parameters whose gradients for the records ``kept`` change with the other one."""
        sums = []
        for each in (batch, other):
            capture = self._captured(each, blueprint)
            capture.square_norms(self._groups)
            sums.append([self._row(capture, record) for record in kept])
        return self._unequal(*sums, rounding=rounding * SHARP)

    def _wrong_total(
        self, blueprint: Blueprint, batch: Sequence[Any], total: dict[str, Tensor], rounding: float, random: bool
    ) -> set[str]:
        """Parameters whose gradients do not sum to plain autograd's.

        Those of the whole loss are computed by running it again; if it draws random numbers these are others.
        """
        capture = self._captured(batch, blueprint)
        capture.square_norms(self._groups)
        got = capture.weighted_sums(torch.ones(RECORDS, len(self._groups)), self._groups)
        wrong = self._unequal([got], [total], rounding=rounding)
        return wrong - self.whole(blueprint) if random else wrong

    @staticmethod
    def whole(blueprint: Blueprint) -> set[str]:
        """The parameters whose gradients are computed by running the whole loss again."""
        whole = [region for region in blueprint.regions if isinstance(region, WholeLoss)]
        return {name for region in whole for name in region.parameters.values()}

    def _wrong_parts(self, blueprint: Blueprint, batch: Sequence[Any], rounding: float) -> set[str]:
        """Parameters whose gradient, or its norm, is not plain autograd's for some record alone."""
        expected = loop_gradients(self._model, self._loss, batch, RECORDS)
        capture = self._captured(batch, blueprint)
        norms = capture.square_norms(self._groups).double().sqrt()
        wrong = self._unequal([self._row(capture, record) for record in range(RECORDS)], expected, rounding=rounding)
        sizes = torch.tensor([[float(row[name].double().norm()) for name in self._parameters] for row in expected])
        slack = rounding * 1e-3 * float(sizes.max())
        off = ((norms.cpu() - sizes).abs() > rounding * sizes + slack).any(0)
        wrong |= {name for name, each in zip(self._parameters, off.tolist(), strict=True) if each}
        return wrong and wrong - self._jumping(capture, batch, expected, rounding)

    def _jumping(
        self, capture: Capture, batch: Sequence[Any], expected: Sequence[Mapping[str, Tensor]], rounding: float
    ) -> set[str]:
        """Parameters whose gradients differ from those of the records alone by no more than rounding explains.

        Of the many activations of a deep network one may stand at the corner of a ReLU, on this side in a batch and on
        that side alone. How far the gradient jumps then is found as in a real run (``spotcheck``). A rule whose norm is
        wrong and whose gradient is right is not excused.
        """
        jumping = set(self._parameters)
        norms = capture.square_norms(self._groups).double().sqrt().cpu()
        for record, truth in enumerate(expected):
            got = self._row(capture, record)
            alone = picked(batch, torch.tensor([record]))
            moved = moved_by_rounding(self._model, self._loss, alone, truth)
            for group, name in enumerate(self._parameters):
                jump = 2 * max(float(each[name].norm()) for each in moved)
                size, away = float(got[name].norm()), float((got[name] - truth[name]).norm())
                explained = away <= rounding * float(truth[name].norm()) + jump
                if not explained or abs(float(norms[record, group]) - size) > rounding * (
                    size + float(norms.max()) / 1e3
                ):
                    jumping.discard(name)
        return jumping

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
            if not float((mine[name] - theirs[name].to(accumulation_dtype(parameter.dtype))).norm())
            <= rounding * float(theirs[name].norm()) + slack
        }


def _replaced(batch: Sequence[Any], other: Sequence[Any], record: int) -> tuple[tuple[Any, ...], int]:
    """``batch`` with one record of ``other`` in place of its own, and which."""

    def put(leaf: Any, source: Any) -> Any:
        return (
            torch.cat([leaf[:record], source[record : record + 1], leaf[record + 1 :]])
            if isinstance(leaf, Tensor)
            else leaf
        )

    return tuple(tree_map(put, tuple(batch), tuple(other))), record


def _close(first: Tensor, second: Tensor, rounding: float) -> bool:
    return torch.allclose(first.double(), second.double(), rtol=rounding, atol=rounding, equal_nan=True)
