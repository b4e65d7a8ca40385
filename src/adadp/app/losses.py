"""Losses by name, one number per record, and what can be checked about labels before anything is charged."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map

from adadp.errors import InputError
from adadp.gradients.model_checks import explain_single_value

Loss = Callable[..., Tensor]
"""``loss(model, *batch)`` -> one number per record."""


LARGEST_LOG = 30.0
"""What the logarithm of a count counts as at most; e^30 is 1e13."""

IGNORED = -100
"""The label of a place that has none, such as padding: as in torch and in transformers."""


def scores_and_labels(model: nn.Module, batch: Sequence[Any]) -> tuple[Tensor, Tensor]:
    """What ``model`` says of a batch, and what is true: the last part of it, or ``labels`` (or ``label``) of a dict.

    A dict goes to the model by names, ``model(**inputs)``; of an output with ``logits``, those are the scores.
    """
    inputs, labels = inputs_and_labels(batch)
    return scores_of(model, inputs), labels


def scores_of(model: nn.Module, inputs: Any) -> Tensor:
    """The output of ``model``, or its ``logits``."""
    outputs = model(**inputs) if isinstance(inputs, Mapping) else model(inputs)
    found: Tensor = getattr(outputs, "logits", outputs)
    return found


def inputs_and_labels(batch: Sequence[Any]) -> tuple[Any, Any]:
    """A batch of (inputs, labels), or of one dict, in two."""
    if len(batch) == 1 and isinstance(batch[0], Mapping):
        name = "labels" if "labels" in batch[0] else "label"
        if name in batch[0]:
            return {key: value for key, value in batch[0].items() if key != name}, batch[0][name]
    if len(batch) != 2:
        raise InputError(
            "A record holds no inputs and labels.",
            fix="Pass data as (inputs, labels), or as dicts with labels, or a loss function of your own that takes "
            "what a record holds.",
        )
    return batch[0], batch[1]


def cross_entropy(model: nn.Module, *batch: Any) -> Tensor:
    """Softmax cross-entropy of class scores with class numbers, or with class probabilities (floats).

    Where a record has several labels (a sequence, an image), their mean.
    """
    scores, labels = scores_and_labels(model, batch)
    targets = labels if labels.is_floating_point() else labels.long()
    losses = F.cross_entropy(scores, targets, reduction="none")
    return losses if losses.dim() == 1 else losses.flatten(1).mean(1)


def binary_cross_entropy(model: nn.Module, *batch: Any) -> Tensor:
    """Logistic loss of one score per record with labels 0 and 1."""
    scores, labels = scores_and_labels(model, batch)
    scores = scores.reshape(len(labels))
    return F.binary_cross_entropy_with_logits(scores, labels.reshape(len(labels)).to(scores.dtype), reduction="none")


def mean_squared_error(model: nn.Module, *batch: Any) -> Tensor:
    """Squared error, averaged over the outputs of a record."""
    outputs, targets = scores_and_labels(model, batch)
    losses = F.mse_loss(outputs, targets.reshape(outputs.shape).to(outputs.dtype), reduction="none")
    return losses.reshape(len(targets), -1).mean(1)


def mean_absolute_error(model: nn.Module, *batch: Any) -> Tensor:
    """Distance, averaged over the outputs of a record; its gradient does not grow with the distance."""
    outputs, targets = scores_and_labels(model, batch)
    losses = F.l1_loss(outputs, targets.reshape(outputs.shape).to(outputs.dtype), reduction="none")
    return losses.reshape(len(targets), -1).mean(1)


def huber(model: nn.Module, *batch: Any, delta: float = 1.0) -> Tensor:
    """Half the squared error up to ``delta``, and the distance times ``delta`` beyond it (Huber 1964)."""
    outputs, targets = scores_and_labels(model, batch)
    aims = targets.reshape(outputs.shape).to(outputs.dtype)
    losses = F.huber_loss(outputs, aims, reduction="none", delta=delta)
    return losses.reshape(len(targets), -1).mean(1)


def poisson(model: nn.Module, *batch: Any) -> Tensor:
    """Minus the log likelihood of counts whose logarithm the model says: exp(output) - count * output.

    The output counts as at most ``LARGEST_LOG``, so that no early step makes the exponential infinite.
    """
    outputs, counts = scores_and_labels(model, batch)
    outputs = outputs.clamp(max=LARGEST_LOG)
    losses = outputs.exp() - counts.reshape(outputs.shape).to(outputs.dtype) * outputs
    return losses.reshape(len(counts), -1).mean(1)


def token_classification(model: nn.Module, *batch: Any, per: str | float = "token") -> Tensor:
    """Cross-entropy of scores (records, places, classes) with a label for every place; places labelled -100 count not.

    ``per`` says what a record's loss is: "token", the mean over its labelled places; "sequence", their sum; or a public
    number, their sum over it. A record without any labelled place has loss 0 and gradient 0.
    """
    return _over_places(*_at_places(*scores_and_labels(model, batch)), per)


def causal_lm(model: nn.Module, *batch: Any, per: str | float = "token") -> Tensor:
    """Cross-entropy of every token with what ``model`` says after those before it; ``per`` as above.

    Labels are those of the record, with -100 where there is none, and the model's scores at a place are for the label
    of the next one. Scores of virtual tokens before the text (prompt tuning) have no label, and the last of them is for
    the first token. A record without labels, which is a dict with ``input_ids`` or tokens alone, is its own, but for
    where its ``attention_mask`` is 0.
    """
    only = batch[0]
    if len(batch) == 1 and isinstance(only, Mapping) and "labels" not in only:
        tokens = only["input_ids"]
        mask = only.get("attention_mask")
        batch = (only, tokens if mask is None else tokens.masked_fill(mask == 0, IGNORED))
    elif len(batch) == 1 and isinstance(only, Tensor):
        batch = (only, only)
    scores, labels = _at_places(*scores_and_labels(model, batch))
    return _over_places(scores[:, :-1], labels[:, 1:], per)


def _at_places(scores: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """``labels`` with none for the virtual tokens that prompt tuning puts before the text, if there are any."""
    return scores, F.pad(labels, (max(0, scores.shape[1] - labels.shape[1]), 0), value=IGNORED)


def _over_places(scores: Tensor, labels: Tensor, per: str | float) -> Tensor:
    labels = labels.long()
    losses = F.cross_entropy(scores.transpose(1, 2), labels, ignore_index=IGNORED, reduction="none").sum(1)
    if per == "token":
        return losses / (labels != IGNORED).sum(1).clamp(min=1)  # of no place at all 0, not 0 / 0
    return losses if per == "sequence" else losses / float(per)


LOSSES: dict[str, Loss] = {
    "cross-entropy": cross_entropy,
    "binary-cross-entropy": binary_cross_entropy,
    "mse": mean_squared_error,
    "mae": mean_absolute_error,
    "huber": huber,
    "poisson": poisson,
    "causal-lm": causal_lm,
    "token-classification": token_classification,
}

_OVER_PLACES = (causal_lm, token_classification)
_OF_NUMBERS = (mean_squared_error, mean_absolute_error, huber, poisson)


def find_loss(loss: str | Loss) -> Loss:
    """The loss called ``loss``, or ``loss`` itself if it is a function."""
    if callable(loss):
        return loss
    name, _, per = str(loss).partition(":")
    found = LOSSES.get(name)
    if found in _OVER_PLACES and per:
        number = float(per) if per.replace(".", "", 1).isdecimal() else 0.0
        if number > 0 or per in ("token", "sequence"):
            return partial(found, per=number or per)
    if found is huber and per and per.replace(".", "", 1).isdecimal() and float(per) > 0:
        return partial(huber, delta=float(per))
    if found is None or per:
        raise InputError(
            f"Unknown loss {loss!r}.",
            fix=f"Use one of {', '.join(LOSSES)}, or a function loss(model, *batch) of one number per record. After "
            "causal-lm and token-classification may come :token, :sequence or a public number to divide by; after "
            "huber :DELTA, above 0.",
        )
    return found


@dataclass(frozen=True)
class ByClass:
    """``func``, a cross-entropy, with what is publicly known about the classes: every loss stays that of its record.

    ``weights``, over the largest of them, multiply the loss of a record of each class, and with it its gradient, before
    that is clipped: the bound of the clip rule holds as it is. A weight above 1 would do nothing for a gradient that is
    clipped anyway, as those of a rare class mostly are; one below 1 makes the others shorter.
    ``offsets`` are added to the scores in training alone (Menon et al. 2021): with the logarithms of the priors the
    model learns scores as if the classes were equally frequent.
    """

    func: Loss
    weights: tuple[float, ...] | None = None
    offsets: tuple[float, ...] | None = None

    def __call__(self, model: nn.Module, *batch: Any) -> Tensor:
        """One loss per record."""
        inputs, labels = inputs_and_labels(batch)
        shift = torch.zeros(())
        if self.offsets is not None:
            offsets = torch.tensor(self.offsets, device=labels.device)
            shift = offsets[1] - offsets[0] if self.func is binary_cross_entropy else offsets

        def shifted(*values: Any, **named: Any) -> Tensor:
            found = model(*values, **named)
            scores: Tensor = getattr(found, "logits", found)
            return scores if self.offsets is None else scores + shift

        losses = self.func(shifted, inputs, labels)
        if self.weights is None:
            return losses
        weights = torch.tensor(self.weights, device=losses.device, dtype=losses.dtype) / max(self.weights)
        return losses * weights[labels.long().reshape(len(losses))]


def with_classes(
    loss: Loss, *, weights: tuple[float, ...] | None, offsets: tuple[float, ...] | None, classes: int | None
) -> Loss:
    """``loss`` with ``weights`` and ``offsets`` for each of its ``classes``; itself where there are none."""
    if weights is None and offsets is None:
        return loss
    if loss not in (cross_entropy, binary_cross_entropy):
        raise InputError(
            "Class weights or class priors are given, and the loss is not for classes.",
            why="They would be ignored.",
            fix="Use the loss cross-entropy or binary-cross-entropy, or leave them out.",
        )
    for name, given in (("class_weights", weights), ("class_priors", offsets)):
        if given is not None and len(given) != classes:
            raise InputError(
                f"`{name}` has {len(given)} numbers, and there are {classes} classes.",
                fix="Give one number for each class, in the order of the classes.",
            )
    return ByClass(loss, weights, offsets)


def in_half_precision(loss: Loss, device: torch.device) -> Loss:
    """``loss`` under autocast to bfloat16; the losses are float32."""

    def run(model: nn.Module, *batch: Any) -> Tensor:
        with torch.autocast(device.type, dtype=torch.bfloat16):
            return loss(model, *batch).float()

    return run


def classes_of(model: nn.Module, loss: Loss, like: Sequence[Any], public: Sequence[Any] | None = None) -> int | None:
    """How many classes ``model`` tells apart, if ``loss`` is for classes.

    ``like`` is a batch of (inputs, labels) or a dict, of which only shapes and dtypes are used: the model is given
    zeros, or the inputs of ``public`` records.
    """
    if plain(loss) is binary_cross_entropy:
        return 2
    if plain(loss) is not cross_entropy and not is_tokens(loss):
        return None
    inputs, _ = inputs_and_labels(like if public is None else public)
    if public is None:
        inputs = tree_map(lambda leaf: torch.zeros_like(leaf) if isinstance(leaf, Tensor) else leaf, inputs)
    modes = [(module, module.training) for module in model.modules()]
    try:
        with torch.no_grad():
            scores = scores_of(model.eval(), inputs)
    except (RuntimeError, ValueError, TypeError, IndexError) as error:
        explain_single_value(error)
        raise InputError(
            f"The model cannot read the records: {error}",
            why=f"A batch of one record has {_shapes(inputs)}.",
            fix="Give the model the input shape and dtype the records have. If it cannot read zeros, pass example= "
            "with a few public records that it can read.",
        ) from error
    finally:
        for module, training in modes:
            module.training = training
    if not isinstance(scores, Tensor) or scores.dim() < 2:
        raise InputError(
            "The model does not return class scores of shape (records, classes).",
            why="The loss cross-entropy needs one score per class.",
            fix="Give the model an output per class, or use the loss binary-cross-entropy for a single score.",
        )
    return scores.shape[-1 if is_tokens(loss) else 1]


def is_tokens(loss: Loss) -> bool:
    """Whether ``loss`` is for a class at every place of a record."""
    return plain(loss) is token_classification


def is_of_numbers(loss: Loss) -> bool:
    """Whether ``loss`` is for targets that are numbers or counts."""
    return plain(loss) in _OF_NUMBERS


def is_of_counts(loss: Loss) -> bool:
    """Whether the model says the logarithm of a count."""
    return plain(loss) is poisson


def plain(loss: Loss) -> Loss:
    """``loss`` without options, weights and offsets."""
    found: Loss = getattr(loss, "func", loss)
    return found


def classes_found(scores: Tensor, loss: Loss) -> Tensor:
    """The classes that scores tell, for a loss that ``classes_of`` knows."""
    if plain(loss) is binary_cross_entropy:
        return (scores > 0).long()
    return scores.argmax(-1 if is_tokens(loss) else 1)


def probabilities_of(scores: Tensor, loss: Loss) -> Tensor:
    """The probability of each class, in double precision, for a loss of one class per record."""
    scores = scores.detach().cpu().double()
    if plain(loss) is binary_cross_entropy:
        positive = torch.sigmoid(scores.flatten())
        return torch.stack([1 - positive, positive], dim=1)
    return torch.softmax(scores, dim=1)


def _shapes(inputs: Any) -> str:
    return ", ".join(
        f"shape {tuple(leaf.shape)}, dtype {leaf.dtype}" for leaf in tree_leaves(inputs) if isinstance(leaf, Tensor)
    )


def check_labels(labels: object, classes: int, whose: str, *, ignored: bool = False) -> None:
    """Refuse labels that are not classes of the model; ``whose`` are they, such as "training"?

    Floats between 0 and 1 are probabilities and pass; -100 passes where it is ``ignored``. What the labels are is not
    told: they may be private.
    """
    if isinstance(labels, Tensor):
        labels = labels[labels != IGNORED] if ignored else labels
    if not isinstance(labels, Tensor) or not labels.numel():
        return
    low, high = labels.min().item(), labels.max().item()
    highest = 1 if labels.is_floating_point() else classes - 1
    if low < 0 or high > highest:
        raise InputError(
            f"The {whose} labels must lie between 0 and {highest}.",
            why=f"The model scores {classes} classes.",
            fix="Number the classes from 0, or give the model as many outputs as there are classes.",
        )
