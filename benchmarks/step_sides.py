"""The networks of the step benchmark, and one training step of each on every side: plain PyTorch, Opacus, AdaDP.

A side is built once and then steps on batches of the same size. Every private side clips to the same bound and adds
noise of the same multiplier; every side gathers its batch from the same tensors and ends with the same optimizer. AdaDP
has a side for each of its methods, DP-SGD first.
"""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
import torch.nn.functional as F
from harness import load
from step_models import TOKENS, VOCABULARY, Bag, Recurrent, bert, gpt2, llama, resnet18
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from adadp import Ledger, Plan, PrivateGradients
from adadp.app.losses import cross_entropy
from adadp.app.texts.methods import parse_method
from adadp.app.zoo.models import build_model, small_transformer
from adadp.lab.methods.published import PublishedQuery
from adadp.ledger import PlannedBudget

OPACUS = load("opacus")
PLAIN, OURS = "pytorch, not private", "adadp dpsgd"
METHODS = {
    OURS: "dpsgd",
    "adadp adadp": "adadp:start=1",
    "adadp adadp-published": "adadp-published:threshold=0",
}
"""The sides of AdaDP, and their methods: with scales from the first step on, and with the gate of Algorithm 1 open."""
OPACUS_MODES = ("hooks", "functorch", "ew", "ghost")
PLAIN_COMPILED, OURS_COMPILED = "pytorch compiled, not private", "adadp dpsgd compiled"
COMPILED = {PLAIN_COMPILED: PLAIN, OURS_COMPILED: OURS}
"""Sides that ``torch.compile`` makes of others, for ``compiled.py``."""
SIDES = (PLAIN, *(f"opacus {mode}" for mode in OPACUS_MODES), *METHODS)
CLIP, NOISE, RATE, CLASSES = 1.0, 1.0, 0.05, 10
STEPS = 1_000_000
"""Planned for the ledger: more than any run makes."""


@dataclass(frozen=True)
class Case:
    """A network, its records, and how many of them are in a batch."""

    name: str
    text: str
    records: int
    batch_size: int
    build: Callable[[], nn.Module]
    draw: Callable[[int], Tensor]
    """So many made-up inputs."""
    build_for_opacus: Callable[[], nn.Module] | None = None
    """The same network as Opacus needs it, where that differs."""
    language: bool = False
    """Whether the labels are the next words, one for every word."""
    methods: tuple[str, ...] = (OURS, "adadp adadp")
    """The published ADADP cannot be afforded by all: it clamps every coordinate of every record's gradient."""

    @property
    def sides(self) -> tuple[str, ...]:
        left_out = {*METHODS} - {*self.methods}
        return tuple(side for side in SIDES if side not in left_out)

    def data(self) -> tuple[Tensor, Tensor]:
        """Made-up inputs and labels."""
        torch.manual_seed(0)
        features = self.draw(self.records)
        labels = (
            torch.randint(VOCABULARY, features.shape) if self.language else torch.randint(CLASSES, (len(features),))
        )
        return features, labels


def _tokens(count: int, words: int = VOCABULARY) -> Tensor:
    return torch.randint(words, (count, TOKENS))


def abadi_cifar(seed: int = 0) -> nn.Module:
    """The CIFAR-10 network of Abadi et al. 2016, with all of its layers trained."""
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Conv2d(3, 64, 5, padding=2),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(64, 64, 5, padding=2),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(64 * 6 * 6, 384),
        nn.ReLU(),
        nn.Linear(384, 384),
        nn.ReLU(),
        nn.Linear(384, CLASSES),
    )


CASES = (
    Case(
        "mlp-60",
        "MLP 60-1000-10, the network of the papers on 60 principal components",
        60_000,
        600,
        lambda: build_model("mlp", input_shape=(60,), classes=CLASSES, seed=0),
        lambda count: torch.randn(count, 60),
        methods=tuple(METHODS),
    ),
    Case(
        "mlp-784",
        "MLP 784-1000-10",
        60_000,
        600,
        lambda: build_model("mlp", input_shape=(784,), classes=CLASSES, seed=0),
        lambda count: torch.rand(count, 784),
        methods=tuple(METHODS),
    ),
    Case(
        "mnist-cnn",
        "the MNIST network of the Opacus example: two convolutions, 26,010 parameters",
        60_000,
        600,
        lambda: build_model("cnn", input_shape=(1, 28, 28), classes=CLASSES, seed=0),
        lambda count: torch.rand(count, 1, 28, 28),
    ),
    Case(
        "cifar-cnn",
        "the CIFAR-10 network of Abadi et al. 2016: two 5x5x64 convolutions, 384, 384; 1.1 million parameters",
        50_000,
        120,
        abadi_cifar,
        lambda count: torch.rand(count, 3, 24, 24),
    ),
    Case(
        "transformer",
        "a transformer encoder, 4 layers of width 128, 64 tokens of 1,000",
        20_000,
        64,
        lambda: small_transformer(1_000, CLASSES, seed=0),
        lambda count: torch.randint(1_000, (count, 64)),
    ),
    Case(
        "gpt2",
        "GPT-2 of transformers, tied embeddings: 4 layers of width 256, 64 tokens of 8,000; all parameters",
        2_000,
        16,
        lambda: gpt2(positions=False),
        _tokens,
        lambda: gpt2(positions=True),
        language=True,
        methods=(OURS,),
    ),
    Case(
        "gpt2-lora",
        "the same with LoRA of rank 8 by peft",
        2_000,
        16,
        lambda: gpt2(positions=False, lora=True),
        _tokens,
        lambda: gpt2(positions=True, lora=True),
        language=True,
        methods=(OURS,),
    ),
    Case(
        "llama",
        "Llama of transformers: 4 layers of width 256, 64 tokens of 8,000; all parameters",
        2_000,
        16,
        lambda: llama(positions=False),
        _tokens,
        lambda: llama(positions=True),
        language=True,
        methods=(OURS,),
    ),
    Case(
        "llama-lora",
        "the same with LoRA of rank 8 by peft",
        2_000,
        16,
        lambda: llama(positions=False, lora=True),
        _tokens,
        lambda: llama(positions=True, lora=True),
        language=True,
        methods=(OURS,),
    ),
    *(
        Case(
            name,
            f"BERT classifier of transformers, dropout {dropout}: 4 layers of width 256, 64 tokens of 8,000",
            2_000,
            32,
            partial(bert, positions=False, dropout=dropout, classes=CLASSES),
            _tokens,
            partial(bert, positions=True, dropout=dropout, classes=CLASSES),
            methods=(OURS,),
        )
        for name, dropout in (("bert", 0.0), ("bert-dropout", 0.1))
    ),
    Case(
        "resnet18",
        "ResNet-18 with group norm, images of 32x32",
        2_000,
        64,
        partial(resnet18, CLASSES),
        lambda count: torch.rand(count, 3, 32, 32),
        methods=(OURS,),
    ),
    Case(
        "embedding",
        "an embedding of 50,000 words of width 64, mean over 64 words, linear",
        20_000,
        512,
        lambda: Bag(50_000, 64, CLASSES),
        lambda count: _tokens(count, 50_000),
        methods=(OURS,),
    ),
    Case(
        "wide-linear",
        "linear 3,162-3,162-10: ten million parameters",
        5_000,
        64,
        lambda: nn.Sequential(nn.Linear(3_162, 3_162), nn.ReLU(), nn.Linear(3_162, CLASSES)),
        lambda count: torch.rand(count, 3_162),
        methods=(OURS,),
    ),
    *(
        Case(
            name,
            f"{name.upper()} 128-256 over 64 tokens of 1,000, linear on the last state",
            5_000,
            64,
            partial(Recurrent, layer, CLASSES),
            lambda count: _tokens(count, 1_000),
            methods=(OURS,),
        )
        for name, layer in (("lstm", nn.LSTM), ("gru", nn.GRU))
    ),
)


class Side:
    """One way to make training steps of one case; ``step`` makes one."""

    def __init__(self, step: Callable[[], None], close: Callable[[], None] = lambda: None) -> None:
        self.step = step
        self.close = close


def build_side(name: str, case: Case, data: tuple[Tensor, Tensor], folder: Path) -> Side:
    """The side ``name``; whatever keeps it from running the case comes out as an exception."""
    if name in (PLAIN, PLAIN_COMPILED):
        return _plain(case, data, compiled=name in COMPILED)
    if name in METHODS or name in COMPILED:
        return _ours(name, case, data, folder)
    if OPACUS is None:
        raise ModuleNotFoundError("opacus is not installed")
    return _opacus(name.removeprefix("opacus "), case, data)


def _ours(name: str, case: Case, data: tuple[Tensor, Tensor], folder: Path) -> Side:
    private, optimizer = our_parts(name, case, data, folder)

    def step() -> None:
        private.release()
        optimizer.step()
        optimizer.zero_grad()

    step()
    if isinstance(private.query, PublishedQuery) and private.query._box is None:
        raise RuntimeError("the gate is closed, so this would be the time of DP-SGD")
    return Side(step, private.ledger.close)


def our_parts(
    name: str, case: Case, data: tuple[Tensor, Tensor], folder: Path, loss: Callable[..., Tensor] = cross_entropy
) -> tuple[PrivateGradients, torch.optim.Optimizer]:
    """AdaDP as a user's own loop has it: secure randomness, a ledger on disk, chunks chosen by itself."""
    model = case.build()
    plan = Plan.of_noise(
        noise=NOISE, records=case.records, batch_size=case.batch_size, steps=STEPS, clip_norm=CLIP, sampling="fixed"
    )
    method = parse_method(METHODS[COMPILED.get(name, name)])

    def opened() -> Ledger:
        return Ledger.create(folder / f"{case.name}.jsonl", budget=PlannedBudget(plan.event()))

    private = PrivateGradients(
        model, data, loss, plan, opened, method=method, allow_nonprivate=True, compile=name in COMPILED
    )
    return private, torch.optim.SGD(model.parameters(), lr=RATE)


def _batches(case: Case, data: tuple[Tensor, Tensor]) -> Callable[[], tuple[Tensor, Tensor]]:
    """Batches for the sides that are given theirs: a part of a shuffled order each, in turn."""
    whole = case.records // case.batch_size
    batches = itertools.cycle(torch.split(torch.randperm(case.records), case.batch_size)[:whole])
    features, labels = data

    def following() -> tuple[Tensor, Tensor]:
        chosen = next(batches)
        return features[chosen], labels[chosen]

    return following


def plain_parts(
    case: Case, data: tuple[Tensor, Tensor]
) -> tuple[nn.Module, torch.optim.Optimizer, Callable[[], tuple[Tensor, Tensor]]]:
    """A network, its optimizer, and its batches."""
    model = case.build()
    return model, torch.optim.SGD(model.parameters(), lr=RATE), _batches(case, data)


def _plain(case: Case, data: tuple[Tensor, Tensor], *, compiled: bool) -> Side:
    model, optimizer, next_batch = plain_parts(case, data)
    model = torch.compile(model) if compiled else model  # type: ignore[assignment]

    def step() -> None:
        features, labels = next_batch()
        cross_entropy(model, features, labels).mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    return Side(step)


def _opacus(mode: str, case: Case, data: tuple[Tensor, Tensor]) -> Side:
    """Opacus set up for Poisson sampling; its loader, which fetches records one by one, is spared and not timed."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about the random generator: the fast one is wanted here
        engine = OPACUS.PrivacyEngine(accountant="rdp")
        model = OPACUS.validators.ModuleValidator.fix((case.build_for_opacus or case.build)())
        for module in model.modules():
            if isinstance(module, nn.Embedding):
                module.register_forward_pre_hook(_contiguous)
        parts = engine.make_private(
            module=model,
            optimizer=torch.optim.SGD(model.parameters(), lr=RATE),
            criterion=_MeanPerRecord(),
            data_loader=DataLoader(TensorDataset(*data), batch_size=case.batch_size),
            noise_multiplier=NOISE,
            max_grad_norm=CLIP,
            grad_sample_mode=mode,
        )
    model, optimizer = parts[0], parts[1]
    criterion = parts[2] if mode == "ghost" else _MeanPerRecord()
    next_batch = _batches(case, data)

    def step() -> None:
        features, labels = next_batch()
        criterion(model(features), labels).backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return Side(step)


class _MeanPerRecord(nn.Module):
    """Cross-entropy with one number per record, also where a record has several labels, as its ghost mode needs."""

    reduction = "mean"

    def forward(self, scores: Tensor, labels: Tensor) -> Tensor:
        losses = F.cross_entropy(scores, labels, reduction="none")
        losses = losses if losses.dim() == 1 else losses.flatten(1).mean(1)
        return losses if self.reduction == "none" else losses.mean()


def _contiguous(_: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """Opacus's ghost mode takes a view of an embedding's indices, which repeated positions do not allow."""
    return tuple(value.contiguous() for value in inputs)
