"""From a configuration to a trained model: data, features and network by name, the run started or resumed."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from adadp import checks
from adadp.app.auto_size import auto_batch_size, auto_steps
from adadp.app.config import AUTO, TrainConfig, leaves_start_open, require_delta
from adadp.app.features import (
    Progress,
    Shape,
    Stage,
    extract,
    extract_both,
    fixed_first,
    parse_features,
    released_stages,
)
from adadp.app.features.private_bounds import Bounds
from adadp.app.inputs import Inputs, load_inputs
from adadp.app.owndata import is_own, private_positions
from adadp.app.recipes import DEFAULT_FEATURES, DELTAS, EQUALISED, OWN, Recipe, recipe_for
from adadp.app.runs import RunFolder
from adadp.app.schedules import ValidationDecay
from adadp.app.texts.methods import parse_method
from adadp.app.texts.schedules import parse_noise
from adadp.app.train import (
    Status,
    TrainResult,
    check_board,
    decay_of,
    plan_of,
    refuse_finished,
    refuse_large_delta,
    refuse_training_records,
    train,
    with_release_noise,
)
from adadp.app.zoo import find
from adadp.app.zoo.models import build_model
from adadp.errors import InputError
from adadp.methods import AdaDp, Method


def resolved(config: TrainConfig) -> TrainConfig:
    """``config`` with every default filled in; unknown data and methods are refused. Reads no data."""
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
    if decay_of(config) is not None and config.validation is None and config.validation_data is None:
        raise InputError(
            "The noise follows looks at validation records, and there are none.",
            fix="Say how many training records to keep aside (validation), or give public ones (validation_data).",
        )
    method = parse_method(config.method)
    filled: dict[str, object] = {"method": str(method)}
    if config.delta is None and config.noise_multiplier != 0 and config.data in DELTAS:
        filled["delta"] = DELTAS[config.data]
    if config.features is None and config.model is None and config.data in DEFAULT_FEATURES:
        equalised = isinstance(method, AdaDp) and config.epsilon is not None  # its noise is a share of epsilon
        filled["features"] = DEFAULT_FEATURES[config.data] + (f"+{EQUALISED}" if equalised else "")
    config = config.replace(**filled)
    require_delta(config)
    if own and config.records is not None:
        refuse_large_delta(config, config.records)
    stages = parse_features(config.features)
    if own:
        stages = _with_bounds(stages, config)
    config = with_release_noise(config, stages)
    recipe = _with_defaults(recipe_for(OWN if own else config.data, config.features), method)
    return _with_recipe(_with_sizes(config, recipe), recipe)


def _with_bounds(stages: tuple[Stage, ...], config: TrainConfig) -> tuple[Stage, ...]:
    """``stages`` after one that releases the bounds of columns, where the schema asks for it. Reads the schema only."""
    positions = private_positions(config.schema) if config.schema is not None else ()
    given = [stage for stage in stages if isinstance(stage, Bounds)]
    if [stage.columns for stage in given] not in ([], [positions]) or (given and stages[0] is not given[0]):
        raise InputError(
            "The features release bounds of other columns than the schema asks for.",
            fix="Leave bounds out of the features: it is added where the schema asks for private bounds.",
        )
    return stages if given or not positions else (Bounds(positions), *stages)


def _with_sizes(config: TrainConfig, recipe: Recipe) -> TrainConfig:
    """``config`` with numbers for the sizes that are ``auto``, or that the recipe leaves to be chosen."""
    if _runs_as_long_as_it_can(config):
        return config.replace(epochs=AUTO)
    if recipe.auto and config.epsilon is not None and config.delta is not None:
        if config.epochs is None and config.steps is None:
            config = config.replace(steps=AUTO)
        if config.batch_size is None and config.batch_size_schedule is None and config.steps is not None:
            config = config.replace(batch_size=AUTO)
    if AUTO not in (config.batch_size, config.steps):
        return config
    records = public_records(config)
    if config.epsilon is None or config.delta is None or records is None:
        raise _nothing_to_choose_from(config, records)
    steps = auto_steps(config.epsilon) if config.steps == AUTO else config.steps
    if config.batch_size != AUTO:
        return config.replace(steps=steps)
    if not isinstance(steps, int):
        raise InputError("batch is auto, and steps is not given.", fix="Pass steps too, as a number or auto.")
    noises = tuple(stage.known_noise_multiplier for stage in released_stages(parse_features(config.features)))
    batch_size = auto_batch_size(
        epsilon=config.epsilon,
        delta=config.delta,
        records=records,
        steps=steps,
        before=noises,
        accountant=config.accountant,
    )
    return config.replace(steps=steps, batch_size=batch_size)


def _nothing_to_choose_from(config: TrainConfig, records: int | None) -> InputError:
    """Names what is missing: nobody need have written auto, as recipes choose sizes too."""
    needed = {"epsilon": config.epsilon, "delta": config.delta, "records": records}
    missing = " and ".join(name for name, value in needed.items() if value is None)
    sizes = " and ".join(name for name in ("batch_size", "steps") if getattr(config, name) == AUTO)
    return InputError(
        f"The size of the run ({sizes}) is to be chosen, and without {missing} there is nothing to choose it from.",
        why="It follows from a target epsilon, delta and a public number of records.",
        fix=f"Pass {missing}, or numbers as {sizes}.",
    )


def _runs_as_long_as_it_can(config: TrainConfig) -> bool:
    """Whether noise and budget are given in full, so that the length follows from them."""
    budget = config.epsilon is not None or config.rho is not None
    if not budget or config.noise_schedule is None or config.steps is not None or config.epochs not in (None, AUTO):
        return False
    noise = parse_noise(config.noise_schedule)
    return isinstance(noise, ValidationDecay) or noise.unknown is None


def public_records(config: TrainConfig) -> int | None:
    """The number of records, if it is public: as it was given, or that of the catalogue. Reads no data."""
    return config.records or (None if is_own(config.data) else find(config.data).train_records)


def training_records(config: TrainConfig) -> int:
    """The public number of records that are trained on: without those kept aside for looks. Reads no data."""
    records = public_records(config)
    if records is None:
        raise InputError(
            f"The number of records in {config.data} is not given.",
            why="Planning reads no data, and the noise follows from the share of the records that is in a batch.",
            fix="Pass records, a public number.",
        )
    kept = config.validation or 0
    if kept >= records:
        raise InputError(
            f"{kept} validation records are to be kept aside, and there are {records}.",
            fix="Keep fewer aside: the others are trained on.",
        )
    return records - kept


def _with_recipe(config: TrainConfig, recipe: Recipe) -> TrainConfig:
    filled: dict[str, object] = {}
    if config.model is None:
        filled["model"] = recipe.model
    if config.epochs is None and config.steps is None:
        filled["epochs"] = recipe.epochs
    if config.batch_size is None and _wants_start(config, "batch_size_schedule"):
        filled["batch_size"] = _batch_of(recipe, public_records(config))
    if config.clip_norm is None and ":" not in config.clip_rule and _wants_start(config, "clip_norm_schedule"):
        filled["clip_norm"] = recipe.clip_norm
    if config.optimizer is None:
        filled["optimizer"] = recipe.optimizer
        rate_is_recipes = True
    else:
        rate_is_recipes = config.optimizer == recipe.optimizer
    if config.lr is None and _wants_start(config, "lr_schedule"):
        if not rate_is_recipes:
            raise InputError(
                f"The optimizer {config.optimizer} needs a learning rate.",
                why=f"The recipe for this data and these features has one for {recipe.optimizer} only.",
                fix="Pass lr (or lr_schedule), or leave the optimizer out.",
            )
        epochs = _epochs(config.replace(**filled)) if recipe.decay and config.lr_schedule is None else None
        if epochs is not None:
            filled["lr_schedule"] = f"poly:s0={recipe.lr!r},k=1,s_end={recipe.lr / 100:g},period={epochs}"
        else:
            filled["lr"] = recipe.lr
    return config.replace(**filled)


def _batch_of(recipe: Recipe, records: int | None) -> int:
    """The recipe's batch; of few records a quarter, so that an epoch has several steps."""
    return recipe.batch_size if records is None else max(1, min(recipe.batch_size, records // 4))


def with_fitting_batch(asked: TrainConfig, config: TrainConfig, records: int) -> TrainConfig:
    """``config``, to which ``asked`` was resolved; if it got a default batch that is much for ``records``, a smaller
    one.

    Only where the number of records is not given, and so disclosed: else the batch has been chosen by the public one.
    """
    if asked.batch_size is not None or not isinstance(config.batch_size, int) or public_records(asked) is not None:
        return config
    batch_size = max(1, (records - (config.validation or 0)) // 4)
    return config if config.batch_size <= batch_size else resolved(asked.replace(batch_size=batch_size))


def _wants_start(config: TrainConfig, schedule: str) -> bool:
    """Whether a plain number has a place beside ``schedule``: it is not given, or leaves its beginning open."""
    text = getattr(config, schedule)
    return text is None or leaves_start_open(schedule, text)


def _epochs(config: TrainConfig) -> int | None:
    """How many epochs the run has, if that is known without the data."""
    if isinstance(config.epochs, int):
        return config.epochs
    records = public_records(config)
    if records is None or (config.epochs == AUTO and config.batch_size == AUTO):
        return None
    if isinstance(config.steps, int) and isinstance(config.batch_size, int) and config.batch_size_schedule is None:
        return -(-config.steps // -(-records // config.batch_size))
    return plan_of(config, records - (config.validation or 0)).epochs


def _with_defaults(recipe: Recipe, method: Method) -> Recipe:
    """``recipe`` with what belongs to the method: a step rule of its own, and the rate that goes with it."""
    own = method.defaults
    if own.optimizer is not None and own.lr is not None:
        recipe = replace(recipe, optimizer=own.optimizer, lr=own.lr, decay=False)
    return recipe if own.clip_norm is None else replace(recipe, clip_norm=own.clip_norm)


def start(
    config: TrainConfig,
    out: str | os.PathLike[str] | None = None,
    *,
    watch: Callable[[Status], None] | None = None,
    progress: Progress | None = None,
) -> TrainResult:
    """Train what ``config`` describes; with ``out``, in a folder of its own."""
    check_board(config, out)
    found = resolved(config)
    records = prepared(found, progress)
    return run_on(records, with_fitting_batch(config, found, len(records.train[0])), out, watch=watch)


def resume(
    out: str | os.PathLike[str],
    *,
    watch: Callable[[Status], None] | None = None,
    progress: Progress | None = None,
) -> TrainResult:
    """Go on with the run in the folder ``out``."""
    folder = RunFolder.open(out)
    refuse_finished(folder)
    config = resolved(folder.config)
    return run_on(prepared(config, progress), config, out, resume=True, watch=watch)


@dataclass(frozen=True, eq=False)
class Prepared:
    """The records a configuration names, with the features that are known before the data in place of their values."""

    inputs: Inputs
    train: tuple[Tensor, ...]
    test: tuple[Tensor, Tensor] | None
    validation: tuple[Tensor, Tensor] | None
    released: tuple[Stage, ...]
    """The stages that are still to come: the first of them is released from the training records."""
    shape: Shape
    """The shape of a record when all stages are done."""


def prepared(config: TrainConfig, progress: Progress | None = None) -> Prepared:
    """Load the records of a resolved ``config`` and make their features."""
    if config.threads is not None:
        torch.set_num_threads(checks.count("threads", config.threads))
    own = is_own(config.data)
    inputs = load_inputs(config, own=own)
    if own:
        refuse_large_delta(config, len(inputs.train[0]))
        refuse_training_records(inputs.train, inputs.test)
        refuse_training_records(inputs.train, inputs.validation, "validation")
    stages = parse_features(config.features)
    shape = inputs.shape
    for stage in stages:
        shape = stage.output_shape(shape)
    fixed, released = fixed_first(stages)
    shown = progress if config.records is None else None  # it tells how many records there are
    alone = config.arithmetic == "exact"
    data, test = extract_both(
        fixed, inputs.train, inputs.test, key=inputs.key, device=config.device, progress=shown, alone=alone
    )
    validation = inputs.validation
    if validation is not None:
        validation = (extract(fixed, validation[0], part="validation", device=config.device), validation[1])
    return Prepared(inputs, data, test, validation, released, shape)


def run_on(
    records: Prepared,
    config: TrainConfig,
    out: str | os.PathLike[str] | None,
    *,
    resume: bool = False,
    watch: Callable[[Status], None] | None = None,
) -> TrainResult:
    """Train a resolved ``config`` on records that are at hand."""
    assert config.model is not None
    inputs = records.inputs
    model = build_model(config.model, input_shape=records.shape, classes=inputs.classes, seed=_initial_seed(config))
    return train(
        model,
        records.train,
        config,
        test=records.test,
        validation=records.validation,
        out=out,
        resume=resume,
        record_unit=inputs.record,
        notes=inputs.notes,
        encoder=inputs.encoder,
        stages=records.released,
        input_shape=inputs.shape,
        watch=watch,
    )


def _refuse_own_settings(config: TrainConfig) -> None:
    for name in ("target", "schema", "test_data", "validation_data", "input_bound"):
        if getattr(config, name) is not None:
            raise InputError(
                f"{name} was given, and {config.data} is a data set of the catalogue.",
                why="It would be ignored: the catalogue says what its columns and test records are.",
                fix=f"Leave {name} out, or name a file of your own, like --data table:people.csv.",
            )


def _initial_seed(config: TrainConfig) -> int:
    """Where the weights start is public either way: from the seed, or from fresh entropy."""
    return config.seed if config.seed is not None else int.from_bytes(os.urandom(6), "little")
