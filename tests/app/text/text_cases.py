"""Tiny texts as a data set of the catalogue, and tiny random models saved as a stranger would save them."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from adadp.app.text_rows import byte_rows
from adadp.app.zoo import DATA_SETS, DataSet

GOOD, BAD = ("good", "fine", "great"), ("bad", "poor", "awful")
LENGTH = 48


def texts(count, seed):
    """Sentences whose words say their class, and the classes."""
    draw = np.random.RandomState(seed)
    labels = draw.randint(0, 2, count)
    words = [" ".join(draw.choice(GOOD if label else BAD, draw.randint(2, 6))) for label in labels]
    return words, labels.astype(np.int64)


def _read(contents):
    parts = [texts(600, 0), texts(200, 1)]
    train, test = ((byte_rows(words, LENGTH), labels) for words, labels in parts)
    return train, test


TINY = DataSet(
    name="tiny-texts",
    title="tiny texts",
    citation="none",
    licence="none",
    record="One short text.",
    scaling="bytes",
    split="by seed",
    shape=(LENGTH,),
    classes=2,
    train_records=600,
    test_records=200,
    default_model="linear",
    text=True,
    files=(),
    read=_read,
)


@pytest.fixture
def tiny_texts(monkeypatch, tmp_path):
    """The catalogue holds ``tiny-texts``; nothing touches the user's cache."""
    monkeypatch.setitem(DATA_SETS, TINY.name, TINY)
    monkeypatch.setenv("ADADP_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    return TINY.name


@pytest.fixture(scope="session")
def tokenizer():
    """A tokenizer of seven words that wraps a text in [CLS] and [SEP]."""
    pytest.importorskip("transformers")
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]
    vocabulary = {word: place for place, word in enumerate([*special, *GOOD, *BAD])}
    plain = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    plain.pre_tokenizer = pre_tokenizers.Whitespace()
    plain.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    return PreTrainedTokenizerFast(tokenizer_object=plain, pad_token="[PAD]", unk_token="[UNK]")


@pytest.fixture(scope="session")
def bert(tokenizer, tmp_path_factory):
    """A folder with a tiny BERT of random weights, and dropout that must be switched off."""
    from transformers import BertConfig, BertModel

    folder = tmp_path_factory.mktemp("bert")
    config = BertConfig(
        vocab_size=len(tokenizer),
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=32,
    )
    with torch.random.fork_rng():
        torch.manual_seed(0)
        BertModel(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def gpt(tokenizer, tmp_path_factory):
    """A folder with a tiny GPT-2 of random weights."""
    from transformers import GPT2Config, GPT2LMHeadModel

    folder = tmp_path_factory.mktemp("gpt")
    config = GPT2Config(vocab_size=len(tokenizer), n_embd=16, n_layer=1, n_head=2, n_positions=32)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        GPT2LMHeadModel(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder
