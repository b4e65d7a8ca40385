"""Features by public models of others: ``hf:NAME`` reads texts, ``timm:NAME`` images, ``hf-tokens:NAME`` makes tokens.

NAME is a local folder or a name on the hub (``adadp.app.hub``); it may hold neither a comma nor a plus sign. The models
are frozen, and each record is read by itself, at one public length or size, so the features of a record do not depend
on the others. Public weights cost no privacy beyond what the data they were trained on is promised, which is nothing.

    case                                       what happens
    a folder that has changed since            InputError where the model is needed; the digest is in the text
    texts longer than length tokens            their first tokens
    an empty text                              what the model makes of its special tokens; zeros if it has none
    grey images for a timm model of colours    read as three equal colours
    records of another shape                   InputError
    non-finite pixel                           that record's features are non-finite, no other record's
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn import functional

from adadp import checks
from adadp.app.features.base import FixedStage, Shape
from adadp.app.features.text import check_text
from adadp.app.hub import PublicModel, check_context, from_rows, library, pretrained, token_rows
from adadp.app.text_rows import row_texts
from adadp.errors import InputError

_POOLING = ("mean", "cls")


@dataclass(frozen=True)
class _HubStage(FixedStage):
    """What the stages have in common: the name of a model, and the digest of its files."""

    unnamed = "model"
    always_written: ClassVar[tuple[str, ...]] = ("sha256",)
    model: str
    sha256: str = ""

    def __post_init__(self) -> None:
        self._set(sha256=PublicModel(self._on_hub(), self.sha256).pinned().sha256)

    def _on_hub(self) -> str:
        return self.model

    @property
    def files(self) -> PublicModel:
        """The model, held to its digest."""
        return PublicModel(self._on_hub(), self.sha256)

    @property
    def public(self) -> tuple[str, ...]:
        return (self.files.describe(),)


@dataclass(frozen=True)
class HubTokens(_HubStage):
    """The tokens of a text as the tokenizer of ``model`` makes them: 1 + their numbers, and 0 where the text ends."""

    name = "hf-tokens"
    always_written = ("length", "sha256")
    length: int = 128

    def __post_init__(self) -> None:
        super().__post_init__()
        self._set(length=checks.count("length", self.length, minimum=2))

    def output_shape(self, shape: Shape) -> Shape:
        check_text(self, shape)
        return (self.length,)

    def module(self, shape: Shape) -> nn.Module:  # noqa: ARG002
        return _Tokens(pretrained("AutoTokenizer", self.files), self.length)


class _Tokens(nn.Module):
    def __init__(self, tokenizer: Any, length: int) -> None:
        super().__init__()
        self.tokenizer, self.length = tokenizer, length

    def forward(self, rows: Tensor) -> Tensor:
        return token_rows(self.tokenizer, row_texts(rows), self.length).to(rows.device)


@dataclass(frozen=True)
class HubText(_HubStage):
    """The last layer of an encoder of transformers, averaged over the tokens (``mean``) or of the first (``cls``), with
    l2 norm 1.
    """

    name = "hf"
    always_written = ("length", "sha256")
    length: int = 128
    pooling: str = "mean"

    def __post_init__(self) -> None:
        super().__post_init__()
        self._set(length=checks.count("length", self.length))
        if self.pooling not in _POOLING:
            raise InputError(f"There is no pooling {self.pooling!r}.", fix=checks.one_of(self.pooling, _POOLING))

    def output_shape(self, shape: Shape) -> Shape:
        check_text(self, shape)
        config = pretrained("AutoConfig", self.files)
        check_context(config, self.model, self.length, self.name)
        return (int(config.hidden_size),)

    def module(self, shape: Shape) -> nn.Module:  # noqa: ARG002
        tokens = _Tokens(pretrained("AutoTokenizer", self.files), self.length)
        return nn.Sequential(tokens, _Pooled(pretrained("AutoModel", self.files), self.pooling))


class _Pooled(nn.Module):
    def __init__(self, encoder: nn.Module, pooling: str) -> None:
        super().__init__()
        self.encoder, self.pooling = encoder, pooling

    def forward(self, rows: Tensor) -> Tensor:
        given = from_rows(rows, getattr(self.encoder.config, "pad_token_id", None))
        found = self.encoder(**given).last_hidden_state.float()
        weights = (rows > 0).float()
        if self.pooling == "cls":
            weights[:, 1:] = 0
        pooled = (found * weights[:, :, None]).sum(1) / weights.sum(1, keepdim=True).clamp(min=1)
        return functional.normalize(pooled, eps=math.ulp(1.0))


@dataclass(frozen=True)
class TimmImages(_HubStage):
    """What a network of timm for images computes before its classifier, with l2 norm 1."""

    name = "timm"

    def _on_hub(self) -> str:
        """The models of timm are on the hub under its own name."""
        local = "/" in self.model or "\\" in self.model or self.model.startswith(("~", "."))
        return self.model if local else f"timm/{self.model}"

    def output_shape(self, shape: Shape) -> Shape:
        channels, *_ = self._saved()["pretrained_cfg"]["input_size"]
        if len(shape) != 3 or shape[0] not in (1, channels):
            raise InputError(
                f"{self.name} cannot read records of shape {tuple(shape)}.",
                why=f"The model reads images of {channels} channels.",
                fix=f"Give (1 or {channels}, height, width).",
            )
        return (int(self._network().num_features),)

    def module(self, shape: Shape) -> nn.Module:  # noqa: ARG002
        network = self._network()
        network.load_state_dict(load_file(self.files.folder() / "model.safetensors"))
        network.reset_classifier(0)
        return _Images(network, self._saved()["pretrained_cfg"])

    def _saved(self) -> dict[str, Any]:
        """What ``timm.models.save_for_hf`` writes beside the weights."""
        try:
            saved: dict[str, Any] = json.loads((self.files.folder() / "config.json").read_text(encoding="utf-8"))
            return {"model_args": {}} | saved | {"pretrained_cfg": dict(saved["pretrained_cfg"])}
        except (ValueError, KeyError, TypeError) as error:
            raise InputError(
                f"The config.json of {self.model} is not that of a model of timm.",
                fix="Save it with timm.models.save_for_hf(model, folder, safe_serialization=True).",
            ) from error

    def _network(self) -> Any:
        timm, saved = library("timm", "Models of timm need"), self._saved()
        try:
            settings = {"num_classes": saved["num_classes"]} | saved["model_args"] | {"pretrained": False}
            return timm.create_model(saved["architecture"], **settings)
        except (RuntimeError, KeyError, TypeError, ValueError) as error:
            raise InputError(
                f"timm cannot build the model {self.model}.", fix="Install a timm that knows it."
            ) from error


class _Images(nn.Module):
    mean: Tensor
    std: Tensor

    def __init__(self, network: nn.Module, saved: dict[str, Any]) -> None:
        super().__init__()
        self.network = network
        self.channels, self.height, self.width = saved["input_size"]
        for name in ("mean", "std"):
            self.register_buffer(name, torch.tensor(saved[name]).reshape(-1, 1, 1), persistent=False)

    def forward(self, images: Tensor) -> Tensor:
        images = images.expand(-1, self.channels, -1, -1)
        scaled = functional.interpolate(
            images, (self.height, self.width), mode="bilinear", antialias=True, align_corners=False
        )
        found = self.network((scaled - self.mean) / self.std).flatten(1)
        return functional.normalize(found, eps=math.ulp(1.0))
