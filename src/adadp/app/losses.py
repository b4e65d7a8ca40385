"""Losses by name, one number per record, and what can be checked about labels before anything is charged."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
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
    "causal-lm": causal_lm,
    "token-classification": token_classification,
}

_OVER_PLACES = (causal_lm, token_classification)


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
    if found is None or per:
        raise InputError(
            f"Unknown loss {loss!r}.",
            fix=f"Use one of {', '.join(LOSSES)}, or a function loss(model, *batch) of one number per record. After "
            "causal-lm and token-classification may come :token, :sequence or a public number to divide by.",
        )
    return found


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
    if loss is binary_cross_entropy:
        return 2
    if loss is not cross_entropy and not is_tokens(loss):
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
    return getattr(loss, "func", loss) is token_classification


def classes_found(scores: Tensor, loss: Loss) -> Tensor:
    """The classes that scores tell, for a loss that ``classes_of`` knows."""
    if loss is binary_cross_entropy:
        return (scores > 0).long()
    return scores.argmax(-1 if is_tokens(loss) else 1)


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
