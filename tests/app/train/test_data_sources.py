"""Data as people have it, with the real libraries: the same records, whatever they come in, give the same run."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

import adadp
from adadp.app.losses import causal_lm, cross_entropy
from adadp.app.sources import LOADER_NOTE, Padded, read
from adadp.errors import InputError
from adadp.records import Records

pandas = pytest.importorskip("pandas")
pyarrow = pytest.importorskip("pyarrow")
datasets = pytest.importorskip("datasets")

GENERATOR = torch.Generator().manual_seed(5)
FEATURES, LABELS = torch.randn(60, 3, generator=GENERATOR), torch.randint(0, 2, (60,), generator=GENERATOR)
SETTINGS = {"noise_multiplier": 1.0, "delta": 1e-3, "steps": 3, "batch_size": 20, "lr": 0.5, "seed": 0}
FRAME = pandas.DataFrame(FEATURES.numpy(), columns=["a", "b", "c"])


def linear() -> nn.Module:
    torch.manual_seed(0)
    return nn.Linear(3, 2)


class Pairs(Dataset):
    def __len__(self):
        return 60

    def __getitem__(self, index):
        return FEATURES[index], LABELS[index]


class ByMany(Pairs):
    def __getitem__(self, index):
        raise AssertionError("one by one")

    def __getitems__(self, indices):
        return [(FEATURES[index], LABELS[index]) for index in indices]


class Stream(IterableDataset):
    def __iter__(self):
        return iter(range(60))


def trained(data, **settings):
    result = adadp.fit(linear(), data, **{**SETTINGS, **settings})
    return torch.cat([value.flatten() for value in result.network.parameters()]), result


EXPECTED = trained((FEATURES, LABELS))[0]


@pytest.mark.parametrize(
    "data",
    [
        (FEATURES.numpy(), LABELS.numpy()),
        (FEATURES.numpy()[::-1][::-1], LABELS.numpy().astype(np.uint16)),
        (FRAME, pandas.Series(LABELS.numpy())),
        (FRAME, pandas.Series(LABELS.numpy(), dtype="Int64")),
        (FRAME, LABELS),
        Pairs(),
        ByMany(),
        DataLoader(Pairs(), batch_size=7, shuffle=True),
        DataLoader(TensorDataset(FEATURES, LABELS), batch_size=7, num_workers=2),
    ],
    ids=["numpy", "odd numpy", "frame", "nullable", "frame and tensor", "set", "getitems", "loader", "tensor loader"],
)
def test_the_same_records_make_the_same_run(data):
    assert torch.equal(trained(data)[0], EXPECTED)


@pytest.mark.slow
def test_workers_fetch_the_same_records_and_the_run_says_who_drew_the_batches():
    values, result = trained(DataLoader(Pairs(), batch_size=7, num_workers=2))
    assert torch.equal(values, EXPECTED)
    assert LOADER_NOTE in result.certificate["notes"]


def test_a_collate_fn_sees_one_record_at_a_time():
    seen = []

    def collate(records):
        seen.append(len(records))
        x, y = zip(*records, strict=True)
        mixed = torch.stack(x)
        return mixed - mixed.mean(0) + mixed[:1], torch.stack(y)  # a mean over the batch would mix records

    assert torch.equal(trained(Pairs(), collate_fn=collate)[0], EXPECTED)
    assert torch.equal(trained(DataLoader(Pairs(), collate_fn=collate))[0], EXPECTED)
    assert {*seen} == {1}


class Named(nn.Module):
    """Takes its inputs by name and returns an output with logits, as transformers do."""

    def __init__(self):
        super().__init__()
        self.inner = linear()

    def forward(self, a, b, c):
        return type("Output", (), {"logits": self.inner(torch.stack([a, b, c], 1).float())})()


COLUMNS = {**{name: FEATURES[:, place] for place, name in enumerate("abc")}, "labels": LABELS}


@pytest.mark.parametrize(
    "data",
    [
        COLUMNS,
        FRAME.assign(labels=LABELS.numpy()),
        pyarrow.table({name: value.numpy() for name, value in COLUMNS.items()}),
        datasets.Dataset.from_dict({name: value.tolist() for name, value in COLUMNS.items()}).with_format("torch"),
        datasets.Dataset.from_dict({**{name: value.tolist() for name, value in COLUMNS.items()}, "text": ["x"] * 60}),
    ],
    ids=["dict", "frame", "arrow", "formatted", "hugging face"],
)
def test_named_columns_go_to_the_model_by_name(data):
    test = {name: value[:9] + 7 * (name != "labels") for name, value in COLUMNS.items()}
    result = adadp.fit(Named(), data, **SETTINGS, test=test)
    assert torch.allclose(torch.cat([value.flatten() for value in result.network.parameters()]), EXPECTED, atol=1e-5)
    assert 0 <= result.test_accuracy <= 1


def test_columns_without_numbers():
    data, (note,) = read(datasets.Dataset.from_dict({"x": [1.0, 2.0], "text": ["a", "b"]}))
    assert data.column_names == ["x"]
    assert "text" in note
    with pytest.raises(InputError, match="column city of the data holds no numbers"):
        Records(pandas.DataFrame({"x": [1.0, 2.0], "city": ["Rome", "Oslo"]}))


def test_a_folder_of_parquet(tmp_path):
    dataset, parquet = (pytest.importorskip(f"pyarrow.{name}") for name in ("dataset", "parquet"))
    parquet.write_table(pyarrow.table({"x": [1.0, 2.0, 3.0]}), tmp_path / "a.parquet")
    (batch,) = Records(dataset.dataset(tmp_path)).batch(torch.tensor([2]))
    assert batch["x"].tolist() == [3.0]


def test_test_records_that_are_training_records_are_found_in_dicts():
    with pytest.raises(InputError, match="test records are training records"):
        adadp.fit(Named(), COLUMNS, **SETTINGS, test=COLUMNS)


def test_a_stream_is_refused():
    with pytest.raises(InputError, match="cannot be counted"):
        adadp.fit(linear(), DataLoader(Stream()), **SETTINGS)


class Secret(Pairs):
    """Fails on one record, and says what is in it."""

    def __getitem__(self, index):
        if index == 30:
            raise KeyError("patient 4711")
        return super().__getitem__(index)


@pytest.mark.parametrize("data", [Secret(), DataLoader(Secret(), num_workers=1)], ids=["here", "worker"])
def test_errors_of_a_data_set_tell_nothing_of_records(data, capfd):
    with pytest.raises(InputError, match="fails on a record: KeyError") as caught:
        Records(data).batch(torch.tensor([1, 30]))
    shown = str(caught.value) + "".join(capfd.readouterr())
    assert "4711" not in shown
    assert caught.value.__suppress_context__


# Records of unequal length ----------------------------------------------------------------------------------------


class Texts(Dataset):
    """Sentences of 1 to 9 words, and which of two words came first."""

    def __init__(self, count=60):
        generator = torch.Generator().manual_seed(1)
        sizes = torch.randint(1, 10, (count,), generator=generator).tolist()
        self.words = [torch.randint(1, 20, (size,), generator=generator) for size in sizes]

    def __len__(self):
        return len(self.words)

    def __getitem__(self, index):
        return {"input_ids": self.words[index], "labels": self.words[index][0] % 2}


class Bag(nn.Module):
    """The mean of the words that are there, which padding does not change."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.words, self.out = nn.Embedding(64, 4), nn.Linear(4, 2)

    def forward(self, input_ids):
        there = (input_ids > 0).unsqueeze(-1).float()
        return self.out((self.words(input_ids) * there).sum(1) / there.sum(1).clamp(min=1))


@pytest.mark.parametrize("lengths", [(9,), (3, 9), (2, 4, 9)])
def test_a_record_contributes_the_same_in_every_length(lengths, tmp_path):
    plan = adadp.Plan.of_noise(noise=1.0, steps=1, records=60, batch_size=60, clip_norm=0.1)
    found = []
    for name, data in (("one", Padded(Texts(), (9,))), ("several", Padded(Texts(), lengths))):
        with adadp.PrivateGradients(Bag(), data, cross_entropy, plan, tmp_path / name, seed=3) as private:
            rows = private._to_rows(torch.arange(60), 0)
            parts = private._sum_of_batch(rows, 0, checked=True)["noise"]
            found.append(torch.cat([value.double().flatten() for value in parts.values()]))
            held = torch.cat([chunk for chunks in rows for chunk in chunks])
            assert sorted(held[held >= 0].tolist()) == list(range(60))
    assert (found[0] - found[1]).norm() < 1e-5
    assert found[0].norm() > 0.1


def test_one_record_more_changes_the_chunks_of_its_own_length_alone(tmp_path):
    plan = adadp.Plan.of_noise(noise=1.0, steps=1, records=60, batch_size=20, clip_norm=0.1)
    data = Padded(Texts(), (3, 6, 9))
    with adadp.PrivateGradients(Bag(), data, cross_entropy, plan, tmp_path / "ledger", seed=3) as private:
        for count in range(59):
            fewer, more = (private._to_rows(torch.arange(each), 0) for each in (count, count + 1))
            (group,) = data.groups_of([count])
            assert len(more) == 3
            for number, both in enumerate(zip(fewer, more, strict=True)):
                before, after = map(torch.cat, both)
                if number != group:
                    assert torch.equal(before, after)
                else:
                    changed = (before != after[: len(before)]).sum() + (after[len(before) :] >= 0).sum()
                    assert 1 <= int(changed) <= 2


@pytest.mark.parametrize("arithmetic", ["fast", "exact"])
def test_fit_on_records_of_unequal_length(arithmetic):
    settings = {**SETTINGS, "arithmetic": arithmetic}
    result = adadp.fit(Bag(), Padded(Texts(), (4, 9)), **settings, test=Padded(Texts(300), (5, 9)))
    assert 0 < result.test_accuracy < 1
    with pytest.raises(InputError, match="test records are training records"):
        adadp.fit(Bag(), Padded(Texts(), (4, 9)), **settings, test=Padded(Texts(), (4, 9)))


def test_padding_is_public_and_cuts():
    data = Padded(Texts(), (2, 5), padding={"input_ids": 7})
    record = {"input_ids": torch.tensor([1, 2, 3]), "labels": torch.tensor(1)}
    assert data.shaped(record, 1)["input_ids"].tolist() == [1, 2, 3, 7, 7]
    assert data.shaped(record, 0)["input_ids"].tolist() == [1, 2]
    tokens = Padded(Texts(), (4,))
    assert tokens.shaped({"input_ids": [1, 2], "labels": [3, 4]}, 0)["labels"].tolist() == [3, 4, -100, -100]
    assert tokens.shaped((torch.tensor([1]), torch.tensor([2])), 0)[1].tolist() == [2, -100, -100, -100]


def test_records_of_unequal_length_without_public_lengths_are_refused_without_them():
    with pytest.raises(InputError, match=r"adadp\.Padded") as caught:
        adadp.fit(Bag(), Texts(), **SETTINGS)
    assert not any(letter.isdigit() for letter in str(caught.value))


@pytest.mark.parametrize("lengths", [(), 5, (0,), (2.5,), (True,), "ab"])
def test_lengths_that_are_none(lengths):
    with pytest.raises(InputError, match="lengths is"):
        Padded(Texts(), lengths)


def test_padded_tensors_are_refused():
    with pytest.raises(InputError, match="one length already"):
        Padded((FEATURES, LABELS), (3,))


class Decoder(nn.Module):
    """A next-word model without attention: enough to see which places count."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.words, self.out = nn.Embedding(64, 4), nn.Linear(4, 64)

    def forward(self, input_ids, attention_mask=None):
        return type("Output", (), {"logits": self.out(self.words(input_ids))})()


@pytest.mark.parametrize("loss", ["causal-lm", "causal-lm:sequence", "causal-lm:9"])
def test_language_models_train_on_sequences_of_unequal_length(loss):
    rows = [{"input_ids": words.tolist(), "attention_mask": [1] * len(words)} for words in Texts().words]
    data = Padded(datasets.Dataset.from_list(rows), (4, 9))
    assert adadp.fit(Decoder(), data, **SETTINGS, loss=loss).certificate["notes"] is not None
    arrow = Padded(pyarrow.Table.from_pylist(rows), (4, 9))
    assert arrow.groups_of(list(range(60))) == data.groups_of(list(range(60)))


def test_padding_changes_no_loss_and_a_record_without_a_token_has_none():
    model, words = Decoder(), torch.tensor([[3, 4, 5, 0, 0], [7, 0, 0, 0, 0], [0, 0, 0, 0, 0]])
    batch = {"input_ids": words, "attention_mask": (words > 0).long()}
    losses = causal_lm(model, batch)
    alone = causal_lm(model, words[:1, :3])
    assert torch.allclose(losses[:1], alone)
    assert losses[1:].tolist() == [0, 0]  # one word has no next one
    gradients = torch.autograd.grad(losses[1:].sum(), list(model.parameters()))
    assert all(bool((value == 0).all()) for value in gradients)
    assert torch.allclose(causal_lm(model, batch, per="sequence")[0], 2 * alone[0])
    assert torch.allclose(causal_lm(model, batch, per=4)[0], alone[0] / 2)


@pytest.mark.slow
def test_a_transformer_on_tokens_with_its_own_collator():
    transformers = pytest.importorskip("transformers")
    config = transformers.BertConfig(
        vocab_size=64, hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16, num_labels=2
    )
    torch.manual_seed(0)
    model = transformers.BertForSequenceClassification(config)
    rows = [
        {"input_ids": words.tolist(), "attention_mask": [1] * len(words), "label": int(words[0]) % 2}
        for words in Texts().words
    ]
    seen = set()

    def collate(records):
        seen.add(len(records))
        return transformers.default_data_collator(records)

    data = Padded(datasets.Dataset.from_list(rows), (4, 9), collate_fn=collate)
    before = model.classifier.weight.detach().clone()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    result = adadp.fit(model, data, **{**SETTINGS, "lr": None}, optimizer=optimizer)
    assert not torch.equal(result.network.classifier.weight, before)
    assert seen == {1}


def test_a_list_in_a_data_loader_is_one_of_records():
    """Eight tensors of five numbers are eight records, not five."""
    rows = [torch.full((5,), float(at)) for at in range(8)]
    records = Records(DataLoader(rows, batch_size=2))
    assert len(records) == 8
    torch.testing.assert_close(records.batch(torch.tensor([3, 6]))[0], torch.stack([rows[3], rows[6]]))
