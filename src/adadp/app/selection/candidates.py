"""From a base configuration and settings to candidates: configurations in full, with the noise the target allows.

A candidate is filled in (``resolve``) as a run with the epsilon that one run has in this search: that of a
single Gaussian release whose search costs the target. It sets what follows from an epsilon: a batch or a length that is
``auto``, and the noise of released features. Then the noise of the steps is found so that the whole search meets the
target by ``rdp``, and written out: the epsilon of a candidate alone has no meaning, so it is not in its configuration.

    the noise of a candidate                becomes
    not given                               constant: ``noise_multiplier``
    a schedule that leaves s0 open, pieces  that schedule, scaled
    a schedule with s0, k open, validation  an error: nothing is left to scale, or its cost is not fixed in advance
"""

from __future__ import annotations

from collections.abc import Callable
from decimal import ROUND_UP, Context

from adadp.accounting import Status as Proof
from adadp.accounting import accountant
from adadp.app.accounting.best_of import BestOf
from adadp.app.accounting.calibrate import smallest_noise
from adadp.app.accounting.repetitions import Repetitions
from adadp.app.accounting.search_noise import noise_for_search
from adadp.app.config import AUTO, TrainConfig
from adadp.app.owndata import load_schema
from adadp.app.resolve import delta_of, resolve
from adadp.app.schedules import ValidationDecay
from adadp.app.selection.settings import Setting
from adadp.app.spec import RunSpec
from adadp.app.texts.methods import parse_method
from adadp.app.texts.schedules import parse_noise
from adadp.app.train import plan_of
from adadp.errors import InputError
from adadp.events import Event, GaussianRelease, Neighbours
from adadp.sampling import sampler
from adadp.schedules import Uniform

_DIGITS = 6
"""To how many digits a noise scale is rounded up."""

_NOT_FOR_SEARCHES = {
    "audit_canaries": "What a search publishes is the best of several runs, each of which would have coins of its own.",
    "allow_nonprivate": "The best of runs without privacy has none.",
    "evaluate_every": "A search evaluates on the test set once, at the end, the model it has chosen.",
    "holdout": "A search keeps records aside for its own scores, and charges all its runs as one.",
    "tensorboard": "A search releases the run it has chosen, and not what the others did.",
}
"""Fields that the base of a search cannot have, and why."""


def relation_of(config: TrainConfig) -> Neighbours:
    """Between which data sets the guarantee of ``config`` holds."""
    return sampler(config.sampling, 2, 1, config.neighbours).neighbours


def check_base(base: TrainConfig) -> None:
    """Refuse a base configuration that no search can have."""
    if base.epsilon is None:
        raise InputError(
            "A search needs `epsilon`.",
            why="It is what the whole search may cost; the noise of its runs follows from it.",
            fix="Pass `epsilon`, and neither `noise_multiplier` nor `rho`.",
        )
    for name, why in _NOT_FOR_SEARCHES.items():
        if getattr(base, name):
            raise InputError(f"`{name}` is given.", why=why, fix="Leave it out.")
    if "python" in (base.data, base.model, base.optimizer):
        raise InputError("A search needs data, model and optimizer by name.", fix="Name a file or a data set.")
    if base.schema is not None and load_schema(base.schema).targets:
        raise InputError(
            f"The targets of {base.data} are numbers.",
            why="A search compares runs by how many answers are right. Nothing was spent.",
            fix="Train with `holdout`, whose figures are charged, and choose the next setting by them.",
        )


def epsilon_of_one_run(base: TrainConfig, law: Repetitions) -> float:
    """The epsilon of one release whose search, over nothing but it, costs what ``base`` may."""
    delta = delta_of(base)
    assert base.epsilon is not None
    assert delta is not None
    relation = relation_of(base)
    noise_multiplier = noise_of_score(law, base.epsilon, delta, relation)
    return min(base.epsilon, accountant("rdp").epsilon(GaussianRelease(noise_multiplier, relation), delta).epsilon)


def noise_of_score(law: Repetitions, epsilon: float, delta: float, relation: Neighbours) -> float:
    """The least noise multiplier at which the best of releases that are one Gaussian each is (epsilon, delta)-DP."""
    found = smallest_noise(
        lambda x: BestOf((GaussianRelease(x, relation),), law),
        epsilon=epsilon,
        delta=delta,
        accountant=accountant("rdp"),
    )
    return _rounded_up(found.value)


def for_repeat(
    base: TrainConfig, settings: tuple[Setting, ...], records: int, law: Repetitions
) -> tuple[TrainConfig, ...]:
    """The candidates of a search by ``repeat``, each trained on ``records`` records."""
    if base.accountant not in ("pld", "rdp"):
        raise InputError(
            f"The accountant {base.accountant} was asked for.",
            why="The best of a random number of runs is accounted for by rdp.",
            fix="Leave `accountant` out.",
        )
    base = base.replace(accountant="rdp")
    share = epsilon_of_one_run(base, law)
    drafts = [_filled(base, setting, share) for setting in settings]
    _refuse_equal(drafts)
    assert base.epsilon is not None
    assert drafts[0].delta is not None
    scales = _scales([_event_by_scale(draft, records) for draft in drafts], law, base.epsilon, drafts[0].delta)
    return tuple(_with_noise(draft, scale) for draft, scale in zip(drafts, scales, strict=True))


def _scales(makes: list[Callable[[float], Event]], law: Repetitions, epsilon: float, delta: float) -> tuple[float, ...]:
    """A noise scale for every candidate. Those that differ in nothing that costs are asked about once.

    How often a cost occurs weighs in that of the whole: if the weights make it pass the target, all are asked together.
    """
    kinds = {make(1.0): make for make in makes}
    found = noise_for_search(list(kinds.values()), law, epsilon=epsilon, delta=delta)
    by_kind = {kind: _rounded_up(scale) for kind, scale in zip(kinds, found, strict=True)}
    scales = tuple(by_kind[make(1.0)] for make in makes)
    whole = BestOf(tuple(make(scale) for make, scale in zip(makes, scales, strict=True)), law)
    if accountant("rdp").epsilon(whole, delta).epsilon <= epsilon:
        return scales
    return tuple(map(_rounded_up, noise_for_search(makes, law, epsilon=epsilon, delta=delta)))


def for_parts(base: TrainConfig, settings: tuple[Setting, ...], records: int) -> tuple[TrainConfig, ...]:
    """The candidates of a search by ``parts``: each meets the whole target on ``records`` records of its own."""
    if accountant(base.accountant).status is not Proof.PROVED:
        raise InputError(f"The accountant {base.accountant} gives no bound.", fix="Use pld, rdp or zcdp.")
    assert base.epsilon is not None
    drafts = [_filled(base, setting, base.epsilon) for setting in settings]
    _refuse_equal(drafts)
    candidates = []
    for draft in drafts:
        noise = plan_of(RunSpec.of(draft), records).noise
        assert noise is not None
        candidates.append(
            draft.replace(noise_multiplier=noise.value_at(0))
            if isinstance(noise, Uniform) and draft.noise_schedule is None
            else draft.replace(epsilon=None, noise_schedule=str(noise))
        )
    return tuple(candidates)


def _filled(base: TrainConfig, setting: Setting, epsilon: float) -> TrainConfig:
    config = base.replace(**setting)
    if config.noise_schedule is not None:
        noise = parse_noise(config.noise_schedule)
        if isinstance(noise, ValidationDecay) or not noise.relative:
            raise InputError(
                f"A search cannot set the noise of {config.noise_schedule}.",
                why="It scales a shape so that the whole search meets the target; this one is fixed, or not known "
                "before the run.",
                fix="Give a schedule without s0, like exp:k=0.1, or pieces.",
            )
    method = parse_method(config.method)
    if method.not_private is not None:
        raise InputError(f"The method {config.method} is not private.", why=method.not_private)
    if config.arithmetic == "exact":
        raise InputError(
            "The arithmetic of a search is exact.",
            why="The score of a run counts right answers, which are computed in batches: they can depend on others.",
            fix="Search with fast arithmetic, and train a setting that is known with exact arithmetic.",
        )
    if method.choice is not None:
        raise InputError(
            f"A search cannot set the noise of {config.method}.",
            why="The method chooses it during the run, and what choosing the best of several runs costs is known for "
            "runs whose noise is fixed in advance.",
            fix="Search among other methods.",
        )
    whole = resolve(config.replace(epsilon=epsilon)).config
    if whole.epochs == AUTO or (whole.epochs is None and whole.steps is None):
        raise InputError("The length of a run is not given.", fix="Pass `epochs` or `steps`.")
    return whole


def _event_by_scale(draft: TrainConfig, records: int) -> Callable[[float], Event]:
    plan = plan_of(RunSpec.of(_with_noise(draft, 1.0)), records)
    shape = plan.noise
    assert shape is not None
    return lambda scale: plan.event(shape.scaled(scale))


def _with_noise(draft: TrainConfig, scale: float) -> TrainConfig:
    if draft.noise_schedule is None:
        return draft.replace(noise_multiplier=scale)
    noise = parse_noise(draft.noise_schedule)
    assert not isinstance(noise, ValidationDecay)
    return draft.replace(epsilon=None, noise_schedule=str(noise.closed(scale)))


def _rounded_up(value: float) -> float:
    return float(Context(prec=_DIGITS, rounding=ROUND_UP).create_decimal(value))


def _refuse_equal(drafts: list[TrainConfig]) -> None:
    for number, draft in enumerate(drafts):
        if draft in drafts[:number]:
            raise InputError(
                f"The settings {drafts.index(draft) + 1} and {number + 1} are the same run.",
                why="It would be drawn twice as often.",
                fix="Leave one out.",
            )
