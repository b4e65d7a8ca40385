"""One private step: a batch is drawn, its clipped sum is made, charged, and released with noise.

Everything above the trust line in ``PrivateGradients.release`` is sensitive and dies there; everything below is public.
"""

from __future__ import annotations

import functools
import math
import os
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from adadp import checks
from adadp.clipping import ClipState
from adadp.errors import InputError, without_text
from adadp.events import Neighbours
from adadp.gradients import engine_for
from adadp.gradients.model_checks import plain_model
from adadp.gradients.passes import MakePasses
from adadp.joining import join
from adadp.ledger import Ledger, LedgerCopy, PlannedBudget
from adadp.methods import GRADIENT, Contribution, Deviations, DpSgd, Method, Parts, Tensors
from adadp.plan import Plan
from adadp.randomness import RandomSource, source_of
from adadp.ranks import joined, tensors_digest, together
from adadp.records import Data, Records
from adadp.registry import Registry
from adadp.release import Crossing, GaussianMechanism, Permit
from adadp.sampling import Batches, places

DEFAULT_MEMORY = 1 << 30
"""Bytes that ``chunk_size="auto"`` stays inside unless told otherwise: 1 GiB."""

LARGEST_CHUNK = 1024
"""Records summed in float32 at most, before their sum is added in float64: what keeps rounding inside its allowance."""

ARITHMETICS: Registry[type[Any]] = Registry("arithmetic", {}, lambda found: found if isinstance(found, type) else None)
"""Others than fast, in which sums are made record by record: classes like ``adadp.app.exact.ExactSums``."""

CHECK_EVERY = 0.02
"""In which part of the steps a few records are computed alone and compared."""
_RELEASED = {GRADIENT: torch.float32}  # whether chunks were added or not
_COMPARED_EVERY = 100
"""Steps after which the parameters of several processes are compared."""
_REUSED = 31 << 20
"""Bytes of a block that is taken and given back once. glibc asks the system for every block that is at least as large
as the largest one given back, up to 32 MiB, and new pages cost more than a small network: batches of one size, each as
large as the last, would always be new."""


class PrivateGradients:
    """Private gradients of a model, one batch at a time, for a training loop of your own.

    ``loss(model, *batch)`` returns one loss per record. Each ``release`` draws a batch as the plan says, clips every
    record's gradient, charges the ledger, adds noise, and leaves the result (divided by the public batch size) in the
    ``.grad`` of the model's parameters for any optimizer. The model is not wrapped.

    ``ledger`` is the path of a new file, which will hold the run to ``plan``; close it with ``close`` or by ``with``.
    Or it is a ledger of yours, or a function that opens one, called when everything else has been checked. ``seed``
    None is secure randomness; a seed makes the run reproducible and not secure. ``chunk_size`` is how many records are
    processed at once at most, up to 1024: the result does not depend on it beyond rounding. ``mechanism`` is for audits
    that watch the releases.

    ``example`` are two or more public records, in the form of ``data``, that the model is inspected with in place of
    random probe records; some models take sensible input only.

    ``arithmetic`` is how the sum of a batch is computed. ``fast``: in batches whose size is public, every record in a
    secret random row; what rounding can do is allowed for, as it was measured. ``exact``: record by record and in whole
    numbers, many times as slow, so that what one record can move the sum by is proved. docs/arithmetic.md has both.

    ``passes`` may make the passes of fast arithmetic in another way: see ``GradientEngine``.

    ====================================  ============================================================================
    an empty batch                          noise alone is released, and charged
    a record with NaN, Inf, or a          contributes nothing; the run goes on. From a norm of 1e12 on it contributes
    gradient of norm 1e15 or more         less and less
    the budget is spent                   ``BudgetExceeded``; nothing is released, the parameters are untouched
    the forward pass raises               ``InputError`` with the type and line of the exception, without its text,
                                          which may show records; nothing was charged
    torch.distributed is initialised      every process computes the sum of its part of the records; ``data`` is all of
                                          them in each, and the first process has the ledger (docs/scale.md)
    ====================================  ============================================================================
    """

    @together
    def __init__(
        self,
        model: nn.Module,
        data: Data | Records,
        loss: Callable[..., Tensor],
        plan: Plan,
        ledger: str | os.PathLike[str] | Ledger | Callable[[], Ledger],
        *,
        method: Method | None = None,
        seed: int | RandomSource | None = None,
        chunk_size: int | str = "auto",
        memory_limit: int = DEFAULT_MEMORY,
        mechanism: GaussianMechanism | None = None,
        allow_nonprivate: bool = False,
        arithmetic: str = "fast",
        example: Data | Records | None = None,
        passes: MakePasses | None = None,
    ) -> None:
        method = DpSgd() if method is None else method
        if method.not_private is not None and not allow_nonprivate:
            raise InputError(
                f"The method {method} is not private.",
                why=method.not_private,
                fix="Use adadp, or pass `allow_nonprivate` if that is what you want; no epsilon holds then.",
            )
        _check_choices(method, plan)
        if passes is not None and arithmetic == "exact":
            raise InputError(
                "Compiled passes are asked for together with exact arithmetic.",
                why="Exact arithmetic computes every record by the code as it is written.",
                fix="Leave `compile` out, or use fast arithmetic.",
            )
        first = next(model.parameters(), torch.empty(0))
        self._device = first.device
        self.model = plain_model(model)
        self.plan, self.method = plan, method
        self.source = seed if isinstance(seed, RandomSource) else source_of(seed)
        self.step = 0
        """How many steps were released; the next ``release`` is for this step, counted from 0."""
        self._records = data if isinstance(data, Records) else Records(data, first.device, first.dtype)
        self.ranks = joined()
        """The processes that share the records; each computes the sum of its own."""
        if self.ranks.several:
            _refuse_opened(ledger)
            configuration = repr((plan, str(method), arithmetic, self.source.describe()))
            join(self.ranks, self.model, self._records, self.source, configuration)
        self.batches = Batches(plan.timetable.for_records(len(self._records)), self.source, self.ranks)
        if example is not None and not isinstance(example, Records):
            example = Records(example, first.device, first.dtype, self._records.bound)
        make_engine = engine_for(self.model)
        self._engines = [
            make_engine(
                model,
                loss,
                self._records.example(group),
                example=_public(example, self._records, group),
                passes=passes,
            )
            for group in range(self._records.groups)
        ]
        """One for each public shape that records have: which calls a model makes may depend on it."""
        self._engine = self._engines[-1]
        self.query = method.query(self._engine, plan.clip_rule, plan.batch_size)
        self.split = self._engine.split
        """Whether the parameters are split over processes."""
        if self.split and (arithmetic != "fast" or plan.choice is not None or not self.query.by_coordinate):
            raise InputError(
                f"The method {method} in {arithmetic} arithmetic does not work on a model that is split.",
                why="No process has a parameter as a whole, and no layer runs in one process alone.",
                fix="Use dpsgd or adadp in fast arithmetic, or pass the plain module.",
            )
        self._exact = self._exact_sums(arithmetic, method)
        self.gradient_deviations: Deviations | None = None
        """The standard deviation of the noise in the last gradient, by parameter; None before the first release, and
        for a method that cannot say."""
        self._resumed = False
        """Whether batches of the round at hand may have been released after the state that was restored."""
        said = (note for engine in self._engines for note in engine.notes)
        self.notes = tuple(dict.fromkeys((*said, *self._records.notes)))
        self.chunk_size = self._chunk(chunk_size, memory_limit)
        torch.empty(_REUSED, dtype=torch.uint8)
        self._ahead: tuple[int, list[list[Tensor]]] | None = None
        """A step and its batch, drawn ahead. Sensitive."""
        self._padding: dict[int, list[Tensor]] = {}
        """The tensors of probe records by group, one for every row of the longest chunk."""
        self.ledger = self._opened(ledger, method)
        self.crossing = Crossing(self.ledger, self.source, mechanism, self.ranks)

    def check_alike(self) -> None:
        """Refuse to go on if the parameters of the processes, or what the method has learnt, have drifted apart."""
        if self.ranks.several:
            parameters = self.model.parameters() if not self.split else ()  # parts have no second owner
            values = [*parameters, *self.query.tensors().values()]
            learnt = f"{self.step} {self.clip_state} {tensors_digest(values)}"
            self.ranks.check_same({f"parameters after {self.step} steps": learnt})

    def _opened(self, ledger: str | os.PathLike[str] | Ledger | Callable[[], Ledger], method: Method) -> Ledger:
        """The ledger; in all processes but the first, a copy of what that one has opened."""
        if not self.ranks.several:
            return self._own_ledger(ledger, method)
        own: list[Ledger] = []

        def opened() -> tuple[str, bytes]:
            own.append(self._own_ledger(ledger, method))
            return own[0].path, Path(own[0].path).read_bytes()

        content = self.ranks.from_first("opening the ledger", opened)
        return own[0] if own else LedgerCopy(*content)

    def _own_ledger(self, ledger: str | os.PathLike[str] | Ledger | Callable[[], Ledger], method: Method) -> Ledger:
        if isinstance(ledger, Ledger) or callable(ledger):
            return ledger() if callable(ledger) else ledger
        if self.plan.adaptive:
            raise InputError(
                f"The method {method} chooses its noise during the run, and the ledger is a path.",
                why="Only a budget fixed in advance can be certified then.",
                fix="Pass Ledger.create(path, budget=RdpFilter(...)) or one with a ZcdpFilter.",
            )
        budget = PlannedBudget(self.plan.event(), not_private=method.not_private)
        return Ledger.create(ledger, budget=budget, seeded=self.source.reproducible)

    def close(self) -> None:
        """Close the ledger."""
        self.ledger.close()

    def __enter__(self) -> PrivateGradients:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @together
    def release(self, *, paid: bool = False) -> dict[str, Tensor]:
        """Release the gradient of the next batch, into ``.grad`` and as a dict by parameter name; the two may share
        memory.

        ``paid`` says that nobody has to be charged: an earlier process has charged this very step, which is repeated
        with the same random numbers, or an audit repeats a run on public data. Only a seeded run may say so.
        """
        plan, step, query = self.plan, self.step, self.query
        if step % _COMPARED_EVERY == 0:
            self.check_alike()
        query.batch_size, query.clip_factor = plan.batch_size_at(step), plan.clip_factor_at(step)
        with without_text("The model fails on a batch, for which nothing was charged"):
            batch = self._drawn(step)
            total, bounds = self._sums(batch, step)
        charge = plan.charge_at(step, resumed=self._resumed)
        # ======================== trust line: above sensitive, below public ========================
        permit = self.crossing.pay(plan.release_at(step), charge, paid=paid)
        self._resumed = False
        deviation = permit.noise_multiplier * bounds[GRADIENT] if permit.noise_multiplier else 0.0
        released = {
            purpose: permit.gaussian(part, bounds[purpose], step=step, purpose=purpose, dtype=_RELEASED.get(purpose))
            for purpose, part in total.items()
        }
        self.step += 1
        self.gradient_deviations = query.gradient_deviations(deviation)
        gradients = query.to_gradient(released, deviation)
        del total, released  # as large as the parameters
        with without_text("The model fails on a batch that was charged"):
            gradients = query.search(gradients, _Chooser(self, permit, batch, step))
        if query.noise_factor is not None and plan.noise is not None:
            self.plan = plan.chosen_from(step + 1, plan.noise_multiplier_at(0) * query.noise_factor)
        found = {name: value.float() for name, value in gradients.items()}
        for name, parameter in self.model.named_parameters():
            if name in found:
                parameter.grad = found[name].to(parameter.dtype)
        return found

    def _drawn(self, step: int) -> list[list[Tensor]]:
        """The batch of ``step`` in its rows, which may have been drawn ahead. Sensitive."""
        ahead, self._ahead = self._ahead, None
        if ahead is not None and ahead[0] == step:
            return ahead[1]
        self._records.forget_ahead()
        return self._to_rows(self.batches.batch(step), step)

    def _draw_ahead(self, step: int) -> None:
        """Draw the batch of ``step`` and begin to fetch it, where records are not in memory.

        Random numbers belong to a step and a purpose, so drawing early changes none. What a plan may still choose is
        the noise of later steps, not their batches. A round that begins with ``step`` is not entered early.
        """
        if self._records.stored and step < self.plan.steps and self.batches.at_hand(step):
            self._ahead = step, self._to_rows(self.batches.batch(step), step)
            self._records.fetch_ahead(self._ahead[1][0][0], 0)

    def _sums(self, batch: Sequence[Sequence[Tensor]], step: int) -> tuple[Parts, dict[str, float]]:
        """What the method asks of the batch, sensitive; and what one record can move each part of it by."""
        query = self.query
        bounds = query.l2_bounds()
        if self._exact is not None:
            return self._exact.parts(query, batch[0], bounds, step), bounds
        total = self._sum_of_batch(batch, step, checked=self._checks(step))
        if not query.additive:
            found = [each for each in self.ranks.all_of("adding up", total) if each is not None]
            total = functools.reduce(_added, found) if found else None
        sums = query.finalize(total)
        if not query.additive and not self.ranks.first:  # which has the sum of all already
            sums = {name: {key: torch.zeros_like(value) for key, value in part.items()} for name, part in sums.items()}
        return sums, {name: self._with_rounding(bound, query.steepness(name)) for name, bound in bounds.items()}

    def _sum_of_batch(self, batch: Sequence[Sequence[Tensor]], step: int, *, checked: bool = False) -> Parts | None:
        """What the method asks of the batch, added over its chunks. Sensitive."""
        total: Parts | None = None
        owned = False
        for group, chunks in enumerate(batch):
            with self._random_layers(step, group):
                for number, chunk in enumerate(chunks):  # none outlives its turn: new memory costs more than the sums
                    if number + 1 < len(chunks):
                        self._records.fetch_ahead(chunks[number + 1], group)
                    elif group + 1 == len(batch):
                        self._draw_ahead(step + 1)
                    tensors, empty = self._tensors(chunk, group)
                    for capture in self._engines[group].captures(tensors, empty, checked=checked and number == 0):
                        parts = self.query.contribution(capture)
                        owned, total = total is not None, parts if total is None else _added(total, parts, owned=owned)
                    del tensors, empty
        return total

    def _random_layers(self, step: int, group: int) -> AbstractContextManager[None]:
        """Random numbers for dropout, of each group its own: how many one takes must not change those of another."""
        return self.source.random_layers(self._device, step=step, purpose=self._of("random layers", group))

    def _of(self, purpose: str, group: int) -> str:
        """What random numbers are for; those of different groups and processes must not depend on one another."""
        purpose = f"{purpose} {group}" if group else purpose
        return purpose if self.ranks.first else f"{purpose}, process {self.ranks.rank}"

    def _checks(self, step: int) -> bool:
        """Whether a few records of this step are computed alone: those of the first, and of a few secret random ones.

        They stand in random rows, so that the first rows of the first chunk are any records of the batch.
        """
        drawn = step == 0 or bool(self.source.uniform(1, purpose="records computed alone", step=step) < CHECK_EVERY)
        return self.ranks.any("choosing records to check", drawn) if self.split else drawn

    def _to_rows(self, batch: Tensor, step: int) -> list[list[Tensor]]:
        """The batch in chunks by group, every record in a secret random row and -1 in rows that hold none. Sensitive.

        The number of rows of a chunk is public. There are always as many chunks as batches usually need, so that the
        random numbers of dropout, which are drawn row by row, do not depend on how many records there are; what does
        not fit into them goes into short chunks behind. How many records a group usually has is not known where there
        are several: each then has one chunk always, and short ones behind. In exact arithmetic every record is a chunk
        of its own.
        """
        if self._exact is not None:
            return [[*batch]]
        sampler = self.plan.timetable.at(step).sampler
        usual, groups = sampler.usual_share(self.ranks.size), len(self._engines)
        short = min(self.chunk_size, math.isqrt(4 * usual) + 1)
        chunks = -(-usual // self.chunk_size) if groups == 1 else 1
        rows = -(-usual // chunks) if groups == 1 else short
        short = min(rows, short)
        group_of = self._records.groups_of(batch)
        found = []
        for group in range(groups):
            held = batch[group_of == group]
            holders = places(len(held), chunks * rows, self.source, step=step, purpose=self._of("places", group))
            holders = torch.cat([holders, holders.new_full(((chunks * rows - len(holders)) % short,), -1)])
            in_rows = torch.cat([held, held.new_tensor([-1])])[holders]
            main, behind = in_rows[: chunks * rows], in_rows[chunks * rows :]
            if self.split:  # the layers of a split model need all processes for every chunk
                most = max(self.ranks.all_of("dividing the batch", len(behind)))
                behind = torch.cat([behind, behind.new_full((most - len(behind),), -1)])
            found.append([*torch.split(main, rows), *(torch.split(behind, short) if len(behind) else ())])
        return found

    def _tensors(self, chunk: Tensor, group: int) -> tuple[tuple[Any, ...], Tensor]:
        """The records of a chunk, with probe records in the rows that hold none; and which rows these are."""
        empty = chunk < 0
        tensors = self._records.batch(chunk, group)
        if bool(empty.any()):
            self._fill(tensors, empty.nonzero().squeeze(1).to(self._device), group)
        return tensors, empty

    def _fill(self, tensors: tuple[Any, ...], rows: Tensor, group: int) -> None:
        """Put probe records into ``rows`` of ``tensors``."""
        leaves = [leaf for leaf in tree_leaves(tensors) if isinstance(leaf, Tensor)]
        held = self._padding.get(group)
        if held is None or len(held[0]) < len(leaves[0]):
            found = tree_leaves(self._records.brought_in(self._engines[group].padding(len(leaves[0]))))
            held = self._padding[group] = [leaf for leaf in found if isinstance(leaf, Tensor)]
        for leaf, padding in zip(leaves, held, strict=True):
            leaf.index_copy_(0, rows, padding.index_select(0, rows))

    def _with_rounding(self, bound: float, steepness: float = 1.0) -> float:
        """What one record can move the computed sum by: the method's bound, and an allowance for rounding in float32.

        One record more takes a free row, or the row of one other that moves to the last (``sampling.places``); all
        others keep their rows in chunks of the same size, where a kernel computes the same bits for them. What rounds
        differently is the float32 sum of one or two chunks, and the gradient of the record that moved. Measured on the
        papers' networks this is up to 0.2 * 2**-24 of the bound per record of the batch, and 0.82 * 2**-24 where all
        records are equal; 16 * 2**-24 is allowed for, ``steepness`` times.

        The allowance is measured, not proved, and does not cover a record that moves and whose gradient depends on the
        last bits of the computation: at the corner of a ReLU, or where huge numbers cancel. That is one record at most,
        so the sum then moves by up to three times the bound (docs/arithmetic.md).
        """
        return bound * (1 + steepness * self.query.batch_size * 2.0**-20)

    def _exact_sums(self, arithmetic: str, method: Method) -> Any:
        """Who computes the sums record by record; None for fast arithmetic."""
        if arithmetic == "fast":
            return None
        sums = ARITHMETICS.find(arithmetic)(self._engine, self._records, self.source)
        sums.check(method, self._device, noisy=self.plan.noise is not None)
        return sums

    def _chunk(self, chunk_size: int | str, memory_limit: int) -> int:
        if chunk_size == "auto":
            return min(LARGEST_CHUNK, *(engine.chunk_size(memory_limit) for engine in self._engines))
        if isinstance(chunk_size, str):
            raise InputError(f"`chunk_size` must be a number or 'auto', got {chunk_size!r}.", fix="Pass one of these.")
        return min(LARGEST_CHUNK, checks.count("chunk_size", chunk_size))

    @property
    def exact(self) -> bool:
        """Whether the arithmetic is exact."""
        return self._exact is not None

    @property
    def clip_state(self) -> ClipState:
        """What the clip rule has learnt from released counts."""
        return self.query.clip_state

    def state(self) -> dict[str, Any]:
        """What a checkpoint must hold beside the model and its optimizer. Public, as far as the source is seeded or
        the sampling is reshuffled; Poisson and fixed batches leave nothing here.
        """
        return {
            "step": self.step,
            "clip_state": dict(self.clip_state),
            "method": self.query.tensors(),
            "batches": self.batches.state(),
        }

    def restore(self, state: dict[str, Any], *, nothing_since: bool = False) -> None:
        """Go on from what ``state`` returned.

        A reshuffled epoch is charged once. Restored in the middle of one, its batches may be released a second time, so
        the rest of it is charged again, unless the caller knows that ``nothing_since`` was released.
        """
        self._resumed = not nothing_since
        self.step = checks.count("step", state["step"], minimum=0)
        self.query.restore(state["clip_state"], state["method"])
        self.batches.restore(state["batches"])
        self._ahead = None


class _Chooser:
    """A second look at the batch of a step, covered by its charge: gradient and choice are one event."""

    def __init__(self, private: PrivateGradients, permit: Permit, batch: list[list[Tensor]], step: int) -> None:
        self._private, self._permit, self._batch, self._step = private, permit, batch, step

    def __call__(
        self, direction: Tensors, lengths: Sequence[float], scores: Contribution, *, bound: float, steepness: float
    ) -> int:
        private, step = self._private, self._step
        if private._exact is not None:
            total = private._exact.scores(scores, self._batch[0], direction, lengths, bound, step)
            bound = float(private._exact.score_units)
        else:
            total = torch.zeros(len(lengths), dtype=torch.float64)
            for group, chunks in enumerate(self._batch):
                with private._random_layers(step, group):
                    for chunk in chunks:
                        tensors, _ = private._tensors(chunk, group)
                        losses = private._engines[group].losses_along(tensors, direction, lengths)
                        total += scores(losses[:, chunk >= 0].double()).cpu()
            bound = private._with_rounding(bound, steepness)
        both_ways = 2 if private.plan.neighbours is Neighbours.REPLACE_ONE else 1
        # ======================== trust line: above sensitive, below public ========================
        return self._permit.choice(total, both_ways * bound, step=step, purpose="choice")


def _refuse_opened(ledger: object) -> None:
    """Refuse a ledger that every one of several processes has opened."""
    if isinstance(ledger, Ledger):
        raise InputError(
            "A ledger was opened before a run of several processes.",
            why="The first process alone writes it; the others follow it.",
            fix="Pass its path, or a function that opens it, which is called in the first process.",
        )


def _public(example: Records | None, records: Records, group: int) -> tuple[Any, ...] | None:
    """The user's own public records in the shape of ``group``."""
    if example is not None and example.groups != records.groups:
        raise InputError(
            "The example records have not the public lengths that the data has.",
            why="The model is looked over for each of them.",
            fix="Pass example=adadp.Padded(public_records, lengths) with the lengths of the data.",
        )
    return None if example is None else example.batch(torch.arange(len(example)), group)


def _check_choices(method: Method, plan: Plan) -> None:
    """A method that chooses from every batch has a plan that charges for it, and only such a method has one."""
    if method.choice == plan.choice and (method.choice is None or plan.noise is None or plan.adaptive):
        return
    if method.choice is None:
        raise InputError(
            f"The plan charges for a choice from every batch, and the method {method} makes none.",
            fix="Plan without choice.",
        )
    raise InputError(
        f"The method {method} chooses from every batch, and the plan does not charge for it.",
        why="Its choices are releases, and its noise follows from them.",
        fix="Pass plan.for_choices(method.choice), and a ledger whose budget is an RdpFilter or ZcdpFilter.",
    )


def _added(total: Parts, parts: Parts, *, owned: bool = False) -> Parts:
    """Two chunks' contributions together, in double precision. ``owned``: the first are such a sum, and become this."""
    return {
        purpose: {
            name: value.to(torch.float64, copy=not owned).add_(parts[purpose][name]) for name, value in tensors.items()
        }
        for purpose, tensors in total.items()
    }
