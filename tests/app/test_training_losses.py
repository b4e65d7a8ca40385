"""Losses by name: one number per record, and labels refused before anything is charged."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from adadp.app.losses import (
    LOSSES,
    binary_cross_entropy,
    causal_lm,
    check_labels,
    classes_of,
    cross_entropy,
    find_loss,
    mean_squared_error,
)
from adadp.errors import InputError

torch.manual_seed(0)
FEATURES = torch.randn(5, 4)
LABELS = torch.tensor([0, 2, 1, 0, 2])
SCORES = nn.Linear(4, 3)
ONE = nn.Linear(4, 1)


def test_cross_entropy_is_torchs_for_each_record():
    expected = [F.cross_entropy(SCORES(x[None]), y[None]).item() for x, y in zip(FEATURES, LABELS, strict=True)]
    assert cross_entropy(SCORES, FEATURES, LABELS).tolist() == pytest.approx(expected)
    assert cross_entropy(SCORES, FEATURES, LABELS.int()).tolist() == pytest.approx(expected)
    assert cross_entropy(SCORES, FEATURES, F.one_hot(LABELS).float()).tolist() == pytest.approx(expected)


def test_a_record_with_several_labels_counts_their_mean():
    model = nn.Conv1d(2, 3, 1)
    features, labels = torch.randn(4, 2, 6), torch.randint(0, 3, (4, 6))
    found = cross_entropy(model, features, labels)
    assert found.shape == (4,)
    assert found[1].item() == pytest.approx(F.cross_entropy(model(features[1:2]), labels[1:2]).item())


@pytest.mark.parametrize("shape", [(5,), (5, 1)])
@pytest.mark.parametrize("dtype", [torch.int64, torch.float32, torch.float64, torch.bool])
def test_binary_cross_entropy_takes_labels_of_any_kind(shape, dtype):
    labels = (LABELS > 0).to(dtype)
    scores = ONE(FEATURES).flatten()
    expected = -torch.where(labels > 0, F.logsigmoid(scores), F.logsigmoid(-scores))
    assert torch.allclose(binary_cross_entropy(ONE, FEATURES, labels.reshape(shape)), expected)


@pytest.mark.parametrize("model", [SCORES, ONE, nn.Sequential(ONE, nn.Flatten(0))], ids=["three", "one", "flat"])
def test_squared_error_is_a_mean_over_the_outputs_of_a_record(model):
    targets = torch.randn(5, 3 if model is SCORES else 1)
    expected = ((model(FEATURES).reshape(targets.shape) - targets) ** 2).mean(1)
    assert torch.allclose(mean_squared_error(model, FEATURES, targets), expected)
    assert torch.allclose(mean_squared_error(model, FEATURES, targets.double()), expected)


def test_losses_are_found_by_name_or_given():
    assert {name: find_loss(name) for name in LOSSES} == LOSSES
    assert find_loss(F.l1_loss) is F.l1_loss
    with pytest.raises(InputError, match=r"Unknown loss 'hinge'.*cross-entropy, binary-cross-entropy, mse"):
        find_loss("hinge")


def test_how_many_classes_a_model_tells_apart():
    assert classes_of(SCORES, cross_entropy, (FEATURES[:1], LABELS[:1])) == 3
    assert classes_of(ONE, binary_cross_entropy, (FEATURES[:1], LABELS[:1])) == 2
    assert classes_of(ONE, mean_squared_error, (FEATURES[:1], LABELS[:1])) is None
    assert classes_of(ONE, F.l1_loss, ({"x": 1},)) is None


def test_counting_classes_leaves_every_module_in_its_mode_and_reads_no_value():
    model = nn.Sequential(nn.Dropout(), SCORES)
    model.train()
    model[1].eval()
    assert classes_of(model, cross_entropy, (torch.full((1, 4), torch.nan), LABELS[:1])) == 3
    assert (model.training, model[0].training, model[1].training) == (True, True, False)


@pytest.mark.parametrize(
    ("model", "example", "message"),
    [
        (nn.Linear(7, 3), (FEATURES[:1], LABELS[:1]), r"cannot read the records.*shape \(1, 4\)"),
        (SCORES, (LABELS[:1], LABELS[:1]), "cannot read the records"),
        (nn.Flatten(0), (FEATURES[:1], LABELS[:1]), "does not return class scores"),
        (nn.Identity(), ({"x": FEATURES},), "holds no inputs and labels"),
        (SCORES, (FEATURES, LABELS, LABELS), "holds no inputs and labels"),
    ],
)
def test_a_model_that_does_not_fit_the_records_is_refused(model, example, message):
    with pytest.raises(InputError, match=f"(?s){message}"):
        classes_of(model, cross_entropy, example)


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        (torch.tensor([0, 3]), "training labels must lie between 0 and 2"),
        (torch.tensor([-1, 2]), "between 0 and 2"),
        (torch.tensor([0.0, 1.5]), "between 0 and 1"),
        (torch.tensor([255], dtype=torch.uint8), "between 0 and 2"),
    ],
)
def test_labels_that_are_no_classes_are_refused(labels, message):
    with pytest.raises(InputError, match=message):
        check_labels(labels, 3, "training")


def test_labels_that_are_classes_or_probabilities_pass():
    for labels in (LABELS, F.one_hot(LABELS).float(), LABELS > 0, LABELS[:0], "not a tensor"):
        check_labels(labels, 3, "training")


def test_prompt_tuning_has_the_loss_that_transformers_computes():
    peft, transformers = pytest.importorskip("peft"), pytest.importorskip("transformers")
    size = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    base = transformers.LlamaForCausalLM(transformers.LlamaConfig(vocab_size=30, use_cache=False, **size))
    model = peft.get_peft_model(base, peft.PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=4))
    tokens = torch.randint(0, 30, (3, 7))
    expected = [float(model(input_ids=row[None], labels=row[None]).loss) for row in tokens]
    assert causal_lm(model, tokens, tokens).tolist() == pytest.approx(expected, rel=1e-5)
