"""Checks for methods and clip rules that anybody contributes: call them in your own tests.

    adadp.testing.check_method(Mine())
    adadp.testing.check_clip_rule(MyRule(1.0))

They are tests: what they find is wrong, and what they do not find is not proved. A guarantee needs the argument why a
bound holds, in the docstring of the method or rule.
"""

from __future__ import annotations

import copy
import tempfile
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn.functional import cross_entropy

from adadp.app.accounting import RdpFilter
from adadp.app.audit.replay import neighbour_replay
from adadp.app.clipping.fixed import PerLayer
from adadp.app.runs import RunFolder
from adadp.app.texts.clip_rules import clip_rule_text, parse_clip_rule
from adadp.app.texts.methods import method_text, parse_method
from adadp.app.train import fit, verify_run
from adadp.clipping import ClipRule, Flat
from adadp.errors import Interrupted
from adadp.ledger import Ledger, PlannedBudget
from adadp.methods import Method
from adadp.plan import Plan
from adadp.release import GaussianMechanism
from adadp.step import PrivateGradients

_RECORDS, _COLUMNS, _CLASSES, _STEPS = 24, 5, 3, 6
_CASES = ("ordinary", "huge", "tiny", "not finite")
"""The last record, by which two data sets differ, in units of the others; ``huge`` is where weights begin to fade."""


def check_method(method: Method) -> None:
    """Raise ``AssertionError`` if ``method`` breaks what every run relies on.

    =================  ==============================================================================================
    bounds             on neighbouring data sets each release moves by no more than ``l2_bounds`` says, whatever the
                       last record is, for clip rules of one group and of several
    post-processing    two such runs that release the same numbers end with the same parameters
    empty batches      a step without records releases the same parts
    processes          ``finalize`` of two sums is that of both added, unless the query says that it is not ``additive``
    state              ``tensors`` and ``restore`` are all that another process needs to go on, bit for bit
    resume             a run that was stopped and resumed ends where an uninterrupted one does, and verifies
    devices            what is made of released values stays on their device: tried on a CUDA device that need not exist
    text               the method reads back from its text as itself
    =================  ==============================================================================================
    """
    if method.not_private is None:
        for rule in (Flat(1.0), PerLayer((0.5,))):
            for case in _CASES:
                _check_bounds(method, rule, case)
    _check_empty(method)
    _check_additive(method)
    _check_state(method)
    _check_resume(method)
    _check_devices(method)
    assert parse_method(method_text(method)) == method, f"{method_text(method)!r} does not read back as {method!r}."


def check_clip_rule(rule: ClipRule) -> None:
    """Raise ``AssertionError`` if ``rule`` lets a record contribute more than its bound, or breaks its other promises.

    ======================  =========================================================================================
    bounds                  sqrt(sum of (weight norm)^2) <= ``l2_bound`` for norms of 1e-18 to 1e18, float32 and float64
    huge or no numbers      weight 0 from a norm of 1e15 on, and for NaN
    other records           have no influence: a record has the same weights alone
    groups                  every parameter in exactly one
    text                    the rule reads back from its text as itself
    ======================  =========================================================================================
    """
    names = ("a.weight", "a.bias", "b.weight")
    groups = rule.groups(names)
    assert sorted(name for group in groups for name in group) == sorted(names), "groups is not a partition."
    state, width = rule.initial_state(), len(groups)
    bound = rule.l2_bound(width, state)
    assert 0 < bound < float("inf"), f"l2_bound is {bound}."
    for dtype in (torch.float32, torch.float64):
        norms = torch.logspace(-18, 18, 721, dtype=torch.float64)[:, None] * torch.rand(721, width).add(0.01)
        squares = norms.square().to(dtype)
        weights = rule.weights(squares, state)
        assert weights.shape == squares.shape, f"weights has the shape {tuple(weights.shape)}."
        lengths = (weights.double() * squares.double().sqrt()).nan_to_num(nan=0.0).square().sum(1).sqrt()
        longest = float(lengths.max())
        assert longest <= bound, f"A record contributes {longest / bound:.6g} times the bound of {rule} ({dtype})."
        fading = norms.amax(1) >= 1e15
        assert not weights[fading].any(), "A record with a norm of 1e15 or more has a weight."
        broken = squares[:3].clone()
        broken[0, 0], broken[1, -1], broken[2, 0] = float("nan"), float("inf"), -1.0
        assert not rule.weights(broken, state).any(), "A record whose norm is NaN or infinite has a weight."
        alone = torch.cat([rule.weights(row[None], state) for row in squares])
        assert torch.equal(alone, weights), "The weights of a record depend on the others of its batch."
    assert parse_clip_rule(clip_rule_text(rule)) == rule, f"{clip_rule_text(rule)!r} does not read back as {rule!r}."


def _data(case: str = "ordinary") -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(3)
    values = torch.randn(_RECORDS, _COLUMNS, generator=generator)
    scale = {"ordinary": 1.0, "huge": 1e13, "tiny": 1e-25, "not finite": float("inf")}
    values[-1] *= scale[case]
    return values, torch.randint(_CLASSES, (_RECORDS,), generator=generator)


def _network() -> nn.Module:
    torch.manual_seed(5)
    return nn.Sequential(nn.Linear(_COLUMNS, 4), nn.Tanh(), nn.Linear(4, _CLASSES))


def _losses(model: nn.Module, values: Tensor, labels: Tensor) -> Tensor:
    return cross_entropy(model(values), labels, reduction="none")


def _plan(method: Method, rule: ClipRule) -> Plan:
    plan = Plan.of_noise(noise=1.0, records=_RECORDS, batch_size=8, steps=_STEPS, clip_norm=rule)
    epochs = plan.epochs
    clips = method.clip_shape(epochs)
    if clips is not None:
        plan = replace(plan, clip_norm_schedule=clips, keep_noise=method.keeps_noise)
    return plan if method.choice is None else plan.for_choices(method.choice)


@dataclass(frozen=True)
class _Loop:
    """A training loop of one's own with the method, seeded, in a folder of its own."""

    method: Method
    plan: Plan
    data: tuple[Tensor, Tensor]
    mechanism: GaussianMechanism | None = None

    def run(self, steps: int, before: Callable[[PrivateGradients], None] | None = None) -> PrivateGradients:
        """The gradients after so many steps; ``before`` sees them before the first."""
        adaptive = self.plan.adaptive
        event = self.plan.event()
        budget = RdpFilter(epsilon=1e4, delta=1e-5, expected=event) if adaptive else PlannedBudget(event)
        with tempfile.TemporaryDirectory() as folder, Ledger.create(Path(folder) / "ledger", budget=budget) as ledger:
            private = PrivateGradients(
                _network(), self.data, _losses, self.plan, ledger, method=self.method, seed=1,
                mechanism=self.mechanism, allow_nonprivate=True,
            )  # fmt: skip
            optimizer = torch.optim.SGD(private.model.parameters(), lr=0.1)
            if before is not None:
                before(private)
            while private.step < steps:
                private.release()
                optimizer.step()
        return private


def _check_bounds(method: Method, rule: ClipRule, case: str) -> None:
    plan, (values, labels) = _plan(method, rule), _data(case)

    ended: list[PrivateGradients] = []

    def runner(count: int) -> Any:
        few = (values[:count], labels[:count])
        return lambda steps, mechanism: ended.append(_Loop(method, plan, few, mechanism).run(steps))

    distances = neighbour_replay(runner(_RECORDS), runner(_RECORDS - 1), _STEPS)
    if method.choice is None:  # a private choice may differ; all else follows from what both runs released
        one, other = (private.model.parameters() for private in ended)
        assert all(map(torch.equal, one, other)), f"{method} makes steps of records that were not released ({case})."
    for found in distances:
        assert found.share <= 1, (
            f"With {rule}, one record ({case}) moves the release {found.purpose!r} of step {found.step} by "
            f"{found.share:.4g} times the bound that l2_bounds states."
        )


def _check_empty(method: Method) -> None:
    private = _Loop(method, _plan(method, Flat(1.0)), _data()).run(0)
    parts, bounds = private.query.finalize(None), private.query.l2_bounds()
    assert parts.keys() == bounds.keys(), f"finalize has the parts {[*parts]}, l2_bounds {[*bounds]}."
    for purpose, tensors in parts.items():
        for name, value in tensors.items():
            assert not value.any(), f"{name} of {purpose!r} is not 0 for an empty batch."


def _check_additive(method: Method) -> None:
    private, (values, labels) = _Loop(method, _plan(method, Flat(1.0)), _data()).run(_STEPS - 1), _data()
    query = private.query
    if not query.additive:
        return
    half = _RECORDS // 2
    one, other, both = (
        query.contribution(private._engine.capture((values[rows], labels[rows])))
        for rows in (slice(half), slice(half, None), slice(None))
    )
    found, whole = (query.finalize(one), query.finalize(other)), query.finalize(both)
    for purpose, tensors in whole.items():
        for name, value in tensors.items():
            added = found[0][purpose][name] + found[1][purpose][name]
            assert torch.allclose(added, value, rtol=1e-4, atol=1e-6), (
                f"{name} of {purpose!r}: finalize of two sums is not that of both together. Several processes would "
                "release something else than one: set additive = False on the query."
            )


def _check_state(method: Method) -> None:
    plan, data = _plan(method, Flat(1.0)), _data()
    whole = _Loop(method, plan, data).run(_STEPS)
    half = _Loop(method, plan, data).run(_STEPS // 2)
    kept = copy.deepcopy((half.state(), half.model.state_dict(), half.plan))

    def restored(private: PrivateGradients) -> None:
        state, parameters, known = kept
        private.model.load_state_dict(parameters)
        private.plan = known
        private.restore(state, nothing_since=True)

    again = _Loop(method, plan, data).run(_STEPS, restored)
    for (name, one), other in zip(whole.model.named_parameters(), again.model.parameters(), strict=True):
        assert torch.equal(one, other), f"{name} differs after restore: tensors() does not hold all that changes."


def _check_resume(method: Method) -> None:
    settings: dict[str, Any] = {
        "epsilon": 50.0, "delta": 1e-3, "steps": _STEPS, "batch_size": 8, "clip_norm": 1.0, "lr": 0.1, "seed": 2,
        "method": method, "allow_nonprivate": method.not_private is not None, "checkpoint_every": 2,
    }  # fmt: skip
    whole = fit(_network(), _data(), **settings | {"checkpoint_every": None})
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "run"

        def stop(status: Any) -> None:
            if status.step == 3:
                raise Interrupted("stopped by the check")

        with suppress(Interrupted):
            fit(_network(), _data(), out=out, watch=stop, **settings)
        again = fit(_network(), _data(), out=out, resume=True, **settings)
        failed = [f"{check.name}: {check.detail}" for check in verify_run(RunFolder.open(out)) if not check.passed]
    assert not failed, f"The run of {method} does not verify: {'; '.join(failed)}"
    for (name, one), other in zip(whole.network.named_parameters(), again.network.parameters(), strict=True):
        assert torch.equal(one, other), f"{name} of a resumed run differs from an uninterrupted one."


class _Elsewhere:
    """What a query asks of an engine, for parameters on another device."""

    def __init__(self, shapes: Mapping[str, torch.Size], scale_shapes: Mapping[str, tuple[int, ...]]) -> None:
        self._shapes, self.names, self.scale_shapes = shapes, tuple(shapes), scale_shapes

    def zeros(self) -> dict[str, Tensor]:
        return {name: torch.zeros(shape, dtype=torch.float64, device="cuda") for name, shape in self._shapes.items()}


def _check_devices(method: Method) -> None:
    private = _Loop(method, _plan(method, Flat(1.0)), _data()).run(0)
    shapes = {name: value.shape for name, value in private.model.named_parameters()}
    scale_shapes = private._engine.scale_shapes
    gradients: dict[str, Tensor] = {}
    with FakeTensorMode(allow_non_fake_inputs=True):
        engine: Any = _Elsewhere(shapes, scale_shapes)
        try:
            query = method.query(engine, Flat(1.0), 8)
            for _ in range(2):
                gradients = query.to_gradient(query.finalize(None), 1.0)
        except (
            RuntimeError,
            NotImplementedError,
        ) as error:  # reading a number of a device that is not there is no fault
            if "same device" in str(error):
                raise AssertionError(f"{method} mixes devices: {error}") from error
        for name, value in gradients.items():
            assert value.device.type == "cuda", f"The gradient of {name} is on {value.device}, its parameter on cuda."
