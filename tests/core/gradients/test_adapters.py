"""Adapters of peft on a frozen Llama: exact, and the frozen layers cost what they cost in an ordinary step."""

import warnings

import pytest
import torch
import torch.nn.functional as F
from torch.utils._python_dispatch import TorchDispatchMode

from adadp.gradients import GradientEngine
from adadp.gradients.oracle import loop_gradients

peft = pytest.importorskip("peft")
transformers = pytest.importorskip("transformers")

TEXTS = torch.randint(1, 40, (4, 9), generator=torch.Generator().manual_seed(0))
ADAPTERS = {
    "lora": lambda: peft.LoraConfig(task_type="CAUSAL_LM", r=4, target_modules=["q_proj", "v_proj"]),
    "dora": lambda: peft.LoraConfig(task_type="CAUSAL_LM", r=4, use_dora=True, target_modules=["q_proj", "v_proj"]),
    "ia3": lambda: peft.IA3Config(task_type="CAUSAL_LM"),
    "prompt": lambda: peft.PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=4),
    "prefix": lambda: peft.PrefixTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=4),
}


def llama():
    config = transformers.LlamaConfig(
        vocab_size=40, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, pad_token_id=0,
    )  # fmt: skip
    return transformers.LlamaForCausalLM(config).train()


def adapted(kind):
    """With adapters moved from where they begin: a fresh one multiplies by zero, which hides gradients."""
    model = peft.get_peft_model(llama(), ADAPTERS[kind]()).train()
    with torch.no_grad():
        for value in model.parameters():
            if value.requires_grad:
                value.add_(0.1 * torch.randn_like(value))
    return model


def loss(model, texts):
    logits = model(input_ids=texts).logits[:, -texts.shape[1] : -1]
    return F.cross_entropy(logits.transpose(1, 2).float(), texts[:, 1:], reduction="none").mean(1)


def built(model):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return GradientEngine(model, loss, (TEXTS,))


class Products(TorchDispatchMode):
    """Counts the multiplications in products of matrices."""

    def __init__(self):
        super().__init__()
        self.multiplications = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func in {torch.ops.aten.mm.default, torch.ops.aten.bmm.default, torch.ops.aten.addmm.default}:
            self.multiplications += args[-2].numel() * args[-1].shape[-1]
        return func(*args, **(kwargs or {}))


def check_exact(engine, rtol=1e-4):
    """Every record's gradient and norm are plain autograd's."""
    alone = loop_gradients(engine.model, loss, (TEXTS,), len(TEXTS))
    capture = engine.capture((TEXTS,))
    groups = [[name] for name in engine.names]
    norms = capture.square_norms(groups).sqrt()
    for record, row in enumerate(alone):
        weights = torch.zeros(len(TEXTS), len(groups))
        weights[record] = 1
        got = capture.weighted_sums(weights, groups)
        for place, (name, want) in enumerate(row.items()):
            size = float(want.float().norm())
            assert size > 0, name
            assert float((got[name] - want).norm()) <= rtol * size, name
            assert float(norms[record, place]) == pytest.approx(size, rel=rtol), name


@pytest.mark.slow
@pytest.mark.parametrize("kind", ADAPTERS)
def test_adapters_are_exact(kind):
    engine = built(adapted(kind))
    check_exact(engine)
    assert engine.notes == ()  # by closed forms
    assert not any("base_layer" in name for name in engine.names)


@pytest.mark.slow
def test_frozen_layers_cost_what_they_cost_without_privacy():
    """Multiplications of a whole step, in and out of the adapters, and what is kept of the batch."""
    model = adapted("lora")
    engine = built(model)
    trained = [value for value in model.parameters() if value.requires_grad]
    with Products() as ordinary:
        torch.autograd.grad(loss(model, TEXTS).mean(), trained)
    with Products() as private:
        capture = engine.capture((TEXTS,))
        capture.square_norms([engine.names])
        capture.weighted_sums(torch.ones(len(TEXTS), 1), [engine.names])
    assert ordinary.multiplications > 0
    assert private.multiplications <= 1.02 * ordinary.multiplications
    assert {target.name for piece in capture.pieces for target in piece.targets.values()} == set(engine.names)


@pytest.mark.slow
def test_gradient_checkpoints_of_a_frozen_model():
    model = adapted("lora")
    model.enable_input_require_grads()
    model.gradient_checkpointing_enable()
    engine = built(model)
    assert engine.notes == ()
    check_exact(engine)


@pytest.mark.slow
def test_a_whole_model_with_gradient_checkpoints():
    model = llama()
    model.gradient_checkpointing_enable()
    engine = built(model)
    assert engine.notes == ()
    check_exact(engine)


@pytest.mark.slow
def test_adapters_in_half_precision():
    engine = built(adapted("lora").bfloat16())
    assert engine.notes == ()
    check_exact(engine, rtol=5e-2)
    assert engine.capture((TEXTS,)).square_norms([engine.names]).dtype == torch.float32
