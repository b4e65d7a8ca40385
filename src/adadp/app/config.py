"""Everything that defines a training run, as one frozen record: dataclass <-> TOML <-> flags of ``adadp train``.

A configuration is checked when it is made, so that a run that cannot be private, or means two things at once, is
refused before it has looked at any data. Nothing here reads data: what depends on it (a default for ``batch_size``, the
number of steps) is filled in by the plan. Names that other rooms own (data, model, method, clip rule) are checked
there.

    given                                               becomes
    ==================================================  ===========================================================
    several of epsilon, rho and noise_multiplier        an error: one is the target, the others follow from it
    none of them, and no noise_schedule with s0         an error: nothing says how private the run is
    noise_multiplier = 0                                an error unless ``allow_nonprivate``; then delta may be left out
    no delta                                            that of a public data set; otherwise an error: it is
                                                        never computed from the data
    both epochs and steps                               an error; neither: the plan's default
    lr and lr_schedule, and the same for clip_norm,     an error, unless the schedule leaves ``s0`` open, which the
    batch_size and noise_multiplier (noise_schedule)    plain number then is
    momentum with an optimizer that has none            an error: an option is never swallowed
    batch_size larger than records                      an error: no record can be sampled with probability above 1
    an int where a float is meant, 3.0 for a count      accepted, and kept in one spelling, so that digests agree
    ema outside of (0, 1)                               an error: it is the share an average keeps
    lr or weight_decay beyond 1e6                       an error: no parameter would stay finite
    a NaN, an infinity, a bool as a number              an error that names the field
    an unknown key in TOML or in ``replace``            an error that names the nearest known key
"""

from __future__ import annotations

import dataclasses
import os
import re
import shlex
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import tomli_w

from adadp import checks
from adadp.app.rates import learning_rate, weight_decay
from adadp.app.schedules import ValidationDecay
from adadp.app.texts.schedules import OpenSchedule, parse_noise, parse_open
from adadp.certificate.digests import json_digest
from adadp.errors import InputError
from adadp.schedules import number_text

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

OPTIMIZERS = {"sgd": True, "adam": False, "adamw": False, "adambc": False, "rms": False, "python": False}
"""Name of an optimizer -> whether it takes ``momentum``; ``python`` is one that a caller of ``fit`` made."""

ARITHMETICS = ("fast", "exact")
MULTIPLYING = ("sgd", "adamw", "adambc")
"""Optimizers whose step multiplies a parameter by 1 - lr * weight_decay; the others divide what they add."""

SAMPLINGS = ("poisson", "fixed", "reshuffle")
NEIGHBOURS = ("add-remove", "replace-one", "zero-out")
ACCOUNTANTS = ("pld", "rdp", "moments", "strong", "zcdp", "zcdp-sampled", "strong-published", "theorem1")

AUTO = "auto"
CHOSEN = ("steps", "batch_size", "epochs")
"""Fields that may be ``auto``."""

EXCLUSIVE = (("epsilon", "noise_multiplier"), ("epsilon", "rho"), ("rho", "noise_multiplier"), ("epochs", "steps"))
"""Pairs of fields of which at most one is given."""

SCHEDULES = {
    "lr_schedule": "lr",
    "clip_norm_schedule": "clip_norm",
    "batch_size_schedule": "batch_size",
    "noise_schedule": "noise_multiplier",
}
"""A schedule -> the plain number it stands for. Both are given only where the schedule leaves its ``s0`` open."""

_COUNTED = ("reshuffle", "add-remove")
"""The sampling and neighbours for which the number of records must be known and each may be one more or less."""

_DEVICE = re.compile(r"cpu|cuda(:\d+)?")
_LARGEST_SEED = 2**63 - 1  # the largest integer every TOML reader must keep

_POSITIVE = {
    "epsilon": "It is the privacy loss the run may spend; at 0 nothing could be learned.",
    "rho": "It is the privacy loss the run may spend; at 0 nothing could be learned.",
    "clip_norm": "It bounds what one record contributes; at 0 nothing would be learned.",
}
_COUNTS = {
    "epochs": (1, ""),
    "steps": (1, ""),
    "batch_size": (1, "It is the expected number of records in a step, and the divisor of their sum."),
    "memory_limit_mb": (1, ""),
    "threads": (1, ""),
    "evaluate_every": (1, "It is a number of epochs."),
    "checkpoint_every": (1, "It is a number of steps."),
    "validation": (1, "So many of the training records are kept aside for looks."),
    "records": (1, "It stands for the number of records where the exact one must stay hidden."),
    "searched": (0, "It is the number of settings tried outside of this run."),
}


@dataclass(frozen=True)
class TrainConfig:
    """One training run. ``None`` leaves the choice to the plan, except where the field says what it means."""

    data: str
    """Name of a data set, or a file of your own: ``table:FILE``, ``npz:FILE``, ``images:DIR``."""
    target: str | None = None
    """For a table: the column to learn."""
    schema: str | None = None
    """For data of your own: the file that declares what is public about it."""
    test_data: str | None = None
    """For data of your own: public records to measure the accuracy on."""
    input_bound: str | None = None
    """For arrays of your own: the range their numbers are brought into, ``5`` for [-5, 5] or ``0,255``; None is
    [-1e6, 1e6]."""
    features: str | None = None
    """What happens to a record before the network, such as ``scatter`` or ``pca:dim=60,noise_multiplier=16``; stages
    are joined by ``+``, and ``none`` is none. None: the default for the data, or nothing where ``model`` is given."""
    model: str | None = None
    """Name of the network, or ``module:function`` of your own; None: the default for the data and features."""
    method: str = "adadp"
    """How a batch becomes a gradient, such as ``adadp`` or ``dpsgd``; options follow a colon."""
    epsilon: float | None = None
    """Target; the noise follows from it. One of ``epsilon``, ``rho`` and ``noise_multiplier``."""
    rho: float | None = None
    """Target in zero-concentrated differential privacy instead, for reshuffled and full-batch runs."""
    noise_multiplier: float | None = None
    """Noise multiplier; epsilon follows from it. 0 is a run without privacy."""
    delta: float | None = None
    """Required unless ``noise_multiplier`` is 0; a public data set has a default."""
    noise_schedule: str | None = None
    """The noise over the epochs: ``exp:k=0.1``, scaled so that the run lands on the budget; ``exp:s0=10``, whose k is
    solved; ``exp:s0=10,k=0.01``, which runs as long as the budget lasts (or, without one, as it is);
    ``validation:s0=10,k=0.7``, which follows looks at validation records."""
    epochs: int | str | None = None
    """``auto``: as many as the budget allows."""
    steps: int | str | None = None
    """``auto``: chosen from epsilon."""
    batch_size: int | str | None = None
    """Expected number of records in a step; ``auto``: chosen from epsilon, delta and the number of records."""
    batch_size_schedule: str | None = None
    """The same over the epochs, for example ``piecewise:0=600,20=1200``."""
    clip_norm: float | None = None
    clip_norm_schedule: str | None = None
    """The clip bound over the epochs; with a clip rule in full text it is a factor, and begins with 1."""
    keep_noise: bool | None = None
    """While the clip bound changes the noise keeps its standard deviation, and its multiplier changes; if not, the
    multiplier stays and the noise follows the bound. None: as the method does it."""
    clip_rule: str = "flat"
    lr: float | None = None
    lr_schedule: str | None = None
    """The rate over the epochs, for example ``poly:s0=0.1,k=1,s_end=0.052,period=10``; kept as ``str`` writes it."""
    optimizer: str | None = None
    """None: the default for the data and features."""
    momentum: float = 0.0
    weight_decay: float = 0.0
    ema: float | None = None
    """The share an exponential average of the weights keeps in a step, such as 0.99: then the average is what is
    judged, certified and saved. None: the weights of the last step."""
    sampling: str = "poisson"
    neighbours: str | None = None
    """Between which data sets the guarantee holds; None: what the way of sampling proves best."""
    accountant: str = "pld"
    seed: int | None = None
    """None: secure randomness. With a seed whoever reads it can compute the noise: reproducible, not secure."""
    arithmetic: str | None = None
    """How the sum of a batch is computed. None: fast, in float32 with an allowance for rounding that was measured;
    ``exact``: record by record in whole numbers, slower, with a bound that is proved."""
    chunk_size: int | str = "auto"
    """Records whose gradients are held at once."""
    memory_limit_mb: int | None = None
    device: str = "cpu"
    threads: int | None = None
    evaluate_every: int | None = None
    """Epochs between two looks at the test set."""
    checkpoint_every: int | None = None
    """Steps between two checkpoints."""
    tensorboard: bool | None = None
    """Whether what is logged is also written for TensorBoard, into the folder of the run."""
    validation: int | None = None
    """So many of the training records are kept aside for the looks of a validation schedule."""
    validation_public: bool | None = None
    """Whether these records are public; if not, every look has noise and is charged."""
    validation_data: str | None = None
    """For data of your own: a file with public validation records."""
    records: int | None = None
    """A public number used in place of the number of records, where the exact one must stay hidden."""
    allow_nonprivate: bool = False
    searched: int = 0
    """Settings tried outside of this run and not charged; shown on the certificate."""

    def __post_init__(self) -> None:
        for name, value in {**_names(self), **_numbers(self)}.items():
            object.__setattr__(self, name, value)
        for name in ("allow_nonprivate", "validation_public", "keep_noise", "tensorboard"):
            if not isinstance(getattr(self, name), (bool, bool if name == "allow_nonprivate" else type(None))):
                raise InputError(
                    f"{name} must be true or false, got {getattr(self, name)!r}.", fix="Pass it as a bool."
                )
        object.__setattr__(self, "validation_public", self.validation_public or None)
        object.__setattr__(self, "tensorboard", self.tensorboard or None)
        _check_exclusive(self)
        _check_schedules(self)
        _check_rates(self)
        _check_privacy(self)
        _check_validation(self)
        if self.momentum and self.optimizer is not None and not OPTIMIZERS[self.optimizer]:
            raise InputError(
                f"momentum is {self.momentum:g}, and the optimizer {self.optimizer} takes none.",
                why="It would be ignored.",
                fix="Leave momentum out, or use the optimizer sgd.",
            )
        if isinstance(self.batch_size, int) and self.records is not None and self.batch_size > self.records:
            raise InputError(
                f"batch_size must be at most records, got batch_size={self.batch_size} and records={self.records}.",
                why="A record is sampled with probability batch_size / records, which must not pass 1.",
                fix="Pass a smaller batch_size, or a larger public number of records.",
            )

    def as_dict(self) -> dict[str, Any]:
        """The fields that are given, by name; those that are None are left out."""
        return {name: value for name, value in dataclasses.asdict(self).items() if value is not None}

    def to_toml(self) -> str:
        """The configuration as TOML that ``from_toml`` reads back as an equal one."""
        return tomli_w.dumps(self.as_dict())

    @classmethod
    def from_toml(cls, source: str | os.PathLike[str], **overrides: Any) -> TrainConfig:
        """The configuration written in ``source``: TOML text, or (a ``Path``) the file that holds it.

        ``overrides`` win over it, as in ``replace``; what the file leaves out they may give.
        """
        where = "the text" if isinstance(source, str) else str(source)
        try:
            text = source if isinstance(source, str) else Path(source).read_text(encoding="utf-8-sig")
            values = tomllib.loads(text)
        except OSError as error:
            raise InputError(
                f"The configuration {where} cannot be read: {error.strerror}.", fix="Check the path."
            ) from error
        except ValueError as error:  # not TOML, or not UTF-8
            raise InputError(
                f"The configuration in {where} is not TOML: {error}.",
                fix='Write one field per line, like epsilon = 2.0 or data = "mnist". A file is given as a Path.',
            ) from error
        return cls.from_dict({**values, **_displaced(values, overrides), **overrides})

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> TrainConfig:
        """The configuration with these fields; unknown and missing ones are named."""
        _check_known(values)
        if "data" not in values:
            raise InputError("data must be given.", why="It names the data set.", fix='Add data = "mnist", say.')
        return cls(**values)

    def replace(self, **overrides: Any) -> TrainConfig:
        """The configuration with ``overrides``: how flags win over a file. Pass only the flags that were given.

        An override also removes the other field of its pair: ``epsilon`` given over ``noise_multiplier`` replaces it.
        """
        _check_known(overrides)
        return dataclasses.replace(self, **{**_displaced(vars(self), overrides), **overrides})

    def digest(self) -> str:
        """SHA-256 of the configuration. Equal configurations, and only those, have equal digests."""
        return json_digest(self.as_dict())

    def as_command(self) -> str:
        """The shell command that runs this configuration again; fields at their default are left out."""
        words = ["adadp", "train"]
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if value == field.default:
                continue
            words.append(("--no-" if value is False else "--") + field.name.replace("_", "-"))
            if not isinstance(value, bool):
                words.append(str(value))
        return shlex.join(words)


def _names(config: TrainConfig) -> dict[str, str | int | None]:
    """The fields that are text, checked."""
    named: dict[str, str | int | None] = {
        name: _text(name, getattr(config, name)) for name in ("data", "method", "clip_rule")
    }
    for name in ("model", "features", "target", "schema", "test_data", "validation_data"):
        if getattr(config, name) is not None:
            named[name] = _text(name, getattr(config, name))
    if config.input_bound is not None:
        low, high = checks.input_bound(config.input_bound)
        named["input_bound"] = number_text(high) if low == -high else f"{number_text(low)},{number_text(high)}"
    for name in SCHEDULES:
        if getattr(config, name) is not None:
            named[name] = str(_schedule(name, getattr(config, name)))
    if config.neighbours is not None:
        named["neighbours"] = _one_of("neighbours", config.neighbours, NEIGHBOURS)
    if config.optimizer is not None:
        named["optimizer"] = _one_of("optimizer", config.optimizer, OPTIMIZERS)
    named["sampling"] = _one_of("sampling", config.sampling, SAMPLINGS)
    named["accountant"] = _one_of("accountant", config.accountant, ACCOUNTANTS)
    if config.arithmetic is not None:
        arithmetic = _one_of("arithmetic", config.arithmetic, ARITHMETICS)
        named["arithmetic"] = arithmetic if arithmetic == "exact" else None
    device = named["device"] = _text("device", config.device)
    if not _DEVICE.fullmatch(device):
        why = "mps has no double precision, in which sums of gradients are kept." if device == "mps" else ""
        raise InputError(f"Unknown device {device!r}.", why=why, fix="Use cpu, cuda or cuda:0 (a number).")
    if config.chunk_size != "auto":
        if isinstance(config.chunk_size, str):
            raise InputError(f"Unknown chunk_size {config.chunk_size!r}.", fix='Pass a number of records, or "auto".')
        named["chunk_size"] = checks.count("chunk_size", config.chunk_size, why="It is a number of records.")
    return named


def _numbers(config: TrainConfig) -> dict[str, float | int]:
    """The fields that are numbers and given, checked."""
    given = {name: value for name, value in vars(config).items() if value is not None}
    numbers: dict[str, float | int] = {}
    for name, why in _POSITIVE.items():
        if name in given:
            numbers[name] = checks.positive(name, given[name], why=why)
    for name, (minimum, why) in _COUNTS.items():
        if name in given and not (name in CHOSEN and given[name] == AUTO):
            numbers[name] = checks.count(name, given[name], minimum=minimum, why=why)
    if "delta" in given:
        numbers["delta"] = checks.delta(given["delta"])
    if "noise_multiplier" in given:
        numbers["noise_multiplier"] = (
            checks.non_negative("noise_multiplier", given["noise_multiplier"], why="It is a standard deviation.") + 0.0
        )
    if "ema" in given:
        numbers["ema"] = _ema(given["ema"])
    if "lr" in given:
        numbers["lr"] = learning_rate("lr", given["lr"])
    numbers["weight_decay"] = weight_decay(config.weight_decay) + 0.0  # -0.0 becomes 0.0
    momentum = checks.non_negative("momentum", config.momentum) + 0.0
    if momentum >= 1:
        raise InputError(
            f"momentum must be below 1, got {momentum:g}.",
            why="It is the share of the last step that is kept; from 1 on the steps grow without end.",
            fix="Pass a momentum in [0, 1), for example 0.9.",
        )
    numbers["momentum"] = momentum
    if "seed" in given:
        seed = checks.count("seed", given["seed"], minimum=0, why="It seeds a random generator.")
        if seed > _LARGEST_SEED:
            raise InputError(
                f"seed must be below 2^63, got {seed}.",
                why="Larger numbers do not survive TOML.",
                fix="Pass a smaller seed.",
            )
        numbers["seed"] = seed
    return numbers


def _ema(value: object) -> float:
    why = "It is the share of an average of the weights that a step keeps: at 0 there is no average, at 1 no weight."
    number = checks.non_negative("ema", value, why=why)
    if not 0 < number < 1:
        raise InputError(
            f"ema must lie strictly between 0 and 1, got {number:g}.",
            why=why,
            fix="Pass for example 0.99, or leave it out to keep the weights of the last step.",
        )
    return number


def _check_exclusive(config: TrainConfig) -> None:
    for one, other in EXCLUSIVE:
        if getattr(config, one) is not None and getattr(config, other) is not None:
            raise InputError(
                f"Both {one} and {other} are given.",
                why="They settle the same thing, and would contradict each other.",
                fix=f"Leave out {one} or {other}.",
            )


def _displaced(values: Mapping[str, Any], overrides: Mapping[str, Any]) -> dict[str, None]:
    """The fields of ``values`` that ``overrides`` make void: the other one of a pair, a number beside its schedule."""
    removed: dict[str, None] = {}
    for pair in EXCLUSIVE:
        given = [name for name in pair if overrides.get(name) is not None]
        if len(given) == 1:
            removed.update((name, None) for name in pair if name != given[0])
    for schedule, plain in SCHEDULES.items():
        asked = [overrides.get(name) is not None for name in (schedule, plain)]
        text = overrides[schedule] if asked[0] else values.get(schedule)
        if any(asked) and not all(asked) and text is not None and not leaves_start_open(schedule, text):
            removed[plain if asked[0] else schedule] = None
    return removed


def _schedule(name: str, text: str) -> OpenSchedule | ValidationDecay:
    """The schedule in a field; only the noise may leave ``k`` open, or follow looks."""
    if name == "noise_schedule":
        return parse_noise(text)
    found = parse_open(text)
    if found.unknown == "k":
        raise InputError(
            f"{name} leaves k open.", why="Only the noise has a budget that k can be solved for.", fix="Give k."
        )
    return found


def leaves_start_open(name: str, text: str | None) -> bool:
    """Whether the schedule in the field ``name`` leaves to a plain number what it begins with."""
    found = None if text is None else _schedule(name, text)
    return isinstance(found, OpenSchedule) and found.unknown == "s0"


def _check_schedules(config: TrainConfig) -> None:
    for name, plain in SCHEDULES.items():
        text, number = getattr(config, name), getattr(config, plain)
        if text is not None and number is not None and not leaves_start_open(name, text):
            raise InputError(
                f"Both {plain} and {name} are given.",
                why="They settle the same thing, and would contradict each other.",
                fix=f"Leave out {plain}, or s0 in {name}: it then begins with the number beside it.",
            )
    budget = config.epsilon is not None or config.rho is not None
    noise = None if config.noise_schedule is None else parse_noise(config.noise_schedule)
    whole = isinstance(noise, ValidationDecay) or (noise is not None and noise.unknown is None)
    if config.epochs == AUTO and not (budget and whole):
        raise InputError(
            "epochs is auto, and nothing settles how many there are.",
            why="They are as many as the budget allows, for which the noise must be given too.",
            fix="Pass epsilon or rho and a noise_schedule with s0 and k, like exp:s0=10,k=0.01; or a number of epochs.",
        )
    if noise is None:
        return
    length = config.steps is not None or config.epochs not in (None, AUTO)
    if config.noise_multiplier == 0:
        raise InputError("noise_multiplier is 0, and noise_schedule is given.", fix="Leave one of them out.")
    if isinstance(noise, ValidationDecay):
        if not budget:
            raise InputError(
                "A validation schedule is given without a budget.",
                why="Its noise is not known ahead, so only a budget fixed in advance can be certified.",
                fix="Pass epsilon (with delta), or rho.",
            )
    elif noise.unknown == "k" and not budget:
        raise InputError("noise_schedule leaves k open, and there is no budget to solve it for.", fix="Give k.")
    elif budget and length and noise.unknown is None and not noise.relative:
        raise InputError(
            f"The noise ({config.noise_schedule}), the length and the budget are all given.",
            why="Each follows from the other two.",
            fix="Leave out s0 or k in noise_schedule, or the length (epochs is then as long as the budget lasts).",
        )


def _check_rates(config: TrainConfig) -> None:
    """The largest learning rate of the run, as far as it is known, and what weight decay makes of it."""
    rate = config.lr
    if config.lr_schedule is not None and (
        rate is not None or not leaves_start_open("lr_schedule", config.lr_schedule)
    ):
        schedule = parse_open(config.lr_schedule)
        rate = learning_rate("lr_schedule", (schedule.known() if rate is None else schedule.closed(rate)).highest)
    if rate is not None and config.optimizer in MULTIPLYING and rate * config.weight_decay > 1:
        raise InputError(
            f"The learning rate times weight_decay is {rate * config.weight_decay:g}, above 1.",
            why=f"A step of {config.optimizer} multiplies every parameter by 1 minus that: the parameters would change "
            "sign in every step, and could grow without end.",
            fix="Pass a smaller weight_decay or lr.",
        )


def _check_validation(config: TrainConfig) -> None:
    noise = None if config.noise_schedule is None else parse_noise(config.noise_schedule)
    named = config.validation is not None or config.validation_data is not None
    if not isinstance(noise, ValidationDecay):
        if named or config.validation_public is not None:
            raise InputError(
                "Validation records are named, and the noise schedule is not one that looks at them.",
                why="They would be kept aside for nothing.",
                fix="Pass noise_schedule like validation:s0=10,k=0.7, or leave them out.",
            )
        return
    if config.validation is not None and config.validation_data is not None:
        raise InputError("Both validation and validation_data are given.", fix="Leave one of them out.")
    public = config.validation_data is not None or bool(config.validation_public)
    if config.arithmetic == "exact" and not public:
        raise InputError(
            "The arithmetic is exact, and private validation records are looked at.",
            why="Whether a record is answered right is computed in batches, where rounding can depend on the others.",
            fix="Use public validation records, another noise schedule, or fast arithmetic.",
        )
    if config.validation is not None and not public and noise.look is None:
        raise InputError(
            f"{config.validation} private records are to be looked at without noise.",
            why="The noise of the run would follow from them: what is learnt in a look must be paid for.",
            fix="Give every look a noise multiplier, like validation:s0=10,k=0.7,look=20 (the standard deviation of "
            "the number of right answers), or say validation_public if the records are public.",
        )
    if config.validation is not None and not public and (config.sampling, config.neighbours) == _COUNTED:
        raise InputError(
            "Private validation records are kept aside of reshuffled batches, for add-remove neighbours.",
            why="Each record is kept aside by a coin of its own then, and how many remain to be dealt into batches is "
            "secret.",
            fix="Use zero-out neighbours, or Poisson sampling, or public validation records.",
        )
    if public and noise.look is not None:
        raise InputError(
            "The validation records are public, and look gives noise for private ones.",
            why="It would be ignored: a look at public records is free.",
            fix="Leave look out, or validation_public.",
        )


def _check_privacy(config: TrainConfig) -> None:
    targets = (config.epsilon, config.rho, config.noise_multiplier)
    schedule = config.noise_schedule
    if targets == (None, None, None) and (schedule is None or leaves_start_open("noise_schedule", schedule)):
        raise InputError(
            "None of epsilon, rho and noise_multiplier is given.",
            why="One of them says how private the run is; the others follow from it.",
            fix="Pass epsilon (a target), noise_multiplier or a noise_schedule with s0.",
        )
    if config.noise_multiplier == 0 and not config.allow_nonprivate:
        raise InputError(
            "noise_multiplier is 0.",
            why="A run without noise is not private, whatever else it does.",
            fix="Pass noise_multiplier > 0, or allow_nonprivate if that is what you want; the certificate will say it.",
        )


def require_delta(config: TrainConfig | SimpleNamespace) -> None:
    """Refuse a run with noise and without a delta."""
    if config.delta is None and config.noise_multiplier != 0:
        raise InputError(
            "delta must be given.",
            why="The guarantee is a pair (epsilon, delta), and a delta computed from the data would disclose its size.",
            fix="Pass a delta well below 1/N, for example 1e-5.",
        )


def _check_known(names: Iterable[str]) -> None:
    known = [field.name for field in dataclasses.fields(TrainConfig)]
    for name in names:
        if name not in known:
            raise InputError(
                f"Unknown setting {name!r}.",
                why="A setting that is ignored would be a run other than the one you asked for.",
                fix=checks.one_of(name, known),
            )


def _text(name: str, value: object) -> str:
    """Text that survives a file and a command line: not empty, and without control characters or broken Unicode."""
    if not isinstance(value, str) or not value.strip() or not value.isprintable():
        raise InputError(
            f"{name} must be printable text, got {value!r} ({type(value).__name__}).",
            fix=f"Pass the name of the {name}.",
        )
    return value


def _one_of(name: str, value: object, known: Iterable[str]) -> str:
    text = _text(name, value)
    if text not in known:
        raise InputError(f"Unknown {name} {text!r}.", fix=checks.one_of(text, known))
    return text
