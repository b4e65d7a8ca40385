"""A finished run as a model to use: its network behind its features, from the files of its folder."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from adadp.app import zoo
from adadp.app.config import TrainConfig
from adadp.app.features import Shape, WithFeatures, parse_features, raw_bound, whole_module
from adadp.app.figures import MOST_CLASSES, classes_figures, number_figures
from adadp.app.inputs import load_inputs
from adadp.app.language import NextToken
from adadp.app.owndata import Encoder, array_features, encoder_from_json, is_own, own_path
from adadp.app.runs import RunFolder
from adadp.app.targets import Target
from adadp.app.zoo.models import build_model
from adadp.errors import InputError, RunError

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
        return torch.softmax(self._outputs(records), dim=1)

    def _outputs(self, records: Tensor) -> Tensor:
        if tuple(records.shape[1:]) != self.input_shape:
            raise InputError(
                f"The records have shape {tuple(records.shape[1:])}; the model takes {self.input_shape}.",
                fix="Pass records in the shape the model was trained on, the records in dimension 0.",
            )
        with torch.inference_mode():
            parts = [self.model(part) for part in torch.split(records, _AT_ONCE)]
        return torch.cat(parts) if parts else torch.zeros(0, len(self.targets) or len(self.class_names))

    def predict(self, records: Tensor) -> Tensor:
        """The class of each record by its number: the most probable one, or by threshold; ``class_names`` has names."""
        said, threshold = self.probabilities(records), self.config.threshold
        return said.argmax(1) if threshold is None else (said[:, 1] > threshold).long()

    def place(self, source: str | os.PathLike[str]) -> Path:
        """Where ``source`` is: a path, or ``KIND:PATH`` with the kind of the run, as its data was named."""
        return own_path(source, "npz" if self.encoder is None else self.encoder.kind)

    def read(self, path: str | os.PathLike[str]) -> Tensor:
        """The records in a file like those the run was trained on; for a data set of the catalogue, in an ``.npz``."""
        place = self.place(path)
        return array_features(place, self.input_shape) if self.encoder is None else self.encoder.read(place)


def load_model(out: str | os.PathLike[str]) -> TrainedModel:
    """The model that the run in the folder ``out`` has trained.

    ==============================================  ===============================================================
    the run has not finished                        ``RunError``
    a run from Python (``fit``)                     ``InputError``: its network has no name; the error says how to load
    a network the tensors do not fit                ``RunError``
    model.safetensors or features.safetensors bad   ``RunError``
    ==============================================  ===============================================================
    """
    folder = RunFolder.open(out)
    config, certificate = folder.config, folder.certificate()
    if certificate is None:
        raise RunError(f"The run in {folder.path} has not finished.", fix=f"Resume it with adadp train --resume {out}.")
    if "python" in (config.data, config.model):
        raise InputError(
            "The network of this run is an object of Python, which has no name.",
            fix=f"Build it, and call network.load_state_dict(safetensors.torch.load_file('{folder.model_path}')). "
            "Its features, if it has any, are adadp.app.features.whole_module(stages, shape, folder.load_features()).",
        )
    encoder = _encoder(folder)
    shape, names = _shape_and_classes(config, encoder)
    stages = parse_features(config.features)
    features, after = whole_module(stages, shape, folder.load_features())
    assert config.model is not None
    numbers = () if encoder is None else encoder.targets
    outputs = len(numbers) or len(names)
    network = build_model(config.model, input_shape=after, classes=outputs, seed=0, numbers=bool(numbers))
    try:
        network.load_state_dict(folder.load_model_tensors())
    except RuntimeError as error:
        raise RunError(
            f"The parameters in {folder.model_path} do not fit the network {config.model}: {error}",
            fix="Use the code of the network the run was trained with.",
        ) from error
    whole = WithFeatures(raw_bound(stages, config.input_bound), features, network).requires_grad_(False).eval()
    return TrainedModel(whole, network, shape, names, certificate, config, encoder)


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
    if source is not None and trained.encoder is None:
        raise InputError(
            f"{trained.config.data} has test data of its own.",
            why="What other records of it are called is not known.",
            fix="Leave `data` out, or call adadp predict on your records.",
        )
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
    if not is_own(folder.config.data):
        return None
    saved = folder.encoder()
    if saved is None:
        raise RunError(
            f"{folder.encoder_path} is missing.",
            why="It says how the columns of a file become records.",
            fix="Put the run's own file back.",
        )
    return encoder_from_json(saved)


def _shape_and_classes(config: TrainConfig, encoder: Encoder | None) -> tuple[Shape, tuple[str, ...]]:
    if encoder is not None:
        return encoder.shape, encoder.class_names
    entry = zoo.find(config.data)
    return entry.shape, tuple(str(number) for number in range(entry.classes))
