"""Public models of transformers as networks that are trained privately: ``hf:NAME``, whole or by LoRA.

    hf:NAME            a classifier: the model with a new last layer for the classes, if it has none of that size
    hf:NAME,task=lm    a causal language model
    hf:NAME,lora=8     adapters of rank 8 beside its linear layers (Hu et al. 2021) and the last layer are trained

The network reads rows of tokens that the features ``hf-tokens:NAME`` make. Dropout is off: it is one more noise, and
private training has enough.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor, nn

from adadp import checks
from adadp.app.hub import PublicModel, check_context, from_rows, library, pretrained
from adadp.app.language import NextToken
from adadp.errors import InputError

PREFIX = "hf:"
_TASKS = {"classify": "AutoModelForSequenceClassification", "lm": "AutoModelForCausalLM"}
_OPTIONS = "Its options are: task=classify or task=lm, lora=RANK, sha256=DIGEST."


@dataclass(frozen=True)
class HubModel:
    """What a text such as ``hf:NAME,lora=8`` asks for; ``str`` gives the text again."""

    model: PublicModel
    task: str = "classify"
    lora: int | None = None

    @classmethod
    def of(cls, text: str) -> HubModel:
        """The model that ``text``, with or without ``hf:`` before it, names."""
        name, *items = text.removeprefix(PREFIX).split(",")
        given = dict(item.strip().partition("=")[::2] for item in items)
        if not name.strip() or not given.keys() <= {"task", "lora", "sha256"} or len(given) < len(items):
            raise InputError(f"{text!r} names no public model.", fix=f"Write hf:NAME. {_OPTIONS}")
        task, lora = given.get("task", "classify"), given.get("lora")
        if task not in _TASKS or not (lora is None or (lora.isascii() and lora.isdigit() and int(lora))):
            raise InputError(f"The options of {text!r} cannot be read.", fix=_OPTIONS)
        return cls(PublicModel(name.strip(), given.get("sha256", "")), task, None if lora is None else int(lora))

    def __str__(self) -> str:
        options = {"task": self.task if self.task != "classify" else "", "lora": self.lora, "sha256": self.model.sha256}
        return PREFIX + ",".join([self.model.name, *(f"{name}={value}" for name, value in options.items() if value)])

    def pinned(self) -> HubModel:
        """The same with the digest of its files."""
        return replace(self, model=self.model.pinned())

    @property
    def tokens(self) -> str:
        """The features that make tokens for it."""
        return f"hf-tokens:{self.model.name},sha256={self.model.sha256}"

    def build(self, context: int, classes: int) -> nn.Module:
        """The network, for rows of ``context`` tokens; a new last layer is drawn from the generator of torch."""
        config = pretrained("AutoConfig", self.model)
        for name, value in list(vars(config).items()):
            if "drop" in name and isinstance(value, float):
                setattr(config, name, 0.0)
        check_context(config, self.model.name, context, "hf-tokens")
        padding = getattr(config, "pad_token_id", None)
        if self.task == "classify":
            config.num_labels = checks.count("classes", classes, minimum=2)
            config.pad_token_id = padding = padding or 0
            config.problem_type = "single_label_classification"
        found = pretrained(_TASKS[self.task], self.model, config=config, ignore_mismatched_sizes=True)
        if self.lora is not None:
            found = self._with_adapters(found)
        return _Scores(found, padding) if self.task == "classify" else _NextScores(found, padding, context)

    def _with_adapters(self, found: Any) -> Any:
        peft = library("peft", "LoRA needs")
        kind = "SEQ_CLS" if self.task == "classify" else "CAUSAL_LM"
        rank = self.lora
        return peft.get_peft_model(
            found, peft.LoraConfig(r=rank, lora_alpha=2 * (rank or 1), target_modules="all-linear", task_type=kind)
        )


def classifier(name: str, classes: int, *, lora: int | None = None) -> nn.Module:
    """A classifier of texts for ``fit``, from a folder or a name on the hub; it reads ``hf-tokens:NAME``."""
    model = HubModel(PublicModel(name), lora=lora)
    return model.build(1, classes)


def language_model(name: str, *, lora: int | None = None) -> NextToken:
    """A causal language model for ``fit`` with the loss ``next_value_loss``; it reads ``hf-tokens:NAME``."""
    found = HubModel(PublicModel(name), "lm", lora).build(1, 2)
    assert isinstance(found, NextToken)
    return found


class _Scores(nn.Module):
    """A classifier of transformers that reads rows of tokens and gives plain scores."""

    def __init__(self, model: Any, padding: int | None) -> None:
        super().__init__()
        self.model, self.padding = model, padding

    def forward(self, rows: Tensor) -> Tensor:
        scores: Tensor = self.model(**from_rows(rows, self.padding)).logits
        return scores


class _NextScores(NextToken):
    """A language model of transformers that reads rows of tokens."""

    unit = "token"

    def __init__(self, model: Any, padding: int | None, context: int) -> None:
        super().__init__()
        self.model, self.padding, self.context = model, padding, context

    def forward(self, rows: Tensor) -> Tensor:
        scores: Tensor = self.model(**from_rows(rows, self.padding), use_cache=False).logits
        return scores
