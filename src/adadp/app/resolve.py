"""From a configuration to a ``RunSpec``: every default filled in, for the data and method it names. Reads no data."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace as Draft

from adadp.app.auto_size import auto_batch_size, auto_steps, table_size
from adadp.app.config import AUTO, TrainConfig, leaves_start_open, require_delta
from adadp.app.features import Stage, features_text, parse_features, released_stages
from adadp.app.features.private_bounds import Bounds
from adadp.app.features.text import Bytes
from adadp.app.hub_models import PREFIX, HubModel
from adadp.app.methods.adadp import AdaDp
from adadp.app.owndata import is_own, load_schema, private_positions
from adadp.app.owndata.columns import BINS
from adadp.app.owndata.tabular import TableEncoder
from adadp.app.recipes import (
    BYTE_MODEL,
    DEFAULT_FEATURES,
    DELTAS,
    EQUALISED,
    LINEAR,
    NUMBERS,
    OWN,
    TABLE,
    Recipe,
    recipe_for,
)
from adadp.app.schedules import ValidationDecay
from adadp.app.spec import RunSpec
from adadp.app.texts.clip_rules import is_name
from adadp.app.texts.methods import METHODS, parse_method
from adadp.app.texts.schedules import parse_noise
from adadp.app.train.planning import holdout_noise, plan_of, refuse_large_delta, with_release_noise
from adadp.app.units import ROWS_PER_UNIT
from adadp.app.zoo import find
from adadp.errors import InputError
from adadp.methods import Method


def resolve(config: TrainConfig) -> RunSpec:
    """The run ``config`` asks for; unknown data and methods are refused."""
    if "python" in (config.data, config.model, config.optimizer):
        raise InputError(
            "The configuration belongs to a run from Python.",
            why="Its data, model or optimizer are objects, which have no name on the command line.",
            fix="Call adadp.fit with them; resume=True goes on with a run that was stopped.",
        )
    own = is_own(config.data)
    if not own:
        find(config.data)
        _refuse_own_settings(config)
    method = parse_method(config.method)
    draft = Draft(**vars(config))
    if METHODS.get(method.name) is type(method):  # else it is named by its place, which stays as it was given
        draft.method = str(method)
    draft.delta = delta_of(config)
    if own:
        _fill_unit(draft)
    if draft.model is not None and draft.model.startswith(PREFIX):
        draft.model = str(HubModel.of(draft.model).pinned())
    if draft.features is None:
        draft.features = _default_features(draft, method)
    if own:
        draft.budget = _required_budget(config)
    if own and draft.records is not None:
        refuse_large_delta(draft, draft.records)
    stages = parse_features(draft.features)
    if own:
        stages = _with_bounds(stages, config)
    stages = with_release_noise(stages, draft)
    draft.holdout_noise = holdout_noise(draft)
    if stages or draft.features:
        draft.features = features_text(stages)
    recipe = _with_defaults(recipe_for(_recipe_name(config), stages), method)
    _fill_sizes(draft, recipe, stages)
    _fill_recipe(draft, recipe)
    return RunSpec.of(TrainConfig(**vars(draft)), method=method, stages=stages)


def _fill_unit(draft: Draft) -> None:
    """The unit that the schema names, and how many rows of one are used; both are a part of the guarantee's wording."""
    if draft.unit is None and draft.schema is not None:
        draft.unit = load_schema(draft.schema).unit
    if draft.unit is not None and draft.rows_per_unit is None:
        draft.rows_per_unit = ROWS_PER_UNIT
    if draft.unit is None and draft.rows_per_unit is not None:
        raise InputError(
            "`rows_per_unit` is given, and neither `unit` nor the schema says which rows belong together.",
            why="It would be ignored.",
            fix="Pass `unit`, a column of ids, or leave it out.",
        )


def fitted(spec: RunSpec, asked: TrainConfig, records: int) -> RunSpec:
    """``spec``, to which ``asked`` was resolved; with default sizes that suit ``records``.

    Only where the number of records is not given, and so disclosed: else they have been chosen by the public one.
    """
    chosen, kept = spec.config.batch_size, records - asked.kept_aside(records)
    if asked.batch_size is not None or not isinstance(chosen, int) or public_records(asked) is not None:
        return spec
    if recipe_for(_recipe_name(asked), spec.stages).by_records:
        batch_size, epochs = table_size(max(1, kept))
        free = asked.epochs is None and asked.steps is None
        return resolve(asked.replace(batch_size=batch_size, **({"epochs": epochs} if free else {})))
    batch_size = max(1, kept // 4)
    return spec if chosen <= batch_size else resolve(asked.replace(batch_size=batch_size))


def _recipe_name(config: TrainConfig) -> str:
    """What the recipe of ``config`` is listed under."""
    if not is_own(config.data):
        return config.data
    table = config.data.partition(":")[0] == TableEncoder.kind
    if not table or config.model not in (None, *LINEAR):
        return OWN
    numbers = config.schema is not None and load_schema(config.schema).targets
    return NUMBERS if numbers or config.loss not in (None, "cross-entropy") else TABLE


def delta_of(config: TrainConfig) -> float | None:
    """The delta of ``config``, or that of its public data set; None for a run without noise that has none."""
    delta = config.delta
    if delta is None and config.noise_multiplier != 0:
        delta = DELTAS.get(config.data)
        if delta is None:
            require_delta(config)
    return delta


def _required_budget(config: TrainConfig) -> str | None:
    """The budget of the data: the one that the schema names, else the one that is given. Reads the schema only."""
    named = None if config.schema is None else load_schema(config.schema).budget
    if config.schema is None or named is None:
        return config.budget
    place = Path(config.schema).parent / named
    if config.budget is not None and os.path.realpath(config.budget) != os.path.realpath(place):
        raise InputError(
            f"`budget` is {config.budget}, and the schema {config.schema} names {named}.",
            why="All runs on the data must be counted in one budget.",
            fix="Leave `budget` out: that of the schema is used.",
        )
    return str(place) if config.budget is None else config.budget


def _default_features(draft: Draft, method: Method) -> str | None:
    """The features where none are named: those of the data set, or what a model of texts reads."""
    if draft.model is not None and draft.model.startswith(PREFIX):
        return HubModel.of(draft.model).tokens
    if draft.model is not None and draft.model.partition(":")[0] == BYTE_MODEL:
        return Bytes.name
    text = not is_own(draft.data) and find(draft.data).text
    if draft.data not in DEFAULT_FEATURES or (draft.model is not None and not text):
        return None
    equalised = isinstance(method, AdaDp) and draft.epsilon is not None  # its noise is a share of epsilon
    return DEFAULT_FEATURES[draft.data] + (f"+{EQUALISED}" if equalised else "")


def _with_bounds(stages: tuple[Stage, ...], config: TrainConfig) -> tuple[Stage, ...]:
    """``stages`` after one that releases the bounds of columns, where the schema asks for it. Reads the schema only."""
    positions = private_positions(config.schema) if config.schema is not None else ()
    wanted = Bounds(positions, bins=BINS, unit=True) if positions else None
    given = [stage for stage in stages if isinstance(stage, Bounds)]
    if given and ([replace(stage, noise_multiplier=None) for stage in given] != [wanted] or stages[0] is not given[0]):
        raise InputError(
            "The features release bounds of other columns than the schema asks for.",
            fix="Leave bounds out of the features: it is added where the schema asks for private bounds.",
        )
    return stages if given or wanted is None else (wanted, *stages)


def _fill_sizes(draft: Draft, recipe: Recipe, stages: tuple[Stage, ...]) -> None:
    """Numbers for the sizes that are ``auto``, or that the recipe leaves to be chosen."""
    if _runs_as_long_as_it_can(draft):
        draft.epochs = AUTO
        return
    if recipe.auto and draft.epsilon is not None and draft.delta is not None:
        if draft.epochs is None and draft.steps is None:
            draft.steps = AUTO
        if draft.batch_size is None and draft.batch_size_schedule is None and draft.steps is not None:
            draft.batch_size = AUTO
    if AUTO not in (draft.batch_size, draft.steps):
        return
    records = public_records(draft)
    if draft.epsilon is None or draft.delta is None or records is None:
        raise _nothing_to_choose_from(draft, records)
    if draft.steps == AUTO:
        draft.steps = auto_steps(draft.epsilon)
    if draft.batch_size != AUTO:
        return
    if not isinstance(draft.steps, int):
        raise InputError(
            "`batch_size` is auto, and `steps` is not given.", fix="Pass `steps` too, as a number or auto."
        )
    draft.batch_size = auto_batch_size(
        epsilon=draft.epsilon,
        delta=draft.delta,
        records=records,
        steps=draft.steps,
        before=tuple(stage.known_noise_multiplier for stage in released_stages(stages)),
        accountant=draft.accountant,
    )


def _nothing_to_choose_from(config: Draft, records: int | None) -> InputError:
    """Names what is missing: nobody need have written auto, as recipes choose sizes too."""
    needed = {"epsilon": config.epsilon, "delta": config.delta, "records": records}
    missing = " and ".join(f"`{name}`" for name, value in needed.items() if value is None)
    sizes = " and ".join(f"`{name}`" for name in ("batch_size", "steps") if getattr(config, name) == AUTO)
    return InputError(
        f"The size of the run ({sizes}) is to be chosen, and without {missing} there is nothing to choose it from.",
        why="It follows from a target epsilon, delta and a public number of records.",
        fix=f"Pass {missing}, or numbers as {sizes}.",
    )


def _runs_as_long_as_it_can(config: Draft) -> bool:
    """Whether noise and budget are given in full, so that the length follows from them."""
    budget = config.epsilon is not None or config.rho is not None
    if not budget or config.noise_schedule is None or config.steps is not None or config.epochs not in (None, AUTO):
        return False
    noise = parse_noise(config.noise_schedule)
    return isinstance(noise, ValidationDecay) or noise.unknown is None


def public_records(config: TrainConfig | Draft) -> int | None:
    """The number of records, if it is public: as it was given, or that of the catalogue. Reads no data."""
    return config.records or (None if is_own(config.data) else find(config.data).train_records)


def training_records(config: TrainConfig) -> int:
    """The public number of records that are trained on: without those kept aside for looks. Reads no data."""
    records = public_records(config)
    if records is None:
        raise InputError(
            f"The number of records in {config.data} is not given.",
            why="Planning reads no data, and the noise follows from the share of the records that is in a batch.",
            fix="Pass `records`, a public number.",
        )
    kept = config.kept_aside(records)
    if kept >= records:
        raise InputError(
            f"{kept} validation records are to be kept aside, and there are {records}.",
            fix="Keep fewer aside: the others are trained on.",
        )
    return records - kept


def _fill_recipe(draft: Draft, recipe: Recipe) -> None:
    """The recipe's settings where none are given."""
    if draft.model is None:
        draft.model = recipe.model
    records = public_records(draft)
    if recipe.by_records and records is not None:
        batch_size, epochs = table_size(max(1, records - (draft.validation or 0)))
        recipe = replace(recipe, batch_size=batch_size, epochs=epochs)
    if draft.epochs is None and draft.steps is None:
        draft.epochs = recipe.epochs
    if draft.batch_size is None and _wants_start(draft, "batch_size_schedule"):
        draft.batch_size = _batch_of(recipe, records)
    if draft.clip_norm is None and is_name(draft.clip_rule) and _wants_start(draft, "clip_norm_schedule"):
        draft.clip_norm = recipe.clip_norm
    if draft.optimizer is None:
        draft.optimizer = recipe.optimizer
    if draft.lr is not None or not _wants_start(draft, "lr_schedule"):
        return
    if draft.optimizer != recipe.optimizer:
        raise InputError(
            f"The optimizer {draft.optimizer} needs a learning rate.",
            why=f"The recipe for this data and these features has one for {recipe.optimizer} only.",
            fix="Pass `lr` (or `lr_schedule`), or leave the `optimizer` out.",
        )
    draft.momentum = draft.momentum or recipe.momentum
    draft.ema = draft.ema or recipe.ema
    length = _epochs(draft) if recipe.decay and draft.lr_schedule is None else None
    if length is None:
        draft.lr = recipe.lr
    else:
        draft.lr_schedule = f"poly:s0={recipe.lr!r},k=1,s_end={recipe.lr / 100:g},period={length}"


def _batch_of(recipe: Recipe, records: int | None) -> int:
    """The recipe's batch; of few records a quarter, so that an epoch has several steps."""
    return recipe.batch_size if records is None else max(1, min(recipe.batch_size, records // 4))


def _wants_start(config: Draft, schedule: str) -> bool:
    """Whether a plain number has a place beside ``schedule``: it is not given, or leaves its beginning open."""
    text = getattr(config, schedule)
    return text is None or leaves_start_open(schedule, text)


def _epochs(config: Draft) -> int | None:
    """How many epochs the run has, if that is known without the data."""
    if isinstance(config.epochs, int):
        return config.epochs
    records = public_records(config)
    if records is None or (config.epochs == AUTO and config.batch_size == AUTO):
        return None
    if isinstance(config.steps, int) and isinstance(config.batch_size, int) and config.batch_size_schedule is None:
        return -(-config.steps // -(-records // config.batch_size))
    spec = RunSpec.of(TrainConfig(**vars(config)))  # batches that change: only a plan counts their epochs
    return plan_of(spec, records - spec.config.kept_aside(records)).epochs


def _with_defaults(recipe: Recipe, method: Method) -> Recipe:
    """``recipe`` with what belongs to the method: a step rule of its own, and the rate that goes with it."""
    own = method.defaults
    if own.optimizer is not None and own.lr is not None:
        recipe = replace(recipe, optimizer=own.optimizer, lr=own.lr, decay=False, momentum=0.0, ema=None)
    return recipe if own.clip_norm is None else replace(recipe, clip_norm=own.clip_norm)


def _refuse_own_settings(config: TrainConfig) -> None:
    own = ("target", "schema", "test_data", "validation_data", "input_bound", "groups", "loss", "unit", "rows_per_unit")
    for name in own:
        if getattr(config, name) is not None:
            raise InputError(
                f"`{name}` was given, and {config.data} is a data set of the catalogue.",
                why="It would be ignored: the catalogue says what its columns and test records are.",
                fix=f"Leave `{name}` out, or name a file of your own, such as table:people.csv.",
            )
