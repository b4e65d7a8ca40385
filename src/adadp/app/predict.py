"""A finished run as a model to use: its network behind its features, from the files of its folder."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from adadp.app import zoo
from adadp.app.config import OWN_LOOP, TrainConfig
from adadp.app.features import Shape, WithFeatures, parse_features, raw_bound, whole_module
from adadp.app.figures import MOST_CLASSES, classes_figures, number_figures
from adadp.app.inputs import load_inputs
from adadp.app.language import NextToken
from adadp.app.owndata import Encoder, array_features, encoder_from_json, is_own, own_path
from adadp.app.owndata.arrays import given_features, given_pair
from adadp.app.owndata.frames import in_parts
from adadp.app.owndata.schema import as_names
from adadp.app.owndata.tables import Cells, Table, open_table
from adadp.app.owndata.tabular import TableEncoder
from adadp.app.runs import RunFolder
from adadp.app.targets import Target
from adadp.app.zoo.models import build_model
from adadp.errors import InputError, RunError
from adadp.registry import installed_only

_AT_ONCE = 256


@dataclass(frozen=True, eq=False)
class TrainedModel:
    """What a run has trained. ``model`` takes records as they come from the data and gives one score per class.

    It is a plain ``torch.nn.Module``: numbers are brought into their range, then come the frozen features, then the
    network.
    """

    model: nn.Module
    network: nn.Module
    """The trained part alone, which takes features."""
    input_shape: Shape
    class_names: tuple[str, ...]
    certificate: dict[str, Any]
    config: TrainConfig
    encoder: Encoder | None
    """How files of the user's own become records; None for a data set of the catalogue."""

    as_given: bool = False
    """Whether records come as they were given to ``fit``, whose data has no name."""

    @property
    def targets(self) -> tuple[Target, ...]:
        """What it predicts, where that is numbers."""
        return () if self.encoder is None else self.encoder.targets

    def numbers(self, records: Tensor) -> Tensor:
        """The predicted value of every target, in columns, for each record."""
        outputs = self._outputs(records).reshape(len(records), -1)
        return torch.stack([target.meant(outputs[:, place]) for place, target in enumerate(self.targets)], dim=1)

    def probabilities(self, records: Tensor) -> Tensor:
        """The probability of each class, for each record."""
        if self.targets:
            raise InputError("The run predicts numbers, which have no classes.", fix="Call numbers in place of it.")
        if isinstance(self.network, NextToken):
            raise InputError(
                "The run trained a language model, which has no classes.",
                fix="Draw texts from it with adadp.app.language.sample.",
            )
        return self._of_scores(self._outputs(records)) if len(records) else torch.zeros(0, len(self.class_names))

    def _outputs(self, records: Tensor) -> Tensor:
        if tuple(records.shape[1:]) != self.input_shape:
            raise InputError(
                f"The records have shape {tuple(records.shape[1:])}; the model takes {self.input_shape}.",
                fix="Pass records in the shape the model was trained on, the records in dimension 0.",
            )
        with torch.inference_mode():
            parts = [self.model(part) for part in torch.split(records, _AT_ONCE)]
        return torch.cat(parts) if parts else torch.zeros(0, len(self.targets) or len(self.class_names))

    def _of_scores(self, scores: Tensor) -> Tensor:
        classes = len(self.class_names)
        if scores.dim() < 3 and classes == 2 and scores.numel() == len(scores):  # binary-cross-entropy
            scores = torch.nn.functional.pad(scores.reshape(-1, 1), (1, 0))
        if scores.dim() != 2 or scores.shape[1] != classes:
            raise InputError(
                f"A record has scores of shape {tuple(scores.shape[1:])}, and there are {classes} classes.",
                fix="Pass the number of classes it was trained with, or their names (`classes`).",
            )
        return torch.softmax(scores, dim=1)

    def predict(self, records: Tensor) -> Tensor:
        """The class of each record by its number: the most probable one, or by threshold; ``class_names`` has names."""
        return self.chosen(self.probabilities(records))

    def chosen(self, probabilities: Tensor) -> Tensor:
        """The class for each row of ``probabilities``, by its number."""
        threshold = self.config.threshold
        return probabilities.argmax(1) if threshold is None else (probabilities[:, 1] > threshold).long()

    def place(self, source: str | os.PathLike[str]) -> Path:
        """Where ``source`` is: a path, or ``KIND:PATH`` with the kind of the run, as its data was named."""
        return own_path(source, "npz" if self.encoder is None else self.encoder.kind)

    def read(self, path: str | os.PathLike[str]) -> Tensor:
        """The records in a file like those the run was trained on; for a data set of the catalogue, in an ``.npz``."""
        place = self.place(path)
        if self.as_given:
            return given_features(place, self.input_shape)
        return array_features(place, self.input_shape) if self.encoder is None else self.encoder.read(place)

    def parts(self, path: str | os.PathLike[str], beside: Sequence[str] = ()) -> Iterator[tuple[Tensor, list[Cells]]]:
        """The records in a file in their order, some at a time, and the cells of the columns ``beside`` them.

        Of a table a part is in memory at a time. What is wrong with it is said once it has been read to its end, for
        every column; from the first bad cell on no records come.
        """
        if isinstance(self.encoder, TableEncoder):
            yield from _parts_of_table(self.encoder, open_table(self.place(path), self.encoder.delimiter), beside)
            return
        if beside:
            raise InputError(f"{path} has no columns, so none is called {beside[0]}.", fix="Leave the `id` out.")
        for part in torch.split(self.read(path), _AT_ONCE):
            yield part, []


def load_model(
    out: str | os.PathLike[str],
    *,
    model: str | nn.Module | None = None,
    classes: int | Sequence[str] | None = None,
    input_shape: Shape | None = None,
    trust_code: bool = False,
) -> TrainedModel:
    """The model that the run in the folder ``out`` has trained.

    Code that the folder names, ``module:Name``, is imported only with ``trust_code``. The folder of a run from Python
    (``fit``) names no network: ``model`` is one, or the text ``module:function`` of a function of (input_shape,
    classes) that makes it. ``classes`` are their number or names, and ``input_shape`` is that of a record. Other runs
    know all three.

    ==============================================  ===============================================================
    the run has not finished                        ``RunError``
    a run from Python without these arguments       ``InputError``
    another run with one of them                    ``InputError``: it would be ignored
    a network the tensors do not fit                ``RunError``
    model.safetensors or features.safetensors bad   ``RunError``
    ==============================================  ===============================================================
    """
    folder = RunFolder.open(out)
    config, certificate = folder.config, folder.certificate()
    if certificate is None:
        raise RunError(f"The run in {folder.path} has not finished.", fix=f"Resume it with adadp train --resume {out}.")
    given = {"model": model, "classes": classes, "input_shape": input_shape}
    encoder = _encoder(folder)
    shape, names = _checked(given) if encoder is None and config.model == "python" else _known(config, encoder)
    if config.model != "python" and any(value is not None for value in given.values()):
        name = next(name for name, value in given.items() if value is not None)
        raise InputError(
            f"`{name}` is given, and the run in {folder.path} says it itself.",
            why="It would be ignored.",
            fix="Leave it out.",
        )
    numbers = () if encoder is None else encoder.targets
    outputs = len(numbers) or len(names)
    with installed_only(trust_code=trust_code):
        stages = parse_features(config.features)
        features, after = whole_module(stages, shape, folder.load_features())
        network = _network(config.model, after, outputs, numbers=bool(numbers)) if model is None else None
    if model is not None:  # it is the caller's
        network = _network(model, after, outputs, numbers=bool(numbers))
    assert network is not None
    try:
        network.load_state_dict(folder.load_model_tensors())
    except RuntimeError as error:
        raise RunError(
            f"The parameters in {folder.model_path} do not fit the network: {error}",
            fix="Use the code of the network the run was trained with.",
        ) from error
    whole = WithFeatures(raw_bound(stages, config.input_bound), features, network).requires_grad_(False).eval()
    as_given = encoder is None and config.model == "python"
    return TrainedModel(whole, network, shape, names, certificate, config, encoder, as_given)


def _network(model: str | nn.Module | None, shape: Shape, outputs: int, *, numbers: bool) -> nn.Module:
    assert model is not None  # a configuration that names none has been resolved
    if isinstance(model, nn.Module):
        return model
    return build_model(model, input_shape=shape, classes=outputs, seed=0, numbers=numbers)


def _checked(given: dict[str, Any]) -> tuple[Shape, tuple[str, ...]]:
    """Shape and classes of a run from Python, as they are ``given``."""
    missing = [f"`{name}`" for name, value in given.items() if value is None]
    if missing:
        raise InputError(
            "The network of this run is an object of Python, which has no name.",
            why=f"{' and '.join(missing)} {'is' if len(missing) == 1 else 'are'} not given.",
            fix="Pass as `model` the function that builds the network, module:function, or the network itself, and as "
            "`classes` their number or names. Its tensors alone are in model.safetensors, for load_state_dict.",
        )
    return tuple(given["input_shape"]), as_names(given["classes"])


def evaluation(trained: TrainedModel, source: str | os.PathLike[str] | None = None) -> dict[str, Any]:
    """The figures on the labelled records in ``source`` or on the test data of the run; of classes accuracy too."""
    records, labels = _labelled(trained, source)
    if trained.targets:
        true = labels.reshape(len(labels), -1)
        targets = torch.stack([each.true(true[:, place]) for place, each in enumerate(trained.targets)], dim=1)
        said, names = trained.numbers(records), [each.name for each in trained.targets]
        return {"records": len(labels), "figures": number_figures(targets.numpy(), said.numpy(), names)}
    found = trained.predict(records)
    by_class: dict[str, Any] = {}
    for number, name in enumerate(trained.class_names):
        mine = labels == number
        right = float((found[mine] == number).double().mean()) if mine.any() else None
        by_class[name] = {"records": int(mine.sum()), "accuracy": right}
    accuracy = float((found == labels).double().mean())
    figures = None
    if labels.dim() == 1 and len(trained.class_names) <= MOST_CLASSES:
        threshold = 0.5 if trained.config.threshold is None else trained.config.threshold
        shares = trained.probabilities(records).double().numpy()
        figures = classes_figures(shares, labels.numpy(), trained.class_names, threshold=threshold)
    return {"accuracy": accuracy, "records": len(labels), "by_class": by_class, "figures": figures}


def _labelled(trained: TrainedModel, source: str | os.PathLike[str] | None) -> tuple[Tensor, Tensor]:
    if source is not None and trained.as_given:
        return given_pair(trained.place(source), trained.input_shape, len(trained.class_names))
    if source is not None and trained.encoder is None:
        raise InputError(
            f"{trained.config.data} has test data of its own.",
            why="What other records of it are called is not known.",
            fix="Leave `data` out, or call adadp predict on your records.",
        )
    if source is None and trained.config.data in ("python", OWN_LOOP):
        raise InputError("The run names no test data.", fix="Name labelled records with `data`.")
    if source is None and trained.encoder is not None:
        named = trained.config.test_data or trained.config.data  # arrays and images may bring their test records along
        path = Path(named.partition(":")[2])
        if not path.exists():
            raise InputError(
                f"{path} is not here.",
                why="Paths in the configuration of a run are as they were given, relative to where it was started.",
                fix="Call adadp from there, or name labelled records with `data`.",
            )
        source = path if trained.config.test_data is not None else None
    if source is not None and trained.encoder is not None:
        return trained.encoder.read_labelled(trained.place(source))
    test = load_inputs(trained.config, own=trained.encoder is not None).test
    if test is None:
        raise InputError("The run has no test data.", fix="Name labelled records with `data`.")
    return test


def _encoder(folder: RunFolder) -> Encoder | None:
    saved = folder.encoder()
    if saved is None and is_own(folder.config.data):
        raise RunError(
            f"{folder.encoder_path} is missing.",
            why="It says how the columns of a file become records.",
            fix="Put the run's own file back.",
        )
    return None if saved is None else encoder_from_json(saved)


def _known(config: TrainConfig, encoder: Encoder | None) -> tuple[Shape, tuple[str, ...]]:
    """Shape and classes of a run that says them itself."""
    if encoder is not None:
        return encoder.shape, encoder.class_names
    entry = zoo.find(config.data)
    return entry.shape, tuple(str(number) for number in range(entry.classes))


def _parts_of_table(encoder: TableEncoder, table: Table, beside: Sequence[str]) -> Iterator[tuple[Tensor, list[Cells]]]:
    _check_columns(encoder, table, beside)
    used = [(name, column) for name, column in encoder.columns if column.width]
    names, empty = [name for name, _ in used], True
    wrong: dict[str, InputError] = {}
    for part, cells in in_parts(table, names, beside):
        empty = False
        try:
            records = encoder.read(part)
        except InputError as first:
            for name, column in used:  # each by itself, so that all that is wrong is found
                try:
                    replace(encoder, columns=((name, column),)).read(part.only(name))
                except InputError as error:
                    wrong.setdefault(name, error)
            if not wrong:
                raise first
        else:
            if not wrong:
                yield records, cells
    if empty:
        raise InputError(f"The table {table.path} has no rows.", fix="Give a file with a header and rows.")
    if wrong:
        _raise_all(f"{table.path} has cells that its columns, as declared, cannot hold", list(wrong.values()))


def _check_columns(encoder: TableEncoder, table: Table, beside: Sequence[str]) -> None:
    """Refuse a table that lacks columns, or has some nobody knows: all of them are named."""
    declared = {name: bool(column.width) for name, column in encoder.columns}
    there, known = set(table.header), {*encoder.target_names, encoder.unit, *declared, *beside}
    absent = [name for name, used in declared.items() if used and name not in there]
    lacking = [name for name in beside if name not in there]
    unknown = [name for name in table.header if name not in known]
    found = [
        *(f"it has no column {name!r}, which the model was trained on" for name in absent),
        *(f"it has no column {name!r}, which was to be kept (`id`)" for name in lacking),
        *(f"its column {name!r} is not declared in the schema of the run" for name in unknown),
    ]
    if found:
        raise InputError(
            f"{table.path} is not like the table the model was trained on: {'; '.join(found[:100])}.",
            fix="Give these columns their names, and take out those that are not declared.",
        )


def _raise_all(heading: str, errors: Sequence[InputError]) -> None:
    if len(errors) == 1:
        raise errors[0]
    lines = [f"{error.what} {error.fix}" for error in errors]
    raise InputError("\n- ".join([f"{heading}:", *lines]))
