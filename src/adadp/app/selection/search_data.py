"""The records of a search, with the features of each candidate, and its trained networks."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor, nn

from adadp.app.config import TrainConfig
from adadp.app.features import extract, fixed_first, parse_features, whole_module
from adadp.app.inputs import Records as Pair
from adadp.app.losses import cross_entropy
from adadp.app.owndata import load_own
from adadp.app.runs import RunFolder
from adadp.app.spec import RunSpec
from adadp.app.start import Prepared, prepared
from adadp.app.texts.methods import parse_method
from adadp.app.train import refuse_training_records
from adadp.app.train.search_spec import Search
from adadp.app.train.session import tensors_of_data
from adadp.app.zoo.models import build_model
from adadp.errors import InputError
from adadp.gradients import GradientEngine
from adadp.plan import Plan
from adadp.records import Records


class Material:
    """What the runs of ``search`` train on and are scored on. Features known before the data are made once each."""

    def __init__(self, search: Search) -> None:
        self._found: dict[str | None, Prepared] = {}
        self._file: Pair | None = None
        config = search.candidates[0]
        if search.scoring is not None and search.scoring.file is not None:
            self._file = _records_in(search.scoring.file, config)
            refuse_training_records(self.prepared(config).inputs.train, self._file, "validation")
        self.size = len(self.prepared(config).train[0])
        for candidate, plan in zip(search.candidates, search.plans(), strict=True):
            self._try(candidate, plan)

    def prepared(self, config: TrainConfig) -> Prepared:
        """All records, with the fixed features of ``config``."""
        if config.features not in self._found:
            found = prepared(RunSpec.of(config))
            self._found[config.features] = replace(found, train=tensors_of_data(found.train))
        return self._found[config.features]

    def scored(self, config: TrainConfig, chosen: Tensor) -> Pair:
        """The records a run is scored on: those ``chosen``, or those of the file."""
        records = self.prepared(config)
        if self._file is None:
            values, *_, labels = tensors_of_data(records.train)
            return values[chosen], labels[chosen]
        fixed, _ = fixed_first(parse_features(config.features))
        return extract(fixed, self._file[0], part="validation", device=config.device), self._file[1]

    def model(self, config: TrainConfig, folder: RunFolder) -> nn.Module:
        """The network trained in ``folder``, behind the features that were released in its run."""
        records = self.prepared(config)
        shape = tuple(tensors_of_data(records.train)[0].shape[1:])
        features, after = whole_module(records.released, shape, folder.load_features())
        network = _network(config, records, after)
        network.load_state_dict(folder.load_model_tensors())
        return nn.Sequential(features, network)

    def _try(self, config: TrainConfig, plan: Plan) -> None:
        """Find out before anything is charged that a candidate has no network, or one that cannot take these records or
        mixes them, or a clip rule that does not fit.
        """
        records = self.prepared(config)
        network = _network(config, records, records.shape)
        blank = (torch.zeros(2, *records.shape), torch.zeros(2, dtype=torch.long))
        try:
            network.eval()(blank[0])
        except (RuntimeError, ValueError, TypeError, IndexError) as error:
            raise InputError(
                f"The model {config.model} cannot take the records of {config.data}: {error}",
                fix="Name a network that fits the data and features.",
            ) from error
        example = Records(blank, torch.device("cpu"), torch.float32).example()
        engine = GradientEngine(network.train(), cross_entropy, example)
        parse_method(config.method).query(engine, plan.clip_rule, plan.batch_size)


def part_of(records: Prepared, chosen: Tensor) -> Prepared:
    """The records a run trains on. It has no test records: it is not the run that is published, perhaps."""
    if len(chosen) != len(records.train[0]):
        raise InputError("The data has changed since the search began.", fix="Put it back as it was.")
    parts = tensors_of_data(records.train)
    return replace(records, train=tuple(part[chosen] for part in parts), test=None, validation=None)


def _network(config: TrainConfig, records: Prepared, shape: tuple[int, ...]) -> nn.Module:
    assert config.model is not None
    return build_model(config.model, input_shape=shape, classes=records.inputs.outputs, seed=0)


def _records_in(file: str, config: TrainConfig) -> Pair:
    found = load_own(
        config.data,
        target=config.target,
        schema=config.schema,
        test_data=file,
        input_bound=config.input_bound,
        unit=config.unit,
    ).test
    assert found is not None
    return found
