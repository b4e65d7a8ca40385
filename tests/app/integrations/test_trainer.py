"""The Trainer of transformers, with tiny models that are made here."""

from __future__ import annotations

import json

import pytest
import torch
import torch.nn.functional as F

transformers = pytest.importorskip("transformers")

from transformers import (  # noqa: E402
    BertConfig,
    BertForMaskedLM,
    BertForSequenceClassification,
    EarlyStoppingCallback,
    GPT2Config,
    GPT2LMHeadModel,
    TrainerCallback,
    TrainingArguments,
)

from adadp.app.verify import verify_run  # noqa: E402
from adadp.errors import InputError  # noqa: E402
from adadp.integrations.transformers import PrivateTrainer, record_losses  # noqa: E402
from adadp.ledger import read_ledger  # noqa: E402

TINY = {
    "hidden_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 32,
    "vocab_size": 50,
    "max_position_embeddings": 8,
}


def texts(records: int = 60, *, length: int = 6, seed: int = 0) -> list[dict[str, list[int] | int]]:
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randint(1, 50, (records, length), generator=generator)
    return [{"input_ids": row.tolist(), "attention_mask": [1] * length, "label": int(row[0] > 25)} for row in tokens]


def classifier() -> BertForSequenceClassification:
    torch.manual_seed(0)
    return BertForSequenceClassification(BertConfig(**TINY))


def decoder() -> GPT2LMHeadModel:
    torch.manual_seed(0)
    return GPT2LMHeadModel(GPT2Config(n_embd=16, n_layer=1, n_head=2, vocab_size=50, n_positions=8))


def arguments(folder, **changes) -> TrainingArguments:
    usual = {
        "per_device_train_batch_size": 10,
        "gradient_accumulation_steps": 2,
        "max_steps": 6,
        "logging_steps": 2,
        "learning_rate": 1e-2,
        "save_strategy": "no",
        "report_to": [],
        "disable_tqdm": True,
        "use_cpu": True,
    }
    return TrainingArguments(output_dir=str(folder), **(usual | changes))


def trainer(folder, *, model=None, data=None, changes=None, **named) -> PrivateTrainer:
    return PrivateTrainer(
        model=classifier() if model is None else model,
        args=arguments(folder, **(changes or {})),
        train_dataset=texts() if data is None else data,
        epsilon=8,
        delta=1e-4,
        **named,
    )


def failed(folder) -> list[str]:
    return [f"{check.name}: {check.detail}" for check in verify_run(folder) if not check.passed]


class Watch(TrainerCallback):
    def __init__(self):
        self.logs, self.rates = [], []

    def on_log(self, args, state, control, logs=None, **_):
        self.logs.append(dict(logs))

    def on_optimizer_step(self, args, state, control, optimizer=None, **_):
        self.rates.append(optimizer.param_groups[0]["lr"])


@pytest.mark.slow
def test_a_trainer_leaves_a_certified_run_and_tells_no_loss(tmp_path):
    watch = Watch()
    public = texts(20, seed=1)
    private = trainer(
        tmp_path,
        eval_dataset=public,
        callbacks=[watch],
        compute_metrics=lambda found: {"right": float((found.predictions.argmax(-1) == found.label_ids).mean())},
        changes={"eval_strategy": "steps", "eval_steps": 3},
        record="one text",
    )
    before = {name: value.clone() for name, value in private.model.state_dict().items()}
    done = private.train()
    assert failed(tmp_path / "adadp") == []
    stated = json.loads((tmp_path / "adadp" / "certificate.json").read_text())
    assert 7 < stated["epsilon"] <= 8
    assert (stated["steps_done"], stated["plan"]["batch_size"], stated["record"]) == (6, 20, "one text")
    assert any(not torch.equal(before[name], value) for name, value in private.model.state_dict().items())
    told = {name for logs in watch.logs for name in logs}
    assert told >= {"learning_rate", "epsilon", "eval_loss", "eval_right"}
    assert not told & {"loss", "train_loss", "train_runtime"}
    assert [logs["epsilon"] for logs in watch.logs if "learning_rate" in logs] == sorted(
        logs["epsilon"] for logs in watch.logs if "learning_rate" in logs
    )
    assert watch.rates == pytest.approx([1e-2 * (1 - step / 6) for step in range(6)])  # its own linear schedule
    assert done.global_step == 6
    assert done.training_loss != done.training_loss
    assert sum(read_ledger(tmp_path / "adadp" / "ledger.jsonl").charges.values()) == 6
    with pytest.raises(InputError, match="There is a private run"):
        private.train()


@pytest.mark.slow
def test_a_data_set_of_datasets_and_a_language_model(tmp_path):
    datasets = pytest.importorskip("datasets")
    rows = [{"input_ids": each["input_ids"], "labels": each["input_ids"], "extra": "unused"} for each in texts()]
    private = trainer(
        tmp_path,
        model=decoder(),
        data=datasets.Dataset.from_list(rows),
        changes={"max_steps": -1, "num_train_epochs": 2},
    )
    private.train()
    assert failed(tmp_path / "adadp") == []
    assert private.state.global_step == 6  # 60 records in batches of 20, twice


@pytest.mark.parametrize("kind", ["classes", "causal", "masked"])
def test_losses_are_those_of_the_model_record_by_record(kind):
    tokens = torch.tensor([each["input_ids"] for each in texts(4)])
    if kind == "classes":
        model, labels = classifier(), torch.tensor([0, 1, 1, 0])
    else:
        labels = tokens.clone()
        labels[0, 3:] = -100
        labels[1, ::2] = -100
        model = decoder() if kind == "causal" else BertForMaskedLM(BertConfig(**TINY))
    model.eval()
    found = record_losses(model, {"input_ids": tokens, "labels": labels})
    alone = [model(input_ids=tokens[i : i + 1], labels=labels[i : i + 1]).loss for i in range(4)]
    torch.testing.assert_close(found, torch.stack(alone))


@pytest.mark.slow
def test_without_noise_to_speak_of_it_is_the_sum_of_clipped_gradients(tmp_path):
    """All records in every batch, and an epsilon so large that the noise is nothing: the gradient is known."""
    model = classifier().eval()
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    data = texts(20)
    private = PrivateTrainer(
        model=model,
        args=arguments(tmp_path, max_steps=1, optim="sgd", lr_scheduler_type="constant", learning_rate=1.0),
        train_dataset=data,
        epsilon=1e9,
        delta=1e-4,
        clip_norm=0.1,
    )
    inputs = {
        "input_ids": torch.tensor([each["input_ids"] for each in data]),
        "attention_mask": torch.ones(20, 6, dtype=torch.long),
        "labels": torch.tensor([each["label"] for each in data]),
    }
    before = {name: value.detach().clone() for name, value in model.named_parameters()}
    each = [
        torch.autograd.grad(
            F.cross_entropy(
                model(**{name: value[i : i + 1] for name, value in inputs.items() if name != "labels"}).logits,
                inputs["labels"][i : i + 1],
            ),
            list(model.parameters()),
        )
        for i in range(20)
    ]
    norms = [torch.sqrt(sum((part**2).sum() for part in grads)) for grads in each]
    assert min(norms) > 0.1
    expected = [
        sum(0.1 / norm * part for norm, part in zip(norms, parts, strict=True)) / 20
        for parts in zip(*each, strict=True)
    ]
    private.train()
    moved = [before[name] - value.detach() for name, value in model.named_parameters()]
    for found, wanted in zip(moved, expected, strict=True):
        torch.testing.assert_close(found, wanted, rtol=0.02, atol=2e-4)


@pytest.mark.slow
def test_a_stopped_run_goes_on_with_its_ledger(tmp_path):
    class Stop(TrainerCallback):
        def on_step_end(self, args, state, control, **_):
            if state.global_step == 3:
                raise KeyboardInterrupt

    changes = {"save_strategy": "steps", "save_steps": 2}
    with pytest.raises(KeyboardInterrupt):
        trainer(tmp_path, changes=changes, callbacks=[Stop()]).train()
    again = trainer(tmp_path, changes=changes)
    with pytest.raises(InputError, match="resume_from_checkpoint"):
        again.train()
    again.train(resume_from_checkpoint=True)
    assert failed(tmp_path / "adadp") == []
    stated = json.loads((tmp_path / "adadp" / "certificate.json").read_text())
    assert (stated["steps_done"], stated["steps_lost"]) == (5, 1)  # the third step was paid twice
    assert sum(read_ledger(tmp_path / "adadp" / "ledger.jsonl").charges.values()) == 6


@pytest.mark.slow
def test_early_stopping_on_public_records_is_charged_in_full(tmp_path):
    private = trainer(
        tmp_path,
        eval_dataset=texts(20, seed=1),
        callbacks=[EarlyStoppingCallback(1, early_stopping_threshold=100.0)],
        changes={
            "eval_strategy": "steps",
            "save_strategy": "steps",
            "eval_steps": 1,
            "save_steps": 1,
            "load_best_model_at_end": True,
            "metric_for_best_model": "loss",
        },
    )
    private.train()
    stated = json.loads((tmp_path / "adadp" / "certificate.json").read_text())
    assert failed(tmp_path / "adadp") == []
    assert stated["steps_done"] < 6
    assert 7 < stated["epsilon"] <= 8


@pytest.mark.slow
def test_texts_of_unequal_length_are_refused_without_telling_it(tmp_path):
    data = texts()
    data[7] = {"input_ids": [1, 2, 3], "attention_mask": [1, 1, 1], "label": 0}
    data[8] = {"input_ids": [1, 2, 3, 4], "attention_mask": [1, 1, 1, 1], "label": 0}
    private = trainer(tmp_path, data=data, changes={"per_device_train_batch_size": 30})
    with pytest.raises(InputError, match="cannot be put into one batch") as refused:
        private.train()
    assert "[3]" not in str(refused.value)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"label_smoothing_factor": 0.1}, "label_smoothing_factor"),
        ({"auto_find_batch_size": True}, "auto_find_batch_size"),
        ({"per_device_train_batch_size": 100}, "fewer training records"),
        ({"include_num_input_tokens_seen": "all"}, "include_num_input_tokens_seen"),
    ],
)
def test_what_cannot_be_private_is_refused(tmp_path, changes, said):
    with pytest.raises(InputError, match=said):
        trainer(tmp_path, changes=changes)
    assert not (tmp_path / "adadp").exists()


def test_training_records_are_not_evaluated(tmp_path):
    data = texts()
    with pytest.raises(InputError, match="The eval_dataset is the train_dataset"):
        trainer(tmp_path, data=data, eval_dataset=data)


@pytest.mark.slow
def test_texts_of_unequal_length_are_padded_to_public_lengths(tmp_path):
    """The collator of a tokenizer pads to the longest of a batch, which is the record itself here."""
    records = [{name: value[: 3 + at % 4] if name != "label" else value for name, value in text.items()}
               for at, text in enumerate(texts())]  # fmt: skip
    trainer = PrivateTrainer(
        model=classifier(),
        args=arguments(tmp_path),
        train_dataset=records,
        epsilon=8,
        delta=1e-3,
        lengths=(4, 6),
        seed=1,
    )
    trainer.train()
    assert [check.name for check in verify_run(trainer.run_folder) if not check.passed] == []
    assert {engine._probes.batch(2)[0]["input_ids"].shape[1] for engine in trainer.private._engines} == {4, 6}
