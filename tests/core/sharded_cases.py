"""Models that are split over the processes of a group, and the same in one process."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from ranks_cases import Case, charged, flat
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

from adadp.step import PrivateGradients

WORDS, PLACES = 11, 6
__all__ = ["charged"]


class Residual(nn.Module):
    """A block with more than one use of what comes in."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(width), nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, values: Tensor) -> Tensor:
        return values + self.down(nn.functional.gelu(self.up(self.norm(values))))


class Mlp(nn.Module):
    """Blocks with an odd width, so that shares differ and some are empty."""

    def __init__(self, width: int = 5, blocks: int = 3) -> None:
        super().__init__()
        self.first = nn.Linear(6, width)
        self.blocks = nn.ModuleList(Residual(width) for _ in range(blocks))
        self.last = nn.Linear(width, 2)

    def forward(self, values: Tensor) -> Tensor:
        values = self.first(values)
        for each in self.blocks:
            values = each(values)
        return self.last(values)


class Turned(nn.Module):
    """Goes by a switch that somebody turns after the model was looked over: the same calls, other rows."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.turned = nn.Linear(6, 6), 0

    def forward(self, values: Tensor) -> Tensor:
        rows = torch.arange(len(values)).roll(0)
        rows = (rows + len(values) // 2 * self.turned) % len(values)
        return torch.tanh(self.layer(values))[rows]


class Scaled(nn.Module):
    """A layer that no rule covers."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(outputs, inputs))

    def forward(self, values: Tensor) -> Tensor:
        return (values.unsqueeze(1) - self.weight).square().sum(2)


class Centred(nn.Module):
    """Takes the mean of a batch from each record."""

    def forward(self, values: Tensor) -> Tensor:
        return values - values.mean(0)


class Branching(nn.Module):
    """Does something else by what is in a batch."""

    def __init__(self, network: Mlp) -> None:
        super().__init__()
        self.network, self.limit, self.how = network, 50.0, ""

    def forward(self, values: Tensor) -> Tensor:
        if bool((values > self.limit).any()):
            if self.how == "raises":
                raise ValueError("the record is 17")
            if self.how == "skips":
                return self.network.last(self.network.first(values))
            return self.network(values.flip(0).flip(0))
        return self.network(values)


class Encoder(nn.Module):
    """torch's own transformer over words, with learnt places; the table of words is the last layer too."""

    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(WORDS, 8), nn.Embedding(PLACES, 8)
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(8, 2, 12, dropout, batch_first=True, norm_first=True) for _ in range(2)
        )
        self.norm = nn.LayerNorm(8)
        self.last = nn.Linear(8, WORDS, bias=False)
        self.last.weight = self.words.weight

    def forward(self, words: Tensor) -> Tensor:
        values = self.words(words) + self.places(torch.arange(PLACES))
        for each in self.blocks:
            values = each(values)
        return self.last(self.norm(values))


def decoder(kind: str) -> nn.Module:
    """A small decoder of transformers."""
    import transformers

    small = {"vocab_size": WORDS, "bos_token_id": 0, "eos_token_id": 0, "use_cache": False}
    if kind == "gpt2":
        config: Any = transformers.GPT2Config(
            **small, n_positions=PLACES, n_embd=8, n_layer=2, n_head=2, resid_pdrop=0, embd_pdrop=0, attn_pdrop=0
        )
    else:
        config = transformers.LlamaConfig(
            **small, hidden_size=8, intermediate_size=12, num_hidden_layers=2, num_attention_heads=2
        )
    return transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager")


def values(count: int) -> tuple[Tensor, Tensor]:
    drawn = torch.randn(count, 6, generator=torch.Generator().manual_seed(3))
    return drawn, (drawn[:, 0] > 0).long()


def texts(count: int) -> tuple[Tensor, ...]:
    return (torch.randint(WORDS, (count, PLACES), generator=torch.Generator().manual_seed(3)),)


def classified(model: nn.Module, given: Tensor, labels: Tensor) -> Tensor:
    return nn.functional.cross_entropy(model(given), labels, reduction="none")


def continued(model: nn.Module, words: Tensor) -> Tensor:
    found = model(words)
    scores = getattr(found, "logits", found)[:, :-1]
    return nn.functional.cross_entropy(scores.transpose(1, 2), words[:, 1:], reduction="none").mean(1)


@dataclass(frozen=True)
class Kind:
    """A network, its blocks, its data and its loss."""

    build: Callable[[], nn.Module]
    blocks: Callable[[Any], Any]
    data: Callable[[int], tuple[Tensor, ...]]
    loss: Callable[..., Tensor]


KINDS = {
    "deep": Kind(lambda: Mlp(16, 6), lambda model: model.blocks, values, classified),
    "mlp": Kind(Mlp, lambda model: model.blocks, values, classified),
    "encoder": Kind(Encoder, lambda model: model.blocks, texts, continued),
    "dropout": Kind(lambda: Encoder(0.2), lambda model: model.blocks, texts, continued),
    "gpt2": Kind(lambda: decoder("gpt2"), lambda model: model.transformer.h, texts, continued),
    "llama": Kind(lambda: decoder("llama"), lambda model: model.model.layers, texts, continued),
    "single": Kind(
        lambda: nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 2)), lambda model: (), values, classified
    ),
    "turned": Kind(lambda: nn.Sequential(Turned(), nn.Linear(6, 2)), lambda model: model[:1], values, classified),
    "branching": Kind(lambda: Branching(Mlp()), lambda model: model.network.blocks, values, classified),
}


def network(kind: str) -> nn.Module:
    torch.manual_seed(5)
    return KINDS[kind].build()


def split(model: nn.Module, blocks: Any = ()) -> nn.Module:
    """``model``, every block of which is given to ``fully_shard``, and then the whole."""
    mesh = init_device_mesh("cpu", (torch.distributed.get_world_size(),))
    for each in blocks:
        fully_shard(each, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def split_network(kind: str) -> nn.Module:
    model = network(kind)
    return split(model, KINDS[kind].blocks(model))


def private(model: nn.Module, kind: str, case: Case, folder: str, **given: Any) -> PrivateGradients:
    settings = {"method": case.method, "seed": case.seed, "arithmetic": case.arithmetic}
    ledger = str(Path(folder) / "ledger.jsonl")
    data, loss = KINDS[kind].data(case.records), KINDS[kind].loss
    return PrivateGradients(model, data, loss, case.plan(), ledger, **{**settings, **given})


@dataclass(frozen=True)
class Trained:
    """What is left of a run: lists, which travel between processes."""

    gradients: list[list[float]]
    parameters: list[float]
    charges: int
    head: str
    clip_state: dict[str, float]


def trained(model: nn.Module, kind: str, case: Case, folder: str, optimizer: str = "SGD") -> Trained:
    with private(model, kind, case, folder) as run:
        rule = getattr(torch.optim, optimizer)(run.model.parameters(), lr=0.1)
        gradients = []
        for _ in range(case.steps):
            gradients.append(flat(map(whole, run.release().values())).tolist())
            rule.step()
            rule.zero_grad()
        return Trained(
            gradients,
            flat(map(whole, run.model.parameters())).tolist(),
            sum(run.ledger.charges.values()),
            run.ledger.head,
            dict(run.clip_state),
        )


def whole(value: Tensor) -> Tensor:
    return value.detach().full_tensor() if isinstance(value, DTensor) else value.detach()


def trained_together(rank: int, kind: str, case: Case, folder: str, optimizer: str = "SGD") -> Trained:
    return trained(split_network(kind), kind, case, folder, optimizer)
