"""scikit-learn estimators that are trained under differential privacy: ``PrivateClassifier``, ``PrivateRegressor``.

Needs scikit-learn, ``pip install "adadp[sklearn]"``. docs/sklearn.md has examples.

What a column may hold is declared and never read off the data: the range of a number, the values of a category, the
classes, the range of the target. A frame becomes the features that a CSV or Parquet file of it would become for ``adadp
train``, and the run is the same: plan, ledger, certificate.

A declaration of a column     means
============================  =========================================================================================
``(0, 100)``                  a number in this range; what lies outside is brought to the nearer end
``["a", "b"]``                a category with these values; anything else is "other"
``"private"``                 a number whose range is released with noise and charged
``{"kind": ..., ...}``        as in a schema, see docs/own-data.md

What is no protection: ``random_state`` makes a rehearsal, because who has the seed can compute the noise again; then
``epsilon_`` is None. And what is computed from private rows outside of ``fit``, by ``score``, by a cross-validation or
by a scaler before the estimator, has no noise, and no epsilon covers it.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.utils import check_random_state, column_or_1d
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import assert_all_finite, check_is_fitted, validate_data
from torch import Tensor, nn

from adadp import checks
from adadp.app.config import TrainConfig
from adadp.app.features import WithFeatures, features_text
from adadp.app.features.private_bounds import Bounds
from adadp.app.inputs import Inputs
from adadp.app.owndata.columns import Column
from adadp.app.owndata.frames import FrameTable, in_parts
from adadp.app.owndata.loading import with_unit
from adadp.app.owndata.schema import Schema, load_schema, parse_schema
from adadp.app.owndata.tables import text_of
from adadp.app.owndata.tabular import Columns, TableEncoder, private_positions
from adadp.app.resolve import fitted, resolve
from adadp.app.spec import RunSpec
from adadp.app.start import Prepared, featured, run_on
from adadp.app.targets import Target
from adadp.app.train import TrainResult
from adadp.app.train.planning import with_release_noise
from adadp.app.units import Units, record_of
from adadp.errors import InputError, within

DISCLOSED = "disclosed"
"""In place of ``classes``: take them from y, and say so in the certificate."""

_HERE = "table:X"
"""Stands for the rows in memory while defaults are filled in, as for a table in a file; nothing is read."""

_HANDED_OVER = (
    "The rows were handed over by a program. What it computed from them before, such as a mean to scale them by, is "
    "not covered."
)
_TUPLES = "Write (0, 100) for the range of a number, and ['a', 'b'] for the values of a category."


class _PrivateEstimator(BaseEstimator):  # type: ignore[misc]  # scikit-learn has no types
    """What classifier and regressor have in common. The arguments are checked by ``fit``, as scikit-learn wants it.

    ``epsilon``, ``delta``  the guarantee, without defaults; ``delta`` well below one over the number of rows
    ``columns``             what is publicly known about the columns: one range for all, ``(0, 100)``; a dict with a
                            declaration by name (``x0``, ``x1``, ... of an array); a list with one for each column; or
                            the path of a schema
    ``unit``                the column of X with the ids of people: all rows with one id are protected together
    ``epochs``, ``batch_size``, ``lr``, ``clip_norm``  as for ``adadp train``, with its defaults for tables
    ``records``             a public number in place of the number of rows, which the certificate states otherwise
    ``out``                 a new folder for the run: certificate, ledger, model
    ``random_state``        makes a rehearsal, which protects nothing

    The fitted estimator holds released and public values only, and may be pickled and passed on.
    """

    def __init__(
        self,
        *,
        epsilon: float | None = None,
        delta: float | None = None,
        columns: Any = None,
        unit: str | None = None,
        epochs: int | None = None,
        batch_size: int | None = None,
        lr: float | None = None,
        clip_norm: float | None = None,
        records: int | None = None,
        out: str | os.PathLike[str] | None = None,
        random_state: Any = None,
    ) -> None:
        self.epsilon = epsilon
        self.delta = delta
        self.columns = columns
        self.unit = unit
        self.epochs = epochs
        self.batch_size = batch_size
        self.lr = lr
        self.clip_norm = clip_norm
        self.records = records
        self.out = out
        self.random_state = random_state

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.string = True
        tags.target_tags.required = True
        return tags

    def _keep(self, encoder: TableEncoder, result: TrainResult) -> None:
        self.encoder_ = encoder
        self.result_ = result
        self.certificate_ = result.certificate
        self.epsilon_ = result.epsilon

    def _table(self, X: Any, *, reset: bool) -> FrameTable:
        """``X`` as a table; with ``reset`` its columns are remembered, else they must be those of ``fit``."""
        if hasattr(X, "iloc") and hasattr(X, "columns"):
            validate_data(self, X, reset=reset, skip_check_array=True)
            return FrameTable(X, "X")
        try:
            values = X if hasattr(X, "dtype") or hasattr(X, "toarray") else np.asarray(X)
        except ValueError:
            raise InputError("X has rows of unequal length.", fix="Pass one value for each column.") from None
        kind = getattr(values.dtype, "kind", "O")
        if kind == "c":
            raise InputError("Complex data not supported.", fix="Pass real numbers.")
        if getattr(values, "ndim", 2) != 2:
            raise InputError(
                "X has not two dimensions.",
                why="Its rows are the records.",
                fix="Reshape your data: X.reshape(-1, 1) if it is one column, X.reshape(1, -1) if it is one row.",
            )
        if kind in "OUS" and not hasattr(values, "toarray"):
            values = np.asarray(values)
            validate_data(self, values, reset=reset, skip_check_array=True)
        else:
            values = validate_data(self, values, reset=reset, dtype=None, ensure_all_finite="allow-nan")
        return FrameTable(values, "X")

    def _asked(self, schema: Schema) -> TrainConfig:
        """The run as it was asked for; what is None is left to the recipe for tables."""
        seed = self.random_state
        if seed is not None and not isinstance(seed, (int, np.integer)):
            seed = check_random_state(seed).randint(2**31 - 1)
        return TrainConfig(
            data=_HERE,
            model=getattr(self, "model", None),
            loss="mse" if isinstance(self, PrivateRegressor) else None,
            epsilon=self.epsilon,
            delta=self.delta,
            unit=schema.unit,
            budget=schema.budget,
            epochs=self.epochs,
            batch_size=self.batch_size,
            lr=self.lr,
            clip_norm=self.clip_norm,
            records=self.records,
            seed=None if seed is None else int(seed),
        )

    def _prepared(
        self, schema: Schema, encoder: TableEncoder, table: FrameTable, labels: Tensor, *notes: str
    ) -> tuple[RunSpec, Prepared]:
        """The run with every default filled in, and its records."""
        if len(table) < 2:
            raise InputError("X has n_samples=1 row.", why="One record among no others cannot be protected.")
        asked = self._asked(schema)
        _refuse_missing(table, encoder.columns)
        features, units = encoder.read(table), _units(encoder, table)
        spec = fitted(resolve(asked), asked, len(labels) if units is None else len(units))
        stages, positions = spec.stages, private_positions(encoder.columns)
        if positions:
            stages = with_release_noise((Bounds(positions), *stages), spec.config)
        named = features_text(stages) if stages else spec.config.features
        spec = RunSpec.of(spec.config.replace(data="python", features=named), method=spec.method, stages=stages)
        columns = (f"Column {name}: {column.describe()}, as declared." for name, column in encoder.columns)
        inputs = Inputs(
            train=(features, labels),
            test=None,
            class_names=encoder.class_names,
            record="one row of X" if schema.unit is None else record_of(schema.unit, "X"),
            notes=(*notes, *columns, _HANDED_OVER),
            encoder=encoder.as_json(),
            targets=encoder.targets,
            units=units,
        )
        return spec, featured(spec, inputs)

    def _outputs(self, X: Any) -> NDArray[np.float64]:
        """What the network says of each row, computed in float64, so that it does not depend on the other rows."""
        check_is_fitted(self)
        model: nn.Module = self.result_.model
        network = deepcopy(model.network if isinstance(model, WithFeatures) else model).double().eval()
        assert isinstance(network, nn.Module)
        table, found = self._table(X, reset=False), []
        _refuse_missing(table, self.encoder_.columns)
        with torch.inference_mode():
            for part, _ in in_parts(table, table.header):
                records = self.encoder_.read(part)
                if isinstance(model, WithFeatures):
                    records = model.features(model.bound(records))
                found.append(network(records.double()).numpy())
        if not found:
            raise InputError("X has no rows: 0 samples.", fix="Pass at least one.")
        return np.concatenate(found)


class PrivateClassifier(ClassifierMixin, _PrivateEstimator):  # type: ignore[misc]
    """A classifier within (``epsilon``, ``delta``) differential privacy of the rows it is trained on.

    ``classes``  every class there may be, or their number: 3 stands for 0, 1, 2. Not needed where y is boolean.
                 ``"disclosed"`` takes them from y without noise, and the certificate says so.
    ``model``    the network by name, such as ``mlp:64``.

    After ``fit``: ``classes_`` (sorted), ``certificate_``, ``epsilon_`` (None for a rehearsal), ``result_`` (what
    ``adadp.fit`` returns), ``encoder_``, ``n_features_in_``, ``feature_names_in_``.
    """

    def __init__(
        self,
        *,
        epsilon: float | None = None,
        delta: float | None = None,
        columns: Any = None,
        unit: str | None = None,
        classes: Any = None,
        model: str | None = None,
        epochs: int | None = None,
        batch_size: int | None = None,
        lr: float | None = None,
        clip_norm: float | None = None,
        records: int | None = None,
        out: str | os.PathLike[str] | None = None,
        random_state: Any = None,
    ) -> None:
        super().__init__(
            epsilon=epsilon,
            delta=delta,
            columns=columns,
            unit=unit,
            epochs=epochs,
            batch_size=batch_size,
            lr=lr,
            clip_norm=clip_norm,
            records=records,
            out=out,
            random_state=random_state,
        )
        self.classes = classes
        self.model = model

    def fit(self, X: Any, y: Any) -> PrivateClassifier:
        """Train on the rows of ``X`` and their labels ``y``. Every call is a run of its own, and spends ``epsilon``."""
        table = self._table(X, reset=True)
        schema = _schema(self.columns, table, self.unit)
        labels = _target(y, len(table))
        check_classification_targets(labels)
        classes = _classes(schema.classes if self.classes is None else self.classes, labels)
        encoder = _encoding(schema, table, y, tuple(map(text_of, classes.tolist())))
        numbers = {label: number for number, label in enumerate(classes.tolist())}
        found = torch.tensor([numbers.get(label, -1) for label in labels.tolist()], dtype=torch.int64)
        if (found < 0).any():
            raise InputError(
                "y holds a label that is none of the classes.",
                why="The classes are what is publicly known.",
                fix="Correct y, or declare the class if it is publicly known.",
            )
        taken = self.classes == DISCLOSED if isinstance(self.classes, str) else False
        named = ", ".join(encoder.class_names)
        note = (
            f"The classes are {named}. Taken from y, not declared." if taken else f"The classes are declared: {named}."
        )
        spec, records = self._prepared(schema, encoder, table, found, note)
        self._keep(encoder, run_on(records, spec, self.out))
        self.classes_ = classes
        return self

    def decision_function(self, X: Any) -> NDArray[np.float64]:
        """The score of each class for each row; of two classes, by how much the second one is ahead."""
        scores = self._outputs(X)
        return scores[:, 1] - scores[:, 0] if len(self.classes_) == 2 else scores

    def predict_proba(self, X: Any) -> NDArray[np.float64]:
        """The probability of each class, in the order of ``classes_``, for each row."""
        found: NDArray[np.float64] = torch.softmax(torch.from_numpy(self._outputs(X)), dim=1).numpy()
        return found

    def predict(self, X: Any) -> NDArray[Any]:
        """The most probable class of each row."""
        chosen = self._outputs(X).argmax(1)
        found: NDArray[Any] = self.classes_[chosen]
        return found


class PrivateRegressor(RegressorMixin, _PrivateEstimator):  # type: ignore[misc]
    """A linear regression within (``epsilon``, ``delta``) differential privacy of the rows it is trained on.

    ``target_range``  ``(low, high)``, what is publicly known about the target. Targets outside are brought to the
                      nearer end, and so are predictions.

    After ``fit``: ``certificate_``, ``epsilon_`` (None for a rehearsal), ``result_`` (what ``adadp.fit`` returns; its
    network predicts the position in the range, from -1 to 1), ``encoder_``, ``n_features_in_``, ``feature_names_in_``.
    """

    def __init__(
        self,
        *,
        epsilon: float | None = None,
        delta: float | None = None,
        columns: Any = None,
        unit: str | None = None,
        target_range: tuple[float, float] | None = None,
        epochs: int | None = None,
        batch_size: int | None = None,
        lr: float | None = None,
        clip_norm: float | None = None,
        records: int | None = None,
        out: str | os.PathLike[str] | None = None,
        random_state: Any = None,
    ) -> None:
        super().__init__(
            epsilon=epsilon,
            delta=delta,
            columns=columns,
            unit=unit,
            epochs=epochs,
            batch_size=batch_size,
            lr=lr,
            clip_norm=clip_norm,
            records=records,
            out=out,
            random_state=random_state,
        )
        self.target_range = target_range

    def fit(self, X: Any, y: Any) -> PrivateRegressor:
        """Train on the rows of ``X`` and the numbers ``y``. Every call is a run of its own, and spends ``epsilon``."""
        low, high = self._range()
        table = self._table(X, reset=True)
        schema = _schema(self.columns, table, self.unit)
        values = _numbers(_target(y, len(table)))
        encoder = _encoding(schema, table, y, ())
        target = Target(encoder.target, low, high, scaled=True)
        encoder = replace(encoder, targets=(target,))
        note = f"The target is {target.describe()}, as declared."
        spec, records = self._prepared(schema, encoder, table, target.learned(torch.from_numpy(values)), note)
        self._keep(encoder, run_on(records, spec, self.out))
        return self

    def predict(self, X: Any) -> NDArray[np.float64]:
        """The number predicted for each row, within ``target_range``."""
        outputs = torch.from_numpy(self._outputs(X)[:, 0])
        found: NDArray[np.float64] = self.encoder_.targets[0].meant(outputs).numpy()
        return found

    def _range(self) -> tuple[float, float]:
        if self.target_range is None:
            raise InputError(
                "target_range is not given.",
                why="The largest y is known from private rows alone.",
                fix="Pass target_range=(low, high), what is publicly known about the target.",
            )
        with within("target_range"):
            return checks.input_bound(self.target_range)


def _encoding(schema: Schema, table: FrameTable, y: Any, class_names: tuple[str, ...]) -> TableEncoder:
    """How rows become features: as for a table in a file. The target has the name of y, for files like it."""
    target = schema.target or str(getattr(y, "name", None) or "y")
    while target in table.header:
        target += "_"
    return TableEncoder(schema.columns, target, class_names, unit=schema.unit)


def _units(encoder: TableEncoder, table: FrameTable) -> Units | None:
    """The unit of each row, where units are protected."""
    codes = encoder.unit_codes(table)
    if encoder.unit is not None and codes is None:
        raise InputError(
            f"X has no column {encoder.unit!r}, the unit.",
            why="It says which rows belong together.",
            fix="Leave the column of ids in X: it is no feature.",
        )
    return None if codes is None else Units(codes[0])


def _schema(columns: Any, table: FrameTable, unit: str | None) -> Schema:
    """What ``columns`` declares about the columns of ``table``, with the ``unit``."""
    if columns is None:
        raise InputError(
            "columns is not given.",
            why="The range of a column, or its values, are known from private rows alone.",
            fix="Pass columns=(0, 100) as one range for all, a dict with a declaration for each column, or the path of "
            f"a schema. {_TUPLES}",
        )
    if isinstance(columns, (str, os.PathLike)):
        schema = with_unit(load_schema(columns).for_kind("table"), unit)
        place = None if schema.budget is None else str(Path(columns).parent / schema.budget)
        return replace(schema, budget=place)
    names = [name for name in table.header if name != unit]
    if _is_range(columns):
        columns = [columns] * len(names)
    if isinstance(columns, (list, tuple)):
        if len(columns) != len(names):
            raise InputError(
                f"columns declares {len(columns)} columns, and X has {len(names)}.",
                fix="Declare every column, or pass a dict with their names.",
            )
        columns = dict(zip(names, columns, strict=True))
    if not isinstance(columns, Mapping):
        raise InputError(f"columns is {columns!r}.", fix=f"Pass a dict with a declaration for each column. {_TUPLES}")
    with within("columns"):
        declared = parse_schema({"columns": {str(name): _declaration(name, each) for name, each in columns.items()}})
    return with_unit(declared, unit)


def _declaration(name: object, given: Any) -> dict[str, Any]:
    """``given`` as a schema writes it."""
    if isinstance(given, Mapping):
        return dict(given)
    if _is_range(given):
        return {"kind": "number", "low": float(given[0]), "high": float(given[1])}
    if isinstance(given, str) and given == "private":
        return {"kind": "number", "bounds": "private"}
    numbers = isinstance(given, list) and [_is_number(each) for each in given] == [True, True]
    if isinstance(given, list) and not numbers:
        return {"kind": "category", "values": given}
    raise InputError(
        f"Column {name!r} is declared as {given!r}.", why="It could mean two things." if numbers else "", fix=_TUPLES
    )


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float, np.integer, np.floating)) and not isinstance(value, bool)


def _is_range(given: object) -> bool:
    return isinstance(given, tuple) and len(given) == 2 and all(map(_is_number, given))


def _refuse_missing(table: FrameTable, columns: Columns) -> None:
    """Say of an array, where no column may have a missing value, what scikit-learn says of one with NaN."""
    values = table.frame
    if isinstance(values, np.ndarray) and values.dtype.kind == "f" and not any(_missing(each) for _, each in columns):
        assert_all_finite(values, input_name="X")


def _missing(column: Column) -> bool:
    return bool(getattr(column, "missing", ()))


def _target(y: Any, rows: int) -> NDArray[Any]:
    """``y`` as an array of one dimension."""
    if y is None:
        raise InputError("The estimator requires y to be passed, but the target y is None.", fix="Pass fit(X, y).")
    values = np.asarray(y)
    if values.ndim != 1 and not (values.ndim == 2 and values.shape[1] == 1):
        raise InputError("y should be a 1d array, with one target for each row.", fix="Pass one column.")
    found: NDArray[Any] = column_or_1d(values, warn=True)
    if len(found) != rows:
        raise InputError("X and y have unequal lengths.", fix="Pass one target for each row of X.")
    if found.dtype.kind == "f":
        assert_all_finite(found, input_name="y")
    return found


def _numbers(y: NDArray[Any]) -> NDArray[np.float64]:
    try:
        values = y.astype(np.float64)
    except (ValueError, TypeError):
        raise InputError("y holds something else than numbers.", fix="Pass numbers to a regressor.") from None
    assert_all_finite(values, input_name="y")
    return values


def _classes(declared: Any, y: NDArray[Any]) -> NDArray[Any]:
    """The classes in order: as ``declared``, those of y if it is boolean, or those in y where that is asked for."""
    if declared is None and y.dtype.kind == "b":
        return np.array([False, True])
    if declared is None or (isinstance(declared, str) and declared != DISCLOSED):
        raise InputError(
            "classes is not given." if declared is None else f"classes is {declared!r}.",
            why="Which labels there are in y is known from private rows alone.",
            fix="Pass every class there may be, such as classes=['no', 'yes'], or classes='disclosed' to take them "
            "from y without noise, which the certificate then says.",
        )
    if isinstance(declared, str):
        found: NDArray[Any] = np.unique(y)
    else:
        given = range(declared) if isinstance(declared, (int, np.integer)) else declared
        found = np.unique(np.asarray(given))
        if len(found) != len(given):
            raise InputError("classes names a class twice.", fix="Name each once.")
    if len(found) < 2:
        raise InputError("There is 1 class only.", why="There is nothing to learn.", fix="Pass two classes or more.")
    return found
