"""Networks of the step benchmark that people bring: Hugging Face transformers, adapters, recurrent and residual ones.

Small configurations of real architectures: what is compared is the price of a private step over an ordinary one, and
peers that keep every record's gradient need memory for them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import peft
import torch
import transformers
from torch import Tensor, nn

VOCABULARY, TOKENS, WIDTH, LAYERS, HEADS = 8_000, 64, 256, 4, 4


class Language(nn.Module):
    """A causal language model of transformers: tokens to scores, with the vocabulary in dimension 1."""

    def __init__(self, model: nn.Module, *, positions: bool) -> None:
        super().__init__()
        self.model = model
        self.positions = positions
        """Whether every record gets positions of its own, which Opacus needs."""

    def forward(self, tokens: Tensor) -> Tensor:
        return self.model(tokens, **_positions(tokens, self.positions), use_cache=False).logits.transpose(1, 2)


class Classifier(nn.Module):
    """A sequence classifier of transformers: tokens to scores."""

    def __init__(self, model: nn.Module, *, positions: bool) -> None:
        super().__init__()
        self.model = model
        self.positions = positions

    def forward(self, tokens: Tensor) -> Tensor:
        return self.model(tokens, **_positions(tokens, self.positions)).logits


def _positions(tokens: Tensor, wanted: bool) -> dict[str, Tensor]:
    if not wanted:
        return {}
    return {"position_ids": torch.arange(tokens.shape[1]).expand(tokens.shape).contiguous()}


def gpt2(*, positions: bool, lora: bool = False) -> nn.Module:
    """GPT-2 with tied embeddings, as it comes."""
    torch.manual_seed(0)
    config = transformers.GPT2Config(
        vocab_size=VOCABULARY,
        bos_token_id=0,
        eos_token_id=0,
        n_positions=TOKENS,
        n_embd=WIDTH,
        n_layer=LAYERS,
        n_head=HEADS,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
    )
    model = transformers.GPT2LMHeadModel(config)
    return Language(_adapted(model, ["c_attn", "c_proj"], conv=True) if lora else model, positions=positions)


def llama(*, positions: bool, lora: bool = False) -> nn.Module:
    """Llama: rotary positions, RMS norms, gated layers, an output layer of its own."""
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=WIDTH,
        intermediate_size=3 * WIDTH,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        num_key_value_heads=HEADS,
        max_position_embeddings=TOKENS,
    )
    model = transformers.LlamaForCausalLM(config)
    return Language(_adapted(model, ["q_proj", "v_proj"]) if lora else model, positions=positions)


def bert(*, positions: bool, dropout: float, classes: int) -> nn.Module:
    """A BERT classifier."""
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=VOCABULARY,
        hidden_size=WIDTH,
        intermediate_size=4 * WIDTH,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        max_position_embeddings=TOKENS,
        hidden_dropout_prob=dropout,
        attention_probs_dropout_prob=dropout,
        num_labels=classes,
    )
    return Classifier(transformers.BertForSequenceClassification(config), positions=positions)


def _adapted(model: Any, targets: list[str], *, conv: bool = False) -> nn.Module:
    return peft.get_peft_model(model, peft.LoraConfig(r=8, lora_alpha=16, target_modules=targets, fan_in_fan_out=conv))


class _Block(nn.Module):
    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False),
            nn.GroupNorm(16, outputs),
            nn.ReLU(),
            nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False),
            nn.GroupNorm(16, outputs),
        )
        same = stride == 1 and inputs == outputs
        self.shortcut = nn.Identity() if same else nn.Conv2d(inputs, outputs, 1, stride, bias=False)

    def forward(self, values: Tensor) -> Tensor:
        found = self.body(values)
        found += self.shortcut(values)  # in place, as torchvision writes it
        return torch.relu(found)


def resnet18(classes: int) -> nn.Module:
    """ResNet-18 for images of 32x32 with group normalisation."""
    torch.manual_seed(0)
    layers: list[nn.Module] = [nn.Conv2d(3, 64, 3, 1, 1, bias=False), nn.GroupNorm(16, 64), nn.ReLU()]
    widths = (64, 64, 128, 256, 512)
    for place in range(4):
        inputs, outputs = widths[place : place + 2]
        layers += [_Block(inputs, outputs, 1 if place == 0 else 2), _Block(outputs, outputs, 1)]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, classes))


class Bag(nn.Module):
    """The mean of the vectors of a record's words, and a linear layer."""

    def __init__(self, words: int, width: int, classes: int) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.words, self.out = nn.Embedding(words, width), nn.Linear(width, classes)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.out(self.words(tokens).mean(1))


class Recurrent(nn.Module):
    """A recurrent network over tokens, and a linear layer on its last state."""

    def __init__(self, layer: Callable[..., nn.Module], classes: int, words: int = 1_000) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.words = nn.Embedding(words, 128)
        self.layer = layer(128, 256, batch_first=True)
        self.out = nn.Linear(256, classes)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.out(self.layer(self.words(tokens))[0][:, -1])
