"""Everything that defines a training run, as one frozen record: dataclass <-> TOML <-> flags of ``adadp train``.

A new option is one field here, and its use. A configuration is checked when it is made, so that a run that cannot be
private, or means two things at once, is refused before it has looked at any data. Nothing here reads data: what depends
on it (a default for ``batch_size``, the number of steps) is filled in by the plan. Names that other rooms own (data,
model, method, clip rule) are checked there.

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
import math
import os
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import tomli_w

from adadp import checks, files
from adadp.app.rates import learning_rate, weight_decay
from adadp.app.schedules import ValidationDecay
from adadp.app.settings import AUTO as AUTO  # noqa: PLC0414  # who reads a configuration asks for it here
from adadp.app.settings import below, flag_of, one_of, refuse_unknown, setting, settings_of, text
from adadp.app.texts.schedules import OpenSchedule, parse_noise, parse_open
from adadp.certificate.digests import json_digest
from adadp.errors import InputError, within
from adadp.schedules import number_text

OPTIMIZERS = {"sgd": True, "adam": False, "adamw": False, "adambc": False, "rms": False, "python": False}
"""Name of an optimizer -> whether it takes ``momentum``; ``python`` is one that a caller of ``fit`` made."""

MULTIPLYING = ("sgd", "adamw", "adambc")
"""Optimizers whose step multiplies a parameter by 1 - lr * weight_decay; the others divide what they add."""

OWN_LOOP = "own-loop"
"""What stands for ``data`` in the configuration of a run that a training loop of the user's own has made."""

ARITHMETICS = ("fast", "exact")
PRECISIONS = ("float32", "bf16")
SAMPLINGS = ("poisson", "fixed", "reshuffle")
NEIGHBOURS = ("add-remove", "replace-one", "zero-out")

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


_count_from_0 = partial(checks.count, minimum=0)


def _device(name: str, value: object) -> str:
    device = text(name, value)
    if not re.fullmatch(r"cpu|cuda(:\d+)?", device):
        why = "mps has no double precision, in which sums of gradients are kept." if device == "mps" else ""
        raise InputError(f"Unknown device {device!r}.", why=why, fix="Use cpu, cuda or cuda:0 (a number).")
    return device


def _input_bound(_: str, value: object) -> str:
    low, high = checks.input_bound(value)
    return number_text(high) if low == -high else f"{number_text(low)},{number_text(high)}"


def _parsed(name: str, value: str) -> OpenSchedule | ValidationDecay:
    """The schedule in a field; only the noise may leave ``k`` open, or follow looks."""
    with within(f"`{name}`", own_names=True):
        found = parse_noise(value) if name == "noise_schedule" else parse_open(value)
    if name != "noise_schedule" and isinstance(found, OpenSchedule) and found.unknown == "k":
        raise InputError(
            f"`{name}` leaves k open.", why="Only the noise has a budget that k can be solved for.", fix="Give k."
        )
    return found


def _schedule(name: str, value: str) -> str:
    return str(_parsed(name, value))


def _numbers(name: str, value: object, *, sum_to_one: bool = False) -> str:
    """Numbers above 0 in one spelling: text with commas between them, or a list of them."""
    given = value.split(",") if isinstance(value, str) else value
    try:
        found = [checks.positive(name, float(each)) for each in given]  # type: ignore[attr-defined]
    except (TypeError, ValueError):
        found = []
    if len(found) < 2 or (sum_to_one and abs(sum(found) - 1) > 0.01):
        about = ", shares that sum to 1" if sum_to_one else ""
        raise InputError(
            f"`{name}` must be a number above 0 for each class{about}, got {value!r}.", fix="Write them as 0.95,0.05."
        )
    return ",".join(map(number_text, found))


def _threshold(name: str, value: object) -> float:
    if isinstance(value, str) or not 0 < (number := checks.positive(name, value)) < 1:
        raise InputError(
            f"`{name}` must be a number between 0 and 1 that is known ahead, got {value!r}.",
            why="A threshold that is chosen by private records tells of them, and nothing here would charge for that.",
            fix="Name a public number. The curves of the page show on public test data what other thresholds give.",
        )
    return number


def _share(name: str, value: object) -> str:
    """A share of the records as a percentage, given as that or as a number between 0 and 1."""
    text_of = value.strip() if isinstance(value, str) else value
    try:
        percent = text_of.endswith("%") if isinstance(text_of, str) else False
        share = float(text_of.rstrip("% ")) / (100 if percent else 1) if isinstance(text_of, str) else float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        share = math.nan
    if isinstance(value, bool) or not 0 < share < 1:
        raise InputError(
            f"`{name}` must be a share of the records between 0 and 1, got {value!r}.", fix="Pass 10%, or 0.1."
        )
    return f"{number_text(round(100 * share, 10))}%"


def _range(name: str, value: object) -> str:
    ends = value.split(",") if isinstance(value, str) else value
    try:
        low, high = (float(each) for each in ends)  # type: ignore[attr-defined]
    except (TypeError, ValueError):
        low, high = math.nan, math.nan
    if not (math.isfinite(low) and math.isfinite(high) and low < high):
        raise InputError(f"`{name}` must be two numbers, low below high, got {value!r}.", fix="Write them as 0,30.")
    return f"{number_text(low)},{number_text(high)}"


GROUPS = (
    "Most used", "Privacy", "Noise and clipping", "Training", "Data of your own", "Figures", "Validation", "Running"
)  # fmt: skip
"""The groups of settings, in the order they are shown in."""
most_used, privacy, noise, training, own_data, measuring, validating, running = (
    partial(setting, group=name) for name in GROUPS
)


@dataclass(frozen=True)
class TrainConfig:
    """One training run: ``settings_of(TrainConfig)`` explains the fields. ``None`` leaves the choice to the plan."""

    data: str = most_used(
        help="Data set: cancer, mnist, ... (adadp data list); or yours: table:FILE, npz:FILE, images:DIR."
    )
    epsilon: float | None = most_used(
        None, help="Target; the noise follows from it. Give one of `epsilon`, `rho` and `noise_multiplier`."
    )
    delta: float | None = most_used(
        None,
        help="Target, well below 1 / number of records.",
        unset="by data, if public",
        check=lambda _, value: checks.delta(value),
    )
    method: str = most_used("adadp", help="How a batch becomes a gradient: adadp, dpsgd, ...; options follow a colon.")
    model: str | None = most_used(
        None, help="Network: linear, mlp:1000, cnn-tanh, ..., or module:function.", unset="by data and features"
    )
    features: str | None = most_used(
        None,
        help="Before the network: none, scatter, pca:dim=60, efficientnet-lite0:size=128, ...; joined by + or &.",
        unset="by data; none if `model` is given",
    )
    epochs: int | str | None = most_used(
        None, help="Length in epochs; auto: as the budget allows.", unset="by data", auto=True
    )
    batch_size: int | str | None = most_used(
        None, help="Expected records per step; auto: by epsilon, delta and data.", unset="by data", auto=True
    )
    lr: float | None = most_used(None, help="Learning rate.", unset="by data", check=learning_rate)

    rho: float | None = privacy(None, help="Target in zCDP instead of `epsilon`, for reshuffled or full-batch runs.")
    sampling: str = privacy("poisson", help="How the records of a step are drawn.", choices=SAMPLINGS)
    neighbours: str | None = privacy(
        None, help="Which data sets the guarantee compares.", unset="by sampling", choices=NEIGHBOURS
    )
    accountant: str = privacy("pld", help="Which one certifies: pld, rdp, zcdp, ..., or module:Name.")
    arithmetic: str | None = privacy(
        None,
        help="exact: one record at a time, in whole numbers; slow, but proved with rounding.",
        unset="fast",
        choices=ARITHMETICS,
        none="fast",
    )
    seed: int | None = privacy(
        None,
        help="Makes a rehearsal: repeatable, and not private, as the seed gives the noise away.",
        unset="secure randomness",
        check=below(2**63, _count_from_0),  # the largest integer every TOML reader must keep
    )
    budget: str | None = privacy(
        None,
        help="File of the data set's budget (adadp budget), in which the run is counted.",
        unset="as the schema says",
    )
    records: int | None = privacy(None, help="A public number in place of the exact size of the data.")
    searched: int = privacy(
        0, help="Settings tried before this run and not charged; certified as such.", check=_count_from_0
    )
    allow_nonprivate: bool = privacy(
        False, help="Allow a run without privacy: `noise_multiplier` 0, or a method that is not private."
    )

    noise_multiplier: float | None = noise(
        None,
        help="Standard deviation of the noise over the bound of a record. `epsilon` then follows.",
        check=checks.non_negative,
    )
    noise_schedule: str | None = noise(
        None,
        help="Noise over the epochs: exp:k=0.1 lands on the budget; exp:s0=10 has k solved; exp:s0=10,k=0.01 runs as "
        "long as the budget lasts; validation:s0=10,k=0.7 follows validation records. Shapes: uniform, time, exp, "
        "step, poly, piecewise:0=10,20=5; start=, stop= for a window.",
        check=_schedule,
    )
    clip_norm: float | None = noise(None, help="l2 bound of one record's gradient.", unset="by data")
    clip_norm_schedule: str | None = noise(
        None, help="Bound over the epochs: poly:k=1,s_end=0.5,period=10, relative to `clip_norm`.", check=_schedule
    )
    clip_rule: str = noise("flat", help="flat, per-layer, automatic, quantile, or in full: automatic:1,gamma=0.01.")
    keep_noise: bool | None = noise(
        None, help="While the bound changes the noise keeps its size, or its ratio to it.", unset="by method"
    )

    steps: int | str | None = training(None, help="Length in steps instead of `epochs`; auto: by epsilon.", auto=True)
    batch_size_schedule: str | None = training(
        None, help="Records per step over the epochs: piecewise:0=600,20=1200.", check=_schedule
    )
    lr_schedule: str | None = training(
        None, help="Rate over the epochs: poly:s0=0.1,k=1,s_end=0.052,period=10.", check=_schedule
    )
    optimizer: str | None = training(
        None,
        help="How a gradient becomes a step.",
        unset="by data and features",
        choices=tuple(OPTIMIZERS)[:-1],
        check=partial(one_of, known=OPTIMIZERS),
    )
    momentum: float = training(
        0.0, help="Share of the last step that is kept, for sgd.", check=below(1, checks.non_negative)
    )
    weight_decay: float = training(0.0, help="Strength of the pull of the weights to 0.", check=weight_decay)
    ema: float | None = training(
        None,
        help="Average the weights over the steps, keeping this share, such as 0.99; the average is the model.",
        unset="no average",
        check=below(1, checks.positive),
    )

    loss: str | None = training(
        None,
        help="For a table whose targets are numbers: mse, mae, huber:DELTA; poisson for counts.",
        unset="by the targets",
    )
    class_weights: str | None = training(
        None, help="What the loss of a record of each class is multiplied by, over the largest: 1,10.", check=_numbers
    )
    class_priors: str | None = training(
        None,
        help="Public shares of the classes: the model learns as if all were equally frequent: 0.95,0.05.",
        check=partial(_numbers, sum_to_one=True),
    )

    target: str | None = own_data(None, help="For a table: the column to learn.", unset="as the schema says")
    unit: str | None = own_data(
        None,
        help="Column of ids: all rows with one id are protected together, as one record.",
        unset="a row is a record",
    )
    rows_per_unit: int | None = own_data(None, help="Rows of a unit that are used at most.", unset="16")
    schema: str | None = own_data(None, help="File that declares what is public (adadp data schema).")
    test_data: str | None = own_data(None, help="File of public records to measure the accuracy on.")
    input_bound: str | None = own_data(
        None, help="For npz: numbers are brought into [-B, B], or LOW,HIGH.", unset="1e6", check=_input_bound
    )

    threshold: float | None = measuring(
        None, help="Probability from which on the second of two classes is said.", unset="0.5", check=_threshold
    )
    groups: str | None = measuring(None, help="For a table: the declared column whose groups are compared.")

    holdout: str | None = measuring(
        None,
        help="Share of the training records to keep aside, such as 10%: figures on them are released with noise.",
        check=_share,
    )
    holdout_noise: float | None = measuring(
        None, help="Noise multiplier of these figures.", unset="by the target: all of it, as nobody trains on them"
    )
    target_range: str | None = measuring(
        None, help="LOW,HIGH: public range of a target from Python, for figures of records kept aside.", check=_range
    )

    audit_canaries: int | None = measuring(
        None, help="Public random records, each trained on by a fair coin, that an attack in the end must tell apart."
    )

    validation: int | None = validating(None, help="Training records to keep aside for a validation schedule.")
    validation_public: bool | None = validating(
        None, help="These records are public: evaluations on them cost nothing.", none=False
    )
    validation_data: str | None = validating(None, help="For data of your own: public validation records.")

    chunk_size: int | str = running(AUTO, help="Records processed at once.", auto=True)
    memory_limit_mb: int | None = running(None, help="Memory for `chunk_size` auto.", unset="1024")
    device: str = running("cpu", help="cpu, cuda or cuda:1.", check=_device)
    precision: str | None = running(
        None,
        help="bf16: the model computes in half precision (autocast); norms and sums stay in float32.",
        unset="float32",
        choices=PRECISIONS,
        none="float32",
    )
    compile: bool | None = running(
        None, help="Compile forward and backward pass: slow to begin, faster from then on.", none=False
    )
    threads: int | None = running(None, help="Threads of PyTorch.", unset="all cores")
    evaluate_every: int | None = running(None, help="Epochs between evaluations on the test set.", unset="end only")
    checkpoint_every: int | None = running(None, help="Steps between checkpoints.", unset="a tenth of the run")
    tensorboard: bool | None = running(
        None, help="Also write what is logged for TensorBoard, into the folder of the run.", none=False
    )

    def __post_init__(self) -> None:
        for name, declared in settings_of(type(self)).items():
            object.__setattr__(self, name, declared.checked(getattr(self, name)))
        _check_exclusive(self)
        _check_schedules(self)
        _check_rates(self)
        _check_privacy(self)
        _check_budget(self)
        _check_validation(self)
        _check_unit(self)
        _check_holdout(self)
        _check_canaries(self)
        if self.momentum and self.optimizer is not None and not OPTIMIZERS[self.optimizer]:
            raise InputError(
                f"`momentum` is {self.momentum:g}, and the optimizer {self.optimizer} takes none.",
                why="It would be ignored.",
                fix="Leave `momentum` out, or use the optimizer sgd.",
            )
        if isinstance(self.batch_size, int) and self.records is not None and self.batch_size > self.records:
            raise InputError(
                f"`batch_size` must be at most `records`, got {self.batch_size} and {self.records}.",
                why="A record is sampled with probability batch_size / records, which must not pass 1.",
                fix="Pass a smaller `batch_size`, or a larger public number as `records`.",
            )

    @property
    def weights(self) -> tuple[float, ...] | None:
        """``class_weights`` as numbers."""
        return None if self.class_weights is None else tuple(map(float, self.class_weights.split(",")))

    @property
    def offsets(self) -> tuple[float, ...] | None:
        """The logarithms of ``class_priors``, which the scores are shifted by in training."""
        return (
            None if self.class_priors is None else tuple(math.log(float(each)) for each in self.class_priors.split(","))
        )

    @property
    def bounds_of_target(self) -> tuple[float, float] | None:
        """``target_range`` as numbers."""
        if self.target_range is None:
            return None
        low, high = self.target_range.split(",")
        return float(low), float(high)

    def kept_aside(self, records: int) -> int:
        """How many of ``records`` are not trained on, or are expected not to be."""
        if self.holdout is not None:
            return max(1, round(float(self.holdout.rstrip("%")) / 100 * records))
        return self.validation or 0

    def as_dict(self) -> dict[str, Any]:
        """The fields that are given, by name; those that are None are left out."""
        return {name: value for name, value in dataclasses.asdict(self).items() if value is not None}

    def to_toml(self) -> str:
        """The configuration as TOML that ``from_toml`` reads back as an equal one."""
        return tomli_w.dumps(self.as_dict())

    @classmethod
    def from_toml(cls, source: str | os.PathLike[str], **overrides: Any) -> TrainConfig:
        """The configuration written in ``source``, which ``read_toml`` reads; ``overrides`` win over it."""
        return cls.from_dict(read_toml(source), **overrides)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any], **overrides: Any) -> TrainConfig:
        """The configuration with these fields; ``overrides`` win over them. Unknown and missing ones are named."""
        values = {**values, **_displaced(values, overrides), **overrides}
        refuse_unknown(values, settings_of(cls))
        if "data" not in values:
            raise InputError("`data` must be given.", why="It names the data set.", fix="Pass `data`: mnist, say.")
        return cls(**values)

    def replace(self, **overrides: Any) -> TrainConfig:
        """The configuration with ``overrides``: how flags win over a file. Pass only the flags that were given.

        An override also removes the other field of its pair: ``epsilon`` given over ``noise_multiplier`` replaces it.
        """
        refuse_unknown(overrides, settings_of(type(self)))
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
            words.append(flag_of(f"no_{field.name}" if value is False else field.name))
            if not isinstance(value, bool):
                words.append(str(value))
        return shlex.join(words)


def read_toml(source: str | os.PathLike[str]) -> dict[str, Any]:
    """The keys of a configuration: ``source`` is TOML text, or (a ``Path``) the file that holds it."""
    where = "the text" if isinstance(source, str) else str(source)
    try:
        return files.toml_of(source) if isinstance(source, str) else files.read_toml(Path(source))
    except OSError as error:
        raise InputError(
            f"The configuration {where} cannot be read: {error.strerror or error}.", fix="Check the path."
        ) from error
    except ValueError as error:  # not TOML, or not UTF-8
        raise InputError(
            f"The configuration in {where} is not TOML: {error}.",
            fix='Write one field per line, like epsilon = 2.0 or data = "mnist". A file is given as a Path.',
        ) from error


def _check_exclusive(config: TrainConfig) -> None:
    for one, other in (*EXCLUSIVE, *((plain, name) for name, plain in SCHEDULES.items())):
        begun = other in SCHEDULES and leaves_start_open(other, getattr(config, other))
        if None in (getattr(config, one), getattr(config, other)) or begun:
            continue
        begins = f", or s0 in `{other}`: it then begins with the number beside it" if other in SCHEDULES else ""
        raise InputError(
            f"Both `{one}` and `{other}` are given.",
            why="They settle the same thing, and would contradict each other.",
            fix=f"Leave out `{one}`{begins or f' or `{other}`'}.",
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


def leaves_start_open(name: str, text: str | None) -> bool:
    """Whether the schedule in the field ``name`` leaves to a plain number what it begins with."""
    found = None if text is None else _parsed(name, text)
    return isinstance(found, OpenSchedule) and found.unknown == "s0"


def _check_schedules(config: TrainConfig) -> None:
    budget = config.epsilon is not None or config.rho is not None
    noise = None if config.noise_schedule is None else parse_noise(config.noise_schedule)
    whole = isinstance(noise, ValidationDecay) or (noise is not None and noise.unknown is None)
    if config.epochs == AUTO and not (budget and whole):
        raise InputError(
            "`epochs` is auto, and nothing settles how many there are.",
            why="They are as many as the budget allows, for which the noise must be given too.",
            fix="Pass `epsilon` or `rho` and a `noise_schedule` with s0 and k, like exp:s0=10,k=0.01; or `epochs`.",
        )
    if noise is None:
        return
    length = config.steps is not None or config.epochs not in (None, AUTO)
    if config.noise_multiplier == 0:
        raise InputError("`noise_multiplier` is 0, and `noise_schedule` is given.", fix="Leave one of them out.")
    if isinstance(noise, ValidationDecay):
        if not budget:
            raise InputError(
                "A validation schedule is given without a budget.",
                why="Its noise is not known ahead, so only a budget fixed in advance can be certified.",
                fix="Pass `epsilon` (with `delta`), or `rho`.",
            )
    elif noise.unknown == "k" and not budget:
        raise InputError("`noise_schedule` leaves k open, and there is no budget to solve it for.", fix="Give k.")
    elif budget and length and noise.unknown is None and not noise.relative:
        raise InputError(
            f"The noise ({config.noise_schedule}), the length and the budget are all given.",
            why="Each follows from the other two.",
            fix="Leave out s0 or k in `noise_schedule`, or the length (`epochs` is then as long as the budget lasts).",
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
            f"The learning rate times `weight_decay` is {rate * config.weight_decay:g}, above 1.",
            why=f"A step of {config.optimizer} multiplies every parameter by 1 minus that: the parameters would change "
            "sign in every step, and could grow without end.",
            fix="Pass a smaller `weight_decay` or `lr`.",
        )


def _check_validation(config: TrainConfig) -> None:
    noise = None if config.noise_schedule is None else parse_noise(config.noise_schedule)
    named = config.validation is not None or config.validation_data is not None
    if not isinstance(noise, ValidationDecay):
        if named or config.validation_public is not None:
            raise InputError(
                "Validation records are named, and the noise schedule is not one that looks at them.",
                why="They would be kept aside for nothing.",
                fix="Pass `noise_schedule` like validation:s0=10,k=0.7, or leave them out.",
            )
        return
    if config.validation is not None and config.validation_data is not None:
        raise InputError("Both `validation` and `validation_data` are given.", fix="Leave one of them out.")
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
            "the number of right answers), or say `validation_public` if the records are public.",
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
            fix="Leave look out, or `validation_public`.",
        )


def _check_unit(config: TrainConfig) -> None:
    if config.unit is None and config.schema is None and config.rows_per_unit is not None:
        raise InputError(
            "`rows_per_unit` is given, and nothing says which rows belong together.",
            why="It would be ignored.",
            fix="Pass `unit`, a column of ids, or leave it out.",
        )
    if config.unit is not None and config.validation is not None:
        raise InputError(
            "`validation` keeps rows aside, and `unit` protects all rows of a unit together.",
            why="Some rows of a unit would be trained on and others looked at, and a look at a unit with many rows "
            "would tell more than its noise hides.",
            fix="Pass public records as `validation_data`, or another noise schedule.",
        )


def _check_holdout(config: TrainConfig) -> None:
    if config.holdout is None:
        given = "holdout_noise" if config.holdout_noise is not None else "target_range"
        if config.holdout_noise is not None or config.target_range is not None:
            raise InputError(
                f"`{given}` is given, and no records are kept aside.", why="It would be ignored.", fix="Pass `holdout`."
            )
        return
    noise = None if config.noise_schedule is None else parse_noise(config.noise_schedule)
    if isinstance(noise, ValidationDecay):
        raise InputError(
            "Records are kept aside for figures, and the noise follows validation records.",
            why="The budget of noise that is chosen during the run has no place for the figures.",
            fix="Use another noise schedule, or leave `holdout` out.",
        )
    if config.noise_multiplier == 0:
        raise InputError(
            "Records are kept aside for figures with noise, and `noise_multiplier` is 0.",
            why="Nothing of such a run is private.",
            fix="Leave `holdout` out, and pass test data.",
        )
    if (config.sampling, config.neighbours) == _COUNTED:
        raise InputError(
            "Records are kept aside of reshuffled batches, for add-remove neighbours.",
            why="Each record is kept aside by a coin of its own then, and how many remain to be dealt into batches is "
            "secret.",
            fix="Use zero-out neighbours, or Poisson sampling.",
        )


def _check_canaries(config: TrainConfig) -> None:
    if config.audit_canaries is None:
        return
    if config.delta is None and config.noise_multiplier == 0:
        raise InputError(
            "`audit_canaries` is given without `delta`.", why="A bound on epsilon is one at a delta.", fix="Pass both."
        )
    if config.sampling != "poisson" or config.neighbours == "replace-one":
        raise InputError(
            "`audit_canaries` is given without Poisson sampling, or for replace-one neighbours.",
            why="How many canaries are trained on is decided by coins, and only Poisson sampling lets the number of "
            "records differ from the planned one.",
            fix="Use Poisson sampling with add-remove or zero-out neighbours, or leave `audit_canaries` out.",
        )


def _check_privacy(config: TrainConfig) -> None:
    targets = (config.epsilon, config.rho, config.noise_multiplier)
    schedule = config.noise_schedule
    if targets == (None, None, None) and (schedule is None or leaves_start_open("noise_schedule", schedule)):
        raise InputError(
            "None of `epsilon`, `rho` and `noise_multiplier` is given.",
            why="One of them says how private the run is; the others follow from it.",
            fix="Pass `epsilon` (a target), `noise_multiplier` or a `noise_schedule` with s0.",
        )
    if config.noise_multiplier == 0 and not config.allow_nonprivate:
        raise InputError(
            "`noise_multiplier` is 0.",
            why="A run without noise is not private, whatever else it does.",
            fix="Pass `noise_multiplier` > 0, or `allow_nonprivate` if you want that; the certificate will say it.",
        )


def _check_budget(config: TrainConfig) -> None:
    """Refuse what no budget can count."""
    if config.budget is None:
        return
    if config.seed is not None:
        raise InputError(
            "Both `seed` and `budget` are given.",
            why="Whoever has the seed can compute the noise again: the run protects nothing, and no budget covers it.",
            fix="Leave `seed` out; or rehearse on public data, without `budget`.",
        )
    if config.noise_multiplier == 0 or config.allow_nonprivate:
        given = "`noise_multiplier` 0" if config.noise_multiplier == 0 else "`allow_nonprivate`"
        raise InputError(f"{given} is given with a `budget`.", why="No budget covers such a run.", fix="Leave it out.")


def require_delta(config: TrainConfig | SimpleNamespace) -> None:
    """Refuse a run with noise and without a delta."""
    if config.delta is None and config.noise_multiplier != 0:
        raise InputError(
            "`delta` must be given.",
            why="The guarantee is a pair (epsilon, delta), and a delta computed from the data would disclose its size.",
            fix="Pass a `delta` well below 1/N, for example 1e-5.",
        )
